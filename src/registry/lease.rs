//! The lease table: who is registered, who still beats. Pure; time comes in. Every call first does
//! what is due by then, so no reader depends on a purge having run.
//!
//! Life of an ephemeral instance, in silence since its last beat or registration:
//!
//! | silence | state |
//! |---|---|
//! | < `unhealthy_after` | as registered |
//! | < `remove_after` | unhealthy; a beat makes it healthy at once |
//! | otherwise | gone; a beat without the registration is unknown (20404) |
//!
//! An instance that a connection published ([`Table::publish`]) needs no beats: it stays as registered
//! until the connection withdraws it. A connection has one set of instances per service: what it
//! publishes replaces what it published there before. Who registers an address later takes it over.
//!
//! A service is kept [`EMPTY_SERVICE_KEPT`] after its last instance left, an operator's change as long
//! after its instance left. Next: `registry/service.rs`; around it: `registry.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::model::{InstanceKey, Patch, Refusal, Registration, ServiceKey, Target, Timing};
use super::service::{Instance, Lease, Service};
use crate::clock::Timestamp;

/// How long a service without instances stays known.
pub const EMPTY_SERVICE_KEPT: Duration = Duration::from_secs(60);

/// Bounds of a table.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Services, empty ones included.
    pub services: usize,
    /// Instances of all services.
    pub instances: usize,
    /// Bytes of one instance's metadata.
    pub metadata_bytes: usize,
}

/// All leases.
#[derive(Debug)]
pub struct Table {
    bounds: Bounds,
    timing: Timing,
    services: BTreeMap<ServiceKey, Service>,
    deadlines: BTreeSet<(Timestamp, Subject)>,
    instances: usize,
    next_id: u64,
    changes: Changes,
}

/// What changed since it was last taken.
#[derive(Debug, Default)]
pub struct Changes {
    /// Services whose visible instances changed.
    pub services: BTreeSet<ServiceKey>,
    /// Services came or went.
    pub names: bool,
}

impl Changes {
    /// Nothing did.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.names
    }
}

/// Whose deadline it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Instance(ServiceKey, u64),
    EmptyService(ServiceKey),
}

impl Table {
    /// An empty one; `timing` is for instances that ask for nothing else.
    pub fn new(bounds: Bounds, timing: Timing) -> Self {
        Self {
            bounds,
            timing,
            services: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            instances: 0,
            next_id: 0,
            changes: Changes::default(),
        }
    }

    /// Registers an instance or renews and replaces what it registered before; its place in the
    /// order stays, an operator's changes too.
    ///
    /// # Errors
    /// [`Refusal`] when a bound is reached or the metadata is contradictory.
    pub fn register(
        &mut self,
        key: &ServiceKey,
        registration: Registration,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.expire(now);
        self.check_metadata(&registration.metadata)?;
        let timing = self.timing.of(&registration.metadata)?;
        let replaces = self.known(key, &registration.key);
        self.check_room(key, usize::from(!replaces))?;
        self.put(key, registration, timing, None, now);
        Ok(())
    }

    /// Makes `registrations` all that the connection `holder` has in a service: whole or not at all.
    ///
    /// # Errors
    /// [`Refusal`] when a bound is reached or the metadata of one is contradictory.
    pub fn publish(
        &mut self,
        key: &ServiceKey,
        holder: u64,
        registrations: Vec<Registration>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if registrations.is_empty() {
            self.withdraw(key, holder, now);
            return Ok(());
        }
        self.expire(now);
        let mut checked = Vec::with_capacity(registrations.len());
        for registration in registrations {
            self.check_metadata(&registration.metadata)?;
            checked.push((self.timing.of(&registration.metadata)?, registration));
        }
        let keys: BTreeSet<InstanceKey> = checked.iter().map(|(_, r)| r.key.clone()).collect();
        let mut left = self.held(key, holder);
        left.retain(|id| {
            let instance = self.services.get(key).and_then(|service| service.get(*id));
            instance.is_some_and(|instance| !keys.contains(instance.key()))
        });
        let fresh = keys.iter().filter(|one| !self.known(key, one)).count();
        self.check_room(key, fresh.saturating_sub(left.len()))?;
        for (timing, registration) in checked {
            self.put(key, registration, timing, Some(holder), now);
        }
        for id in left {
            self.remove(key, id, now);
        }
        Ok(())
    }

    /// Removes all that a connection has in a service; false when that was nothing.
    pub fn withdraw(&mut self, key: &ServiceKey, holder: u64, now: Timestamp) -> bool {
        self.expire(now);
        let held = self.held(key, holder);
        for id in &held {
            self.remove(key, *id, now);
        }
        !held.is_empty()
    }

