// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts heads between actix (`http` 0.2) and the guard (`http` 1).

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::LazyLock;

use actix_web::http::Version as ActixVersion;
use actix_web::http::header::{
    self, HeaderMap as ActixHeaders, HeaderName as ActixName, HeaderValue as ActixValue,
};
use actix_web::{HttpMessage as _, HttpRequest};
use bytes::Bytes;
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, Version};
use retryproof_http::IdempotencyFilter;
use retryproof_http::adapter::{
    AdmittedHead, COMMON_NAMES, CallerFuture, RequestHead, RouteTemplate, key_header,
};

use crate::caller;

static KEY: ActixName = ActixName::from_static("idempotency-key");
pub(crate) static REPLAYED: ActixName = ActixName::from_static("idempotent-replayed");

/// The common header names, indexed by their code in a record. A replay clones these names instead
/// of parsing them again.
pub(crate) static COMMON: LazyLock<Vec<ActixName>> =
    LazyLock::new(|| COMMON_NAMES.iter().copied().map(ActixName::from_static).collect());

/// Returns the name of the key header as actix's type. The default name needs no allocation.
pub(crate) fn key_name(filter: &IdempotencyFilter) -> Cow<'static, ActixName> {
    let name = key_header(filter).as_str();
    if name == KEY.as_str() {
        return Cow::Borrowed(&KEY);
    }
    // The conversion does not fail, because actix's version of the `http` crate accepts the same
    // names as the version used here.
    ActixName::from_bytes(name.as_bytes()).map_or(Cow::Borrowed(&KEY), Cow::Owned)
}

/// The head of an actix request. Each part is converted only when the guard reads it.
pub(crate) struct ActixHead {
    pub(crate) request: HttpRequest,
    method: OnceCell<Method>,
    length: OnceCell<Option<usize>>,
}

impl ActixHead {
    pub(crate) fn new(request: HttpRequest) -> Self {
        Self { request, method: OnceCell::new(), length: OnceCell::new() }
    }

    pub(crate) fn lines(&self, name: &ActixName) -> impl Iterator<Item = &[u8]> {
        self.request.headers().get_all(name).map(ActixValue::as_bytes)
    }

    /// Returns the length of the body, if the head declares it.
    pub(crate) fn length(&self) -> Option<usize> {
        *self.length.get_or_init(|| {
            let declared = self.request.headers().get(header::CONTENT_LENGTH);
            declared.and_then(|length| length.to_str().ok()?.trim().parse().ok())
        })
    }

    /// Like [`length`](Self::length), but 0 if the head declares no length.
    pub(crate) fn declared_length(&self) -> u64 {
        self.length().unwrap_or(0) as u64
    }

    /// Returns the head, converted to the types of the `http` crate for a caller hook.
    fn parts(&self) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method().clone();
        parts.version = self.version();
        // The conversion does not fail, because actix's version of the `http` crate accepts the
        // same targets as the version used here.
        parts.uri =
            PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(self.target().as_bytes()))
                .map_or_else(|_| Uri::default(), Uri::from);
        parts.headers = headers(self.request.headers());
        parts
    }
}

impl RequestHead for ActixHead {
    fn method(&self) -> &Method {
        self.method.get_or_init(|| {
            Method::from_bytes(self.request.method().as_str().as_bytes()).unwrap_or_default()
        })
    }

    fn version(&self) -> Version {
        version(self.request.version())
    }

    fn target(&self) -> &str {
        self.request.uri().path_and_query().map_or("/", |target| target.as_str())
    }

    fn template(&self) -> Option<RouteTemplate<'_>> {
        let pattern = self.request.match_pattern()?;
        Some(RouteTemplate::Path(template(&pattern).into()))
    }

    fn is_unmatched(&self) -> bool {
        // If the guard wraps a resource, the router has matched the whole path, so no part is
        // unprocessed. If the guard wraps a scope or an app, part of the path is unprocessed. In
        // that case, search the resource map for the whole path.
        !self.request.match_info().unprocessed().is_empty()
            && !self.request.resource_map().has_resource(self.request.path())
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.request.extensions().get::<T>().cloned()
    }
}

