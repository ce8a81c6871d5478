// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutex that is never poisoned: what a lock of this crate guards is whole between any two
//! statements, and a panic of a caller's code never happens under one.

use std::fmt;
use std::sync::PoisonError;

pub(crate) use std::sync::MutexGuard;

#[derive(Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
