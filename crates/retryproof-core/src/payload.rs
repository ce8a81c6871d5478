// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Payload`], [`Tombstone`] and the versioned envelope that a store keeps (CMP-8, CMP-9).
//!
//! Envelope, version 1, little endian: `"RP"`, version, flags, codec (u16), schema version (u16),
//! body. A reader must understand the low four flags and can ignore the high four. Flag 1 marks a
//! tombstone. Flag 2 (compressed) is reserved for a later version; this version refuses to read an
//! envelope with this flag. Flag 4 marks a sealed envelope: the codec is 0, the schema version is
//! that of the sealed form, and the body is what a [`SealingKey`](crate::seal::SealingKey) returned
//! for a whole envelope (SEAL-5).

use std::fmt;

use crate::blob::Blob;
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::store::HolderNote;

mod sealed;

use sealed::{SEALED, is_still_sealed};
pub(crate) use sealed::{SEALED_HEADER, is_bare_tombstone, is_sealed, sealed_envelope};

const MAGIC: [u8; 2] = *b"RP";
const VERSION: u8 = 1;
const TOMBSTONE: u8 = 1;
/// The flags that change how the body is read. A reader ignores the other flags.
const MUST_UNDERSTAND: u8 = 0x0f;
const HEADER: usize = 8;
/// The initial capacity for a value of unknown size.
const DEFAULT_CAPACITY: usize = 56;

/// Identifies the codec that wrote a value. No other codec reads that value. Ids below 1,024 are
/// reserved for retryproof.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CodecId(pub u16);

impl CodecId {
    /// No codec: the work returned `()`, or a tombstone has no detail.
    pub const NONE: Self = Self(0);
    /// Raw bytes, stored unchanged.
    pub const BYTES: Self = Self(1);
    /// JSON.
    pub const JSON: Self = Self(2);
    /// A stored HTTP response.
    pub const HTTP: Self = Self(3);
}

/// An encoded value, with its codec and the version of the codec's schema. `Debug` prints the
/// length of the value, never its content (ID-4).
/// ```
/// use retryproof_core::{CodecId, Payload};
///
/// // Your own format needs an id of at least 1,024. Raise the version when the format changes.
/// let payload = Payload::new(CodecId(1_024), 1, b"receipt 1");
/// assert_eq!((payload.codec(), payload.schema()), (CodecId(1_024), 1));
/// assert_eq!(payload.body(), b"receipt 1");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    codec: CodecId,
    schema: u16,
    envelope: Blob,
}

impl Payload {
    /// Builds a payload in place: `write` appends the body directly after the envelope's header, so
    /// the body needs no second buffer.
    ///
    /// # Errors
    /// The errors of `write`.
    pub fn build<E>(
        codec: CodecId,
        schema: u16,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::build_with_capacity(codec, schema, DEFAULT_CAPACITY, write)
    }

    /// Like [`build`](Self::build), but allocates room for a body of `capacity` bytes, so that the
    /// buffer does not have to grow.
    ///
    /// # Errors
    /// The errors of `write`.
    pub fn build_with_capacity<E>(
        codec: CodecId,
        schema: u16,
        capacity: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        let mut buffer = header(0, codec, schema, capacity);
        write(&mut buffer)?;
        Ok(Self { codec, schema, envelope: buffer.into() })
    }

    /// Creates a payload with a copy of an encoded body.
    #[must_use]
    pub fn new(codec: CodecId, schema: u16, body: &[u8]) -> Self {
        let mut buffer = header(0, codec, schema, body.len());
        buffer.extend_from_slice(body);
        Self { codec, schema, envelope: buffer.into() }
    }

    /// Returns the codec that wrote the body.
    #[must_use]
    #[inline]
    pub fn codec(&self) -> CodecId {
        self.codec
    }

    /// Returns the version of the codec's schema at the time when the codec wrote the body.
    #[must_use]
    #[inline]
    pub fn schema(&self) -> u16 {
        self.schema
    }

    /// Returns the encoded body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.envelope.get(HEADER..).unwrap_or_default()
    }

    /// Returns the encoded body, which shares the envelope's allocation.
    #[must_use]
    #[inline]
    pub fn into_body(self) -> Blob {
        self.envelope.into_rest(HEADER)
    }

    /// Returns the envelope, which a store keeps.
    #[must_use]
    pub fn envelope(&self) -> &Blob {
        &self.envelope
    }

    /// Returns the envelope and consumes `self`, so the caller need not clone the envelope.
    #[must_use]
    pub fn into_envelope(self) -> Blob {
        self.envelope
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Payload(codec {}, schema {}, {} bytes)",
            self.codec.0,
            self.schema,
            self.body().len()
        )
    }
}

