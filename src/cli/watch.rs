//! `--watch`: the same again and again, redrawn on a terminal, one block after the other elsewhere.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use super::client::{AdminClient, Failure};

/// Whether to go on.
#[derive(Clone, Debug, clap::Args)]
pub struct WatchArgs {
    /// Show it again and again, until Ctrl-C.
    #[arg(short, long)]
    pub watch: bool,
    /// Between two looks with --watch.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
}

impl Default for WatchArgs {
    fn default() -> Self {
        Self {
            watch: false,
            interval: Duration::from_secs(2),
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    crate::config::duration(text).map_err(|(what, hint)| format!("{what}: {hint}"))
}

/// Shows once, or until somebody interrupts.
pub(super) fn watched(
    args: &WatchArgs,
    client: &AdminClient,
    out: &mut dyn Write,
    mut show: impl FnMut(&mut dyn Write) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    if !args.watch {
        show(out)?;
        return Ok(0);
    }
    let redraw = io::stdout().is_terminal();
    loop {
        // Whole blocks, so that a terminal does not flicker and a failure leaves no half.
        let mut block = Vec::new();
        show(&mut block)?;
        if redraw {
            out.write_all(b"\x1b[H\x1b[2J")?;
        }
        out.write_all(&block)?;
        if !redraw {
            out.write_all(b"\n")?;
        }
        out.flush()?;
        if client.interrupted_within(args.interval)? {
            return Ok(0);
        }
    }
}
