//! How a scrape is written: the text format of Prometheus or OpenMetrics 1.0, by what the scraper
//! asks for. The two differ in the names of counters' metadata, in units and in the end mark.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use super::names::Family;
use super::sheet::Sample;

/// A text format of scrapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The text format of Prometheus, 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// What `Accept` prefers. Whoever asks for neither gets [`Format::Text`].
    pub fn negotiate(accept: &str) -> Self {
        let (mut text, mut open) = (0.0_f32, 0.0_f32);
        for item in accept.split(',') {
            let mut parts = item.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut version) = (1.0, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                let value = value.trim().trim_matches('"');
                match &*name.trim().to_ascii_lowercase() {
                    "q" => weight = value.parse().unwrap_or(0.0),
                    "version" => version = Some(value),
                    _ => {}
                }
            }
            match &*media {
                "application/openmetrics-text" if version.is_none_or(|v| v == "1.0.0") => {
                    open = open.max(weight);
                }
                "text/plain" | "text/*" | "*/*" => text = text.max(weight),
                _ => {}
            }
        }
        if open > 0.0 && open >= text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Writes a family with its series.
    pub(super) fn family(
        self,
        out: &mut String,
        family: &Family,
        series: &BTreeMap<Vec<String>, Sample>,
    ) {
        let written = self.try_family(out, family, series);
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
    }

    /// What comes after the last family.
    pub(super) fn end(self, out: &mut String) {
        match self {
            Self::Text => {}
            Self::OpenMetrics => out.push_str("# EOF\n"),
        }
    }

    fn try_family(
        self,
        out: &mut String,
        family: &Family,
        series: &BTreeMap<Vec<String>, Sample>,
    ) -> fmt::Result {
        let (name, kind) = (family.name, family.kind.as_str());
        match self {
            Self::Text => {
                writeln!(out, "# HELP {name} {}", Escaped(family.help, false))?;
                writeln!(out, "# TYPE {name} {kind}")?;
            }
            Self::OpenMetrics => {
                let name = family.stem();
                writeln!(out, "# TYPE {name} {kind}")?;
                if let Some(unit) = family.unit() {
                    writeln!(out, "# UNIT {name} {unit}")?;
                }
                writeln!(out, "# HELP {name} {}", Escaped(family.help, true))?;
            }
        }
        for (values, sample) in series {
            let labels = Labels(family.labels, values);
            match sample {
                Sample::Value(value) => {
                    labels.write(out, name, "", None)?;
                    writeln!(out, " {}", Number(*value))?;
                }
                Sample::Histogram {
                    buckets,
                    bounds,
                    sum,
                } => {
                    let mut below = 0_u64;
                    for (count, bound) in buckets.iter().zip(bounds) {
                        below = below.saturating_add(*count);
                        labels.write(out, name, "_bucket", Some(&self.bound(*bound)))?;
                        writeln!(out, " {below}")?;
                    }
                    let all = buckets
                        .iter()
                        .fold(0, |n: u64, more| n.saturating_add(*more));
                    labels.write(out, name, "_bucket", Some("+Inf"))?;
                    writeln!(out, " {all}")?;
                    labels.write(out, name, "_sum", None)?;
                    writeln!(out, " {}", Number(*sum))?;
                    labels.write(out, name, "_count", None)?;
                    writeln!(out, " {all}")?;
                }
            }
        }
        Ok(())
    }

    /// A bucket's bound. OpenMetrics wants whole ones as floats too.
    fn bound(self, bound: f64) -> String {
        let text = Number(bound).to_string();
        match self {
            Self::OpenMetrics if !text.contains('.') => text + ".0",
            Self::OpenMetrics | Self::Text => text,
        }
    }
}

/// Names and values of labels.
struct Labels<'a>(&'a [&'a str], &'a [String]);

impl Labels<'_> {
    fn write(&self, out: &mut String, name: &str, suffix: &str, le: Option<&str>) -> fmt::Result {
        write!(out, "{name}{suffix}")?;
        let mut between = '{';
        let pairs = self.0.iter().copied();
        let pairs = pairs.zip(self.1.iter().map(String::as_str));
        // To Prometheus an empty label is none.
        let pairs = pairs.filter(|(_, value)| !value.is_empty());
        for (label, value) in pairs.chain(le.map(|le| ("le", le))) {
            write!(out, "{between}{label}=\"{}\"", Escaped(value, true))?;
            between = ',';
        }
        if between == ',' {
            out.push('}');
        }
        Ok(())
    }
}