/// Records that the work is done but its result cannot be replayed (CMP-9, HTTP-13).
///
/// A tombstone may keep a detail, such as the status of a response that was too large to store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone(Payload);

impl Tombstone {
    /// Creates a tombstone without detail.
    #[must_use]
    pub fn new() -> Self {
        Self::with_detail(CodecId::NONE, 0, &[])
    }

    /// Creates a tombstone that keeps `detail`, for example the status and location of a response.
    #[must_use]
    pub fn with_detail(codec: CodecId, schema: u16, detail: &[u8]) -> Self {
        let mut buffer = header(TOMBSTONE, codec, schema, detail.len());
        buffer.extend_from_slice(detail);
        Self(Payload { codec, schema, envelope: buffer.into() })
    }

    /// Returns the detail. For a tombstone without detail, the [`codec`](Payload::codec) is
    /// [`CodecId::NONE`].
    #[must_use]
    pub fn detail(&self) -> &Payload {
        &self.0
    }

    /// Returns the envelope, which a store keeps.
    #[must_use]
    pub fn envelope(&self) -> &Blob {
        self.0.envelope()
    }

    /// Returns the envelope and consumes `self`, so the caller need not clone the envelope.
    #[must_use]
    pub fn into_envelope(self) -> Blob {
        self.0.into_envelope()
    }
}

impl Default for Tombstone {
    fn default() -> Self {
        Self::new()
    }
}

/// The content of a COMPLETE record, as a store returns it.
///
/// Only [`open`](Self::open) reveals the value, after it has compared the fingerprints (FP-2).
///
/// # When to use
/// Adapters that call [`try_acquire`](crate::IdempotencyEngine::try_acquire) open the result
/// themselves. With [`execute`](crate::IdempotencyEngine::execute), the engine opens it.
///
/// ```
/// use retryproof_core::{CodecId, Fingerprint, Opened, Payload, StoredResult};
///
/// let sent = Fingerprint::of(&("order-17", 300))?;
/// let value = Payload::new(CodecId::BYTES, 0, b"receipt 1");
/// let stored = StoredResult::new(value.into_envelope(), Some(sent));
///
/// match stored.open(Some(&sent))? {
///     Opened::Value(payload) => assert_eq!(payload.body(), b"receipt 1"),
///     Opened::Tombstone(_) => println!("done, but not replayable"),
///     Opened::Mismatch => println!("the key was used for another request"),
/// }
/// let other = Fingerprint::of(&("order-17", 900))?;
/// assert!(matches!(stored.open(Some(&other))?, Opened::Mismatch));
/// # Ok::<(), retryproof_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct StoredResult {
    /// The note is boxed, so that a result without a note stays small. This field comes before
    /// `envelope`, so it is dropped first. The drop of foreign `Bytes` in `envelope` can panic, and
    /// a later field with a destructor would need extra code for that case.
    holder: Option<Box<HolderNote>>,
    envelope: Blob,
    fingerprint: Option<Fingerprint>,
}

/// The result of [`StoredResult::open`].
#[derive(Debug, Clone)]
#[must_use]
pub enum Opened {
    /// The result of the original execution.
    Value(Payload),
    /// The work is done, but its result cannot be replayed.
    Tombstone(Tombstone),
    /// The fingerprints differ, so the value stays hidden (FP-1).
    Mismatch,
}

impl StoredResult {
    /// Combines the envelope and the fingerprint that a store has read.
    #[must_use]
    pub fn new(envelope: impl Into<Blob>, fingerprint: Option<Fingerprint>) -> Self {
        Self { envelope: envelope.into(), fingerprint, holder: None }
    }

    /// Adds the note about the holder that executed the work.
    #[must_use]
    pub fn with_holder(mut self, holder: Option<HolderNote>) -> Self {
        self.holder = holder.map(Box::new);
        self
    }

    /// Returns the note about the holder that executed the work, if the store has one (REC-2).
    #[must_use]
    pub fn holder(&self) -> Option<&HolderNote> {
        self.holder.as_deref()
    }

