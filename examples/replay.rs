//! `cargo run --example replay -- [--print | --rewrite] FILE...`: replays recorded histories through
//! the outlier detector. Without a flag it compares what happens with what each file expects:
//! `PASS FILE`, or `FAIL FILE:line` with both lines; exit code 1 on a difference. `--print` prints
//! what happens as JSON lines, `--rewrite` the whole trace with what happens now.

use std::io::Write;
use std::process::ExitCode;

use outrigger::outlier::replay::{self, ReplayError};

fn main() -> std::io::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut mode = Mode::Check;
    let mut files = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--print" => mode = Mode::Print,
            "--rewrite" => mode = Mode::Rewrite,
            _ => files.push(argument),
        }
    }
    if files.is_empty() {
        writeln!(out, "usage: replay [--print | --rewrite] FILE...")?;
        return Ok(ExitCode::from(2));
    }
    let mut failed = false;
    for file in files {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => {
                writeln!(out, "FAIL {file}: {error}")?;
                failed = true;
                continue;
            }
        };
        let lines = match mode {
            Mode::Check => replay::check(&text).map(|()| vec![format!("PASS {file}")]),
            Mode::Print => replay::effects(&text),
            Mode::Rewrite => replay::rewrite(&text),
        };
        match lines {
            Ok(lines) => {
                for line in lines {
                    writeln!(out, "{line}")?;
                }
            }
            Err(error) => {
                failed = true;
                report(&mut out, &file, &error)?;
            }
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[derive(Clone, Copy)]
enum Mode {
    Check,
    Print,
    Rewrite,
}

fn report(out: &mut impl Write, file: &str, error: &ReplayError) -> std::io::Result<()> {
    writeln!(out, "FAIL {file}:{}", error.line())?;
    match error {
        ReplayError::Differs {
            expected, actual, ..
        } => {
            writeln!(out, "  expected: {expected}")?;
            writeln!(out, "  actual:   {actual}")
        }
        ReplayError::Malformed { problem, .. } => writeln!(out, "  {problem}"),
    }
}
