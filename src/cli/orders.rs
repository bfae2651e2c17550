//! What all orders of operators have: who and why, where the process is, how the answer is printed.

use std::io::Write;

use serde_json::{Map, Value, json};

use super::client::{AdminClient, ConnectArgs, Failure};
use super::output::{Format, ShowArgs, json as print_json};
use crate::config::environment::Environment;
use crate::status::OverrideDone;

/// Arguments of every order.
#[derive(Clone, Debug, clap::Args)]
pub struct SignedArgs {
    /// Why; it stands in the event and in `outrigger overrides`.
    #[arg(long)]
    pub note: Option<String>,
    /// Who; the user's name by default.
    #[arg(long)]
    pub actor: Option<String>,
    /// Where the process is.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// How to print.
    #[command(flatten)]
    pub show: ShowArgs,
}

impl SignedArgs {
    /// The process.
    pub(super) fn client(&self, env: &dyn Environment) -> Result<AdminClient, Failure> {
        AdminClient::find(&self.connect, env)
    }

    /// Who and why, as the API takes them.
    pub(super) fn signature(
        &self,
        env: &dyn Environment,
    ) -> impl Iterator<Item = (&'static str, String)> {
        let user = || env.variable("USER").filter(|user| !user.is_empty());
        let actor = self.actor.clone().or_else(user);
        let actor = actor.unwrap_or_else(|| "cli".to_owned());
        let note = self.note.clone().map(|note| ("note", note));
        [("actor", actor)].into_iter().chain(note)
    }

    /// The same as the beginning of a body; with the time of an order that lasts.
    pub(super) fn body(&self, ttl: Option<&str>, env: &dyn Environment) -> Map<String, Value> {
        let ttl = ttl.map(|ttl| ("ttl", ttl.to_owned()));
        let fields = self.signature(env).chain(ttl);
        fields
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect()
    }

    /// Prints that it is done.
    pub(super) fn done(
        &self,
        client: &AdminClient,
        answer: &Value,
        out: &mut dyn Write,
    ) -> Result<u8, Failure> {
        match self.show.output {
            Format::Json => print_json(out, answer)?,
            Format::Table | Format::Wide => {
                let done: OverrideDone = client.read(answer)?;
                match done.entry {
                    Some(entry) => writeln!(out, "{} ({})", done.message, entry.id)?,
                    None => writeln!(out, "{}", done.message)?,
                }
            }
        }
        Ok(0)
    }
}
