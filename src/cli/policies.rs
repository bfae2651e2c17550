//! `outrigger policies`: which ejection policy holds for whom, and why. From the files, or from the
//! running process.

use std::io::Write;
use std::sync::Arc;

use serde_json::Value;

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::config::text;
use super::output::{Format, ShowArgs, Table, Tone, finish, json};
use crate::config::effective::{Effective, Policies, PolicyView, effective, policies};
use crate::config::environment::Environment;
use crate::config::suggest::nearest;
use crate::config::types::Config;
use crate::config::{LoadRequest, load};

/// Look at the ejection policies.
#[derive(Clone, Debug, clap::Args)]
pub struct PoliciesArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PoliciesCommand,
}

/// What to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum PoliciesCommand {
    /// All policies, in the order in which they are read.
    List(PoliciesListArgs),
    /// The policy that holds for an upstream, why it does and the others do not, how many
    /// instances may be out.
    Explain(PoliciesExplainArgs),
}

/// Where policies are looked for.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PoliciesListArgs {
    /// Of the running process instead of the files.
    #[arg(long)]
    pub running: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Arguments of `policies explain`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct PoliciesExplainArgs {
    /// The upstream.
    pub upstream: String,
    /// Where to look.
    #[command(flatten)]
    pub at: PoliciesListArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &PoliciesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = match &args.command {
        PoliciesCommand::List(args) => list(args, env, out, err),
        PoliciesCommand::Explain(args) => explain(args, env, out, err),
    };
    finish(result, out, err)
}

/// What was found, as it came and as a value.
fn find<T: serde::Serialize + serde::de::DeserializeOwned>(
    args: &PoliciesListArgs,
    (env, err): (&dyn Environment, &mut dyn Write),
    path: &str,
    offline: impl FnOnce(&Config) -> Result<T, Failure>,
) -> Result<Option<(Value, T)>, Failure> {
    if args.running {
        let client = AdminClient::find(&args.connect, env)?;
        let answer = client.get(path)?;
        let read = client.read(&answer)?;
        return Ok(Some((answer, read)));
    }
    let loaded = load(LoadRequest::new(args.connect.config.clone(), env));
    write!(err, "{}", loaded.diagnostics)?;
    let Some(config) = loaded.config else {
        return Ok(None);
    };
    let found = offline(&config)?;
    let answer = serde_json::to_value(&found).map_err(std::io::Error::from)?;
    Ok(Some((answer, found)))
}

fn list(
    args: &PoliciesListArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let offline = |config: &Config| Ok(policies(config));
    let found = find(args, (env, err), "/api/v1/policies", offline)?;
    let Some((answer, found)) = found else {
        return Ok(3);
    };
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => table(&found, out, args.show.colour(env))?,
    }
    Ok(0)
}

fn table(found: &Policies, out: &mut dyn Write, colour: bool) -> Result<(), Failure> {
    let head = [
        "policy",
        "mode",
        "upstreams",
        "consumers",
        "failures",
        "removal",
        "from",
    ];
    let mut table = Table::new(&head, 1);
    for policy in &found.policies {
        let of = |key: &str| value(policy, key);
        let tone = match of("mode").as_str() {
            "enforce" => Tone::Good,
            _ => Tone::Warn,
        };
        table.row(
            tone,
            vec![
                policy.name.clone(),
                of("mode"),
                of("apply_to.upstreams"),
                of("apply_to.consumers"),
                format!("> {} %", of("error_rate_threshold")),
                format!("{} %", of("instance_removal_rate_threshold")),
                policy.origin.clone(),
            ],
        );
    }
    table.print(out, colour)?;
    let none = "(no policy: the built-in one holds for all)";
    if found.policies.is_empty() {
        writeln!(out, "{none}")?;
    }
    for rejected in &found.rejected {
        writeln!(out, "\nrejected: {}", rejected.file)?;
        for problem in &rejected.problems {
            writeln!(out, "  {problem}")?;
        }
    }
    Ok(())
}

fn value(policy: &PolicyView, key: &str) -> String {
    let found = policy.settings.iter().find(|setting| setting.key == key);
    found.map_or_else(String::new, |setting| {
        let items = setting.value.as_array().map(|items| items.iter().map(text));
        items.map_or_else(
            || text(&setting.value),
            |items| items.collect::<Vec<_>>().join(" "),
        )
    })
}

fn explain(
    args: &PoliciesExplainArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Result<u8, Failure> {
    let path = format!("/api/v1/policies/effective/{}", segment(&args.upstream));
    let offline = |config: &Config| {
        let name = args.upstream.as_str();
        if config.services.contains_key(name) || config.auto_discover {
            return Ok(effective(config, name));
        }
        let near = nearest(name, config.services.keys().map(Arc::as_ref));
        let hint = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        let message = format!("no service is called `{name}`, and `auto_discover` is false{hint}");
        Err(Failure::Usage(message))
    };
    let Some((answer, found)) = find(&args.at, (env, err), &path, offline)? else {
        return Ok(3);
    };
    match args.at.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => print(&found, out)?,
    }
    Ok(0)
}

fn print(found: &Effective, out: &mut dyn Write) -> Result<(), Failure> {
    let winner = &found.winner;
    writeln!(
        out,
        "{}: policy {} ({}) holds",
        found.upstream, winner.name, winner.origin
    )?;
    let namespace = found.namespace.as_deref().unwrap_or("(none)");
    let listed = if found.configured {
        ""
    } else {
        "; it is not under `services`, so this is for a discovered one"
    };
    writeln!(
        out,
        "compared: upstream {}, consumer {}, namespace {namespace}, protocol {}{listed}\n",
        found.upstream, found.consumer, found.protocol
    )?;
    let width = winner
        .settings
        .iter()
        .map(|s| s.key.len())
        .max()
        .unwrap_or(0);
    for setting in winner.settings.iter().filter(|s| !s.value.is_null()) {
        let shown = text(&setting.value);
        writeln!(
            out,
            "  {:<width$}  {shown:<18}  {}",
            setting.key, setting.origin
        )?;
    }
    if !found.losers.is_empty() {
        writeln!(out, "\nothers:")?;
    }
    for loser in &found.losers {
        let kind = if loser.matches {
            "matches, but"
        } else {
            "no match,"
        };
        writeln!(
            out,
            "  {} ({}): {kind} {}",
            loser.name, loser.origin, loser.why
        )?;
    }
    writeln!(out, "\ninstances  may be out at once")?;
    for row in &found.budget {
        writeln!(out, "{:>9}  {}", row.instances, row.limit)?;
    }
    Ok(())
}
