// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends one request on a new connection, and starts the service that answers it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::browser::{now, pause};

/// The time limit for one answer; a driver that starts a browser on a busy machine is slow.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The header lines in their order, with names in lower case.
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Sends a request, and returns the stream from which the caller reads the answer.
pub(crate) fn send(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    let lines: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {server}\r\n{lines}content-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes())?;
    Ok(BufReader::new(stream))
}

/// Reads the status and the header lines; the body follows.
pub(crate) fn head(stream: &mut BufReader<TcpStream>) -> io::Result<Answer> {
    let lost = || io::Error::new(io::ErrorKind::UnexpectedEof, "no answer");
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(lost());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let status =
        lines.first().and_then(|line| line.split(' ').nth(1)?.parse().ok()).ok_or_else(lost)?;
    let fields = lines.iter().skip(1).filter_map(|line| line.split_once(':'));
    let headers =
        fields.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    Ok(Answer { status, headers, body: String::new() })
}

/// Sends a request, and reads the whole answer, which must declare its length.
pub(crate) fn call(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> io::Result<Answer> {
    let mut stream = send(server, method, path, headers, body)?;
    let mut answer = head(&mut stream)?;
    let length = answer.header("content-length").and_then(|length| length.parse().ok());
    let length = length.ok_or_else(|| io::Error::other("an answer without a length"))?;
    stream.take(length).read_to_string(&mut answer.body)?;
    Ok(answer)
}

/// The program as a service, on a database for one test.
pub(crate) struct Service {
    child: Child,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    /// The URL of the page for operators with its login, if the service has one.
    pub(crate) operators: Option<String>,
}

impl Service {
    pub(crate) fn start(more: &[&str]) -> Self {
        // The process id and this counter make the folder's name unique.
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("retryproof-checkout-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        let log = std::fs::File::create(folder.join("log")).expect("a log");
        let mut child = Command::new(env!("CARGO_BIN_EXE_payments"))
            .args(["serve", "--listen", "127.0.0.1:0", "--db"])
            .arg(folder.join("payments.db"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("the program starts");
        let (address, operators) = said(&mut child, more.contains(&"--operate"));
        Self { address, operators, child, folder }
    }

    /// Returns the file that contains the ledger and the records.
    pub(crate) fn database(&self) -> PathBuf {
        self.folder.join("payments.db")
    }

    /// Returns the address of the port for operators.
    pub(crate) fn operate(&self) -> SocketAddr {
        let url = self.operators.as_deref().expect("a service with `--operate`");
        let address = url.split(['@', '/']).nth(3).expect("an address");
        address.parse().expect("an address")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        call(self.address, "GET", path, &[], "").expect("an answer")
    }

    /// Returns the references and amounts that were charged.
    pub(crate) fn ledger(&self) -> Vec<(String, i64)> {
        let charges: serde_json::Value =
            serde_json::from_str(&self.get("/payments").body).expect("JSON");
        let row = |charge: &serde_json::Value| {
            Some((charge["reference"].as_str()?.to_owned(), charge["amount"].as_i64()?))
        };
        charges
            .as_array()
            .expect("a list")
            .iter()
            .map(|charge| row(charge).expect("a charge"))
            .collect()
    }

    /// Sends SIGTERM, and returns how the service ended; `None` if it did not end within a minute.
    pub(crate) fn stop(&mut self) -> Option<ExitStatus> {
        let kill = format!("kill -TERM {}", self.child.id());
        Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        let began = now();
        while began.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.child.try_wait().expect("asked") {
                return Some(status);
            }
            pause();
        }
        None
    }
}

/// Returns the addresses that a service prints at its start.
fn said(child: &mut Child, is_operated: bool) -> (SocketAddr, Option<String>) {
    // Read only the first lines. The rest of the output fits into the pipe, so it does not block
    // the service.
    let stdout = child.stdout.as_mut().expect("its output");
    let mut lines = BufReader::new(stdout).lines().map(|line| line.expect("a line"));
    let line = lines.next().expect("its first line");
    let address = line.strip_prefix("listening on http://").expect("its address");
    let address = address.parse().expect("an address");
    let url = |line: String| line.strip_prefix("operators: ").map(str::to_owned);
    let operators =
        is_operated.then(|| lines.find_map(url).expect("the address of the page for operators"));
    (address, operators)
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
