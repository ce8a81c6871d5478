// SPDX-License-Identifier: MIT OR Apache-2.0
//! The script: a JSON object in the request header `x-lab`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The instructions for a handler. Every member is optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Script {
    /// Counts the run under this name.
    pub(crate) tag: Option<String>,
    /// How long the handler sleeps before it answers.
    pub(crate) delay_ms: u64,
    /// The status of the response; 200 by default.
    pub(crate) status: Option<u16>,
    /// Headers of the response, added in order. A name may occur several times, and a value
    /// `base64:…` stands for raw bytes.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Option<String>,
    pub body_base64: Option<String>,
    /// Answers with this many `x` bytes.
    pub(crate) pad: Option<usize>,
    /// Answers with the request's body.
    pub(crate) echo: bool,
    /// Sends the body in pieces, without declaring its length.
    pub(crate) chunked: bool,
    pub(crate) trailers: Vec<(String, String)>,
    /// Answers with a stream of three events.
    pub(crate) sse: bool,
    pub(crate) fail: Option<Fail>,
    /// The endpoint's first argument requires the header `x-user` (ANN-6).
    pub(crate) auth: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fail {
    Release,
    Hold,
    Panic,
    BodyError,
}

/// The largest body that a script may request. The limit prevents denial of service.
const MAX_PAD: usize = 64 << 20;

impl Script {
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, String> {
        let Some(script) = headers.get("x-lab") else { return Ok(Self::default()) };
        // Parse an object first, because serde would also accept an array as a `Script`.
        let script: Map<String, Value> =
            serde_json::from_slice(script.as_bytes()).map_err(|error| error.to_string())?;
        let script: Self =
            serde_json::from_value(script.into()).map_err(|error| error.to_string())?;
        if script.pad.is_some_and(|pad| pad > MAX_PAD) {
            return Err(format!("pad must be at most {MAX_PAD}"));
        }
        Ok(script)
    }

    /// Returns the scripted body, or `None` for the default body.
    pub(crate) fn own_body(&self) -> Result<Option<Vec<u8>>, String> {
        if let Some(text) = &self.body {
            return Ok(Some(text.clone().into_bytes()));
        }
        if let Some(text) = &self.body_base64 {
            return STANDARD
                .decode(text)
                .map(Some)
                .map_err(|error| format!("body_base64: {error}"));
        }
        Ok(self.pad.map(|pad| vec![b'x'; pad]))
    }
}

/// Returns the scripted header lines.
pub(crate) fn lines(lines: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName =
            name.parse().map_err(|_| format!("{name:?} is not a header name"))?;
        let bytes = match value.strip_prefix("base64:") {
            Some(raw) => STANDARD.decode(raw).map_err(|error| format!("header {name}: {error}"))?,
            None => value.clone().into_bytes(),
        };
        let value = HeaderValue::from_bytes(&bytes)
            .map_err(|_| format!("header {name}: a header cannot contain these bytes"))?;
        map.append(name, value);
    }
    Ok(map)
}
