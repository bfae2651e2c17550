//! Scalars with rules: durations, sizes, percentages, numbers, switches, words of a closed list.
//! Each is a pure function from text to a value or to what is wrong and what would be right.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::{Field, Map, list};
use super::record::Shape;
use crate::config::diagnostic::Code;
use crate::config::suggest;

/// What is wrong with a text, and what would be right.
pub(crate) type Wrong = (String, String);

/// The longest duration of any key.
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
const MS: Duration = Duration::from_millis(1);

/// Which durations a key takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
    pub(crate) zero: bool,
}

impl Span {
    /// Any above zero.
    pub(crate) const POSITIVE: Self = Self {
        least: MS,
        most: DAY,
        zero: false,
    };
    /// Zero too.
    pub(crate) const ZERO_OR_MORE: Self = Self {
        least: MS,
        most: DAY,
        zero: true,
    };

    /// Whatever can be written.
    pub(crate) const ANY: Self = Self {
        least: MS,
        most: Duration::MAX,
        zero: true,
    };

    /// From `least` to `most`.
    pub(crate) const fn between(least: Duration, most: Duration) -> Self {
        Self {
            least,
            most,
            zero: false,
        }
    }
}

/// `250ms`, `5s`, `1m30s`, `1h`; a bare `0` where zero is legal.
pub(crate) fn duration(text: &str, span: Span) -> Result<Duration, Wrong> {
    let wrong = |what: &str, help: &str| Err((format!("`{text}` {what}"), help.to_owned()));
    let value = if text == "0" {
        Duration::ZERO
    } else {
        units(text)?
    };
    if value.is_zero() && !span.zero {
        return wrong(
            "is not allowed here",
            &format!("at least {}", show(span.least)),
        );
    }
    if !value.is_zero() && value < span.least {
        return wrong("is too short", &format!("at least {}", show(span.least)));
    }
    if value > span.most {
        return wrong("is too long", &format!("at most {}", show(span.most)));
    }
    Ok(value)
}

fn units(text: &str) -> Result<Duration, Wrong> {
    let wrong = |what: &str, help: String| Err((format!("`{text}` {what}"), help));
    let example = || "write it like `250ms`, `5s`, `1m30s` or `1h`".to_owned();
    if text.parse::<f64>().is_ok() {
        return wrong("has no unit", format!("write `{text}s` or `{text}ms`"));
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    let mut last = u64::MAX;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at_checked(digits).unwrap_or((rest, ""));
        let letters = tail
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters).unwrap_or((tail, ""));
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => {
                return wrong(
                    "is in days",
                    "write hours; the longest duration is `24h`".to_owned(),
                );
            }
            _ if tail.starts_with('.') || rest.starts_with('.') => {
                return wrong(
                    "has a fraction",
                    "write a smaller unit, `1500ms` for 1.5 s".to_owned(),
                );
            }
            _ => return wrong("is no duration", example()),
        };
        let Ok(number) = number.parse::<u64>() else {
            return wrong("is no duration", example());
        };
        if millis >= last {
            return wrong(
                "is no duration",
                "write large units first, each once".to_owned(),
            );
        }
        last = millis;
        total = total.saturating_add(Duration::from_millis(number.saturating_mul(millis)));
        rest = tail;
    }
    if last == u64::MAX {
        wrong("is no duration", example())
    } else {
        Ok(total)
    }
}

/// As it would be written.
pub(crate) fn show(duration: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let seconds = duration.as_secs();
    if seconds >= DAY && seconds.is_multiple_of(3600) && duration.subsec_nanos() == 0 {
        // Days cannot be written.
        return format!("{}h", seconds / 3600);
    }
    humantime::format_duration(duration)
        .to_string()
        .replace(' ', "")
}

