// SPDX-License-Identifier: MIT OR Apache-2.0
//! A PostgreSQL primary and its synchronous standby.

use std::io;

use super::install::Tools;
use super::postgres;
use super::server::Server;
use super::site::Site;
use super::wire;

const PRIMARY: &str = "standby-primary";
const COPY: &str = "standby-copy";

/// Returns the primary and then the standby, whose data are a copy of the running primary's.
pub(super) fn servers(site: &Site, tools: &Tools) -> io::Result<Vec<Server>> {
    let mut primary = postgres::named(site, tools, PRIMARY)?;
    let mut copy = postgres::named(site, tools, COPY)?;
    for server in [&mut primary, &mut copy] {
        // The setting is on both servers, so that it holds after a failover too.
        let names = format!("synchronous_standby_names=ANY 1 ({COPY:?},{PRIMARY:?})");
        server.command.extend(["-c".into(), names]);
    }
    let from =
        format!("host=127.0.0.1 port={} user=postgres application_name={COPY}", site.port(PRIMARY));
    let data = copy.dir.join("data").display().to_string();
    let words = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &from, "-D", &data];
    let program = tools.path("pg_basebackup")?;
    let words = std::iter::once(program).chain(words.map(String::from)).collect();
    // The server refuses a folder that others can read. `initdb` would change that.
    let own = ["chmod", "700", &data].map(String::from).to_vec();
    copy.prepare = vec![(own, String::new()), (words, String::new())];
    copy.ready = wire::postgres;
    Ok(vec![primary, copy])
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    let [primary, copy] = [PRIMARY, COPY].map(|name| site.port(name));
    vec![(
        "STANDBY",
        format!("postgres://postgres@127.0.0.1:{primary},127.0.0.1:{copy}/retryproof"),
    )]
}
