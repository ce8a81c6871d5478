// SPDX-License-Identifier: MIT OR Apache-2.0
#[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
#[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
pub(crate) struct tick;
const _: () = {
    async fn tick() -> &'static str {
        "tock"
    }
    impl tick {
        #[doc = r" The function itself, unguarded, for unit tests and for guarded callers."]
        #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
        pub(crate) fn call() -> impl ::core::future::Future<Output = &'static str> {
            tick()
        }
    }
};
::retryproof::__private::endpoint! {
    impl tick {
        #[doc = r" The attribute's settings. A duration that is `None` is the configured default."]
        pub(crate) const POLICY: ::retryproof::__private::http::Policy = ::retryproof::__private::http::Policy::unnamed();
    }
    impl<__State> ::retryproof::__private::http::axum::Handler<((),), __State> for tick
    where
        __State: ::retryproof::__private::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
    {
        type Future = ::retryproof::__private::http::axum::EndpointFuture;
        fn call(self, retryproof_request: ::retryproof::__private::http::axum::Request, retryproof_state: __State) -> Self::Future {
            ::retryproof::__private::http::axum::run_endpoint::<__State, ::retryproof::__private::http::axum::ViaParts, (), (), _, _, _>(&Self::POLICY, retryproof_request, retryproof_state, |(), ()| Self::call(),)
        }
    }
}
