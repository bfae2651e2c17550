//! `outrigger explain-route URL`.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, finish, json};
use crate::config::environment::Environment;
use crate::status::RouteExplanation;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ExplainRouteArgs {
    /// As an app would write it: http://orders/v1, or /orders/v1 at the proxy's own address.
    pub url: String,
    /// Method of the request.
    #[arg(short = 'X', long, value_name = "METHOD", default_value = "GET")]
    pub method: String,
    /// A header, `name: value`; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "K:V")]
    pub headers: Vec<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &ExplainRouteArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(
    args: &ExplainRouteArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    if let Some(header) = args.headers.iter().find(|h| !h.contains(':')) {
        let message = format!("the header `{header}` has no colon; write `name: value`");
        return Err(Failure::Usage(message));
    }
    let client = AdminClient::find(&args.connect, env)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("url", &args.url);
    query.append_pair("method", &args.method);
    for header in &args.headers {
        query.append_pair("header", header);
    }
    let answer = client.get(&format!("/api/v1/route?{}", query.finish()))?;
    let route: RouteExplanation = client.read(&answer)?;
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => print(&route, out)?,
    }
    // A script may ask whether a request would be let through.
    Ok(u8::from(route.refusal.is_some()))
}

fn print(route: &RouteExplanation, out: &mut dyn Write) -> std::io::Result<()> {
    let nearest = Some(route.nearest.join(", ")).filter(|names| !names.is_empty());
    let lines = [
        ("rule", Some(&route.rule)),
        ("upstream", route.upstream.as_ref()),
        ("route", route.route.as_ref()),
        ("target", route.target.as_ref()),
        ("host", route.host.as_ref()),
        ("refused", route.refusal.as_ref()),
        ("nearest", nearest.as_ref()),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            writeln!(out, "{name:<9} {value}")?;
        }
    }
    Ok(())
}
