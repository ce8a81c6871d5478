// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses a configuration from a URL. Error messages show nothing of the URL except the name of a
//! parameter, because the URL can contain a password (ID-4).

use std::time::Duration;

use retryproof_core::{Error, ErrorKind, Result};

use crate::config::{Address, RedisConfig, Target};

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

pub(crate) fn parse(url: &str) -> Result<RedisConfig> {
    let refuse = |message: &'static str| Error::new(ErrorKind::Config, message);
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        refuse(
            "invalid URL of a Redis store; expected `redis://HOST:PORT/DB`, \
             `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE` or \
             `redis+cluster://HOST:PORT,HOST:PORT`",
        )
    })?;
    let (tls, sentinel, cluster) = match scheme {
        "redis" => (false, false, false),
        "rediss" => (true, false, false),
        "redis+sentinel" => (false, true, false),
        "rediss+sentinel" => (true, true, false),
        "redis+cluster" => (false, false, true),
        "rediss+cluster" => (true, false, true),
        _ => {
            return Err(refuse(
                "the scheme of a Redis store must be one of `redis`, `rediss`, `redis+sentinel`, \
                 `rediss+sentinel`, `redis+cluster`, `rediss+cluster`",
            ));
        }
    };
    // A bare `/` or `?` in a password moves the rest of the password out of the login. An error
    // message could then quote that part (ID-4).
    if rest.split_once(['/', '?']).is_some_and(|(_, rest)| rest.contains('@')) {
        return Err(refuse(
            "the URL of a Redis store has a misplaced `/`, `?` or `@`; in a user, a password or a \
             service, write them as `%2F`, `%3F` and `%40`",
        ));
    }
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));

    let target = if sentinel {
        let (service, _) = path.split_once('/').unwrap_or((path, ""));
        if service.is_empty() {
            return Err(refuse(
                "the URL of a Redis store behind Sentinel must name the service: \
                 `redis+sentinel://HOST:PORT/SERVICE`",
            ));
        }
        let nodes =
            hosts.split(',').map(|host| address(host, SENTINEL_PORT)).collect::<Result<_>>()?;
        Target::Sentinel { nodes, service: decoded(service)? }
    } else if cluster {
        Target::Cluster(hosts.split(',').map(|host| address(host, PORT)).collect::<Result<_>>()?)
    } else {
        if hosts.contains(',') {
            return Err(refuse(
                "a URL with several hosts needs the scheme `redis+sentinel` or `redis+cluster`",
            ));
        }
        Target::Single(address(hosts, PORT)?)
    };
    let db = if sentinel { path.split_once('/').map_or("", |(_, db)| db) } else { path };
    let mut config = RedisConfig::on(target).with_tls(tls);
    if !db.is_empty() {
        config = config
            .with_db(db.parse().map_err(|_| refuse("the database in the URL must be a number"))?);
    }
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if !password.is_empty() {
        config = config.with_password(decoded(password)?);
    }
    if !user.is_empty() {
        config = config.with_user(decoded(user)?);
    }
    let config = parameters(config, query)?;
    config.check()?;
    Ok(config)
}

fn parameters(mut config: RedisConfig, query: &str) -> Result<RedisConfig> {
    let mut wait: (u32, Option<Duration>) = (0, None);
    let mut sentinel: (Option<String>, Option<String>) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let bad =
            |takes: &'static str| Error::new(ErrorKind::Config, takes).with("parameter", name);
        match name {
            "prefix" => config = config.with_prefix(value),
            "wait-replicas" => {
                wait.0 =
                    value.parse().map_err(|_| bad("`wait-replicas` takes a number of replicas"))?;
            }
            "wait-timeout" => {
                let time = retryproof_duration::parse(value)
                    .map_err(|_| bad("`wait-timeout` takes a duration, for example `PT1S`"))?;
                wait.1 = Some(time);
            }
            "sentinel-user" => sentinel.0 = Some(decoded(value)?),
            "sentinel-password" => sentinel.1 = Some(decoded(value)?),
            "wait" => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "unknown URL parameter `wait`; did you mean `wait-replicas`?",
                ));
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Config,
                    "unknown parameter in the URL of a Redis store; it accepts `prefix`, \
                     `wait-replicas`, `wait-timeout`, `sentinel-user` and `sentinel-password`",
                )
                .with("parameter", format_args!("{:?}", name.get(..32).unwrap_or(name))));
            }
        }
    }
    match wait {
        (0, None) => {}
        (0, Some(_)) => {
            return Err(Error::new(
                ErrorKind::Config,
                "`wait-timeout` has no effect without `wait-replicas`; set both or neither",
            ));
        }
        (replicas, time) => {
            config = config.with_wait_replicas(replicas, time.unwrap_or(Duration::from_secs(1)))
        }
    }
    if let Some(password) = sentinel.1 {
        config = config.with_sentinel_login(sentinel.0, password);
    } else if sentinel.0.is_some() {
        return Err(Error::new(
            ErrorKind::Config,
            "`sentinel-user` is set without `sentinel-password`; set the password too",
        ));
    }
    Ok(config)
}

