// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the conformance kit on the toy store from the page of the store contract (STO-2).

use retryproof_testkit::{Subject, conformance};

use page::ToyStore;

#[expect(unreachable_pub, reason = "as the page shows it")]
mod page;

async fn subject() -> Subject {
    Subject::of(ToyStore::default()).build()
}

conformance! { time = paused, factory = subject }

#[test]
fn sto_2_the_page_shows_the_store_that_was_judged() {
    let page = include_str!("../../src/store/toy.md");
    let shown = page.split("```").nth(1).expect("a block of code").trim();
    assert!(shown.lines().count() > 60);
    assert!(include_str!("toy/page.rs").ends_with(&format!("\n{shown}\n")), "they differ");
}
