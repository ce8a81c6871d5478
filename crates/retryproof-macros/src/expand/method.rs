// SPDX-License-Identifier: MIT OR Apache-2.0
//! `#[idempotent(key = .., ..)]`: the function's body becomes the action of one engine call. The
//! signature stays the same, except that marked arguments are removed.

use proc_macro2::{Group, Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{PatType, Signature, Type};

use crate::expand::{duration, local, private};
use crate::item::{AnnotatedFunction, LEASE_MARK, TX_MARK, mentions};
use crate::validate::{Common, CompletionMode, Keyed};

pub(super) fn expand(
    common: &Common,
    keyed: Keyed,
    mut function: AnnotatedFunction,
) -> TokenStream {
    let rp = private(common.root.as_ref());
    let (tx, lease) = (function.take_marked(TX_MARK), function.take_marked(LEASE_MARK));
    let AnnotatedFunction { attrs, vis, sig, body } = function;
    let value = call(common, &keyed, &sig);
    let returns = &keyed.returns;
    // Give the generated call the span of the return type. If the type cannot be stored or cannot
    // report a call in flight, the compiler then points at the type. Because all parts of the call
    // have the same span, the compiler reports each error only once.
    let place = returns.span().resolved_at(Span::mixed_site());
    let (call, engine) = (local("call", place), local("engine", place));
    let (lease, body) = body_with_lease(lease, &body, place);
    let hold = match &keyed.hold_when {
        Some(hold) => quote!(#hold),
        None => quote!(|_| false),
    };
    // CMP-7: the transaction is no longer an argument of the function. The action receives the
    // transaction instead, and the transaction's type becomes the type parameter of the joined
    // engine.
    let (kind, lent, tx) = match &tx {
        Some(tx) => {
            let lent = match &*tx.ty {
                Type::Reference(lent) => &lent.elem,
                other => other,
            };
            (quote!(<#lent>), Some(quote!(#lent,)), Some(quote!(, #tx)))
        }
        None => (quote!(), None, None),
    };
    let name = |run: &str| Ident::new(run, place);
    let (run, kind) = match (sig.asyncness.is_some(), tx.is_some()) {
        (true, false) => (name("run"), quote!(#rp::IdempotencyEngine)),
        (true, true) => (name("run_joined"), quote!(#rp::JoinedEngine #kind)),
        (false, false) => (name("run_blocking"), quote!(#rp::BlockingEngine)),
        (false, true) => (name("run_blocking_joined"), quote!(#rp::BlockingJoinedEngine #kind)),
    };
    let provider = provider(&kind, common, &keyed);
    let body = if sig.asyncness.is_some() {
        let future = tx.is_none().then(|| quote!(, _));
        let run = quote_spanned! {place=>
            #call.#run::<#returns, #lent _, _ #future>(
                #engine, #hold, async move |#lease #tx| -> #returns #body
            ).await
        };
        quote! {
            let #call = #value;
            let #engine = #provider;
            #run
        }
    } else {
        let run = quote_spanned! {place=>
            #call.#run::<#returns, #lent _, _>(#engine, #hold, move |#lease #tx| -> #returns #body)
        };
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

/// Returns the action's lease parameter, and the body. The body begins by binding the lease to the
/// marked argument: borrowed or owned, depending on the argument's type.
fn body_with_lease(
    lease: Option<PatType>,
    body: &Option<Group>,
    place: Span,
) -> (TokenStream, TokenStream) {
    let Some(PatType { attrs, pat, ty, .. }) = lease else { return (quote!(_), quote!(#body)) };
    let handed = local("lease", place);
    let borrow = matches!(&*ty, Type::Reference(_)).then(|| quote!(&));
    (
        quote!(#handed),
        quote! {{
            #(#attrs)*
            let #pat: #ty = #borrow #handed;
            #body
        }},
    )
}

/// Emits the call with its scope, key and options. The emitted code evaluates the key before the
/// body can move the arguments.
fn call(common: &Common, keyed: &Keyed, sig: &Signature) -> TokenStream {
    let rp = private(common.root.as_ref());
    let name = sig.ident.to_string();
    let key = &keyed.key;
    // The span `mixed_site` prevents lints about the parentheses that the macro adds.
    let key = quote_spanned!(key.span().resolved_at(Span::mixed_site())=> &(#key));
    let mut call = match &common.scope {
        Some(scope) => quote!(#rp::AnnotatedCall::new(#scope, #key)),
        // ANN-4: a signature with `Self` is in an `impl`, even if it has no receiver. The closure
        // is never called, but the name of its type contains the function's path, including the
        // trait, and the scope is derived from that name.
        None if sig.receiver().is_some() || mentions(sig, "Self") => {
            quote!(#rp::AnnotatedCall::method::<Self, _, _>(#name, #key, || ()))
        }
        None => quote! {
            #rp::AnnotatedCall::function(
                const { #rp::default_scope(::core::concat!(::core::module_path!(), "::", #name)) },
                #key,
                || (),
            )
        },
    };
    for (method, value) in [("fingerprint", &keyed.fingerprint), ("subject", &keyed.subject)] {
        if let Some(value) = value {
            let method = Ident::new(method, Span::call_site());
            let value = quote_spanned!(value.span().resolved_at(Span::mixed_site())=> &(#value));
            call = quote!(#call.#method(#value));
        }
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
        Some(CompletionMode::LogAndReturn) => quote!(LogAndReturn),
        Some(CompletionMode::Propagate) => quote!(Propagate),
        // A joined call has no completion policy: its writes are rolled back if the record is not
        // written.
        Some(CompletionMode::Joined) | None => return call,
    };
    quote!(#call.completion(#rp::CompletionFailurePolicy::#policy))
}

/// Emits an expression that clones the engine, because the function's body may move the value that
/// contains the engine.
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