    /// Renews a lease. The interval until the next beat, or `None`: no such instance.
    pub fn beat(
        &mut self,
        key: &ServiceKey,
        target: Target<'_>,
        now: Timestamp,
    ) -> Option<Duration> {
        self.expire(now);
        let mut interval = None;
        for id in self.meant(key, target) {
            let Some(instance) = self.instance_mut(key, id) else {
                continue;
            };
            interval = Some(instance.timing.beat_interval);
            if instance.beat(now) {
                self.changes.services.insert(key.clone());
            }
            self.arm(key, id);
        }
        interval
    }

    /// Removes an instance; false when there was none with this `ephemeral` flag.
    pub fn deregister(
        &mut self,
        key: &ServiceKey,
        target: Target<'_>,
        ephemeral: bool,
        now: Timestamp,
    ) -> bool {
        self.expire(now);
        let mut ids = self.meant(key, target);
        ids.retain(|id| {
            self.instance_mut(key, *id)
                .is_some_and(|i| i.ephemeral() == ephemeral)
        });
        for id in &ids {
            self.remove(key, *id, now);
        }
        !ids.is_empty()
    }

    /// An operator's change.
    ///
    /// # Errors
    /// [`Refusal`] when there is no such instance or the new metadata is not legal.
    pub fn patch(
        &mut self,
        key: &ServiceKey,
        target: Target<'_>,
        patch: &Patch,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.expire(now);
        let timing = match &patch.metadata {
            Some(metadata) => {
                self.check_metadata(metadata)?;
                Some(self.timing.of(metadata)?)
            }
            None => None,
        };
        if !self.services.contains_key(key) {
            let (namespace, name) = (key.namespace.clone(), key.grouped());
            return Err(Refusal::NoService { namespace, name });
        }
        let ids = self.meant(key, target);
        if ids.is_empty() {
            return Err(Refusal::NoInstance);
        }
        for id in ids {
            if self
                .instance_mut(key, id)
                .is_some_and(|instance| instance.patch(patch, timing))
            {
                self.changes.services.insert(key.clone());
            }
            self.arm(key, id);
        }
        Ok(())
    }

