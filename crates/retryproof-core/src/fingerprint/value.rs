// SPDX-License-Identifier: MIT OR Apache-2.0
//! The digest of a serializable value (FP-4): its shape and content in serde's data model, hashed
//! with SHA-256.
//!
//! No text format is involved. JSON would give different values the same text, for example `None`
//! and `Some(())`, or infinity and NaN. How `serde_json` writes numbers and orders maps also
//! depends on features that other crates can enable.
//!
//! Each value is hashed with a tag and, where needed, its length, so different values never feed
//! the same bytes to the hash. Records store the digests, so a tag must never be changed or reused.

use std::fmt;

use serde::ser::{self, Serialize};
use sha2::{Digest as _, Sha256};

/// Computes the digest of a value. Fails if the value's own `Serialize` fails.
pub(super) fn digest<T: Serialize + ?Sized>(value: &T) -> Result<[u8; 32], NotSerializable> {
    let mut hash = Sha256::new();
    value.serialize(ValueHasher(&mut hash))?;
    Ok(hash.finalize().into())
}

/// The value could not be serialized. This error drops the serializer's message, which can quote
/// the value (ID-4).
#[derive(Debug)]
pub(super) struct NotSerializable;

impl fmt::Display for NotSerializable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value cannot be serialized")
    }
}

impl std::error::Error for NotSerializable {}

impl ser::Error for NotSerializable {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct ValueHasher<'a>(&'a mut Sha256);

impl<'a> ValueHasher<'a> {
    fn tag(self, tag: u8) -> Result<(), NotSerializable> {
        self.0.update([tag]);
        Ok(())
    }

    fn sized(self, tag: u8, bytes: &[u8]) -> Result<(), NotSerializable> {
        self.0.update([tag]);
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        Ok(())
    }

    /// Hashes the number without leading zeros, so that the width of its type does not matter. A
    /// field can then change from `u32` to `u64` while records exist.
    fn integer(self, tag: u8, magnitude: u128) -> Result<(), NotSerializable> {
        let bytes = magnitude.to_be_bytes();
        let from = magnitude.leading_zeros() as usize / 8;
        self.sized(tag, &bytes[from..])
    }

    fn variant(self, name: &str) -> Result<Self, NotSerializable> {
        ValueHasher(&mut *self.0).sized(b'v', name.as_bytes())?;
        Ok(self)
    }

    fn items(self) -> SequenceHasher<'a> {
        self.0.update(b"[");
        SequenceHasher(self.0)
    }

    fn entries(self) -> EntryHasher<'a> {
        EntryHasher { hash: self.0, entry: Sha256::new(), entries: Vec::new() }
    }
}

/// Hashes the elements of a sequence in their order.
struct SequenceHasher<'a>(&'a mut Sha256);

impl SequenceHasher<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotSerializable> {
        value.serialize(ValueHasher(self.0))
    }

    fn close(self) -> Result<(), NotSerializable> {
        self.0.update(b"]");
        Ok(())
    }
}

/// Hashes entries regardless of their order. A hash map's order differs between processes, and a
/// struct's fields can change their order between versions of a program.
struct EntryHasher<'a> {
    hash: &'a mut Sha256,
    entry: Sha256,
    entries: Vec<[u8; 32]>,
}

impl EntryHasher<'_> {
    fn key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NotSerializable> {
        key.serialize(ValueHasher(&mut self.entry))
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotSerializable> {
        value.serialize(ValueHasher(&mut self.entry))?;
        self.entries.push(self.entry.finalize_reset().into());
        Ok(())
    }

    fn close(mut self) -> Result<(), NotSerializable> {
        self.entries.sort_unstable();
        ValueHasher(self.hash).sized(b'{', self.entries.as_flattened())
    }
}

impl<'a> ser::Serializer for ValueHasher<'a> {
    type Ok = ();
    type Error = NotSerializable;
    type SerializeSeq = SequenceHasher<'a>;
    type SerializeTuple = SequenceHasher<'a>;
    type SerializeTupleStruct = SequenceHasher<'a>;
    type SerializeTupleVariant = SequenceHasher<'a>;
    type SerializeMap = EntryHasher<'a>;
    type SerializeStruct = EntryHasher<'a>;
    type SerializeStructVariant = EntryHasher<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), NotSerializable> {
        self.tag(if value { b't' } else { b'f' })
    }

    fn serialize_i8(self, value: i8) -> Result<(), NotSerializable> {
        self.serialize_i128(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), NotSerializable> {
        self.serialize_i128(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), NotSerializable> {
        self.serialize_i128(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), NotSerializable> {
        self.serialize_i128(value.into())
    }

    fn serialize_i128(self, value: i128) -> Result<(), NotSerializable> {
        self.integer(if value < 0 { b'-' } else { b'+' }, value.unsigned_abs())
    }

    fn serialize_u8(self, value: u8) -> Result<(), NotSerializable> {
        self.serialize_u128(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), NotSerializable> {
        self.serialize_u128(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), NotSerializable> {
        self.serialize_u128(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), NotSerializable> {
        self.serialize_u128(value.into())
    }

    fn serialize_u128(self, value: u128) -> Result<(), NotSerializable> {
        self.integer(b'+', value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), NotSerializable> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), NotSerializable> {
        self.sized(b'd', &value.to_bits().to_be_bytes())
    }

    fn serialize_char(self, value: char) -> Result<(), NotSerializable> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), NotSerializable> {
        self.sized(b's', value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), NotSerializable> {
        self.sized(b'b', value)
    }

    fn serialize_none(self) -> Result<(), NotSerializable> {
        self.tag(b'n')
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), NotSerializable> {
        ValueHasher(&mut *self.0).tag(b'o')?;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), NotSerializable> {
        self.tag(b'0')
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), NotSerializable> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<(), NotSerializable> {
        self.variant(name)?.serialize_unit()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), NotSerializable> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), NotSerializable> {
        value.serialize(self.variant(name)?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<SequenceHasher<'a>, NotSerializable> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Result<SequenceHasher<'a>, NotSerializable> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<SequenceHasher<'a>, NotSerializable> {
        Ok(self.items())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<SequenceHasher<'a>, NotSerializable> {
        Ok(self.variant(name)?.items())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<EntryHasher<'a>, NotSerializable> {
        Ok(self.entries())
    }

    fn serialize_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<EntryHasher<'a>, NotSerializable> {
        Ok(self.entries())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<EntryHasher<'a>, NotSerializable> {
        Ok(self.variant(name)?.entries())
    }
}

macro_rules! items {
    ($($of:ident $method:ident),*) => {$(
        impl ser::$of for SequenceHasher<'_> {
            type Ok = ();
            type Error = NotSerializable;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotSerializable> {
                self.item(value)
            }

            fn end(self) -> Result<(), NotSerializable> {
                self.close()
            }
        }
    )*};
}

items!(
    SerializeSeq serialize_element,
    SerializeTuple serialize_element,
    SerializeTupleStruct serialize_field,
    SerializeTupleVariant serialize_field
);

macro_rules! fields {
    ($($of:ident),*) => {$(
        impl ser::$of for EntryHasher<'_> {
            type Ok = ();
            type Error = NotSerializable;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), NotSerializable> {
                self.key(name)?;
                self.value(value)
            }

            fn end(self) -> Result<(), NotSerializable> {
                self.close()
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for EntryHasher<'_> {
    type Ok = ();
    type Error = NotSerializable;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), NotSerializable> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotSerializable> {
        self.value(value)
    }

    fn end(self) -> Result<(), NotSerializable> {
        self.close()
    }
}
