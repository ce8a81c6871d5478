// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the lines of test runners (libtest and nextest) that tell how many tests ran and which
//! failed.

/// Tests counted over several runners.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// Returns whether `line` is the last line of a test runner, or names a failed test.
pub(crate) fn tells(line: &str) -> bool {
    closes(line) || failed_test(line).is_some()
}

fn closes(line: &str) -> bool {
    line.starts_with("test result: ") || is_summary(line)
}

/// Returns whether `line` is the last line of nextest.
pub(crate) fn is_summary(line: &str) -> bool {
    line.starts_with("Summary [") && line.contains(" run: ")
}

/// Adds up the last lines among `lines`, and returns the names of the failed tests, each once.
///
/// nextest repeats what a failed test printed, which has a last line of libtest. So only its own
/// last line counts.
pub(crate) fn read(lines: &[String]) -> (Tally, Vec<&str>) {
    let by_nextest = lines.iter().any(|line| is_summary(line));
    let mut tally = Tally::default();
    let mut failed: Vec<&str> = Vec::new();
    for line in lines {
        if closes(line) && (is_summary(line) || !by_nextest) {
            tally.add(line);
        }
        let of_nextest = !line.starts_with("test ");
        if let Some(name) = failed_test(line)
            && of_nextest == by_nextest
            && !failed.contains(&name)
        {
            failed.push(name);
        }
    }
    (tally, failed)
}

/// Returns the name of the test whose failure the line reports.
fn failed_test(line: &str) -> Option<&str> {
    // libtest: `test acq_2_one_winner ... FAILED`
    if let Some(name) = line.strip_prefix("test ") {
        return name.strip_suffix(" ... FAILED");
    }
    // nextest: `FAIL [   1.204s] (3/7) retryproof-redis::it acq_2_one_winner`
    let (status, rest) = line.split_once(" [")?;
    let (took, name) = rest.split_once("s] ")?;
    let failed =
        status.starts_with("SIG") || ["FAIL", "ABORT", "TIMEOUT", "LEAK-FAIL"].contains(&status);
    let timed = took.trim_start_matches(['>', ' ']).parse::<f64>().is_ok();
    let name = match name.strip_prefix('(').and_then(|counted| counted.split_once(") ")) {
        Some((_, name)) => name,
        None => name,
    };
    (failed && timed).then(|| name.trim())
}

impl Tally {
    pub(crate) fn add(&mut self, line: &str) {
        if let Some((before, counts)) = line.split_once(" run: ") {
            // nextest:
            // `Summary [  1.2s] 7 tests run: 5 passed (1 slow), 1 failed, 1 timed out, 3 skipped`
            let run = before
                .split_whitespace()
                .rev()
                .nth(1)
                .and_then(|word| word.split('/').next()?.parse().ok());
            let passed = count(counts, "passed");
            self.passed += passed;
            self.ignored += count(counts, "skipped");
            self.failed += run.unwrap_or(0u64).saturating_sub(passed);
        } else {
            // libtest:
            // `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s`
            self.passed += count(line, "passed");
            self.failed += count(line, "failed");
            self.ignored += count(line, "ignored");
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// Returns the number before `word`.
fn count(line: &str, word: &str) -> u64 {
    let words: Vec<&str> = line.split([' ', ',', ';', '.']).filter(|w| !w.is_empty()).collect();
    words
        .windows(2)
        .filter(|pair| pair[1] == word)
        .filter_map(|pair| pair[0].parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(line: &str) -> Tally {
        assert!(closes(line));
        let mut tally = Tally::default();
        tally.add(line);
        tally
    }

    #[test]
    fn both_runners_closing_lines_are_read() {
        let line = "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 9 filtered \
             out; finished in 0.01s";
        assert_eq!(tally(line), Tally { passed: 5, failed: 2, ignored: 1 });
        let line =
            "Summary [   1.204s] 7 tests run: 5 passed (1 slow), 1 failed, 1 timed out, 3 skipped";
        assert_eq!(tally(line), Tally { passed: 5, failed: 2, ignored: 3 });
        let line = "Summary [   0.011s] 1 test run: 1 passed, 0 skipped";
        assert_eq!(tally(line), Tally { passed: 1, failed: 0, ignored: 0 });
        let line = "Summary [   0.011s] 2/9 tests run: 1 passed, 1 failed, 0 skipped";
        assert_eq!(tally(line), Tally { passed: 1, failed: 1, ignored: 0 });
    }

    #[test]
    fn a_failed_test_of_nextest_counts_once_and_is_named() {
        let printed = [
            "FAIL [   1.204s] (3/7) retryproof-redis::it a::one",
            "test a::one ... FAILED",
            "test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 6 filtered out",
            "SIGABRT [   0.004s] retryproof-redis::it b::two",
            "Summary [   1.204s] 7 tests run: 5 passed (1 slow), 2 failed, 0 skipped",
            "FAIL [   1.204s] (3/7) retryproof-redis::it a::one",
            "TIMEOUT [ 600.002s] (7/7) chaos::it c",
        ]
        .map(String::from);
        let (tally, failed) = read(&printed);
        assert_eq!(tally, Tally { passed: 5, failed: 2, ignored: 0 });
        let it = "retryproof-redis::it";
        assert_eq!(failed, [format!("{it} a::one"), format!("{it} b::two"), "chaos::it c".into()]);
    }

    #[test]
    fn the_failed_tests_of_libtest_are_named() {
        let printed = [
            "test a::one ... FAILED",
            "test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ]
        .map(String::from);
        let (tally, failed) = read(&printed);
        assert_eq!(tally, Tally { passed: 6, failed: 1, ignored: 0 });
        assert_eq!(failed, ["a::one"]);
    }

    #[test]
    fn other_lines_tell_nothing() {
        assert!(!tells("test acq_2_one_winner ... ok"));
        assert!(!tells("PASS [   0.004s] (1/7) retryproof-redis::it b::two"));
        assert!(!tells("FAIL [a mark] (1/7) of another program"));
        assert!(!tells("    CompletionResult `test` profile in 1.2s"));
    }
}
