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
    for one in &status.registrations {
        let (service, registry, state) = (&one.service, &one.registry, &one.state);
        let error = one.last_error.as_ref().filter(|_| !one.up);
        let error = error.map(|error| format!(": {error}")).unwrap_or_default();
        let line = format!("{service} with {registry}, {state}{error}");
        field(out, "registered", &line)?;
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
        // Not more than that while a file is rejected.
        let good = status.config.last_reload_ok && status.config.rejected_files.is_empty();
        let verdict = if good { "nothing wrong" } else { "all healthy" };
        return field(out, "upstreams", &format!("{all}, {verdict}"));
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
            "the last reload rejected policy files"
        };
        field(out, "", what)?;
        // What is wrong with a policy file is told below.
        let below = |p: &&String| config.rejected_files.iter().any(|f| f.problems.contains(p));
        for problem in config.last_problems.iter().filter(|p| !below(p)) {
            field(out, "", &format!("  {problem}"))?;
        }
    }
    field(out, "policies", &policy_files(config))?;
    for file in &config.rejected_files {
        if !file.fate.is_empty() {
            field(out, "", &file.fate)?;
        }
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

/// How many policy files hold, and in which version.
fn policy_files(config: &ConfigStatus) -> String {
    let rejected = config.rejected_files.len();
    let held = config.rejected_files.iter().filter(|f| f.last_good_holds);
    let (as_written, held) = (config.policy_files.len(), held.count());
    let all = as_written + held;
    let noun = if all == 1 { "file" } else { "files" };
    let versions = match (as_written, held) {
        (_, 0) => String::new(),
        (0, _) => " (last good version)".to_owned(),
        (_, held) => format!(" ({held} in its last good version)"),
    };
    format!("{all} {noun} in force{versions}, {rejected} rejected")
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
    match registry.cached {
        0 => {}
        1 => line.push_str(", 1 service from the cache"),
        n => line.push_str(&format!(", {n} services from the cache")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::RejectedFile;
    use crate::testing::status::process;

    #[test]
    fn a_rejected_policy_file_is_told_once_with_what_holds() {
        let shown = |status: &ProcessStatus| {
            let mut out = Vec::new();
            print(status, &mut out, false).unwrap();
            String::from_utf8(out).unwrap()
        };
        let mut status = process();
        let out = shown(&status);
        assert!(
            out.contains("policies   1 file in force, 0 rejected"),
            "{out}"
        );
        assert!(out.contains("0, nothing wrong"), "{out}");
        let problem = "policies/p.yaml:2:3: unknown field";
        status.config.last_reload_ok = false;
        status.config.last_problems = vec![problem.to_owned(), "m.yaml: a warning".to_owned()];
        status.config.policy_files.clear();
        status.config.rejected_files = vec![RejectedFile {
            file: "policies/p.yaml".to_owned(),
            problems: vec![problem.to_owned()],
            fate: "policies/p.yaml rejected; its previous version stays active".to_owned(),
            last_good_holds: true,
        }];
        let out = shown(&status);
        assert!(
            out.contains("1 file in force (last good version), 1 rejected"),
            "{out}"
        );
        assert_eq!(out.matches(problem).count(), 1, "{out}");
        assert!(out.contains("m.yaml: a warning"), "{out}");
        assert!(out.contains("its previous version stays active"), "{out}");
        assert!(!out.contains("nothing wrong"), "{out}");
        status.config.policy_files = vec!["policies/q.yaml".to_owned()];
        let out = shown(&status);
        assert!(
            out.contains("2 files in force (1 in its last good version), 1 rejected"),
            "{out}"
        );
        status.config.rejected_files[0].last_good_holds = false;
        let out = shown(&status);
        assert!(out.contains("1 file in force, 1 rejected"), "{out}");
    }
}
