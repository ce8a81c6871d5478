// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`RequestHead`] is what the guard reads from a request before its body. An inner guard compares
//! [`Route`]s to find out whether its request is already guarded (HTTP-15).

use std::borrow::Cow;

use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Extensions, Method, Request, Uri, Version};

use crate::filter::{CallerFuture, CallerHook};

/// The head of a request, whatever type the framework uses for it.
pub trait RequestHead {
    /// The method.
    fn method(&self) -> &Method;

    /// The HTTP version.
    fn version(&self) -> Version;

    /// Returns path and query, as the client sent them (FP-3).
    fn target(&self) -> &str;

    /// Returns the matched route, for the default scope; `None` if no router matched a route
    /// (HTTP-16).
    fn template(&self) -> Option<RouteTemplate<'_>>;

    /// Whether the router found no route (HTTP-1).
    fn is_unmatched(&self) -> bool;

    /// Returns a copy of the request's extension of the type `T`, if there is one.
    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T>;

    /// Returns the route by which an inner guard recognises the request (HTTP-15).
    fn route(&self) -> Route {
        Route::new(self.method().clone(), self.target())
    }
}

/// The head of an admitted request, with the methods that prepare the request.
pub trait AdmittedHead: RequestHead {
    /// Calls a [caller hook](crate::FilterBuilder::caller) with the request's head, in the types of
    /// the `http` crate, and returns the hook's result.
    fn caller(&self, hook: &CallerHook) -> CallerFuture;

    /// Returns the limit on the request's body: `max`, or the application's limit if it is smaller
    /// (HTTP-4).
    fn body_limit(&mut self, max: usize) -> usize {
        max
    }
}

/// The route that a router matched.
#[derive(Debug)]
pub enum RouteTemplate<'a> {
    /// A path in axum's syntax: `{name}`, `{*rest}`.
    Path(Cow<'a, str>),
    /// A gRPC method: `pay.v1.Payments/Charge`.
    GrpcMethod(&'a str),
}

/// Method, template and target of one request.
#[derive(Debug, Clone)]
pub struct Route {
    method: Method,
    /// The router's template; `None` outside of axum.
    template: Option<Template>,
    target: RouteTarget,
}

/// Path and query as the client sent them, including any prefix that a nested router stripped.
#[derive(Debug, Clone)]
enum RouteTarget {
    Uri(Option<PathAndQuery>),
    /// The target as text, from a framework with its own request type.
    Text(Box<str>),
}

#[cfg(feature = "axum")]
type Template = axum::extract::MatchedPath;
#[cfg(not(feature = "axum"))]
type Template = std::convert::Infallible;

impl Route {
    /// Creates the route of a request in a framework with its own request type.
    pub(crate) fn new(method: Method, target: &str) -> Self {
        Self { method, template: None, target: RouteTarget::Text(target.into()) }
    }

    /// Whether a request that an inner guard sees on the route `inner` belongs to this route's
    /// call. A request that a handler makes in process to another route or path does not belong to
    /// it, even with copied extensions.
    pub(crate) fn covers(&self, inner: &Self) -> bool {
        // Compare the paths that the client sent, which include any prefix that nested routers have
        // stripped.
        if self.method != inner.method || self.path() != inner.path() {
            return false;
        }
        match (&self.template, &inner.template) {
            (Some(outer), Some(inner)) => same_template(outer, inner),
            // The outer guard saw no template, because no router had matched the request yet or
            // because the framework has no templates.
            (None, _) => true,
            (Some(_), None) => false,
        }
    }

    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    /// Returns the path and query that are fingerprinted.
    pub(crate) fn target(&self) -> &str {
        match &self.target {
            RouteTarget::Uri(target) => target.as_ref().map_or("", PathAndQuery::as_str),
            RouteTarget::Text(target) => target,
        }
    }

    fn path(&self) -> &str {
        match &self.target {
            RouteTarget::Uri(target) => target.as_ref().map_or("", PathAndQuery::path),
            RouteTarget::Text(target) => target.split_once('?').map_or(target, |(path, _)| path),
        }
    }
}

/// A request extension of the gRPC layer. It marks a request whose path names a gRPC method.
#[cfg(feature = "grpc")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrpcMethod;

/// A request's head in the types of the `http` crate.
#[derive(Clone, Copy)]
struct HttpHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    extensions: &'a Extensions,
}

