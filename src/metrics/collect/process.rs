//! The standard `process_*` families, from /proc. What cannot be read is left out.

use std::fs;

use crate::metrics::names::{self, Family};
use crate::metrics::sheet::{Sample, Sheet};

/// USER_HZ: the unit of times in /proc, fixed for user space whatever the kernel's own tick is.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn put(sheet: &mut Sheet) {
    let mut set = |family: &Family, value: Option<f64>| {
        if let Some(value) = value {
            sheet.set(family, &[], Sample::Value(value));
        }
    };
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let stat = read("/proc/self/stat");
    let status = read("/proc/self/status");
    set(&names::PROCESS_CPU, cpu_seconds(&stat));
    let limits = read("/proc/self/limits");
    set(&names::PROCESS_MAX_FDS, max_files(&limits));
    set(&names::PROCESS_OPEN_FDS, open_files());
    set(&names::PROCESS_RSS, kib(&status, "VmRSS:"));
    set(&names::PROCESS_START, start(&stat, &read("/proc/stat")));
    let threads = number_after(&status, "Threads:");
    set(&names::PROCESS_THREADS, threads);
    set(&names::PROCESS_VIRTUAL, kib(&status, "VmSize:"));
}

/// Field `n` of /proc/self/stat as proc(5) counts them; the second one may hold blanks.
fn field(stat: &str, n: usize) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(n.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS_PER_SECOND)
}

fn start(stat: &str, system: &str) -> Option<f64> {
    let boot = number_after(system, "btime")?;
    Some(boot + field(stat, 22)? / TICKS_PER_SECOND)
}

fn number_after(text: &str, word: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
    rest.split_whitespace().next()?.parse().ok()
}

fn kib(status: &str, word: &str) -> Option<f64> {
    Some(number_after(status, word)? * 1024.0)
}

fn max_files(limits: &str) -> Option<f64> {
    number_after(limits, "Max open files")
}

/// Without the one that lists them.
fn open_files() -> Option<f64> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_shifts_nothing() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 1000 1 2 3";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(start(stat, "cpu 1\nbtime 500\n"), Some(510.0));
        assert_eq!(start(stat, ""), None);
        assert_eq!(kib("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12288.0));
    }
}
