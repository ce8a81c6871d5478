// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[idempotent(http, ..)]`: the function becomes a unit struct that is an axum `Handler`, guarded and not otherwise
//! (ANN-3). The function itself stays reachable as `call`, and keeps its name inside: other attributes see what was
//! written, so that a span of `tracing` is named after the endpoint.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Attribute, FnArg, ReturnType, Type};

use crate::expand::{duration, private};
use crate::item::Function;
use crate::validate::Common;

pub(super) fn expand(common: &Common, function: Function) -> TokenStream {
    let Function { attrs, vis, sig, body } = function;
    let name = &sig.ident;
    let (cfgs, attrs) = split(attrs, "cfg");
    let (docs, attrs) = split(attrs, "doc");
    let types: Vec<Type> = sig.inputs.iter().filter_map(argument_type).collect();
    let names = names(types.len());
    let answer = match &sig.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => quote!(#ty),
    };
    let policy = policy(common);
    let handler = handler(common, name, &types, &sig.output);
    let rp = private(common.root.as_ref());

    quote! {
        #(#cfgs)*
        #(#docs)*
        #[allow(non_camel_case_types, reason = "it is mounted under the name of the function that it was")]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        #vis struct #name;

        #(#cfgs)*
        impl #name {
            /// The function itself, without a guard: for unit tests, and for callers that are guarded already.
            #[allow(clippy::too_many_arguments, reason = "as many as the function has")]
            #vis fn call(#(#names: #types),*) -> impl ::core::future::Future<Output = #answer> {
                #(#attrs)*
                #sig #body

                #name(#(#names),*)
            }
        }

        #(#cfgs)*
        #rp::endpoint! {
            impl #name {
                /// What the attribute says. A duration that is `None` is the configured default.
                #vis const POLICY: #rp::http::Policy = #policy;
            }

            #handler
        }
    }
}

/// For arguments whose own names are patterns.
pub(super) fn names(count: usize) -> Vec<Ident> {
    (1..=count).map(|at| format_ident!("argument_{at}", span = Span::mixed_site())).collect()
}

/// Extraction, order and guard are `run_endpoint`'s; this tells it which argument is which (ANN-6).
fn handler(common: &Common, name: &Ident, types: &[Type], output: &ReturnType) -> TokenStream {
    let rp = private(common.root.as_ref());
    // The turbofish carries the places: a future that is not `Send` is the function's fault, an answer that is no
    // response the return type's.
    let future = quote_spanned!(name.span()=> _);
    let answer = match output {
        ReturnType::Default => quote!(_),
        ReturnType::Type(_, ty) => quote_spanned!(ty.span()=> _),
    };
    let head = quote! {
        type Future = #rp::http::axum::EndpointFuture;

        fn call(self, request: #rp::http::axum::Request, state: __State) -> Self::Future
    };
    let Some((last, early)) = types.split_last() else {
        return quote! {
            impl<__State> #rp::http::axum::Handler<((),), __State> for #name
            where
                __State: #rp::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
            {
                #head {
                    #rp::http::axum::run_endpoint::<__State, #rp::http::axum::ViaParts, (), (), _, #future, #answer>(
                        &Self::POLICY, request, state, |(), ()| Self::call(),
                    )
                }
            }
        };
    };
    let early_names = names(early.len());
    let bounds = early.iter().map(|ty| {
        quote_spanned!(ty.span()=> #ty: #rp::http::axum::FromRequestParts<__State> + ::core::marker::Send + 'static)
    });
    let last_bound = quote_spanned!(last.span()=> #last: #rp::http::axum::LastArgument<__State, __Via>);
    quote! {
        impl<__State, __Via> #rp::http::axum::Handler<(__Via, #(#early,)* #last), __State> for #name
        where
            __State: #rp::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
            #(#bounds,)*
            #last_bound,
        {
            #head {
                #rp::http::axum::run_endpoint::<__State, __Via, (#(#early,)*), #last, _, #future, #answer>(
                    &Self::POLICY, request, state,
                    |(#(#early_names,)*), last| Self::call(#(#early_names,)* last),
                )
            }
        }
    }
}

pub(super) fn policy(common: &Common) -> TokenStream {
    let rp = private(common.root.as_ref());
    let mut policy = match &common.scope {
        Some(scope) => quote!(#rp::http::Policy::new(#scope)),
        None => quote!(#rp::http::Policy::unnamed()),
    };
    for (method, value) in
        [("with_ttl", common.ttl), ("with_lease", common.lease), ("with_wait_timeout", common.wait_timeout)]
    {
        if let Some(value) = value {
            let (method, value) = (Ident::new(method, Span::call_site()), duration(value));
            policy = quote!(#policy.#method(#value));
        }
    }
    policy
}

pub(super) fn argument_type(input: &FnArg) -> Option<Type> {
    match input {
        FnArg::Typed(input) => Some((*input.ty).clone()),
        FnArg::Receiver(_) => None,
    }
}

/// Attributes of that name, and the others.
pub(super) fn split(attrs: Vec<Attribute>, name: &str) -> (Vec<Attribute>, Vec<Attribute>) {
    attrs.into_iter().partition(|attr| attr.path().is_ident(name))
}
