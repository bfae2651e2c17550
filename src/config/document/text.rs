//! What is looked at in a file's text before and beside the YAML parser: encoding, control
//! characters, tabs, and unquoted variables, whose parser message would help nobody.

use std::sync::Arc;

use super::MAX_BYTES;
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, Place, Source};

/// The text of a file: UTF-8 without control characters, a byte order mark removed.
pub(super) fn decode(bytes: &[u8], name: &str) -> Result<Source, Diagnostic> {
    let source = |text: &str| Source {
        name: name.to_owned(),
        text: text.to_owned(),
        is_file: true,
    };
    let problem =
        |code, text: &str, position: Option<(usize, usize)>, message: String, help: &str| {
            let source = Arc::new(source(text));
            let place = position.map_or_else(
                || Place::whole(&source),
                |(line, column)| Place::at(&source, line, column),
            );
            Diagnostic {
                code,
                place,
                message,
                help: help.to_owned(),
            }
        };
    if bytes.len() > MAX_BYTES {
        let message = format!("the file has {} bytes", bytes.len());
        return Err(problem(Code::TOO_LARGE, "", None, message, "at most 1 MiB"));
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let good = String::from_utf8_lossy(good).into_owned();
            let at = end_of(&good);
            let message = "the file is not UTF-8 from here on".to_owned();
            return Err(problem(
                Code::NOT_UTF8,
                &good,
                Some(at),
                message,
                "save it as UTF-8",
            ));
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let bad = |c: char| (c.is_control() && !matches!(c, '\n' | '\r' | '\t')) || c == '\u{feff}';
    if let Some((before, rest)) = text.find(bad).and_then(|at| text.split_at_checked(at)) {
        let at = end_of(before);
        let character = rest.chars().next().unwrap_or_default().escape_unicode();
        let message = format!("control character {character}");
        return Err(problem(
            Code::NOT_UTF8,
            text,
            Some(at),
            message,
            "remove it",
        ));
    }
    Ok(source(text))
}

/// Line and column behind the last character of `text`.
fn end_of(text: &str) -> (usize, usize) {
    let line = text.matches('\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// Reports the first tab in an indentation.
pub(super) fn find_tabs(source: &Arc<Source>, problems: &mut Diagnostics) {
    for (n, line) in source.text.lines().enumerate() {
        let indent = line
            .chars()
            .take_while(|c| matches!(c, ' ' | '\t'))
            .position(|c| c == '\t');
        let blank = line.trim().is_empty() || line.trim_start().starts_with('#');
        if let (Some(column), false) = (indent, blank) {
            problems.push(Diagnostic {
                code: Code::TAB,
                place: Place::at(source, n + 1, column + 1),
                message: "a tab indents this line".to_owned(),
                help: "indent with spaces".to_owned(),
            });
            return;
        }
    }
}

/// The last `${...}` outside quotes and inside `{...}` or `[...]`, up to the line of an error.
pub(super) fn unquoted_variable(source: &Arc<Source>, last_line: usize) -> Option<(Place, String)> {
    let mut found = None;
    let mut depth = 0_usize;
    let mut quote: Option<char> = None;
    for (n, line) in source.text.lines().enumerate().take(last_line) {
        let chars: Vec<char> = line.chars().collect();
        let mut before = ' ';
        let mut token_start = true;
        let mut at = 0;
        while let Some(&c) = chars.get(at) {
            let next = chars.get(at + 1).copied();
            match (quote, c) {
                (Some(open), _) if c == open => quote = None,
                (Some('"'), '\\') => at += 1,
                (Some(_), _) => {}
                (None, '"' | '\'') if token_start => quote = Some(c),
                (None, '#') if before.is_whitespace() => break,
                (None, '$') if next == Some('{') => {
                    let rest = chars.get(at..).unwrap_or_default();
                    let length = rest.iter().position(|c| *c == '}').map_or(2, |end| end + 1);
                    if depth > 0 {
                        let text: String = rest.iter().take(length).collect();
                        let source = Arc::clone(source);
                        let (start, end) = ((n + 1, at + 1), (n + 1, at + 1 + length));
                        found = Some((Place { source, start, end }, text));
                    }
                    at += length - 1;
                }
                (None, '{' | '[') => depth += 1,
                (None, '}' | ']') => depth = depth.saturating_sub(1),
                (None, _) => {}
            }
            if !c.is_whitespace() {
                token_start = matches!(c, ':' | ',' | '[' | '{' | '-');
            }
            before = c;
            at += 1;
        }
    }
    found
}

/// The parser's words in ours, where ours help more.
pub(super) fn plain_words(info: &str) -> (String, &'static str) {
    let known: &[(&str, &str, &str)] = &[
        (
            "mapping values are not allowed",
            "a second `: ` in one line",
            "quote the value, or indent the next key",
        ),
        (
            "simple key",
            "a key without `: ` behind it, or a `:` too many",
            "check this line and the one before",
        ),
        (
            "while parsing a flow",
            "a `{...}` or `[...]` is not closed",
            "close it, or quote a `{`, `[` or `,` that is text",
        ),
        (
            "flow mapping",
            "a `{...}` is not closed or a comma is missing",
            "close it, or quote what is text",
        ),
        (
            "flow sequence",
            "a `[...]` is not closed or a comma is missing",
            "close it, or quote what is text",
        ),
        (
            "did not find expected key",
            "the indentation does not fit the lines before",
            "align the keys of one map",
        ),
        (
            "block mapping",
            "the indentation does not fit the lines before",
            "align the keys of one map",
        ),
        (
            "illegal placement of ':'",
            "a `:` cannot stand here",
            "close the `[`, `{` or quote before it, or quote what is text",
        ),
        (
            "unknown anchor",
            "this alias refers to no anchor",
            "write the value out",
        ),
        (
            "unexpected end of stream",
            "the file ends inside a quoted text",
            "close the quote",
        ),
        (
            "cannot start any token",
            "a value cannot begin with this character",
            "quote the value",
        ),
    ];
    for (part, message, help) in known {
        if info.contains(part) {
            return ((*message).to_owned(), help);
        }
    }
    (format!("this is not valid YAML: {info}"), "")
}