/// Text with line ends, backslashes and, if so said, quotes escaped.
struct Escaped<'a>(&'a str, bool);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.1 => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_infinite() {
            f.write_str(if self.0 > 0.0 { "+Inf" } else { "-Inf" })
        } else {
            write!(f, "{}", self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::names::Kind;

    const COUNTER: Family = Family {
        name: "x_cpu_seconds_total",
        kind: Kind::Counter,
        labels: &["a"],
        help: "Says \"it\" \\ so.\nTwice.",
    };
    const HISTOGRAM: Family = Family {
        name: "x_time_seconds",
        kind: Kind::Histogram,
        labels: &[],
        help: "Time.",
    };

    fn written(format: Format, family: &Family, labels: &[&str], sample: Sample) -> String {
        let labels = labels.iter().map(|&l| l.to_owned()).collect();
        let mut out = String::new();
        format.family(&mut out, family, &BTreeMap::from([(labels, sample)]));
        format.end(&mut out);
        out
    }

    #[test]
    fn a_counter_in_both_formats() {
        let sample = || Sample::Value(2.5);
        let labels = ["q\"b\\n\n"];
        assert_eq!(
            written(Format::Text, &COUNTER, &labels, sample()),
            "# HELP x_cpu_seconds_total Says \"it\" \\\\ so.\\nTwice.\n\
             # TYPE x_cpu_seconds_total counter\n\
             x_cpu_seconds_total{a=\"q\\\"b\\\\n\\n\"} 2.5\n"
        );
        assert_eq!(
            written(Format::OpenMetrics, &COUNTER, &labels, sample()),
            "# TYPE x_cpu_seconds counter\n\
             # UNIT x_cpu_seconds seconds\n\
             # HELP x_cpu_seconds Says \\\"it\\\" \\\\ so.\\nTwice.\n\
             x_cpu_seconds_total{a=\"q\\\"b\\\\n\\n\"} 2.5\n# EOF\n"
        );
    }

    #[test]
    fn a_histogram_is_cumulative_and_ends_with_infinity() {
        let sample = Sample::Histogram {
            buckets: vec![1, 2, 4],
            bounds: vec![0.5, 1.0],
            sum: 9.0,
        };
        let text = written(Format::Text, &HISTOGRAM, &[], sample.clone());
        let (_, samples) = text.split_once("histogram\n").unwrap();
        assert_eq!(
            samples,
            "x_time_seconds_bucket{le=\"0.5\"} 1\nx_time_seconds_bucket{le=\"1\"} 3\n\
             x_time_seconds_bucket{le=\"+Inf\"} 7\nx_time_seconds_sum 9\nx_time_seconds_count 7\n"
        );
        let open = written(Format::OpenMetrics, &HISTOGRAM, &[], sample);
        assert!(open.contains("{le=\"1.0\"} 3\n"), "{open}");
    }

    #[test]
    fn numbers_beyond_all_bounds_have_their_words() {
        for (value, text) in [
            (f64::INFINITY, "+Inf"),
            (f64::NEG_INFINITY, "-Inf"),
            (f64::NAN, "NaN"),
            (1e15, "1000000000000000"),
        ] {
            assert_eq!(Number(value).to_string(), text);
        }
    }

    #[test]
    fn who_asks_for_openmetrics_gets_it() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, want) in [
            (prometheus, Format::OpenMetrics),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text; Version=\"1.0.0\"",
                Format::OpenMetrics,
            ),
            (
                "text/plain;q=0.5, application/openmetrics-text;q=0.6",
                Format::OpenMetrics,
            ),
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/html,*/*;q=0.8", Format::Text),
            (
                "application/openmetrics-text;q=0.4, text/plain",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=nonsense", Format::Text),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/json", Format::Text),
        ] {
            assert_eq!(Format::negotiate(accept), want, "{accept}");
        }
    }
}
