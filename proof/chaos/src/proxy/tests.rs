// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests each mood of the proxy with a server that sends everything twice.

use super::*;
use crate::mono;
use std::io::{Read, Write};
use std::net::TcpListener as Listener;

fn start(address: SocketAddr) -> Proxy {
    Proxy::start(&[Target { address, names_ports: false }]).unwrap()
}

/// Starts a server that sends everything twice.
fn echo() -> SocketAddr {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut word = [0; 4];
                while stream.read_exact(&mut word).is_ok() {
                    if stream.write_all(&[word, word].concat()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn ask(stream: &mut std::net::TcpStream) -> io::Result<[u8; 8]> {
    stream.write_all(b"ping")?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).map(|()| answer)
}

fn connect(proxy: &Proxy) -> std::net::TcpStream {
    let stream = std::net::TcpStream::connect(("127.0.0.1", proxy.ports[0])).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    stream
}

#[test]
fn connections_are_cut_in_requests_and_in_answers_and_come_back() {
    let proxy = start(echo());
    for mood in
        [Mood::Cut, Mood::CutAfterRequest(2), Mood::CutAfterRequest(4), Mood::CutAfterReply(3)]
    {
        let mut stream = connect(&proxy);
        assert_eq!(&ask(&mut stream).unwrap(), b"pingping", "calm before {mood:?}");
        proxy.set(mood);
        assert!(mood == Mood::Cut || proxy.harmed_since().is_none(), "{mood:?} has met nothing");
        assert!(ask(&mut stream).is_err(), "{mood:?}");
        assert!(proxy.harmed_since().is_some(), "{mood:?}");
        proxy.set(Mood::Calm);
        assert_eq!(&ask(&mut connect(&proxy)).unwrap(), b"pingping", "calm after {mood:?}");
    }
}

#[test]
fn nothing_reaches_the_server_while_no_connection_leads_there() {
    let proxy = start(echo());
    let mut stream = connect(&proxy);
    assert!(ask(&mut stream).is_ok());
    assert_eq!(proxy.away().len(), 1, "before the first connection");
    // The proxy can act before `set` returns, and its client can notice before it has counted.
    let cut = mono::now();
    proxy.set(Mood::Cut);
    assert!(ask(&mut stream).is_err());
    assert!(ask(&mut connect(&proxy)).is_err());
    while proxy.harm.links() > 0 {
        mono::rest(1);
    }
    assert!(proxy.away().is_empty(), "still away");
    let calm = mono::now();
    proxy.set(Mood::Calm);
    assert!(ask(&mut connect(&proxy)).is_ok());
    let [(from, to)] = proxy.away()[..] else { panic!("away once") };
    assert!(cut < from && from < calm && calm < to);
}

#[test]
fn a_stalled_answer_arrives_later_and_a_swallowed_one_never() {
    let proxy = start(echo());
    let mut stream = connect(&proxy);
    assert!(ask(&mut stream).is_ok());
    proxy.set(Mood::Stall);
    stream.write_all(b"ping").unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
    let mut answer = [0; 8];
    assert!(stream.read(&mut answer).is_err(), "no data should pass");
    proxy.set(Mood::Calm);
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    stream.read_exact(&mut answer).unwrap();
    proxy.set(Mood::DropReplies);
    stream.write_all(b"ping").unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
    assert!(stream.read(&mut answer).is_err(), "swallowed");
    assert!(proxy.is_closing());
    proxy.set(Mood::Calm);
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    assert!(
        matches!(stream.read(&mut answer), Ok(0) | Err(_)),
        "the connection should be closed afterwards"
    );
    while proxy.is_closing() {
        std::thread::yield_now();
    }
}

#[test]
fn one_way_connections_lose_requests_alone() {
    let proxy = start(echo());
    let mut stream = connect(&proxy);
    stream.write_all(b"pi").unwrap();
    proxy.set(Mood::DropRequests);
    stream.write_all(b"ng").unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
    let mut answer = [0; 8];
    assert!(stream.read(&mut answer).is_err(), "the server should have half a request");
    proxy.set(Mood::Calm);
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    assert!(matches!(stream.read(&mut answer), Ok(0) | Err(_)), "closed afterwards");
}

#[test]
fn a_half_open_connection_swallows_everything_and_new_ones_are_well() {
    let proxy = start(echo());
    let (mut used, unused) = (connect(&proxy), connect(&proxy));
    assert!(ask(&mut used).is_ok());
    proxy.sever();
    used.set_read_timeout(Some(std::time::Duration::from_millis(60))).unwrap();
    let error = ask(&mut used).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "neither an answer nor an end");
    assert_eq!(&ask(&mut connect(&proxy)).unwrap(), b"pingping");
    drop((used, unused));
    while proxy.stranded().left < 2 {
        std::thread::yield_now();
    }
    assert_eq!(proxy.stranded(), Stranded { left: 2, stuck: 0 });
}
