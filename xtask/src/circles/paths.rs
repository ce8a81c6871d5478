// SPDX-License-Identifier: MIT OR Apache-2.0
//! The files that a file's paths lead to: through `use` declarations and paths in code, and through
//! re-exports.

use std::collections::{BTreeMap, BTreeSet};

use super::Module;
use crate::tree::Source;

/// Returns, for each module, the files that its paths name.
pub(super) fn edges(modules: &BTreeMap<Module, &Source>) -> BTreeMap<Module, BTreeSet<Module>> {
    let paths: BTreeMap<&Module, Vec<Path>> = modules
        .iter()
        .map(|(module, file)| (module, paths_of(module, modules, &file.text)))
        .collect();
    modules
        .keys()
        .map(|module| {
            let targets = paths[module].iter().map(|path| resolve(&path.names, &paths, 0));
            // The root module only re-exports items of other modules, so a path to the root itself
            // is not an import.
            let targets = targets.filter(|target| !target.is_empty() && target != module);
            (module.clone(), targets.collect())
        })
        .collect()
}

/// A path in one file, resolved from the crate's root.
struct Path {
    names: Vec<String>,
    /// The name under which the file's module re-exports the thing, if it does.
    offers: Option<String>,
}

/// Returns the module whose file defines the thing that a path names.
fn resolve(names: &[String], paths: &BTreeMap<&Module, Vec<Path>>, depth: usize) -> Module {
    let is_module = |length: &usize| paths.contains_key(&names[..*length].to_vec());
    let length = (0..=names.len()).rev().find(is_module).unwrap_or(0);
    let (module, rest) = (names[..length].to_vec(), &names[length..]);
    let Some((first, inside)) = rest.split_first() else { return module };
    let mut offered = paths[&module].iter();
    match offered.find(|path| path.offers.as_deref() == Some(first)) {
        Some(path) if depth < 4 => {
            let path: Vec<String> = path.names.iter().chain(inside).cloned().collect();
            resolve(&path, paths, depth + 1)
        }
        _ => module,
    }
}

fn paths_of(module: &Module, modules: &BTreeMap<Module, &Source>, text: &str) -> Vec<Path> {
    let tokens = tokens(text);
    let is_child = |name: &str| {
        let child: Module = module.iter().cloned().chain([name.to_owned()]).collect();
        modules.contains_key(&child)
    };
    let (mut found, mut at) = (Vec::new(), 0);
    let mut public = false;
    while at < tokens.len() {
        let (token, next) = (tokens[at].as_str(), tokens.get(at + 1).map(String::as_str));
        let before = at.checked_sub(1).map(|at| tokens[at].as_str());
        match token {
            "pub" => public = true,
            ";" | "{" | "}" => public = false,
            _ => {}
        }
        let starts = before != Some("::")
            && next == Some("::")
            && (["crate", "super", "self"].contains(&token) || is_child(token));
        if starts {
            let is_use = before == Some("use");
            let mut leaves = Vec::new();
            at = tree(&tokens, at, &mut Vec::new(), &mut leaves);
            for (names, offers) in leaves {
                if let Some(names) = from_root(module, &names) {
                    found.push(Path { names, offers: offers.filter(|_| is_use && public) });
                }
            }
            continue;
        }
        at += 1;
    }
    found
}

/// Turns the names of a path in `module` into a path from the crate's root.
fn from_root(module: &Module, names: &[String]) -> Option<Vec<String>> {
    let mut path = module.clone();
    let mut names = names.iter().peekable();
    match names.peek()?.as_str() {
        "crate" => {
            path.clear();
            names.next();
        }
        "self" => {
            names.next();
        }
        _ => {
            while names.next_if(|name| *name == "super").is_some() {
                path.pop()?;
            }
        }
    }
    path.extend(names.filter(|name| *name != "self" && *name != "*").cloned());
    Some(path)
}

type Leaf = (Vec<String>, Option<String>);

/// Reads a path, or a tree of paths, from `at`, and returns where it ends.
fn tree(
    tokens: &[String],
    mut at: usize,
    prefix: &mut Vec<String>,
    leaves: &mut Vec<Leaf>,
) -> usize {
    let depth = prefix.len();
    while let Some(token) = tokens.get(at) {
        if token == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| token != "}") {
                at = tree(tokens, at, prefix, leaves).max(at + 1);
                if tokens.get(at).is_some_and(|token| token == ",") {
                    at += 1;
                }
            }
            at += 1;
            break;
        }
        prefix.push(token.clone());
        at += 1;
        if tokens.get(at).is_some_and(|token| token == "::") {
            at += 1;
            continue;
        }
        let mut offers = prefix.iter().rev().find(|name| *name != "self").cloned();
        if tokens.get(at).is_some_and(|token| token == "as") {
            offers = tokens.get(at + 1).cloned();
            at += 2;
        }
        leaves.push((prefix.clone(), offers));
        break;
    }
    prefix.truncate(depth);
    at
}

/// Splits a file into names and the marks that a path needs, without comments, strings and the
/// tests at the end.
fn tokens(text: &str) -> Vec<String> {
    let text = super::without_tests(text);
    let bytes: Vec<char> = text.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(&first) = bytes.get(at) {
        let next = bytes.get(at + 1).copied();
        if first == '/' && next == Some('/') {
            at += bytes[at..].iter().position(|c| *c == '\n').unwrap_or(bytes.len() - at);
        } else if let Some(end) = end_of_raw_string(&bytes[at..]) {
            at += end;
        } else if first == '"' {
            at += 1;
            while bytes.get(at).is_some_and(|c| *c != '"') {
                at += if bytes[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if first == '\'' && (bytes.get(at + 2) == Some(&'\'') || next == Some('\\')) {
            at += 2;
            at += bytes[at.min(bytes.len())..]
                .iter()
                .position(|c| *c == '\'')
                .map_or(1, |end| end + 1);
        } else if first == ':' && next == Some(':') {
            found.push("::".to_owned());
            at += 2;
        } else if first.is_alphanumeric() || first == '_' {
            let end = bytes[at..].iter().position(|c| !(c.is_alphanumeric() || *c == '_'));
            let end = end.map_or(bytes.len(), |end| at + end);
            found.push(bytes[at..end].iter().collect());
            at = end;
        } else {
            if "{},;*".contains(first) {
                found.push(first.to_string());
            }
            at += 1;
        }
    }
    found
}

/// If a raw string starts here, returns where it ends.
fn end_of_raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest.strip_prefix(&['r'])?.iter().take_while(|c| **c == '#').count();
    let inside = rest.get(1 + hashes..)?.strip_prefix(&['"'])?;
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let length = inside.windows(end.len()).position(|at| *at == *end)?;
    Some(2 + hashes + length + end.len())
}
