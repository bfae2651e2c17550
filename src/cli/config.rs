//! `outrigger config`: every value in force with its origin, and what differs between the files and
//! the running process.

use std::io::Write;

use serde_json::{Value, json as object};

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, finish, json};
use crate::admin::views::ConfigView;
use crate::config::effective::{Policies, policies};
use crate::config::environment::Environment;
use crate::config::settings::{Difference, Origin, Setting, difference};
use crate::config::{LoadRequest, Loaded, load};

/// Look at the configuration.
#[derive(Clone, Debug, clap::Args)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// The values that are written, of the files or of the running process.
    Show(ConfigShowArgs),
    /// What a reload of the files would change in the running process.
    Diff(DiffArgs),
}

/// Arguments of `config show`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigShowArgs {
    /// Where each value comes from: default, file:line:column, env NAME, flag.
    #[arg(long)]
    pub origin: bool,
    /// Defaults too.
    #[arg(long)]
    pub effective: bool,
    /// Of the running process instead of the files.
    #[arg(long)]
    pub running: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Arguments of `config diff`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DiffArgs {
    /// Exit with 1 when something differs.
    #[arg(long)]
    pub exit_code: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &ConfigArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = match &args.command {
        ConfigCommand::Show(args) => show(args, env, out, err),
        ConfigCommand::Diff(args) => diff(args, env, out, err),
    };
    finish(result, out, err)
}

fn show(
    args: &ConfigShowArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let (mut settings, ignored) = if args.running {
        let client = AdminClient::find(&args.connect, env)?;
        (running(&client)?, Vec::new())
    } else {
        let loaded = load(LoadRequest::new(args.connect.config.clone(), env));
        write!(err, "{}", loaded.diagnostics)?;
        let Some(config) = loaded.config else {
            return Ok(3);
        };
        if loaded.main_file.is_none() {
            let text = "no configuration file: the defaults and the embedded registry hold";
            writeln!(err, "{text}")?;
        }
        (config.inputs.settings(), loaded.ignored_variables)
    };
    if !args.effective {
        settings.retain(|setting| setting.origin != Origin::Default);
    }
    match args.show.output {
        Format::Json => json(
            out,
            &object!({"settings": settings, "ignored_variables": ignored}),
        )?,
        Format::Table | Format::Wide => {
            for setting in settings.iter().filter(|s| !s.value.is_null()) {
                let value = text(&setting.value);
                if args.origin {
                    writeln!(out, "{} = {value}  # {}", setting.key, setting.origin)?;
                } else {
                    writeln!(out, "{} = {value}", setting.key)?;
                }
            }
            if args.origin && !ignored.is_empty() {
                writeln!(out, "# variables that name no key: {}", ignored.join(", "))?;
            }
        }
    }
    Ok(0)
}

fn running(client: &AdminClient) -> Result<Vec<Setting>, Failure> {
    let answer = client.get("/api/v1/config")?;
    Ok(client.read::<ConfigView>(&answer)?.settings)
}

/// A value as it would be written.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// The files alone: what the process has of its own environment is not what this one has.
struct FilesOnly<'a>(&'a dyn Environment);

impl Environment for FilesOnly<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        self.0.variable(name)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn host_name(&self) -> String {
        self.0.host_name()
    }
}

fn diff(
    args: &DiffArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let files = FilesOnly(env);
    let Loaded {
        config,
        diagnostics,
        ..
    } = load(LoadRequest::new(args.connect.config.clone(), &files));
    write!(err, "{diagnostics}")?;
    let Some(config) = config else {
        return Ok(3);
    };
    let client = AdminClient::find(&args.connect, env)?;
    let mut old = running(&client)?;
    let mut new = config.inputs.settings();
    let answer = client.get("/api/v1/policies")?;
    old.extend(flat(&client.read(&answer)?));
    new.extend(flat(&policies(&config)));
    // Flags and variables of the process outrank its files, at a reload too.
    let own = |s: &Setting| matches!(s.origin, Origin::Flag(_) | Origin::Environment(_));
    let mut found = difference(&old, &new);
    let before = found.len();
    found.retain(|d| !d.running.as_ref().is_some_and(own));
    let outranked = before - found.len();
    match args.show.output {
        Format::Json => json(
            out,
            &object!({"differences": found, "outranked": outranked}),
        )?,
        Format::Table | Format::Wide => print(&found, outranked, out)?,
    }
    Ok(u8::from(args.exit_code && !found.is_empty()))
}

fn print(found: &[Difference], outranked: usize, out: &mut dyn Write) -> Result<(), Failure> {
    if found.is_empty() {
        writeln!(out, "the running process has what the files say")?;
    }
    let side = |setting: Option<&Setting>| {
        setting.map_or_else(
            || "(not there)".to_owned(),
            |s| format!("{} ({})", text(&s.value), s.origin),
        )
    };
    for difference in found {
        let restart = if difference.restart_required {
            "  [needs a restart]"
        } else {
            ""
        };
        writeln!(out, "{}{restart}", difference.key)?;
        writeln!(out, "  running: {}", side(difference.running.as_ref()))?;
        writeln!(out, "  files:   {}", side(difference.files.as_ref()))?;
    }
    if outranked > 0 {
        writeln!(
            out,
            "{outranked} more come from flags or variables of the process, which outrank its files"
        )?;
    }
    Ok(())
}

/// Policies as keys `policies.NAME.field`.
fn flat(policies: &Policies) -> Vec<Setting> {
    let all = policies.policies.iter().flat_map(|policy| {
        let key = |setting: &Setting| format!("policies.{}.{}", policy.name, setting.key);
        policy.settings.iter().map(move |setting| Setting {
            key: key(setting),
            ..setting.clone()
        })
    });
    all.collect()
}
