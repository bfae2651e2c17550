//! `outrigger eject|restore|hold|disable|enable UPSTREAM INSTANCE`, `outrigger overrides`.

use std::io::Write;

use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::orders::SignedArgs;
use super::output::{Format, ShowArgs, Table, Tone, age, finish, json as print_json};
use crate::admin::views::Overrides;
use crate::config::environment::Environment;

/// Arguments of an order that lasts for a time.
#[derive(Clone, Debug, clap::Args)]
pub struct TimedArgs {
    /// Which instance, and why.
    #[command(flatten)]
    pub order: OrderArgs,
    /// How long, such as 10m; at most 24h.
    #[arg(long = "for", value_name = "TIME")]
    pub ttl: String,
    /// Beyond the cap (eject), or although it is the last one (disable).
    #[arg(long)]
    pub force: bool,
}

/// Arguments of every order.
#[derive(Clone, Debug, clap::Args)]
pub struct OrderArgs {
    /// Name, alias or host of the upstream.
    pub upstream: String,
    /// The instance: its address, or its port or the end of its IP when that is enough.
    pub instance: String,
    /// Who and why, where to, how to print.
    #[command(flatten)]
    pub signed: SignedArgs,
}

/// Arguments of `overrides`.
#[derive(Clone, Debug, clap::Args)]
pub struct OverridesArgs {
    /// What to do; without it they are listed.
    #[command(subcommand)]
    pub command: Option<OverridesCommand>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// What to do with overrides.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum OverridesCommand {
    /// End one before its time.
    Clear {
        /// Its id, such as ov-3.
        id: String,
        /// Who and why, where to, how to print.
        #[command(flatten)]
        signed: SignedArgs,
    },
}

/// An order that lasts: eject, hold, disable.
pub fn timed(
    word: &str,
    args: &TimedArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let mut body = args.order.signed.body(Some(&args.ttl), env);
    if args.force {
        body.insert("force".to_owned(), json!(true));
    }
    finish(order(word, &args.order, body, env, out), out, err)
}

/// An order that is done at once: restore, enable.
pub fn momentary(
    word: &str,
    args: &OrderArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let body = args.signed.body(None, env);
    finish(order(word, args, body, env, out), out, err)
}

fn order(
    word: &str,
    args: &OrderArgs,
    body: Map<String, Value>,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = args.signed.client(env)?;
    let (upstream, instance) = (segment(&args.upstream), segment(&args.instance));
    let path = format!("/api/v1/upstreams/{upstream}/instances/{instance}:{word}");
    let answer = client.order(Method::POST, &path, Some(&Value::Object(body)))?;
    args.signed.done(&client, &answer, out)
}

/// Runs `overrides`; returns the exit code.
pub fn run(
    args: &OverridesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = match &args.command {
        None => list(args, env, out),
        Some(OverridesCommand::Clear { id, signed }) => clear(id, signed, env, out),
    };
    finish(result, out, err)
}

fn clear(
    id: &str,
    signed: &SignedArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = signed.client(env)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(signed.signature(env));
    let path = format!("/api/v1/overrides/{}?{}", segment(id), query.finish());
    let answer = client.order(Method::DELETE, &path, None)?;
    signed.done(&client, &answer, out)
}

fn list(args: &OverridesArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let answer = client.get("/api/v1/overrides")?;
    match args.show.output {
        Format::Json => print_json(out, &answer)?,
        Format::Table | Format::Wide => {
            let list: Overrides = client.read(&answer)?;
            if list.overrides.is_empty() {
                writeln!(out, "no overrides")?;
                return Ok(0);
            }
            let head = [
                "ID", "KIND", "UPSTREAM", "OF", "LEFT", "FORCED", "BY", "NOTE",
            ];
            let mut table = Table::new(&head, 1);
            for entry in list.overrides {
                let route = entry.route.map(|route| format!("route {route}"));
                let whose = entry.instance.or(route);
                let forced = if entry.forced { "yes" } else { "no" };
                table.row(
                    Tone::Warn,
                    vec![
                        entry.id,
                        entry.kind,
                        entry.upstream,
                        whose.unwrap_or_else(|| "-".to_owned()),
                        age(entry.left_s),
                        forced.to_owned(),
                        entry.actor,
                        entry.note.unwrap_or_default(),
                    ],
                );
            }
            table.print(out, args.show.colour(env))?;
        }
    }
    Ok(0)
}
