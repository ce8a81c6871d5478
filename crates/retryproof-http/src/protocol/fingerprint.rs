// SPDX-License-Identifier: MIT OR Apache-2.0
//! Request fingerprints (FP-3): one algorithm byte, then 32 bytes of SHA-256.
//!
//! The hash is SHA-256, not a faster one, because a client that can forge a collision gets another
//! request's stored response. Each record stores the algorithm byte. After a change of
//! `idempotency.web.fingerprint`, the guard still compares a retry by the algorithm of the older
//! record, and does not refuse the retry because of the change.

use std::fmt;

use retryproof_core::Fingerprint;
use sha2::{Digest as _, Sha256};

mod canonical;
mod ignored;
mod pointer;

pub(crate) use ignored::{IgnoredMembers, are_comparable, has_target, leaves_out};

/// The lowest algorithm byte of a [`FingerprintRequest`]; lower bytes belong to this crate.
pub const FIRST_CUSTOM_ALGORITHM: u8 = 128;

/// The built-in algorithms; the discriminants are stored and never change meaning. The byte 4
/// belongs to [`IgnoredMembers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FingerprintAlgorithm {
    /// Covers method, path, query and body.
    Request = 1,
    /// Covers only the body.
    Body = 2,
    /// Like [`Request`](Self::Request), but with the body in canonical form (RFC 8785) if the body
    /// is I-JSON.
    Json = 3,
}

impl FingerprintAlgorithm {
    /// Returns the algorithm that a record names, or `None` if the algorithm is not built in.
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        [Self::Request, Self::Body, Self::Json].into_iter().find(|known| *known as u8 == byte)
    }
}

/// The parts of a request that a fingerprint can cover.
///
/// Credentials, trace ids and content negotiation are deliberately left out, because they can
/// differ in a retry.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct RequestParts<'a> {
    /// The method, as the client sent it.
    pub method: &'a str,
    /// Path and query, as the client sent them (before any router stripped a prefix).
    pub target: &'a str,
    /// The whole body.
    pub body: &'a [u8],
}

impl<'a> RequestParts<'a> {
    /// Creates the parts of one request.
    #[must_use]
    pub const fn new(method: &'a str, target: &'a str, body: &'a [u8]) -> Self {
        Self { method, target, body }
    }
}

// `Debug` is implemented by hand because a path or a body can contain data that must not be logged
// (ID-4).
impl fmt::Debug for RequestParts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestParts({} with {} bytes)", self.method, self.body.len())
    }
}

/// A custom fingerprint algorithm (FP-3), for the filter's builder.
///
/// Two requests that must not share a response need different digests. A client must not be able to
/// forge a collision, so use a cryptographic hash over parts that are prefixed with their length.
///
/// ```
/// use retryproof_http::{FingerprintRequest, RequestParts};
///
/// #[derive(Debug)]
/// struct PathOnly;
///
/// impl FingerprintRequest for PathOnly {
///     fn algorithm(&self) -> u8 { 128 }
///     fn digest(&self, request: &RequestParts<'_>) -> [u8; 32] {
///         use sha2::{Digest, Sha256};
///         Sha256::digest(request.target.split('?').next().unwrap_or_default()).into()
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a request fingerprint",
    label = "expected a type that implements `FingerprintRequest`",
    note = "implement `FingerprintRequest` for it, or choose a built-in algorithm with the \
            setting `web.fingerprint`"
)]
pub trait FingerprintRequest: fmt::Debug + Send + Sync + 'static {
    /// Returns the byte that names the algorithm in each record: a constant from 128 to 255. Never
    /// reuse the byte for another algorithm.
    fn algorithm(&self) -> u8;

    /// Computes the digest. The digest must be the same in every process and version that shares
    /// the store.
    fn digest(&self, request: &RequestParts<'_>) -> [u8; 32];
}

