//! The JSON Schemas (draft 2020-12) of the three kinds of files, for editors. They are made out of
//! what the parser's readers tell while they read a file that touches everything, so that a key
//! cannot be in one and not in the other. Next: `config/parse/record.rs`, `config/describe.rs`.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::describe::describe;
use super::document::{self, Node};
use super::endpoints;
use super::environment::Overrides;
use super::parse::main_file::main_file;
use super::parse::policy::policy_file;
use super::parse::reader::Context;
use super::parse::record::{Declared, Record, Shape};
use super::parse::value::{DAY, Span, show, show_size};

/// A kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file of endpoints.
    Endpoints,
    /// The main file.
    Outrigger,
    /// A file of ejection policies.
    Policy,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Outrigger, Self::Policy, Self::Endpoints];

    /// Its file under `config/schema/`.
    pub const fn file(self) -> &'static str {
        match self {
            Self::Endpoints => "endpoints.v1.json",
            Self::Outrigger => "outrigger.v1.json",
            Self::Policy => "ejection-policy.v1.json",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Endpoints => "Outrigger endpoints file",
            Self::Outrigger => "Outrigger main file",
            Self::Policy => "Outrigger ejection policies",
        }
    }
}

/// The schema of one kind of file.
pub fn schema(kind: Kind) -> Value {
    let mut root = object(&tree(kind));
    let variable = json!({
        "description": "A value that comes from the environment, wholly or in part.",
        "type": "string",
        "pattern": r"\$\{[A-Za-z_]",
    });
    root.insert("$defs".to_owned(), json!({"variable": variable}));
    let mut whole = Map::new();
    whole.insert("$schema".to_owned(), DRAFT.into());
    whole.insert("$id".to_owned(), kind.file().into());
    whole.insert("title".to_owned(), kind.title().into());
    whole.append(&mut root);
    whole.into()
}

const DRAFT: &str = "https://json-schema.org/draft/2020-12/schema";

/// One key as `outrigger docs config` tells it.
#[derive(Clone, Debug)]
pub struct Key {
    /// Dotted; `*` stands for a name, `[]` for an item.
    pub path: String,
    /// What it takes.
    pub takes: String,
    /// What holds when it is not written.
    pub default: Value,
    /// What it is for.
    pub text: &'static str,
}

/// Every key of a kind of file that holds a value.
pub fn keys(kind: Kind) -> Vec<Key> {
    let keys = records(kind).into_iter().filter_map(|record| {
        let declared = record.declared?;
        let path = generic(&record.path);
        let text = describe(&described(kind, &path)).unwrap_or_default();
        let takes = takes(&declared.shape);
        Some(Key {
            path,
            takes,
            default: declared.default,
            text,
        })
    });
    let mut seen = std::collections::BTreeSet::new();
    keys.filter(|key| seen.insert(key.path.clone())).collect()
}

/// What the readers tell of a file that has everything once.
fn records(kind: Kind) -> Vec<Record> {
    let read = |text: &str, read: &dyn Fn(&Context<'_>, &Node)| {
        let (root, _) = document::parse(text.as_bytes(), "");
        let overrides = Overrides::default();
        let context = Context::recording(&overrides, Path::new(""));
        read(&context, &root);
        context.records()
    };
    match kind {
        Kind::Endpoints => read(ENDPOINTS, &endpoints::read),
        Kind::Outrigger => read(MAIN, &|context, root| {
            main_file(context, root, "");
        }),
        Kind::Policy => read("policies: [{slow: {}}]", &|context, root| {
            policy_file(context, root, Path::new(""), "");
        }),
    }
}

/// Names are `*`, for registries with the kind behind it.
const MAIN: &str = r#"
registries:
  "*embedded": {kind: embedded}
  "*file": {kind: file, path: x}
  "*nacos": {kind: nacos, servers: [x]}
  "*eureka": {kind: eureka, servers: [x]}
  "*consul": {kind: consul}
  "*kubernetes": {kind: kubernetes}
  "*dns": {kind: dns}
  "*zookeeper": {kind: zookeeper, servers: [x]}
