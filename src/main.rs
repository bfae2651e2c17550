//! The binary: flags, command, exit code.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use outrigger::cli::{LiveCommand, check, demo, manual, run};
use outrigger::config::environment::ProcessEnvironment;

#[derive(Debug, Parser)]
#[command(
    name = "outrigger",
    version,
    about = "A local service-discovery proxy: balances over registry instances, ejects outliers, says why"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(run::RunArgs),
    Registry(run::RegistryArgs),
    Demo(demo::DemoArgs),
    Check(check::CheckArgs),
    /// Completions for a shell, on standard output.
    Completions(manual::CompletionsArgs),
    /// The manual page, or that of a command, on standard output.
    Man(manual::ManArgs),
    #[command(flatten)]
    Live(LiveCommand),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let env = ProcessEnvironment;
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let code = match &cli.command {
        Command::Run(args) => run::run(args, &env, &mut err),
        Command::Registry(args) => run::registry(args, &env, &mut out, &mut err),
        Command::Demo(args) => demo::run(args, &env, &mut out, &mut err),
        Command::Check(args) => check::run(args, &env, &mut out, &mut err),
        Command::Completions(args) => manual::completions(args, Cli::command(), &mut out, &mut err),
        Command::Man(args) => manual::man(args, Cli::command(), &mut out, &mut err),
        Command::Live(live) => live.run(&env, &mut out, &mut err),
    };
    ExitCode::from(code)
}
