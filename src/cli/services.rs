//! `outrigger services [PATTERN]` and `outrigger hosts SERVICE`.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::output::{Format, ShowArgs, Table, Tone, finish, json};
use crate::admin::views::{Hosts, Services};
use crate::config::environment::Environment;

/// Arguments of `services`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ServicesArgs {
    /// Only names with this in them; `*` stands for anything.
    pub pattern: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Arguments of `hosts`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct HostsArgs {
    /// Name, alias or host of the upstream.
    pub service: String,
    /// Also those that are out.
    #[arg(long)]
    pub all: bool,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

/// Runs `services`; returns the exit code.
pub fn services(
    args: &ServicesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show_services(args, env, out);
    finish(result, out, err)
}

fn show_services(
    args: &ServicesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Some(pattern) = &args.pattern {
        query.append_pair("pattern", pattern);
    }
    let answer = client.get(&format!("/api/v1/services?{}", query.finish()))?;
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => {
            let list: Services = client.read(&answer)?;
            let mut table = Table::new(&["SERVICE", "SOURCE", "USED", "INSTANCES"], 2);
            let none = list.services.is_empty();
            for service in list.services {
                let (tone, used) = match service.upstream {
                    Some(_) => (Tone::Good, "yes"),
                    None => (Tone::Warn, "not yet"),
                };
                let count = service
                    .instances
                    .map_or_else(|| "-".to_owned(), |n| n.to_string());
                table.row(
                    tone,
                    vec![service.name, service.source, used.to_owned(), count],
                );
            }
            if none {
                writeln!(out, "no services")?;
            } else {
                table.print(out, args.show.colour(env))?;
            }
            for problem in list.problems {
                writeln!(out, "{problem}")?;
            }
        }
    }
    Ok(0)
}

/// Runs `hosts`; returns the exit code.
pub fn hosts(
    args: &HostsArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show_hosts(args, env, out);
    finish(result, out, err)
}

fn show_hosts(args: &HostsArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let mut path = format!("/api/v1/hosts/{}", segment(&args.service));
    if args.all {
        path.push_str("?state=any");
    }
    let answer = client.get(&path)?;
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table | Format::Wide => {
            let list: Hosts = client.read(&answer)?;
            if list.hosts.is_empty() {
                writeln!(out, "{} has no instances to use", list.service)?;
                return Ok(0);
            }
            let mut table = Table::new(&["INSTANCE", "STATE", "WEIGHT", "CLUSTER"], 1);
            for host in list.hosts {
                let tone = if host.healthy { Tone::Good } else { Tone::Warn };
                let cluster = host.cluster.unwrap_or_else(|| "-".to_owned());
                let weight = host.weight.to_string();
                table.row(tone, vec![host.instance, host.state, weight, cluster]);
            }
            table.print(out, args.show.colour(env))?;
        }
    }
    Ok(0)
}
