//! Smooth weighted round robin. With equal weights a plain turn; else by virtual finish times: the
//! entry whose next turn is earliest goes, and its next turn moves on by 1 / weight. That is as
//! smooth as nginx's current-weight method and costs O(log n) a pick instead of O(n).
//! Source: weighted fair queueing (Demers, Keshav, Shenker, 1989).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{PickContext, TRIES};
use crate::endpoint::selectable::{Entry, Selectable};

/// One turn of an entry of weight 1 in virtual time.
const TURN: u64 = 1 << 32;

/// The place of one upstream's round robin in one worker; starts anew with each snapshot.
#[derive(Debug, Default)]
pub struct RoundRobinState {
    version: u64,
    next: usize,
    turns: BinaryHeap<Reverse<(u64, usize)>>,
}

pub(super) fn pick<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    state: &mut RoundRobinState,
) -> Option<&'a Entry> {
    if selectable.equal_weights() {
        return plain(selectable, context, rng, state);
    }
    if state.version != selectable.version || state.turns.len() != selectable.entries.len() {
        state.version = selectable.version;
        state.turns = selectable
            .entries
            .iter()
            .enumerate()
            // The first turns are spread as the later ones are: at half an interval.
            .map(|(i, entry)| Reverse((interval(entry) / 2, i)))
            .collect();
    }
    let mut skipped = Vec::new();
    let mut found = None;
    for _ in 0..TRIES {
        let Some(Reverse((turn, index))) = state.turns.pop() else {
            break;
        };
        let Some(entry) = selectable.entries.get(index) else {
            break;
        };
        if !context.allows(entry) {
            // Tried by this very request: it keeps its turn for the next one.
            skipped.push(Reverse((turn, index)));
            continue;
        }
        state
            .turns
            .push(Reverse((turn.wrapping_add(interval(entry)), index)));
        if context.accepts(entry, rng) {
            found = Some(entry);
            break;
        }
    }
    state.turns.extend(skipped);
    if state
        .turns
        .peek()
        .is_some_and(|Reverse((turn, _))| *turn > u64::MAX / 2)
    {
        state.turns.clear();
    }
    found
}

fn plain<'a>(
    selectable: &'a Selectable,
    context: &PickContext<'_>,
    rng: &mut fastrand::Rng,
    state: &mut RoundRobinState,
) -> Option<&'a Entry> {
    (0..selectable.entries.len().min(TRIES)).find_map(|_| {
        let index = if state.next < selectable.entries.len() {
            state.next
        } else {
            0
        };
        state.next = index + 1;
        let entry = selectable.entries.get(index)?;
        (context.allows(entry) && context.accepts(entry, rng)).then_some(entry)
    })
}

fn interval(entry: &Entry) -> u64 {
    (TURN / u64::from(entry.weight.max(1))).max(1)
}
