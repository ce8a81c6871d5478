// SPDX-License-Identifier: MIT OR Apache-2.0
//! The targets, each with its corpus.

use std::hash::{DefaultHasher, Hash, Hasher};

pub mod duration;
pub mod json;
pub mod key;
mod listeners;
mod problem;
mod records;
mod response;
mod settings;

/// A parser with its properties.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the target and of its corpus.
    pub name: &'static str,
    /// Reads the input. Panics if a property does not hold. Returns the kind of the result.
    pub run: fn(&[u8]) -> u64,
    /// The text of the corpus, with one input on each line.
    pub corpus: &'static str,
    /// The goal of the target's long runs, in millions of executions.
    pub goal_millions: u64,
}

macro_rules! targets {
    ($($name:literal, $run:expr, $goal:literal;)*) => {
        &[$(Target {
            name: $name,
            run: $run,
            corpus: include_str!(concat!("../corpus/", $name, ".txt")),
            goal_millions: $goal,
        }),*]
    };
}

/// All targets.
pub const TARGETS: &[Target] = targets! {
    "key", key::run, 100;
    "duration", duration::run, 100;
    "url", settings::url, 100;
    "redis", records::redis, 100;
    "mysql", records::mysql, 100;
    "sqlite", records::sqlite, 100;
    "note", records::note, 100;
    "json", json::run, 10;
    "response", response::run, 10;
    "envelope", response::envelope, 10;
    "configuration", settings::configuration, 10;
    "message", listeners::message, 10;
    "rabbitmq", listeners::rabbitmq, 10;
    "problem", problem::run, 10;
    "retry-after", problem::retry_after, 10;
};

/// Returns the kind of a result; equal parts give an equal kind.
fn kind(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// Returns the order of magnitude of an amount.
fn about(count: usize) -> u32 {
    usize::BITS - count.leading_zeros()
}

/// Returns the input as text; bytes that are not UTF-8 are replaced.
fn text(input: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(input)
}
