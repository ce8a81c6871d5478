// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers that are private to their crates. They are compiled from the same sources, because a
//! public path to them would exist only for the tests.

#[path = "../../../../crates/retryproof-client/src"]
pub(crate) mod client {
    pub(crate) mod problem;
    pub(crate) mod retry_after;
}
#[path = "../../../../crates/retryproof-http/src/protocol"]
pub(crate) mod http {
    pub(crate) mod key;
}
#[path = "../../../../crates/retryproof-http/src/protocol/fingerprint"]
pub(crate) mod json {
    mod canonical;
    mod pointer;

    pub(crate) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
        canonical::canonical(body)
    }

    pub(crate) fn canonical_without(body: &[u8], pointers: &[&str]) -> Option<Vec<u8>> {
        let ignored = pointer::PointerNode::of(pointers.iter().copied());
        canonical::canonical_without(body, &ignored)
    }
}
#[path = "../../../../crates/retryproof-mysql/src/record"]
pub(crate) mod mysql {
    pub(crate) mod columns;
}
#[path = "../../../../crates/retryproof-rabbitmq/src"]
pub(crate) mod rabbitmq {
    pub(crate) mod delivery;
}
#[path = "../../../../crates/retryproof-redis/src"]
pub(crate) mod redis {
    pub(crate) mod record;
}
#[path = "../../../../crates/retryproof-sqlite/src"]
pub(crate) mod sqlite {
    pub(crate) mod record;
}
