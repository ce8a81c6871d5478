// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's server stops, hangs and returns while a lab runs. The tests check `/open/health` and
//! the answers to requests in each state.

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::StatusCode;
use retryproof_testkit::wire::WireProxy;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::client::{Ask, runs};
use crate::place::{Place, url};
use crate::server::Lab;

/// Returns the server's address in `url`, and a function that puts another address in its place.
fn through(url: &str) -> (SocketAddr, impl Fn(SocketAddr) -> String + use<>) {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let (login, place) = rest.rsplit_once('@').map_or(("", rest), |(login, place)| (login, place));
    let (host, path) = place.split_at(place.find(['/', '?']).unwrap_or(place.len()));
    let head =
        if login.is_empty() { format!("{scheme}://") } else { format!("{scheme}://{login}@") };
    let path = path.to_owned();
    (host.parse().expect("host and port"), move |proxy| format!("{head}{proxy}{path}"))
}

async fn health(lab: &Lab) -> (StatusCode, bool) {
    let answer = Ask::post("/open/health").method("GET").send(lab.address).await;
    (answer.status, answer.json()["answers"] == true)
}

async fn until_healthy(lab: &Lab, within: Duration) {
    let began = Instant::now();
    while health(lab).await != (StatusCode::OK, true) {
        assert!(began.elapsed() < within, "not healthy again");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Checks that the lab recovers from outages of its store: from a server that stops, and from one
/// that hangs.
async fn follows(service: &str) {
    let (server, by) = through(&url(service));
    let proxy = WireProxy::to(server).await.expect("a free port");
    let place = Place::at(service, &by(proxy.addr()));
    let lab = Lab::start_on(&place.url).await;
    let done = Ask::post("/lab/now").key("done").script(&json!({ "tag": "done" }));
    assert_eq!(done.send(lab.address).await.status, StatusCode::OK);
    assert_eq!(health(&lab).await, (StatusCode::OK, true));

    proxy.refuse(true);
    proxy.cut();
    for hangs in [false, true] {
        assert_eq!(
            health(&lab).await,
            (StatusCode::SERVICE_UNAVAILABLE, false),
            "{service}, hangs: {hangs}"
        );
        let refused = Ask::post("/lab/now")
            .key("new")
            .script(&json!({ "tag": "new" }))
            .send(lab.address)
            .await;
        assert_eq!(
            refused.status,
            StatusCode::SERVICE_UNAVAILABLE,
            "HTTP-14, {service}: {refused:?}"
        );
        assert_eq!(refused.code(), "store-unavailable");
        assert_eq!(runs(lab.address, "new").await, (0, 0, 0), "nothing ran");
        proxy.refuse(false);
        proxy.stall(false);
        until_healthy(&lab, Duration::from_secs(15)).await;
        assert!(done.send(lab.address).await.is_replay(), "without a restart");
        if !hangs {
            proxy.stall(true);
        }
    }
    proxy.stall(false);
    // Use a new key. A call for the earlier key may have been in flight during the outage, and may
    // now hold that key for one lease.
    let new =
        Ask::post("/lab/now").key("last").script(&json!({ "tag": "new" })).send(lab.address).await;
    assert_eq!((new.status, new.is_replay()), (StatusCode::OK, false));
    drop(lab);
}

#[tokio::test]
async fn http_14_health_follows_postgresql() {
    follows("postgres").await;
}

#[tokio::test]
async fn http_14_health_follows_postgresql_behind_pgbouncer() {
    follows("pgbouncer").await;
}

#[tokio::test]
async fn http_14_health_follows_mariadb() {
    follows("mariadb").await;
}

#[tokio::test]
async fn http_14_health_follows_redis() {
    follows("redis").await;
}
