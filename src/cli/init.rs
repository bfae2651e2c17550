//! `outrigger init`: starter files. Nothing that exists is overwritten; when one of the files is
//! there, none is written.

mod from_env;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::client::Failure;
use super::output::finish;
use crate::config::environment::Environment;

/// Write starter files; refuses to overwrite.
#[derive(Clone, Debug, Default, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag")]
pub struct InitArgs {
    /// Where to.
    #[arg(default_value = ".")]
    pub folder: PathBuf,
    /// Take registry and name of the app from variables that Spring Cloud, Nacos and others use.
    #[arg(long)]
    pub from_env: bool,
    /// With a Deployment that has the sidecar.
    #[arg(long, group = "kind")]
    pub k8s: bool,
    /// With a unit.
    #[arg(long, group = "kind")]
    pub systemd: bool,
    /// With a compose file.
    #[arg(long, group = "kind")]
    pub compose: bool,
}

/// Runs the command; returns the exit code.
pub fn run(args: &InitArgs, env: &dyn Environment, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    finish(write(args, env, out), out, err)
}

fn write(args: &InitArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let found = if args.from_env {
        from_env::look(env)
    } else {
        from_env::Found::default()
    };
    let mut files = vec![
        ("outrigger.yaml", main_file(&found, args.k8s)),
        ("policies/default.yaml", POLICY.to_owned()),
    ];
    let extra = [
        (args.k8s, "outrigger-k8s.yaml", K8S),
        (args.systemd, "outrigger.service", SYSTEMD),
        (args.compose, "compose.yaml", COMPOSE),
    ];
    for (wanted, name, text) in extra {
        if wanted {
            files.push((name, text.to_owned()));
        }
    }
    let mut there = files.iter().map(|(name, _)| args.folder.join(name));
    if let Some(path) = there.find(|path| path.symlink_metadata().is_ok()) {
        let message = format!(
            "{} exists, so nothing is written; remove it, or name another folder",
            path.display()
        );
        return Err(Failure::Local(message));
    }
    for (name, text) in &files {
        let path = args.folder.join(name);
        put(&path, text)
            .map_err(|error| Failure::Local(format!("cannot write {}: {error}", path.display())))?;
        writeln!(out, "wrote {}", path.display())?;
    }
    for note in &found.notes {
        writeln!(out, "note: {note}")?;
    }
    let main = args.folder.join("outrigger.yaml");
    let main = main.display();
    writeln!(
        out,
        "next: outrigger check {main} && outrigger run -c {main}"
    )?;
    Ok(0)
}

fn put(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}

fn main_file(found: &from_env::Found, in_a_pod: bool) -> String {
    let name = found.name.as_deref().map_or_else(
        || {
            "  # name: web                     # consumer name in policies; default the host name\n"
                .to_owned()
        },
        |variable| format!("  name: ${{{variable}:-}}\n"),
    );
    let registry = found.registry.as_deref().unwrap_or(EMBEDDED);
    let default = if found.registry.is_some() {
        "nacos"
    } else {
        "embedded"
    };
    let namespace = if in_a_pod {
        "  namespace: ${POD_NAMESPACE:-}\n"
    } else {
        ""
    };
    format!(
        "# Outrigger, main file. What is not written has its default; `outrigger docs config` lists\n\
         # every key, `outrigger schema > outrigger.v1.json` writes a schema for editors.\n\
         version: 1\n\
         \n\
         listen: localhost:15001           # where the app sends its requests: http://localhost:15001/orders/...\n\
         \n\
         app:                              # the local application\n\
         {name}{namespace}  \
         shutdown: {{drain_timeout: 25s}}\n\
         \n\
         registries:\n{registry}\n\
         defaults:                         # for every service\n  \
         registry: {default}\n  \
         timeout: {{connect: 3s}}\n  \
         retry: {{max_attempts: 2}}\n\
         \n\
         services: {{}}                      # names of the registry need not be listed\n\
         #  orders:\n\
         #    timeout: {{request: 2s}}\n\
         #    health_check: {{http: /health}}\n\
         \n\
         policies: ./policies/*.yaml       # ejection policies, read again on SIGHUP\n"
    )
}

const EMBEDDED: &str = "  embedded:\n    kind: embedded                # our own, with heartbeats (Nacos v1 API)\n    \
                        listen: 127.0.0.1:15005\n";
const POLICY: &str = include_str!("init/policy.yaml");
const K8S: &str = include_str!("init/k8s.yaml");
const SYSTEMD: &str = include_str!("init/outrigger.service");
const COMPOSE: &str = include_str!("init/compose.yaml");
