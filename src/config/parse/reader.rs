//! Reading typed values out of a document. A [`Map`] hands out its keys and reports those nobody
//! asked for; a [`Field`] turns into a value or reports why not and the default holds, so that one
//! pass finds every problem. Next: `parse/value.rs`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::record::{Declared, Record, Recorder, Shape};
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, Place};
use crate::config::document::{Entry, Node, Value};
use crate::config::environment::Overrides;
use crate::config::suggest;

/// Gives what a file holds.
type ReadFile<'a> = dyn Fn(&Path) -> io::Result<Vec<u8>> + 'a;

/// What all readers of one file share.
pub(crate) struct Context<'a> {
    /// Values that outrank the file, for fixed keys.
    pub(crate) overrides: &'a Overrides,
    /// Relative paths start here.
    pub(crate) folder: &'a Path,
    problems: RefCell<Diagnostics>,
    used: RefCell<BTreeSet<String>>,
    recorder: Option<RefCell<Recorder>>,
    files: Option<&'a ReadFile<'a>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(overrides: &'a Overrides, folder: &'a Path) -> Self {
        Self {
            overrides,
            folder,
            problems: RefCell::default(),
            used: RefCell::default(),
            recorder: None,
            files: None,
        }
    }

    /// One that also keeps what its readers tell about their keys.
    pub(crate) fn recording(overrides: &'a Overrides, folder: &'a Path) -> Self {
        Self {
            recorder: Some(RefCell::default()),
            ..Self::new(overrides, folder)
        }
    }

    /// One whose values may be the contents of files.
    pub(crate) fn with_files(self, read: &'a ReadFile<'a>) -> Self {
        Self {
            files: Some(read),
            ..self
        }
    }

    /// What a file holds; nothing where only the text itself is looked at.
    pub(crate) fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.map_or_else(|| Ok(Vec::new()), |read| read(path))
    }

    /// What the readers told so far.
    pub(crate) fn records(&self) -> Vec<Record> {
        let recorder = self.recorder.as_ref().map(RefCell::borrow);
        recorder.map(|r| r.records().to_vec()).unwrap_or_default()
    }

    /// Reports a problem.
    pub(crate) fn report(
        &self,
        code: Code,
        place: &Place,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (message, help) = (message.into(), help.into());
        self.problems.borrow_mut().push(Diagnostic {
            code,
            place: place.clone(),
            message,
            help,
        });
    }

    /// All problems, and the paths of the overrides that were read.
    pub(crate) fn finish(self) -> (Diagnostics, BTreeSet<String>) {
        (self.problems.into_inner(), self.used.into_inner())
    }
}

/// A map that is being read.
pub(crate) struct Map<'a> {
    pub(crate) context: &'a Context<'a>,
    /// Dotted; empty at the top.
    pub(crate) path: String,
    /// Of the map, or of the key it belongs to.
    pub(crate) place: Place,
    entries: &'a [Entry],
    fixed: bool,
    known: RefCell<Vec<&'static str>>,
    later: RefCell<Vec<&'static str>>,
}

/// A value that is being read.
#[derive(Clone)]
pub(crate) struct Field<'a> {
    pub(crate) context: &'a Context<'a>,
    /// Dotted.
    pub(crate) path: String,
    /// Of the key; of the value in a list.
    pub(crate) key: Place,
    pub(crate) node: &'a Node,
    fixed: bool,
}

impl<'a> Map<'a> {
    /// The top of a file. Only in the main file are its keys `fixed`: flags and variables reach them.
    pub(crate) fn root(context: &'a Context<'a>, node: &'a Node, fixed: bool) -> Self {
        let field = Field {
            context,
            path: String::new(),
            key: node.place.clone(),
            node,
            fixed,
        };
        field.map()
    }

    fn of(field: &Field<'a>, entries: &'a [Entry]) -> Self {
        Self {
            context: field.context,
            path: field.path.clone(),
            place: field.key.clone(),
            entries,
            fixed: field.fixed,
            known: RefCell::default(),
            later: RefCell::default(),
        }
    }

    /// Tells what `key` takes and what holds when it is not written. Every key that is asked for
    /// is declared, by the typed readers or by this; a test holds that up.
    pub(crate) fn declare(&self, key: &'static str, declared: impl FnOnce() -> Declared) {
        if let Some(recorder) = &self.context.recorder {
            let path = join(&self.path, key);
            recorder.borrow_mut().declare(path, declared);
        }
    }

    fn record(&self, key: &str, field: Option<&Field<'_>>) {
        if let Some(recorder) = &self.context.recorder {
            let path = join(&self.path, key);
            let found = field.map(|field| (field.node, &field.key));
            recorder
                .borrow_mut()
                .asked(path, found, self.context.folder);
        }
    }

