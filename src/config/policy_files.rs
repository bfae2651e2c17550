//! The policy files that the globs of the main file name. Each stands alone: one with an error is
//! left out (its last good version stays at a reload) and the others load.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::diagnostic::{Code, Diagnostic, Diagnostics, Place};
use super::digest::{Digest, Digests};
use super::document;
use super::environment::{Environment, Overrides};
use super::load::{read, shown, unreadable};
use super::parse::main_file::MainFile;
use super::parse::policy::policy_file;
use super::parse::reader::Context;
use super::substitute::substitute;
use super::types::{FileVersion, PolicyEntry, PolicySet, RejectedFile};
use crate::clock::wall_now;

/// What the globs led to.
pub(super) struct Found {
    pub(super) set: PolicySet,
    pub(super) problems: Diagnostics,
    pub(super) files_read: Vec<PathBuf>,
    pub(super) digests: Digests,
}

/// Loads every file that `main` names, in the order of their paths.
pub(super) fn load(
    main: &MainFile,
    folder: &Path,
    env: &dyn Environment,
    previous: Option<&PolicySet>,
) -> Found {
    let mut problems = Diagnostics::default();
    let mut files: Vec<PathBuf> = Vec::new();
    for (glob, place) in &main.policies {
        let found = expand(folder, Path::new(glob));
        if found.is_empty() && main.policies_written {
            problems.push(Diagnostic {
                code: Code::NO_MATCH,
                place: place.clone(),
                message: format!("`{glob}` matches no file"),
                help: "the built-in policy holds where no other does".to_owned(),
            });
        }
        files.extend(found);
    }
    files.sort();
    files.dedup();
    if let (Some(previous), Some((_, place))) = (previous, main.policies.first()) {
        problems.extend(gone(previous, &files, folder, place));
    }
    let Found {
        set,
        problems: more,
        files_read,
        digests,
    } = load_files(files, folder, env, previous);
    problems.extend(more);
    Found {
        set,
        problems,
        files_read,
        digests,
    }
}

/// A warning that names the files of `previous` which are not among `files`.
fn gone(previous: &PolicySet, files: &[PathBuf], folder: &Path, place: &Place) -> Diagnostics {
    const SHOWN: usize = 10;
    let in_force = previous.entries.iter().map(|entry| &entry.file);
    let mut gone: Vec<&PathBuf> = in_force
        .chain(&previous.active_files)
        .filter(|file| files.binary_search(file).is_err())
        .collect();
    gone.sort();
    gone.dedup();
    let mut problems = Diagnostics::default();
    if gone.is_empty() {
        return problems;
    }
    let names: Vec<String> = gone
        .iter()
        .take(SHOWN)
        .map(|file| format!("`{}`", shown(file.strip_prefix(folder).unwrap_or(file))))
        .collect();
    let more = match gone.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    problems.push(Diagnostic {
        code: Code::POLICIES_GONE,
        place: place.clone(),
        message: format!(
            "policy files in force until now are gone: {}{more}",
            names.join(", ")
        ),
        help: "what their policies ejected comes back, ramped".to_owned(),
    });
    problems
}

/// Loads `files`; `origin` of their policies is relative to `folder`. Of two files that cannot stand
/// beside each other the later one is left out; at a reload, the one that would push out what is in
/// force.
pub(super) fn load_files(
    files: Vec<PathBuf>,
    folder: &Path,
    env: &dyn Environment,
    previous: Option<&PolicySet>,
) -> Found {
    let mut digests = Digests::default();
    let mut texts: Vec<FileText> = Vec::with_capacity(files.len());
    for path in &files {
        let bytes = read(path);
        let digest = bytes.as_ref().ok().map(|bytes| Digest::of(bytes));
        digests.insert(path.clone(), digest);
        let (entries, problems) = parse_file(bytes, path, folder, env);
        let path = path.clone();
        texts.push(FileText {
            path,
            digest,
            entries,
            problems,
        });
    }
    texts.sort_by_key(|text| text.rank(previous));
    let mut held = BTreeMap::new();
    // Each round holds one more file, and one that is held is not judged again.
    let (mut set, problems) = loop {
        match settle(&texts, previous, &held) {
            Ok(settled) => break settled,
            Err((path, problems)) => held.insert(path, problems),
        };
    };
    set.entries.sort_by(|a, b| a.file.cmp(&b.file));
    set.rejected.sort_by(|a, b| a.path.cmp(&b.path));
    set.active_files.sort();
    Found {
        set,
        problems,
        files_read: files,
        digests,
    }
}

/// A policy file as it was read.
struct FileText {
    path: PathBuf,
    digest: Option<Digest>,
    entries: Vec<(PolicyEntry, Place)>,
    problems: Diagnostics,
}

