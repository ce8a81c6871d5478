// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Attrs`]: sorts the attributes of an endpoint by the items that they belong to: the mounted
//! struct, the function, or both.

use proc_macro2::TokenStream;
use quote::quote;
use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

pub(super) struct Attrs {
    /// Attributes for all emitted items.
    pub(super) cfgs: Vec<Attribute>,
    pub(super) structure: Vec<Attribute>,
    pub(super) function: Vec<Attribute>,
    /// An attribute that prevents warnings in the `impl`s if the struct is deprecated.
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
                sorted.quiet = Some(quote!(#[allow(deprecated, reason = "used by the expansion")]));
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

/// Whether all lints in an `expect` concern only the struct. On the function, such an `expect`
/// would never be fulfilled.
fn expects_of_the_struct(attr: &Attribute) -> bool {
    const LINTS: [&str; 2] = ["missing_docs", "unreachable_pub"];
    let all =
        attr.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default();
    let mut lints = all.iter().filter(|meta| !meta.path().is_ident("reason")).peekable();
    lints.peek().is_some() && lints.all(|lint| LINTS.iter().any(|name| lint.path().is_ident(name)))
}
