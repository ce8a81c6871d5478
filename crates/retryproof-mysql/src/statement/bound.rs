// SPDX-License-Identifier: MIT OR Apache-2.0
//! The values that a statement binds. They are bytes, integers and booleans, which any driver can
//! bind.

use std::time::Duration;

use retryproof_core::store::{Completion, Param};
use retryproof_core::{Identity, OwnerId};
use sqlx_core::arguments::Arguments as _;
use sqlx_mysql::MySqlArguments;

/// Returns the primary key as bound values (ID-2).
pub(crate) fn key_of(id: &Identity) -> [Param<'_>; 2] {
    [Param::Bytes(id.scope().as_str().as_bytes()), Param::Bytes(id.key().expose().as_bytes())]
}

/// Converts a duration to microseconds for binding, rounded up, so no lease ends early. CTX-2 keeps
/// durations far below the limits of `i64` and of DATETIME.
pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// Returns the values of [`Statement::Complete`](super::Statement::Complete) in bind order. If the
/// statement took effect, the server reports one row, on the store's connection and in the
/// application's transaction alike (CMP-7).
pub(crate) fn completion_params<'a>(
    id: &'a Identity,
    owner: &'a OwnerId,
    done: &'a Completion,
) -> [Param<'a>; 8] {
    let ttl = Param::Int(micros(done.ttl));
    let [scope, key] = key_of(id);
    [
        ttl,
        ttl,
        done.fingerprint.as_ref().map(|fp| fp.as_bytes()).into(),
        Param::Bytes(&done.value),
        length(&done.value),
        scope,
        key,
        Param::Bytes(owner.as_bytes()),
    ]
}

/// Returns the length of a value, for binding. Statements do not compute the length, because in an
/// application's session, `LENGTH(result)` could measure the result that the statement replaces.
pub(crate) fn length(value: &[u8]) -> Param<'static> {
    Param::Int(i64::try_from(value.len()).unwrap_or(i64::MAX))
}

/// Returns an upper bound on the number of bytes that the values occupy in a packet.
pub(crate) fn size(params: &[Param<'_>]) -> usize {
    let bytes = |param: &Param<'_>| match param {
        Param::Bytes(value) => value.len() + 9,
        _ => 8,
    };
    params.iter().map(bytes).sum()
}

/// Converts the values to the driver's arguments.
pub(crate) fn arguments(params: &[Param<'_>]) -> Result<MySqlArguments, sqlx_core::Error> {
    let mut arguments = MySqlArguments::default();
    arguments.reserve(params.len(), size(params));
    for param in params {
        match *param {
            Param::Bytes(bytes) => arguments.add(bytes),
            Param::NoBytes => arguments.add(None::<&[u8]>),
            Param::Int(number) => arguments.add(number),
            Param::Bool(truth) => arguments.add(truth),
            _ => Err("the store cannot bind a value of this type".into()),
        }
        .map_err(sqlx_core::Error::Encode)?;
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmp_9_each_value_counts_with_its_length() {
        let params = [Param::Bytes(&[0; 100]), Param::NoBytes, Param::Int(1), Param::Bool(true)];
        assert_eq!(size(&params), 100 + 9 + 3 * 8);
    }
}
