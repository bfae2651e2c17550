//! `outrigger completions SHELL` and `outrigger man [COMMAND]`, made from the commands themselves.

use std::io::{self, Write};

use clap::Command;

use super::client::Failure;
use super::output::finish;

/// Arguments of `completions`.
#[derive(Clone, Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell whose completions are printed.
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ManArgs {
    /// The page of this command, else that of outrigger itself.
    pub command: Option<String>,
}

/// Runs `completions`; returns the exit code.
pub fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let name = command.get_name().to_owned();
    // The generator takes no error of a writer.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    let written = out.write_all(&script);
    finish(written.map(|()| 0).map_err(Failure::from), out, err)
}

/// Runs `man`; returns the exit code.
pub fn man(args: &ManArgs, command: Command, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let result = page(args, command, out);
    finish(result, out, err)
}

fn page(args: &ManArgs, mut command: Command, out: &mut dyn Write) -> Result<u8, Failure> {
    command.build();
    let command = match &args.command {
        None => command,
        Some(name) => match command.find_subcommand(name) {
            Some(found) => found.clone(),
            None => {
                let message =
                    format!("no command is called `{name}`; `outrigger --help` lists them");
                return Err(Failure::Usage(message));
            }
        },
    };
    render(command, out)?;
    Ok(0)
}

fn render(command: Command, mut out: &mut dyn Write) -> io::Result<()> {
    clap_mangen::Man::new(command).render(&mut out)
}
