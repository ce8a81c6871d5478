// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks in a server's own protocol whether it is ready, because an open port alone is not enough.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream =
        TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), ANSWERS_WITHIN)?;
    stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
    stream.set_write_timeout(Some(ANSWERS_WITHIN))?;
    Ok(stream)
}

/// Checks PostgreSQL, or pgbouncer with a server behind it: the superuser can open a session in the
/// tests' database.
pub(super) fn postgres(port: u16) -> io::Result<()> {
    let mut stream = connect(port)?;
    let body = b"\0\x03\0\0user\0postgres\0database\0retryproof\0\0";
    let length = u32::try_from(body.len() + 4).unwrap_or_default();
    stream.write_all(&[&length.to_be_bytes()[..], body].concat())?;
    loop {
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let mut message = Vec::new();
        (&stream)
            .take(u64::from(u32::from_be_bytes(length)).saturating_sub(4))
            .read_to_end(&mut message)?;
        match kind {
            b'Z' => return stream.write_all(b"X\0\0\0\x04"),
            b'E' => return Err(io::Error::other(readable(&message))),
            _ => {}
        }
    }
}

/// Checks MariaDB: it sends its greeting only after its start-up script has run.
pub(super) fn mariadb(port: u16) -> io::Result<()> {
    let mut greeting = [0; 5];
    connect(port)?.read_exact(&mut greeting)?;
    if greeting[4] == 10 { Ok(()) } else { Err(io::Error::other("its greeting is not version 10")) }
}

pub(super) fn redis(port: u16) -> io::Result<()> {
    let answer = ask_redis(port, "PING")?;
    if answer.starts_with("+PONG") {
        Ok(())
    } else {
        Err(io::Error::other(answer.trim().to_string()))
    }
}

/// Sends one command to Redis or a sentinel, and returns the answer: one line, or a text of
/// several. A sentinel does not support `QUIT`, so the end of the answer is found by the length
/// that the answer states.
pub(super) fn ask_redis(port: u16, command: &str) -> io::Result<String> {
    let mut stream = BufReader::new(connect(port)?);
    stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    match line.strip_prefix('$').and_then(|length| length.trim().parse().ok()) {
        Some(length) => {
            let mut text = String::new();
            stream.take(length).read_to_string(&mut text)?;
            Ok(text)
        }
        None => Ok(line),
    }
}

