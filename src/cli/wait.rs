//! `outrigger wait`: a gate for whatever needs a running proxy. Asks as `outrigger healthcheck` does,
//! again and again.

use std::io::Write;
use std::time::Duration;

use super::client::ConnectArgs;
use super::healthcheck::{self, HealthcheckArgs};
use crate::clock::Clock;
use crate::config::environment::Environment;

/// Between two questions.
const STEP: Duration = Duration::from_millis(200);

/// Arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct WaitArgs {
    /// Give up after this time.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    pub timeout: Duration,
    /// The telemetry listener, HOST:PORT or unix:PATH; else `telemetry.listen` of the configuration
    /// file, else 127.0.0.1:15003.
    #[arg(long, value_name = "ADDR")]
    pub telemetry: Option<String>,
    /// Wait for the app, as its check sees it.
    #[arg(long)]
    pub app: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs the command; returns the exit code: 0 ready, 5 not ready in time, 6 nobody answered.
pub fn run(args: &WaitArgs, env: &dyn Environment, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let ask = HealthcheckArgs {
        telemetry: args.telemetry.clone(),
        app: args.app,
        connect: args.connect.clone(),
    };
    let clock = Clock::new();
    let started = clock.now();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    else {
        return 1;
    };
    loop {
        // Only the last answer is of interest.
        let (mut said, mut complaint) = (Vec::new(), Vec::new());
        let code = healthcheck::run(&ask, env, &mut said, &mut complaint);
        let over = clock.now().since(started) >= args.timeout;
        if over || !matches!(code, 5 | 6) {
            let told = out
                .write_all(&said)
                .and_then(|()| err.write_all(&complaint));
            return if told.is_err() { 1 } else { code };
        }
        runtime.block_on(async { tokio::time::sleep(STEP).await });
    }
}