impl FileText {
    /// When its turn is: what is in force as it stands, then what replaces a version in force, then
    /// what is new.
    fn rank(&self, previous: Option<&PolicySet>) -> u8 {
        match previous.and_then(|previous| previous.versions.get(&self.path)) {
            Some(known) if Some(known.digest) == self.digest => 0,
            Some(_) => 1,
            None => 2,
        }
    }
}

/// The files in this order, those of `held` with their previous versions before all others.
///
/// # Errors
/// The first file that is left out while others took the place of its previous version, with its
/// problems: it is one to be held.
fn settle(
    texts: &[FileText],
    previous: Option<&PolicySet>,
    held: &BTreeMap<PathBuf, Diagnostics>,
) -> Result<(PolicySet, Diagnostics), (PathBuf, Diagnostics)> {
    let (mut set, mut found) = (PolicySet::default(), Diagnostics::default());
    for (path, problems) in held {
        reject(path, problems, previous, &mut set);
        found.extend(problems.clone());
    }
    for text in texts.iter().filter(|text| !held.contains_key(&text.path)) {
        let mut problems = text.problems.clone();
        let others: Vec<&PolicyEntry> = set.entries.iter().collect();
        find_clashes(&text.entries, &others, &mut problems);
        problems.sort();
        if !problems.has_errors() {
            accept(text, previous, &mut set);
        } else if stands(&text.path, previous, &set) {
            reject(&text.path, &problems, previous, &mut set);
        } else {
            return Err((text.path.clone(), problems));
        }
        found.extend(problems);
    }
    Ok((set, found))
}

/// What is in force of the file at `path`.
fn in_force<'a>(
    path: &'a Path,
    previous: Option<&'a PolicySet>,
) -> impl Iterator<Item = &'a PolicyEntry> {
    let entries = previous.into_iter().flat_map(|previous| &previous.entries);
    entries.filter(move |entry| entry.file == path)
}

/// Whether what is in force of the file at `path` can stand beside `set`.
fn stands(path: &Path, previous: Option<&PolicySet>, set: &PolicySet) -> bool {
    in_force(path, previous).all(|kept| set.entries.iter().all(|e| clash(kept, e).is_none()))
}

/// Leaves a file out; its previous version stays.
fn reject(path: &Path, problems: &Diagnostics, previous: Option<&PolicySet>, set: &mut PolicySet) {
    if let Some(version) = previous.and_then(|previous| previous.versions.get(path)) {
        set.versions.insert(path.to_owned(), version.clone());
    }
    set.entries.extend(in_force(path, previous).cloned());
    set.rejected.push(RejectedFile {
        path: path.to_owned(),
        problems: problems.errors().map(Diagnostic::line).collect(),
    });
}

fn accept(text: &FileText, previous: Option<&PolicySet>, set: &mut PolicySet) {
    let entries = text.entries.iter().map(|(entry, _)| entry.clone());
    set.entries.extend(entries);
    if let Some(digest) = text.digest {
        let known = previous.and_then(|previous| previous.versions.get(&text.path));
        let version = match known.filter(|known| known.digest == digest) {
            Some(known) => known.clone(),
            None => FileVersion {
                digest,
                loaded_unix_s: unix_s(),
            },
        };
        set.versions.insert(text.path.clone(), version);
    }
    set.active_files.push(text.path.clone());
}

/// Entries of a file that cannot stand beside `others` or each other.
fn find_clashes<'a>(
    entries: &'a [(PolicyEntry, Place)],
    others: &[&'a PolicyEntry],
    problems: &mut Diagnostics,
) {
    if problems.has_errors() {
        return;
    }
    for (entry, place) in entries {
        let earlier = entries
            .iter()
            .map(|(e, _)| e)
            .take_while(|e| !std::ptr::eq(*e, entry));
        let mut all = others.iter().copied().chain(earlier);
        if let Some((code, message, help)) = all.find_map(|other| clash(entry, other)) {
            problems.push(Diagnostic {
                code,
                place: place.clone(),
                message,
                help,
            });
        }
    }
}

/// A file as text; the one of `set` that has its name is what it would replace.
pub(super) fn check_text(
    text: &str,
    name: &str,
    set: &PolicySet,
    env: &dyn Environment,
) -> (Vec<String>, Diagnostics) {
    let path = Path::new(name);
    let parsed = document::parse(text.as_bytes(), name);
    let (entries, mut problems) = parse_document(parsed, path, Path::new(""), env);
    let replaced = |entry: &&PolicyEntry| entry.file.ends_with(path);
    let others = set.entries.iter().filter(|entry| !replaced(entry));
    let others: Vec<&PolicyEntry> = others.collect();
    find_clashes(&entries, &others, &mut problems);
    problems.sort();
    let names = entries.iter().map(|(e, _)| e.policy.name.to_string());
    (names.collect(), problems)
}

