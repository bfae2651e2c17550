//! A YAML file as a tree in which every node and key knows its place. The only file that knows the
//! YAML crate; never panics, bounded in bytes, depth and nodes. It finds duplicate keys and refuses
//! what a configuration does not need. Next: `config/substitute.rs`, `config/parse.rs`.

mod text;

use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::diagnostic::{Code, Diagnostic, Diagnostics, Place, Source};

/// Largest file in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Deepest nesting of maps and lists.
const MAX_DEPTH: usize = 32;
/// Nodes of a tree, those of aliases counted at each use.
const MAX_NODES: usize = 200_000;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What.
    pub value: Value,
    /// Where.
    pub place: Place,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A single value.
    Scalar(Scalar),
    /// A list.
    Sequence(Vec<Node>),
    /// A map in the order of the file; keys are unique.
    Mapping(Vec<Entry>),
}

/// A single value, still text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    /// Its text without quotes.
    pub text: String,
    /// Whether a variable stood in it.
    pub substituted: bool,
}

/// One key of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where it stands.
    pub place: Place,
    /// Its value.
    pub value: Node,
}

impl Node {
    /// A single value.
    pub fn scalar(text: &str, place: Place) -> Self {
        let scalar = Scalar {
            text: text.to_owned(),
            substituted: false,
        };
        Self {
            value: Value::Scalar(scalar),
            place,
        }
    }

    /// The value of `key`, when this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Mapping(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.value),
            Value::Null | Value::Scalar(_) | Value::Sequence(_) => None,
        }
    }
}

/// Reads `bytes`, shown as `name` in messages. What could be read comes back even when there are
/// errors, except after a syntax error.
pub fn parse(bytes: &[u8], name: &str) -> (Node, Diagnostics) {
    let mut problems = Diagnostics::default();
    let source = match text::decode(bytes, name) {
        Ok(source) => Arc::new(source),
        Err(problem) => {
            let place = problem.place.clone();
            problems.push(problem);
            return (
                Node {
                    value: Value::Null,
                    place,
                },
                problems,
            );
        }
    };
    text::find_tabs(&source, &mut problems);
    if problems.has_errors() {
        return (
            Node {
                value: Value::Null,
                place: Place::whole(&source),
            },
            problems,
        );
    }
    let events = Parser::new(StrInput::new(&source.text));
    let mut walk = Walk {
        events,
        source: Arc::clone(&source),
        problems,
        anchors: HashMap::new(),
        nodes: 0,
    };
    let root = walk.document();
    let mut problems = walk.problems;
    let value = match root {
        Ok(node) => return (node, problems),
        Err(stop) => {
            problems.push(*stop);
            Value::Null
        }
    };
    (
        Node {
            value,
            place: Place::whole(&source),
        },
        problems,
    )
}

/// Why the walk ended early.
type Stop = Box<Diagnostic>;

struct Walk<'s> {
    events: Parser<'s, StrInput<'s>>,
    source: Arc<Source>,
    problems: Diagnostics,
    anchors: HashMap<usize, (Node, usize)>,
    nodes: usize,
}

