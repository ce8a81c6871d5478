// SPDX-License-Identifier: MIT OR Apache-2.0
//! A mutex that ignores poisoning. This is safe because the guarded data is valid between any two
//! statements. A panic while a lock is held therefore leaves valid data behind. The crate holds no
//! such lock while it calls the application, for example its clock, so that the application can call
//! the crate in turn.

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
