// SPDX-License-Identifier: MIT OR Apache-2.0
//! The envelope of a sealed result (SEAL-1, SEAL-5).

use super::{HEADER, MAGIC, MUST_UNDERSTAND, StoredResult, TOMBSTONE, VERSION};
use crate::blob::Blob;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;

/// The flag of a sealed envelope.
pub(super) const SEALED: u8 = 4;
/// The version of the sealed form.
const SEALED_VERSION: u8 = 1;
/// The header of a sealed envelope.
pub(crate) const SEALED_HEADER: [u8; HEADER] =
    [MAGIC[0], MAGIC[1], VERSION, SEALED, 0, 0, SEALED_VERSION, 0];

impl StoredResult {
    pub(crate) fn with_fingerprint(mut self, map: impl FnOnce(Fingerprint) -> Fingerprint) -> Self {
        self.fingerprint = self.fingerprint.map(map);
        self
    }

    pub(crate) fn with_envelope(mut self, envelope: Blob) -> Self {
        self.envelope = envelope;
        self
    }

    /// Returns the envelope of a sealed result, which can be copied unopened, or `None` if the
    /// result is not sealed. [`SharedStore::open_sealed`](crate::SharedStore::open_sealed) opens
    /// the envelope (SEAL-1).
    #[must_use]
    pub fn sealed(&self) -> Option<&Blob> {
        is_sealed(&self.envelope).then_some(&self.envelope)
    }

    /// Returns the sealed bytes; `None` if the result is not sealed.
    pub(crate) fn sealed_body(&self) -> Result<Option<Blob>> {
        let Some(envelope) = self.sealed() else { return Ok(None) };
        if envelope.starts_with(&SEALED_HEADER) {
            return Ok(Some(envelope.skip(HEADER)));
        }
        Err(Error::corrupt(
            "the stored value is sealed in a form that this version cannot open, probably because \
             a newer version of retryproof wrote the value; upgrade this program",
        ))
    }
}

#[cold]
pub(super) fn is_still_sealed() -> Error {
    Error::corrupt(
        "the stored value is sealed, but this program has no keys to open it; set `seal.keys` and \
         `seal.master` as in the programs that write sealed values",
    )
}

/// Whether an envelope is marked as sealed.
pub(crate) fn is_sealed(envelope: &[u8]) -> bool {
    matches!(envelope, [m0, m1, VERSION, flags, ..]
        if [*m0, *m1] == MAGIC && flags & MUST_UNDERSTAND == SEALED)
}

/// Whether an envelope is a tombstone without detail.
pub(crate) fn is_bare_tombstone(envelope: &[u8]) -> bool {
    matches!(envelope, [m0, m1, VERSION, TOMBSTONE, _, _, _, _] if [*m0, *m1] == MAGIC)
}

/// Returns an envelope that contains sealed bytes.
pub(crate) fn sealed_envelope(sealed: &[u8]) -> Blob {
    [&SEALED_HEADER[..], sealed].concat().into()
}
