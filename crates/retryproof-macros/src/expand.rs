// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns a valid [`Expansion`] into code, and invalid input into errors.
//!
//! The emitted code only evaluates the arguments and passes them to `::retryproof::__private`. The
//! library makes all decisions.

mod actix;
mod attrs;
mod http;
mod method;

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::Path;

use crate::attr::{self, Errors};
use crate::debug;
use crate::item::AnnotatedFunction;
use crate::validate::{Expansion, Framework, validate};

/// Expands the attribute.
pub(crate) fn idempotent(
    framework: Framework,
    arguments: TokenStream,
    item: TokenStream,
) -> TokenStream {
    let mut errors = Errors::default();
    let args = attr::parse(arguments, &mut errors);
    let function = match syn::parse2::<AnnotatedFunction>(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let function = item.clone().into_iter().any(|token| token.to_string() == "fn");
            errors.push(match function {
                true => error,
                false => syn::Error::new(
                    error.span(),
                    "`#[idempotent]` can be used only on a function or a method",
                ),
            });
            return refused(errors, item);
        }
    };
    let plan = validate(framework, &args, &function, &mut errors);
    let Some(plan) = plan.filter(|_| errors.is_empty()) else {
        return refused(errors, function.without_second());
    };
    let name = function.sig.ident.to_string();
    let expansion = match plan {
        Expansion::Endpoint(common) => match framework {
            Framework::Axum => http::expand(&common, function),
            Framework::Actix => actix::expand(&common, function),
        },
        Expansion::Keyed(common, keyed) => method::expand(&common, *keyed, function),
    };
    debug::print(&name, &expansion);
    expansion
}

/// Emits the errors and the item. The item keeps editors working, and prevents further errors about
/// a missing item.
fn refused(errors: Errors, item: impl ToTokens) -> TokenStream {
    let errors = errors.into_inner().map(syn::Error::into_compile_error);
    quote!(#errors #item)
}

/// Returns the path of the library in the expansion.
fn private(root: Option<&Path>) -> TokenStream {
    match root {
        Some(root) => quote!(#root::__private),
        None => quote!(::retryproof::__private),
    }
}

/// Names a local variable of the expansion. `mixed_site` separates the variable from the function's
/// own variables, but not from constants. In a pattern, an endpoint's name is a constant, so the
/// prefix makes the variable's name differ from the names of endpoints.
fn local(name: &str, place: Span) -> Ident {
    Ident::new(&format!("retryproof_{name}"), place.resolved_at(Span::mixed_site()))
}

fn duration(duration: Duration) -> TokenStream {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    quote!(::core::time::Duration::new(#seconds, #nanos))
}
