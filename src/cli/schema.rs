//! `outrigger schema`: the JSON Schema of a kind of file, for editors.

use std::io::Write;

use super::output::{finish, json};
use crate::config::schema::{Kind, schema};

/// Print the JSON Schema of a kind of file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SchemaArgs {
    /// Which file.
    #[arg(value_enum, default_value = "outrigger")]
    pub kind: File,
}

/// What a schema can be had of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum File {
    /// The main file.
    #[default]
    Outrigger,
    /// A file of ejection policies.
    Policy,
    /// A file of endpoints.
    Endpoints,
}

/// Runs the command; returns the exit code.
pub fn run(args: &SchemaArgs, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let kind = match args.kind {
        File::Outrigger => Kind::Outrigger,
        File::Policy => Kind::Policy,
        File::Endpoints => Kind::Endpoints,
    };
    finish(json(out, &schema(kind)).map(|()| 0), out, err)
}
