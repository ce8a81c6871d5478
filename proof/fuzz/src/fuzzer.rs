// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Fuzzer`]: makes inputs from a corpus, and runs a target on them.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::corpus;
use crate::random::Random;
use crate::targets::Target;

/// The longest input.
const LONGEST: usize = 2_048;
/// How many inputs a run keeps because their results were new.
const POOL: usize = 4_096;
/// Bytes that change what a parser does next.
const TELLING: &[u8] = b"\"\\,;:=&?@/%#{}[]+-.0123456789TPe \t\n\0\x7f\x80\xc3\xff";

/// An input that a target does not accept.
#[derive(Debug, Clone)]
pub struct Found {
    /// The target.
    pub target: &'static str,
    /// The input, as a line of a corpus.
    pub input: String,
    /// The target's message.
    pub message: String,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, input, message } = self;
        writeln!(f, "target {target}: {message}")?;
        write!(f, "add this line to proof/fuzz/corpus/{target}.txt: {input}")
    }
}

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
    /// Whether a target is running.
    static RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the message of each panic of a target instead of printing it.
pub fn catch_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !RUNS.get() {
            return print(info);
        }
        let text = info.payload_as_str().unwrap_or("a panic without a text");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        MESSAGE.with_borrow_mut(|message| *message = format!("{text} ({place})"));
    }));
}

/// Runs one target.
#[derive(Debug)]
pub struct Fuzzer {
    target: Target,
    random: Random,
    pool: Vec<Vec<u8>>,
    seen: HashSet<u64>,
    input: Vec<u8>,
}

impl Fuzzer {
    /// Creates a fuzzer with the target's corpus. The same seed gives the same inputs.
    #[must_use]
    pub fn new(target: Target, seed: u64) -> Self {
        let mut pool = corpus::read(target.corpus);
        pool.push(Vec::new());
        let random = Random::of(seed, 1);
        Self { target, random, pool, seen: HashSet::new(), input: Vec::new() }
    }

    /// Runs the target on its corpus without mutations.
    ///
    /// # Errors
    /// The first input that it does not accept.
    pub fn replay(&mut self) -> Result<(), Box<Found>> {
        for input in self.pool.clone() {
            self.try_one(&input)?;
        }
        Ok(())
    }

    /// Runs the target on this many inputs.
    ///
    /// # Errors
    /// The first input that it does not accept, shortened as far as possible.
    pub fn run(&mut self, executions: u64) -> Result<(), Box<Found>> {
        for _ in 0..executions {
            let mut input = std::mem::take(&mut self.input);
            self.mutate(&mut input);
            self.try_one(&input)?;
            self.input = input;
        }
        Ok(())
    }

    /// Returns the number of inputs that a run has kept, including those of the corpus.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.pool.len()
    }

    fn try_one(&mut self, input: &[u8]) -> Result<(), Box<Found>> {
        match outcome(self.target, input) {
            Ok(kind) => {
                if self.seen.insert(kind) && self.pool.len() < POOL {
                    self.pool.push(input.to_vec());
                }
                Ok(())
            }
            Err(_) => Err(Box::new(shortened(self.target, input.to_vec()))),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.within(0..bound.max(1) as u64)).unwrap_or(0)
    }

    /// Returns a random range, mostly a short one, within an input of this length.
    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let from = self.below(length + 1);
        let most = if self.random.percent(80) { 8 } else { length };
        let to = from + self.below(most.min(length - from) + 1);
        from..to
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let base = self.below(self.pool.len());
        input.clear();
        input.extend_from_slice(&self.pool[base]);
        for _ in 0..=self.below(4) {
            let at = self.below(input.len());
            match self.random.within(0..10) {
                0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
                1 if !input.is_empty() => input[at] = TELLING[self.below(TELLING.len())],
                2 => input.insert(at, TELLING[self.below(TELLING.len())]),
                3 => {
                    let byte = u8::try_from(self.random.within(0..256)).unwrap_or(0);
                    input.insert(at, byte);
                }
                4 => _ = input.drain(self.range(input.len())),
                5 => {
                    let again = input[self.range(input.len())].to_vec();
                    input.splice(at..at, again);
                }
                6 => {
                    let digit = input.iter().skip(at).position(u8::is_ascii_digit);
                    if let Some(digit) = digit {
                        input[at + digit] = b'0' + u8::try_from(self.below(10)).unwrap_or(0);
                    }
                }
                7 | 8 => {
                    let other = self.below(self.pool.len());
                    let range = self.range(self.pool[other].len());
                    let replaced = self.range(input.len());
                    let part = self.pool[other][range].to_vec();
                    input.splice(replaced, part);
                }
                _ => {
                    let part = input[self.range(input.len())].to_vec();
                    let times = 1 << self.below(7);
                    input.splice(at..at, part.repeat(times));
                }
            }
            input.truncate(LONGEST);
        }
    }
}

/// Runs the target, and returns the kind of its result, or its panic.
fn outcome(target: Target, input: &[u8]) -> Result<u64, String> {
    RUNS.set(true);
    let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    RUNS.set(false);
    ended.map_err(|_| MESSAGE.with_borrow(Clone::clone))
}

/// Leaves out parts of an input as long as the target still does not accept it.
fn shortened(target: Target, mut input: Vec<u8>) -> Found {
    let mut part = input.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < input.len() {
            let end = (at + part).min(input.len());
            let shorter = [&input[..at], &input[end..]].concat();
            if outcome(target, &shorter).is_err() {
                input = shorter;
            } else {
                at = end;
            }
        }
        part /= 2;
    }
    let message = outcome(target, &input).err().unwrap_or_default();
    Found { target: target.name, input: corpus::escape(&input), message }
}
