// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Form`]: the forms of server and store that the suites of PostgreSQL measure.

use crate::servers::url;

/// What a suite measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// One server, with the store's functions: suite `postgres`.
    Alone,
    /// One server, with the plain dialect: suite `plain`.
    Plain,
    /// A primary with a synchronous standby, both in the store's URL: suite `standby`.
    Standby,
}

impl Form {
    pub(super) fn suite(self) -> &'static str {
        match self {
            Self::Alone => "postgres",
            Self::Plain => "plain",
            Self::Standby => "standby",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Alone => "The PostgreSQL store",
            Self::Plain => "The PostgreSQL store with the plain dialect",
            Self::Standby => "The PostgreSQL store with a synchronous standby",
        }
    }

    /// Returns the store's URL.
    pub(super) fn url(self) -> Result<String, String> {
        match self {
            Self::Alone => url("postgres"),
            Self::Plain => Ok(format!("{}?dialect=plain", url("postgres")?)),
            Self::Standby => url("standby"),
        }
    }

    /// Returns the floor's URL, which names one server and has no parameter of the store.
    pub(super) fn bare_url(self) -> Result<String, String> {
        match self {
            Self::Alone | Self::Plain => url("postgres"),
            Self::Standby => Ok(primary(&url("standby")?)),
        }
    }

    /// Returns what the tables of the other forms do not share with the suite `postgres`.
    pub(super) fn note(self, version: i64) -> String {
        let server = match self {
            Self::Alone => "as in the suite `postgres`",
            Self::Plain => {
                "as in the suite `postgres`. The store uses the dialect `plain`: it calls no \
                 function of its own, and waiters only poll, so their goal is 30 ms"
            }
            Self::Standby => {
                "with a synchronous standby on the same machine, as `cargo xtask services up \
                 standby` starts them. Each commit waits for the standby. The store's URL names \
                 both hosts; the floor connects to the primary"
            }
        };
        format!(
            "PostgreSQL {version} {server}. The operations, the floor and the measurements are \
             those of the suite `postgres`."
        )
    }

    /// The goal for a waiter's time, in milliseconds (ACQ-4).
    pub(super) fn wake_up(self) -> f64 {
        match self {
            Self::Alone | Self::Standby => 5.0,
            Self::Plain => 30.0,
        }
    }
}

/// Keeps only the first of a URL's hosts, which is the one that starts as the primary.
fn primary(url: &str) -> String {
    match (url.find(','), url.rfind('/')) {
        (Some(comma), Some(slash)) if comma < slash => {
            format!("{}{}", &url[..comma], &url[slash..])
        }
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_connects_to_the_first_host() {
        assert_eq!(primary("postgres://u@h1:1,h2:2/d"), "postgres://u@h1:1/d");
        assert_eq!(primary("postgres://u@h1:1/d"), "postgres://u@h1:1/d");
    }
}