    /// The value of `key` from a flag, the environment or the file. A value that is nothing but an
    /// unset variable counts as not written.
    pub(crate) fn field(&self, key: &'static str) -> Option<Field<'a>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&key) {
            known.push(key);
        }
        drop(known);
        let field = self.find(key, self.fixed);
        self.record(key, field.as_ref());
        field
    }

    /// As `field`, for maps whose keys are names and whose values take `shape`: no override reaches
    /// below it.
    pub(crate) fn named(&self, key: &'static str, shape: fn() -> Shape) -> Option<Field<'a>> {
        self.declare(key, || Shape::Named(Box::new(shape())).optional());
        self.known.borrow_mut().push(key);
        let field = self.find(key, false);
        self.record(key, field.as_ref());
        field
    }

    fn find(&self, key: &str, fixed: bool) -> Option<Field<'a>> {
        let path = join(&self.path, key);
        let over = if fixed {
            self.context.overrides.get(&path)
        } else {
            None
        };
        if let Some(node) = over {
            self.context.used.borrow_mut().insert(path.clone());
            return Some(Field {
                context: self.context,
                path,
                key: node.place.clone(),
                node,
                fixed,
            });
        }
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        if matches!(&entry.value.value, Value::Scalar(s) if s.substituted && s.text.is_empty()) {
            return None;
        }
        let key = entry.place.clone();
        Some(Field {
            context: self.context,
            path,
            key,
            node: &entry.value,
            fixed,
        })
    }

    /// The map under `key`, empty where there is none.
    pub(crate) fn child(&self, key: &'static str) -> Self {
        self.declare(key, || Shape::Map.optional());
        match self.field(key) {
            Some(field) => field.map(),
            None => Map {
                context: self.context,
                path: join(&self.path, key),
                place: self.place.clone(),
                entries: &[],
                fixed: self.fixed,
                known: RefCell::default(),
                later: RefCell::default(),
            },
        }
    }

    /// Keys of the format that this version does not support yet.
    /// Tells whether one is written.
    pub(crate) fn later(&self, keys: &'static [&'static str]) -> bool {
        let mut found = false;
        for key in keys {
            self.later.borrow_mut().push(key);
            if let Some(field) = self.find(key, self.fixed) {
                let message = format!("`{}` is not supported yet", field.path);
                self.context
                    .report(Code::NOT_YET, &field.key, message, "remove it for now");
                found = true;
            }
        }
        found
    }

    /// Every entry, for maps whose keys are names.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a> {
        let (context, path) = (self.context, self.path.clone());
        self.entries.iter().map(move |entry| {
            let path = join(&path, &entry.key);
            let key = entry.place.clone();
            (
                entry.key.as_str(),
                Field {
                    context,
                    path,
                    key,
                    node: &entry.value,
                    fixed: false,
                },
            )
        })
    }

    /// The keys that were asked for, and those that are for later.
    pub(crate) fn keys(self) -> (Vec<&'static str>, Vec<&'static str>) {
        (self.known.into_inner(), self.later.into_inner())
    }

    /// Reports every key that nobody asked for.
    pub(crate) fn finish(self) {
        self.finish_with(|_, _| None);
    }

    /// As `finish`; `elsewhere` tells where a key belongs that stands in the wrong place.
    pub(crate) fn finish_with(self, elsewhere: impl Fn(&str, &[&str]) -> Option<String>) {
        let known = self.known.into_inner();
        let later = self.later.into_inner();
        for entry in self.entries {
            let key = entry.key.as_str();
            if known.contains(&key) || later.contains(&key) {
                continue;
            }
            if key == "<<" {
                let help = "write the keys out; what all services share goes under `defaults`";
                let message = "merge keys (`<<`) have no meaning here";
                self.context
                    .report(Code::YAML_FEATURE, &entry.place, message, help);
                continue;
            }
            let help = match (
                elsewhere(key, &known),
                suggest::foreign(key),
                suggest::nearest(key, known.iter().copied()),
            ) {
                (Some(place), _, _) => place,
                (None, Some(hint), _) => hint.to_owned(),
                (None, None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None, None) => format!("known here: {}", list(&known)),
            };
            let message = if self.path.is_empty() {
                format!("unknown field `{key}`")
            } else {
                format!("unknown field `{key}` in `{}`", self.path)
            };
            self.context
                .report(Code::UNKNOWN_FIELD, &entry.place, message, help);
        }
    }
}

