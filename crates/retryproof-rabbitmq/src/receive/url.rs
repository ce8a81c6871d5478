// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Server`]: where the broker is, and how it is spoken to.

use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties};

use retryproof_core::{Error, ErrorKind, Result};

#[derive(Clone)]
pub(crate) struct Server {
    uri: AMQPUri,
    #[cfg(feature = "tls")]
    tls: Option<crate::receive::tls::Tls>,
}

/// The certificates, in PEM, of whoever signs the broker's; none for those that the host trusts.
pub(crate) type Roots = Option<Vec<u8>>;

impl Server {
    /// A URL that may hold a password: what is wrong with it is said without it (ID-4).
    pub(crate) fn parse(url: &str, roots: &Roots) -> Result<Self> {
        if has_bare_ipv6(url) {
            return Err(Error::new(
                ErrorKind::Config,
                "the broker's URL has an IPv6 address, which cannot be dialled; give the \
                 broker's name or its IPv4 address",
            ));
        }
        let mut uri: AMQPUri = url.parse().map_err(|_| {
            Error::new(
                ErrorKind::Config,
                "the broker's URL is none; it looks like `amqp://USER:PASSWORD@HOST:PORT/VHOST`",
            )
        })?;
        // Half a minute of silence, instead of the broker's whole one, and a connection counts as
        // lost.
        uri.query.heartbeat.get_or_insert(30);
        Self::of(uri, roots)
    }

    #[cfg(feature = "tls")]
    fn of(uri: AMQPUri, roots: &Roots) -> Result<Self> {
        let tls = match uri.scheme {
            AMQPScheme::AMQPS => {
                Some(crate::receive::tls::Tls::to(&uri.authority.host, roots.as_deref())?)
            }
            AMQPScheme::AMQP => None,
        };
        Ok(Self { uri, tls })
    }

    /// The driver, built without TLS, would go on without it, password and all.
    #[cfg(not(feature = "tls"))]
    fn of(uri: AMQPUri, _: &Roots) -> Result<Self> {
        match uri.scheme {
            AMQPScheme::AMQP => Ok(Self { uri }),
            AMQPScheme::AMQPS => Err(Error::new(
                ErrorKind::Unsupported,
                "`amqps` needs TLS, which this build is without: turn on the feature \
                 `rabbitmq-tls` of retryproof",
            )),
        }
    }

    pub(crate) async fn connect(
        &self,
        properties: ConnectionProperties,
    ) -> lapin::Result<Connection> {
        let uri = self.uri.clone();
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.connect(uri, properties).await;
        }
        Connection::connect_uri(uri, properties).await
    }
}

/// Whether the host is an address in brackets. The driver reads names and IPv4 addresses only, and
/// would take this for `localhost`: the password would go there.
fn has_bare_ipv6(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit('@').next().unwrap_or_default().starts_with('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cfg_1_an_ipv6_address_is_refused_before_the_password_goes_anywhere() {
        for url in [
            "amqp://guest:canary@[2001:db8::5]:5672/%2f",
            "amqp://[::1]",
            "amqps://u:p@[::1]/v?x=[1]",
        ] {
            let error = Server::parse(url, &None).map(drop).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(
                error.to_string().contains("IPv6") && !error.to_string().contains("canary"),
                "{error}"
            );
        }
        for url in ["amqp://guest:p%5Bd@127.0.0.1:5672/%2f", "amqp://localhost/[v]"] {
            assert!(Server::parse(url, &None).is_ok(), "{url}");
        }
    }
}
