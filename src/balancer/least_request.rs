//! Least request by the power of two choices: of two instances drawn by weight, the one with fewer
//! requests in flight per weight. Source: Mitzenmacher, "The Power of Two Choices in Randomized
//! Load Balancing" (2001). Drawing by weight keeps the shares at low load, where nothing is in
//! flight anywhere.

use super::{PickContext, draw};
use crate::endpoint::selectable::{Entry, Selectable};

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    let first = draw(selectable, context, rng, None)?;
    let Some(second) = draw(selectable, context, rng, Some(first)) else {
        return Some(first);
    };
    let (a, b) = (load(first), load(second));
    // a.0 / a.1 <= b.0 / b.1, without a division; on a tie the first drawn.
    Some(if a.0 * b.1 <= b.0 * a.1 {
        first
    } else {
        second
    })
}

/// (requests in flight, weight).
fn load(entry: &Entry) -> (u64, u64) {
    (
        u64::from(entry.instance.in_flight()),
        u64::from(entry.weight),
    )
}
