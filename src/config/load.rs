//! From files, environment and flags to a [`Config`]. The only file here that reads files; all
//! problems of all files come back together. Next: `config/policy_files.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::diagnostic::{Code, Diagnostic, Diagnostics, Place, Source};
use super::digest::{Digest, Digests};
use super::document::{self, MAX_BYTES, Node, Value};
use super::environment::{Environment, Overrides};
use super::parse::main_file::{MainFile, main_file};
use super::parse::reader::Context;
use super::policy_files;
use super::settings::Inputs;
use super::substitute::substitute;
use super::types::{Config, PolicySet, Registry};

/// What to load.
pub struct LoadRequest<'a> {
    /// `-c`.
    pub path: Option<PathBuf>,
    /// Environment variables.
    pub env: &'a dyn Environment,
    /// Values of flags.
    pub flags: Overrides,
    /// Where the look-up of the main file starts; empty: the current folder.
    pub folder: PathBuf,
    /// The policies in force, at a reload: a file that is bad now keeps its last good ones.
    pub previous: Option<Arc<PolicySet>>,
}

impl<'a> LoadRequest<'a> {
    /// The file `path`, or the one that the look-up finds.
    pub fn new(path: Option<PathBuf>, env: &'a dyn Environment) -> Self {
        Self {
            path,
            env,
            flags: Overrides::default(),
            folder: PathBuf::new(),
            previous: None,
        }
    }
}

impl std::fmt::Debug for LoadRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadRequest")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Loaded {
    /// Nothing when the main file has an error. Bad policy files are left out of it and listed in
    /// `policies.rejected`.
    pub config: Option<Config>,
    /// What could be read of a main file with errors, defaults for the rest: only good for finding the
    /// process that runs with an earlier version of it.
    pub rejected: Option<Config>,
    /// Errors and warnings of all files.
    pub diagnostics: Diagnostics,
    /// Every file that was opened, the main file first.
    pub files_read: Vec<PathBuf>,
    /// What they held when they were read.
    pub digests: Digests,
    /// Globs of the policy files, relative to the main file's folder; none when it is no YAML.
    pub policy_globs: Vec<PathBuf>,
    /// Files whose contents are values of the main file.
    pub contents: Vec<PathBuf>,
    /// The main file; without one the defaults hold.
    pub main_file: Option<PathBuf>,
    /// `OUTRIGGER_*` variables that mean nothing.
    pub ignored_variables: Vec<String>,
}

/// Loads the configuration.
pub fn load(request: LoadRequest<'_>) -> Loaded {
    let LoadRequest {
        path,
        env,
        flags,
        folder,
        previous,
    } = request;
    let mut overrides = flags;
    overrides.add_environment(env);
    let path = path
        .or_else(|| {
            env.variable("OUTRIGGER_CONFIG")
                .filter(|p| !p.is_empty())
                .map(PathBuf::from)
        })
        .map(|path| folder.join(path))
        .or_else(|| {
            LOOK_UP
                .iter()
                .map(|name| folder.join(name))
                .find(|path| path.is_file())
        });
    let Some(path) = path else {
        return without_file(env, &overrides);
    };
    let shown = shown(&path);
    let bytes = read(&path);
    let digest = bytes.as_ref().ok().map(|bytes| Digest::of(bytes));
    let (root, mut problems) = match &bytes {
        Ok(bytes) => document::parse(bytes, &shown),
        Err(error) => unreadable(&shown, error),
    };
    refuse_empty(&root, &mut problems);
    let base = path.parent().unwrap_or_else(|| Path::new("")).to_owned();
    let mut loaded = finish(root, problems, env, &overrides, &base, previous.as_deref());
    if loaded.config.is_none() && loaded.rejected.is_none() {
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        loaded.rejected = text.and_then(|text| listeners(&text, env, &overrides, &base));
    }
    loaded.files_read.insert(0, path.clone());
    loaded.digests.insert(path.clone(), digest);
    loaded.main_file = Some(path);
    loaded
}

/// The main file from a text, shown as `name`; policy files are looked for relative to `folder`,
/// not at all when it is `None`; then an empty text stands for the defaults.
pub fn parse_str(text: &str, name: &str, env: &dyn Environment, folder: Option<&Path>) -> Loaded {
    let mut overrides = Overrides::default();
    overrides.add_environment(env);
    let (root, mut problems) = document::parse(text.as_bytes(), name);
    match folder {
        Some(folder) => {
            refuse_empty(&root, &mut problems);
            finish(root, problems, env, &overrides, folder, None)
        }
        None => {
            let (main, problems, ignored) =
                read_main(root, problems, env, &overrides, Path::new(""));
            Loaded {
                config: main
                    .filter(|_| !problems.has_errors())
                    .map(|main| main.config),
                rejected: None,
                diagnostics: problems,
                files_read: Vec::new(),
                digests: Digests::default(),
                policy_globs: Vec::new(),
                contents: Vec::new(),
                main_file: None,
                ignored_variables: ignored,
            }
        }
    }
}

