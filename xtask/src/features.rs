// SPDX-License-Identifier: MIT OR Apache-2.0
//! `features`: the facade has to compile without a warning, with no feature, with each feature
//! alone, and with all features.

use std::path::Path;

use serde_json::Value;

use crate::Verdict;
use crate::cargo::Cargo;
use crate::deps::metadata;

pub(crate) fn check(root: &Path) -> Verdict {
    let metadata = match metadata(root) {
        Ok(metadata) => metadata,
        Err(why) => return Verdict::Failed(why),
    };
    let names = facade_features(&metadata);
    let base = Cargo::new("check --quiet --locked -p retryproof");
    let mut runs = vec![base.clone().arg("--no-default-features")];
    runs.extend(
        names
            .iter()
            .map(|name| base.clone().arg("--no-default-features").arg("--features").arg(name)),
    );
    runs.push(base.arg("--all-features"));
    let total = runs.len();
    let mut problems = Vec::new();
    for run in &runs {
        println!("  {run}");
        match run.capture(root) {
            // Search the output for warnings, because RUSTFLAGS=-Dwarnings would rebuild every
            // dependency.
            Ok((true, _, errors)) if !errors.lines().any(|line| line.starts_with("warning")) => {}
            Ok((_, _, errors)) => problems.push(format!("{run}\n{errors}")),
            Err(error) => problems.push(format!("cannot run `{run}`: {error}")),
        }
    }
    Verdict::of(&problems, format!("{total} sets of features"))
}

fn facade_features(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["name"] == "retryproof" && package["source"].is_null())
        .filter_map(|package| package["features"].as_object())
        .flat_map(|features| features.keys().cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_features_of_the_facade_are_found_and_of_nothing_else() {
        let metadata = serde_json::json!({"packages": [
            {"name": "retryproof", "source": null, "features": {"default": ["macros"], "http": ["dep:retryproof-http"]}},
            {"name": "retryproof-core", "source": null, "features": {"config": []}},
        ]});
        assert_eq!(facade_features(&metadata), ["default", "http"]);
    }
}