/// `512B`, `64KiB`, `1MiB`, `1GiB`; a bare `0` where zero is legal.
pub(crate) fn size(text: &str, range: &RangeInclusive<u64>) -> Result<u64, Wrong> {
    let wrong = |what: &str, help: String| Err((format!("`{text}` {what}"), help));
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits).unwrap_or((text, ""));
    let factor = match unit {
        "" if text == "0" => 1,
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "" if !number.is_empty() => {
            return wrong(
                "has no unit",
                format!("write `{number}B`, `{number}KiB` or `{number}MiB`"),
            );
        }
        "k" | "K" | "kB" | "KB" | "kb" | "Ki" | "kib" => {
            return wrong("has another unit", format!("write `{number}KiB`"));
        }
        "M" | "MB" | "mb" | "Mi" | "mib" | "m" => {
            return wrong("has another unit", format!("write `{number}MiB`"));
        }
        _ => {
            return wrong(
                "is no size",
                "write it like `512B`, `64KiB` or `1MiB`".to_owned(),
            );
        }
    };
    let Some(value) = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
    else {
        return wrong(
            "is no size",
            "write it like `512B`, `64KiB` or `1MiB`".to_owned(),
        );
    };
    if !range.contains(&value) {
        let help = format!(
            "from {} to {}",
            show_size(*range.start()),
            show_size(*range.end())
        );
        return wrong("is out of range", help);
    }
    Ok(value)
}

/// As it would be written.
pub(crate) fn show_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    [(30, "GiB"), (20, "MiB"), (10, "KiB")]
        .into_iter()
        .find(|(shift, _)| bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || format!("{bytes}B"),
            |(shift, unit)| format!("{}{unit}", bytes >> shift),
        )
}

/// An integer in `range`.
pub(crate) fn integer(text: &str, range: &RangeInclusive<u64>) -> Result<u64, Wrong> {
    let allowed = || format!("a whole number from {} to {}", range.start(), range.end());
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(number) if plain && range.contains(&number) => Ok(number),
        Ok(_) => Err((format!("{text} is out of range"), allowed())),
        Err(_) => match text.parse::<f64>() {
            Ok(number) if number.fract().abs() > 0.0 => {
                Err((format!("{text} is no whole number"), allowed()))
            }
            Ok(_) => Err((format!("{text} is out of range"), allowed())),
            Err(_) => Err((format!("`{text}` is no number"), allowed())),
        },
    }
}

/// A number with at most `digits` decimals, times 10^digits.
pub(crate) fn fixed(text: &str, digits: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let numeric = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !numeric(whole) || !numeric(fraction) || fraction.len() > digits {
        return None;
    }
    format!("{whole}{fraction:0<digits$}").parse().ok()
}

/// A percentage with two decimals, in hundredths: from `least` to 100.
pub(crate) fn percent(text: &str, least: u32) -> Result<u32, Wrong> {
    let wrong = |what: &str, help: String| Err((format!("`{text}` {what}"), help));
    let allowed = || format!("a number from {least} to 100, with at most two decimals");
    if let Some(number) = text.strip_suffix('%') {
        return wrong("has a percent sign", format!("write {}", number.trim()));
    }
    let number: Option<f64> = text.parse().ok();
    if let Some(number) = number.filter(|n| *n > 0.0 && *n < 1.0) {
        let shown = format!("{:.2}", number * 100.0);
        let shown = shown.trim_end_matches('0').trim_end_matches('.');
        return wrong("looks like a ratio", format!("write {shown} for {shown} %"));
    }
    match fixed(text, 2).and_then(|n| u32::try_from(n).ok()) {
        Some(bp) if (least * 100..=10_000).contains(&bp) => Ok(bp),
        _ if number.is_some() => wrong("is out of range", allowed()),
        _ => wrong("is no percentage", allowed()),
    }
}

