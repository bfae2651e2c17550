//! `outrigger check`: reads everything, changes nothing. Problems go to standard error, the policy
//! of every upstream and how many instances it may eject to standard output.
//! Exit codes: 0 good, 1 output failed, 3 errors, 4 warnings under `--strict`.

mod format;
mod preflight;
mod report;

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, Place, Source};
use crate::config::document::{self, Node, Value};
use crate::config::effective::effective;
use crate::config::environment::Environment;
use crate::config::types::{Config, RegistryKind};
use crate::config::{LoadRequest, Loaded, endpoints, load};

/// Validate the configuration, its policy files and variables.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CheckArgs {
    /// Main, policy or endpoints files, or folders with an outrigger.yaml; without any the main
    /// file that `run` would use.
    pub paths: Vec<PathBuf>,
    /// Warnings are failures too (exit code 4).
    #[arg(long)]
    pub strict: bool,
    /// Look at this machine too: free ports, open files, registries, folders. Changes nothing.
    #[arg(long)]
    pub preflight: bool,
    /// How to tell what was found; all but human go to standard output whole.
    #[arg(long, value_enum, default_value = "human")]
    pub format: ReportFormat,
}

/// `--format`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object.
    Json,
    /// Workflow commands of GitHub Actions: annotations at the lines of a change.
    Github,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &CheckArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let mut checked = Checked {
        preflight: args.preflight,
        ..Checked::default()
    };
    if args.paths.is_empty() {
        checked.main_file(LoadRequest::new(None, env), env);
    }
    for path in &args.paths {
        checked.path(path, env);
    }
    let Checked {
        text,
        problems,
        upstreams,
        ..
    } = checked;
    let errors = problems.errors().count();
    let warnings = problems.warnings().count();
    let report = match args.format {
        ReportFormat::Human => {
            let mut shown = problems.to_string();
            if errors + warnings > 0 {
                let verdict = format!(
                    "\n{}, {}\n",
                    count(errors, "error"),
                    count(warnings, "warning")
                );
                shown.push_str(&verdict);
            }
            if err.write_all(shown.as_bytes()).is_err() {
                return 1;
            }
            text
        }
        ReportFormat::Json => pretty(&format::json_report(&problems, &text, &upstreams)),
        ReportFormat::Github => format::github(&problems),
        ReportFormat::Sarif => pretty(&format::sarif(&problems)),
    };
    let written = out.write_all(report.as_bytes());
    match written.and_then(|()| out.flush()) {
        Err(_) => 1,
        Ok(()) if problems.has_errors() => 3,
        Ok(()) if args.strict && warnings > 0 => 4,
        Ok(()) => 0,
    }
}

