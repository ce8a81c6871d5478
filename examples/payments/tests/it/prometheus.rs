// SPDX-License-Identifier: MIT OR Apache-2.0
//! A Prometheus server for one test, on a free port of this machine.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::browser::{now, pause};

/// The time limit for the start of the server, for one of its answers, and for a scrape that a test
/// waits for.
const BOUND: Duration = Duration::from_secs(60);

/// The time between two scrapes.
pub(crate) const INTERVAL: &str = "1s";

pub(crate) struct Prometheus {
    child: Child,
    address: SocketAddr,
}

/// A series: its labels, and its values with their times.
pub(crate) struct Series {
    pub(crate) labels: Value,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Prometheus {
    /// Starts a server that scrapes `target` until the server is dropped.
    ///
    /// # Panics
    /// If the program is missing: the test is not skipped.
    pub(crate) fn scrape(target: SocketAddr, folder: &Path) -> Self {
        let config = format!(
            "global: {{scrape_interval: {INTERVAL}, scrape_timeout: {INTERVAL}}}\n\
             scrape_configs: [{{job_name: payments, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).expect("a configuration");
        let address = free();
        let log = std::fs::File::create(folder.join("prometheus.log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!(
                "Prometheus does not start: {error}. Install it, on Debian with `apt-get install \
                 --no-install-recommends prometheus`; as root, `cargo xtask alerts-check` does that"
            )
        });
        let server = Self { child, address };
        server.wait_for(|server| server.get("/-/ready").is_ok_and(|(status, _)| status == 200));
        server
    }

    /// Waits until an instant query has a result.
    pub(crate) fn wait_for_result(&self, query: &str) {
        self.wait_for(|server| !server.query("query", query, "").is_empty());
    }

    fn wait_for(&self, is_there: impl Fn(&Self) -> bool) {
        let began = now();
        while !is_there(self) {
            assert!(began.elapsed() < BOUND, "Prometheus did not get that far");
            pause();
        }
    }

    /// Returns the result of a query from `start` to `end`, in seconds since 1970, with a value for
    /// each second.
    pub(crate) fn range(&self, query: &str, start: u64, end: u64) -> Vec<Series> {
        self.query("query_range", query, &format!("&start={start}&end={end}&step=1"))
    }

    /// Returns the result of a query at one time.
    pub(crate) fn instant(&self, query: &str, time: u64) -> Vec<Series> {
        self.query("query", query, &format!("&time={time}"))
    }

    fn query(&self, kind: &str, query: &str, more: &str) -> Vec<Series> {
        let path = format!("/api/v1/{kind}?query={}{more}", escaped(query));
        let (_, body) = self.get(&path).unwrap_or_else(|error| panic!("{query}: {error}"));
        let mut answer: Value =
            serde_json::from_str(&body).unwrap_or_else(|error| panic!("{query}: {error}: {body}"));
        assert_eq!(answer["status"], "success", "{query}: {body}");
        let Value::Array(results) = answer["data"]["result"].take() else {
            panic!("{query}: {body}")
        };
        results.into_iter().map(series).collect()
    }

    /// Sends a request over HTTP/1.0, in which answers have no chunks and end with the connection.
    fn get(&self, path: &str) -> io::Result<(u16, String)> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(BOUND))?;
        write!(stream, "GET {path} HTTP/1.0\r\nhost: {}\r\n\r\n", self.address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let lost = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(lost)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Ok((status.ok_or_else(lost)?, body.to_owned()))
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn series(mut result: Value) -> Series {
    let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_str()?.parse().ok()?));
    let points = match (&result["values"], &result["value"]) {
        (Value::Array(values), _) => values.iter().filter_map(point).collect(),
        (_, value) => point(value).into_iter().collect(),
    };
    Series { labels: result["metric"].take(), points }
}

/// Percent-encodes all characters except letters and digits.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") })
        .collect()
}

/// Finds an address on which no process listens.
pub(crate) fn free() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address")
}
