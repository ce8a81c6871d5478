// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which route a request is on: for the default scope (HTTP-16), the fingerprint's path (FP-3) and
//! "guarded already" (HTTP-15).

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Extensions, Method, Request, Uri};
use retryproof_core::{Error, ErrorKind, Scope};

/// Method, template and target of one request.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    method: Method,
    /// The router's template; only axum tells one.
    template: Option<Template>,
    target: Target,
}

/// Path and query as the client sent them, before a nested router stripped a prefix.
#[derive(Debug, Clone)]
enum Target {
    Uri(Option<PathAndQuery>),
    /// Of another framework.
    Told(Box<str>),
}

#[cfg(feature = "axum")]
type Template = axum::extract::MatchedPath;
#[cfg(not(feature = "axum"))]
type Template = std::convert::Infallible;

impl Route {
    pub(crate) fn of(head: &Head<'_>) -> Self {
        Self {
            method: head.method.clone(),
            template: template_of(head.extensions).cloned(),
            target: Target::Uri(head.target_uri().path_and_query().cloned()),
        }
    }

    /// Of a framework that has no request of this kind.
    pub(crate) fn told(method: &Method, target: &str) -> Self {
        Self { method: method.clone(), template: None, target: Target::Told(target.into()) }
    }

    /// Whether a request is still this very call, seen further inside. A request that a handler
    /// makes in process, even one with copied extensions, is on another route or has another path.
    pub(crate) fn is_that_of(&self, head: &Head<'_>) -> bool {
        // Both as the client sent them, whatever nested routers stripped in between.
        let path = match &self.target {
            Target::Uri(target) => target.as_ref().map_or("", PathAndQuery::path),
            Target::Told(target) => path_of(target),
        };
        if *head.method != self.method || path != head.target_uri().path() {
            return false;
        }
        match (&self.template, template_of(head.extensions)) {
            (Some(outer), Some(inner)) => same_template(outer, inner),
            // Outside of a nested service there is no template yet.
            (None, _) => true,
            (Some(_), None) => false,
        }
    }

    /// As [`is_that_of`](Self::is_that_of), of a framework whose request keeps its target to the
    /// end.
    pub(crate) fn is_told(&self, method: &Method, target: &str) -> bool {
        self.method == *method && path_of(self.target()) == path_of(target)
    }

    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// Path and query, as fingerprinted.
    pub(crate) fn target(&self) -> &str {
        match &self.target {
            Target::Uri(target) => target.as_ref().map_or("", PathAndQuery::as_str),
            Target::Told(target) => target,
        }
    }
}

/// A target without its query.
fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// A request extension of the gRPC form: the path is a method's, and no template.
#[cfg(feature = "grpc")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrpcMethod;

/// What of a request's head tells its route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) method: &'a Method,
    uri: &'a Uri,
    extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    pub(crate) fn of<B>(request: &'a Request<B>) -> Self {
        Self { method: request.method(), uri: request.uri(), extensions: request.extensions() }
    }

    pub(crate) fn of_parts(parts: &'a Parts) -> Self {
        Self { method: &parts.method, uri: &parts.uri, extensions: &parts.extensions }
    }

    /// Path and query, as fingerprinted.
    pub(crate) fn target(&self) -> &'a str {
        self.target_uri().path_and_query().map_or("", PathAndQuery::as_str)
    }

    /// The target as the client sent it. axum keeps it where nested routers strip a prefix; one
    /// that is no longer than the request's own is a leftover of another request, whose extensions
    /// were copied.
    fn target_uri(&self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(original)) = self.extensions.get()
            && (self.uri.path() == "/" || original.path().ends_with(self.uri.path()))
        {
            return original;
        }
        self.uri
    }

    /// Whether a router of axum looked for a route and found none (HTTP-1). Unknown outside of one:
    /// no.
    pub(crate) fn is_unmatched(&self) -> bool {
        #[cfg(feature = "axum")]
        return self.extensions.get::<Template>().is_none()
            && self.extensions.get::<axum::extract::OriginalUri>().is_some()
            && !nested::is_at_service(self.extensions);
        #[cfg(not(feature = "axum"))]
        false
    }

    /// `POST /orders/{}`; of a gRPC method `pay.v1.Payments/Charge`.
    pub(crate) fn default_scope(&self) -> Result<Scope, Error> {
        let template = template_of(self.extensions);
        #[cfg(feature = "grpc")]
        if is_open(template) && self.extensions.get::<GrpcMethod>().is_some() {
            return Scope::new(self.uri.path().trim_start_matches('/').to_owned());
        }
        match template {
            #[cfg(feature = "axum")]
            Some(template) => {
                Scope::new(crate::scope::default_scope(self.method.as_str(), template.as_str()))
            }
            #[cfg(not(feature = "axum"))]
            Some(never) => match *never {},
            None => Err(no_route()),
        }
    }
}

