// SPDX-License-Identifier: MIT OR Apache-2.0
//! The digest of a value that can be serialized (FP-4): its shape and content, fed to SHA-256 as
//! serde tells them.
//!
//! No format stands in between. JSON would fold values into one (`None` and `Some(())`, all that is
//! no number), and what it makes of numbers and of the order of a map hangs on features that other
//! crates turn on.
//!
//! Each value is a tag and what makes its end known, so that no two differing values feed the same
//! bytes. The bytes stand in records as digests: a tag is never changed and never reused.

use std::fmt;

use serde::ser::{self, Serialize};
use sha2::{Digest as _, Sha256};

/// The digest; an error is that of the value's own `Serialize`.
pub(super) fn digest<T: Serialize + ?Sized>(value: &T) -> Result<[u8; 32], Refused> {
    let mut hash = Sha256::new();
    value.serialize(Feed(&mut hash))?;
    Ok(hash.finalize().into())
}

/// The value could not be serialized. What it says may quote the value, so it is dropped (ID-4).
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the value does not serialize")
    }
}

impl std::error::Error for Refused {}

impl ser::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

struct Feed<'a>(&'a mut Sha256);

impl<'a> Feed<'a> {
    fn tag(self, tag: u8) -> Result<(), Refused> {
        self.0.update([tag]);
        Ok(())
    }

    fn sized(self, tag: u8, bytes: &[u8]) -> Result<(), Refused> {
        self.0.update([tag]);
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        Ok(())
    }

    /// By value, whatever the width of its type: a field may grow while records live.
    fn integer(self, tag: u8, magnitude: u128) -> Result<(), Refused> {
        let bytes = magnitude.to_be_bytes();
        let from = magnitude.leading_zeros() as usize / 8;
        self.sized(tag, &bytes[from..])
    }

    fn variant(self, name: &str) -> Result<Self, Refused> {
        Feed(&mut *self.0).sized(b'v', name.as_bytes())?;
        Ok(self)
    }

    fn items(self) -> Items<'a> {
        self.0.update(b"[");
        Items(self.0)
    }

    fn entries(self) -> Entries<'a> {
        Entries { hash: self.0, entry: Sha256::new(), entries: Vec::new() }
    }
}

/// In their order, up to the end.
struct Items<'a>(&'a mut Sha256);

impl Items<'_> {
    fn item<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        value.serialize(Feed(self.0))
    }

    fn close(self) -> Result<(), Refused> {
        self.0.update(b"]");
        Ok(())
    }
}

/// In no order: that of a hash map differs from one process to the next, that of fields from one
/// version of a program to the next.
struct Entries<'a> {
    hash: &'a mut Sha256,
    entry: Sha256,
    entries: Vec<[u8; 32]>,
}

impl Entries<'_> {
    fn key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refused> {
        key.serialize(Feed(&mut self.entry))
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        value.serialize(Feed(&mut self.entry))?;
        self.entries.push(self.entry.finalize_reset().into());
        Ok(())
    }

    fn close(mut self) -> Result<(), Refused> {
        self.entries.sort_unstable();
        Feed(self.hash).sized(b'{', self.entries.as_flattened())
    }
}

impl<'a> ser::Serializer for Feed<'a> {
    type Ok = ();
    type Error = Refused;
    type SerializeSeq = Items<'a>;
    type SerializeTuple = Items<'a>;
    type SerializeTupleStruct = Items<'a>;
    type SerializeTupleVariant = Items<'a>;
    type SerializeMap = Entries<'a>;
    type SerializeStruct = Entries<'a>;
    type SerializeStructVariant = Entries<'a>;

    fn serialize_bool(self, value: bool) -> Result<(), Refused> {
        self.tag(if value { b't' } else { b'f' })
    }

    fn serialize_i8(self, value: i8) -> Result<(), Refused> {
        self.serialize_i128(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Refused> {
        self.serialize_i128(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Refused> {
        self.serialize_i128(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Refused> {
        self.serialize_i128(value.into())
    }

    fn serialize_i128(self, value: i128) -> Result<(), Refused> {
        self.integer(if value < 0 { b'-' } else { b'+' }, value.unsigned_abs())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Refused> {
        self.serialize_u128(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Refused> {
        self.serialize_u128(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Refused> {
        self.serialize_u128(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Refused> {
        self.serialize_u128(value.into())
    }

    fn serialize_u128(self, value: u128) -> Result<(), Refused> {
        self.integer(b'+', value)
    }

    fn serialize_f32(self, value: f32) -> Result<(), Refused> {
        self.serialize_f64(value.into())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Refused> {
        self.sized(b'd', &value.to_bits().to_be_bytes())
    }

    fn serialize_char(self, value: char) -> Result<(), Refused> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), Refused> {
        self.sized(b's', value.as_bytes())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), Refused> {
        self.sized(b'b', value)
    }

    fn serialize_none(self) -> Result<(), Refused> {
        self.tag(b'n')
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Refused> {
        Feed(&mut *self.0).tag(b'o')?;
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Refused> {
        self.tag(b'0')
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Refused> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
    ) -> Result<(), Refused> {
        self.variant(name)?.serialize_unit()
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<(), Refused> {
        value.serialize(self.variant(name)?)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Items<'a>, Refused> {
        Ok(self.items())
    }

    fn serialize_tuple(self, _: usize) -> Result<Items<'a>, Refused> {
        Ok(self.items())
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Items<'a>, Refused> {
        Ok(self.items())
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Items<'a>, Refused> {
        Ok(self.variant(name)?.items())
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Entries<'a>, Refused> {
        Ok(self.entries())
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Entries<'a>, Refused> {
        Ok(self.entries())
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        _: usize,
    ) -> Result<Entries<'a>, Refused> {
        Ok(self.variant(name)?.entries())
    }
}

macro_rules! items {
    ($($of:ident $method:ident),*) => {$(
        impl ser::$of for Items<'_> {
            type Ok = ();
            type Error = Refused;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
                self.item(value)
            }

            fn end(self) -> Result<(), Refused> {
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
        impl ser::$of for Entries<'_> {
            type Ok = ();
            type Error = Refused;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                name: &'static str,
                value: &T,
            ) -> Result<(), Refused> {
                self.key(name)?;
                self.value(value)
            }

            fn end(self) -> Result<(), Refused> {
                self.close()
            }
        }
    )*};
}

fields!(SerializeStruct, SerializeStructVariant);

impl ser::SerializeMap for Entries<'_> {
    type Ok = ();
    type Error = Refused;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Refused> {
        self.key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Refused> {
        self.value(value)
    }

    fn end(self) -> Result<(), Refused> {
        self.close()
    }
}
