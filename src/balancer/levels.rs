//! Who is preferred: instances in levels, by priority and within one by nearness, and how much of the
//! traffic each level gets. A level whose usable capacity is at least `min_percent` of its own takes
//! all that reaches it; below that it takes its part and hands the rest on, in proportion, as Envoy's
//! priority levels do. When all levels together have too little, the usable ones share everything:
//! somebody usable is never passed over for nobody.

/// An instance that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// In thousandths, above zero.
    pub weight: u32,
    /// Neither ejected nor failing its checks.
    pub usable: bool,
    /// It is one of the subset, or there is none.
    pub in_subset: bool,
    /// Where it stands; the lowest is preferred.
    pub rank: Rank,
}

/// A level's place: the lowest is preferred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its priority.
    pub priority: u16,
    /// Not in the app's own zone (or cluster).
    pub remote: bool,
}

/// Who gets how much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The levels, the preferred first.
    pub levels: Vec<LevelShare>,
    /// For each candidate its level, if it may be used at all.
    pub level_of: Vec<Option<usize>>,
    /// For each candidate its weight; zero: no traffic.
    pub weights: Vec<u32>,
}

/// One level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelShare {
    /// Its place.
    pub rank: Rank,
    /// Its part of the traffic in hundredths of a percent.
    pub share_bp: u32,
    total: u64,
    usable: u64,
}

/// The whole traffic.
const ALL_BP: u32 = 10_000;
/// The largest weight where levels share: fine enough for their proportions, and far from the limits
/// of what balancers add up.
const LARGEST: u64 = 10_000_000;

/// Spreads the traffic. `min_percent` from 1 to 100.
pub fn spread(candidates: &[Candidate], min_percent: u32) -> Spread {
    // The subset decides first: the others stand in only when none of it can be used.
    let subset_serves = candidates.iter().any(|c| c.in_subset && c.usable);
    let counts = |c: &Candidate| !subset_serves || c.in_subset;
    let mut ranks: Vec<Rank> = candidates
        .iter()
        .filter(|c| counts(c))
        .map(|c| c.rank)
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut levels: Vec<LevelShare> = ranks.into_iter().map(LevelShare::empty).collect();
    let mut level_of = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        let place = levels.binary_search_by_key(&candidate.rank, |level| level.rank);
        let place = place.ok().filter(|_| counts(candidate));
        if let Some(level) = place.and_then(|place| levels.get_mut(place)) {
            level.total += u64::from(candidate.weight);
            level.usable += u64::from(if candidate.usable {
                candidate.weight
            } else {
                0
            });
        }
        level_of.push(place);
    }
    share(&mut levels, min_percent);
    let weights = weigh(candidates, &levels, &level_of);
    Spread {
        levels,
        level_of,
        weights,
    }
}

impl LevelShare {
    const fn empty(rank: Rank) -> Self {
        Self {
            rank,
            share_bp: 0,
            total: 0,
            usable: 0,
        }
    }

    /// What it can take of all traffic.
    fn capacity_bp(&self, min_percent: u32) -> u32 {
        let wanted = u128::from(self.total) * u128::from(min_percent.clamp(1, 100));
        if wanted == 0 || self.usable == 0 {
            return 0;
        }
        let bp = u128::from(self.usable) * 100 * u128::from(ALL_BP) / wanted;
        u32::try_from(bp).unwrap_or(ALL_BP).clamp(1, ALL_BP)
    }
}

fn share(levels: &mut [LevelShare], min_percent: u32) {
    let mut left = ALL_BP;
    for level in &mut *levels {
        level.share_bp = level.capacity_bp(min_percent).min(left);
        left -= level.share_bp;
    }
    let taken = ALL_BP - left;
    if left == 0 || taken == 0 {
        return;
    }
    // Too little altogether: in proportion, and what rounding leaves goes to the first that can.
    for level in &mut *levels {
        level.share_bp = level.share_bp * ALL_BP / taken;
    }
    let sum: u32 = levels.iter().map(|level| level.share_bp).sum();
    if let Some(first) = levels.iter_mut().find(|level| level.share_bp > 0) {
        first.share_bp += ALL_BP - sum;
    }
}

