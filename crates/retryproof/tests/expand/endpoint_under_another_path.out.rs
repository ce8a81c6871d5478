// SPDX-License-Identifier: MIT OR Apache-2.0
#[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
#[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
pub(crate) struct echo;
const _: () = {
    async fn echo(body: String) -> String {
        body
    }
    impl echo {
        #[doc = r" The function itself, unguarded, for unit tests and for guarded callers."]
        #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
        pub(crate) fn call(
            retryproof_argument_1: String,
        ) -> impl ::core::future::Future<Output = String> {
            echo(retryproof_argument_1)
        }
    }
};
super::prelude::framework::retryproof::__private::endpoint! {
    impl echo {
        #[doc = r" The attribute's settings. A duration that is `None` is the configured default."]
        pub(crate) const POLICY: super::prelude::framework::retryproof::__private::http::Policy = super::prelude::framework::retryproof::__private::http::Policy::unnamed();
    }
    impl<__State, __Via> super::prelude::framework::retryproof::__private::http::axum::Handler<(__Via, String), __State> for echo
    where
        __State: super::prelude::framework::retryproof::__private::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
        String: super::prelude::framework::retryproof::__private::http::axum::LastArgument<__State, __Via>,
    {
        type Future = super::prelude::framework::retryproof::__private::http::axum::EndpointFuture;
        fn call(self, retryproof_request: super::prelude::framework::retryproof::__private::http::axum::Request, retryproof_state: __State) -> Self::Future {
            super::prelude::framework::retryproof::__private::http::axum::run_endpoint::<__State, __Via, (), String, _, _, _>(&Self::POLICY, retryproof_request, retryproof_state, |(), retryproof_last| Self::call(retryproof_last),)
        }
    }
}
