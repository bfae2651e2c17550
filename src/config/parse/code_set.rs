//! Sets of status codes: numbers, names, `a-b` ranges.

use super::reader::Field;
use super::record::Shape;
use super::value::Wrong;
use crate::config::diagnostic::Code;
use crate::config::suggest;
use crate::outlier::policy::CodeSet;

/// Which codes a set may hold, and what they are called.
pub(crate) struct Codes {
    what: &'static str,
    least: u16,
    most: u16,
    names: &'static [(&'static str, u16)],
    /// Names and ranges.
    pattern: &'static str,
}

/// HTTP statuses.
pub(crate) const HTTP: Codes = Codes {
    what: "an HTTP status",
    least: 100,
    most: 599,
    names: &[],
    pattern: "^[1-5][0-9]{2} *(- *[1-5][0-9]{2})?$",
};

/// gRPC codes other than OK.
pub(crate) const GRPC: Codes = Codes {
    what: "a gRPC code",
    least: 1,
    most: 999,
    names: &[
        ("cancelled", 1),
        ("unknown", 2),
        ("invalid_argument", 3),
        ("deadline_exceeded", 4),
        ("not_found", 5),
        ("already_exists", 6),
        ("permission_denied", 7),
        ("resource_exhausted", 8),
        ("failed_precondition", 9),
        ("aborted", 10),
        ("out_of_range", 11),
        ("unimplemented", 12),
        ("internal", 13),
        ("unavailable", 14),
        ("data_loss", 15),
        ("unauthenticated", 16),
    ],
    pattern: "^([a-z_]+|[0-9]{1,3}) *(- *([a-z_]+|[0-9]{1,3}))?$",
};

/// Dubbo2 statuses other than OK.
pub(crate) const DUBBO: Codes = Codes {
    what: "a Dubbo2 status",
    least: 21,
    most: 255,
    names: &[
        ("serialization_error", 25),
        ("client_timeout", 30),
        ("server_timeout", 31),
        ("channel_inactive", 35),
        ("bad_request", 40),
        ("bad_response", 50),
        ("service_not_found", 60),
        ("service_error", 70),
        ("server_error", 80),
        ("client_error", 90),
        ("server_threadpool_exhausted_error", 100),
    ],
    pattern: "^([a-z_]+|[0-9]{1,3}) *(- *([a-z_]+|[0-9]{1,3}))?$",
};

impl Codes {
    /// One code, by number or name.
    pub(crate) fn one(&self, text: &str) -> Result<u16, Wrong> {
        let wrong = |help: String| Err((format!("`{text}` is not {}", self.what), help));
        let range = || format!("a number from {} to {}", self.least, self.most);
        if let Some((_, code)) = self.names.iter().find(|(name, _)| *name == text) {
            return Ok(*code);
        }
        match text.parse::<u16>() {
            Ok(code) if (self.least..=self.most).contains(&code) => Ok(code),
            Ok(_) => wrong(range()),
            Err(_) if text == "5xx" || text == "4xx" => {
                wrong(format!("write `{0}00-{0}99`", text.trim_end_matches('x')))
            }
            Err(_) => match suggest::nearest(text, self.names.iter().map(|(name, _)| *name)) {
                Some(near) => wrong(format!("did you mean `{near}`?")),
                None if self.names.is_empty() => wrong(format!("{}, or a range", range())),
                None => wrong(format!("a name in snake_case, or {}", range())),
            },
        }
    }

    fn range(&self, text: &str) -> Result<(u16, u16), Wrong> {
        let Some((from, to)) = text.split_once('-') else {
            return self.one(text.trim()).map(|code| (code, code));
        };
        if from.is_empty() || to.is_empty() {
            let help = "write it like `500-599`".to_owned();
            return Err((format!("`{text}` is half a range"), help));
        }
        let (from, to) = (self.one(from.trim())?, self.one(to.trim())?);
        if from > to {
            let help = format!("write `{to}-{from}`");
            return Err((format!("the range `{text}` is backwards"), help));
        }
        Ok((from, to))
    }

    /// What a key that [`Codes::read`] reads takes.
    pub(crate) fn shape(&self) -> Shape {
        let number = Shape::Integer(self.least.into(), self.most.into());
        let range = Shape::Pattern(self.pattern);
        number.or(range).one_or_more()
    }

    /// A list of codes and ranges, or one of them.
    pub(crate) fn read(&self, field: &Field<'_>) -> Option<CodeSet> {
        let items = field.one_or_more()?;
        let ranges = items
            .iter()
            .filter_map(|item| item.convert(Code::CODE_SET, |t| self.range(t)));
        Some(CodeSet::from_ranges(ranges))
    }
}

/// The ranges as they would be written.
pub(crate) fn show(set: &CodeSet) -> Vec<String> {
    let one = |(from, to): &(u16, u16)| match from == to {
        true => from.to_string(),
        false => format!("{from}-{to}"),
    };
    set.ranges().iter().map(one).collect()
}
