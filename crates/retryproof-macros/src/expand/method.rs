// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[idempotent(key = .., ..)]`: the function keeps its signature; its body becomes the action of one engine call.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{PatType, Signature, Type};

use crate::expand::{duration, local, private};
use crate::item::{Function, mentions};
use crate::validate::{Common, Completion, Keyed};

pub(super) fn expand(common: &Common, keyed: Keyed, mut function: Function) -> TokenStream {
    let rp = private(common.root.as_ref());
    let tx = function.take_marked();
    let Function { attrs, vis, sig, body } = function;
    let value = call(common, &keyed, &sig);
    let returns = &keyed.returns;
    // All at one place, the return type: it is what cannot be stored or cannot report in flight, and a mistake that
    // the compiler meets again at the same place is told once.
    let place = returns.span().resolved_at(Span::mixed_site());
    let (call, engine) = (local("call", place), local("engine", place));
    let body = if let Some(tx) = &tx {
        joined(common, &keyed, &sig, tx, (&call, &engine, &value, &body))
    } else if sig.asyncness.is_some() {
        let provider = provider(&quote!(#rp::IdempotencyEngine), common, &keyed);
        let run = quote_spanned!(place=> #call.run::<#returns, _, _>(#engine, async move || -> #returns #body).await);
        quote! {
            let #call = #value;
            let #engine = #provider;
            #run
        }
    } else {
        let provider = provider(&quote!(#rp::BlockingEngine), common, &keyed);
        let run =
            quote_spanned!(place=> #call.run_blocking::<#returns, _>(#engine, move || -> #returns #body));
        quote! {
            #rp::blocking! {
                let #call = #value;
                let #engine = #provider;
                #run
            }
        }
    };
    quote! {
        #(#attrs)*
        #vis #sig {
            #body
        }
    }
}

/// CMP-7: the action is handed the transaction, which is no argument of the function any more. Its type says which engine is wanted.
fn joined(
    common: &Common,
    keyed: &Keyed,
    sig: &Signature,
    tx: &PatType,
    (call, engine, value, body): (&Ident, &Ident, &TokenStream, &Option<Group>),
) -> TokenStream {
    let rp = private(common.root.as_ref());
    let returns = &keyed.returns;
    let place = returns.span().resolved_at(Span::mixed_site());
    let lent = match &*tx.ty {
        Type::Reference(lent) => &lent.elem,
        other => other,
    };
    if sig.asyncness.is_some() {
        let provider = provider(&quote!(#rp::JoinedEngine<#lent>), common, keyed);
        let run = quote_spanned! {place=>
            #call.run_joined::<#returns, #lent, _>(#engine, async move |#tx| -> #returns #body).await
        };
        return quote! {
            let #call = #value;
            let #engine = #provider;
            #run
        };
    }
    let provider = provider(&quote!(#rp::BlockingJoinedEngine<#lent>), common, keyed);
    let run = quote_spanned! {place=>
        #call.run_blocking_joined::<#returns, #lent, _>(#engine, move |#tx| -> #returns #body)
    };
    quote! {
        #rp::blocking! {
            let #call = #value;
            let #engine = #provider;
            #run
        }
    }
}

/// Scope, key and options. The key is evaluated here, before the body may move the arguments.
fn call(common: &Common, keyed: &Keyed, sig: &Signature) -> TokenStream {
    let rp = private(common.root.as_ref());
    let name = sig.ident.to_string();
    let key = &keyed.key;
    // `mixed_site`: the parentheses are ours, and no lint is to call them needless.
    let key = quote_spanned!(key.span().resolved_at(Span::mixed_site())=> &(#key));
    let mut call = match &common.scope {
        Some(scope) => quote!(#rp::Keyed::new(#scope, #key)),
        // ANN-4. A signature that says `Self` stands in an `impl` even without a receiver. The closure is never called: its type has
        // the path of the place that it stands in, with the trait.
        None if sig.receiver().is_some() || mentions(sig, "Self") => {
            quote!(#rp::Keyed::method::<Self, _, _>(#name, #key, || ()))
        }
        None => quote! {
            #rp::Keyed::function(
                const { #rp::default_scope(::core::concat!(::core::module_path!(), "::", #name)) },
                #key,
                || (),
            )
        },
    };
    if let Some(value) = &keyed.fingerprint {
        let value = quote_spanned!(value.span().resolved_at(Span::mixed_site())=> &(#value));
        call = quote!(#call.fingerprint(#value));
    }
    for (method, value) in
        [("ttl", common.ttl), ("lease", common.lease), ("wait_timeout", common.wait_timeout)]
    {
        if let Some(value) = value {
            let (method, value) = (Ident::new(method, Span::call_site()), duration(value));
            call = quote!(#call.#method(#value));
        }
    }
    if let Some(codec) = &keyed.codec {
        call = quote!(#call.codec(#codec));
    }
    let policy = match keyed.completion {
        Some(Completion::LogAndReturn) => quote!(LogAndReturn),
        Some(Completion::Propagate) => quote!(Propagate),
        // No policy has a say about writes that are gone.
        Some(Completion::Joined) | None => return call,
    };
    quote!(#call.completion(#rp::CompletionFailurePolicy::#policy))
}

/// A clone of the engine: the body may move whatever the engine was found in.
fn provider(kind: &TokenStream, common: &Common, keyed: &Keyed) -> TokenStream {
    let rp = private(common.root.as_ref());
    match &keyed.engine {
        Some(engine) => {
            let place = engine.span().resolved_at(Span::mixed_site());
            let engine = quote_spanned!(place=> &(#engine));
            quote_spanned!(place=> #rp::ProvidesEngine::<#kind>::engine(#engine))
        }
        None => quote!(<Self as #rp::ProvidesEngine<#kind>>::engine(&self)),
    }
}
