//! One service of the lease table: its instances in the order of registration, and one instance with
//! what its client registered and what an operator laid over it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::lease::EMPTY_SERVICE_KEPT;
use super::model::{InstanceKey, Patch, Registration, Target, Timing};
use crate::clock::Timestamp;
use crate::endpoint::{Address, Endpoint, Weight};

/// Operator's changes kept of instances that left, per service.
const MAX_PARTED: usize = 256;

/// The instances of one service.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// When its last instance left.
    pub(super) empty_since: Option<Timestamp>,
    by_id: BTreeMap<u64, Instance>,
    by_key: BTreeMap<InstanceKey, u64>,
    /// Operator's changes of instances that left, so that a restart of an app does not undo them.
    parted: BTreeMap<InstanceKey, (Patch, Timestamp)>,
}

/// A registered instance. Numbers grow with the order of registration.
#[derive(Clone, Debug)]
pub struct Instance {
    /// Its number.
    pub id: u64,
    pub(super) timing: Timing,
    /// The deadline it has in the table.
    pub(super) armed: Option<Timestamp>,
    registered: Registration,
    overlay: Patch,
    healthy: bool,
    last_beat: Timestamp,
    /// The connection it lives with, in place of beats.
    holder: Option<u64>,
}

/// What an instance lives by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) timing: Timing,
    pub(super) holder: Option<u64>,
}

impl Service {
    /// Puts an instance; true when something visible changed.
    pub(super) fn put(
        &mut self,
        id: u64,
        registered: Registration,
        lease: Lease,
        now: Timestamp,
    ) -> bool {
        let Lease { timing, holder } = lease;
        let healthy = registered.healthy;
        if let Some(old) = self.by_id.get_mut(&id) {
            let changed = old.registered != registered || old.healthy != healthy;
            old.registered = registered;
            old.healthy = healthy;
            old.last_beat = now;
            old.holder = holder;
            if old.overlay.metadata.is_none() {
                old.timing = timing;
            }
            return changed;
        }
        let key = registered.key.clone();
        let overlay = match self.parted.remove(&key) {
            Some((patch, left)) if now.since(left) < EMPTY_SERVICE_KEPT => patch,
            Some(_) | None => Patch::default(),
        };
        self.by_key.insert(key, id);
        let instance = Instance {
            id,
            timing,
            armed: None,
            registered,
            overlay,
            healthy,
            last_beat: now,
            holder,
        };
        self.by_id.insert(id, instance);
        true
    }

    pub(super) fn remove(&mut self, id: u64, now: Timestamp) -> Option<Instance> {
        let mut instance = self.by_id.remove(&id)?;
        self.by_key.remove(instance.key());
        self.parted
            .retain(|_, (_, left)| now.since(*left) < EMPTY_SERVICE_KEPT);
        instance.overlay.healthy = None;
        if instance.overlay != Patch::default() && self.parted.len() < MAX_PARTED {
            self.parted
                .insert(instance.key().clone(), (instance.overlay.clone(), now));
        }
        Some(instance)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Instance> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Instance> {
        self.by_id.get(&id)
    }

    pub(super) fn find(&self, key: &InstanceKey) -> Option<u64> {
        self.by_key.get(key).copied()
    }

    /// The instances a call means, usually one.
    pub(super) fn meant(&self, target: Target<'_>) -> Vec<u64> {
        let first = InstanceKey {
            ip: target.ip.into(),
            port: target.port,
            cluster: "".into(),
        };
        self.by_key
            .range(first..)
            .take_while(|(key, _)| &*key.ip == target.ip && key.port == target.port)
            .filter(|(key, _)| {
                target
                    .cluster
                    .is_none_or(|cluster| &*key.cluster == cluster)
            })
            .map(|(_, id)| *id)
            .collect()
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> + use<'_> {
        self.by_id.values()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }
}

impl Instance {
    /// Notes a beat; true when it was unhealthy.
    pub(super) fn beat(&mut self, now: Timestamp) -> bool {
        self.last_beat = now;
        !std::mem::replace(&mut self.healthy, true)
    }

    /// Marks it unhealthy when it has been silent for too long; true when it was healthy.
    pub(super) fn silence(&mut self, now: Timestamp) -> bool {
        let silent = now >= self.last_beat + self.timing.unhealthy_after;
        silent && self.by_beats() && std::mem::replace(&mut self.healthy, false)
    }

    /// Lays an operator's change over it; true when something visible changed.
    pub(super) fn patch(&mut self, patch: &Patch, timing: Option<Timing>) -> bool {
        let before = self.clone();
        self.overlay.weight = patch.weight.or(self.overlay.weight);
        self.overlay.enabled = patch.enabled.or(self.overlay.enabled);
        if patch.metadata.is_some() {
            self.overlay.metadata = patch.metadata.clone();
        }
        self.healthy = patch.healthy.unwrap_or(self.healthy);
        self.timing = timing.unwrap_or(self.timing);
        self.overlay != before.overlay || self.healthy != before.healthy
    }

    /// Who it is.
    pub fn key(&self) -> &InstanceKey {
        &self.registered.key
    }

    /// Share of traffic.
    pub fn weight(&self) -> Weight {
        self.overlay.weight.unwrap_or(self.registered.weight)
    }

    /// Whether it takes traffic.
    pub fn enabled(&self) -> bool {
        self.overlay.enabled.unwrap_or(self.registered.enabled)
    }

    /// Whether it has been heard of in time.
    pub fn healthy(&self) -> bool {
        self.healthy
    }

    /// Whether it goes with its client: by beats or by connection.
    pub fn ephemeral(&self) -> bool {
        self.registered.ephemeral
    }

    /// The connection it lives with.
    pub fn holder(&self) -> Option<u64> {
        self.holder
    }

    fn by_beats(&self) -> bool {
        self.ephemeral() && self.holder.is_none()
    }

    /// Its metadata.
    pub fn metadata(&self) -> &Arc<BTreeMap<String, String>> {
        self.overlay
            .metadata
            .as_ref()
            .unwrap_or(&self.registered.metadata)
    }

    /// Its intervals.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// What its client registered, and what an operator laid over it.
    pub(super) fn parts(&self) -> (&Registration, &Patch) {
        (&self.registered, &self.overlay)
    }

    /// As an endpoint; `None` when its address cannot be connected to (port 0).
    pub fn endpoint(&self) -> Option<Endpoint> {
        let key = self.key();
        let mut endpoint = Endpoint::new(Address::from_parts(&key.ip, key.port).ok()?);
        endpoint.weight = self.weight();
        endpoint.enabled = self.enabled();
        endpoint.healthy = self.healthy();
        endpoint.registration = Some(self.id.to_string().into());
        endpoint.cluster = Some(key.cluster.clone());
        endpoint.zone = self.metadata().get("zone").map(|zone| zone.as_str().into());
        endpoint.metadata = self.metadata().clone();
        Some(endpoint)
    }

    /// When it is removed unless it beats.
    pub(super) fn removal_at(&self) -> Option<Timestamp> {
        self.by_beats()
            .then(|| self.last_beat + self.timing.remove_after)
    }

    /// When it is to be looked at next.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        let removal = self.removal_at()?;
        let unhealthy = self.last_beat + self.timing.unhealthy_after;
        Some(if self.healthy {
            removal.min(unhealthy)
        } else {
            removal
        })
    }
}
