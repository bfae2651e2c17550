//! The values in force, key by key, each with its origin: what `config show`, `config diff` and the
//! admin API tell. They are read once more out of the texts the configuration came from, by the
//! readers that made it; so keeping a configuration costs no list of its keys.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::diagnostic::Place;
use super::document::{self, Node};
use super::environment::Overrides;
use super::parse::main_file::main_file;
use super::parse::reader::Context;
use super::parse::record::{Record, Shape};
use super::restart::needs_restart;

/// What stands for a secret.
pub const MASK: &str = "***";

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nobody wrote it.
    Default,
    /// A variable of this name.
    Environment(String),
    /// `file:line:column`.
    File(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Environment(name) => write!(f, "env {name}"),
            Self::File(place) => f.write_str(place),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

impl From<&Place> for Origin {
    fn from(place: &Place) -> Self {
        let name = place.source.name.clone();
        if place.source.is_file {
            Self::File(place.to_string())
        } else if name.starts_with('-') {
            Self::Flag(name)
        } else {
            Self::Environment(name)
        }
    }
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Dotted, as in messages.
    pub key: String,
    /// In one form however it was written; null where nothing holds.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// The texts that a configuration was read from.
#[derive(Clone, Default)]
pub struct Inputs {
    pub(super) root: Option<Arc<Node>>,
    pub(super) overrides: Overrides,
    pub(super) folder: PathBuf,
    pub(super) host_name: String,
    /// What the process was started with, whose values hold where a restart is needed.
    pub(super) started: Option<Arc<Self>>,
}

/// Nothing of it: it may hold secrets.
impl fmt::Debug for Inputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inputs")
    }
}

impl Inputs {
    /// These inputs in a process that was started with `first`.
    pub fn in_process_of(&self, first: &Arc<Self>) -> Self {
        Self {
            started: Some(Arc::clone(first)),
            ..self.clone()
        }
    }

    /// Every key of the main file with its value, in the order of the readers.
    pub fn settings(&self) -> Vec<Setting> {
        let settings = self.read();
        let Some(started) = &self.started else {
            return settings;
        };
        let old: BTreeMap<String, Setting> = started
            .read()
            .into_iter()
            .filter(|s| needs_restart(&s.key))
            .map(|s| (s.key.clone(), s))
            .collect();
        let settings = settings.into_iter().map(|setting| {
            if !needs_restart(&setting.key) {
                return setting;
            }
            // A listener that is new has to wait, too.
            old.get(&setting.key).cloned().unwrap_or(Setting {
                value: Value::Null,
                origin: Origin::Default,
                ..setting
            })
        });
        settings.collect()
    }

    fn read(&self) -> Vec<Setting> {
        let (empty, _) = document::parse(b"", "");
        let root = self.root.as_deref().unwrap_or(&empty);
        let context = Context::recording(&self.overrides, &self.folder);
        main_file(&context, root, &self.host_name);
        let settings = from_records(context.records());
        inherit(settings)
    }
}

/// The leaves of what was read.
pub(super) fn from_records(records: Vec<Record>) -> Vec<Setting> {
    let leaves = records.into_iter().filter_map(|record| {
        let declared = record.declared?;
        // Lists are shown whole, maps by their keys; a choice with a map by what was chosen.
        let whole = !record.path.contains('[');
        let (value, origin) = match (record.written, &declared.shape) {
            (_, Shape::Map) => return None,
            (Some((value, _)), Shape::OneOf(shapes))
                if shapes.contains(&Shape::Map) && !value.is_string() =>
            {
                return None;
            }
            (Some(_), Shape::Named(shape)) if **shape == Shape::Map => return None,
            (None, Shape::Named(_)) => return None,
            (Some((value, place)), _) => (value, Origin::from(&place)),
            (None, shape) => {
                if let Shape::OneOf(shapes) = shape
                    && shapes.contains(&Shape::Map)
                    && declared.default.is_null()
                {
                    return None;
                }
                (declared.default, Origin::Default)
            }
        };
        whole.then_some(Setting {
            key: record.path,
            value: single(value, &declared.shape),
            origin,
        })
    });
    leaves.collect()
}

/// A list of one is the one, where both can be written.
fn single(value: Value, shape: &Shape) -> Value {
    match (value, shape) {
        (Value::Array(mut items), Shape::OneOrMore(_)) if items.len() == 1 => {
            items.pop().unwrap_or_default()
        }
        (value, _) => value,
    }
}

