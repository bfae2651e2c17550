//! The commands of the binary, one file each. Live ones ask the admin listener of a running process
//! through `cli/client.rs` and print by `cli/output.rs`.

pub mod breaker;
pub mod bundle;
pub mod check;
pub mod client;
pub mod config;
pub mod demo;
pub mod docs;
pub mod drain;
pub mod events;
pub mod explain;
pub mod explain_route;
pub mod healthcheck;
pub mod init;
pub mod instances;
pub mod log_level;
pub mod manual;
pub mod orders;
pub mod output;
pub mod overrides;
pub mod policies;
pub mod registries;
pub mod reload;
pub mod run;
pub mod schema;
pub mod services;
pub mod status;
pub mod upstreams;
pub mod version;
pub mod wait;
pub mod watch;

use crate::config::environment::Environment;
use std::io::Write;

/// Commands that look at a running process, and those that need none.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum LiveCommand {
    /// The process: listeners, configuration, registries, what is wrong.
    Status(status::StatusArgs),
    /// All upstreams, the worst first.
    Upstreams(upstreams::UpstreamsArgs),
    /// The instances of an upstream, the worst first, each with its why.
    Instances(instances::InstancesArgs),
    /// Why an upstream or an instance stands as it does, or what an error code means.
    Explain(explain::ExplainArgs),
    /// Which rule and upstream a request would find.
    ExplainRoute(explain_route::ExplainRouteArgs),
    /// What was decided: ejections, probes, restores, reloads.
    Events(events::EventsArgs),
    /// Take an instance out for a time; it is not probed.
    Eject(overrides::TimedArgs),
    /// Put an ejected instance back now.
    Restore(overrides::OrderArgs),
    /// Do not eject an instance by the rules for a time.
    Hold(overrides::TimedArgs),
    /// Neither use nor count an instance for a time.
    Disable(overrides::TimedArgs),
    /// End a disable.
    Enable(overrides::OrderArgs),
    /// Force a circuit breaker open or closed for a time, or leave it to the rules.
    #[command(subcommand)]
    Breaker(breaker::BreakerCommand),
    /// Operators' orders in force; `clear ID` ends one.
    Overrides(overrides::OverridesArgs),
    /// Names that can be asked for.
    Services(services::ServicesArgs),
    /// The instances of a service that are to be used.
    Hosts(services::HostsArgs),
    /// Everything support asks for in one file, without secrets.
    Bundle(bundle::BundleArgs),
    /// Where instances come from.
    Registries(registries::RegistriesArgs),
    /// Load the files again; 3 when one is rejected.
    Reload(reload::ReloadArgs),
    /// Take no new work, finish the old; the process stays.
    Drain(drain::DrainArgs),
    /// Drain, then end the process.
    Quit(drain::QuitArgs),
    /// Wait until the process is ready: 0 ready, 5 not in time, 6 nobody answers.
    Wait(wait::WaitArgs),
    /// Show or change what the process logs, for a time.
    LogLevel(log_level::LogLevelArgs),
    /// For a container's HEALTHCHECK: 0 ready, 5 not ready, 6 nobody answers.
    Healthcheck(healthcheck::HealthcheckArgs),
    /// The values in force with their origin; what differs between files and process.
    Config(config::ConfigArgs),
    /// Which ejection policy holds for whom, and why.
    Policies(policies::PoliciesArgs),
    /// Write starter files; refuses to overwrite.
    Init(init::InitArgs),
    /// Print the reference of this version.
    Docs(docs::DocsArgs),
    /// Print the JSON Schema of a kind of file.
    Schema(schema::SchemaArgs),
    /// Version and commit.
    Version(version::VersionArgs),
}

impl LiveCommand {
    /// Runs the command, outside of any runtime; returns the exit code.
    pub fn run(&self, env: &dyn Environment, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
        match self {
            Self::Status(args) => status::run(args, env, out, err),
            Self::Upstreams(args) => upstreams::run(args, env, out, err),
            Self::Instances(args) => instances::run(args, env, out, err),
            Self::Explain(args) => explain::run(args, env, out, err),
            Self::ExplainRoute(args) => explain_route::run(args, env, out, err),
            Self::Events(args) => events::run(args, env, out, err),
            Self::Eject(args) => overrides::timed("eject", args, env, out, err),
            Self::Restore(args) => overrides::momentary("restore", args, env, out, err),
            Self::Hold(args) => overrides::timed("hold", args, env, out, err),
            Self::Disable(args) => overrides::timed("disable", args, env, out, err),
            Self::Enable(args) => overrides::momentary("enable", args, env, out, err),
            Self::Breaker(command) => breaker::run(command, env, out, err),
            Self::Overrides(args) => overrides::run(args, env, out, err),
            Self::Services(args) => services::services(args, env, out, err),
            Self::Hosts(args) => services::hosts(args, env, out, err),
            Self::Bundle(args) => bundle::run(args, env, out, err),
            Self::Registries(args) => registries::run(args, env, out, err),
            Self::Reload(args) => reload::run(args, env, out, err),
            Self::Drain(args) => drain::drain(args, env, out, err),
            Self::Quit(args) => drain::quit(args, env, out, err),
            Self::Wait(args) => wait::run(args, env, out, err),
            Self::LogLevel(args) => log_level::run(args, env, out, err),
            Self::Healthcheck(args) => healthcheck::run(args, env, out, err),
            Self::Config(args) => config::run(args, env, out, err),
            Self::Policies(args) => policies::run(args, env, out, err),
            Self::Init(args) => init::run(args, env, out, err),
            Self::Docs(args) => docs::run(args, out, err),
            Self::Schema(args) => schema::run(args, out, err),
            Self::Version(args) => version::run(args, env, out, err),
        }
    }
}

#[cfg(test)]
mod tests;