/// Checks a WebDriver: it reports that it accepts sessions.
pub(super) fn webdriver(port: u16) -> io::Result<()> {
    let mut stream = connect(port)?;
    stream
        .write_all(format!("GET /status HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes())?;
    let (mut answer, mut part) = (Vec::new(), [0; 1024]);
    loop {
        // The server may keep the connection open, so stop reading when the answer says that it is
        // ready.
        let read = stream.read(&mut part)?;
        answer.extend_from_slice(&part[..read]);
        if String::from_utf8_lossy(&answer).contains("\"ready\":true") {
            return Ok(());
        }
        if read == 0 || answer.len() > 1 << 16 {
            return Err(io::Error::other("it does not report that it is ready"));
        }
    }
}

/// Checks NATS: it sends its greeting before it is ready, and the greeting says whether JetStream
/// is on. After the login, it answers pings.
pub(super) fn nats(port: u16) -> io::Result<()> {
    let mut stream = BufReader::new(connect(port)?);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    if !(line.starts_with("INFO ") && line.contains("\"jetstream\":true")) {
        return Err(io::Error::other("it does not report that JetStream is on"));
    }
    stream.get_mut().write_all(b"CONNECT {\"verbose\":false}\r\nPING\r\n")?;
    line.clear();
    stream.read_line(&mut line)?;
    if line.starts_with("PONG") { Ok(()) } else { Err(io::Error::other(line.trim().to_string())) }
}

/// Checks the daemon that lists the Erlang nodes: its answer begins with its own port.
pub(super) fn epmd(port: u16) -> io::Result<()> {
    let mut stream = connect(port)?;
    stream.write_all(&[0, 1, b'n'])?;
    let mut own = [0; 4];
    stream.read_exact(&mut own)?;
    if own == u32::from(port).to_be_bytes() {
        Ok(())
    } else {
        Err(io::Error::other("another epmd answers on this port"))
    }
}

/// Checks RabbitMQ: it answers the protocol header only after all of its parts have started.
pub(super) fn rabbitmq(port: u16) -> io::Result<()> {
    let mut stream = connect(port)?;
    stream.write_all(b"AMQP\0\0\x09\x01")?;
    let mut frame = [0; 11];
    stream.read_exact(&mut frame)?;
    // The answer has to be a frame of these parts: a method on channel 0, the length, and
    // `connection.start`.
    let starts = frame[..3] == [1, 0, 0] && frame[7..] == [0, 10, 0, 10];
    if starts { Ok(()) } else { Err(io::Error::other("it does not send `connection.start`")) }
}

/// Returns the text in PostgreSQL's error message, in which each field ends in a zero byte.
fn readable(message: &[u8]) -> String {
    let fields = message.split(|byte| *byte == 0).filter(|field| field.first() == Some(&b'M'));
    fields.map(|field| String::from_utf8_lossy(&field[1..]).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    /// Answers one connection with the bytes in `answer`.
    fn server(answer: &'static [u8]) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = listener.local_addr().expect("its address").port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(answer).expect("sent");
            stream.shutdown(Shutdown::Write).expect("ended");
            drop(stream.read_to_end(&mut Vec::new())); // unread data would reset the connection
        });
        port
    }

    #[test]
    fn only_a_session_that_opens_counts_as_postgres() {
        assert!(postgres(server(b"R\0\0\0\x08\0\0\0\0S\0\0\0\x06a\0Z\0\0\0\x05I")).is_ok());
        let why = postgres(server(b"E\0\0\0\x19SFATAL\0Mstarting up\0\0")).expect_err("not yet");
        assert_eq!(why.to_string(), "starting up");
        assert!(postgres(server(b"R\0\0")).is_err());
    }

    #[test]
    fn a_greeting_and_a_pong_are_told_from_anything_else() {
        assert!(mariadb(server(b"\x4a\0\0\0\x0a10.11")).is_ok());
        assert!(mariadb(server(b"\x4a\0\0\0\xffno")).is_err());
        assert!(redis(server(b"+PONG\r\n")).is_ok());
        assert_eq!(ask_redis(server(b"$4\r\na\r\nb\r\n"), "INFO").expect("a text"), "a\r\nb");
        assert!(webdriver(server(b"HTTP/1.1 200 OK\r\n\r\n{\"value\":{\"ready\":true}}")).is_ok());
        assert!(
            webdriver(server(b"HTTP/1.1 200 OK\r\n\r\n{\"value\":{\"ready\":false}}")).is_err()
        );
        assert!(nats(server(b"INFO {\"jetstream\":true}\r\nPONG\r\n")).is_ok());
        assert!(nats(server(b"INFO {\"port\":1}\r\nPONG\r\n")).is_err());
        assert_eq!(
            nats(server(b"INFO {\"jetstream\":true}\r\n-ERR 'x'\r\n")).expect_err("no").to_string(),
            "-ERR 'x'"
        );
        assert!(rabbitmq(server(b"\x01\0\0\0\0\x01\xe0\0\x0a\0\x0a")).is_ok());
        assert!(rabbitmq(server(b"AMQP\0\0\x09\x01\0\0\0")).is_err(), "it speaks another version");
        assert!(epmd(server(&[0, 0, 0, 0])).is_err(), "epmd reports another port");
        assert_eq!(redis(server(b"-LOADING\r\n")).expect_err("not yet").to_string(), "-LOADING");
    }
}
