//! Problems of a configuration: each with its place, what is wrong, and what would be right.
//! They are collected, never returned one by one. Next: `config/codes.rs`.

use std::fmt;
use std::sync::Arc;

pub use super::codes::Code;

/// A text that configuration was read from.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the file as shown, or the name of the variable or flag.
    pub name: String,
    /// Its text, for snippets.
    pub text: String,
    /// Whether it is a file; else places have no line and column.
    pub is_file: bool,
}

/// A range inside a source; lines and columns count characters from 1.
#[derive(Clone, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub source: Arc<Source>,
    /// First character: line and column.
    pub start: (usize, usize),
    /// The character behind the last one.
    pub end: (usize, usize),
}

impl Place {
    /// The whole of `source`.
    pub fn whole(source: &Arc<Source>) -> Self {
        Self {
            source: Arc::clone(source),
            start: (0, 0),
            end: (0, 0),
        }
    }

    /// One character.
    pub fn at(source: &Arc<Source>, line: usize, column: usize) -> Self {
        Self {
            source: Arc::clone(source),
            start: (line, column),
            end: (line, column + 1),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, column) = self.start;
        if self.source.is_file && line > 0 {
            write!(f, "{}:{line}:{column}", self.source.name)
        } else {
            f.write_str(&self.source.name)
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Its kind; tells error from warning.
    pub code: Code,
    /// Where.
    pub place: Place,
    /// What is wrong.
    pub message: String,
    /// What would be right; empty when the message says it.
    pub help: String,
}

impl Diagnostic {
    /// One line: `file:line:column: what; what would be right`.
    pub fn line(&self) -> String {
        let separator = if self.help.is_empty() { "" } else { ": " };
        format!(
            "{}: [{}] {}{separator}{}",
            self.place, self.code, self.message, self.help
        )
    }
}

impl Diagnostic {
    /// The line it is about, and the carets below it with the help.
    fn snippet(&self, text: &str) -> (String, String) {
        let (line, column) = self.place.start;
        let text = mask_secret(text);
        let skip = if text.chars().count() > LONGEST {
            column.saturating_sub(40)
        } else {
            0
        };
        let shown = text.chars().skip(skip).take(LONGEST);
        let shown: String = shown
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let width = shown.chars().count();
        let start = column.saturating_sub(skip + 1).min(width);
        let end = self.place.end;
        let stop = if end.0 == line {
            end.1.saturating_sub(skip + 1).min(width)
        } else {
            width
        };
        let carets = "^".repeat(stop.saturating_sub(start).max(1));
        let marks = format!("{}{carets} {}", " ".repeat(start), self.help);
        (shown.trim_end().to_owned(), marks.trim_end().to_owned())
    }
}

/// The line up to the value of a key that sounds like a secret, which is never printed; nor are user
/// and password in a URL.
fn mask_secret(text: &str) -> String {
    let text = &mask_user_info(text);
    let mut shown = String::new();
    for (n, part) in text.split(':').enumerate() {
        if n > 0 {
            shown.push(':');
            let key = shown.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"_-:\"'".contains(c));
            let key = key
                .into_iter()
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            let key = key.trim_matches([':', '"', '\'']);
            let secret = ["pass", "secret", "token"]
                .iter()
                .any(|word| key.contains(word));
            if secret && !key.ends_with("file") && !part.trim().is_empty() {
                return shown + " ***";
            }
        }
        shown.push_str(part);
    }
    shown
}

/// `http://***********@host`, as long as it was, so that carets stay where they belong.
fn mask_user_info(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        shown.push_str(before);
        shown.push_str("://");
        let end = after.find(|c: char| "/\"' ,]".contains(c));
        let (authority, tail) = after.split_at(end.unwrap_or(after.len()));
        match authority.rsplit_once('@') {
            Some((user, host)) => {
                shown.extend(user.chars().map(|_| '*'));
                shown.push('@');
                shown.push_str(host);
            }
            None => shown.push_str(authority),
        }
        rest = tail;
    }
    shown + rest
}

/// In the style of rustc: message, place, snippet with carets, help.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.code.is_warning() {
            "warning"
        } else {
            "error"
        };
        writeln!(f, "{level}[{}]: {}", self.code, self.message)?;
        let (line, _) = self.place.start;
        let text = line
            .checked_sub(1)
            .and_then(|n| self.place.source.text.lines().nth(n));
        let gutter = " ".repeat(line.max(1).to_string().len());
        writeln!(f, "{gutter} --> {}", self.place)?;
        match text {
            Some(text) => {
                let (shown, marks) = self.snippet(text);
                writeln!(f, "{gutter} |\n{line} | {shown}\n{gutter} | {marks}")?;
            }
            None if self.help.is_empty() => {}
            None => writeln!(f, "{gutter} = help: {}", self.help)?,
        }
        write!(f, "{gutter} = explain: outrigger explain {}", self.code)
    }
}

/// Problems in the order in which they were found, at most some hundreds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    items: Vec<Diagnostic>,
    dropped: usize,
}

impl Diagnostics {
    /// Adds one.
    pub fn push(&mut self, item: Diagnostic) {
        if self.items.len() < MOST {
            self.items.push(item);
        } else {
            self.dropped += 1;
        }
    }

    /// Adds all of `other`.
    pub fn extend(&mut self, other: Self) {
        self.dropped += other.dropped;
        for item in other.items {
            self.push(item);
        }
    }

    /// Orders by place, files in the order in which they first occur.
    pub fn sort(&mut self) {
        let mut order: Vec<Arc<Source>> = Vec::new();
        for item in &self.items {
            if !order
                .iter()
                .any(|known| Arc::ptr_eq(known, &item.place.source))
            {
                order.push(Arc::clone(&item.place.source));
            }
        }
        self.items.sort_by_key(|item| {
            let source = order
                .iter()
                .position(|known| Arc::ptr_eq(known, &item.place.source));
            (source, item.place.start, item.code)
        });
        self.items.dedup();
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Diagnostic> {
        self.items.iter()
    }

    /// Errors among them.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().filter(|item| !item.code.is_warning())
    }

    /// Warnings among them.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.items.iter().filter(|item| item.code.is_warning())
    }

    /// Whether there is an error.
    pub fn has_errors(&self) -> bool {
        self.errors().next().is_some() || self.dropped > 0
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.items.len() + self.dropped
    }
}

/// Each as rustc would show it, an empty line between.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, item) in self.items.iter().enumerate() {
            writeln!(f, "{}{item}", if n == 0 { "" } else { "\n" })?;
        }
        if self.dropped > 0 {
            writeln!(f, "\n... and {} more", self.dropped)?;
        }
        Ok(())
    }
}

/// More would bury the first.
const MOST: usize = 300;
/// Of a snippet, in characters.
const LONGEST: usize = 160;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        for (text, want) in [
            ("  password: hunter2", "  password: ***"),
            (
                "n: {servers: [a:1], \"passwrd\": x, b: c}",
                "n: {servers: [a:1], \"passwrd\": ***",
            ),
            ("password_file: /run/x", "password_file: /run/x"),
            ("a: b:c", "a: b:c"),
            (
                "s: [\"http://u:p@h:1/x@y\", 'https://h', ftp://me@h]",
                "s: [\"http://***@h:1/x@y\", 'https://h', ftp://**@h]",
            ),
        ] {
            assert_eq!(mask_secret(text), want);
        }
    }
}
