//! Least request by the power of two choices: of two instances drawn by weight, the one with fewer
//! requests in flight per weight. Source: Mitzenmacher, "The Power of Two Choices in Randomized
//! Load Balancing" (2001). Drawing by weight keeps the shares at low load, where nothing is in
//! flight anywhere.

use super::{PickContext, better_of_two};
use crate::endpoint::selectable::{Entry, Selectable};

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    better_of_two(selectable, context, rng, |first, second| {
        let (a, b) = (load(first), load(second));
        a.0 * b.1 <= b.0 * a.1
    })
}

/// (requests in flight, weight).
fn load(entry: &Entry) -> (u64, u64) {
    (
        u64::from(entry.instance.in_flight()),
        u64::from(entry.weight),
    )
}
