// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one-byte codes of common field names. The table is part of version 1 of the record, so
//! entries are never moved or removed, and new entries go to the end. A reader refuses a record
//! with a code that it does not recognise (CMP-8).

macro_rules! common_names {
    ($($code:literal $name:literal)*) => {
        /// The common names. The index of a name is its code.
        pub const COMMON_NAMES: &[&str] = &[$($name),*];

        /// Returns the code of a lower-case name; `None` if the name is not in the table.
        pub(crate) fn code_of(name: &str) -> Option<u8> {
            match name {
                $($name => Some($code),)*
                _ => None,
            }
        }
    };
}

common_names! {
    0 "content-type"
    1 "location"
    2 "cache-control"
    3 "content-length"
    4 "content-language"
    5 "content-encoding"
    6 "content-location"
    7 "content-disposition"
    8 "content-range"
    9 "content-digest"
    10 "etag"
    11 "last-modified"
    12 "expires"
    13 "age"
    14 "pragma"
    15 "vary"
    16 "link"
    17 "allow"
    18 "accept"
    19 "accept-ranges"
    20 "accept-patch"
    21 "retry-after"
    22 "server"
    23 "server-timing"
    24 "set-cookie"
    25 "www-authenticate"
    26 "authentication-info"
    27 "clear-site-data"
    28 "warning"
    29 "refresh"
    30 "access-control-allow-origin"
    31 "access-control-allow-credentials"
    32 "access-control-allow-headers"
    33 "access-control-allow-methods"
    34 "access-control-expose-headers"
    35 "access-control-max-age"
    36 "strict-transport-security"
    37 "content-security-policy"
    38 "x-content-type-options"
    39 "x-frame-options"
    40 "x-xss-protection"
    41 "referrer-policy"
    42 "permissions-policy"
    43 "cross-origin-opener-policy"
    44 "cross-origin-resource-policy"
    45 "alt-svc"
    46 "x-request-id"
    47 "traceparent"
    48 "idempotency-key"
    49 "grpc-status"
    50 "grpc-message"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmp_8_name_codes_are_their_places_and_leave_room_for_literals() {
        assert!(COMMON_NAMES.len() <= 64);
        for (place, name) in COMMON_NAMES.iter().enumerate() {
            assert_eq!(code_of(name).map(usize::from), Some(place), "{name}");
        }
        assert_eq!(code_of("x-anything-else"), None);
    }
}