/// Policy files by themselves, for `check`.
pub fn policies(files: Vec<PathBuf>, env: &dyn Environment) -> (PolicySet, Diagnostics) {
    let found = policy_files::load_files(files, Path::new(""), env, None);
    (found.set, found.problems)
}

/// A policy file as text, shown as `name`, beside those of `set` but for the one of that name: the
/// names of its policies, and every problem.
pub fn policy_text(
    text: &str,
    name: &str,
    set: &PolicySet,
    env: &dyn Environment,
) -> (Vec<String>, Diagnostics) {
    policy_files::check_text(text, name, set, env)
}

impl Config {
    /// What holds without any file: every default, and the embedded registry to discover in.
    pub fn builtin() -> Self {
        let (root, _) = document::parse(b"", "");
        let overrides = Overrides::default();
        let context = Context::new(&overrides, Path::new(""));
        main_file(&context, &root, "localhost")
            .config
            .with_embedded_registry()
    }

    fn with_embedded_registry(self) -> Self {
        let registry = Registry::builtin();
        let name = Arc::clone(&registry.name);
        Self {
            default_registries: vec![Arc::clone(&name)],
            registries: BTreeMap::from([(name, registry)]),
            ..self
        }
    }
}

fn without_file(env: &dyn Environment, overrides: &Overrides) -> Loaded {
    let (root, problems) = document::parse(b"", "no configuration file");
    let place = root.place.clone();
    let (main, mut problems, ignored_variables) =
        read_main(root, problems, env, overrides, Path::new(""));
    if let Some(main) = &main {
        check_token_file(&main.config, place, &mut problems);
    }
    let config = main.filter(|_| !problems.has_errors());
    let config = config.map(|main| main.config.with_embedded_registry());
    Loaded {
        config,
        rejected: None,
        diagnostics: problems,
        files_read: Vec::new(),
        digests: Digests::default(),
        policy_globs: Vec::new(),
        contents: Vec::new(),
        main_file: None,
        ignored_variables,
    }
}

fn finish(
    root: Node,
    problems: Diagnostics,
    env: &dyn Environment,
    overrides: &Overrides,
    folder: &Path,
    previous: Option<&PolicySet>,
) -> Loaded {
    let token_file = root.get("admin").and_then(|node| node.get("token_file"));
    let token_place = token_file.unwrap_or(&root).place.clone();
    let says_something = root.value != Value::Null;
    let (main, mut problems, ignored_variables) = read_main(root, problems, env, overrides, folder);
    let main_is_good = !problems.has_errors();
    let (mut files_read, mut digests) = (Vec::new(), Digests::default());
    let globs = main.iter().flat_map(|main| &main.policies);
    let policy_globs = globs.map(|(glob, _)| PathBuf::from(glob)).collect();
    let mut contents = Vec::new();
    let config = main.map(|main| {
        let found = policy_files::load(&main, folder, env, previous);
        problems.extend(found.problems);
        files_read = found.files_read;
        digests = found.digests;
        for (path, digest) in main.contents {
            files_read.push(path.clone());
            digests.insert(path.clone(), digest);
            contents.push(path);
        }
        check_token_file(&main.config, token_place, &mut problems);
        Config {
            policies: Arc::new(found.set),
            ..main.config
        }
    });
    problems.sort();
    let (config, rejected) = match main_is_good {
        true => (config, None),
        false => (None, config.filter(|_| says_something)),
    };
    Loaded {
        config,
        rejected,
        diagnostics: problems,
        files_read,
        digests,
        policy_globs,
        contents,
        main_file: None,
        ignored_variables,
    }
}

/// The main file alone, every problem, and the variables that mean nothing. No value comes of a
/// text that is no YAML.
fn read_main(
    mut root: Node,
    mut problems: Diagnostics,
    env: &dyn Environment,
    overrides: &Overrides,
    folder: &Path,
) -> (Option<MainFile>, Diagnostics, Vec<String>) {
    if problems.has_errors() && root.value == Value::Null {
        return (None, problems, Vec::new());
    }
    substitute(&mut root, env, &mut problems);
    let contents: RefCell<Vec<(PathBuf, Option<Digest>)>> = RefCell::default();
    let read = |path: &Path| {
        let bytes = read(path);
        let digest = bytes.as_ref().ok().map(|bytes| Digest::of(bytes));
        contents.borrow_mut().push((path.to_owned(), digest));
        bytes
    };
    let context = Context::new(overrides, folder).with_files(&read);
    let host_name = env.host_name();
    let mut main = main_file(&context, &root, &host_name);
    let (found, used) = context.finish();
    main.contents = contents.into_inner();
    problems.extend(found);
    problems.sort();
    let ignored = overrides
        .origins()
        .filter(|(path, _)| !used.contains(*path))
        .map(|(_, name)| name.to_owned())
        .collect();
    main.config.inputs = Arc::new(Inputs {
        root: Some(Arc::new(root)),
        overrides: overrides.clone(),
        folder: folder.to_owned(),
        host_name,
        started: None,
    });
    (Some(main), problems, ignored)
}

