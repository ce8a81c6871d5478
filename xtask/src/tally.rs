// SPDX-License-Identifier: MIT OR Apache-2.0
//! Adds up the closing lines of test runners (libtest and nextest).

/// Tests counted over several runners.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// Returns whether `line` is the last line of a test runner.
pub(crate) fn closes(line: &str) -> bool {
    line.starts_with("test result: ") || (line.starts_with("Summary [") && line.contains(" run: "))
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
    fn other_lines_do_not_close() {
        assert!(!closes("test acq_2_one_winner ... ok"));
        assert!(!closes("    CompletionResult `test` profile in 1.2s"));
    }
}
