//! What an answer to a check must be: its status, a text in its body, a value of its JSON. Pure.

use std::sync::Arc;

use serde_json::Value;

use crate::config::types::JsonRule;
use crate::outlier::policy::CodeSet;

/// All that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    /// Good statuses; `None`: the caller judges the status.
    pub status: Option<CodeSet>,
    /// A text that is somewhere in the body.
    pub body: Option<Arc<str>>,
    /// A value of the body.
    pub json: Option<JsonRule>,
}

impl Expectation {
    /// Whether the body matters.
    pub const fn reads_body(&self) -> bool {
        self.body.is_some() || self.json.is_some()
    }

    /// What was seen.
    ///
    /// # Errors
    /// What is wrong, for people.
    pub fn judge(&self, status: u16, body: &[u8]) -> Result<String, String> {
        if let Some(expect) = &self.status
            && !expect.contains(status)
        {
            return Err(format!("answered {status}, which is not expected"));
        }
        if let Some(text) = &self.body
            && !contains(body, text.as_bytes())
        {
            return Err(format!("answered {status}, without `{text}` in its body"));
        }
        match &self.json {
            None => Ok(format!("answered {status}")),
            Some(rule) => says(body, rule),
        }
    }
}

fn contains(body: &[u8], text: &[u8]) -> bool {
    text.is_empty() || body.windows(text.len()).any(|window| window == text)
}

/// Whether the value at the pointer is the text that is wanted.
fn says(body: &[u8], rule: &JsonRule) -> Result<String, String> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is no JSON: {error}"))?;
    let Some(found) = value.pointer(&rule.pointer) else {
        return Err(format!("the answer has nothing at {}", rule.pointer));
    };
    let text = match found {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            found.to_string()
        }
    };
    let message = format!("{} is {}", rule.pointer, short(&text));
    if text.eq_ignore_ascii_case(&rule.value) {
        Ok(message)
    } else {
        Err(format!("{message}, not {}", rule.value))
    }
}

/// Not more than fits into a line.
fn short(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(pointer: &str) -> Expectation {
        Expectation {
            json: Some(JsonRule {
                pointer: pointer.into(),
                value: "UP".into(),
            }),
            ..Expectation::default()
        }
    }

    #[test]
    fn words_of_spring_boot() {
        let status = json("/status");
        let judge = |text: &str| status.judge(200, text.as_bytes());
        assert_eq!(judge(r#"{"status":"UP"}"#), Ok("/status is UP".to_owned()));
        for word in ["DOWN", "OUT_OF_SERVICE", "UNKNOWN"] {
            let text = format!(r#"{{"status":"{word}"}}"#);
            assert_eq!(judge(&text), Err(format!("/status is {word}, not UP")));
        }
        assert!(judge("{}").unwrap_err().contains("nothing at /status"));
        assert!(judge("<html>").unwrap_err().contains("no JSON"));
        let deep = json("/components/db/status");
        let text = br#"{"status":"DOWN","components":{"db":{"status":"up"}}}"#;
        assert!(deep.judge(200, text).is_ok());
        let long = format!(r#"{{"status":"{}"}}"#, "x".repeat(10_000));
        assert!(judge(&long).unwrap_err().len() < 200);
    }

    #[test]
    fn a_text_in_the_body_and_a_status() {
        let all = Expectation {
            status: Some(CodeSet::from_ranges([(200, 299)])),
            body: Some("ready".into()),
            json: None,
        };
        assert!(all.judge(200, b"all is ready.").is_ok());
        assert!(
            all.judge(200, b"read")
                .unwrap_err()
                .contains("without `ready`")
        );
        assert!(
            all.judge(300, b"ready")
                .unwrap_err()
                .contains("not expected")
        );
        assert!(Expectation::default().judge(599, b"").is_ok());
    }
}
