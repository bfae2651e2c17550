//! `outrigger registries`: where instances come from, and where the app is registered.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, Table, Tone, age, finish, json};
use crate::admin::views::{Registrations, Registries};
use crate::config::environment::Environment;
use crate::status::{RegistrationStatus, RegistryStatus};

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RegistriesArgs {
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &RegistriesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(args: &RegistriesArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let answer = client.get("/api/v1/registries")?;
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => {
            let mut list = client.read::<Registries>(&answer)?.registries;
            list.sort_by(|a, b| {
                state(a)
                    .0
                    .cmp(&state(b).0)
                    .then_with(|| a.name.cmp(&b.name))
            });
            if list.is_empty() {
                writeln!(out, "no registries; all endpoints are static")?;
            } else {
                table(list).print(out, args.show.colour(env))?;
            }
            let answer = client.get("/api/v1/registrations")?;
            let own = client.read::<Registrations>(&answer)?;
            if !own.registrations.is_empty() {
                let checks = own.app.checks.join("; ");
                let said = if checks.is_empty() {
                    "no check is configured"
                } else {
                    &checks
                };
                writeln!(out, "\nthe app is {}: {said}", own.app.state)?;
                registered(own.registrations).print(out, args.show.colour(env))?;
            }
        }
    }
    Ok(0)
}

fn state(registry: &RegistryStatus) -> (u8, Tone, &'static str) {
    if !registry.up {
        (0, Tone::Bad, "down")
    } else if registry.stale {
        (1, Tone::Warn, "stale")
    } else if registry.protected {
        (2, Tone::Warn, "protected")
    } else {
        (3, Tone::Good, "up")
    }
}

fn registered(registrations: Vec<RegistrationStatus>) -> Table {
    let head = [
        "REGISTERED AS",
        "STATE",
        "REGISTRY",
        "ADDRESS",
        "LAST ANSWER",
        "HEARTBEATS",
        "LAST ERROR",
    ];
    let mut table = Table::new(&head, 1);
    for one in registrations {
        let tone = match (one.up, &*one.state) {
            (true, _) => Tone::Good,
            (false, "starting" | "down") => Tone::Warn,
            (false, _) => Tone::Bad,
        };
        let ago = |seconds| format!("{} ago", age(seconds));
        let beats = match one.failed_heartbeats {
            0 => one.heartbeats.to_string(),
            failed => format!("{}, {failed} failed", one.heartbeats),
        };
        table.row(
            tone,
            vec![
                one.service,
                one.state,
                one.registry,
                one.address,
                one.age_s.map_or_else(|| "never".to_owned(), ago),
                beats,
                one.last_error.unwrap_or_default(),
            ],
        );
    }
    table
}

fn table(registries: Vec<RegistryStatus>) -> Table {
    let head = [
        "REGISTRY",
        "STATE",
        "KIND",
        "LAST ANSWER",
        "SUBSCRIPTIONS",
        "UPDATES",
        "LAST ERROR",
    ];
    let mut table = Table::new(&head, 1);
    for registry in registries {
        let (_, tone, state) = state(&registry);
        let updates = registry.updates.iter().filter(|(_, count)| **count > 0);
        let updates: Vec<_> = updates.map(|(result, n)| format!("{n} {result}")).collect();
        let ago = |seconds| format!("{} ago", age(seconds));
        table.row(
            tone,
            vec![
                registry.name,
                state.to_owned(),
                registry.kind,
                registry.age_s.map_or_else(|| "never".to_owned(), ago),
                registry.subscriptions.to_string(),
                updates.join(", "),
                registry.last_error.unwrap_or_default(),
            ],
        );
    }
    table
}
