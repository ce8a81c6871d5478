// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Codec`] decides how a result is stored: as JSON (the default), as raw bytes, or not at all.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::panics::catch_panic;
use crate::payload::{CodecId, Payload};

/// Turns values of `T` into bytes and back.
///
/// If a value cannot be encoded, the record is completed as a tombstone (CMP-9). An error or a
/// panic in a codec therefore never makes the work run again.
///
/// # When to use
/// [`JsonCodec`] is the default and fits most results. Write a codec for another format, or for a
/// type that serde does not support:
///
/// ```
/// use retryproof_core::{Codec, CodecId, Error, ErrorKind, Payload, Result};
///
/// struct Receipt(u64);
/// struct ReceiptCodec;
///
/// impl Codec<Receipt> for ReceiptCodec {
///     fn id(&self) -> CodecId {
///         CodecId(1_024) // ids below are reserved
///     }
///
///     fn encode(&self, receipt: &Receipt, into: &mut Vec<u8>) -> Result<()> {
///         into.extend_from_slice(&receipt.0.to_be_bytes());
///         Ok(())
///     }
///
///     fn decode(&self, payload: &Payload) -> Result<Receipt> {
///         let bytes = payload.body().try_into();
///         let wrong = |_| Error::new(ErrorKind::Codec, "a receipt has 8 bytes");
///         Ok(Receipt(u64::from_be_bytes(bytes.map_err(wrong)?)))
///     }
/// }
/// # let payload = Payload::build(CodecId(1_024), 0, |into| ReceiptCodec.encode(&Receipt(7), into))?;
/// # assert_eq!(ReceiptCodec.decode(&payload)?.0, 7);
/// # Ok::<(), Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{T}` cannot be stored, because the codec `{Self}` does not encode and decode this \
               type",
    label = "the result of an idempotent action is stored, so a codec must support the result's \
             type",
    note = "for the default codec, which stores JSON, derive `serde::Serialize` and \
            `serde::Deserialize`; otherwise name another codec"
)]
pub trait Codec<T>: Send + Sync {
    /// Returns the id that is stored with the value. The codec never has to decode a value that was
    /// stored with a different id.
    fn id(&self) -> CodecId;

    /// Returns the version of the value's format, which is stored with the value. The default is 0.
    fn schema(&self) -> u16 {
        0
    }

    /// Encodes `value` and appends the bytes to `into`.
    ///
    /// # Errors
    /// [`ErrorKind::Codec`], with a message that does not contain the value.
    fn encode(&self, value: &T, into: &mut Vec<u8>) -> Result<()>;

    /// Decodes a value that was written with the same codec id, under any schema version.
    ///
    /// # Errors
    /// [`ErrorKind::Codec`], with a message that does not contain the value.
    fn decode(&self, payload: &Payload) -> Result<T>;
}

/// JSON through serde: the default codec.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonCodec;

#[diagnostic::do_not_recommend]
impl<T: Serialize + DeserializeOwned> Codec<T> for JsonCodec {
    fn id(&self) -> CodecId {
        CodecId::JSON
    }

    fn encode(&self, value: &T, into: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(into, value)
            .map_err(|error| json_error("the value cannot be written as JSON", &error))
    }

    fn decode(&self, payload: &Payload) -> Result<T> {
        serde_json::from_slice(payload.body()).map_err(|error| {
            json_error("the stored JSON cannot be read as the expected type", &error)
        })
    }
}

/// Returns an error with only the class and the position of a serde error, because the message of a
/// serde error can quote the value (ID-4).
fn json_error(message: &str, error: &serde_json::Error) -> Error {
    Error::new(ErrorKind::Codec, message.to_owned())
        .with("class", format!("{:?}", error.classify()))
        .with("line", error.line())
        .with("column", error.column())
}

/// Raw bytes, for `Vec<u8>` and [`Bytes`].
#[derive(Debug, Clone, Copy, Default)]
pub struct BytesCodec;

impl Codec<Vec<u8>> for BytesCodec {
    fn id(&self) -> CodecId {
        CodecId::BYTES
    }

    fn encode(&self, value: &Vec<u8>, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, payload: &Payload) -> Result<Vec<u8>> {
        Ok(payload.body().to_vec())
    }
}

impl Codec<Bytes> for BytesCodec {
    fn id(&self) -> CodecId {
        CodecId::BYTES
    }

    fn encode(&self, value: &Bytes, into: &mut Vec<u8>) -> Result<()> {
        into.extend_from_slice(value);
        Ok(())
    }

    fn decode(&self, payload: &Payload) -> Result<Bytes> {
        Ok(payload.clone().into_body().into_bytes())
    }
}

/// Stores no value. Use this codec for actions that return `()`: a duplicate is recognised, and its
/// action does not run (ANN-5).
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCodec;

impl Codec<()> for NoCodec {
    fn id(&self) -> CodecId {
        CodecId::NONE
    }

    fn encode(&self, (): &(), _: &mut Vec<u8>) -> Result<()> {
        Ok(())
    }

    fn decode(&self, _: &Payload) -> Result<()> {
        Ok(())
    }
}

/// Encodes a value. Returns an error if the codec panics (CMP-9).
pub(crate) fn encode<T, C: Codec<T> + ?Sized>(codec: &C, value: &T) -> Result<Payload> {
    catch_panic(|| Payload::build(codec.id(), codec.schema(), |buffer| codec.encode(value, buffer)))
        .unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Codec, "the codec panicked while encoding the value"))
        })
}

/// Decodes a value. Returns an error if another codec wrote the value or if the codec panics.
pub(crate) fn decode<T, C: Codec<T> + ?Sized>(codec: &C, payload: &Payload) -> Result<T> {
    if payload.codec() != codec.id() {
        return Err(Error::new(
            ErrorKind::Codec,
            "the stored value was written with a different codec than the one that this call uses",
        )
        .with("stored", payload.codec().0)
        .with("expected", codec.id().0));
    }
    catch_panic(|| codec.decode(payload)).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Codec, "the codec panicked while decoding the value"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmp_8_values_of_another_codec_are_refused() {
        let json = encode(&JsonCodec, &7_u32).unwrap();
        assert_eq!(decode::<u32, _>(&JsonCodec, &json).unwrap(), 7);
        assert_eq!(decode::<Vec<u8>, _>(&BytesCodec, &json).unwrap_err().kind(), ErrorKind::Codec);
        assert!(decode::<String, _>(&JsonCodec, &json).is_err());
        let bytes = encode(&BytesCodec, &Bytes::from_static(b"\x00\xff")).unwrap();
        assert_eq!(decode::<Bytes, _>(&BytesCodec, &bytes).unwrap(), &b"\x00\xff"[..]);
        let bytes = encode(&BytesCodec, &vec![0_u8, 0xff]).unwrap();
        assert_eq!(decode::<Vec<u8>, _>(&BytesCodec, &bytes).unwrap(), [0, 0xff]);
        decode(&NoCodec, &encode(&NoCodec, &()).unwrap()).unwrap();
        assert_eq!((json.schema(), bytes.schema()), (0, 0), "the default schema");
    }

    #[test]
    fn id_4_a_json_error_does_not_quote_the_value() {
        let payload = Payload::new(CodecId::JSON, 0, br#""canary""#);
        let error = decode::<u32, _>(&JsonCodec, &payload).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
