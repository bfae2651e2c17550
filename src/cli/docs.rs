//! `outrigger docs`: the reference of this very version, without a network.

use std::io::Write;

use super::output::finish;
use crate::cli::client::Failure;
use crate::cli::config::text;
use crate::config::diagnostic::Code;
use crate::config::schema::{Kind, keys};
use crate::error::Reason;

/// Print the reference of this version.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DocsArgs {
    /// Which part.
    #[arg(value_enum, default_value = "config")]
    pub topic: Topic,
}

/// Parts of the reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Topic {
    /// Every metric.
    Metrics,
    /// Every event.
    Events,
    /// Every code of a configuration problem, and every reason of an own answer.
    Errors,
    /// Every key of the files with what it takes and its default.
    #[default]
    Config,
}

/// Runs the command; returns the exit code.
pub fn run(args: &DocsArgs, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let printed = match args.topic {
        Topic::Metrics => out.write_all(METRICS.as_bytes()).map_err(Failure::from),
        Topic::Events => out.write_all(EVENTS.as_bytes()).map_err(Failure::from),
        Topic::Errors => errors(out),
        Topic::Config => config(out),
    };
    finish(printed.map(|()| 0), out, err)
}

const METRICS: &str = include_str!("../../docs/metrics.md");
const EVENTS: &str = include_str!("../../docs/events.md");

fn errors(out: &mut dyn Write) -> Result<(), Failure> {
    writeln!(out, "# Problems of the configuration\n")?;
    for code in Code::ALL {
        let kind = if code.is_warning() {
            "warning"
        } else {
            "error"
        };
        writeln!(out, "{code} ({kind})\n    {}", code.explain())?;
    }
    writeln!(
        out,
        "\n# Answers of Outrigger itself: x-outrigger-reason, HTTP status, gRPC code\n"
    )?;
    for reason in Reason::ALL {
        let (word, status) = (reason.as_str(), reason.status().as_u16());
        writeln!(out, "{word:<22} {status}  {}", reason.grpc_code())?;
    }
    writeln!(out, "\nWhat to do about each: docs/operations.md")?;
    Ok(())
}

fn config(out: &mut dyn Write) -> Result<(), Failure> {
    let parts = [
        (Kind::Outrigger, "Main file (outrigger.yaml)"),
        (Kind::Policy, "Ejection policies (policies/*.yaml)"),
        (Kind::Endpoints, "Endpoints files (registries of kind file)"),
    ];
    for (n, (kind, title)) in parts.into_iter().enumerate() {
        writeln!(out, "{}# {title}\n", if n == 0 { "" } else { "\n" })?;
        for key in keys(kind) {
            let default = if key.default.is_null() {
                String::new()
            } else {
                format!("; default {}", text(&key.default))
            };
            writeln!(
                out,
                "{}\n    {}\n    {}{default}",
                key.path, key.text, key.takes
            )?;
        }
    }
    Ok(())
}
