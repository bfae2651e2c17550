//! What an operator orders: eject, restore, hold, release, disable, enable, clear. An ejection obeys
//! the rule that somebody stays in, forced or not; only the cap can be forced, and the end of the last
//! instance by `disable`. Orders end at their time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Detector;
use super::effect::{Effect, Evidence, Refusal, RestoredBy, Trigger};
use super::input::OverrideKind;
use super::instance::{Memory, Origin, Pin, Stage};
use super::tally::Tally;
use crate::clock::Timestamp;
use crate::endpoint::Address;

impl Detector {
    pub(super) fn command(
        &mut self,
        address: &Address,
        kind: OverrideKind,
        ttl: Option<Duration>,
        force: bool,
    ) {
        // No time at all would be over before it holds.
        let until = ttl.map(|ttl| self.now + ttl.max(Duration::from_nanos(1)));
        self.unsettled = true;
        let done = match kind {
            OverrideKind::Eject => self.eject_by_operator(address, until, force),
            OverrideKind::Restore => self.restore_by_operator(address),
            OverrideKind::Hold => self.hold(address, Pin { until }),
            OverrideKind::Release => self.end_hold(address),
            OverrideKind::Disable => self.disable(address, Pin { until }, force),
            OverrideKind::Enable => self.enable(address),
            OverrideKind::Clear => self.clear(address),
        };
        let address = address.clone();
        self.effects.push_back(match done {
            Ok(()) => Effect::OverrideSet { address, kind },
            Err(refusal) => Effect::OverrideRefused {
                address,
                kind,
                refusal,
            },
        });
    }

    pub(super) fn expire_overrides(&mut self) {
        let now = self.now;
        let manual =
            |address: &&Address| self.manual_until(address).is_some_and(|until| until <= now);
        let manual: Vec<Address> = self.ejected.iter().filter(manual).cloned().collect();
        for address in manual {
            self.restore(&address, RestoredBy::OverrideExpired);
        }
        for address in ended(&self.disabled, now) {
            if self.enable(&address).is_ok() {
                let kind = OverrideKind::Disable;
                self.effects
                    .push_back(Effect::OverrideExpired { address, kind });
            }
        }
        for address in ended(&self.holds, now) {
            self.holds.remove(&address);
            let kind = OverrideKind::Hold;
            self.effects
                .push_back(Effect::OverrideExpired { address, kind });
        }
    }

    pub(super) fn override_timers(&self) -> impl Iterator<Item = Timestamp> {
        let manual = self
            .ejected
            .iter()
            .filter_map(|address| self.manual_until(address));
        let pins = self.disabled.values().chain(self.holds.values());
        manual.chain(pins.filter_map(|pin| pin.until))
    }

    fn manual_until(&self, address: &Address) -> Option<Timestamp> {
        match self.ejection(address)?.origin {
            Origin::Operator { until, .. } => until,
            Origin::Rules | Origin::Shadow => None,
        }
    }

    fn eject_by_operator(
        &mut self,
        address: &Address,
        until: Option<Timestamp>,
        forced: bool,
    ) -> Result<(), Refusal> {
        let instance = self.instances.get(address).ok_or(Refusal::Unknown)?;
        let origin = Origin::Operator { forced, until };
        if instance
            .ejection
            .as_ref()
            .is_some_and(|ejection| ejection.origin != Origin::Shadow)
        {
            return self.take_over(address, origin);
        }
        // What is only observed does not count here: the order is carried out in any mode.
        let tally = Tally::in_fact(&self.instances);
        if instance.routable && tally.in_service_besides(instance) == 0 {
            return Err(Refusal::LastInstance);
        }
        if !forced && instance.routable && tally.out >= self.cap() {
            return Err(Refusal::CapFull);
        }
        let (evidence, hopeless) = match self.verdict(address) {
            Some(verdict) => (
                verdict.evidence(&self.policy, &instance.window),
                verdict.is_hopeless(),
            ),
            None => (Evidence::default(), false),
        };
        if let Some(instance) = self.instances.get_mut(address) {
            instance.ejection = None;
        }
        self.recount();
        self.eject(address, origin, Trigger::Operator, evidence, hopeless);
        Ok(())
    }

    /// An ejection by the rules becomes one by the operator: its trials end. What was forced stays so,
    /// also when it is ordered again without force: else the order would go beyond the cap.
    fn take_over(&mut self, address: &Address, mut origin: Origin) -> Result<(), Refusal> {
        self.withdraw_offer(address);
        let epoch = self.new_epoch();
        let flap = self.policy.flap_memory;
        let instance = self.instances.get_mut(address).ok_or(Refusal::Unknown)?;
        instance.epoch = epoch;
        if let Some(ejection) = &mut instance.ejection {
            if !ejection.origin.is_manual() {
                instance.memory = Memory::usual(ejection.k, flap);
            }
            if let (Origin::Operator { forced: before, .. }, Origin::Operator { forced: now, .. }) =
                (&ejection.origin, &mut origin)
            {
                *now |= before;
            }
            ejection.origin = origin;
            ejection.stage = Stage::Waiting;
        }
        self.recount();
        Ok(())
    }

    fn restore_by_operator(&mut self, address: &Address) -> Result<(), Refusal> {
        match self.instances.get(address) {
            None => Err(Refusal::Unknown),
            Some(instance) if instance.ejection.is_none() => Err(Refusal::NotEjected),
            Some(_) => {
                self.restore(address, RestoredBy::Operator);
                Ok(())
            }
        }
    }

    fn hold(&mut self, address: &Address, pin: Pin) -> Result<(), Refusal> {
        if !self.instances.contains_key(address) {
            return Err(Refusal::Unknown);
        }
        self.holds.insert(address.clone(), pin);
        Ok(())
    }

    fn end_hold(&mut self, address: &Address) -> Result<(), Refusal> {
        self.holds.remove(address).ok_or(Refusal::NotHeld)?;
        Ok(())
    }

    /// Out of n, whatever the registry says; known by address, so also for one that is away. It may
    /// empty the upstream only by force.
    fn disable(&mut self, address: &Address, pin: Pin, force: bool) -> Result<(), Refusal> {
        let routable = self.instances.get(address).is_some_and(|i| i.routable);
        if routable && !force && Tally::in_fact(&self.instances).n == 1 {
            return Err(Refusal::LastInstance);
        }
        self.disabled.insert(address.clone(), pin);
        self.set_routable(address, false);
        self.recount();
        Ok(())
    }

    fn enable(&mut self, address: &Address) -> Result<(), Refusal> {
        self.disabled.remove(address).ok_or(Refusal::NotDisabled)?;
        if let Some(offered) = self.instances.get(address).map(|instance| instance.offered) {
            self.set_routable(address, offered);
            self.recount();
        }
        Ok(())
    }

    fn clear(&mut self, address: &Address) -> Result<(), Refusal> {
        let enabled = self.enable(address).is_ok();
        let freed = self.holds.remove(address).is_some();
        if !enabled && !freed && !self.instances.contains_key(address) {
            return Err(Refusal::Unknown);
        }
        if self
            .ejection(address)
            .is_some_and(|ejection| ejection.origin.is_manual())
        {
            self.restore(address, RestoredBy::Operator);
        }
        Ok(())
    }
}

fn ended(pins: &BTreeMap<Address, Pin>, now: Timestamp) -> Vec<Address> {
    let over = |pin: &Pin| pin.until.is_some_and(|until| until <= now);
    pins.iter()
        .filter(|(_, pin)| over(pin))
        .map(|(address, _)| address.clone())
        .collect()
}
