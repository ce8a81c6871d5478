// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests routes and targets (FP-3, HTTP-15), and the head of another framework (HTTP-4).

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
        let request = request("POST", path, original);
        assert_eq!(request.route().target(), target, "{path}");
        assert_eq!(RequestHead::target(&request), target, "{path}");
    }
}

#[test]
fn http_15_the_same_call_further_inside_is_known_by_method_and_path() {
    let outer = request("POST", "/api/pay", None).route();
    assert!(outer.covers(&request("POST", "/api/pay", None).route()));
    assert!(outer.covers(&request("POST", "/pay", Some("/api/pay")).route()));
    assert!(!outer.covers(&request("PUT", "/api/pay", None).route()));
    assert!(!outer.covers(&request("POST", "/api/other", None).route()));
    assert!(!outer.covers(&request("POST", "/charge", Some("/api/pay")).route()));
}

/// The head of a framework with its own request type.
struct OtherHead(Method);

impl RequestHead for OtherHead {
    fn method(&self) -> &Method {
        &self.0
    }

    fn version(&self) -> Version {
        Version::HTTP_11
    }

    fn target(&self) -> &str {
        "/pay?a=b"
    }

    fn template(&self) -> Option<RouteTemplate<'_>> {
        None
    }

    fn is_unmatched(&self) -> bool {
        false
    }

    fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<T> {
        None
    }
}

impl AdmittedHead for OtherHead {
    fn caller(&self, _: &CallerHook) -> CallerFuture {
        unreachable!("no hook is set")
    }
}

#[test]
fn http_4_http_15_a_head_of_another_framework_has_a_route_and_the_filters_limit() {
    let mut head = OtherHead(Method::POST);
    assert!(head.route().covers(&request("POST", "/pay?a=b", None).route()));
    assert_eq!(head.body_limit(1_000), 1_000);
}
