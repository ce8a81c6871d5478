// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hosts of a URL. The driver supports only one host, so a list is split here, and each host
//! gets its own options of the driver.

use std::str::FromStr;

use retryproof_core::{Error, ErrorKind, Result};
use sqlx_postgres::PgConnectOptions;

use crate::error::classify_at_connect;

/// Refuses a URL with a bare `/`, `?` or `#` in its password. The password would no longer belong
/// to the login, and an error message or `Debug` could show a part of it (ID-4).
pub(super) fn check_login(url: &str) -> Result<()> {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    if rest.split_once(['/', '?', '#']).is_some_and(|(_, rest)| rest.contains('@')) {
        return Err(Error::new(
            ErrorKind::Config,
            "the URL of a PostgreSQL store has a misplaced `/`, `?`, `#` or `@`; in a user, a \
             password, a database or a parameter, write them as `%2F`, `%3F`, `%23` and `%40`",
        ));
    }
    Ok(())
}

/// Returns the options of each host. `base` is the URL without its parameters, and `parameters` are
/// those of the driver. A list of hosts can be in the URL, in its parameter `host`, or in `PGHOST`.
pub(super) fn parse(base: &str, mut parameters: Vec<&str>) -> Result<Vec<PgConnectOptions>> {
    let (scheme, rest) = base.split_once("://").unwrap_or(("postgres", base));
    let (authority, path) = rest.split_at(rest.find(['/', '#']).unwrap_or(rest.len()));
    let (login, hosts) =
        authority.split_at(authority.rfind('@').map_or(0, |at| at.saturating_add(1)));
    let options_of = |host: &str, parameters: &[&str]| {
        let query = if parameters.is_empty() { "" } else { "?" };
        let url = format!("{scheme}://{login}{host}{path}{query}{}", parameters.join("&"));
        PgConnectOptions::from_str(&url).map_err(|error| classify_at_connect(&error))
    };
    if !hosts.contains(',') {
        return unique(split(&options_of(hosts, &parameters)?)?);
    }
    if parameters.iter().any(|pair| pair.starts_with("host=") || pair.starts_with("hostaddr=")) {
        return Err(refused(
            "the URL names hosts before the path and in the parameter `host` or `hostaddr`; name \
             them only once",
        ));
    }
    // The driver would set this port for each host, even for those that name one.
    let default_port = parameters.iter().find_map(|pair| pair.strip_prefix("port="));
    let default_port = default_port.map(port).transpose()?;
    parameters.retain(|pair| !pair.starts_with("port="));
    let each = hosts.split(',').map(|text| {
        let (host, given) = host_and_port(text)?;
        let host = match given.or(default_port) {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        options_of(&host, &parameters).map(|options| without_brackets(options, None))
    });
    unique(each.collect::<Result<_>>()?)
}

/// Returns the address of a server without user and password (ID-4): `host:port`, or the folder of
/// its socket.
pub(crate) fn node(options: &PgConnectOptions) -> String {
    let host = options.get_host();
    match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None if host.starts_with('/') => host.to_owned(),
        None if host.contains(':') => format!("[{host}]:{}", options.get_port()),
        None => format!("{host}:{}", options.get_port()),
    }
}

/// Splits a list in the driver's own host, which comes from the parameter `host` or from `PGHOST`.
fn split(options: &PgConnectOptions) -> Result<Vec<PgConnectOptions>> {
    let hosts = options.get_host();
    if !hosts.contains(',') {
        return Ok(vec![without_brackets(options.clone(), None)]);
    }
    let each = hosts.split(',').map(|host| match host {
        "" => Err(empty()),
        host => Ok(without_brackets(options.clone(), Some(host))),
    });
    each.collect()
}

/// Sets the host, or keeps the one that is set. An IPv6 address loses its brackets, because the
/// driver would look it up as a name.
fn without_brackets(options: PgConnectOptions, host: Option<&str>) -> PgConnectOptions {
    let host = host.unwrap_or_else(|| options.get_host());
    let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let host = host.to_owned();
    options.host(&host)
}

/// Splits `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn host_and_port(text: &str) -> Result<(&str, Option<u16>)> {
    let at = text.rfind(']').unwrap_or(0);
    let (host, given) = match text[at..].find(':') {
        Some(colon) => (&text[..at + colon], Some(&text[at + colon + 1..])),
        None => (text, None),
    };
    if host.is_empty() {
        return Err(empty());
    }
    Ok((host, given.map(port).transpose()?))
}

fn port(text: &str) -> Result<u16> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        refused(
            "a port in the URL of a PostgreSQL store must be a number from 1 to 65535; write the \
             port of each host after it: `HOST:PORT,HOST:PORT`",
        )
    })
}

/// Fails if two hosts have the same address.
fn unique(hosts: Vec<PgConnectOptions>) -> Result<Vec<PgConnectOptions>> {
    let mut nodes: Vec<_> = hosts.iter().map(node).collect();
    nodes.sort();
    match nodes.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(refused("the URL names a host twice; name each host once").with("host", &pair[0]))
        }
        None => Ok(hosts),
    }
}

fn empty() -> Error {
    refused("a host in the URL of a PostgreSQL store is empty; expected `HOST:PORT,HOST:PORT`")
}

fn refused(message: &'static str) -> Error {
    Error::new(ErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(base: &str, parameters: &[&str]) -> Vec<String> {
        parse(base, parameters.to_vec()).expect(base).iter().map(node).collect()
    }

    #[test]
    fn sto_7_cfg_1_a_url_lists_hosts_with_their_ports() {
        assert_eq!(
            nodes("postgres://u:p@a:1,b:2,c:3/d", &[]),
            ["a:1", "b:2", "c:3"],
            "each host has its port"
        );
        assert_eq!(
            nodes("postgres://u:p,w@a,b:2,[::1],[fe80::1]:4/d", &["port=7", "sslmode=disable"]),
            ["a:7", "b:2", "[::1]:7", "[fe80::1]:4"],
            "a host without a port has the port of the parameter"
        );
        assert_eq!(nodes("postgres:///d", &["host=a,b", "port=7"]), ["a:7", "b:7"]);
        assert_eq!(nodes("postgres://%2Frun%2Fa,b:2/d", &[]), ["/run/a", "b:2"]);
        assert_eq!(nodes("postgres://[::1]:3/d", &[]), ["[::1]:3"]);
        for options in parse("postgres://%75:p%40w@a:1,b:2/d%2Fe", Vec::new()).expect("valid") {
            let of = (options.get_username(), options.get_database());
            assert_eq!(of, ("u", Some("d/e")), "each host has the user and the database");
        }
    }

    #[test]
    fn id_4_a_bad_list_is_refused_without_showing_it() {
        for (base, parameters) in [
            ("postgres://u:canary@a:1,/d", vec![]),
            ("postgres://u:canary@,a:1/d", vec![]),
            ("postgres://u:canary@a:1,b:port/d", vec![]),
            ("postgres://u:canary@a:1,b:0/d", vec![]),
            ("postgres://u:canary@a,b/d", vec!["port=1,2"]),
            ("postgres://u:canary@a,b/d", vec!["host=c"]),
            ("postgres://u:canary@a:1,a:1/d", vec![]),
            ("postgres://u:canary@a,[::1/d", vec![]),
            ("postgres://u:canary@/d", vec!["host=a,,b"]),
        ] {
            let error = parse(base, parameters).expect_err(base);
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }
}