    /// The instances of a service in the order of their registration; `None`: no such service.
    pub fn list<'a>(
        &'a mut self,
        key: &ServiceKey,
        now: Timestamp,
    ) -> Option<impl Iterator<Item = &'a Instance> + use<'a>> {
        self.expire(now);
        self.services.get(key).map(Service::instances)
    }

    /// One instance.
    pub fn get(
        &mut self,
        key: &ServiceKey,
        target: Target<'_>,
        now: Timestamp,
    ) -> Option<&Instance> {
        self.expire(now);
        let service = self.services.get(key)?;
        service.get(*service.meant(target).first()?)
    }

    /// The services of a namespace and group, sorted by name.
    pub fn names(&mut self, namespace: &str, group: &str, now: Timestamp) -> Vec<Arc<str>> {
        self.expire(now);
        let first = ServiceKey {
            namespace: namespace.into(),
            group: group.into(),
            name: "".into(),
        };
        self.services
            .range(first..)
            .take_while(|(key, _)| &*key.namespace == namespace && &*key.group == group)
            .map(|(key, _)| key.name.clone())
            .collect()
    }

    /// Everything, services in order of their keys, instances in order of registration.
    pub fn all(&mut self, now: Timestamp) -> impl Iterator<Item = (&ServiceKey, &Instance)> {
        self.expire(now);
        let services = self.services.iter();
        services.flat_map(|(key, service)| service.instances().map(move |one| (key, one)))
    }

    /// All services in order of their keys, those without instances too.
    pub fn services(
        &mut self,
        now: Timestamp,
    ) -> impl Iterator<Item = (&ServiceKey, impl Iterator<Item = &Instance>)> {
        self.expire(now);
        let services = self.services.iter();
        services.map(|(key, service)| (key, service.instances()))
    }

    /// Services and instances, counted.
    pub fn counts(&self) -> (usize, usize) {
        (self.services.len(), self.instances)
    }

    /// Does what is due at `now`: marks silent instances, removes dead ones and empty services.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((at, subject)) = self.deadlines.first()
            && *at <= now
        {
            let subject = subject.clone();
            self.deadlines.pop_first();
            match subject {
                Subject::EmptyService(key) => {
                    self.services.remove(&key);
                    self.changes.names = true;
                }
                Subject::Instance(key, id) => self.expire_instance(&key, id, now),
            }
        }
    }

    /// When something is due next.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// What changed since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn put(
        &mut self,
        key: &ServiceKey,
        registration: Registration,
        timing: Timing,
        holder: Option<u64>,
        now: Timestamp,
    ) {
        if !self.services.contains_key(key) {
            self.services.insert(key.clone(), Service::default());
            self.changes.names = true;
        }
        let Some(service) = self.services.get_mut(key) else {
            return;
        };
        if let Some(since) = service.empty_since.take() {
            let at = since + EMPTY_SERVICE_KEPT;
            self.deadlines
                .remove(&(at, Subject::EmptyService(key.clone())));
        }
        let id = match service.find(&registration.key) {
            Some(id) => id,
            None => {
                self.next_id = self.next_id.saturating_add(1);
                self.instances = self.instances.saturating_add(1);
                self.next_id
            }
        };
        let lease = Lease { timing, holder };
        if service.put(id, registration, lease, now) {
            self.changes.services.insert(key.clone());
        }
        self.arm(key, id);
    }

    fn known(&self, key: &ServiceKey, instance: &InstanceKey) -> bool {
        self.services
            .get(key)
            .is_some_and(|service| service.find(instance).is_some())
    }

    fn held(&self, key: &ServiceKey, holder: u64) -> Vec<u64> {
        let instances = self.services.get(key).into_iter();
        let instances = instances.flat_map(Service::instances);
        let held = instances.filter(|instance| instance.holder() == Some(holder));
        held.map(|instance| instance.id).collect()
    }

    /// Whether there is room for that many more instances, and for the service.
    fn check_room(&self, key: &ServiceKey, more: usize) -> Result<(), Refusal> {
        let bounds = self.bounds;
        if !self.services.contains_key(key) && self.services.len() >= bounds.services {
            return Err(Refusal::TooManyServices(bounds.services));
        }
        if more > 0 && self.instances.saturating_add(more) > bounds.instances {
            return Err(Refusal::TooManyInstances(bounds.instances));
        }
        Ok(())
    }

    fn expire_instance(&mut self, key: &ServiceKey, id: u64, now: Timestamp) {
        let Some(instance) = self.instance_mut(key, id) else {
            return;
        };
        instance.armed = None;
        if instance.removal_at().is_some_and(|at| at <= now) {
            self.remove(key, id, now);
            return;
        }
        if instance.silence(now) {
            self.changes.services.insert(key.clone());
        }
        self.arm(key, id);
    }

    fn remove(&mut self, key: &ServiceKey, id: u64, now: Timestamp) {
        let Some(service) = self.services.get_mut(key) else {
            return;
        };
        let Some(instance) = service.remove(id, now) else {
            return;
        };
        self.instances = self.instances.saturating_sub(1);
        self.changes.services.insert(key.clone());
        if let Some(at) = instance.armed {
            self.deadlines
                .remove(&(at, Subject::Instance(key.clone(), id)));
        }
        if service.is_empty() {
            service.empty_since = Some(now);
            self.deadlines
                .insert((now + EMPTY_SERVICE_KEPT, Subject::EmptyService(key.clone())));
        }
    }

    /// Sees to it that the instance has exactly one deadline, not later than what is due next. A beat
    /// moves that into the future; the deadline stays and is armed again when it is reached, so a
    /// beat costs no change of the order.
    fn arm(&mut self, key: &ServiceKey, id: u64) {
        let Some(instance) = self.services.get_mut(key).and_then(|s| s.get_mut(id)) else {
            return;
        };
        let due = instance.due_at();
        if let Some(armed) = instance.armed {
            if due.is_some_and(|due| armed <= due) {
                return;
            }
            self.deadlines
                .remove(&(armed, Subject::Instance(key.clone(), id)));
        }
        instance.armed = due;
        if let Some(due) = due {
            self.deadlines
                .insert((due, Subject::Instance(key.clone(), id)));
        }
    }

    fn meant(&self, key: &ServiceKey, target: Target<'_>) -> Vec<u64> {
        self.services
            .get(key)
            .map(|service| service.meant(target))
            .unwrap_or_default()
    }

    fn instance_mut(&mut self, key: &ServiceKey, id: u64) -> Option<&mut Instance> {
        self.services.get_mut(key)?.get_mut(id)
    }

    fn check_metadata(&self, metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let bytes = metadata
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        let limit = self.bounds.metadata_bytes;
        if bytes > limit {
            Err(Refusal::Metadata { bytes, limit })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
