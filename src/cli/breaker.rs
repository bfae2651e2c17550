//! `outrigger breaker force-open|force-closed|disable|auto UPSTREAM[/ROUTE]`.

use std::io::Write;

use http::Method;
use serde_json::{Map, Value, json};

use super::client::{AdminClient, Failure, segment};
use super::orders::SignedArgs;
use super::output::finish;
use crate::config::environment::Environment;

/// What to order.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum BreakerCommand {
    /// Refuse every call for a time.
    ForceOpen(TimedArgs),
    /// Refuse no call for a time, whatever fails.
    ForceClosed(TimedArgs),
    /// Neither count nor refuse for a time.
    Disable(TimedArgs),
    /// End such an order: the rules decide again.
    Auto(OrderArgs),
}

/// Arguments of an order that lasts for a time.
#[derive(Clone, Debug, clap::Args)]
pub struct TimedArgs {
    /// Which breaker, and why.
    #[command(flatten)]
    pub order: OrderArgs,
    /// How long, such as 10m; at most 24h.
    #[arg(long = "for", value_name = "TIME")]
    pub ttl: String,
}

/// Arguments of every order.
#[derive(Clone, Debug, clap::Args)]
pub struct OrderArgs {
    /// UPSTREAM, or UPSTREAM/ROUTE for a route that has a breaker of its own.
    #[arg(value_name = "UPSTREAM[/ROUTE]")]
    pub whose: String,
    /// Who and why, where to, how to print.
    #[command(flatten)]
    pub signed: SignedArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    command: &BreakerCommand,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let (word, args, ttl) = match command {
        BreakerCommand::ForceOpen(args) => ("force_open", &args.order, Some(&args.ttl)),
        BreakerCommand::ForceClosed(args) => ("force_closed", &args.order, Some(&args.ttl)),
        BreakerCommand::Disable(args) => ("disable", &args.order, Some(&args.ttl)),
        BreakerCommand::Auto(args) => ("auto", args, None),
    };
    finish(order(word, args, ttl, env, out), out, err)
}

fn order(
    word: &str,
    args: &OrderArgs,
    ttl: Option<&String>,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = args.signed.client(env)?;
    let mut body = args.signed.body(ttl.map(String::as_str), env);
    body.insert("order".to_owned(), json!(word));
    let answer = post(&client, &args.whose, body)?;
    args.signed.done(&client, &answer, out)
}

/// The name of an upstream may have a slash too: it comes first.
fn post(client: &AdminClient, whose: &str, mut body: Map<String, Value>) -> Result<Value, Failure> {
    let path = |name: &str| format!("/api/v1/upstreams/{}/breaker", segment(name));
    let whole = Value::Object(body.clone());
    match (
        client.order(Method::POST, &path(whose), Some(&whole)),
        whose.rsplit_once('/'),
    ) {
        (Err(Failure::Refused(problem)), Some((name, route)))
            if problem.error == "unknown_upstream" =>
        {
            body.insert("route".to_owned(), json!(route));
            client.order(Method::POST, &path(name), Some(&Value::Object(body)))
        }
        (answer, _) => answer,
    }
}
