// SPDX-License-Identifier: MIT OR Apache-2.0
//! `services up|down|status`: the real servers that stores and listeners are tested against, and
//! the browser of the pages.
//!
//! The servers are private: they use free loopback ports, keep all their files in one folder below
//! the system's temporary folder, and are not started by the system's service manager.
//! `target/services/env` has their addresses, and tests read it. A running server is recognised by
//! its process id, start time and working folder together. Therefore another process that later
//! gets the same id is neither taken for a server nor stopped.

use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::Verdict;

mod account;
mod chromium;
mod cluster;
mod env;
mod for_tests;
mod install;
mod mariadb;
mod memory;
mod nats;
mod ports;
mod postgres;
mod process;
mod rabbitmq;
mod redis;
mod server;
mod site;
mod standby;
mod wire;

pub(crate) use for_tests::ForTests;
use install::Tools;
pub(crate) use install::promtool;
use server::{Failure, SERVERS, Server};
use site::Site;

/// How long a server may take to become ready. A busy machine can make the start slow, but a server
/// that takes longer than this counts as hung.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// For how long a server that already has its data is started again, if it ends before it is ready.
const AGAIN_WITHIN: Duration = Duration::from_secs(15);

/// A service, which the command line can name.
pub(crate) struct Service {
    pub(crate) name: &'static str,
    /// Programs that start the service or set it up.
    programs: &'static [&'static str],
    /// Debian packages that contain these programs. The `-core` packages of MariaDB contain the
    /// server and its client, and set up nothing.
    packages: &'static [&'static str],
    /// Another service that this one needs, and that starts first.
    on: Option<&'static str>,
}

pub(crate) const SERVICES: [Service; 10] = [
    Service {
        name: "postgres",
        programs: &["initdb", "postgres", "faketime"], // `faketime`: for tests of the command
        packages: &["postgresql", "faketime"],         // any major version
        on: None,
    },
    Service {
        name: "pgbouncer",
        programs: &["pgbouncer"],
        packages: &["pgbouncer"],
        on: Some("postgres"),
    },
    Service {
        name: "standby",
        programs: &["initdb", "postgres", "pg_basebackup"],
        packages: &["postgresql"],
        on: None,
    },
    Service {
        name: "mariadb",
        programs: &["mariadbd", "mariadb-install-db", "my_print_defaults", "mariadb"],
        packages: &["mariadb-server-core", "mariadb-client-core"],
        on: None,
    },
    Service {
        name: "redis",
        programs: &["redis-server", "openssl"], // certificates for the tests over TLS
        packages: &["redis-server", "openssl"],
        on: None,
    },
    // A sentinel is `redis-server` in another mode. The package redis-sentinel would only add a
    // system service.
    Service {
        name: "sentinel",
        programs: &["redis-server"],
        packages: &["redis-server"],
        on: None,
    },
    Service { name: "cluster", programs: &["redis-server"], packages: &["redis-server"], on: None },
    Service {
        name: "chromium",
        programs: &["chromium", "chromedriver"],
        packages: &["chromium", "chromium-driver", "fonts-inter"], // the font of the README's picture
        on: None,
    },
    Service { name: "nats", programs: &["nats-server"], packages: &["nats-server"], on: None },
    Service {
        name: "rabbitmq",
        programs: &["rabbitmq-env", "erl", "epmd", "openssl"], // a certificate for the tests over TLS
        packages: &["rabbitmq-server", "openssl"],
        on: None,
    },
];

/// Runs `cargo xtask services COMMAND [NAME...]`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Verdict {
    let Some((command, names)) = arguments.split_first() else {
        return Verdict::Failed("missing command: use `up`, `down` or `status`".into());
    };
    if arguments == ["up", "patroni"] {
        return install::patroni();
    }
    let wanted = match chosen(names) {
        Ok(wanted) => wanted,
        Err(why) => return Verdict::Failed(why),
    };
    let done = match command.as_str() {
        "up" => up(root, &wanted).map(|started| match started.len() {
            0 => "all services were already running".to_string(),
            _ => format!("started {}", started.join(", ")),
        }),
        "down" => down(root, &wanted),
        "status" => status(root, &wanted),
        other => Err(format!("unknown command `{other}`: use `up`, `down` or `status`")),
    };
    match done {
        Ok(remark) => Verdict::Passed(remark),
        Err(why) => Verdict::Failed(why),
    }
}