/// Weights that give each level its share. Where one level has all, they are what they were.
fn weigh(candidates: &[Candidate], levels: &[LevelShare], level_of: &[Option<usize>]) -> Vec<u32> {
    let shared = levels.iter().filter(|level| level.share_bp > 0).count() > 1;
    // The largest factor a weight is multiplied with becomes the one that makes it LARGEST.
    let scaled = |candidate: &Candidate, level: &LevelShare| {
        u128::from(candidate.weight) * u128::from(level.share_bp) * (1 << 32)
            / u128::from(level.usable.max(1))
    };
    let of = |(candidate, place): (&Candidate, &Option<usize>)| {
        let level = levels.get((*place)?)?;
        (candidate.usable && level.share_bp > 0).then_some((*candidate, *level))
    };
    let used: Vec<Option<(Candidate, LevelShare)>> =
        candidates.iter().zip(level_of).map(of).collect();
    let most = used
        .iter()
        .flatten()
        .map(|(c, level)| scaled(c, level))
        .max();
    let most = most.unwrap_or(1).max(1);
    let weight = |used: &Option<(Candidate, LevelShare)>| match used {
        None => 0,
        Some((candidate, _)) if !shared => candidate.weight,
        Some((candidate, level)) => {
            let weight = scaled(candidate, level) * u128::from(LARGEST) / most;
            u32::try_from(weight).unwrap_or(u32::MAX).max(1)
        }
    };
    used.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidate(priority: u16, remote: bool, usable: bool) -> Candidate {
        Candidate {
            weight: 1_000,
            usable,
            in_subset: true,
            rank: Rank { priority, remote },
        }
    }

    /// Traffic by candidate, in percent.
    fn traffic(candidates: &[Candidate]) -> Vec<u64> {
        let weights = spread(candidates, 70).weights;
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        weights
            .iter()
            .map(|w| (u64::from(*w) * 1_000 / sum.max(1) + 5) / 10)
            .collect()
    }

    #[test]
    fn near_ones_take_all_while_seventy_percent_of_them_are_well() {
        let set = |well: usize| {
            let near = (0..10).map(|n| candidate(0, false, n < well));
            near.chain([candidate(0, true, true)]).collect::<Vec<_>>()
        };
        assert_eq!(traffic(&set(10))[10], 0);
        assert_eq!(traffic(&set(7))[10], 0);
        // 60 of 70: a seventh goes elsewhere.
        assert_eq!(traffic(&set(6))[10], 14);
        assert_eq!(traffic(&set(1))[10], 86);
        assert_eq!(traffic(&set(0))[10], 100);
        let levels = spread(&set(6), 70).levels;
        assert_eq!(levels[0].share_bp, 8_571);
    }

    #[test]
    fn weights_stay_what_they_are_where_one_level_has_all() {
        let mut set = vec![candidate(0, false, true), candidate(0, false, true)];
        set[1].weight = 3_000;
        set.push(candidate(1, false, true));
        assert_eq!(spread(&set, 70).weights, [1_000, 3_000, 0]);
    }

    #[test]
    fn tiers_follow_each_other_and_little_is_shared_by_all() {
        let set = [
            candidate(10, false, false),
            candidate(20, false, true),
            candidate(20, false, true),
            candidate(30, false, true),
        ];
        assert_eq!(traffic(&set), [0, 50, 50, 0]);
        // Half of each of two levels: 71 % each, so the first keeps that and the rest goes on.
        let set = [
            candidate(0, false, true),
            candidate(0, false, false),
            candidate(1, false, true),
            candidate(1, false, false),
        ];
        assert_eq!(traffic(&set), [71, 0, 29, 0]);
        // A tenth of each: they share everything.
        let mut set = vec![candidate(0, false, true), candidate(1, false, true)];
        set.extend((0..9).map(|_| candidate(0, false, false)));
        set.extend((0..9).map(|_| candidate(1, false, false)));
        assert_eq!(traffic(&set)[..2], [50, 50]);
    }

    #[test]
    fn a_subset_comes_before_everything_until_it_is_out() {
        let mut set = vec![candidate(0, false, true), candidate(5, true, true)];
        set[0].in_subset = false;
        assert_eq!(traffic(&set), [0, 100]);
        assert_eq!(spread(&set, 70).level_of, [None, Some(0)]);
        set[1].usable = false;
        assert_eq!(traffic(&set), [100, 0]);
    }

    fn any_candidate() -> impl Strategy<Value = Candidate> {
        let rank = (0_u16..3, any::<bool>());
        (1_u32..20_000, any::<bool>(), any::<bool>(), rank).prop_map(
            |(weight, usable, in_subset, (priority, remote))| Candidate {
                weight,
                usable,
                in_subset,
                rank: Rank { priority, remote },
            },
        )
    }

    proptest! {
        #[test]
        fn all_of_the_traffic_goes_to_usable_ones(
            set in proptest::collection::vec(any_candidate(), 0..40),
            min_percent in 1_u32..=100,
        ) {
            let spread = spread(&set, min_percent);
            let anybody = set.iter().any(|c| c.usable);
            let sum: u32 = spread.levels.iter().map(|level| level.share_bp).sum();
            prop_assert_eq!(sum, if anybody { ALL_BP } else { 0 });
            prop_assert_eq!(spread.weights.iter().any(|w| *w > 0), anybody);
            for ((c, weight), level) in set.iter().zip(&spread.weights).zip(&spread.level_of) {
                prop_assert!(c.usable || *weight == 0);
                let share = level.map_or(0, |level| spread.levels[level].share_bp);
                prop_assert_eq!(*weight > 0, c.usable && share > 0);
            }
        }

        #[test]
        fn a_level_that_is_well_enough_keeps_all(
            mut set in proptest::collection::vec(any_candidate(), 1..40),
            min_percent in 1_u32..=100,
        ) {
            for c in &mut set {
                c.usable = true;
                c.in_subset = true;
            }
            let spread = spread(&set, min_percent);
            prop_assert_eq!(spread.levels[0].share_bp, ALL_BP);
            for (c, weight) in set.iter().zip(&spread.weights) {
                let first = c.rank == spread.levels[0].rank;
                prop_assert_eq!(*weight, if first { c.weight } else { 0 });
            }
        }

        #[test]
        fn weights_give_each_level_its_share(
            set in proptest::collection::vec(any_candidate(), 1..40),
            min_percent in 1_u32..=100,
        ) {
            let spread = spread(&set, min_percent);
            let sum: u64 = spread.weights.iter().map(|w| u64::from(*w)).sum();
            prop_assume!(sum > 0);
            for (number, level) in spread.levels.iter().enumerate() {
                let of_level = spread.weights.iter().zip(&spread.level_of);
                let got: u64 = of_level
                    .filter(|(_, place)| **place == Some(number))
                    .map(|(w, _)| u64::from(*w))
                    .sum();
                let bp = got * u64::from(ALL_BP) / sum;
                let off = bp.abs_diff(u64::from(level.share_bp));
                prop_assert!(off <= 3, "{bp} instead of {}", level.share_bp);
            }
        }
    }
}
