//! What the readers know about their keys, told while they read: the shape of a value, its default,
//! and where it was written. The JSON Schemas and `config show` come from this, so there is no second
//! list of keys that could say something else. Next: `config/schema.rs`, `config/settings.rs`.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};

use serde_json::Value as Json;

use super::value::{Span, duration, show, show_size, size};
use crate::config::diagnostic::Place;
use crate::config::document::{Node, Value};
use crate::config::settings::MASK;

/// What a key takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// `true`, `false`.
    Boolean,
    /// A number from zero, with decimals.
    Decimal {
        /// The largest.
        most: u32,
    },
    /// A time with its unit.
    Duration(Span),
    /// A whole number.
    Integer(u64, u64),
    /// Only a list.
    List(Box<Self>),
    /// A map whose keys the same reader reads.
    Map,
    /// A map whose keys are names, and what its values take.
    Named(Box<Self>),
    /// One of several.
    OneOf(Vec<Self>),
    /// A value, or a list of them.
    OneOrMore(Box<Self>),
    /// A file or folder; relative ones start at the folder of the file.
    Path,
    /// Text of this form, a regular expression.
    Pattern(&'static str),
    /// From the least to 100, with up to two decimals unless `whole`.
    Percent {
        /// 0 or 1.
        least: u32,
        /// No decimals.
        whole: bool,
    },
    /// Never shown.
    Secret,
    /// Bytes with their unit.
    Size(u64, u64),
    /// Any text.
    Text,
    /// A closed list of words.
    Words(Vec<&'static str>),
}

/// `host:port` of an instance.
pub(crate) const HOST_PORT: Shape = Shape::Pattern(r"^\[?[^/\s]+:[0-9]{1,5}$");
/// An address to listen on.
pub(crate) const LISTEN: Shape = Shape::Pattern(r"^(unix:.+|\[?[0-9A-Za-z.:]+\]?:[0-9]{1,5})$");
/// A name with an optional port.
pub(crate) const HOST: Shape = Shape::Pattern(r"^[^/*\s]+$");

/// What is said of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Declared {
    pub(crate) shape: Shape,
    /// Null where there is none.
    pub(crate) default: Json,
    pub(crate) required: bool,
}

impl Shape {
    pub(crate) fn word(word: &'static str) -> Self {
        Self::Words(vec![word])
    }

    pub(crate) fn integer(range: &RangeInclusive<u64>) -> Self {
        Self::Integer(*range.start(), *range.end())
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self::OneOf(vec![self, other])
    }

    pub(crate) fn list(self) -> Self {
        Self::List(Box::new(self))
    }

    pub(crate) fn one_or_more(self) -> Self {
        Self::OneOrMore(Box::new(self))
    }

    /// With this default.
    pub(crate) fn default(self, default: impl Into<Json>) -> Declared {
        Declared {
            shape: self,
            default: default.into(),
            required: false,
        }
    }

    /// Without a default; absent means something of its own.
    pub(crate) fn optional(self) -> Declared {
        self.default(Json::Null)
    }

    /// Without a default, and it must be written.
    pub(crate) fn required(self) -> Declared {
        Declared {
            required: true,
            ..self.optional()
        }
    }

    /// The value as JSON in one form however it was written; a text that this does not take stays
    /// as it is.
    fn json(&self, node: &Node, folder: &Path) -> Json {
        match &node.value {
            Value::Null => Json::Null,
            Value::Scalar(scalar) => self.scalar(&scalar.text, folder),
            Value::Sequence(items) => {
                let item = self.item();
                items.iter().map(|node| item.json(node, folder)).collect()
            }
            Value::Mapping(entries) => {
                let shape = if let Self::Named(shape) = self {
                    shape
                } else {
                    &Self::Text
                };
                let pairs = entries.iter().map(|entry| {
                    let value = shape.json(&entry.value, folder);
                    (entry.key.clone(), value)
                });
                Json::Object(pairs.collect())
            }
        }
    }

    /// What one item of a list takes.
    fn item(&self) -> &Self {
        if let Self::List(item) | Self::OneOrMore(item) = self {
            item
        } else {
            self
        }
    }

    fn scalar(&self, text: &str, folder: &Path) -> Json {
        let canonical = match self {
            Self::Boolean => text.parse().ok().map(Json::Bool),
            Self::Decimal { .. } | Self::Integer(..) | Self::Percent { .. } => number(text),
            Self::Duration(_) => duration(text, Span::ANY).ok().map(|t| show(t).into()),
            Self::List(item) | Self::OneOrMore(item) => {
                return Json::Array(vec![item.scalar(text, folder)]);
            }
            Self::OneOf(shapes) => shapes
                .iter()
                .map(|shape| shape.scalar(text, folder))
                .find(|value| value.as_str() != Some(text)),
            Self::Path => Some(plain(&folder.join(text)).display().to_string().into()),
            Self::Secret => Some(MASK.into()),
            Self::Size(..) => size(text, &(0..=u64::MAX))
                .ok()
                .map(|n| show_size(n).into()),
            Self::Map | Self::Named(_) | Self::Pattern(_) | Self::Text | Self::Words(_) => None,
        };
        canonical.unwrap_or_else(|| text.into())
    }
}

fn number(text: &str) -> Option<Json> {
    let whole = text.parse::<u64>().ok().map(Json::from);
    whole.or_else(|| text.parse::<f64>().ok().map(Json::from))
}

/// One key of one map.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Dotted.
    pub(crate) path: String,
    /// Nothing where a reader asks for a key and never says what it takes: a defect.
    pub(crate) declared: Option<Declared>,
    /// As written, and where.
    pub(crate) written: Option<(Json, Place)>,
}

/// All that one reading told.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    records: Vec<Record>,
    index: HashMap<String, usize>,
}

impl Recorder {
    /// What the key takes; the first word holds.
    pub(super) fn declare(&mut self, path: String, declared: impl FnOnce() -> Declared) {
        self.with(path, |record| {
            if record.declared.is_none() {
                record.declared = Some(declared());
            }
        });
    }

    /// The key was asked for; `node` is what was found.
    pub(super) fn asked(&mut self, path: String, node: Option<(&Node, &Place)>, folder: &Path) {
        self.with(path, |record| {
            let Some((node, place)) = node.filter(|_| record.written.is_none()) else {
                return;
            };
            let shape = record.declared.as_ref().map(|declared| &declared.shape);
            let value = match shape {
                Some(Shape::Map) => Json::Null,
                Some(shape) => shape.json(node, folder),
                None => Shape::Text.json(node, folder),
            };
            record.written = Some((value, place.clone()));
        });
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    fn with(&mut self, path: String, change: impl FnOnce(&mut Record)) {
        let next = self.records.len();
        let at = *self.index.entry(path.clone()).or_insert(next);
        if at == next {
            self.records.push(Record {
                path,
                declared: None,
                written: None,
            });
        }
        if let Some(record) = self.records.get_mut(at) {
            change(record);
        }
    }
}

/// The same path without `.` in it.
fn plain(path: &Path) -> PathBuf {
    let parts = path.components().filter(|part| *part != Component::CurDir);
    let plain: PathBuf = parts.collect();
    if plain.as_os_str().is_empty() {
        return path.to_owned();
    }
    plain
}
