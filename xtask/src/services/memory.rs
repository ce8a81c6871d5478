// SPDX-License-Identifier: MIT OR Apache-2.0
//! How much memory a database may cache its tables in.

/// Returns the size of a database's cache in MiB: a quarter of the machine's memory, as both
/// databases' manuals advise, and at most what five million records take. The defaults of 128 MiB
/// are too small for today's machines. The memory is allocated page by page when it is used, so
/// tests do not pay for it.
pub(super) fn cache() -> u64 {
    let told = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    quarter(&told).unwrap_or(SMALLEST)
}

const SMALLEST: u64 = 128;
const LARGEST: u64 = 4_096;

fn quarter(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some((kib / 1_024 / 4).clamp(SMALLEST, LARGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_within_bounds() {
        let of = |kib: u64| quarter(&format!("MemTotal:       {kib} kB\nMemFree:        1 kB\n"));
        assert_eq!(of(8 * 1_024 * 1_024), Some(2_048));
        assert_eq!((of(1), of(u64::MAX / 2)), (Some(SMALLEST), Some(LARGEST)));
        assert_eq!(quarter("no such line"), None);
    }
}
