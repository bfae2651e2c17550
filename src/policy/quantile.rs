//! A running estimate of the time in which 95 of 100 response heads come. Pure, one number, no
//! window: a head that took longer moves it up by 9.5 %, one that did not moves it down by 0.5 %, so it
//! rests where 5 in 100 take longer. It doubles within 8 slow heads in a row and halves within 140 fast
//! ones. Source: frugal streaming (Ma, Muthukrishnan, Sandler 2013), with steps in proportion.

use std::time::Duration;

/// No estimate before so many heads.
pub const SAMPLES: u64 = 100;
/// No estimate is shorter: below it a second attempt would be load without a gain.
pub const FLOOR: Duration = Duration::from_millis(5);

/// The estimate after one more head, in microseconds; 0 stands for none yet.
pub const fn next(estimate_us: u64, took_us: u64) -> u64 {
    // Small numbers would not move by a part of them.
    const LEAST: u64 = 200;
    if estimate_us == 0 {
        return if took_us > LEAST { took_us } else { LEAST };
    }
    if took_us > estimate_us {
        return slower(estimate_us);
    }
    let less = estimate_us - estimate_us / LEAST;
    if less > LEAST { less } else { LEAST }
}

/// The estimate after a head that takes longer than it, how long is not known.
pub const fn slower(estimate_us: u64) -> u64 {
    estimate_us.saturating_add(estimate_us.saturating_mul(19) / 200)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The share of `times` above the mean estimate, once it has settled.
    fn share_above(times: &[u64]) -> f64 {
        let mut estimate = 0;
        let mut sum = 0.0;
        let settled = times.len() / 2;
        for (n, took) in times.iter().enumerate() {
            estimate = next(estimate, *took);
            if n >= settled {
                sum += estimate as f64;
            }
        }
        let mean = sum / (times.len() - settled) as f64;
        let above = times.iter().filter(|took| **took as f64 > mean).count();
        above as f64 / times.len() as f64
    }

    proptest! {
        #[test]
        fn five_in_a_hundred_take_longer(seed: u64, least in 500_u64..50_000) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let even: Vec<u64> = (0..20_000).map(|_| rng.u64(least..least * 4)).collect();
            let share = share_above(&even);
            prop_assert!((0.02..0.10).contains(&share), "even: {share}");
            // Long tails: most are fast, some are very slow.
            let tail = |rng: &mut fastrand::Rng| {
                let far = if rng.u8(..) < 8 { 40 } else { 1 };
                (least + least * rng.u64(0..100) / 100) * far
            };
            let tails: Vec<u64> = (0..20_000).map(|_| tail(&mut rng)).collect();
            let share = share_above(&tails);
            prop_assert!((0.02..0.10).contains(&share), "tail: {share}");
        }
    }

    #[test]
    fn it_follows_a_change_both_ways() {
        let mut estimate = 0;
        for _ in 0..200 {
            estimate = next(estimate, 10_000);
        }
        let mut slow = 0;
        while estimate < 20_000 {
            estimate = next(estimate, 100_000);
            slow += 1;
        }
        assert!(slow <= 9, "{slow}");
        let mut fast = 0;
        while estimate > 10_000 {
            estimate = next(estimate, 1_000);
            fast += 1;
        }
        assert!(fast <= 180, "{fast}");
    }
}
