//! How many instances of an upstream may be out. Ten lines that peers got wrong for years, hence
//! their own file: never above the floor of the rate, never the last instance.

/// The cap for `n` routable instances. Zero for one or none.
pub fn cap(n: usize, rate_bp: u32, min_ejectable: u32) -> usize {
    let most = n.saturating_sub(1);
    // 128 bits: no n that fits into memory overflows, and no float rounds 63 down to 62.
    let by_rate = widen(n) * u128::from(rate_bp) / 10_000;
    let by_rate = usize::try_from(by_rate).unwrap_or(usize::MAX);
    let at_least = usize::try_from(min_ejectable)
        .unwrap_or(usize::MAX)
        .min(most);
    by_rate.max(at_least).min(most)
}

fn widen(n: usize) -> u128 {
    u128::try_from(n).unwrap_or(u128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rounds_down_and_keeps_one() {
        for (n, rate, min, want) in [
            (6, 6_000, 0, 3),
            (5, 1_000, 0, 0),
            (10, 1_000, 0, 1),
            (3, 5_000, 0, 1),
            (3, 6_700, 0, 2),
            (4, 10_000, 0, 3),
            (1, 10_000, 5, 0),
            (0, 10_000, 5, 0),
            (90, 7_000, 0, 63),
            (3, 1_000, 1, 1),
            (3, 1_000, 9, 2),
            (2, 5_000, 0, 1),
        ] {
            assert_eq!(cap(n, rate, min), want, "n={n} rate={rate} min={min}");
        }
    }

    proptest! {
        #[test]
        fn is_never_above_the_floor_nor_the_last(n in 0usize..2000, rate in 0u32..=10_000, min in 0u32..50) {
            let cap = cap(n, rate, min);
            let most = n.saturating_sub(1);
            prop_assert!(cap <= most);
            let floor = n * usize::try_from(rate).unwrap() / 10_000;
            let raised = floor.max(usize::try_from(min).unwrap().min(most));
            prop_assert!(cap <= raised);
            prop_assert_eq!(cap, raised.min(most));
        }
    }
}
