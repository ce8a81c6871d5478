// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every package contains besides its code: its page on the registry, and both licences.

use std::path::Path;

use serde_json::Value;

/// Links to the licences at the root, because a package cannot contain files outside of its folder.
const FILES: [&str; 3] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Returns what is missing in the packages of published crates.
pub(super) fn problems(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["source"].is_null())
        .filter(|package| !package["publish"].as_array().is_some_and(Vec::is_empty))
        .flat_map(|package| missing(package, |file| file.exists()))
        .collect()
}

fn missing(package: &Value, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let folder =
        Path::new(package["manifest_path"].as_str().unwrap_or_default()).with_file_name("");
    let mut problems: Vec<String> = FILES
        .iter()
        .filter(|file| !exists(&folder.join(file)))
        .map(|file| format!("{name}: its folder has no {file}, so the package would lack it"))
        .collect();
    for field in ["readme", "description", "license", "repository"] {
        if !package[field].is_string() {
            problems.push(format!("{name}: Cargo.toml does not name its {field}"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_package_without_its_page_or_a_licence_is_refused() {
        let whole = json!({
            "name": "retryproof-core", "manifest_path": "/w/core/Cargo.toml", "readme": "README.md",
            "description": "x", "license": "MIT", "repository": "x",
        });
        assert!(missing(&whole, |_| true).is_empty());
        let unlicensed = missing(&whole, |file| file != Path::new("/w/core/LICENSE-MIT"));
        assert_eq!(unlicensed.len(), 1, "{unlicensed:?}");
        let mut unnamed = whole;
        unnamed["readme"] = Value::Null;
        assert_eq!(missing(&unnamed, |_| true).len(), 1);
    }
}
