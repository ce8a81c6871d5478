// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[idempotent(http, ..)]` for actix-web: the function becomes a tuple struct that holds the
//! filter and implements actix's `Handler`, so that every mounted call is guarded (ANN-3). A unit
//! struct would have to find its filter at run time, because actix's router has no typed state.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{ReturnType, Type};

use crate::expand::attrs::Attrs;
use crate::expand::http::{argument_type, guarded, names, policy};
use crate::expand::{local, private};
use crate::item::AnnotatedFunction;
use crate::validate::Common;

pub(super) fn expand(common: &Common, function: AnnotatedFunction) -> TokenStream {
    let AnnotatedFunction { attrs, vis, sig, body } = function;
    let name = &sig.ident;
    let attrs = Attrs::sort(attrs);
    let types: Vec<Type> = sig.inputs.iter().filter_map(argument_type).collect();
    let names = names(types.len());
    let guarded = guarded(&vis, &sig, &body, &types, &attrs);
    let Attrs { cfgs, structure, quiet, .. } = attrs;
    let request = local("request", Span::call_site());
    // The turbofish has the span of the return type. The compiler therefore points at the return
    // type if that type is not a responder.
    let responder = match &sig.output {
        ReturnType::Default => quote!(_),
        ReturnType::Type(_, ty) => quote_spanned!(ty.span()=> _),
    };
    // Emit the braces that rustfmt would add, because the snapshot tests compare the expansion with
    // formatted files.
    let run = match names.is_empty() {
        true => quote!(|()| Self::call()),
        false => quote!(|(#(#names,)*)| { Self::call(#(#names),*) }),
    };
    let policy = policy(common);
    let rp = private(common.root.as_ref());

    quote! {
        #(#cfgs)*
        #(#structure)*
        #[allow(non_camel_case_types, reason = "the struct has the annotated function's name")]
        #[derive(::core::clone::Clone, ::core::fmt::Debug)]
        #vis struct #name(#vis #rp::http::IdempotencyFilter);

        #guarded

        #(#cfgs)*
        #quiet
        impl #name {
            /// The attribute's settings. A duration that is `None` is the configured default.
            #vis const POLICY: #rp::http::Policy = #policy;
        }

        #(#cfgs)*
        #quiet
        impl #rp::actix::endpoint::Handler<#rp::actix::endpoint::EndpointRequest> for #name {
            type Output = #rp::actix::endpoint::HttpResponse;
            type Future = #rp::actix::endpoint::EndpointFuture;

            fn call(&self, #request: #rp::actix::endpoint::EndpointRequest) -> Self::Future {
                #rp::actix::endpoint::run_endpoint::<(#(#types,)*), _, _, #responder>(
                    &self.0, &Self::POLICY, #request, #run,
                )
            }
        }
    }
}
