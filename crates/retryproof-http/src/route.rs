// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which route a request is on: for the default scope (HTTP-16), the fingerprint's path (FP-3) and "guarded already"
//! (HTTP-15).

use http::{Method, Request, Uri};
use retryproof_core::{Error, ErrorKind, Scope};

/// Method, template and target of one request.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    method: Method,
    /// The router's template; only axum tells one.
    template: Option<Template>,
    /// As the client sent it, before a nested router stripped a prefix.
    target: Uri,
}

#[cfg(feature = "axum")]
type Template = axum::extract::MatchedPath;
#[cfg(not(feature = "axum"))]
type Template = std::convert::Infallible;

impl Route {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        Self {
            method: request.method().clone(),
            template: template_of(request).cloned(),
            target: target_of(request).clone(),
        }
    }

    /// Whether a request is still this very call, seen further inside. A request that a handler makes in process,
    /// even one with copied extensions, is on another route or has another path.
    pub(crate) fn is_that_of<B>(&self, request: &Request<B>) -> bool {
        if *request.method() != self.method {
            return false;
        }
        match (&self.template, template_of(request)) {
            (Some(outer), Some(inner)) => same_template(outer, inner),
            // Outside of a nested service there is no template yet: compare paths. The inner path may lack a prefix.
            (None, _) => {
                self.target.path() == target_of(request).path()
                    && self.target.path().ends_with(request.uri().path())
            }
            (Some(_), None) => false,
        }
    }

    /// Method and path with query, as fingerprinted.
    pub(crate) fn target(&self) -> &Uri {
        &self.target
    }

    /// `POST /orders/{}`.
    pub(crate) fn default_scope(&self) -> Result<Scope, Error> {
        match &self.template {
            #[cfg(feature = "axum")]
            Some(template) => {
                Scope::new(crate::scope::default_scope(self.method.as_str(), template.as_str()))
            }
            #[cfg(not(feature = "axum"))]
            Some(never) => match *never {},
            None => Err(Error::new(
                ErrorKind::Invalid,
                "no router told the matched route, so the endpoint needs a policy with a scope of its own",
            )),
        }
    }
}

#[cfg(feature = "axum")]
fn template_of<B>(request: &Request<B>) -> Option<&Template> {
    request.extensions().get()
}

#[cfg(not(feature = "axum"))]
fn template_of<B>(_: &Request<B>) -> Option<&Template> {
    None
}

#[cfg(feature = "axum")]
fn same_template(outer: &Template, inner: &Template) -> bool {
    outer.as_str() == inner.as_str()
}

#[cfg(not(feature = "axum"))]
fn same_template(outer: &Template, _: &Template) -> bool {
    match *outer {}
}

fn target_of<B>(request: &Request<B>) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(original)) = request.extensions().get() {
        return original;
    }
    request.uri()
}
