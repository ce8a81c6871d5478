// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fate that a gRPC status sets for its response (HTTP-7).

use http::{HeaderMap, HeaderName};

use super::FATE;
use crate::fate::AnswerFate;
use crate::header_map::remove_in_order;

pub(super) const FATE_NAME: HeaderName = HeaderName::from_static(FATE);

/// Removes a status's fate from its metadata (header fields or trailers), and returns the fate. An
/// unknown value is a bug in the application. It counts as `hold`, the safe fate, which does not
/// free the key.
pub(super) fn take_fate(headers: &mut HeaderMap) -> Option<AnswerFate> {
    let fate = match headers.get(&FATE_NAME)?.as_bytes() {
        b"store" => AnswerFate::Store,
        b"release" => AnswerFate::Release,
        b"hold" => AnswerFate::Hold,
        b"stream" => AnswerFate::Stream,
        _ => {
            tracing::error!(
                "a gRPC response has an unknown value in `retryproof-fate`, so its key stays taken \
                 until the lease ends; use `store`, `release`, `hold` or `stream` (HTTP-7)"
            );
            AnswerFate::Hold
        }
    };
    remove_in_order(headers, &FATE_NAME);
    Some(fate)
}
