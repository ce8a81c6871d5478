// SPDX-License-Identifier: MIT OR Apache-2.0
//! NATS with JetStream; its streams are on disk.

use std::io;

use super::account::Account;
use super::install::Tools;
use super::server::Server;
use super::site::Site;
use super::wire;

pub(super) fn server(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (port, dir) = (site.port("nats"), site.dir("nats"));
    // The server writes a message before it acknowledges it, so a crash of the server loses no
    // message. A power loss can lose the messages of the last two minutes, because Debian's version
    // 2.9 does not support `sync_interval: always`.
    let settings = format!(
        "listen: \"127.0.0.1:{port}\"\npid_file: \"{}\"\njetstream {{ store_dir: \"{}\" }}\n",
        dir.join("pid").display(),
        dir.join("data").display()
    );
    Ok(Server {
        name: "nats",
        port,
        // The server can run as root, but does not need to. The user `nats` exists if Debian's
        // package is installed.
        account: Account::pick(&["nats", "nobody"])?,
        files: vec![("nats.conf", settings)],
        prepare: Vec::new(),
        command: vec![
            tools.path("nats-server")?,
            "-c".into(),
            dir.join("nats.conf").display().to_string(),
        ],
        dir,
        ready: wire::nats,
    })
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    vec![("NATS", format!("nats://127.0.0.1:{}", site.port("nats")))]
}