impl<'a> Field<'a> {
    /// Reports a problem with the value.
    pub(crate) fn report(&self, code: Code, message: impl Into<String>, help: impl Into<String>) {
        self.context.report(code, &self.node.place, message, help);
    }

    /// Reports a problem with the value, named by its path.
    pub(crate) fn wrong(&self, code: Code, what: &str, help: impl Into<String>) {
        self.report(code, format!("`{}`: {what}", self.path), help);
    }

    /// A map; nothing at all counts as an empty one.
    pub(crate) fn map(&self) -> Map<'a> {
        let entries: &'a [Entry] = match &self.node.value {
            Value::Mapping(entries) => entries,
            Value::Null => &[],
            Value::Scalar(_) | Value::Sequence(_) => {
                self.shape("a map of keys and values");
                &[]
            }
        };
        Map::of(self, entries)
    }

    /// A list.
    pub(crate) fn items(&self) -> Option<Vec<Self>> {
        match &self.node.value {
            Value::Sequence(items) => Some(self.number(items)),
            Value::Null | Value::Scalar(_) | Value::Mapping(_) => {
                self.shape("a list, as in `[a, b]`");
                None
            }
        }
    }

    /// A list, or one value that stands for a list of one.
    pub(crate) fn one_or_more(&self) -> Option<Vec<Self>> {
        match &self.node.value {
            Value::Scalar(_) => Some(vec![self.clone()]),
            Value::Null | Value::Sequence(_) => self.items(),
            Value::Mapping(_) => {
                self.shape("a value, or a list as in `[a, b]`");
                None
            }
        }
    }

    fn number(&self, items: &'a [Node]) -> Vec<Self> {
        let one = |(n, node): (usize, &'a Node)| Field {
            context: self.context,
            path: format!("{}[{n}]", self.path),
            key: node.place.clone(),
            node,
            fixed: false,
        };
        items.iter().enumerate().map(one).collect()
    }

    /// A single value.
    pub(crate) fn text(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::Null => {
                self.no_value();
                None
            }
            Value::Sequence(_) | Value::Mapping(_) => {
                self.shape("a single value");
                None
            }
        }
    }

    /// A single value, where it is one.
    pub(crate) fn scalar(&self) -> Option<&'a str> {
        match &self.node.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            Value::Null | Value::Sequence(_) | Value::Mapping(_) => None,
        }
    }

    /// Whether the value stands in the file itself, not in a variable or a flag.
    pub(crate) fn is_inline(&self) -> bool {
        let substituted = matches!(&self.node.value, Value::Scalar(s) if s.substituted);
        self.node.place.source.is_file && !substituted
    }

    fn no_value(&self) {
        let message = format!("`{}` has no value", self.path);
        self.context.report(
            Code::EMPTY,
            &self.key,
            message,
            "write one, or remove the key",
        );
    }

    fn shape(&self, wanted: &str) {
        let found = match &self.node.value {
            Value::Null => {
                self.no_value();
                return;
            }
            Value::Scalar(_) => "a single value",
            Value::Sequence(_) => "a list",
            Value::Mapping(_) => "a map",
        };
        let name = match self.path.as_str() {
            "" => "the file".to_owned(),
            path => format!("`{path}`"),
        };
        self.report(
            Code::WRONG_TYPE,
            format!("{name} is {found}"),
            format!("it takes {wanted}"),
        );
    }
}

impl Map<'_> {
    /// A text, where written.
    pub(crate) fn text(&self, key: &'static str) -> Option<Arc<str>> {
        self.declare(key, || Shape::Text.optional());
        self.field(key)?.text().map(Arc::from)
    }

    /// A path; a relative one starts at the folder of the file.
    pub(crate) fn path(&self, key: &'static str) -> Option<PathBuf> {
        self.declare(key, || Shape::Path.optional());
        let text = self.field(key)?.text()?;
        Some(self.context.folder.join(text))
    }

    /// A path where an empty text means none: `${NAME:-}`.
    pub(crate) fn optional_path(&self, key: &'static str) -> Option<PathBuf> {
        self.declare(key, || Shape::Path.optional());
        let text = self.field(key)?.text()?;
        (!text.is_empty()).then(|| self.context.folder.join(text))
    }

    /// A list of texts.
    pub(crate) fn texts(&self, key: &'static str) -> Option<Vec<String>> {
        self.declare(key, || Shape::Text.list().optional());
        let items = self.field(key)?.items()?;
        Some(
            items
                .iter()
                .filter_map(|item| item.text().map(str::to_owned))
                .collect(),
        )
    }
}

/// `a.b`, or `b` at the top.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Words in back quotes, for messages.
pub(crate) fn list(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    quoted.join(", ")
}
