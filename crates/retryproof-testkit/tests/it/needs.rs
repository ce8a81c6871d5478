// SPDX-License-Identifier: MIT OR Apache-2.0
//! The summary names each case that was not run, and the reason (STO-2).

use std::process::Command;

use retryproof_memory::MemoryStore;
use retryproof_testkit::Subject;
use retryproof_testkit::conformance::{Case, Need, Time, cases, run, summary};

fn bare() -> Subject {
    Subject::of(MemoryStore::new()).build()
}

/// Returns whether a memory store with only the contract meets the case's needs.
fn met(case: &Case) -> bool {
    case.needs.is_empty()
}

/// A case that uses an ability that its list of needs does not name would panic on this subject.
#[test]
fn sto_2_a_subject_of_the_contract_alone_is_judged_by_the_cases_without_needs() {
    for case in cases() {
        run(*case, Time::Paused, async || bare());
    }
}

#[test]
fn sto_2_the_summary_names_each_case_that_did_not_judge_and_its_reason() {
    let line = summary(&bare());
    let judged = cases().iter().filter(|case| met(case)).count();
    assert!(
        line.starts_with(&format!("(memory): {judged} of {} cases run; ", cases().len())),
        "{line}"
    );
    for case in cases() {
        let named = line.contains(case.name);
        assert_eq!(named, !met(case), "{case:?}: {line}");
    }
    for need in [Need::Purge, Need::Another, Need::Inspect, Need::Joined, Need::Writes] {
        let count = cases().iter().filter(|case| case.needs.contains(&need)).count();
        assert!(count > 0 && line.contains(&format!(" {need} ({count}): ")), "{need}: {line}");
    }
    let offering = summary(&Subject::of(MemoryStore::new()).with_purge().build());
    assert!(!offering.contains(" purge (") && !offering.contains("sto_4_"), "{offering}");
}

/// The summary bypasses the capture of a test harness, which hides the output of passing tests.
#[test]
fn sto_2_the_summary_is_seen_when_all_cases_pass() {
    let this = std::env::current_exe().expect("the test binary");
    let ran = Command::new(this).arg("memory::sto_2_summary_of_the_kit").output().expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert_eq!(said.lines().filter(|line| line.contains("cases run")).count(), 1, "{said}");
    assert!(said.contains("it::needs::memory (memory): "), "{said}");
}

mod memory {
    retryproof_testkit::conformance! { time = paused, factory = async || super::bare() }
}
