//! `outrigger status`.

use std::io::{self, Write};

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, Tone, age, finish, json, paint, upstream_state};
use super::upstreams;
use super::watch::{WatchArgs, watched};
use crate::config::environment::Environment;
use crate::status::{ConfigStatus, ProcessStatus, RegistryStatus};

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct StatusArgs {
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
    /// Whether to go on.
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &StatusArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(args: &StatusArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    watched(&args.watch, &client, out, |out| {
        let answer = client.get("/api/v1/status")?;
        match args.show.output {
            Format::Json => json(out, &answer)?,
            Format::Table | Format::Wide => {
                print(&client.read(&answer)?, out, args.show.colour(env))?;
            }
        }
        Ok(())
    })
}

fn print(status: &ProcessStatus, out: &mut dyn Write, colour: bool) -> io::Result<()> {
    let (tone, ready) = match status.ready {
        true => (Tone::Good, "ready"),
        false => (Tone::Bad, "not ready"),
    };
    let ready = if colour {
        paint(ready, tone)
    } else {
        ready.to_owned()
    };
    let uptime = age(status.uptime_s as f64);
    let (version, phase, pid) = (&status.version, &status.phase, status.pid);
    writeln!(
        out,
        "outrigger {version}: {phase}, {ready} (pid {pid}, up {uptime})"
    )?;
    for condition in status.conditions.iter().filter(|c| c.failing) {
        writeln!(
            out,
            "  not ready: {}: {}",
            condition.name, condition.message
        )?;
    }
    let addresses = status
        .listeners
        .iter()
        .map(|(name, at)| format!("{name} {}", at.join(", ")));
    field(out, "listeners", &addresses.collect::<Vec<_>>().join("; "))?;
    configuration(&status.config, out)?;
    for registry in &status.registries {
        field(out, "registry", &registry_line(registry))?;
    }
    if !status.alias_conflicts.is_empty() {
        let names = status.alias_conflicts.join(", ");
        field(
            out,
            "conflicts",
            &format!("{names}: wanted by several services, so none has it"),
        )?;
    }
    let bad = |u: &&_| upstream_state(u).0 < 5;
    let worse: Vec<_> = status.upstreams.iter().filter(bad).cloned().collect();
    let all = status.upstreams.len();
    if worse.is_empty() {
        return field(out, "upstreams", &format!("{all}, nothing wrong"));
    }
    field(
        out,
        "upstreams",
        &format!("{all}, {} not wholly healthy:", worse.len()),
    )?;
    writeln!(out)?;
    upstreams::table(worse, false).print(out, colour)
}

fn configuration(config: &ConfigStatus, out: &mut dyn Write) -> io::Result<()> {
    let file = config.file.as_deref().unwrap_or("no file, the defaults");
    let hash: String = config.hash.chars().take(12).collect();
    let loaded = &config.loaded_at;
    field(
        out,
        "config",
        &format!("{file}, loaded {loaded}, hash {hash}"),
    )?;
    if !config.last_reload_ok {
        let what = if config.rejected_files.is_empty() {
            "the last reload was refused, the configuration before it is in force:"
        } else {
            "the last reload rejected policy files; their last good versions stay:"
        };
        field(out, "", what)?;
        for problem in &config.last_problems {
            field(out, "", &format!("  {problem}"))?;
        }
    }
    let rejected = config.rejected_files.len();
    let active = config.policy_files.len();
    field(
        out,
        "policies",
        &format!("{active} files in force, {rejected} rejected"),
    )?;
    for file in &config.rejected_files {
        for problem in &file.problems {
            field(out, "", &format!("  {problem}"))?;
        }
    }
    if !config.restart_required.is_empty() {
        let keys = config.restart_required.join(", ");
        field(out, "restart", &format!("needed for {keys}"))?;
    }
    Ok(())
}

fn registry_line(registry: &RegistryStatus) -> String {
    let (name, kind) = (&registry.name, &registry.kind);
    let state = if registry.up { "up" } else { "DOWN" };
    let answer = match registry.age_s {
        Some(seconds) => format!("answered {} ago", age(seconds)),
        None => "never answered".to_owned(),
    };
    let mut line = format!("{name} ({kind}) {state}, {answer}");
    if registry.stale {
        line.push_str(", stale");
    }
    if registry.protected {
        line.push_str(", its health flags are not to be trusted now");
    }
    if let Some(error) = registry.last_error.as_ref().filter(|_| !registry.up) {
        line.push_str(&format!(": {error}"));
    }
    line
}

fn field(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    writeln!(out, "  {name:<10} {text}")
}
