// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Names`]: replaces the ports that servers name in their messages by the proxy's ports, so that
//! clients connect through the proxy.

use std::io;

/// The decimal digits of each port, and of the proxy's port in its place.
#[derive(Debug)]
pub(super) struct Names(Vec<(Vec<u8>, Vec<u8>)>);

impl Names {
    /// # Errors
    /// Fails if a port and the proxy's port in its place have different numbers of digits, because
    /// the length of a message must not change.
    pub(super) fn new(ports: impl Iterator<Item = (u16, u16)>) -> io::Result<Self> {
        let digits = |port: u16| port.to_string().into_bytes();
        let pairs: Vec<_> = ports.map(|(own, ours)| (digits(own), digits(ours))).collect();
        if pairs.len() > 1 && pairs.iter().any(|(own, ours)| own.len() != ours.len()) {
            return Err(io::Error::other(
                "the ports of the servers and of the proxy have different numbers of digits",
            ));
        }
        Ok(Self(pairs))
    }

    /// Replaces the ports that a message names.
    pub(super) fn translate(&self, message: &mut [u8]) {
        let mut at = 0;
        while at < message.len() {
            let begins = at == 0 || !message[at - 1].is_ascii_digit();
            let is_it = |(own, _): &&(Vec<u8>, Vec<u8>)| {
                begins
                    && message[at..].starts_with(own)
                    && !message.get(at + own.len()).is_some_and(u8::is_ascii_digit)
            };
            at += match self.0.iter().find(is_it) {
                Some((own, ours)) => {
                    message[at..at + own.len()].copy_from_slice(ours);
                    own.len()
                }
                None => 1,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_replaced_where_it_stands_alone() {
        let names = Names::new([(40_001, 50_001), (40_002, 50_002)].into_iter()).unwrap();
        let mut message =
            *b"*2\r\n$5\r\n40001\r\n+switch-master g ::1 40001 ::1 40002 140001 400012";
        names.translate(&mut message);
        assert_eq!(
            &message[..],
            b"*2\r\n$5\r\n50001\r\n+switch-master g ::1 50001 ::1 50002 140001 400012"
        );
        assert!(Names::new([(40_001, 50_001), (4_000, 50_002)].into_iter()).is_err());
    }
}