impl<'a> HttpHead<'a> {
    fn target(self) -> &'a str {
        self.target_uri().path_and_query().map_or("", PathAndQuery::as_str)
    }

    /// Returns the target as the client sent it. axum keeps this target when nested routers strip a
    /// prefix. If the kept target does not end with the request's own path, the extensions were
    /// copied from another request. In that case, returns the request's own target.
    fn target_uri(self) -> &'a Uri {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(original)) = self.extensions.get()
            && (self.uri.path() == "/" || original.path().ends_with(self.uri.path()))
        {
            return original;
        }
        self.uri
    }

    fn template(self) -> Option<RouteTemplate<'a>> {
        let template = template_of(self.extensions);
        #[cfg(feature = "grpc")]
        if has_open_end(template) && self.extensions.get::<GrpcMethod>().is_some() {
            return Some(RouteTemplate::GrpcMethod(self.uri.path().trim_start_matches('/')));
        }
        match template {
            #[cfg(feature = "axum")]
            Some(template) => Some(RouteTemplate::Path(template.as_str().into())),
            #[cfg(not(feature = "axum"))]
            Some(never) => match *never {},
            None => None,
        }
    }

    /// Whether an axum router looked for a route and found none. Outside a router, the result is
    /// `false`, because nothing is known about the routes.
    fn is_unmatched(self) -> bool {
        #[cfg(feature = "axum")]
        return self.extensions.get::<Template>().is_none()
            && self.extensions.get::<axum::extract::OriginalUri>().is_some()
            && !nested::is_at_service(self.extensions);
        #[cfg(not(feature = "axum"))]
        false
    }

    fn route(self) -> Route {
        Route {
            method: self.method.clone(),
            template: template_of(self.extensions).cloned(),
            target: RouteTarget::Uri(self.target_uri().path_and_query().cloned()),
        }
    }
}

impl<'a, B> From<&'a Request<B>> for HttpHead<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self { method: request.method(), uri: request.uri(), extensions: request.extensions() }
    }
}

impl<'a> From<&'a Box<Parts>> for HttpHead<'a> {
    fn from(parts: &'a Box<Parts>) -> Self {
        Self { method: &parts.method, uri: &parts.uri, extensions: &parts.extensions }
    }
}

impl<B> RequestHead for Request<B> {
    fn method(&self) -> &Method {
        self.method()
    }

    fn version(&self) -> Version {
        self.version()
    }

    fn target(&self) -> &str {
        HttpHead::from(self).target()
    }

    fn template(&self) -> Option<RouteTemplate<'_>> {
        HttpHead::from(self).template()
    }

    fn is_unmatched(&self) -> bool {
        HttpHead::from(self).is_unmatched()
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.extensions().get().cloned()
    }

    fn route(&self) -> Route {
        HttpHead::from(self).route()
    }
}

/// `Parts` is boxed, because it is 240 bytes long and several stages pass it on.
impl RequestHead for Box<Parts> {
    fn method(&self) -> &Method {
        &self.method
    }

    fn version(&self) -> Version {
        self.version
    }

    fn target(&self) -> &str {
        HttpHead::from(self).target()
    }

    fn template(&self) -> Option<RouteTemplate<'_>> {
        HttpHead::from(self).template()
    }

    fn is_unmatched(&self) -> bool {
        HttpHead::from(self).is_unmatched()
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        self.extensions.get().cloned()
    }

    fn route(&self) -> Route {
        HttpHead::from(self).route()
    }
}

impl AdmittedHead for Box<Parts> {
    fn caller(&self, hook: &CallerHook) -> CallerFuture {
        hook(self)
    }

    #[cfg(feature = "axum")]
    fn body_limit(&mut self, max: usize) -> usize {
        crate::axum::limit::body_limit(&mut self.extensions, max)
    }
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

    /// Whether a request has reached a service that is nested at a path. The outer router has
    /// matched that path, but only an inner router can see the match. This function therefore sends
    /// the request's extensions through an inner router.
    pub(super) fn is_at_service(extensions: &Extensions) -> bool {
        static INSIDE: LazyLock<Router> = LazyLock::new(|| {
            let is_whole = |path: MatchedPath| path.as_str() == "/";
            Router::new().route("/", any(async move |path| status(is_whole(path))))
        });
        let mut request = Request::new(Body::empty());
        *request.extensions_mut() = extensions.clone();
        let response = pin!(INSIDE.clone().call(request));
        // If a later version of axum answers differently, return `true`, so that the request counts
        // as matched and stays guarded.
        match response.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(response)) => response.status() != status(true),
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

/// Whether a route can cover more than one gRPC method, as in `/pay.v1.Payments/{*rest}`, where
/// tonic mounts a service.
#[cfg(all(feature = "grpc", feature = "axum"))]
fn has_open_end(template: Option<&Template>) -> bool {
    template.is_none_or(|template| template.as_str().ends_with('}'))
}

#[cfg(all(feature = "grpc", not(feature = "axum")))]
fn has_open_end(_: Option<&Template>) -> bool {
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
mod tests;
