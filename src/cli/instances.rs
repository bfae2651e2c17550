//! `outrigger instances UPSTREAM`.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::output::{Format, ShowArgs, Table, dash, finish, instance_rank, json, sort_instances};
use super::watch::{WatchArgs, watched};
use crate::admin::views::Instances;
use crate::config::environment::Environment;
use crate::status::InstanceStatus;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct InstancesArgs {
    /// Name, alias or host of the upstream.
    pub upstream: String,
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
    args: &InstancesArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = show(args, env, out);
    finish(result, out, err)
}

fn show(args: &InstancesArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let path = format!("/api/v1/upstreams/{}/instances", segment(&args.upstream));
    watched(&args.watch, &client, out, |out| {
        let answer = client.get(&path)?;
        match args.show.output {
            Format::Json => json(out, &answer)?,
            Format::Table | Format::Wide => {
                let list: Instances = client.read(&answer)?;
                if list.instances.is_empty() {
                    writeln!(out, "{} has no instances", list.upstream)?;
                } else {
                    let wide = args.show.output == Format::Wide;
                    table(list.instances, wide).print(out, args.show.colour(env))?;
                }
            }
        }
        Ok(())
    })
}

/// The worst first.
pub(super) fn table(mut instances: Vec<InstanceStatus>, wide: bool) -> Table {
    sort_instances(&mut instances);
    let mut head = vec!["INSTANCE", "STATE", "ERRORS", "QPS", "WEIGHT"];
    if wide {
        head.extend([
            "CALLS",
            "STREAK",
            "IN FLIGHT",
            "CONNS",
            "EJECTED",
            "NEXT PROBE",
            "ZONE",
            "CLUSTER",
            "PRIORITY",
            "PREFERRED",
            "CHECK",
        ]);
    }
    head.push("WHY");
    let mut table = Table::new(&head, 1);
    for instance in instances {
        let (_, tone) = instance_rank(&instance);
        let weight = instance.weight * instance.share;
        let mut row = vec![
            instance.instance,
            instance.state,
            format!("{:.1}%", instance.error_rate_pct),
            format!("{:.1}", instance.qps),
            format!("{}", (weight * 1000.0).round() / 1000.0),
        ];
        if wide {
            row.push(instance.requests.to_string());
            row.push(format!("{}/{}", instance.streak, instance.streak_limit));
            row.push(instance.in_flight.to_string());
            row.push(instance.connections.to_string());
            row.push(format!("{} times", instance.times_ejected));
            row.push(dash(instance.next_probe_at.unwrap_or_default()));
            row.push(dash(instance.zone.unwrap_or_default()));
            row.push(dash(instance.cluster.unwrap_or_default()));
            row.push(instance.priority.to_string());
            row.push(if instance.preferred { "yes" } else { "no" }.to_owned());
            row.push(dash(instance.check_message.unwrap_or_default()));
        }
        row.push(instance.why);
        table.row(tone, row);
    }
    table
}