impl Field<'_> {
    /// The text turned into a value, or the problem reported.
    pub(crate) fn convert<T>(
        &self,
        code: Code,
        convert: impl FnOnce(&str) -> Result<T, Wrong>,
    ) -> Option<T> {
        match convert(self.text()?) {
            Ok(value) => Some(value),
            Err((what, help)) => {
                self.wrong(code, &what, help);
                None
            }
        }
    }

    /// One of the words of `table`; those of `later` are not supported yet.
    pub(crate) fn word<T: Copy>(&self, table: &[(&str, T)], later: &[&str]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, value)) = table.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        if later.contains(&text) {
            let what = format!("`{text}` is not supported yet");
            self.wrong(Code::NOT_YET, &what, "choose another for now");
            return None;
        }
        let words: Vec<&str> = table.iter().map(|(word, _)| *word).collect();
        let all = match words.as_slice() {
            [only] => format!("only `{only}` is possible"),
            words => format!("one of {}", list(words)),
        };
        let near = suggest::nearest(text, words.iter().copied());
        // What switches something off elsewhere has a word here that no YAML tool takes for a switch.
        let off = is_off(text);
        let word = ["disabled", "none"].into_iter().find(|w| words.contains(w));
        let near = word.filter(|_| off).or(near);
        let help = near.map_or(all, |near| format!("did you mean `{near}`?"));
        self.wrong(
            Code::UNKNOWN_VALUE,
            &format!("unknown value `{text}`"),
            help,
        );
        None
    }
}