/// Hashes a request while its body arrives, so that a large body is not hashed in one go. The
/// hasher does not support [`FingerprintAlgorithm::Json`], which needs the whole body.
pub(crate) struct FingerprintHasher {
    algorithm: FingerprintAlgorithm,
    sha: Sha256,
    body_len: u64,
}

impl FingerprintHasher {
    pub(crate) fn new(algorithm: FingerprintAlgorithm, method: &str, target: &str) -> Self {
        let mut sha = Sha256::new();
        sha.update([algorithm as u8]);
        if algorithm != FingerprintAlgorithm::Body {
            for part in [method, target] {
                sha.update((part.len() as u64).to_be_bytes());
                sha.update(part);
            }
        }
        Self { algorithm, sha, body_len: 0 }
    }

    pub(crate) fn update(&mut self, piece: &[u8]) {
        self.body_len += piece.len() as u64;
        self.sha.update(piece);
    }

    pub(crate) fn finish(mut self) -> Fingerprint {
        // Hash the length after the body, because it is known only when the body ends. The hash
        // input is still unambiguous, because its last 8 bytes are always the length.
        self.sha.update(self.body_len.to_be_bytes());
        Fingerprint::tagged(self.algorithm as u8, &self.sha.finalize().into())
    }
}

/// Returns the fingerprint of a whole request under a built-in algorithm.
pub(crate) fn fingerprint(
    algorithm: FingerprintAlgorithm,
    request: &RequestParts<'_>,
) -> Fingerprint {
    let canonical;
    let body = match algorithm {
        FingerprintAlgorithm::Request | FingerprintAlgorithm::Body => request.body,
        // A raw body and a canonical body never have the same hash input. A canonical body is
        // always I-JSON, and a body is hashed raw only if it is not I-JSON.
        FingerprintAlgorithm::Json => {
            canonical = canonical::canonical(request.body);
            canonical.as_deref().unwrap_or(request.body)
        }
    };
    let RequestParts { method, target, .. } = *request;
    let mut short = ShortRequest { bytes: [0; SHORT_REQUEST], len: 0 };
    if let Some(whole) = short.write(algorithm, method, target, body) {
        return Fingerprint::tagged(algorithm as u8, &Sha256::digest(whole).into());
    }
    let mut hasher = FingerprintHasher::new(algorithm, method, target);
    hasher.update(body);
    hasher.finish()
}

/// Like [`fingerprint`], but without the members that the scope ignores, if it ignores any (FP-5).
pub(crate) fn fingerprint_without(
    ignored: Option<&IgnoredMembers>,
    algorithm: FingerprintAlgorithm,
    request: &RequestParts<'_>,
) -> Fingerprint {
    match ignored {
        Some(ignored) if algorithm == FingerprintAlgorithm::Json => ignored.fingerprint(request),
        _ => fingerprint(algorithm, request),
    }
}

/// The hash input of a short request, in one piece. Hashing the parts one by one would first copy
/// each part into the hasher's block.
struct ShortRequest {
    bytes: [u8; SHORT_REQUEST],
    len: usize,
}

const SHORT_REQUEST: usize = 512;

impl ShortRequest {
    /// Writes the same bytes that a [`FingerprintHasher`] hashes. Returns `None` if they do not
    /// fit.
    fn write(
        &mut self,
        algorithm: FingerprintAlgorithm,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> Option<&[u8]> {
        self.push(&[algorithm as u8])?;
        if algorithm != FingerprintAlgorithm::Body {
            for part in [method, target] {
                self.push(&(part.len() as u64).to_be_bytes())?;
                self.push(part.as_bytes())?;
            }
        }
        self.push(body)?;
        self.push(&(body.len() as u64).to_be_bytes())?;
        self.bytes.get(..self.len)
    }

    #[inline]
    fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len.checked_add(part.len())?;
        self.bytes.get_mut(self.len..end)?.copy_from_slice(part);
        self.len = end;
        Some(())
    }
}

#[cfg(test)]
mod tests;