/// What a service does not write comes from where the defaults have it.
fn inherit(mut settings: Vec<Setting>) -> Vec<Setting> {
    let defaults: BTreeMap<String, Origin> = settings
        .iter()
        .filter_map(|s| {
            Some((
                s.key.strip_prefix("defaults.")?.to_owned(),
                s.origin.clone(),
            ))
        })
        .collect();
    for setting in &mut settings {
        if setting.origin != Origin::Default {
            continue;
        }
        // Names may have dots, so the key begins behind one of them.
        let Some(rest) = setting.key.strip_prefix("services.") else {
            continue;
        };
        let mut tails = rest
            .match_indices('.')
            .filter_map(|(at, _)| rest.get(at + 1..));
        if let Some(origin) = tails.find_map(|key| defaults.get(key)) {
            setting.origin = origin.clone();
        }
    }
    settings
}

/// One key that two configurations have differently.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Dotted.
    pub key: String,
    /// What runs; nothing where the key is new.
    pub running: Option<Setting>,
    /// What the files say; nothing where the key is gone.
    pub files: Option<Setting>,
    /// Whether a reload cannot take it over.
    pub restart_required: bool,
}

/// What differs, by key.
pub fn difference(running: &[Setting], files: &[Setting]) -> Vec<Difference> {
    let by_key = |settings: &[Setting]| -> BTreeMap<String, Setting> {
        let pairs = settings.iter().map(|s| (s.key.clone(), s.clone()));
        pairs.collect()
    };
    let (mut old, new) = (by_key(running), by_key(files));
    let mut found = Vec::new();
    let mut add = |key: String, running: Option<Setting>, files: Option<Setting>| {
        let restart_required = needs_restart(&key);
        found.push(Difference {
            key,
            running,
            files,
            restart_required,
        });
    };
    for (key, setting) in new {
        let before = old.remove(&key);
        if before.as_ref().is_none_or(|b| b.value != setting.value) {
            add(key, before, Some(setting));
        }
    }
    for (key, setting) in old {
        add(key, Some(setting), None);
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}

/// The settings of every policy of a file, by the path of its item.
pub(crate) fn policy_settings(records: Vec<Record>) -> HashMap<String, Vec<Setting>> {
    let mut by_item: HashMap<String, Vec<Record>> = HashMap::new();
    for record in records {
        if let Some((item, path)) = record.path.split_once("].") {
            let item = format!("{item}]");
            let path = path.to_owned();
            by_item
                .entry(item)
                .or_default()
                .push(Record { path, ..record });
        }
    }
    let all = by_item.into_iter();
    all.map(|(item, records)| (item, from_records(records)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_str;

    fn settings(text: &str) -> Vec<Setting> {
        let env = BTreeMap::new();
        let loaded = parse_str(text, "m.yaml", &env, None);
        loaded.config.unwrap().inputs.settings()
    }

    #[test]
    fn the_same_in_other_words_is_no_difference() {
        let written = "listen: [\"localhost:15001\"]\nself_lag: 100ms\nlimits: {max_body_bytes: 0, \
                       max_header_bytes: 65536B, header_timeout: 10000ms}\nworkers: auto\n\
                       services: {}\ntelemetry: {events: {sinks: stdout}}\n";
        assert_eq!(difference(&settings(""), &settings(written)), []);
        let other = settings("limits: {header_timeout: 1s}\nworkers: 3\n");
        let found = difference(&settings(""), &other);
        let keys: Vec<_> = found
            .iter()
            .map(|d| (&*d.key, d.restart_required))
            .collect();
        assert_eq!(keys, [("limits.header_timeout", false), ("workers", true)]);
    }

    #[test]
    fn a_path_is_the_same_with_and_without_a_dot() {
        let env = BTreeMap::new();
        let settings = |text: &str, folder: &str| {
            let loaded = parse_str(text, "m.yaml", &env, Some(std::path::Path::new(folder)));
            loaded.config.unwrap().inputs.settings()
        };
        let bare = settings("state_file: state.json\n", "");
        for (text, folder) in [
            ("./state.json", ""),
            ("state.json", "."),
            ("./state.json", "./."),
        ] {
            let other = settings(&format!("state_file: {text}\n"), folder);
            assert_eq!(difference(&bare, &other), [], "{text} in {folder}");
        }
        let other = settings("state_file: x/state.json\n", "");
        assert_eq!(difference(&bare, &other).len(), 1);
    }

    #[test]
    fn what_needs_a_restart_keeps_the_value_of_the_start() {
        let env = BTreeMap::new();
        let inputs = |text: &str| parse_str(text, "m.yaml", &env, None).config.unwrap().inputs;
        let first = inputs("workers: 2\n");
        let new = inputs("workers: 3\nservices: {a: {endpoints: [], port: 7000}}\n");
        let settings = new.in_process_of(&first).settings();
        let value = |key: &str| {
            settings
                .iter()
                .find(|s| s.key == key)
                .unwrap()
                .value
                .clone()
        };
        assert_eq!(value("workers"), 2);
        assert_eq!(value("services.a.port"), Value::Null);
    }
}
