//! What outlives the process: taken over with the first set of endpoints, given out when the state is
//! written.

use super::Driver;
use crate::clock::wall_now;
use crate::endpoint::instance::Standing;
use crate::outlier::Input;
use crate::outlier::detector::Effect;
use crate::outlier::lanes::Lanes;
use crate::state_file::format::{KeptUpstream, WallMs};

impl Driver {
    /// Before the first set: what an earlier process knew waits for its instances.
    pub(super) fn recall(&mut self) {
        let Some(recalled) = self.recalled.take() else {
            return;
        };
        let now = self.clock.now();
        if !recalled.instances.is_empty() {
            self.detector.handle(Input::Seed(recalled.instances), now);
        }
        // Unless routes are no longer judged.
        if let Some(lanes) = &mut self.lanes {
            lanes.seed(recalled.lanes, now);
        }
    }

    /// What another process should know. Before the first set: what an earlier one knew.
    pub(super) fn remember(&self) -> KeptUpstream {
        let now = WallMs::from(wall_now());
        let (whole, lanes) = match &self.recalled {
            Some(recalled) => (recalled.instances.clone(), recalled.lanes.clone()),
            None => {
                let lanes = self.lanes.as_ref().map(Lanes::remembered);
                (self.detector.remembered(), lanes.unwrap_or_default())
            }
        };
        KeptUpstream {
            breakers: self.remember_breakers(now),
            ..KeptUpstream::of(&self.policy.name, whole, lanes, now)
        }
    }

    /// Instances that came back while they are ejected: their connections are not kept idle.
    pub(super) fn stand_as_decided(&mut self) {
        for (address, member) in &self.members {
            let standing = self.detector.standing(address);
            let out = standing.is_some_and(|(state, _, _)| state.is_out());
            if out && member.instance.standing() == Standing::Serving {
                member
                    .instance
                    .set_standing(Standing::Ejected, Some(self.clock.now()));
            }
        }
    }
}

/// Whether what outlives the process differs after it.
pub(super) const fn touches(effect: &Effect) -> bool {
    match effect {
        Effect::Eject(_)
        | Effect::InstanceLeft { .. }
        | Effect::OverrideExpired { .. }
        | Effect::OverrideSet { .. }
        | Effect::Recalled { .. }
        | Effect::Restore(_)
        | Effect::TrialFailed(_)
        | Effect::TrialPassed { .. }
        | Effect::WouldEject(_)
        | Effect::WouldRestore(_) => true,
        Effect::CapZero(_)
        | Effect::CorrelatedFailure { .. }
        | Effect::LastResort { .. }
        | Effect::OfferTrial { .. }
        | Effect::OverrideRefused { .. }
        | Effect::Stale { .. }
        | Effect::StartTrial(_)
        | Effect::Suppress(_)
        | Effect::TrialIgnored { .. }
        | Effect::WithdrawOffer { .. }
        | Effect::WouldSuppress(_) => false,
    }
}