    /// Returns the stored fingerprint. Its algorithm byte shows how to compute the fingerprint of a
    /// duplicate (FP-3).
    #[must_use]
    #[inline]
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        self.fingerprint.as_ref()
    }

    /// Compares `fingerprint` with the stored fingerprint, then reads the envelope. If either
    /// fingerprint is missing, the two count as equal (FP-1).
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::ErrorKind::Corrupt) when this version cannot read the envelope
    /// (CMP-8).
    pub fn open(&self, fingerprint: Option<&Fingerprint>) -> Result<Opened> {
        if let (Some(stored), Some(requested)) = (&self.fingerprint, fingerprint)
            && stored != requested
        {
            // A hidden fingerprint differs from every computed one, so a difference proves nothing
            // (SEAL-6).
            return if stored.is_hidden() { Err(is_still_sealed()) } else { Ok(Opened::Mismatch) };
        }
        let [m0, m1, version, flags, c0, c1, s0, s1, ..] = self.envelope[..] else {
            return Err(Error::corrupt(
                "the stored value is damaged: it is shorter than the header of every stored value",
            )
            .with("bytes", self.envelope.len()));
        };
        if [m0, m1] != MAGIC {
            return Err(Error::corrupt("the stored value was not written by retryproof"));
        }
        if version != VERSION {
            return Err(Error::corrupt(
                "the stored value was written by a newer version of retryproof, in a format that \
                 this version cannot read; upgrade this program",
            )
            .with("version", version));
        }
        if flags & MUST_UNDERSTAND == SEALED {
            return Err(is_still_sealed());
        }
        if flags & MUST_UNDERSTAND & !TOMBSTONE != 0 {
            return Err(Error::corrupt(
                "the stored value has flags that this version cannot interpret, probably because a \
                 newer version of retryproof wrote the value; upgrade this program",
            )
            .with("flags", flags));
        }
        let payload = Payload {
            codec: CodecId(u16::from_le_bytes([c0, c1])),
            schema: u16::from_le_bytes([s0, s1]),
            envelope: self.envelope.clone(),
        };
        Ok(if flags & TOMBSTONE == 0 {
            Opened::Value(payload)
        } else {
            Opened::Tombstone(Tombstone(payload))
        })
    }
}

fn header(flags: u8, codec: CodecId, schema: u16, body: usize) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(HEADER + body);
    buffer.extend_from_slice(&MAGIC);
    buffer.extend_from_slice(&[VERSION, flags]);
    buffer.extend_from_slice(&codec.0.to_le_bytes());
    buffer.extend_from_slice(&schema.to_le_bytes());
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn cmp_8_envelope_round_trips_and_fails_closed() {
        let payload = Payload::new(CodecId::JSON, 3, b"{}");
        assert_eq!((payload.codec(), payload.schema()), (CodecId::JSON, 3));
        let stored = StoredResult::new(payload.envelope().clone(), None);
        assert!(
            matches!(stored.open(None).unwrap(), Opened::Value(p) if p == payload && p.body() == b"{}")
        );
        let whole = payload.envelope().to_vec();
        for cut in 0..HEADER {
            let error = StoredResult::new(whole[..cut].to_vec(), None).open(None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        for (at, bad) in [(0, b'X'), (2, 2), (3, 2), (3, 4), (3, 8)] {
            let mut other = whole.clone();
            other[at] = bad;
            assert_eq!(
                StoredResult::new(other, None).open(None).unwrap_err().kind(),
                ErrorKind::Corrupt
            );
        }
        for flag in [0x10, 0x20, 0x40, 0x80] {
            let mut other = whole.clone();
            other[3] = flag;
            assert!(matches!(StoredResult::new(other, None).open(None), Ok(Opened::Value(_))));
        }
    }

    #[test]
    fn fp_2_mismatch_is_judged_before_the_value_is_read() {
        let fp = |b| Some(Fingerprint::new(&[1, b]).unwrap());
        let corrupt = StoredResult::new(b"garbage".to_vec(), fp(1));
        assert!(matches!(corrupt.open(fp(2).as_ref()).unwrap(), Opened::Mismatch));
        assert!(corrupt.open(fp(1).as_ref()).is_err());
        let stored = StoredResult::new(Tombstone::new().envelope().clone(), fp(1));
        assert!(matches!(stored.open(None).unwrap(), Opened::Tombstone(_)));
        assert!(matches!(stored.open(fp(2).as_ref()).unwrap(), Opened::Mismatch));
    }

    #[test]
    fn id_4_debug_of_a_payload_prints_its_length() {
        let text = format!("{:?}", Payload::new(CodecId::BYTES, 0, b"canary"));
        assert_eq!(text, "Payload(codec 1, schema 0, 6 bytes)");
    }

    /// A hidden fingerprint never causes a mismatch, whatever else the record contains.
    #[test]
    fn seal_6_a_hidden_fingerprint_is_no_mismatch() {
        let hidden = Fingerprint::tagged(0, &[7; 32]);
        let value = Payload::new(CodecId::BYTES, 0, b"v").into_envelope();
        for envelope in [sealed_envelope(b"bytes"), Tombstone::new().into_envelope(), value] {
            let stored = StoredResult::new(envelope, Some(hidden));
            let error = stored.open(Some(&Fingerprint::tagged(1, &[7; 32]))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("set `seal.keys`"), "{error}");
        }
    }
}
