//! Weighted random.

use super::{PickContext, TRIES};
use crate::endpoint::selectable::{Entry, Selectable};

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
) -> Option<&'a Entry> {
    (0..TRIES).find_map(|_| {
        let entry = selectable.sample(rng)?;
        (context.allows(entry) && context.accepts(entry, rng)).then_some(entry)
    })
}