impl<'s> Walk<'s> {
    fn document(&mut self) -> Result<Node, Stop> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            let place = self.place(span);
            match event {
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(stop(
                        Code::YAML_FEATURE,
                        place,
                        "a second document begins here",
                        "keep one document per file",
                    ));
                }
                Event::DocumentStart(_) => {
                    let (event, span) = self.next()?;
                    root = Some(self.node(event, span, 0)?);
                }
                Event::StreamEnd => break,
                Event::Alias(_)
                | Event::Scalar(..)
                | Event::SequenceStart(..)
                | Event::SequenceEnd
                | Event::MappingStart(..)
                | Event::MappingEnd => {
                    return Err(stop(Code::SYNTAX, place, "unexpected text", ""));
                }
            }
        }
        let empty = Node {
            value: Value::Null,
            place: Place::whole(&self.source),
        };
        Ok(root.unwrap_or(empty))
    }

    fn node(&mut self, event: Event<'s>, span: Span, depth: usize) -> Result<Node, Stop> {
        let place = self.place(span);
        if depth > MAX_DEPTH {
            return Err(stop(
                Code::TOO_DEEP,
                place,
                "maps and lists are nested too deeply here",
                &format!("at most {MAX_DEPTH} levels"),
            ));
        }
        self.count(1, &place)?;
        let before = self.nodes;
        let (anchor, value) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_tag(tag.is_some(), &place);
                let plain = matches!(style, ScalarStyle::Plain);
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let scalar = Scalar {
                    text: text.into_owned(),
                    substituted: false,
                };
                (
                    anchor,
                    if null {
                        Value::Null
                    } else {
                        Value::Scalar(scalar)
                    },
                )
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), &place);
                (anchor, self.sequence(depth)?)
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_tag(tag.is_some(), &place);
                (anchor, self.mapping(depth)?)
            }
            Event::Alias(anchor) => {
                let Some((node, nodes)) = self.anchors.get(&anchor).cloned() else {
                    return Err(stop(
                        Code::YAML_FEATURE,
                        place,
                        "this alias stands inside what it refers to",
                        "write the value out",
                    ));
                };
                self.count(nodes, &place)?;
                return Ok(node);
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd
            | Event::SequenceEnd
            | Event::MappingEnd => {
                return Err(stop(Code::SYNTAX, place, "a value is missing here", ""));
            }
        };
        let node = Node { value, place };
        if anchor > 0 {
            self.anchors
                .insert(anchor, (node.clone(), self.nodes - before + 1));
        }
        Ok(node)
    }

    fn sequence(&mut self, depth: usize) -> Result<Value, Stop> {
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(Value::Sequence(items));
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, Stop> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Mapping(entries));
            }
            let Node { value: key, place } = self.node(event, span, depth + 1)?;
            let (event, span) = self.next()?;
            let value = self.node(event, span, depth + 1)?;
            let key = match key {
                Value::Scalar(scalar) => scalar.text,
                Value::Null => "null".to_owned(),
                Value::Sequence(_) | Value::Mapping(_) => {
                    self.report(
                        Code::YAML_FEATURE,
                        place,
                        "a map or list cannot be a key",
                        "when this was meant as text, quote it",
                    );
                    continue;
                }
            };
            if let Some(first) = lines.get(&key) {
                let message = format!("key `{key}` stands twice in this map");
                let help = format!("the first one is in line {first}; remove one of them");
                self.report(Code::DUPLICATE_KEY, place, &message, &help);
                continue;
            }
            lines.insert(key.clone(), place.start.0);
            entries.push(Entry { key, place, value });
        }
    }

    fn next(&mut self) -> Result<(Event<'s>, Span), Stop> {
        match self.events.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => Err(self.syntax(&error)),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn syntax(&self, error: &ScanError) -> Stop {
        let (line, column) = position(error.marker());
        if let Some((place, found)) = text::unquoted_variable(&self.source, line) {
            let message = format!("`{found}` stands unquoted inside {{...}} or [...]");
            return stop(
                Code::QUOTE_IT,
                place,
                &message,
                &format!("quote it: \"{found}\""),
            );
        }
        let place = Place::at(&self.source, line, column);
        let (message, help) = text::plain_words(error.info());
        stop(Code::SYNTAX, place, &message, help)
    }

    fn count(&mut self, nodes: usize, place: &Place) -> Result<(), Stop> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let help = format!("at most {MAX_NODES}, aliases counted at each use");
            return Err(stop(
                Code::YAML_FEATURE,
                place.clone(),
                "too many values",
                &help,
            ));
        }
        Ok(())
    }

    fn refuse_tag(&mut self, tagged: bool, place: &Place) {
        if tagged {
            let message = "tags such as `!!str` have no meaning here";
            self.report(Code::YAML_FEATURE, place.clone(), message, "remove the tag");
        }
    }

    fn report(&mut self, code: Code, place: Place, message: &str, help: &str) {
        self.problems.push(*stop(code, place, message, help));
    }

    fn place(&self, span: Span) -> Place {
        let source = Arc::clone(&self.source);
        Place {
            source,
            start: position(&span.start),
            end: position(&span.end),
        }
    }
}

fn stop(code: Code, place: Place, message: &str, help: &str) -> Stop {
    let (message, help) = (message.to_owned(), help.to_owned());
    Box::new(Diagnostic {
        code,
        place,
        message,
        help,
    })
}

fn position(marker: &Marker) -> (usize, usize) {
    (marker.line(), marker.col() + 1)
}

#[cfg(test)]
mod tests;
