// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Args`]: the text between the parentheses, parsed but not validated.
//!
//! The parser reports all mistakes at once: after a mistake, it records the error and continues at
//! the next comma.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Token};

/// The arguments with a value, in the order in which error messages list them.
const NAMES: [&str; 12] = [
    "key",
    "fingerprint",
    "subject",
    "ttl",
    "lease",
    "wait_timeout",
    "scope",
    "codec",
    "completion",
    "hold_when",
    "engine",
    "crate",
];

/// `name = value`.
pub(crate) struct Arg {
    pub(crate) name: Ident,
    pub(crate) value: Expr,
}

/// The arguments that were given, each at most once.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) http: Option<Span>,
    given: Vec<Arg>,
}

impl Args {
    /// Returns the argument with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&Arg> {
        self.given.iter().find(|arg| arg.name == name)
    }
}

/// Several errors combined into one. The compiler shows each error at its own span.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            none => *none = Some(error),
        }
    }

    pub(crate) fn at(&mut self, place: impl quote::ToTokens, message: impl std::fmt::Display) {
        self.push(syn::Error::new_spanned(place, message));
    }

    pub(crate) fn at_span(&mut self, span: Span, message: impl std::fmt::Display) {
        self.push(syn::Error::new(span, message));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn into_inner(self) -> Option<syn::Error> {
        self.0
    }
}

/// Parses the arguments, and adds an error to `errors` for each mistake.
pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Args {
    let mut args = Args::default();
    let read = |input: ParseStream<'_>| {
        let mut first = true;
        while !input.is_empty() {
            if let Err(error) = argument(input, first, &mut args, errors) {
                errors.push(error);
                skip_to_comma(input);
            }
            first = false;
            if !input.is_empty() && input.parse::<Token![,]>().is_err() {
                errors.push(input.error("expected `,` between two arguments"));
                skip_to_comma(input);
                let _ = input.parse::<Token![,]>();
            }
        }
        Ok(())
    };
    if let Err(error) = read.parse2(tokens) {
        errors.push(error);
    }
    args
}

fn argument(
    input: ParseStream<'_>,
    first: bool,
    args: &mut Args,
    errors: &mut Errors,
) -> syn::Result<()> {
    if !input.peek(Ident::peek_any) {
        return Err(input.error(format!(
            "an argument must be `http` or `name = value`, where the name is one of {}",
            known()
        )));
    }
    let name = input.call(Ident::parse_any)?;
    if !input.peek(Token![=]) {
        return flag(name, first, args);
    }
    input.parse::<Token![=]>()?;
    if input.is_empty() || input.peek(Token![,]) {
        return Err(syn::Error::new(name.span(), format!("`{name} =` needs a value")));
    }
    let value = input.parse()?;
    if !NAMES.iter().any(|known| name == known) {
        errors.at(&name, unknown(&name));
    } else if args.get(&name.to_string()).is_some() {
        errors.at(&name, format!("`{name}` is given twice; keep one"));
    } else {
        args.given.push(Arg { name, value });
    }
    Ok(())
}

fn flag(name: Ident, first: bool, args: &mut Args) -> syn::Result<()> {
    let message = if name != "http" {
        if NAMES.iter().any(|known| name == known) {
            format!("`{name}` needs a value: `{name} = ..`")
        } else {
            unknown(&name)
        }
    } else if args.http.is_some() {
        "`http` is given twice; keep the first".to_owned()
    } else if !first {
        "`http` must come first: `#[idempotent(http, ..)]`".to_owned()
    } else {
        args.http = Some(name.span());
        return Ok(());
    };
    // Treat a misplaced `http` as given, so that its absence is not reported as a second error.
    if name == "http" {
        args.http = Some(name.span());
    }
    Err(syn::Error::new(name.span(), message))
}

fn unknown(name: &Ident) -> String {
    let text = name.to_string();
    let meant = match text.as_str() {
        "wait" | "timeout" | "waitTimeout" => Some("wait_timeout"),
        "expires" | "retention" => Some("ttl"),
        "store" => Some("engine"),
        "id" => Some("key"),
        _ => None,
    };
    match meant {
        Some(meant) => format!("unknown argument `{text}`; did you mean `{meant}`?"),
        None => format!(
            "unknown argument `{text}`; expected `http`, which must come first, or one of {}",
            known()
        ),
    }
}

fn known() -> String {
    NAMES.map(|name| format!("`{name}`")).join(", ")
}

fn skip_to_comma(input: ParseStream<'_>) {
    while !input.is_empty() && !input.peek(Token![,]) {
        let _ = input.parse::<TokenTree>();
    }
}
