// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`TestKeys`]: a sealer for tests, with keys in memory that can be destroyed or made unreachable.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use retryproof_core::seal::{DataSubject, SealFuture, Sealer, SealingKey, SubjectKey, Unsealed};
use retryproof_core::{Error, ErrorKind, Result};

/// How many bytes a key's number and a binding's length each take. Both precede the sealed bytes.
const NUMBER: usize = 8;

/// A sealer for tests (SEAL-1). Clones share their keys, as processes share a table of keys.
///
/// **The sealed bytes are not encrypted**, only disguised: each byte is changed, so that a search
/// for the plaintext finds nothing. The binding is stored beside the sealed bytes, and is compared
/// when they are opened.
#[derive(Clone, Default)]
pub struct TestKeys(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    of_subject: HashMap<DataSubject, u64>,
    /// For each key, whether it still exists.
    exists: Vec<bool>,
    away: Option<ErrorKind>,
    asked: usize,
}

impl TestKeys {
    /// Creates a sealer without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Destroys the key of a subject, for good.
    pub fn destroy(&self, subject: &DataSubject) {
        let mut keys = self.0.lock();
        let number = keys.number(subject);
        if let Some(exists) = usize::try_from(number).ok().and_then(|at| keys.exists.get_mut(at)) {
            *exists = false;
        }
    }

    /// Makes every call fail with an error of this kind. With `None`, calls succeed again.
    pub fn fail(&self, kind: Option<ErrorKind>) {
        self.0.lock().away = kind;
    }

    /// Returns how many times a key was requested.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.0.lock().asked
    }

    fn answer<T>(&self, answer: impl FnOnce(&mut Keys) -> Result<T>) -> Result<T> {
        let mut keys = self.0.lock();
        match keys.away {
            Some(kind) => Err(Error::new(kind, "the test has made the keys unreachable")),
            None => answer(&mut keys),
        }
    }
}

impl Keys {
    fn number(&mut self, subject: &DataSubject) -> u64 {
        let next = self.exists.len() as u64;
        let number = *self.of_subject.entry(*subject).or_insert(next);
        if number == next {
            self.exists.push(true);
        }
        number
    }

    fn exists(&self, number: u64) -> Option<bool> {
        self.exists.get(usize::try_from(number).ok()?).copied()
    }
}

impl Sealer for TestKeys {
    fn key_for<'a>(&'a self, subject: &'a DataSubject) -> SealFuture<'a, SubjectKey> {
        Box::pin(async move {
            self.answer(|keys| {
                keys.asked += 1;
                let number = keys.number(subject);
                Ok(match keys.exists(number) {
                    Some(true) => SubjectKey::Key(Arc::new(TestKey(number))),
                    _ => SubjectKey::Destroyed,
                })
            })
        })
    }

    fn open<'a>(&'a self, sealed: &'a [u8], binding: &'a [u8]) -> SealFuture<'a, Unsealed> {
        Box::pin(async move {
            self.answer(|keys| {
                let (number, rest) = number_of(sealed)?;
                let (length, rest) = number_of(rest)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let (bound, rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
                match keys.exists(number) {
                    None => Err(Error::corrupt("the result was sealed with an unknown key")),
                    Some(false) => Ok(Unsealed::Destroyed),
                    Some(true) if bound != binding => Err(damaged()),
                    Some(true) => Ok(Unsealed::Result(disguised(rest))),
                }
            })
        })
    }
}

struct TestKey(u64);

impl SealingKey for TestKey {
    fn seal(&self, result: &[u8], binding: &[u8]) -> Result<Vec<u8>> {
        let length = (binding.len() as u64).to_le_bytes();
        Ok([&self.0.to_le_bytes()[..], &length, binding, &disguised(result)].concat())
    }
}

fn disguised(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().map(|byte| byte ^ 0xa5).collect()
}

fn number_of(bytes: &[u8]) -> Result<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<NUMBER>().ok_or_else(damaged)?;
    Ok((u64::from_le_bytes(*number), rest))
}

fn damaged() -> Error {
    Error::corrupt("the sealed result was changed, or belongs to another record")
}

impl fmt::Debug for TestKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TestKeys")
    }
}
