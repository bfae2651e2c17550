//! Registration with the embedded registry of this process: a call is a change of its table.

use std::sync::Arc;
use std::time::Duration;

use super::machine::{Beat, Outcome, Standing, Terms};
use super::record::Record;
use super::registrar::{Call, Registrar};
use super::rhythm::{Beats, Rhythm};
use crate::registry::{EmbeddedRegistry, InstanceKey, Refusal, Registration, ServiceKey};

/// Its readers poll every 10 s at the slowest.
const DEREGISTER_WAIT: Duration = Duration::from_secs(12);

/// One instance there.
#[derive(Debug)]
pub(super) struct EmbeddedRegistrar {
    registry: EmbeddedRegistry,
    beat_interval: Duration,
    key: ServiceKey,
    registration: Registration,
    /// Outranks what the registry asks for.
    interval: Option<Duration>,
}

impl EmbeddedRegistrar {
    /// `beat_interval` is the registry's own.
    ///
    /// # Errors
    /// A name that the registry does not take.
    pub(super) fn new(
        registry: EmbeddedRegistry,
        beat_interval: Duration,
        record: &Record,
    ) -> Result<Self, Refusal> {
        let key = ServiceKey::new(None, record.group.as_deref(), &record.service)?;
        let instance = InstanceKey::new(&record.address, record.port, record.cluster.as_deref())?;
        Ok(Self {
            registry,
            beat_interval,
            key,
            registration: Registration {
                weight: record.weight,
                ephemeral: record.ephemeral,
                metadata: Arc::new(record.nacos_metadata()),
                ..Registration::new(instance)
            },
            interval: record.heartbeat_interval,
        })
    }

    fn put(&self, enabled: bool) -> Outcome {
        let registration = Registration {
            enabled,
            ..self.registration.clone()
        };
        match self.registry.register(&self.key, registration) {
            Ok(()) => Outcome::DONE,
            Err(refusal) => Outcome::Refused(refusal.to_string()),
        }
    }
}

fn now(outcome: Outcome) -> Call {
    Box::pin(std::future::ready(outcome))
}

impl Registrar for EmbeddedRegistrar {
    fn rhythm(&self) -> Rhythm {
        let beats = Beats {
            interval: self.interval.unwrap_or(self.beat_interval),
            jitter_percent: 20,
            overlap: 1,
            register_after_failure: false,
        };
        Rhythm {
            beats: self.registration.ephemeral.then_some(beats),
            starting: false,
            marks_leaving: true,
        }
    }

    fn deregister_wait(&self) -> Duration {
        DEREGISTER_WAIT
    }

    fn register(self: Arc<Self>, _: Standing) -> Call {
        now(self.put(true))
    }

    fn beat(self: Arc<Self>, _: Beat) -> Call {
        let target = self.registration.key.target();
        now(match self.registry.beat(&self.key, target) {
            Some(interval) => Outcome::Accepted(Terms {
                interval: Some(self.interval.unwrap_or(interval)),
                light: None,
            }),
            None => Outcome::Missing,
        })
    }

    fn withdraw(self: Arc<Self>) -> Call {
        now(self.put(false))
    }

    fn deregister(self: Arc<Self>) -> Call {
        let target = self.registration.key.target();
        let ephemeral = self.registration.ephemeral;
        self.registry.deregister(&self.key, target, ephemeral);
        now(Outcome::DONE)
    }

    fn observe(self: Arc<Self>) -> Call {
        let target = self.registration.key.target();
        now(match self.registry.knows(&self.key, target) {
            true => Outcome::DONE,
            false => Outcome::Missing,
        })
    }
}
