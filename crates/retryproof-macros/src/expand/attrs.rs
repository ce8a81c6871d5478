// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Attrs`]: an endpoint is two items, the struct that is mounted and the function; each attribute
//! goes where it means what it says.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

pub(super) struct Attrs {
    /// Of all that is emitted.
    pub(super) cfgs: Vec<Attribute>,
    pub(super) structure: Vec<Attribute>,
    pub(super) function: Vec<Attribute>,
    /// Of the `impl`s, which are no use of a struct that is deprecated.
    pub(super) quiet: Option<TokenStream>,
}

impl Attrs {
    pub(super) fn sort(attrs: Vec<Attribute>) -> Self {
        let mut sorted =
            Self { cfgs: Vec::new(), structure: Vec::new(), function: Vec::new(), quiet: None };
        for attr in attrs {
            let is = |names: &[&str]| names.iter().any(|name| attr.path().is_ident(name));
            if is(&["cfg"]) {
                sorted.cfgs.push(attr);
            } else if is(&["doc"]) {
                sorted.structure.push(attr);
            } else if is(&["deprecated"]) {
                sorted.structure.push(attr);
                sorted.quiet =
                    Some(quote!(#[allow(deprecated, reason = "made with what is deprecated")]));
            } else if is(&["allow", "warn", "deny", "forbid"]) {
                sorted.structure.push(attr.clone());
                sorted.function.push(attr);
            } else if is(&["expect"]) && expects_of_the_struct(&attr) {
                sorted.structure.push(attr);
            } else {
                sorted.function.push(attr);
            }
        }
        sorted
    }
}

/// Whether all that is expected is what the compiler says of a struct; at the function it would be
/// unfulfilled.
fn expects_of_the_struct(attr: &Attribute) -> bool {
    const LINTS: [&str; 2] = ["missing_docs", "unreachable_pub"];
    let all =
        attr.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
    let mut lints = all.iter().filter(|meta| !meta.path().is_ident("reason")).peekable();
    lints.peek().is_some() && lints.all(|lint| LINTS.iter().any(|name| lint.path().is_ident(name)))
}
