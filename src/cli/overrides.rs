//! `outrigger eject|restore|hold|disable|enable UPSTREAM INSTANCE`, `outrigger overrides`.

use std::io::Write;

use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::output::{Format, ShowArgs, Table, Tone, age, finish, json as print_json};
use crate::admin::views::Overrides;
use crate::config::environment::Environment;
use crate::status::OverrideDone;

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
    /// Why; it stands in the event and in `outrigger overrides`.
    #[arg(long)]
    pub note: Option<String>,
    /// Who; the user's name by default.
    #[arg(long)]
    pub actor: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
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
        /// Why.
        #[arg(long)]
        note: Option<String>,
        /// Who; the user's name by default.
        #[arg(long)]
        actor: Option<String>,
        /// Where the process is.
        #[command(flatten)]
        connect: ConnectArgs,
        /// How to print.
        #[command(flatten)]
        show: ShowArgs,
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
    let mut body = Map::new();
    body.insert("ttl".to_owned(), json!(args.ttl));
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
    finish(order(word, args, Map::new(), env, out), out, err)
}

fn order(
    word: &str,
    args: &OrderArgs,
    mut body: Map<String, Value>,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    body.insert("actor".to_owned(), json!(actor(args.actor.as_deref(), env)));
    if let Some(note) = &args.note {
        body.insert("note".to_owned(), json!(note));
    }
    let (upstream, instance) = (segment(&args.upstream), segment(&args.instance));
    let path = format!("/api/v1/upstreams/{upstream}/instances/{instance}:{word}");
    let answer = client.order(Method::POST, &path, Some(&Value::Object(body)))?;
    done(&client, &answer, &args.show, out)
}

/// Who gives orders from the command line, if nobody says.
pub(super) fn actor(given: Option<&str>, env: &dyn Environment) -> String {
    let named = given.map(str::to_owned);
    let user = || env.variable("USER").filter(|user| !user.is_empty());
    named.or_else(user).unwrap_or_else(|| "cli".to_owned())
}

pub(super) fn done(
    client: &AdminClient,
    answer: &Value,
    show: &ShowArgs,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    match show.output {
        Format::Json => print_json(out, answer)?,
        Format::Table | Format::Wide => {
            let done: OverrideDone = client.read(answer)?;
            match done.entry {
                Some(entry) => writeln!(out, "{} ({})", done.message, entry.id)?,
                None => writeln!(out, "{}", done.message)?,
            }
        }
    }
    Ok(0)
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
        Some(OverridesCommand::Clear {
            id,
            note,
            actor: by,
            connect,
            show,
        }) => {
            let note = note.as_deref();
            let by = actor(by.as_deref(), env);
            clear(id, note, &by, connect, env)
                .and_then(|(client, answer)| done(&client, &answer, show, out))
        }
    };
    finish(result, out, err)
}

fn clear(
    id: &str,
    note: Option<&str>,
    actor: &str,
    connect: &ConnectArgs,
    env: &dyn Environment,
) -> Result<(AdminClient, Value), Failure> {
    let client = AdminClient::find(connect, env)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("actor", actor);
    if let Some(note) = note {
        query.append_pair("note", note);
    }
    let path = format!("/api/v1/overrides/{}?{}", segment(id), query.finish());
    let answer = client.order(Method::DELETE, &path, None)?;
    Ok((client, answer))
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
