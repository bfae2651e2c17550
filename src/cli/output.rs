//! How live commands print: tables for people, JSON as the admin API gives it.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use serde_json::Value;

use super::client::Failure;
use crate::config::environment::Environment;
use crate::status::{BreakerStatus, InstanceStatus, UpstreamSummary};

/// How to print.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ShowArgs {
    /// For people, or for programs.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Format,
    /// No colours; NO_COLOR does the same.
    #[arg(long)]
    pub no_color: bool,
}

/// `-o`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For people, with all columns.
    Wide,
    /// For programs.
    Json,
}

impl ShowArgs {
    /// Whether states are coloured: on a terminal that has colours and an owner who wants them.
    pub(super) fn colour(&self, env: &dyn Environment) -> bool {
        let set = |name: &str| env.variable(name).is_some_and(|value| !value.is_empty());
        let dumb = env.variable("TERM").is_none_or(|term| term == "dumb");
        !self.no_color && !set("NO_COLOR") && !dumb && io::stdout().is_terminal()
    }
}

/// Ends a command: the failure in one line on `err`, its exit code.
pub(super) fn finish(result: Result<u8, Failure>, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let result = result.and_then(|code| {
        out.flush()?;
        Ok(code)
    });
    match result {
        Ok(code) => code,
        // Who reads has seen enough, as in `outrigger events | head`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(failure) => {
            // When even this fails there is nobody to tell but by the code.
            let _lost = writeln!(err, "outrigger: {failure}");
            failure.code()
        }
    }
}

/// A JSON value over several lines.
pub(super) fn json(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(io::Error::from)?;
    Ok(out.write_all(b"\n")?)
}

/// How good a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Bad,
    Warn,
    Good,
}

/// A table whose column of states may be coloured.
#[derive(Debug)]
pub(super) struct Table {
    rows: Vec<(Vec<String>, Option<Tone>)>,
    toned: usize,
}

impl Table {
    /// With these headings; column `toned` is coloured.
    pub(super) fn new(head: &[&str], toned: usize) -> Self {
        let head = head.iter().map(|&h| h.to_owned()).collect();
        Self {
            rows: vec![(head, None)],
            toned,
        }
    }

    pub(super) fn row(&mut self, tone: Tone, cells: Vec<String>) {
        self.rows.push((cells, Some(tone)));
    }

    pub(super) fn print(&self, out: &mut dyn Write, colour: bool) -> io::Result<()> {
        let columns = self
            .rows
            .iter()
            .map(|(row, _)| row.len())
            .max()
            .unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(row, _)| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (row, tone) in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let last = column + 1 == row.len();
                let cell = if last {
                    cell.clone()
                } else {
                    format!("{cell:<width$}  ")
                };
                match tone.filter(|_| colour && column == self.toned) {
                    Some(tone) => line.push_str(&paint(&cell, tone)),
                    None => line.push_str(&cell),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

pub(super) fn paint(text: &str, tone: Tone) -> String {
    let code = match tone {
        Tone::Bad => 31,
        Tone::Warn => 33,
        Tone::Good => 32,
    };
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// A cell that is not empty.
pub(super) fn dash(text: String) -> String {
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

/// `3h 2m`, `1.5s`.
pub(super) fn age(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "-".to_owned();
    }
    if seconds < 10.0 {
        return format!("{seconds:.1}s");
    }
    let whole = Duration::try_from_secs_f64(seconds.floor()).unwrap_or(Duration::MAX);
    let text = humantime::format_duration(whole).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// An upstream in one word, and how bad that is; the worst has the lowest rank.
pub(super) fn upstream_state(upstream: &UpstreamSummary) -> (u8, Tone, &'static str) {
    let other = upstream
        .states
        .iter()
        .any(|(s, n)| s != "healthy" && *n > 0);
    if upstream.unavailable.is_some() {
        (0, Tone::Bad, "unavailable")
    } else if upstream.last_resort {
        (1, Tone::Bad, "last resort")
    } else if upstream
        .breaker
        .as_ref()
        .is_some_and(BreakerStatus::refuses)
    {
        let half = upstream
            .breaker
            .as_ref()
            .is_some_and(|b| b.state == "half_open");
        let word = if half {
            "breaker half-open"
        } else {
            "breaker open"
        };
        (1, Tone::Bad, word)
    } else if upstream.ejected > 0 {
        (2, Tone::Warn, "ejecting")
    } else if upstream.stale || upstream.held.is_some() || upstream.error.is_some() {
        (3, Tone::Warn, "stale")
    } else if other {
        (4, Tone::Warn, "reduced")
    } else {
        (5, Tone::Good, "healthy")
    }
}

/// How bad an instance is; the worst has the lowest rank.
pub(super) fn instance_rank(instance: &InstanceStatus) -> (u8, Tone) {
    match &*instance.state {
        "ejected" => (0, Tone::Bad),
        "probing" => (1, Tone::Warn),
        "unhealthy" => (2, Tone::Bad),
        "healthy" if instance.suppressed_by.is_some() => (3, Tone::Warn),
        "draining" => (4, Tone::Warn),
        "disabled" => (5, Tone::Warn),
        _ => (6, Tone::Good),
    }
}

/// The worst first, then those with the most errors, then by address.
pub(super) fn sort_instances(instances: &mut [InstanceStatus]) {
    instances.sort_by(|a, b| {
        let rank = instance_rank(a).0.cmp(&instance_rank(b).0);
        let errors = b.error_rate_pct.total_cmp(&a.error_rate_pct);
        rank.then(errors).then(a.instance.cmp(&b.instance))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_colour_takes_no_room() {
        let mut table = Table::new(&["a", "state", "why"], 1);
        table.row(
            Tone::Bad,
            vec!["xyz".into(), "out".into(), "because".into()],
        );
        let print = |colour| {
            let mut out = Vec::new();
            table.print(&mut out, colour).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(false), "a    state  why\nxyz  out    because\n");
        assert!(print(true).ends_with("xyz  \u{1b}[31mout    \u{1b}[0mbecause\n"));
    }

    #[test]
    fn ages() {
        let shown = [0.04, 9.99, 59.9, 3725.0, 1e6, -1.0, f64::NAN].map(age);
        assert_eq!(
            shown,
            ["0.0s", "10.0s", "59s", "1h 2m", "11days 13h", "-", "-"]
        );
    }
}