defaults: {health_check: {http: /}, hedge: {after: p95}, fallback: [{}]}
app:
  register:
    - {check: {http: /}, management: {port: 1}, hooks: {}}
services: {"*": {endpoints: [{address: "x:1"}], health_check: {http: /}, hedge: {after: p95}, fallback: [{}], routes: [{name: x, match: {}, fallback: [{}]}]}}
"#;
const ENDPOINTS: &str = r#"services: {"*": [{address: "x:1"}]}"#;

/// `registries.*nacos.servers` as `registries.*.servers`, `policies[0].name` as `policies[].name`.
fn generic(path: &str) -> String {
    let parts = path.split('.').map(|part| {
        let part = match part.strip_prefix('*') {
            Some(kind) if kind.ends_with("[0]") => "*[0]",
            Some(_) => "*",
            None => part,
        };
        part.replace("[0]", "[]")
    });
    parts.collect::<Vec<_>>().join(".")
}

/// The key under which a generic path is described.
fn described(kind: Kind, path: &str) -> String {
    match (kind, path) {
        (Kind::Endpoints, "services") => return "endpoints".to_owned(),
        (Kind::Policy, "policies") => return "policies[]".to_owned(),
        (Kind::Endpoints | Kind::Outrigger | Kind::Policy, _) => {}
    }
    if let Some(rest) = path.strip_prefix("services.*.routes[].") {
        let own = rest == "name" || rest.split('.').next() == Some("match");
        return if own {
            format!("service.routes[].{rest}")
        } else {
            format!("service.{rest}")
        };
    }
    let heads = [
        ("services.*.endpoints[].", "endpoint."),
        ("services.*[].", "endpoint."),
        ("services.*.", "service."),
        ("defaults.", "service."),
        ("registries.*.", "registry."),
        ("policies[].", "policy."),
    ];
    let found = heads
        .iter()
        .find_map(|(head, short)| Some((short, path.strip_prefix(head)?)));
    found.map_or_else(|| path.to_owned(), |(short, rest)| format!("{short}{rest}"))
}

/// A key with those below it.
#[derive(Default)]
struct Tree {
    text: Option<&'static str>,
    declared: Option<Declared>,
    children: Vec<(String, Self)>,
}

impl Tree {
    fn put<'p>(&mut self, kind: Kind, parts: &mut impl Iterator<Item = &'p str>, record: Record) {
        let Some(part) = parts.next() else {
            self.text = describe(&described(kind, &generic(&record.path)));
            self.declared = record.declared;
            return;
        };
        let known = self.children.iter_mut().find(|(name, _)| name == part);
        if let Some((_, child)) = known {
            return child.put(kind, parts, record);
        }
        let mut child = Self::default();
        child.put(kind, parts, record);
        self.children.push((part.to_owned(), child));
    }

    fn get(&self, part: &str) -> Option<&Self> {
        let found = self.children.iter().find(|(name, _)| name == part);
        found.map(|(_, child)| child)
    }
}

fn tree(kind: Kind) -> Tree {
    let mut root = Tree::default();
    for record in records(kind) {
        let parts = record.path.replace('[', ".[");
        root.put(kind, &mut parts.split('.'), record);
    }
    root
}

/// A map with the keys of `tree`.
fn object(tree: &Tree) -> Map<String, Value> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, child) in &tree.children {
        if let Some(declared) = &child.declared {
            properties.insert(name.clone(), property(child, declared));
            if declared.required {
                required.push(name.clone());
            }
        }
    }
    let mut found = Map::new();
    let types = if required.is_empty() {
        json!(["object", "null"])
    } else {
        json!("object")
    };
    found.insert("type".to_owned(), types);
    found.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        found.insert("required".to_owned(), required.into());
    }
    found.insert("additionalProperties".to_owned(), false.into());
    found
}

