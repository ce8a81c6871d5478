// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KeyProvider`] wraps data keys; [`MasterKeys`] does so with keys from a file or a variable.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use retryproof_core::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use crate::cipher::{DataKey, KEY};

/// The future of a call to a [`KeyProvider`].
pub type ProviderFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A wrapped data key, and the id of the master key that unwraps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrappedKey {
    /// The id of the master key.
    pub master: String,
    /// The wrapped bytes.
    pub bytes: Vec<u8>,
}

/// Wraps data keys with a master key, so that a table of keys is useless without the master key
/// (SEAL-3). [`MasterKeys`] is the provider for keys in a file. Implement this trait for a service
/// that keeps master keys.
///
/// An engine waits for a provider for at most `operation-timeout`.
pub trait KeyProvider: fmt::Debug + Send + Sync + 'static {
    /// Returns the id of the master key that [`wrap`](Self::wrap) uses.
    fn current(&self) -> &str;

    /// Wraps a data key with the current master key. `bound` has to be the same when the key is
    /// unwrapped.
    ///
    /// # Errors
    /// `Unavailable` if the provider cannot be reached.
    fn wrap<'a>(&'a self, key: &'a DataKey, bound: &'a [u8]) -> ProviderFuture<'a, WrappedKey>;

    /// Unwraps a data key.
    ///
    /// # Errors
    /// `Config` if the master key is missing or wrong; `Unavailable` if the provider cannot be
    /// reached. **An error never means that the key is destroyed.**
    fn unwrap<'a>(&'a self, key: &'a WrappedKey, bound: &'a [u8]) -> ProviderFuture<'a, DataKey>;
}

/// Master keys from a file or an environment variable (SEAL-3).
///
/// Each line has the form `ID:KEY`. An id has 1 to 64 letters, digits, dots, dashes and
/// underscores. A key has 64 hex digits, for example from `openssl rand -hex 32`. The first key
/// wraps new data keys. Each key can unwrap the data keys that it wrapped. Blank lines, and lines
/// that begin with `#`, are skipped.
#[derive(Clone)]
pub struct MasterKeys(Arc<[(String, DataKey)]>);

impl MasterKeys {
    /// Reads lines of keys.
    ///
    /// # Errors
    /// [`ErrorKind::Config`]. The message names the line, and the id if it is shorter than a key.
    /// It never shows a key.
    pub fn parse(text: &str) -> Result<Self> {
        let mut keys: Vec<(String, DataKey)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, key) = parse_line(line).map_err(|error| error.with("line", at + 1))?;
            if keys.iter().any(|(known, _)| *known == id) {
                return Err(wrong(
                    "the master keys cannot be used, because two of them have the same id",
                )
                .with("id", shown(&id))
                .with("line", at + 1));
            }
            // A rotation to the same key under another id would leave old copies of the table
            // readable.
            if keys.iter().any(|(_, known)| known.expose() == key.expose()) {
                return Err(wrong(
                    "the master keys cannot be used, because two of them have the same key",
                )
                .with("id", shown(&id))
                .with("line", at + 1));
            }
            keys.push((id, key));
        }
        if keys.is_empty() {
            return Err(wrong("there is no master key; expected lines `ID:KEY`"));
        }
        Ok(Self(keys.into()))
    }

    /// Reads a file of keys. Only the program should be allowed to read the file.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the file cannot be read, or as for [`parse`](Self::parse).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let named = |error: Error| error.with("file", shown_place(&path.to_string_lossy()));
        let text = std::fs::read_to_string(path).map(Zeroizing::new);
        let text = text.map_err(|error| {
            named(
                wrong("the file of master keys cannot be read; check its path and permissions")
                    .because(error),
            )
        })?;
        Self::parse(&text).map_err(named)
    }

    /// Reads the keys from an environment variable. Commas can stand in place of line breaks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the variable is missing, or as for [`parse`](Self::parse).
    pub fn from_variable(name: &str) -> Result<Self> {
        let named = |error: Error| error.with("variable", shown_place(name));
        let text = std::env::var(name).map(Zeroizing::new);
        // Drop the standard library's error, because it would quote the variable's value.
        let text = text.map_err(|_| {
            named(wrong("the environment variable for the master keys is not set, or is not UTF-8"))
        })?;
        let lines = Zeroizing::new(text.replace(',', "\n"));
        Self::parse(&lines).map_err(named)
    }

    fn find(&self, id: &str) -> Result<&DataKey> {
        let found = self.0.iter().find(|(known, _)| known == id).map(|(_, key)| key);
        found.ok_or_else(|| {
            wrong(
                "a data key cannot be used, because it was wrapped by a master key that this \
                 program does not have; add the line of that master key to the master keys",
            )
            .with("id", id)
        })
    }
}

impl KeyProvider for MasterKeys {
    fn current(&self) -> &str {
        self.0.first().map_or("", |(id, _)| id)
    }

    fn wrap<'a>(&'a self, key: &'a DataKey, bound: &'a [u8]) -> ProviderFuture<'a, WrappedKey> {
        Box::pin(async move {
            let master = self.current();
            let bytes = self.find(master)?.seal(key.expose(), bound)?;
            Ok(WrappedKey { master: master.to_owned(), bytes })
        })
    }

    fn unwrap<'a>(&'a self, key: &'a WrappedKey, bound: &'a [u8]) -> ProviderFuture<'a, DataKey> {
        Box::pin(async move {
            let opened = self.find(&key.master)?.open(&key.bytes, bound).map(Zeroizing::new);
            opened.and_then(|bytes| DataKey::from_bytes(&bytes)).ok_or_else(|| {
                wrong(
                    "a data key cannot be unwrapped with the master key of its id; either the \
                     program that wrapped it has a different master key with that id, or the table \
                     of keys was changed",
                )
                .with("id", &key.master)
            })
        })
    }
}

