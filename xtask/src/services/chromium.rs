// SPDX-License-Identifier: MIT OR Apache-2.0
//! Chromium, through its WebDriver: each session of a test gets a separate browser and profile.

use std::io;

use super::account::Account;
use super::install::Tools;
use super::server::Server;
use super::site::Site;
use super::wire;

pub(super) fn driver(site: &Site, tools: &Tools) -> io::Result<Server> {
    let (port, dir) = (site.port("chromium"), site.dir("chromium"));
    let data = dir.join("data").display().to_string();
    Ok(Server {
        name: "chromium",
        port,
        // A browser does not need to run as root.
        account: Account::pick(&["nobody"])?,
        files: Vec::new(),
        prepare: Vec::new(),
        command: vec![
            "env".into(),
            // The browsers keep their profiles, caches and sockets here, so they are removed with
            // the folder.
            format!("HOME={data}"),
            format!("TMPDIR={data}"),
            "XDG_CONFIG_HOME=".into(),
            "XDG_CACHE_HOME=".into(),
            tools.path("chromedriver")?,
            // By default, the driver accepts only local connections.
            format!("--port={port}"),
            "--log-level=WARNING".into(),
        ],
        dir,
        ready: wire::webdriver,
    })
}

pub(super) fn urls(site: &Site) -> Vec<(&'static str, String)> {
    vec![("CHROMIUM", format!("http://127.0.0.1:{}", site.port("chromium")))]
}
