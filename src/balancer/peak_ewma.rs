//! Peak EWMA by the power of two choices: of two instances drawn by weight, the one whose next answer
//! is expected sooner, (latency x (requests in flight + 1)) / weight. Source: Finagle's
//! `Balancers.p2cPeakEwma` and linkerd's `linkerd/pool/p2c`. The estimate is `endpoint/latency.rs`.

use std::time::Duration;

use super::{PickContext, better_of_two};
use crate::endpoint::latency::UNIT;
use crate::endpoint::selectable::{Entry, Selectable};

/// What is assumed of an instance that has requests in flight and gave no answer yet: it is not
/// flooded before it has shown what it can do.
const UNKNOWN: Duration = Duration::from_secs(1);

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    better_of_two(selectable, context, rng, |first, second| {
        let (a, b) = (cost(first, context), cost(second, context));
        a.0 * u128::from(b.1) <= b.0 * u128::from(a.1)
    })
}

/// (expected time, weight). An idle instance's estimate fades, so that one that was slow long ago is
/// tried again; one that has requests in flight keeps it: its silence is no good sign.
fn cost(entry: &Entry, context: &PickContext<'_>) -> (u128, u64) {
    let in_flight = entry.instance.in_flight();
    let latency = &entry.instance.latency;
    let estimate = match in_flight {
        0 => latency.faded(context.now).unwrap_or(0),
        _ => latency.latest().unwrap_or_else(|| units(UNKNOWN)),
    };
    let time = u128::from(estimate) * (u128::from(in_flight) + 1);
    (time, u64::from(entry.weight))
}

fn units(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / UNIT.as_nanos()).unwrap_or(u32::MAX)
}
