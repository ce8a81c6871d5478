// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scans for the keys of records, in steps: on one server, or on each primary of a cluster in turn.
//!
//! A position in a cluster is `PRIMARIES.INDEX.CURSOR`: a checksum of the primaries' addresses, the
//! number of the primary that is being scanned, and that primary's cursor. A cursor of one server
//! means nothing to another, so after a failover the scan begins again, and returns records twice
//! rather than missing some.

use std::sync::Arc;

use crc::{CRC_64_XZ, Crc};
use redis::{Pipeline, Value};
use retryproof_core::store::ScanCursor;
use retryproof_core::{Error, ErrorKind, Result};

use crate::config::Address;
use crate::connection::Request;
use crate::error::{Failure, unexpected_answer};
use crate::execute::Executor;
use crate::pool::node::Node;
use crate::route::RecordRoute;
use crate::statement::scan;

/// The cursor at which a server begins and ends a scan.
const ENDS: &[u8] = b"0";

static CRC: Crc<u64> = Crc::<u64>::new(&CRC_64_XZ);

/// One step of a scan.
pub(crate) struct ScanStep {
    /// The server that has the keys.
    pub(crate) node: Arc<Node>,
    pub(crate) keys: Vec<Vec<u8>>,
    /// Where the scan continues; `None` at its end.
    pub(crate) next: Option<ScanCursor>,
}

impl Executor {
    /// Runs the step of a scan that begins at `after`, or the first one. The step checks about
    /// `count` keys, and can return none.
    pub(crate) async fn scan(
        &self,
        after: Option<&ScanCursor>,
        count: usize,
    ) -> Result<ScanStep, Failure> {
        let cluster = match &self.route {
            RecordRoute::Cluster(cluster) => cluster,
            RecordRoute::Primary(node) => {
                let cursor = after.map_or(Ok(ENDS), |after| cursor(after.as_bytes()))?;
                let (next, keys) = self.step(node, cursor, count).await?;
                let next = (next != ENDS).then(|| ScanCursor::new(next));
                return Ok(ScanStep { node: Arc::clone(node), keys, next });
            }
        };
        if after.is_none() {
            cluster.read_map().await?;
        }
        let primaries = cluster.primaries();
        let checksum = checksum(primaries.keys());
        let at = after.map_or(Ok(None), |after| position(after.as_bytes(), checksum).map(Some))?;
        let (index, cursor) = at.flatten().unwrap_or((0, ENDS));
        let Some((address, node)) = primaries.iter().nth(index) else {
            return Err(foreign(cursor).into());
        };
        let (next, keys) = match self.step(node, cursor, count).await {
            Ok(step) => step,
            Err(failure) => {
                cluster.refresh();
                return Err(failure.on_node(address));
            }
        };
        let next = if next != ENDS {
            Some((index, next))
        } else {
            (index + 1 < primaries.len()).then(|| (index + 1, ENDS.to_vec()))
        };
        let next = next.map(|(index, cursor)| {
            let mut position = format!("{checksum:016x}.{index}.").into_bytes();
            position.extend_from_slice(&cursor);
            ScanCursor::new(position)
        });
        Ok(ScanStep { node: Arc::clone(node), keys, next })
    }

    async fn step(
        &self,
        node: &Node,
        cursor: &[u8],
        count: usize,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), Failure> {
        let cmd = scan(cursor, &self.config().prefix, count);
        let Value::Array(answer) = node.run(Request::One(&cmd), false).await? else {
            return Err(unexpected_answer().into());
        };
        let Ok([Value::BulkString(next), Value::Array(keys)]) = <[Value; 2]>::try_from(answer)
        else {
            return Err(unexpected_answer().into());
        };
        let keys = keys.into_iter().filter_map(|key| match key {
            Value::BulkString(key) => Some(key),
            _ => None,
        });
        Ok((next, keys.collect()))
    }

    /// Reads several keys of one step in one round trip. `batch` builds the commands, of which the
    /// first `head` answers belong to no key. If a node of a cluster does not serve all keys, each
    /// key is read where it is now, which waits for a cluster that is not ready (STO-8).
    pub(crate) async fn read_keys(
        &self,
        node: &Node,
        keys: &[&[u8]],
        head: usize,
        batch: impl Fn(&[&[u8]]) -> Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        match node.run(Request::Batch(&batch(keys)), false).await {
            Ok(Value::Array(answers)) => return Ok(answers),
            Ok(_) => return Err(unexpected_answer().into()),
            Err(failure) if matches!(self.route, RecordRoute::Primary(_)) => return Err(failure),
            Err(failure) if !failure.is_passing_in_cluster() => {
                return Err(failure.on_node(&node.locator().address().await?));
            }
            Err(_) => {}
        }
        let mut all = Vec::new();
        for key in keys {
            let answer = self.run(key, Request::Batch(&batch(&[key]))).await?;
            let Value::Array(answers) = answer else { return Err(unexpected_answer().into()) };
            all.extend(answers.into_iter().skip(if all.is_empty() { 0 } else { head }));
        }
        Ok(all)
    }
}

/// Returns the number of the primary and its cursor at a position; `None` if the primaries have
/// changed since the position was returned.
fn position(position: &[u8], checksum: u64) -> Result<Option<(usize, &[u8])>> {
    let parts: Vec<_> = position.split(|&byte| byte == b'.').collect();
    let [primaries, index, at] = parts[..] else { return Err(foreign(position)) };
    let read = |part| str::from_utf8(part).map_err(|_| foreign(position));
    let primaries = u64::from_str_radix(read(primaries)?, 16).map_err(|_| foreign(position))?;
    let index = read(index)?.parse().map_err(|_| foreign(position))?;
    let at = cursor(at)?;
    Ok((primaries == checksum).then_some((index, at)))
}

/// Checks a server's cursor, which is a decimal number.
fn cursor(bytes: &[u8]) -> Result<&[u8]> {
    if bytes.is_empty() || bytes.len() > 20 || !bytes.iter().all(u8::is_ascii_digit) {
        return Err(foreign(bytes));
    }
    Ok(bytes)
}

fn foreign(cursor: &[u8]) -> Error {
    Error::new(
        ErrorKind::Invalid,
        "the Redis store did not return this cursor; scan again without a cursor",
    )
    .with("bytes", cursor.len())
}

fn checksum<'a>(primaries: impl Iterator<Item = &'a Address>) -> u64 {
    let mut digest = CRC.digest();
    primaries.for_each(|at| digest.update(format!("{at} ").as_bytes()));
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_1_a_position_in_a_cluster_counts_for_the_same_primaries_alone() {
        let at = |port| Address { host: "h".to_owned(), port };
        let (same, other) = (checksum([at(1), at(2)].iter()), checksum([at(1), at(3)].iter()));
        let text = format!("{same:016x}.1.77");
        assert_eq!(position(text.as_bytes(), same).unwrap(), Some((1, &b"77"[..])));
        assert_eq!(position(text.as_bytes(), other).unwrap(), None, "the scan begins again");
        for bad in
            ["", "77", "x.1.77", "0.1", "0.1.", "0.-1.7", "0.1.7.7", "0.1.123456789012345678901"]
        {
            assert!(position(bad.as_bytes(), same).is_err(), "{bad}");
        }
    }
}