fn unix_s() -> u64 {
    let since = wall_now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// One policy file by itself.
fn parse_file(
    bytes: std::io::Result<Vec<u8>>,
    path: &Path,
    folder: &Path,
    env: &dyn Environment,
) -> (Vec<(PolicyEntry, Place)>, Diagnostics) {
    let name = shown(path);
    let parsed = match bytes {
        Ok(bytes) => document::parse(&bytes, &name),
        Err(error) => unreadable(&name, &error),
    };
    parse_document(parsed, path, folder, env)
}

fn parse_document(
    (mut root, mut problems): (document::Node, Diagnostics),
    path: &Path,
    folder: &Path,
    env: &dyn Environment,
) -> (Vec<(PolicyEntry, Place)>, Diagnostics) {
    if problems.has_errors() && root.value == document::Value::Null {
        return (Vec::new(), problems);
    }
    substitute(&mut root, env, &mut problems);
    let overrides = Overrides::default();
    let context = Context::recording(&overrides, path.parent().unwrap_or_else(|| Path::new("")));
    let origin = shown(path.strip_prefix(folder).unwrap_or(path));
    let entries = policy_file(&context, &root, path, &origin);
    problems.extend(context.finish().0);
    (entries, problems)
}

/// Why `entry` cannot stand beside an earlier one.
fn clash(entry: &PolicyEntry, other: &PolicyEntry) -> Option<(Code, String, String)> {
    let (name, theirs) = (&entry.policy.name, &other.policy.origin);
    if *name == other.policy.name {
        let message = format!("policy `{name}` exists already ({theirs})");
        return Some((
            Code::SAME_POLICY_NAME,
            message,
            "names are unique over all files".to_owned(),
        ));
    }
    let same_patterns = entry.upstreams == other.upstreams
        && entry.consumers == other.consumers
        && entry.namespaces == other.namespaces
        && entry.protocols == other.protocols;
    if same_patterns {
        let message = format!(
            "policy `{name}` applies to the same as `{}` ({theirs})",
            other.policy.name
        );
        return Some((
            Code::SAME_PATTERNS,
            message,
            "change `apply_to` of one of them".to_owned(),
        ));
    }
    None
}

/// The files that `glob` matches, sorted; `*` and `?` match inside one part of the path, never a
/// leading dot (a Kubernetes mount has `..data` beside the files).
pub(super) fn expand(folder: &Path, glob: &Path) -> Vec<PathBuf> {
    let mut paths = vec![folder.to_owned()];
    for part in glob.components() {
        let name = match part {
            Component::Normal(name) => name.to_string_lossy(),
            Component::CurDir => continue,
            Component::Prefix(_) | Component::RootDir | Component::ParentDir => {
                paths = paths.iter().map(|path| path.join(part)).collect();
                continue;
            }
        };
        if !name.contains(['*', '?']) {
            paths = paths.iter().map(|path| path.join(part)).collect();
            continue;
        }
        let pattern: Vec<char> = name.chars().collect();
        let mut next = Vec::new();
        for path in &paths {
            let folder = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            let Ok(entries) = std::fs::read_dir(folder) else {
                continue;
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let chars: Vec<char> = name.to_string_lossy().chars().collect();
                if chars.first() != Some(&'.') && wildcard(&pattern, &chars) {
                    next.push(path.join(&name));
                }
            }
        }
        paths = next;
    }
    // A link that leads nowhere, or a pipe, is a file that cannot be read, and is told as such.
    paths.retain(|path| path.symlink_metadata().is_ok() && !path.is_dir());
    paths.sort();
    paths
}

/// `*` any run, `?` one character; linear in both.
fn wildcard(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while let Some(c) = name.get(n) {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, n));
                p += 1;
            }
            Some(expected) if *expected == '?' || expected == c => {
                p += 1;
                n += 1;
            }
            Some(_) | None => match retry {
                Some((after_star, from)) => {
                    p = after_star;
                    n = from + 1;
                    retry = Some((after_star, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards() {
        let chars = |text: &str| text.chars().collect::<Vec<char>>();
        for (pattern, name, want) in [
            ("*.yaml", "a.yaml", true),
            ("*.yaml", "a.yml", false),
            ("p?-*.yaml", "p1-x.yaml", true),
            ("*a*b", "xaybzb", true),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(
                wildcard(&chars(pattern), &chars(name)),
                want,
                "{pattern} {name}"
            );
        }
    }
}
