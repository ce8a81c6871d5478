// SPDX-License-Identifier: MIT OR Apache-2.0
//! A first execution and a replay, through a layer and through an annotated handler.

use axum::Router;
use axum::routing::post as on_post;
use http::StatusCode;

use crate::world::{Runs, STD, filter, post, send};

#[tokio::test(start_paused = true)]
async fn http_1_http_8_a_layered_route_runs_once_and_replays() {
    let runs = Runs::default();
    let handler = {
        let runs = runs.clone();
        move |body: String| async move { (StatusCode::CREATED, format!("run {} of {body}", runs.run())) }
    };
    let app = Router::new().route("/pay", on_post(handler).layer(filter().guard(STD)));
    let first = send(&app, post("/pay", "k1", "a")).await;
    assert_eq!((first.status, first.text()), (StatusCode::CREATED, "run 1 of a"));
    assert!(!first.is_replay());
    let again = send(&app, post("/pay", "k1", "a")).await;
    assert_eq!((again.status, again.text()), (StatusCode::CREATED, "run 1 of a"));
    assert!(again.is_replay());
    assert_eq!(again.header("cache-control"), Some("no-store"));
    let other = send(&app, post("/pay", "k1", "b")).await;
    assert_eq!(
        (other.status, other.code()),
        (StatusCode::UNPROCESSABLE_ENTITY, "fingerprint-mismatch")
    );
    assert_eq!(runs.count(), 1);
}
