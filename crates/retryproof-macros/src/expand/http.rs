// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[idempotent(http, ..)]`: the function becomes a unit struct that implements axum's `Handler`,
//! so that every mounted call is guarded (ANN-3). `call` still calls the function itself. Other
//! attributes see the function under its own name, so a `tracing` span, for example, has the
//! endpoint's name.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{FnArg, ReturnType, Signature, Type, Visibility};

use crate::expand::attrs::Attrs;
use crate::expand::{duration, local, private};
use crate::item::AnnotatedFunction;
use crate::validate::Common;

pub(super) fn expand(common: &Common, function: AnnotatedFunction) -> TokenStream {
    let AnnotatedFunction { attrs, vis, sig, body } = function;
    let name = &sig.ident;
    let attrs = Attrs::sort(attrs);
    let types: Vec<Type> = sig.inputs.iter().filter_map(argument_type).collect();
    let policy = policy(common);
    let guarded = guarded(&vis, &sig, &body, &types, &attrs);
    let Attrs { cfgs, structure, quiet, .. } = attrs;
    let handler = handler(common, name, &types, &sig.output, quiet.as_ref());
    let rp = private(common.root.as_ref());

    quote! {
        #(#cfgs)*
        #(#structure)*
        #[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        #vis struct #name;

        #guarded

        #(#cfgs)*
        #rp::endpoint! {
            #quiet
            impl #name {
                /// The attribute's settings. A duration that is `None` is the configured default.
                #vis const POLICY: #rp::http::Policy = #policy;
            }

            #handler
        }
    }
}

/// Emits the function, and a `call` that calls it. The function is outside the `impl`, because the
/// `impl` may allow the lint `deprecated`, and the function must not inherit this.
pub(super) fn guarded(
    vis: &Visibility,
    sig: &Signature,
    body: &Option<Group>,
    types: &[Type],
    attrs: &Attrs,
) -> TokenStream {
    let Attrs { cfgs, function, quiet, .. } = attrs;
    let name = &sig.ident;
    let names = names(types.len());
    let answer = match &sig.output {
        ReturnType::Default => quote!(()),
        ReturnType::Type(_, ty) => quote!(#ty),
    };
    quote! {
        #(#cfgs)*
        const _: () = {
            #(#function)*
            #sig #body

            #quiet
            impl #name {
                /// The function itself, unguarded, for unit tests and for guarded callers.
                #[allow(clippy::too_many_arguments, reason = "the function's own arguments")]
                #vis fn call(#(#names: #types),*) -> impl ::core::future::Future<Output = #answer> {
                    #name(#(#names),*)
                }
            }
        };
    }
}

/// Generates a name for each argument, because an argument may be a pattern without a name.
pub(super) fn names(count: usize) -> Vec<Ident> {
    (1..=count).map(|at| local(&format!("argument_{at}"), Span::call_site())).collect()
}

/// Emits the `Handler` implementation. `run_endpoint` extracts the arguments and guards the call;
/// the emitted code only states the role of each argument (ANN-6).
fn handler(
    common: &Common,
    name: &Ident,
    types: &[Type],
    output: &ReturnType,
    quiet: Option<&TokenStream>,
) -> TokenStream {
    let rp = private(common.root.as_ref());
    let [request, state, last_argument] =
        ["request", "state", "last"].map(|name| local(name, Span::call_site()));
    // The spans in the turbofish determine where the compiler reports errors. If the future is not
    // `Send`, the compiler points at the function's name. If the return type is not a response, the
    // compiler points at that type.
    let future = quote_spanned!(name.span()=> _);
    let answer = match output {
        ReturnType::Default => quote!(_),
        ReturnType::Type(_, ty) => quote_spanned!(ty.span()=> _),
    };
    let head = quote! {
        type Future = #rp::http::axum::EndpointFuture;

        fn call(self, #request: #rp::http::axum::Request, #state: __State) -> Self::Future
    };
    let Some((last, early)) = types.split_last() else {
        return quote! {
            #quiet
            impl<__State> #rp::http::axum::Handler<((),), __State> for #name
            where
                __State: #rp::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
            {
                #head {
                    #rp::http::axum::run_endpoint::<
                        __State, #rp::http::axum::ViaParts, (), (), _, #future, #answer
                    >(
                        &Self::POLICY, #request, #state, |(), ()| Self::call(),
                    )
                }
            }
        };
    };
    let early_names = names(early.len());
    let bounds = early.iter().map(|ty| {
        quote_spanned! {ty.span()=>
            #ty: #rp::http::axum::FromRequestParts<__State> + ::core::marker::Send + 'static
        }
    });
    let last_bound =
        quote_spanned!(last.span()=> #last: #rp::http::axum::LastArgument<__State, __Via>);
    quote! {
        #quiet
        impl<__State, __Via> #rp::http::axum::Handler<(__Via, #(#early,)* #last), __State> for #name
        where
            __State: #rp::http::axum::HasFilter + ::core::marker::Send + ::core::marker::Sync + 'static,
            #(#bounds,)*
            #last_bound,
        {
            #head {
                #rp::http::axum::run_endpoint::<__State, __Via, (#(#early,)*), #last, _, #future, #answer>(
                    &Self::POLICY, #request, #state,
                    |(#(#early_names,)*), #last_argument| Self::call(#(#early_names,)* #last_argument),
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
    for (method, value) in [
        ("with_ttl", common.ttl),
        ("with_lease", common.lease),
        ("with_wait_timeout", common.wait_timeout),
    ] {
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