impl AdmittedHead for ActixHead {
    fn caller(&self, hook: &(dyn Fn(&Parts) -> CallerFuture + Send + Sync)) -> CallerFuture {
        caller::with_request(&self.request, || hook(&self.parts()))
    }
}

fn version(version: ActixVersion) -> Version {
    match version {
        ActixVersion::HTTP_09 => Version::HTTP_09,
        ActixVersion::HTTP_10 => Version::HTTP_10,
        ActixVersion::HTTP_2 => Version::HTTP_2,
        ActixVersion::HTTP_3 => Version::HTTP_3,
        _ => Version::HTTP_11,
    }
}

/// Converts actix's header map. actix keeps the order of the lines of one field, but not the order
/// of fields with different names.
pub(crate) fn headers(from: &ActixHeaders) -> HeaderMap {
    let mut to = HeaderMap::with_capacity(from.len());
    for (name, value) in from {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(name.as_str().as_bytes()),
            HeaderValue::from_bytes(value.as_bytes()),
        ) {
            to.append(name, value);
        }
    }
    to
}

/// Whether both maps have the same lines in the same order. [`headers`] keeps actix's order, so the
/// comparison needs no look-ups.
pub(crate) fn have_same_lines(ours: &ActixHeaders, theirs: &HeaderMap) -> bool {
    let ours = ours.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    ours.eq(theirs.iter().map(|(name, value)| (name.as_str(), value.as_bytes())))
}

/// Adds fields to actix's header map. The fields that every replay gets (`Idempotent-Replayed` and
/// `Cache-Control`) need no allocation.
pub(crate) fn actix_headers(from: &HeaderMap, to: &mut ActixHeaders) {
    to.reserve(from.keys_len());
    for (name, value) in from {
        let name = match name.as_str() {
            "idempotent-replayed" => Ok(REPLAYED.clone()),
            name => ActixName::from_bytes(name.as_bytes()),
        };
        let value = match value.as_bytes() {
            b"true" => Ok(ActixValue::from_static("true")),
            b"no-store" => Ok(ActixValue::from_static("no-store")),
            value => ActixValue::from_bytes(value),
        };
        if let (Ok(name), Ok(value)) = (name, value) {
            to.append(name, value);
        }
    }
}

/// Converts an actix route pattern to the syntax of default scopes (HTTP-16): `{id:\d+}` becomes
/// `{id}`, and `{tail:.*}` and `{tail}*`, which match the rest of a path, become `{*tail}`.
fn template(pattern: &str) -> String {
    let mut template = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(start) = rest.find('{') {
        let Some(end) = closing(&rest[start..]).map(|end| start + end) else { break };
        template.push_str(&rest[..start]);
        let (name, regex) =
            rest[start + 1..end].split_once(':').unwrap_or((&rest[start + 1..end], ""));
        rest = &rest[end + 1..];
        let tail = rest.strip_prefix('*').filter(|after| after.is_empty());
        template.push_str(if tail.is_some() || regex == ".*" { "{*" } else { "{" });
        template.push_str(name.trim());
        template.push('}');
        rest = tail.unwrap_or(rest);
    }
    template.push_str(rest);
    template
}

/// Returns the position of the brace that closes the first brace of `text`. A regular expression
/// between these two braces can contain further braces.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_16_a_pattern_of_actix_makes_the_scope_that_axum_makes() {
        for (pattern, expected) in [
            ("/orders", "/orders"),
            ("/orders/{id}", "/orders/{id}"),
            (r"/orders/{id:\d{4,}}/items/{item}", "/orders/{id}/items/{item}"),
            ("/files/{path:.*}", "/files/{*path}"),
            ("/files/{path}*", "/files/{*path}"),
            ("/v{major}.{minor}", "/v{major}.{minor}"),
            ("/odd{", "/odd{"),
            ("", ""),
        ] {
            assert_eq!(template(pattern), expected, "{pattern}");
        }
    }
}