fn address(text: &str, port: u16) -> Result<Address> {
    let refuse = || {
        Error::new(
            ErrorKind::Config,
            "invalid address in the URL of a Redis store; expected `HOST` or `HOST:PORT`",
        )
    };
    let (host, given) = match text.strip_prefix('[') {
        // An IPv6 address is written in brackets.
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(refuse)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(refuse)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let fits = !host.is_empty()
        && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:%".contains(&b));
    let port =
        if given.is_empty() { Some(port) } else { given.parse().ok().filter(|&port| port > 0) };
    match port {
        Some(port) if fits => Ok(Address { host: host.to_owned(), port }),
        _ => Err(refuse()),
    }
}

/// Decodes percent-encoding, so a password can contain any character.
fn decoded(text: &str) -> Result<String> {
    let refuse = || {
        Error::new(
            ErrorKind::Config,
            "a `%` in the URL of a Redis store must be followed by two hex digits, and the decoded \
             text must be UTF-8",
        )
    };
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16)).ok_or_else(refuse);
        let (high, low) = (digit()?, digit()?);
        out.push(u8::try_from(high * 16 + low).map_err(|_| refuse())?);
    }
    String::from_utf8(out).map_err(|_| refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        let error = parse(url).expect_err(url);
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        format!("{error} {error:?}")
    }

    fn at(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    #[test]
    fn cfg_1_url_form_of_a_single_server() {
        let config = parse("redis://cache").unwrap();
        assert_eq!(config.target, Target::Single(at("cache", 6379)));
        assert_eq!((config.db, config.prefix.as_str(), config.tls), (0, "retryproof", false));
        let config =
            parse("redis://app:p%40ss:w%2Ford@[::1]:7000/3?prefix=pay&wait-replicas=1&wait-timeout=PT0.5S")
                .unwrap();
        assert_eq!(config.target, Target::Single(at("::1", 7000)));
        assert_eq!(
            (config.user.as_deref(), config.password.as_deref()),
            (Some("app"), Some("p@ss:w/ord"))
        );
        assert_eq!((config.db, config.prefix.as_str()), (3, "pay"));
        assert_eq!(config.wait_replicas, Some((1, Duration::from_millis(500))));
        let config = parse("redis://:secret@h:1/").unwrap();
        assert_eq!((config.user, config.password.as_deref()), (None, Some("secret")));
    }

    #[test]
    fn cfg_1_url_form_of_a_sentinel_group() {
        let config =
            parse("redis+sentinel://:pw@a:1,b,[::1]:3/main/2?sentinel-user=s&sentinel-password=t")
                .unwrap();
        let nodes = vec![at("a", 1), at("b", 26379), at("::1", 3)];
        assert_eq!(config.target, Target::Sentinel { nodes, service: "main".to_owned() });
        assert_eq!(config.db, 2);
        assert_eq!(
            (config.sentinel_user.as_deref(), config.sentinel_password.as_deref()),
            (Some("s"), Some("t"))
        );
    }

    #[test]
    fn sto_8_cfg_1_url_form_of_a_cluster() {
        let config = parse("redis+cluster://app:p%40ss@a:1,b,[::1]:3/0?prefix=pay").unwrap();
        assert_eq!(config.target, Target::Cluster(vec![at("a", 1), at("b", 6379), at("::1", 3)]));
        assert_eq!(
            (config.user.as_deref(), config.password.as_deref()),
            (Some("app"), Some("p@ss"))
        );
        assert!(parse("redis+cluster://a").is_ok(), "one node reports the others");
        assert!(refused("redis+cluster://a,b/1").contains("database 0"));
    }

    #[test]
    fn sto_1_tls_is_there_or_is_named() {
        for url in ["rediss://h", "rediss+sentinel://h/main", "rediss+cluster://h,i"] {
            let parsed = parse(url)
                .map(|config| config.tls)
                .map_err(|error| (error.kind(), error.to_string()));
            match parsed {
                Ok(tls) => assert!(tls && cfg!(feature = "tls")),
                Err((kind, text)) => {
                    assert_eq!((kind, cfg!(feature = "tls")), (ErrorKind::Unsupported, false));
                    assert!(text.contains("`tls`"), "{text}");
                }
            }
        }
    }

    #[test]
    fn id_4_a_bad_url_is_refused_without_showing_it() {
        for bad in [
            "canary",
            "http://canary",
            "redis://",
            "redis://u:canary@",
            "redis://u:canary@h:port",
            "redis://u:canary@h:0",
            "redis://u:canary@h/x",
            "redis://u:canary@h/-1",
            "redis://u:canary%@h",
            "redis://u:canary%zz@h",
            "redis://u:canary@a,b/0",
            "redis://u:canary@h/0?prefix=no-dash",
            "redis://u:canary@h/0?prefix=",
            "redis://u:canary@h/0?wait-replicas=x",
            "redis://u:canary@h/0?wait-replicas=1&wait-timeout=5",
            "redis://u:canary@h/0?wait-timeout=PT1S",
            "redis://u:canary@h/0?nonsense=canary",
            "redis://u:canary@h?sentinel-user=canary",
            "redis+sentinel://u:canary@a:1,b:2",
            "redis+sentinel://u:canary@a:1,,b:2/main",
            "redis+sentinel://u:canary@a:1/",
            "redis+cluster://u:canary@a:1,,b:2",
            "redis+cluster://u:canary@a:1,b:2/7",
            "redis+cluster://",
            "redis+canary://h",
            "redis://app:?canary@h/0",
            "redis://app:12?canary@h",
            "redis://app:12?canary=@h",
            "redis://app:12?prefix=canary@h",
            "redis+sentinel://app:12/canary@h",
            "redis+cluster://app:12?canary@h,i",
        ] {
            let text = refused(bad);
            assert!(!text.contains("canary"), "{bad}: {text}");
        }
        assert!(refused("redis://h?nonsense=1").contains("nonsense"));
        assert!(refused("redis://app:12?canary@h").contains("write them as `%2F`, `%3F`"));
        assert!(refused("redis://h?wait=1").contains("did you mean `wait-replicas`?"));
        let config = parse("redis://u:canary@h?sentinel-password=canary").unwrap();
        assert!(!format!("{config:?}").contains("canary"), "{config:?}");
    }
}
