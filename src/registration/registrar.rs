//! What every kind of registry is to a registration: five calls. A registrar knows one instance and
//! holds no plan of its own: when to call what is decided in `registration/machine.rs`, and the
//! driver makes the calls. Each call ends by itself within a time of its own.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::machine::{Beat, Outcome, Standing};
use super::rhythm::Rhythm;

/// A call under way.
pub type Call = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One instance in one registry. Every call may be repeated.
///
/// `Missing` means that the registry answered and does not know the instance; what is no answer, or
/// says nothing of the instance, is `Failed`; what would be answered the same way again is `Refused`.
pub trait Registrar: fmt::Debug + Send + Sync {
    /// How the registry wants to be kept informed.
    fn rhythm(&self) -> Rhythm;

    /// How long callers may go on after a deregister: the time to keep serving.
    fn deregister_wait(&self) -> Duration;

    /// Lists the instance; as `Starting` only where the rhythm says that there is such a state.
    fn register(self: Arc<Self>, standing: Standing) -> Call;

    /// Tells that it lives.
    fn beat(self: Arc<Self>, beat: Beat) -> Call;

    /// Keeps it listed without traffic: DOWN, disabled, critical.
    fn withdraw(self: Arc<Self>) -> Call;

    /// Takes it off the list; accepted also where it was not on it.
    fn deregister(self: Arc<Self>) -> Call;

    /// Whether it is on the list.
    fn observe(self: Arc<Self>) -> Call;

    /// Counts up when the registry has lost what it was told, where it is bound to a connection.
    fn losses(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}