/// Returns the services in `names`, or all if it is empty, in the order of [`SERVICES`].
fn chosen(names: &[String]) -> Result<Vec<&'static Service>, String> {
    if let Some(unknown) =
        names.iter().find(|name| SERVICES.iter().all(|known| known.name != *name))
    {
        let known: Vec<&str> = SERVICES.iter().map(|service| service.name).collect();
        return Err(format!("unknown service `{unknown}`: there are {}", known.join(", ")));
    }
    Ok(SERVICES
        .iter()
        .filter(|service| names.is_empty() || names.iter().any(|name| name == service.name))
        .collect())
}

/// Starts the services of `wanted` that are not running, and those that they need. Returns the
/// names of the services that this call started. A service that fails to start is stopped; the
/// others continue to run.
pub(crate) fn up(root: &Path, wanted: &[&'static Service]) -> Result<Vec<&'static str>, String> {
    let needed = |service: &Service| {
        wanted.iter().any(|other| other.name == service.name || other.on == Some(service.name))
    };
    let _lock =
        site::lock(root).map_err(|error| format!("cannot lock target/services: {error}"))?;
    let mut site =
        Site::open(root).map_err(|error| format!("cannot open the services folder: {error}"))?;
    let missing: Vec<&'static Service> =
        SERVICES.iter().filter(|service| needed(service) && !site.runs(service.name)).collect();
    if missing.is_empty() {
        site.publish(root).map_err(|error| format!("cannot write to target/services: {error}"))?;
        return Ok(Vec::new());
    }
    let tools = install::tools(&missing)?;
    site.draw_ports(&missing)
        .map_err(|error| format!("cannot find free ports on 127.0.0.1: {error}"))?;
    // One thread per service. A service that needs another follows it in the same thread.
    let mut chains: Vec<Vec<&'static Service>> = Vec::new();
    for service in &missing {
        match chains
            .iter_mut()
            .find(|chain| chain.iter().any(|below| service.on == Some(below.name)))
        {
            Some(chain) => chain.push(service),
            None => chains.push(vec![service]),
        }
    }
    let site = Mutex::new(site);
    let failed: Vec<&str> = thread::scope(|scope| {
        let (site, tools) = (&site, &tools);
        let run = move |chain: &[&'static Service]| {
            chain.iter().find(|service| !bring_up(site, tools, service)).map(|service| service.name)
        };
        let running: Vec<_> =
            chains.iter().map(|chain| (chain, scope.spawn(move || run(chain)))).collect();
        let ended =
            running.into_iter().map(|(chain, thread)| thread.join().unwrap_or(Some(chain[0].name)));
        ended.flatten().collect()
    });
    let site = site.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    site.publish(root).map_err(|error| format!("cannot write to target/services: {error}"))?;
    if failed.is_empty() {
        return Ok(missing.iter().map(|service| service.name).collect());
    }
    Err(format!("did not start: {}; see the log above", failed.join(", ")))
}

/// Starts the service, prints the result, and returns whether it is ready.
fn bring_up(site: &Mutex<Site>, tools: &Tools, service: &Service) -> bool {
    let began = now();
    match start(site, tools, service) {
        Ok(port) => {
            println!(
                "  {:<10} ready in {:.1}s on 127.0.0.1:{port}",
                service.name,
                began.elapsed().as_secs_f64()
            );
            true
        }
        Err(failure) => {
            println!(
                "  {:<10} FAILED after {:.1}s: {failure}",
                service.name,
                began.elapsed().as_secs_f64()
            );
            with(site, |site| site.stop(&[service.name]).unwrap_or_else(|why| println!("  {why}")));
            false
        }
    }
}

fn start(site: &Mutex<Site>, tools: &Tools, service: &Service) -> Result<u16, Failure> {
    let (recipes, running) =
        with(site, |site| (recipes(site, tools, service), site.running(service.name)));
    let recipes = recipes.map_err(|error| Failure::plain(&error))?;
    let port = recipes.last().map_or(0, |server| server.port);
    for server in recipes.iter().filter(|server| !running.contains(&server.name)) {
        let (began, again) = (now(), server.is_made());
        while let Err(failure) = attempt(site, server) {
            // For a moment, the children of a killed server can prevent its successor from
            // starting.
            if !(again && failure.ended) || began.elapsed() > AGAIN_WITHIN {
                return Err(failure);
            }
            pause();
        }
    }
    match service.name {
        "sentinel" => redis::settle(&recipes, READY_WITHIN)?,
        "cluster" => cluster::settle(&recipes, READY_WITHIN)?,
        _ => {}
    }
    Ok(port)
}

fn attempt(site: &Mutex<Site>, server: &Server) -> Result<(), Failure> {
    let mut child = server.start()?;
    let noted = with(site, |site| site.note(server.name, child.id()));
    noted.map_err(|error| Failure::plain(&error))?;
    server.wait(&mut child, READY_WITHIN)
}

fn recipes(site: &Site, tools: &Tools, service: &Service) -> io::Result<Vec<Server>> {
    match service.name {
        "postgres" => postgres::server(site, tools).map(|server| vec![server]),
        "pgbouncer" => postgres::bouncer(site, tools).map(|server| vec![server]),
        "standby" => standby::servers(site, tools),
        "mariadb" => mariadb::server(site, tools).map(|server| vec![server]),
        "redis" => redis::standalone(site, tools).map(|server| vec![server]),
        "cluster" => cluster::nodes(site, tools),
        "chromium" => chromium::driver(site, tools).map(|driver| vec![driver]),
        "nats" => nats::server(site, tools).map(|server| vec![server]),
        "rabbitmq" => rabbitmq::servers(site, tools),
        _ => redis::group(site, tools),
    }
}

/// Stops `wanted` and the services that need it, and removes their files.
pub(crate) fn down(root: &Path, wanted: &[&'static Service]) -> Result<String, String> {
    let _lock =
        site::lock(root).map_err(|error| format!("cannot lock target/services: {error}"))?;
    let mut site =
        Site::open(root).map_err(|error| format!("cannot open the services folder: {error}"))?;
    let names: Vec<&str> = SERVICES
        .iter()
        .filter(|service| {
            wanted.iter().any(|other| other.name == service.name || service.on == Some(other.name))
        })
        .map(|service| service.name)
        .collect();
    let had = names.iter().filter(|name| !site.running(name).is_empty()).count();
    site.stop(&names)?;
    site.publish(root).map_err(|error| format!("cannot write to target/services: {error}"))?;
    Ok(match had {
        0 => "no service was running".into(),
        1 => "1 service stopped".into(),
        n => format!("{n} services stopped"),
    })
}

fn status(root: &Path, wanted: &[&'static Service]) -> Result<String, String> {
    let _lock =
        site::lock(root).map_err(|error| format!("cannot lock target/services: {error}"))?;
    let site =
        Site::open(root).map_err(|error| format!("cannot open the services folder: {error}"))?;
    let mut running = 0;
    for service in wanted {
        running += usize::from(site.runs(service.name));
        for server in SERVERS.iter().filter(|server| server.service == service.name) {
            match site.process(server.name) {
                Some(pid) => {
                    println!(
                        "  {:<18} 127.0.0.1:{:<6} pid {pid}",
                        server.name,
                        site.port(server.name)
                    );
                }
                None => println!("  {:<18} not running", server.name),
            }
        }
    }
    site.publish(root).map_err(|error| format!("cannot write to target/services: {error}"))?;
    Ok(format!("{running} of {} services are running", wanted.len()))
}

fn with<T>(site: &Mutex<Site>, work: impl FnOnce(&mut Site) -> T) -> T {
    work(&mut site.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Repeats `check` until it has an answer or `bound` is over.
fn until<T>(bound: Duration, mut check: impl FnMut() -> Option<T>) -> Option<T> {
    let began = now();
    loop {
        if let Some(answer) = check() {
            return Some(answer);
        }
        if began.elapsed() >= bound {
            return None;
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a server in another process does not announce that it is ready"
)]
fn pause() {
    thread::sleep(Duration::from_millis(20));
}

#[expect(
    clippy::disallowed_methods,
    reason = "bounds a wait for another process, and times it for a person"
)]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_for_all_and_an_unknown_one_is_refused() {
        let names = |names: &[&str]| {
            chosen(&names.iter().map(|name| (*name).to_string()).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).expect("all").len(), SERVICES.len());
        let two: Vec<&str> = names(&["redis", "postgres"])
            .expect("both")
            .iter()
            .map(|service| service.name)
            .collect();
        assert_eq!(two, ["postgres", "redis"]);
        let why = names(&["redis", "oracle"]).err().expect("refused");
        assert!(why.contains("`oracle`") && why.contains("postgres, pgbouncer"), "{why}");
    }

    #[test]
    fn every_service_has_servers_and_stands_on_one_before_it() {
        for (n, service) in SERVICES.iter().enumerate() {
            assert!(
                SERVERS.iter().any(|server| server.service == service.name),
                "{}",
                service.name
            );
            assert!(
                service
                    .on
                    .is_none_or(|below| SERVICES[..n].iter().any(|other| other.name == below)),
                "{}",
                service.name
            );
        }
    }
}
