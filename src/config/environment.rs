//! The environment as an input: variables come in through [`Environment`], tests pass a map.
//! `OUTRIGGER_ADMIN__LISTEN` overrides `admin.listen`, a flag overrides both ([`Overrides`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::diagnostic::{Place, Source};
use super::document::{self, Node, Value};

/// Environment variables and the name of this machine.
pub trait Environment {
    /// The value of a variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// The names of all variables.
    fn names(&self) -> Vec<String>;
    /// The host name, for `app.name`.
    fn host_name(&self) -> String;
}

/// The process's own.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    fn names(&self) -> Vec<String> {
        std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .collect()
    }

    fn host_name(&self) -> String {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let name = kernel
            .or_else(|| self.variable("HOSTNAME"))
            .unwrap_or_default();
        let name = name.trim();
        if name.is_empty() {
            "localhost".to_owned()
        } else {
            name.to_owned()
        }
    }
}

impl Environment for BTreeMap<String, String> {
    fn variable(&self, name: &str) -> Option<String> {
        self.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.keys().cloned().collect()
    }

    fn host_name(&self) -> String {
        self.get("HOSTNAME")
            .cloned()
            .unwrap_or_else(|| "localhost".to_owned())
    }
}

/// Values of fixed keys from flags and the environment, by path (`admin.listen`).
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    values: BTreeMap<String, (String, Node)>,
}

impl Overrides {
    /// A flag's value for the key `path`; several make a list.
    pub fn flag(&mut self, flag: &str, path: &str, values: &[String]) {
        let source = source(flag, values.join(" "));
        let mut nodes: Vec<Node> = values
            .iter()
            .map(|value| Node::scalar(value, Place::whole(&source)))
            .collect();
        let node = match nodes.pop() {
            Some(only) if nodes.is_empty() => only,
            Some(last) => {
                nodes.push(last);
                Node {
                    value: Value::Sequence(nodes),
                    place: Place::whole(&source),
                }
            }
            None => return,
        };
        self.values.insert(path.to_owned(), (flag.to_owned(), node));
    }

    /// Adds what `OUTRIGGER_*` variables say, where no flag says it. An empty variable says nothing.
    pub(super) fn add_environment(&mut self, environment: &dyn Environment) {
        for name in environment.names() {
            let Some(rest) = name.strip_prefix("OUTRIGGER_") else {
                continue;
            };
            if rest.is_empty() || RESERVED.contains(&name.as_str()) {
                continue;
            }
            let path = rest.to_ascii_lowercase().replace("__", ".");
            let value = environment.variable(&name).unwrap_or_default();
            if !value.is_empty() && !self.values.contains_key(&path) {
                let node = from_text(&name, &value);
                self.values.insert(path, (name, node));
            }
        }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Node> {
        self.values.get(path).map(|(_, node)| node)
    }

    /// Name of the flag or variable of each value, by path.
    pub(super) fn origins(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values
            .iter()
            .map(|(path, (name, _))| (path.as_str(), name.as_str()))
    }
}

/// Lists and maps are YAML in flow style, all else is text as it stands (`[::]:80` too).
fn from_text(name: &str, value: &str) -> Node {
    if value.starts_with(['[', '{']) {
        let (node, problems) = document::parse(value.as_bytes(), name);
        if problems.is_empty() {
            return flat(node, &source(name, value.to_owned()));
        }
    }
    Node::scalar(value, Place::whole(&source(name, value.to_owned())))
}

/// Gives every node the variable as its place.
fn flat(node: Node, source: &Arc<Source>) -> Node {
    let value = match node.value {
        Value::Null => Value::Null,
        Value::Scalar(scalar) => Value::Scalar(scalar),
        Value::Sequence(items) => {
            Value::Sequence(items.into_iter().map(|item| flat(item, source)).collect())
        }
        Value::Mapping(entries) => Value::Mapping(
            entries
                .into_iter()
                .map(|entry| document::Entry {
                    value: flat(entry.value, source),
                    place: Place::whole(source),
                    key: entry.key,
                })
                .collect(),
        ),
    };
    Node {
        value,
        place: Place::whole(source),
    }
}

fn source(name: &str, text: String) -> Arc<Source> {
    Arc::new(Source {
        name: name.to_owned(),
        text,
        is_file: false,
    })
}

/// They mean something else than a key.
const RESERVED: [&str; 2] = ["OUTRIGGER_CONFIG", "OUTRIGGER_ADMIN"];
