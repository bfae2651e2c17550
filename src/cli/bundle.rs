//! `outrigger bundle`: the answer of `GET /api/v1/bundle` into a file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{finish, json};
use crate::config::environment::Environment;

/// Arguments.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct BundleArgs {
    /// The file, which must not be there yet; `-` for standard output.
    #[arg(default_value = "outrigger-bundle.json")]
    pub file: PathBuf,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
}

/// Runs the command; returns the exit code.
pub fn run(
    args: &BundleArgs,
    env: &dyn Environment,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> u8 {
    let result = save(args, env, out);
    finish(result, out, err)
}

fn save(args: &BundleArgs, env: &dyn Environment, out: &mut dyn Write) -> Result<u8, Failure> {
    let client = AdminClient::find(&args.connect, env)?;
    let bundle = client.get("/api/v1/bundle")?;
    if args.file.as_os_str() == "-" {
        json(out, &bundle)?;
        return Ok(0);
    }
    let path = args.file.display();
    let fail =
        |error: &dyn std::fmt::Display| Failure::Local(format!("cannot write {path}: {error}"));
    let file = created(&args.file).map_err(|error| {
        if error.kind() == ErrorKind::AlreadyExists {
            fail(&"it is there already; name another file")
        } else {
            fail(&error)
        }
    })?;
    let mut writer = io::BufWriter::new(file);
    json(&mut writer, &bundle)?;
    writer.flush().map_err(|error| fail(&error))?;
    writeln!(
        out,
        "{path} holds status, upstreams, histories, events and metrics; no configuration values"
    )?;
    Ok(0)
}

/// A new file that only its owner reads: events name callers and addresses.
fn created(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}
