//! `outrigger instances UPSTREAM`.

use std::io::Write;

use super::client::{AdminClient, ConnectArgs, Failure, segment};
use super::output::{Format, ShowArgs, Table, finish, instance_rank, json, sort_instances};
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
    let answer = client.get(&path)?;
    match args.show.output {
        Format::Json => json(out, &answer)?,
        Format::Table => {
            let list: Instances = client.read(&answer)?;
            if list.instances.is_empty() {
                writeln!(out, "{} has no instances", list.upstream)?;
            } else {
                table(list.instances).print(out, args.show.colour(env))?;
            }
        }
    }
    Ok(0)
}

/// The worst first.
pub(super) fn table(mut instances: Vec<InstanceStatus>) -> Table {
    sort_instances(&mut instances);
    let head = ["INSTANCE", "STATE", "ERRORS", "QPS", "WEIGHT", "WHY"];
    let mut table = Table::new(&head, 1);
    for instance in instances {
        let (_, tone) = instance_rank(&instance);
        let weight = instance.weight * instance.share;
        table.row(
            tone,
            vec![
                instance.instance,
                instance.state,
                format!("{:.1}%", instance.error_rate_pct),
                format!("{:.1}", instance.qps),
                format!("{}", (weight * 1000.0).round() / 1000.0),
                instance.why,
            ],
        );
    }
    table
}