fn parse_line(line: &str) -> Result<(String, DataKey)> {
    const FORM: &str = "a line of the master keys does not have the form `ID:KEY`, with an id of 1 \
                        to 64 letters, digits, `.`, `-` and `_`, and a key of 64 hex digits";
    let (id, digits) = line.split_once(':').ok_or_else(|| wrong(FORM))?;
    let (id, digits) = (id.trim(), digits.trim());
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    // An invalid id may be a misplaced key, so the message does not repeat it (ID-4).
    if id.is_empty() || id.len() > 64 || !id.bytes().all(is_plain) {
        return Err(wrong(FORM));
    }
    let key = key_of(digits).ok_or_else(|| {
        wrong("a master key does not have 64 hex digits; create one with `openssl rand -hex 32`")
            .with("id", shown(id))
            .with("digits", digits.len())
    })?;
    Ok((id.to_owned(), key))
}

/// Returns the id for a message. Hides an id that is as long as a key, because it may be a key on
/// the wrong side of the colon.
fn shown(id: &str) -> &str {
    if id.len() >= KEY { "(hidden)" } else { id }
}

/// Returns the name of a file or a variable for a message. Hides a name that contains the digits of
/// a key, because it may be a line of keys in the place of its file.
fn shown_place(name: &str) -> &str {
    let longest = name.split(|digit: char| !digit.is_ascii_hexdigit()).map(str::len).max();
    if longest >= Some(2 * KEY) {
        "(hidden: it looks like a key; write the line `ID:KEY` to a file, and name that file)"
    } else {
        name
    }
}

fn key_of(digits: &str) -> Option<DataKey> {
    if digits.len() != 2 * KEY {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY]);
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let nibble = |digit: u8| char::from(digit).to_digit(16);
        let (high, low) = (nibble(pair[0])?, nibble(pair[1])?);
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    DataKey::from_bytes(key.as_slice())
}

fn wrong(message: &'static str) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// Prints the ids.
impl fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(id, _)| shown(id))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "a0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1";

    fn master(text: &str) -> MasterKeys {
        MasterKeys::parse(text).unwrap()
    }

    #[test]
    fn seal_3_master_keys_are_lines_and_the_first_wraps() {
        let other = A.replace('a', "b").to_uppercase();
        let keys = master(&format!("# new\n\n two : {other}\n1-a:{A}\n"));
        assert_eq!(keys.current(), "two");
        assert_eq!(format!("{keys:?}"), r#"["two", "1-a"]"#);
    }

    #[test]
    fn seal_7_id_4_a_key_in_the_place_of_its_file_is_not_shown() {
        let line = format!("one:{A}");
        for error in [MasterKeys::from_file(&line), MasterKeys::from_variable(&line)] {
            let error = error.unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(!text.contains(&A[..16]) && text.contains("looks like a key"), "{text}");
        }
        let text = MasterKeys::from_file("no-such.keys").unwrap_err().to_string();
        assert!(text.contains("no-such.keys"), "{text}");
    }

    #[test]
    fn seal_7_a_wrong_line_is_named_without_its_key() {
        for (text, part) in [
            (String::new(), "no master key"),
            ("# a:b".to_owned(), "no master key"),
            (A.to_owned(), "line = 1"),
            (format!("ok:{A}\n:{A}"), "line = 2"),
            (format!("a b:{A}"), "line = 1"),
            (format!("{A}x:{A}"), "line = 1"),
            (format!("short:{}", &A[..62]), "id = short, digits = 62"),
            (format!("odd:{}zz", &A[..62]), "id = odd"),
            (format!("{A}:id"), "id = (hidden)"),
            (format!("one:{A}\none:{A}"), "the same id (id = one, line = 2)"),
            (format!("one:{A}\ntwo:{A}"), "the same key (id = two, line = 2)"),
        ] {
            let error = MasterKeys::parse(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            let message = format!("{error} {error:?}");
            assert!(message.contains(part), "{text:?}: {message}");
            assert!(!message.contains(&A[..16]), "{message}");
        }
    }

    #[test]
    fn seal_7_a_missing_file_or_variable_is_named() {
        let error = MasterKeys::from_file("no/such/file").unwrap_err();
        assert!(error.to_string().contains("no/such/file"), "{error}");
        let error = MasterKeys::from_variable("RETRYPROOF_NO_SUCH_VARIABLE").unwrap_err();
        assert!(error.to_string().contains("RETRYPROOF_NO_SUCH_VARIABLE"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Config);
    }

    #[tokio::test]
    async fn seal_7_a_missing_or_wrong_master_key_is_an_error_of_the_configuration() {
        let one = master(&format!("one:{A}"));
        let key = DataKey::random().unwrap();
        let wrapped = one.wrap(&key, b"row").await.unwrap();
        assert_eq!((wrapped.master.as_str(), wrapped.bytes.len()), ("one", 60));
        let both = master(&format!("two:{}\none:{A}", "0".repeat(64)));
        assert_eq!(both.unwrap(&wrapped, b"row").await.unwrap().expose(), key.expose());
        for (keys, bound, part) in [
            (master(&format!("two:{A}")), &b"row"[..], "does not have"),
            (master(&format!("one:{}", "0".repeat(64))), b"row", "a different master key"),
            (one, b"another row", "the table of keys was changed"),
        ] {
            let error = keys.unwrap(&wrapped, bound).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(part), "{error}");
            assert!(error.to_string().contains("id = one"), "{error}");
        }
    }
}
