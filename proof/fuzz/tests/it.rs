// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs each target for a second or two, and checks that planted defects are found and that no
//! target is slow.

use std::time::Duration;

use fuzz::{Fuzzer, TARGETS, Target, catch_panics, targets};
use retryproof_core::clock::{Clock as _, SystemClock};

/// How often the tests run a target, and how often one that is slow in a debug build.
const GATE: u64 = 30_000;
const SLOW: u64 = 3_000;

fn target(name: &str) -> Target {
    *TARGETS.iter().find(|target| target.name == name).expect("there should be such a target")
}

fn run(name: &str, executions: u64) {
    catch_panics();
    let mut fuzzer = Fuzzer::new(target(name), 1);
    let known = fuzzer.kept();
    for step in [fuzzer.replay(), fuzzer.run(executions)] {
        step.unwrap_or_else(|found| panic!("{found}"));
    }
    let kept = fuzzer.kept();
    assert!(kept > known + 2, "{name} found hardly anything new: {kept} inputs of {known}");
}

macro_rules! gate {
    ($($test:ident $name:literal $executions:ident;)*) => {
        $(#[test] fn $test() { run($name, $executions); })*

        #[test]
        fn every_target_is_in_the_gate() {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$($name),*]);
        }
    };
}

gate! {
    http_2_the_key_header "key" GATE;
    ctx_4_durations "duration" GATE;
    id_4_store_urls "url" GATE;
    cmp_8_records_of_redis "redis" GATE;
    cmp_8_records_of_mysql "mysql" GATE;
    cmp_8_records_of_sqlite "sqlite" GATE;
    rec_2_notes "note" GATE;
    fp_3_canonical_json "json" SLOW;
    cmp_8_stored_responses "response" GATE;
    cmp_8_envelopes "envelope" GATE;
    cfg_1_configurations "configuration" SLOW;
    lst_2_messages "message" GATE;
    lst_2_messages_of_rabbitmq "rabbitmq" GATE;
    http_11_problem_documents "problem" GATE;
    http_10_retry_after "retry-after" GATE;
}

/// Each target reads a megabyte, made of any input of its corpus, in less than two seconds. The
/// slowest target needs a tenth of that. A target whose time grows with the square of the length
/// would need much more.
#[test]
fn no_target_takes_more_than_linear_time() {
    catch_panics();
    for target in TARGETS {
        for line in target.corpus.lines().filter(|line| !line.is_empty()) {
            let long = line.as_bytes().repeat(1_000_000 / line.len());
            let began = SystemClock.now();
            let _ = (target.run)(&long);
            let took = SystemClock.now() - began;
            assert!(took < Duration::from_secs(2), "{}: {took:?} for {line}", target.name);
        }
    }
}

/// Checks that the fuzzer finds a defect that is planted in a copy of a target. Returns the message
/// of the finding.
fn is_found(name: &str, run: fn(&[u8]) -> u64) -> String {
    catch_panics();
    let planted = Target { run, ..target(name) };
    let mut fuzzer = Fuzzer::new(planted, 1);
    fuzzer.replay().expect("the corpus alone should not show the defect");
    let found = fuzzer.run(GATE).expect_err("the defect should be found");
    println!("{found}");
    found.message
}

#[test]
fn a_planted_panic_is_found() {
    let message = is_found("duration", |input| {
        targets::duration::check(input, |text| {
            assert!(!text.starts_with("P9W"), "planted");
            retryproof_duration::parse(text).ok()
        })
    });
    assert!(message.starts_with("planted"), "{message}");
}

#[test]
fn a_planted_rounding_error_is_found() {
    is_found("duration", |input| {
        targets::duration::check(input, |text| {
            let parsed = retryproof_duration::parse(text).ok()?;
            let lost = u32::from(parsed.subsec_nanos() % 10 == 3);
            Some(parsed - Duration::from_nanos(lost.into()))
        })
    });
}

#[test]
fn a_planted_unstable_form_is_found() {
    is_found("json", |input| {
        targets::json::check(input, |body| {
            let value: serde_json::Value = serde_json::from_slice(body).ok()?;
            let mut text = value.to_string();
            if text.contains("[{") {
                text.push(' ');
            }
            Some(text.into_bytes())
        })
    });
}