fn property(tree: &Tree, declared: &Declared) -> Value {
    let mut found = Map::new();
    if let Some(text) = tree.text {
        let bounds = bounds(&declared.shape);
        found.insert("description".to_owned(), format!("{text}{bounds}").into());
    }
    if !declared.default.is_null() {
        found.insert("default".to_owned(), declared.default.clone());
    }
    let mut alternatives = alternatives(&declared.shape, tree);
    if needs_variable(&declared.shape) {
        alternatives.push(json!({"$ref": "#/$defs/variable"}));
    }
    match (alternatives.pop(), alternatives.is_empty()) {
        (Some(Value::Object(mut only)), true) => found.append(&mut only),
        (last, _) => {
            alternatives.extend(last);
            found.insert("anyOf".to_owned(), alternatives.into());
        }
    }
    found.into()
}

/// Whether a variable can stand where the value stands, and is not legal there anyway.
fn needs_variable(shape: &Shape) -> bool {
    match shape {
        Shape::List(_) | Shape::Map | Shape::Named(_) | Shape::Text => false,
        Shape::Path | Shape::Secret => false,
        Shape::Boolean
        | Shape::Decimal { .. }
        | Shape::Duration(_)
        | Shape::Integer(..)
        | Shape::OneOf(_)
        | Shape::OneOrMore(_)
        | Shape::Pattern(_)
        | Shape::Percent { .. }
        | Shape::Size(..)
        | Shape::Words(_) => true,
    }
}

/// The schemas of which one must hold.
fn alternatives(shape: &Shape, tree: &Tree) -> Vec<Value> {
    let zero = |legal: bool| legal.then(|| json!({"const": 0}));
    match shape {
        Shape::Boolean => vec![json!({"type": "boolean"})],
        Shape::Decimal { most } => vec![json!({"type": "number", "minimum": 0, "maximum": most})],
        Shape::Duration(span) => {
            let written = json!({"type": "string", "pattern": DURATION});
            std::iter::once(written).chain(zero(span.zero)).collect()
        }
        Shape::Integer(from, to) if from == to => vec![json!({"const": from})],
        Shape::Integer(from, to) => {
            vec![json!({"type": "integer", "minimum": from, "maximum": to})]
        }
        Shape::List(item) => vec![array(item, tree)],
        Shape::Map => vec![object(tree).into()],
        Shape::Named(shape) => vec![named(shape, tree)],
        Shape::OneOf(shapes) => {
            let all = shapes.iter().flat_map(|shape| alternatives(shape, tree));
            all.collect()
        }
        Shape::OneOrMore(item) => {
            let mut all = alternatives(item, tree);
            all.push(array(item, tree));
            all
        }
        Shape::Pattern(pattern) => vec![json!({"type": "string", "pattern": pattern})],
        Shape::Percent { least, whole } => {
            let kind = if *whole { "integer" } else { "number" };
            vec![json!({"type": kind, "minimum": least, "maximum": 100})]
        }
        Shape::Path | Shape::Secret => vec![json!({"type": "string"})],
        Shape::Size(least, _) => {
            let written = json!({"type": "string", "pattern": SIZE});
            std::iter::once(written).chain(zero(*least == 0)).collect()
        }
        // What YAML takes for a number or a switch is text just as well.
        Shape::Text => vec![json!({"type": ["string", "number", "boolean"]})],
        Shape::Words(words) => vec![json!({"enum": words})],
    }
}

const DURATION: &str = "^(0|[0-9]+h([0-9]+m)?([0-9]+s)?([0-9]+ms)?|[0-9]+m([0-9]+s)?([0-9]+ms)?\
                        |[0-9]+s([0-9]+ms)?|[0-9]+ms)$";
const SIZE: &str = "^(0|[0-9]+(B|KiB|MiB|GiB))$";

fn array(item: &Shape, tree: &Tree) -> Value {
    let empty = Tree::default();
    let mut all = alternatives(item, tree.get("[0]").unwrap_or(&empty));
    if needs_variable(item) {
        all.push(json!({"$ref": "#/$defs/variable"}));
    }
    let items = match (all.pop(), all.is_empty()) {
        (Some(only), true) => only,
        (last, _) => {
            all.extend(last);
            json!({"anyOf": all})
        }
    };
    json!({"type": "array", "items": items})
}

