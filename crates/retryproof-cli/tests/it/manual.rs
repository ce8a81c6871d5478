// SPDX-License-Identifier: MIT OR Apache-2.0
//! Help, completions and manual pages.

use crate::support::{bare, code, err, out};

fn printed(arguments: &[&str]) -> String {
    let output = bare().args(arguments).output().unwrap();
    assert_eq!(code(&output), 0, "{arguments:?}: {}", err(&output));
    out(&output)
}

const VERBS: [&str; 18] = [
    "get",
    "ls",
    "stuck",
    "stats",
    "top",
    "release",
    "resolve",
    "forget",
    "erase",
    "purge",
    "export",
    "import",
    "migrate",
    "config",
    "run",
    "key",
    "completions",
    "man",
];

#[test]
fn help_pages_and_completions_name_every_verb_and_no_internal_one() {
    let mut texts = vec![printed(&["--help"]), printed(&["man"])];
    for shell in ["bash", "zsh", "fish"] {
        texts.push(printed(&["completions", shell]));
    }
    for text in &texts {
        for verb in VERBS {
            assert!(text.contains(verb), "{verb}: {text}");
        }
        assert!(!text.contains("__exec"), "{text}");
    }
    assert!(printed(&["--version"]).starts_with("retryproof "));
}

#[test]
fn each_verb_has_a_page_and_help() {
    for verb in VERBS {
        assert!(printed(&[verb, "--help"]).contains("Usage: retryproof"));
        let page = printed(&["man", verb]);
        assert!(page.contains(&format!("retryproof\\-{verb}")), "{page}");
    }
    assert!(printed(&["run", "--help"]).contains("retryproof run backup"));
    assert_eq!(code(&bare().args(["man", "no-verb"]).output().unwrap()), 2);
}
