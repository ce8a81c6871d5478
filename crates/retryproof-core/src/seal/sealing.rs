// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Sealing`]: the sealer of a store, and the calls that the engine makes to it. [`CallSeal`]:
//! what one call needs to seal its result.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use super::{DataSubject, FingerprintMask, Sealer, SubjectKey, Unsealed, binding};
use crate::blob::Blob;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::identity::{Identity, IdentitySecret};
use crate::owner::OwnerId;
use crate::panics::{Panic, catch_panic, catch_panic_of};
use crate::payload::{self, StoredResult, Tombstone};

/// The sealer of a store with hashed identities.
#[derive(Clone)]
pub(crate) struct Sealing {
    sealer: Arc<dyn Sealer>,
    secret: IdentitySecret,
}

impl Sealing {
    pub(crate) fn new(sealer: Arc<dyn Sealer>, secret: IdentitySecret) -> Self {
        Self { sealer, secret }
    }

    /// Gets the key of the subject, and returns what one call needs to seal its result.
    pub(crate) async fn of_call(
        &self,
        id: &Identity,
        subject: Option<&str>,
        fingerprint: Option<&Fingerprint>,
    ) -> Result<CallSeal> {
        let subject = match subject {
            Some(name) => DataSubject::named(&self.secret, name),
            None => DataSubject::of_scope(&self.secret, id.scope()),
        };
        let key = catch_panic_of(pin!(async { self.sealer.key_for(&subject).await })).await;
        let key = key.unwrap_or_else(|panic| Err(panicked(panic)));
        self.with_key(key.map_err(|error| error.with("subject", subject))?, id, fingerprint)
    }

    /// Like [`of_call`](Self::of_call), for a call that has to continue without a key. The call's
    /// result is recorded as a tombstone.
    pub(crate) fn without_key(
        &self,
        id: &Identity,
        fingerprint: Option<&Fingerprint>,
    ) -> Result<CallSeal> {
        self.with_key(SubjectKey::Destroyed, id, fingerprint)
    }

    fn with_key(
        &self,
        key: SubjectKey,
        id: &Identity,
        fingerprint: Option<&Fingerprint>,
    ) -> Result<CallSeal> {
        let stored = id.clone().stored(&self.secret);
        let mask = FingerprintMask::new(&self.secret, &stored);
        let fingerprint = fingerprint.map(|raw| mask.hide(raw)).transpose()?;
        Ok(CallSeal { key, binding: binding::of(&stored), mask, fingerprint })
    }

    /// Opens a stored result, and reveals its fingerprint. A result stays unopened if it was stored
    /// before results were sealed, or if `is_other`, which gets the revealed fingerprint, returns
    /// `true` (FP-2).
    pub(crate) async fn opened(
        &self,
        id: &Identity,
        stored: StoredResult,
        is_other: impl FnOnce(&Fingerprint) -> bool,
    ) -> Result<StoredResult> {
        let id = id.clone().stored(&self.secret);
        let mask = FingerprintMask::new(&self.secret, &id);
        let stored = stored.with_fingerprint(|hidden| mask.reveal(hidden));
        if stored.fingerprint().is_some_and(is_other) {
            return Ok(stored);
        }
        let Some(sealed) = stored.sealed_body()? else { return Ok(stored) };
        let binding = binding::of(&id);
        let opened =
            catch_panic_of(pin!(async { self.sealer.open(&sealed, &binding).await })).await;
        let opened = opened.unwrap_or_else(|panic| Err(panicked(panic)))?;
        Ok(stored.with_envelope(match opened {
            Unsealed::Result(envelope) => envelope.into(),
            Unsealed::Destroyed => Tombstone::new().into_envelope(),
        }))
    }
}

impl Sealing {
    /// Returns the owner id under which the result of a resolve is stored: a hash of `by` under the
    /// identity secret. [`ForceRequest::resolve`] derives `by` from the result, so if the store
    /// kept `by`, a reader of the store could test guessed results against it.
    ///
    /// [`ForceRequest::resolve`]: crate::store::ForceRequest::resolve
    pub(crate) fn hidden_owner(&self, by: OwnerId) -> OwnerId {
        let hash = self.secret.keyed(&[b"retryproof resolver 1", by.as_bytes()]);
        let mut owner = [0; 16];
        owner.copy_from_slice(&hash[..16]);
        OwnerId::from_bytes(owner)
    }
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sealing").field(&self.sealer).finish()
    }
}

/// What one call needs to seal its result, fetched before the call acquires its lease (SEAL-2).
pub(crate) struct CallSeal {
    key: SubjectKey,
    binding: Vec<u8>,
    pub(crate) mask: FingerprintMask,
    /// The call's fingerprint, hidden.
    pub(crate) fingerprint: Option<Fingerprint>,
}

impl CallSeal {
    /// Seals an envelope. A tombstone without detail has nothing to hide, and a sealed envelope is
    /// returned unchanged.
    ///
    /// # Errors
    /// Fails if the key was destroyed or cannot seal. The record is then completed as a tombstone.
    pub(crate) fn seal(&self, envelope: Blob) -> Result<Blob> {
        if payload::is_bare_tombstone(&envelope) || payload::is_sealed(&envelope) {
            return Ok(envelope);
        }
        match &self.key {
            SubjectKey::Key(key) => {
                let sealing = catch_panic(|| key.seal(&envelope, &self.binding));
                let sealed = sealing.map_err(panicked)??;
                Ok(payload::sealed_envelope(&sealed))
            }
            SubjectKey::Destroyed => Err(Error::new(
                ErrorKind::Codec,
                "the key of the result's subject was destroyed, so the result cannot be stored",
            )),
        }
    }
}

#[cold]
fn panicked(_: Panic) -> Error {
    // The panic's message can contain anything, so the error does not repeat it (ID-4).
    Error::unavailable("the sealer panicked")
}