/// The listeners of a text that is no YAML as a whole: its sections `admin` and `telemetry` by
/// themselves, if they are.
fn listeners(
    text: &str,
    env: &dyn Environment,
    overrides: &Overrides,
    folder: &Path,
) -> Option<Config> {
    let mut inside = false;
    let mut kept = String::new();
    for line in text.lines() {
        if line.starts_with(|c: char| !c.is_whitespace() && c != '#') {
            inside = line.starts_with("admin:") || line.starts_with("telemetry:");
        }
        if inside {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    let (root, problems) = document::parse(kept.as_bytes(), "");
    if root.value == Value::Null {
        return None;
    }
    let (main, ..) = read_main(root, problems, env, overrides, folder);
    main.map(|main| main.config)
}

/// A main file that says nothing is one that is being written, or was cut off: as a configuration it
/// would take every service away.
fn refuse_empty(root: &Node, problems: &mut Diagnostics) {
    if root.value == Value::Null && !problems.has_errors() {
        problems.push(Diagnostic {
            code: Code::MISSING,
            place: root.place.clone(),
            message: "the file is empty".to_owned(),
            help: "write at least `version: 1`".to_owned(),
        });
    }
}

/// Only a warning: the file may come later, and is read at each request.
fn check_token_file(config: &Config, place: Place, problems: &mut Diagnostics) {
    let Some(path) = &config.admin.token_file else {
        return;
    };
    let what = match read(path) {
        Ok(bytes) if bytes.trim_ascii().is_empty() => "is empty".to_owned(),
        Ok(_) => return,
        Err(error) => format!("cannot be read: {error}"),
    };
    problems.push(Diagnostic {
        code: Code::TOKEN_FILE,
        place,
        message: format!("`admin.token_file`: {} {what}", shown(path)),
        help: "the admin API lets nobody in until it holds a token".to_owned(),
    });
}

/// The files that policy globs lead to now.
pub fn policy_paths(folder: &Path, globs: &[PathBuf]) -> Vec<PathBuf> {
    let expanded = globs.iter().flat_map(|g| policy_files::expand(folder, g));
    let mut paths: Vec<PathBuf> = expanded.collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The contents of a main file, of what policy globs lead to now, and of files with values.
pub fn read_digests(main: &Path, globs: &[PathBuf], contents: &[PathBuf]) -> Digests {
    let mut digests = Digests::default();
    let folder = main.parent().unwrap_or_else(|| Path::new(""));
    let policies = policy_paths(folder, globs);
    let others = contents.iter().cloned().chain([main.to_owned()]);
    for path in policies.into_iter().chain(others) {
        let digest = read(&path).ok().map(|bytes| Digest::of(&bytes));
        digests.insert(path, digest);
    }
    digests
}

/// The bytes of a regular file that is not larger than a configuration may be.
pub(crate) fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::{Error, ErrorKind, Read as _};
    // Before it is opened: a pipe would wait for a writer for ever.
    let found = std::fs::metadata(path).map_err(|error| match std::fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => {
            let text = format!("the symbolic link to {} leads nowhere", target.display());
            Error::new(ErrorKind::NotFound, text)
        }
        Ok(_) | Err(_) => error,
    })?;
    if found.is_dir() {
        return Err(Error::from(ErrorKind::IsADirectory));
    }
    if !found.is_file() {
        return Err(Error::other("it is not a regular file"));
    }
    let most = u64::try_from(MAX_BYTES).unwrap_or(u64::MAX);
    if found.len() > most {
        let text = format!("the file has {} bytes", found.len());
        return Err(Error::new(ErrorKind::FileTooLarge, text));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why [`read`] gave nothing.
pub(crate) fn read_problem(shown: &str, error: &std::io::Error) -> Diagnostic {
    let source = Arc::new(Source {
        name: shown.to_owned(),
        text: String::new(),
        is_file: true,
    });
    let (code, message, help) = if error.kind() == std::io::ErrorKind::FileTooLarge {
        (Code::TOO_LARGE, error.to_string(), "at most 1 MiB")
    } else {
        let message = format!("cannot read the file: {error}");
        (Code::UNREADABLE, message, "")
    };
    Diagnostic {
        code,
        place: Place::whole(&source),
        message,
        help: help.to_owned(),
    }
}

pub(super) fn unreadable(shown: &str, error: &std::io::Error) -> (Node, Diagnostics) {
    let problem = read_problem(shown, error);
    let place = problem.place.clone();
    let mut problems = Diagnostics::default();
    problems.push(problem);
    (
        Node {
            value: Value::Null,
            place,
        },
        problems,
    )
}

/// A path as messages tell it.
pub(super) fn shown(path: &Path) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    path.display().to_string()
}

/// Where the main file is looked for when nothing names it.
const LOOK_UP: [&str; 3] = [
    "./outrigger.yaml",
    "./config/outrigger.yaml",
    "/etc/outrigger/outrigger.yaml",
];

#[cfg(test)]
mod tests;