fn named(shape: &Shape, tree: &Tree) -> Value {
    let mut values: BTreeMap<&str, &Tree> = BTreeMap::new();
    for (name, child) in &tree.children {
        if let Some(kind) = name.strip_prefix('*') {
            values.insert(kind, child);
        }
    }
    let empty = Tree::default();
    let value = match values.get("") {
        None if values.len() > 1 => by_kind(&values),
        child => {
            let mut all = alternatives(shape, child.unwrap_or(&&empty));
            match (all.pop(), all.is_empty()) {
                (Some(only), true) => only,
                (last, _) => {
                    all.extend(last);
                    json!({"anyOf": all})
                }
            }
        }
    };
    json!({"type": ["object", "null"], "additionalProperties": value})
}

/// One schema for each word of `kind`.
fn by_kind(values: &BTreeMap<&str, &Tree>) -> Value {
    let kinds: Vec<&str> = values.keys().copied().collect();
    let cases = values.iter().map(|(kind, tree)| {
        json!({
            "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
            "then": object(tree),
        })
    });
    let cases: Vec<Value> = cases.collect();
    let kind = json!({"description": describe("registry.kind"), "enum": kinds});
    json!({
        "type": "object",
        "properties": {"kind": kind},
        "required": ["kind"],
        "allOf": cases,
    })
}

/// Bounds that a schema cannot hold, in words.
fn bounds(shape: &Shape) -> String {
    match shape {
        Shape::Duration(span) => format!(" ({})", duration_words(*span)),
        Shape::Size(least, most) if *most < 1 << 40 => {
            format!(" ({} to {})", show_size(*least), show_size(*most))
        }
        Shape::OneOf(shapes) => shapes.iter().map(bounds).collect(),
        Shape::Boolean
        | Shape::Decimal { .. }
        | Shape::Integer(..)
        | Shape::List(_)
        | Shape::Map
        | Shape::Named(_)
        | Shape::OneOrMore(_)
        | Shape::Path
        | Shape::Pattern(_)
        | Shape::Percent { .. }
        | Shape::Secret
        | Shape::Size(..)
        | Shape::Text
        | Shape::Words(_) => String::new(),
    }
}

fn duration_words(span: Span) -> String {
    let least = if span.zero {
        Duration::ZERO
    } else {
        span.least
    };
    let least = if least.is_zero() {
        "0".to_owned()
    } else {
        show(least)
    };
    format!("{least} to {}", show(span.most.min(DAY)))
}

/// What a key takes, in words.
fn takes(shape: &Shape) -> String {
    match shape {
        Shape::Boolean => "true or false".to_owned(),
        Shape::Decimal { most } => format!("number, 0 to {most}"),
        Shape::Duration(span) => format!("duration, {}", duration_words(*span)),
        Shape::Integer(from, to) if from == to => from.to_string(),
        Shape::Integer(from, to) => format!("{from} to {to}"),
        Shape::List(item) => format!("list of {}", takes(item)),
        Shape::Map => "map".to_owned(),
        Shape::Named(item) => format!("map from names to {}", takes(item)),
        Shape::OneOf(shapes) => {
            let all: Vec<String> = shapes.iter().map(takes).collect();
            all.join(" or ")
        }
        Shape::OneOrMore(item) => format!("{}, or a list", takes(item)),
        Shape::Path => "path".to_owned(),
        Shape::Pattern(_) | Shape::Secret | Shape::Text => "text".to_owned(),
        Shape::Percent { least, .. } => format!("percent, {least} to 100"),
        Shape::Size(least, most) => {
            format!("size, {} to {}", show_size(*least), show_size(*most))
        }
        Shape::Words(words) => words.join(", "),
    }
}

#[cfg(test)]
mod tests;
