// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`AnnotatedFunction`]: the annotated item, with its body left unparsed. The attribute does not
//! need the body, so the body stays one token group. A half-written body therefore reaches the
//! compiler unchanged: the compiler reports its own errors, and editors keep working.

use proc_macro2::{Group, TokenStream, TokenTree};
use quote::{ToTokens, TokenStreamExt};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, FnArg, PatType, Signature, Token, Visibility};

/// The attribute that marks the transaction argument.
pub(crate) const TX_MARK: &str = "tx";
/// The attribute that marks the lease argument.
pub(crate) const LEASE_MARK: &str = "lease";

/// A function or method as written.
pub(crate) struct AnnotatedFunction {
    pub(crate) attrs: Vec<Attribute>,
    pub(crate) vis: Visibility,
    pub(crate) sig: Signature,
    /// `None` for a trait's method that is declared without a body.
    pub(crate) body: Option<Group>,
}

impl Parse for AnnotatedFunction {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        let body = match input.parse::<TokenTree>()? {
            TokenTree::Group(group) => Some(group),
            _ => None,
        };
        Ok(Self { attrs, vis, sig, body })
    }
}

impl AnnotatedFunction {
    /// Returns another `#[idempotent]` below the one being expanded.
    pub(crate) fn second(&self) -> Option<&Attribute> {
        self.attrs.iter().find(|attr| is_idempotent(attr))
    }

    /// Returns the function as written, without another `#[idempotent]` and without the marks on
    /// its arguments. This form is emitted next to an error.
    pub(crate) fn without_second(mut self) -> Self {
        self.attrs.retain(|attr| !is_idempotent(attr));
        for input in &mut self.sig.inputs {
            attributes(input)
                .retain(|attr| !attr.path().is_ident(TX_MARK) && !attr.path().is_ident(LEASE_MARK));
        }
        self
    }

    /// Returns the arguments that carry a mark.
    pub(crate) fn marked(&self, mark: &'static str) -> impl Iterator<Item = &FnArg> {
        self.sig.inputs.iter().filter(move |input| is_marked(input, mark))
    }

    /// Removes the marked argument from the signature, because callers do not pass it. Returns the
    /// argument without its mark.
    pub(crate) fn take_marked(&mut self, mark: &str) -> Option<PatType> {
        let mut taken = None;
        let inputs = std::mem::take(&mut self.sig.inputs);
        for input in inputs {
            match input {
                FnArg::Typed(mut input)
                    if input.attrs.iter().any(|attr| attr.path().is_ident(mark)) =>
                {
                    input.attrs.retain(|attr| !attr.path().is_ident(mark));
                    taken = Some(input);
                }
                other => self.sig.inputs.push(other),
            }
        }
        taken
    }
}

impl ToTokens for AnnotatedFunction {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        tokens.append_all(&self.attrs);
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        match &self.body {
            Some(body) => body.to_tokens(tokens),
            None => <Token![;]>::default().to_tokens(tokens),
        }
    }
}

fn is_idempotent(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|last| last.ident == "idempotent")
}

/// Whether an argument carries a mark.
pub(crate) fn is_marked(input: &FnArg, mark: &str) -> bool {
    let attrs = match input {
        FnArg::Receiver(receiver) => &receiver.attrs,
        FnArg::Typed(input) => &input.attrs,
    };
    attrs.iter().any(|attr| attr.path().is_ident(mark))
}

fn attributes(input: &mut FnArg) -> &mut Vec<Attribute> {
    match input {
        FnArg::Receiver(receiver) => &mut receiver.attrs,
        FnArg::Typed(input) => &mut input.attrs,
    }
}

/// Whether `tokens` contain `word` at any depth, as a keyword or a name.
pub(crate) fn mentions(tokens: impl ToTokens, word: &str) -> bool {
    any(
        tokens.to_token_stream(),
        &|token| matches!(token, TokenTree::Ident(ident) if ident == word),
    )
}

/// Whether a type borrows without naming a lifetime: `&T` or `Cow<'_, T>`.
pub(crate) fn elides_a_lifetime(ty: impl ToTokens) -> bool {
    let tokens = ty.to_token_stream();
    let mut before = ' ';
    let mut elided = false;
    walk(tokens, &mut |token| {
        let here = match token {
            TokenTree::Punct(punct) => punct.as_char(),
            _ => ' ',
        };
        elided |= before == '&' && here != '\'';
        elided |= before == '\'' && matches!(token, TokenTree::Ident(ident) if ident == "_");
        before = here;
    });
    elided
}

fn any(tokens: TokenStream, test: &dyn Fn(&TokenTree) -> bool) -> bool {
    let mut found = false;
    walk(tokens, &mut |token| found |= test(token));
    found
}

fn walk(tokens: TokenStream, visit: &mut dyn FnMut(&TokenTree)) {
    for token in tokens {
        visit(&token);
        if let TokenTree::Group(group) = token {
            walk(group.stream(), visit);
        }
    }
}
