// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives out free ports.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// A range below the ports that Linux uses for outgoing connections, so that a restarted server
/// finds its port free.
const RANGE: Range<u16> = 20_000..32_000;

/// Returns `count` different free ports on 127.0.0.1, none of them in `taken`. All ports are held
/// until the last one is found, so one call never returns a port twice. `seed` lets calls of
/// several checkouts begin at different ports.
pub(super) fn draw(count: usize, taken: &[u16], seed: u64) -> io::Result<Vec<u16>> {
    let length = u64::from(RANGE.end - RANGE.start);
    let begin = RANGE.start + u16::try_from(seed % length).unwrap_or_default();
    let mut held = Vec::new();
    let mut ports = Vec::new();
    for port in (begin..RANGE.end).chain(RANGE.start..begin) {
        if ports.len() == count {
            break;
        }
        if taken.contains(&port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
            ports.push(port);
        }
    }
    if ports.len() < count {
        return Err(io::Error::other(format!(
            "found only {} of {count} free ports between {} and {}",
            ports.len(),
            RANGE.start,
            RANGE.end
        )));
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_different_and_never_a_taken_one() {
        let first = draw(5, &[], 11_998).expect("the search wraps around and finds five ports");
        let second = draw(5, &first, 11_998).expect("five more");
        let mut all = [first, second].concat();
        assert!(all.iter().all(|port| RANGE.contains(port)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_passed_over() {
        let port = draw(1, &[], 77).expect("a port")[0];
        let _listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("it was free");
        assert_ne!(draw(1, &[], u64::from(port - RANGE.start)).expect("another")[0], port);
    }

    #[test]
    fn more_than_there_are_is_an_error() {
        let taken: Vec<u16> = RANGE.collect();
        assert!(draw(1, &taken, 0).is_err());
    }
}
