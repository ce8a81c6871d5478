// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sealed results: the interface between the engine and the code that encrypts results (SEAL-1 to
//! SEAL-7).
//!
//! The engine encrypts a result before it sends the result to the store, and decrypts a stored
//! result before anything else reads it. Every store can therefore keep sealed results without any
//! code for them. This crate contains no cipher. The crate `retryproof-seal` implements [`Sealer`].
//!
//! # When to use
//! Use [`SharedStore::sealed_by`](crate::SharedStore::sealed_by) with a sealer from
//! `retryproof-seal`. Implement [`Sealer`] yourself only for another cipher.
//!
//! # Contract for implementors
//! - Each result is sealed with the key of a [`DataSubject`], the person or tenant whom the result is
//!   about. The key is created when it is first needed.
//! - A key can be *destroyed*. Its results then open as [`Unsealed::Destroyed`] in every process,
//!   at the latest when the process's cached copy of the key expires.
//! - A key that is missing or cannot be read is an error, never a destroyed key. If the key was
//!   destroyed, the engine returns a tombstone; after an error, the call fails.
//! - A result that was sealed with one binding must not open with another.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::error::Result;
use crate::identity::{IdentitySecret, Scope};

mod binding;
mod mask;
mod sealing;

pub(crate) use mask::FingerprintMask;
pub(crate) use sealing::{CallSeal, Sealing};

/// The future of a call to a [`Sealer`].
pub type SealFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Encrypts results under keys that can be destroyed (SEAL-1, SEAL-3).
///
/// The engine waits for each call for at most `operation-timeout`, and catches a panic.
pub trait Sealer: fmt::Debug + Send + Sync + 'static {
    /// Returns the key of a subject, and creates the key on first use. The engine calls this method
    /// before it acquires a lease, so nothing has run if the call fails (SEAL-2).
    ///
    /// # Errors
    /// `Unavailable` if the keys cannot be reached at the moment; `Config` if a master key is
    /// missing or wrong.
    ///
    /// # Cancel safety
    /// A dropped call may leave a new key behind, which the next call finds.
    fn key_for<'a>(&'a self, subject: &'a DataSubject) -> SealFuture<'a, SubjectKey>;

    /// Opens a result that a [`SealingKey`] has sealed with the same `binding`.
    ///
    /// # Errors
    /// `Corrupt` if the bytes were changed, were sealed with another binding, or name an unknown
    /// key (CMP-8); `Unavailable` and `Config` as in [`key_for`](Self::key_for).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    fn open<'a>(&'a self, sealed: &'a [u8], binding: &'a [u8]) -> SealFuture<'a, Unsealed>;
}

/// The key with which one call seals its result.
pub trait SealingKey: Send + Sync {
    /// Seals a result. `binding` names the record's identity. It is authenticated together with the
    /// result, but is not part of the returned bytes.
    ///
    /// # Errors
    /// Fails if the operating system provides no random bytes. The record is then completed as a
    /// tombstone (CMP-9).
    fn seal(&self, result: &[u8], binding: &[u8]) -> Result<Vec<u8>>;
}

/// The state of a subject's key.
#[derive(Clone)]
pub enum SubjectKey {
    /// The key exists.
    Key(Arc<dyn SealingKey>),
    /// The key was destroyed. A call of this subject still runs, but its result is recorded as a
    /// tombstone (SEAL-4).
    Destroyed,
}

/// Never prints the key.
impl fmt::Debug for SubjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(hidden)",
            Self::Destroyed => "Destroyed",
        })
    }
}

/// A sealed result that was opened.
pub enum Unsealed {
    /// The bytes that were sealed.
    Result(Vec<u8>),
    /// The key was destroyed, so the result cannot be read any more (SEAL-4).
    Destroyed,
}

/// Prints the length, never the content (ID-4).
impl fmt::Debug for Unsealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result(bytes) => write!(f, "Result({} bytes)", bytes.len()),
            Self::Destroyed => f.write_str("Destroyed"),
        }
    }
}

/// Whom a result is about, as a digest under the identity secret, so that no table of keys contains
/// a name (SEAL-3).
///
/// A program names the subject of a call with
/// [`ContextBuilder::subject`](crate::ContextBuilder::subject), with `subject = ..` in the
/// attribute, or with a hook of the HTTP filter or of a listener. Without such a hook, the HTTP
/// filter uses the caller (HTTP-16). Calls without a subject share one subject in each scope.
///
/// ```
/// use retryproof_core::seal::DataSubject;
/// use retryproof_core::{IdentitySecret, Scope};
///
/// let secret = IdentitySecret::new("5d3c9a1f0b7e4c2d8a6f1e3b5c7d9e0f")?;
/// let ada = DataSubject::named(&secret, "ada@example.org");
/// assert_eq!(ada, DataSubject::named(&secret, "ada@example.org"));
/// assert_ne!(ada, DataSubject::of_scope(&secret, &Scope::new("ada@example.org")?));
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DataSubject([u8; 32]);

impl DataSubject {
    /// Creates the subject with this name, which is the same in every scope. Names are compared
    /// byte for byte.
    #[must_use]
    pub fn named(secret: &IdentitySecret, name: &str) -> Self {
        Self(secret.keyed(&[b"retryproof subject 1 named ", name.as_bytes()]))
    }

    /// Creates the subject that the calls of a scope share if they name no subject.
    #[must_use]
    pub fn of_scope(secret: &IdentitySecret, scope: &Scope) -> Self {
        Self(secret.keyed(&[b"retryproof subject 1 scope ", scope.as_str().as_bytes()]))
    }

    /// Returns the digest, under which a table of keys keeps the subject's key.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Prints the first 16 hex digits of the digest.
impl fmt::Display for DataSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DataSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataSubject({self})")
    }
}