impl Map<'_> {
    /// A duration.
    pub(crate) fn duration(&self, key: &'static str, default: Duration, span: Span) -> Duration {
        self.declare(key, || Shape::Duration(span).default(show(default)));
        let field = self.field(key);
        let value = field.and_then(|f| f.convert(Code::DURATION, |text| duration(text, span)));
        value.unwrap_or(default)
    }

    /// An integer that fits its type.
    pub(crate) fn integer<T: TryFrom<u64> + TryInto<u64> + Copy>(
        &self,
        key: &'static str,
        default: T,
        range: &RangeInclusive<u64>,
    ) -> T {
        self.declare(key, || {
            Shape::integer(range).default(default.try_into().unwrap_or(u64::MAX))
        });
        let value = self
            .field(key)
            .and_then(|f| f.convert(Code::NUMBER, |text| integer(text, range)));
        value
            .and_then(|number| T::try_from(number).ok())
            .unwrap_or(default)
    }

    /// A size in bytes that fits its type.
    pub(crate) fn size<T: TryFrom<u64> + TryInto<u64> + Copy>(
        &self,
        key: &'static str,
        default: T,
        range: &RangeInclusive<u64>,
    ) -> T {
        self.declare(key, || {
            let default = show_size(default.try_into().unwrap_or(u64::MAX));
            Shape::Size(*range.start(), *range.end()).default(default)
        });
        let value = self
            .field(key)
            .and_then(|f| f.convert(Code::SIZE, |text| size(text, range)));
        value
            .and_then(|number| T::try_from(number).ok())
            .unwrap_or(default)
    }

    /// A percentage in hundredths.
    pub(crate) fn percent(&self, key: &'static str, default: u32, least: u32) -> u32 {
        self.declare(key, || {
            let whole = false;
            let default = match default % 100 {
                0 => (default / 100).into(),
                _ => serde_json::Value::from(f64::from(default) / 100.0),
            };
            Shape::Percent { least, whole }.default(default)
        });
        let field = self.field(key);
        let value = field.and_then(|f| f.convert(Code::PERCENT, |text| percent(text, least)));
        value.unwrap_or(default)
    }

    /// A percentage without decimals.
    pub(crate) fn whole_percent(&self, key: &'static str, default: u32) -> u32 {
        self.declare(key, || {
            let (least, whole) = (1, true);
            Shape::Percent { least, whole }.default(default)
        });
        let Some(field) = self.field(key) else {
            return default;
        };
        let allowed = || "a whole number from 1 to 100".to_owned();
        let whole = |text: &str| match percent(text, 1) {
            Ok(bp) if bp % 100 == 0 => Ok(bp / 100),
            Ok(_) => Err((format!("`{text}` has decimals"), allowed())),
            // What a ratio or a percent sign should be is told already.
            Err((what, help)) if help.starts_with("write") => Err((what, help)),
            Err((what, _)) => Err((what, allowed())),
        };
        field.convert(Code::PERCENT, whole).unwrap_or(default)
    }

    /// A switch.
    pub(crate) fn boolean(&self, key: &'static str, default: bool) -> bool {
        self.declare(key, || Shape::Boolean.default(default));
        let Some(field) = self.field(key) else {
            return default;
        };
        let read = |text: &str| {
            let help =
                |value: &str| Err((format!("`{text}` is no switch"), format!("write `{value}`")));
            match text.to_ascii_lowercase().as_str() {
                "true" => Ok(true),
                "false" => Ok(false),
                "yes" | "on" | "y" | "1" => help("true"),
                "no" | "off" | "n" | "0" => help("false"),
                _ => Err((
                    format!("`{text}` is no switch"),
                    "write `true` or `false`".to_owned(),
                )),
            }
        };
        field.convert(Code::BOOLEAN, read).unwrap_or(default)
    }

    /// A word of a closed list; those of `later` are not supported yet.
    pub(crate) fn choice<T: Copy + PartialEq>(
        &self,
        key: &'static str,
        default: T,
        table: &[(&'static str, T)],
        later: &[&str],
    ) -> T {
        self.declare(key, || {
            let named = table.iter().find(|(_, value)| *value == default);
            words(table).default(named.map(|(word, _)| *word))
        });
        self.field(key)
            .and_then(|field| field.word(table, later))
            .unwrap_or(default)
    }
}

/// What switches something off in other products.
pub(crate) fn is_off(text: &str) -> bool {
    matches!(text, "off" | "Off" | "no" | "No" | "false" | "False" | "0")
}

/// The words of a table.
pub(crate) fn words<T>(table: &[(&'static str, T)]) -> Shape {
    Shape::Words(table.iter().map(|(word, _)| *word).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let read = |text: &str| duration(text, Span::ZERO_OR_MORE);
        for (text, millis) in [
            ("250ms", 250),
            ("5s", 5000),
            ("1m30s", 90_000),
            ("1h", 3_600_000),
            ("0", 0),
            ("0s", 0),
        ] {
            assert_eq!(read(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for (text, part) in [
            ("5", "`5s` or `5ms`"),
            ("1.5s", "1500ms"),
            ("", "write it like"),
            ("s", "write it like"),
            ("1s1m", "large units first"),
            ("1s1s", "large units first"),
            ("25h", "at most"),
            ("2d", "hours"),
            ("-1s", "write it like"),
            ("99999999999999999999h", "write it like"),
            ("999999999999999999h", "at most"),
        ] {
            let (what, help) = read(text).unwrap_err();
            assert!(help.contains(part), "{text}: {what}: {help}");
        }
        assert!(duration("0", Span::POSITIVE).is_err());
    }

    #[test]
    fn sizes() {
        assert_eq!(size("64KiB", &(0..=u64::MAX)), Ok(65536));
        assert_eq!(size("0", &(0..=10)), Ok(0));
        for (text, part) in [
            ("64", "`64KiB`"),
            ("64KB", "`64KiB`"),
            ("1MB", "`1MiB`"),
            ("x", "like"),
        ] {
            assert!(
                size(text, &(0..=u64::MAX)).unwrap_err().1.contains(part),
                "{text}"
            );
        }
        assert!(size("99999999999GiB", &(0..=u64::MAX)).is_err());
    }

    #[test]
    fn percentages() {
        assert_eq!(percent("50", 1), Ok(5000));
        assert_eq!(percent("33.33", 1), Ok(3333));
        assert_eq!(percent("0", 0), Ok(0));
        for (text, least, part) in [
            ("0.5", 1, "write 50 for 50 %"),
            ("0.125", 0, "write 12.5 for 12.5 %"),
            ("0", 1, "from 1 to 100"),
            ("101", 0, "from 0 to 100"),
            ("50%", 0, "write 50"),
            ("1.234", 1, "two decimals"),
            ("-1", 0, "from 0"),
            ("nan", 0, "from 0"),
        ] {
            let (what, help) = percent(text, least).unwrap_err();
            assert!(help.contains(part), "{text}: {what}: {help}");
        }
    }
}
