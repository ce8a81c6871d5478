// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares expansions with the files in the facade's `tests/expand`, which the facade's tests
//! compile.
//!
//! `name.in.rs` holds one annotated item, and `name.out.rs` holds its expansion. The test compares
//! tokens, so the format of the files does not matter. `RETRYPROOF_BLESS=1` rewrites the
//! expansions.

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::Item;

use crate::debug::pretty;
use crate::expand::idempotent;
use crate::item::AnnotatedFunction;
use crate::validate::Framework;

const HEAD: &str = "// SPDX-License-Identifier: MIT OR Apache-2.0\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../retryproof/tests/expand")
}

#[test]
fn ann_1_ann_2_ann_3_ann_4_expansions_are_as_recorded() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).expect("the folder of snapshots") {
        let path = entry.expect("an entry").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".in.rs"))
        else {
            continue;
        };
        check(name, &path);
        seen += 1;
    }
    assert!(seen >= 6, "only {seen} snapshots were found");
}

fn check(name: &str, input: &Path) {
    let input = std::fs::read_to_string(input).expect("a readable input");
    let file = syn::parse_file(&input).expect("an input that parses");
    let framework = if name.starts_with("actix_") { Framework::Actix } else { Framework::Axum };
    let expansion: TokenStream =
        file.items.into_iter().map(|item| expand(framework, item)).collect();
    let recorded = folder().join(format!("{name}.out.rs"));
    if std::env::var_os("RETRYPROOF_BLESS").is_some() {
        std::fs::write(&recorded, format!("{HEAD}{}", pretty(&expansion)))
            .expect("a writable snapshot");
        return;
    }
    let text = std::fs::read_to_string(&recorded).unwrap_or_default();
    let recorded: TokenStream = text.parse().expect("a snapshot of tokens");
    assert_eq!(
        pretty(&plain(recorded)),
        pretty(&plain(expansion)),
        "the expansion of {name} has changed"
    );
}

/// Expands an item with the attribute, or all such items in an `impl`. Returns other items
/// unchanged.
fn expand(framework: Framework, item: Item) -> TokenStream {
    match item {
        Item::Impl(mut item) => {
            let inner = std::mem::take(&mut item.items);
            let inner =
                inner.into_iter().map(|inner| annotated(framework, inner.to_token_stream()));
            let attrs = &item.attrs;
            let (_, generics, clause) = item.generics.split_for_impl();
            let ty = &item.self_ty;
            assert!(
                item.trait_.is_none() && generics.to_token_stream().is_empty(),
                "write a plain `impl`"
            );
            quote!(#(#attrs)* impl #ty #clause { #(#inner)* })
        }
        other => annotated(framework, other.to_token_stream()),
    }
}

/// Removes `#[idempotent(..)]`, as the compiler does, and expands the item. Returns an item without
/// the attribute unchanged.
fn annotated(framework: Framework, item: TokenStream) -> TokenStream {
    let Ok(mut function) = syn::parse2::<AnnotatedFunction>(item.clone()) else { return item };
    let Some(at) = function.attrs.iter().position(|attr| attr.path().is_ident("idempotent")) else {
        return item;
    };
    let attribute = function.attrs.remove(at);
    let Ok(list) = attribute.meta.require_list() else {
        panic!("write arguments: {}", attribute.to_token_stream())
    };
    idempotent(framework, list.tokens.clone(), function.to_token_stream())
}

/// Removes each comma before a closing bracket, because a formatter may add or remove it.
fn plain(tokens: TokenStream) -> TokenStream {
    let is = |token: &TokenTree, mark| matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark);
    let mut plain: Vec<TokenTree> = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                plain.extend(self::plain(group.stream()))
            }
            TokenTree::Group(group) => {
                plain.push(Group::new(group.delimiter(), self::plain(group.stream())).into());
            }
            other => {
                if is(&other, '>') {
                    plain.pop_if(|last| is(last, ','));
                }
                plain.push(other);
            }
        }
    }
    plain.pop_if(|last| is(last, ','));
    plain.into_iter().collect()
}
