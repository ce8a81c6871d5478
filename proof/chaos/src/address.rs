// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses in URLs: where a server listens, or where the proxy listens in its place.

use std::net::ToSocketAddrs;

use crate::proxy::Target;

/// Returns the resolved address in a URL.
pub(crate) fn authority(url: &str) -> Option<Target> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split(['/', '?']).next()?.rsplit('@').next()?;
    let port = match scheme {
        "postgres" | "postgresql" => 5_432,
        "mysql" | "mariadb" => 3_306,
        "redis" => 6_379,
        _ => return None,
    };
    let whole = if host.contains(':') { host.to_owned() } else { format!("{host}:{port}") };
    let address = whole.to_socket_addrs().ok()?.next()?;
    Some(Target { address, names_ports: false })
}

/// Returns the URL with the proxy's addresses instead of the servers'.
pub(crate) fn through(url: &str, targets: &[Target], ports: &[u16]) -> String {
    if let ([_], [port]) = (targets, ports) {
        return through_one(url, *port);
    }
    // The URL of a group that the run has started names the loopback ports of its sentinels.
    let pairs = targets.iter().zip(ports);
    pairs.fold(url.to_owned(), |url, (target, port)| {
        url.replace(&target.address.to_string(), &format!("127.0.0.1:{port}"))
    })
}

fn through_one(url: &str, port: u16) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let login = authority.rsplit_once('@').map_or(String::new(), |(login, _)| format!("{login}@"));
    format!("{scheme}://{login}127.0.0.1:{port}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_takes_the_place_of_each_server() {
        let target = |port| Target { address: ([127, 0, 0, 1], port).into(), names_ports: false };
        let url = "mysql://me:secret@127.0.0.1:40001/records?x=1";
        assert_eq!(authority(url), Some(target(40_001)));
        assert_eq!(
            through(url, &[target(40_001)], &[50_001]),
            "mysql://me:secret@127.0.0.1:50001/records?x=1"
        );
        let group = [target(40_001), target(40_002), target(40_003)];
        assert_eq!(
            through("redis+sentinel://127.0.0.1:40002,127.0.0.1:40003/g", &group, &[1, 2, 3]),
            "redis+sentinel://127.0.0.1:2,127.0.0.1:3/g"
        );
    }
}
