// SPDX-License-Identifier: MIT OR Apache-2.0
//! `bench`: hands over to the `benches` crate, which measures and writes.

use std::path::Path;

use crate::Verdict;
use crate::cargo::Cargo;

pub(crate) fn run(root: &Path, suites: &[String]) -> Verdict {
    let bench = Cargo::new("run --release --locked -p retryproof-benches --");
    let bench = suites.iter().fold(bench, |bench, suite| bench.arg(suite));
    println!("{bench}");
    match bench.run(root) {
        Ok(true) => Verdict::Passed(String::new()),
        Ok(false) => Verdict::Failed("see above".into()),
        Err(error) => Verdict::Failed(format!("could not be run: {error}")),
    }
}