/// Why there is no scope.
pub(crate) fn no_route() -> Error {
    Error::new(
        ErrorKind::Invalid,
        "no router told the matched route, so the endpoint needs a policy with a scope of its own",
    )
}

#[cfg(feature = "axum")]
mod nested {
    use std::future::Future as _;
    use std::pin::pin;
    use std::sync::LazyLock;
    use std::task::{Context, Poll, Waker};

    use axum::Router;
    use axum::body::Body;
    use axum::extract::MatchedPath;
    use axum::routing::any;
    use http::{Extensions, Request, StatusCode};
    use tower_service::Service as _;

    /// Whether a request is at a service that is nested at a path. Its router has matched that
    /// path, and says so to none but a router inside: one such is asked.
    pub(super) fn is_at_service(extensions: &Extensions) -> bool {
        static INSIDE: LazyLock<Router> = LazyLock::new(|| {
            let is_whole = |path: MatchedPath| path.as_str() == "/";
            Router::new().route("/", any(async move |path| status(is_whole(path))))
        });
        let mut request = Request::new(Body::empty());
        *request.extensions_mut() = extensions.clone();
        let asked = pin!(INSIDE.clone().call(request));
        // Whatever axum does to it in a later version: a request that may be matched is not let
        // through.
        match asked.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(answer)) => answer.status() != status(true),
            Poll::Pending => true,
        }
    }

    const fn status(is_whole: bool) -> StatusCode {
        if is_whole { StatusCode::NO_CONTENT } else { StatusCode::OK }
    }
}

#[cfg(feature = "axum")]
fn template_of(extensions: &Extensions) -> Option<&Template> {
    extensions.get()
}

#[cfg(not(feature = "axum"))]
fn template_of(_: &Extensions) -> Option<&Template> {
    None
}

/// Whether more than one method may be behind a route: tonic mounts a service by
/// `/pay.v1.Payments/{*rest}`.
#[cfg(all(feature = "grpc", feature = "axum"))]
fn is_open(template: Option<&Template>) -> bool {
    template.is_none_or(|template| template.as_str().ends_with('}'))
}

#[cfg(all(feature = "grpc", not(feature = "axum")))]
fn is_open(_: Option<&Template>) -> bool {
    true
}

#[cfg(feature = "axum")]
fn same_template(outer: &Template, inner: &Template) -> bool {
    outer.as_str() == inner.as_str()
}

#[cfg(not(feature = "axum"))]
fn same_template(outer: &Template, _: &Template) -> bool {
    match *outer {}
}

#[cfg(all(test, feature = "axum"))]
mod tests {
    use super::*;
    use axum::extract::OriginalUri;

    fn request(method: &str, path: &str, original: Option<&str>) -> Request<()> {
        let mut request = Request::builder().method(method).uri(path).body(()).unwrap();
        if let Some(original) = original {
            request.extensions_mut().insert(OriginalUri(original.parse().unwrap()));
        }
        request
    }

    #[test]
    fn fp_3_the_target_is_the_clients_unless_it_is_another_requests() {
        for (path, original, target) in [
            ("/orders/1?a=b", None, "/orders/1?a=b"),
            ("/orders/1?a=b", Some("/api/orders/1?a=b"), "/api/orders/1?a=b"),
            ("/", Some("/api"), "/api"),
            ("/charge", Some("/pay"), "/charge"),
        ] {
            assert_eq!(
                Route::of(&Head::of(&request("POST", path, original))).target(),
                target,
                "{path}"
            );
        }
    }

    #[test]
    fn http_15_the_same_call_further_inside_is_known_by_method_and_path() {
        let outer = Route::of(&Head::of(&request("POST", "/api/pay", None)));
        assert!(outer.is_that_of(&Head::of(&request("POST", "/api/pay", None))));
        assert!(outer.is_that_of(&Head::of(&request("POST", "/pay", Some("/api/pay")))));
        assert!(!outer.is_that_of(&Head::of(&request("PUT", "/api/pay", None))));
        assert!(!outer.is_that_of(&Head::of(&request("POST", "/api/other", None))));
        assert!(!outer.is_that_of(&Head::of(&request("POST", "/charge", Some("/api/pay")))));
    }
}