fn pretty(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

#[derive(Default)]
struct Checked {
    text: String,
    problems: Diagnostics,
    /// The policy of each, for programs.
    upstreams: Vec<serde_json::Value>,
    preflight: bool,
}

impl Checked {
    fn path(&mut self, path: &Path, env: &dyn Environment) {
        if path.is_dir() {
            let path = path.join("outrigger.yaml");
            self.main_file(LoadRequest::new(Some(path), env), env);
            return;
        }
        match kind(path) {
            Kind::Main => self.main_file(LoadRequest::new(Some(path.to_owned()), env), env),
            Kind::Policies => {
                let (set, problems) = load::policies(vec![path.to_owned()], env);
                if !problems.has_errors() {
                    let active = count(set.entries.len(), "policy");
                    self.line(&format!("{}: good, {active}", path.display()));
                    self.text
                        .push_str(&report::budgets(set.entries.iter().map(|e| &*e.policy)));
                }
                self.problems.extend(problems);
            }
            Kind::Endpoints => self.endpoints_file(path, env),
        }
    }

    fn main_file(&mut self, request: LoadRequest<'_>, env: &dyn Environment) {
        let Loaded {
            config,
            diagnostics,
            main_file,
            ignored_variables,
            ..
        } = load(request);
        let good = !diagnostics.has_errors();
        self.problems.extend(diagnostics);
        let Some(config) = config else { return };
        let folder = main_file.as_deref().and_then(Path::parent);
        let folder = folder.map(Path::to_owned).unwrap_or_default();
        let file = main_file.map_or_else(
            || "no configuration file, defaults".to_owned(),
            |path| path.display().to_string(),
        );
        for rejected in &config.policies.rejected {
            let others = count(config.policies.active_files.len(), "other file");
            self.line(&format!(
                "{} rejected; {others} loaded",
                rejected.path.display()
            ));
        }
        let machine = self.preflight.then(|| preflight::look(&config));
        let (notes, in_the_way) = machine.unwrap_or_default();
        let verdict = if !good {
            "loads without the rejected files"
        } else if in_the_way.iter().any(|(code, ..)| !code.is_warning()) {
            "loads, but cannot start on this machine"
        } else {
            "good"
        };
        let (services, policies) = (config.services.len(), config.policies.entries.len());
        self.line(&format!(
            "{file}: {verdict}, {}, {}",
            count(services, "service"),
            count(policies, "policy")
        ));
        if !ignored_variables.is_empty() {
            self.line(&format!(
                "ignored variables: {}",
                ignored_variables.join(", ")
            ));
        }
        let (table, remarks) = report::upstreams(&config);
        self.text.push_str(&table);
        for (code, origin, message, help) in remarks {
            // Where a policy stands is told from the folder of the main file.
            let (path, line) = match origin.rsplit_once(':') {
                Some((path, line)) => (folder.join(path), line.parse().unwrap_or(0)),
                None => (PathBuf::from(&origin), 0),
            };
            self.remark_at(code, (&path.display().to_string(), line), message, &help);
        }
        for name in config.services.keys() {
            let found = serde_json::to_value(effective(&config, name));
            self.upstreams.extend(found.ok());
        }
        self.endpoint_files(&config, env);
        self.text.push_str(&notes);
        for (code, _, message, help) in in_the_way {
            self.remark(code, &file, message, &help);
        }
    }

    fn endpoint_files(&mut self, config: &Config, env: &dyn Environment) {
        for registry in config.registries.values() {
            let RegistryKind::File { path } = &registry.kind else {
                continue;
            };
            if path.exists() {
                self.endpoints_file(path, env);
                continue;
            }
            let message = format!("registry `{}`: the file does not exist", registry.name);
            let help = "its services have no instances until it does";
            let file = path.display().to_string();
            self.remark(Code::FILE_ABSENT, &file, message, help);
        }
    }

    fn endpoints_file(&mut self, path: &Path, env: &dyn Environment) {
        let name = path.display().to_string();
        let bytes = match load::read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.problems.push(load::read_problem(&name, &error));
                return;
            }
        };
        match endpoints::parse(&bytes, &name, env) {
            Ok(file) => {
                self.line(&format!(
                    "{name}: good, {}",
                    count(file.services.len(), "service")
                ));
                self.problems.extend(file.warnings);
            }
            Err(problems) => self.problems.extend(problems),
        }
    }

    fn remark(&mut self, code: Code, origin: &str, message: String, help: &str) {
        self.remark_at(code, (origin, 0), message, help);
    }

    fn remark_at(&mut self, code: Code, (file, line): (&str, usize), message: String, help: &str) {
        let source = Arc::new(Source {
            name: file.to_owned(),
            text: String::new(),
            is_file: true,
        });
        let place = match line {
            0 => Place::whole(&source),
            line => Place::at(&source, line, 1),
        };
        self.problems.push(Diagnostic {
            code,
            place,
            message,
            help: help.to_owned(),
        });
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
}

/// What a file is, by its shape.
enum Kind {
    Main,
    Policies,
    Endpoints,
}

fn kind(path: &Path) -> Kind {
    let Ok(bytes) = load::read(path) else {
        return Kind::Main;
    };
    let (root, _) = document::parse(&bytes, "");
    let list_of_maps = |node: &Node| match &node.value {
        Value::Sequence(items) => items.iter().all(|i| matches!(i.value, Value::Mapping(_))),
        Value::Null | Value::Scalar(_) | Value::Mapping(_) => false,
    };
    let map_of_lists = |node: &Node| match &node.value {
        Value::Mapping(entries) => entries
            .iter()
            .any(|entry| matches!(entry.value.value, Value::Sequence(_))),
        Value::Null | Value::Scalar(_) | Value::Sequence(_) => false,
    };
    if root.get("policies").is_some_and(list_of_maps) {
        Kind::Policies
    } else if root.get("services").is_some_and(map_of_lists) {
        Kind::Endpoints
    } else {
        Kind::Main
    }
}

/// `1 file`, `2 files`, `3 policies`.
fn count(number: usize, noun: &str) -> String {
    let mut text = String::new();
    let result = match noun.strip_suffix('y') {
        _ if number == 1 => write!(text, "1 {noun}"),
        Some(stem) => write!(text, "{number} {stem}ies"),
        None => write!(text, "{number} {noun}s"),
    };
    debug_assert!(result.is_ok(), "writing to a string cannot fail");
    text
}

#[cfg(test)]
mod tests;
