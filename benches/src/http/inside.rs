// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocations of calls straight into the router, and bytes that they keep, counted by the counting
//! allocator.

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::server::router;
use crate::heap::{HeapCounter, answer};

const CALLS: u64 = 10_000;
const RECORDS: u64 = 200_000;

/// Prints each figure with its name.
pub(super) fn count(heap: HeapCounter) -> Result<(), String> {
    let now = || heap().ok_or("the counting allocator is not installed");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let router = router()?;
        for (name, path, key) in [
            ("plain", "/plain", None),
            ("replay", "/layered", Some(Key::Same)),
            ("first", "/layered", Some(Key::Fresh(0))),
            ("keyless", "/optional-layered", None),
        ] {
            // Call once to warm up, because the first call of a path builds things that later calls
            // share.
            calls(&router, path, key, 100).await?;
            let before = now()?;
            calls(&router, path, key.map(|key| key.skip(100)), CALLS).await?;
            answer(&format!("{name}_allocations"), now()?.since(before, CALLS).0);
        }
        let before = now()?;
        calls(&router, "/layered", Some(Key::Fresh(1 << 32)), RECORDS).await?;
        answer("held_bytes", now()?.since(before, RECORDS).1);
        Ok(())
    })
}

/// Makes `COUNT` calls of the kind `WAY`, while callgrind counts the instructions.
pub(super) fn repeat(args: &[String]) -> Result<(), String> {
    let [way, count] = args else { return Err("usage: http call WAY COUNT".into()) };
    let count = count.parse().map_err(|_| "http call: COUNT is not a number")?;
    let (path, key) = match way.as_str() {
        "plain" => ("/plain", None),
        "replay" => ("/annotated", Some(Key::Same)),
        "replay-layer" => ("/layered", Some(Key::Same)),
        "first" => ("/annotated", Some(Key::Fresh(0))),
        "keyless" => ("/optional-layered", None),
        _ => return Err(format!("http call: unknown kind of call {way:?}")),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async { calls(&router()?, path, key, count).await })
}

#[derive(Debug, Clone, Copy)]
enum Key {
    Same,
    Fresh(u64),
}

impl Key {
    fn skip(self, count: u64) -> Self {
        match self {
            Self::Same => self,
            Self::Fresh(from) => Self::Fresh(from + count),
        }
    }
}

async fn calls(router: &Router, path: &str, key: Option<Key>, count: u64) -> Result<(), String> {
    for number in 0..count {
        let mut request = Request::post(path);
        match key {
            None => {}
            Some(Key::Same) => {
                request = request.header("idempotency-key", "00000000-0000-4000-8000-000000000000")
            }
            Some(Key::Fresh(from)) => {
                let key = format!("00000000-0000-4000-8001-{:012}", from + number);
                request = request.header("idempotency-key", key);
            }
        }
        let request =
            request.body(Body::from(vec![b'b'; 180])).map_err(|error| error.to_string())?;
        let response = router.clone().oneshot(request).await.map_err(|error| error.to_string())?;
        if response.status() != 201 {
            return Err(format!("{path} answered {}", response.status()));
        }
        let _ = response.into_body().collect().await.map_err(|error| error.to_string())?;
    }
    Ok(())
}
