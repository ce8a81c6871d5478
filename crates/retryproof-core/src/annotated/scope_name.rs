// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives the scope of an annotated function from the path that the compiler writes (ANN-4).

use std::any::type_name;

use crate::identity::MAX_SCOPE_BYTES;

/// Returns `path`, the full path of a function, which is its default scope (ANN-4).
///
/// # Panics
/// Panics if the path is too long for a scope. The attribute calls this function in a `const`, so
/// the panic is a compile error.
#[must_use]
pub const fn default_scope(path: &'static str) -> &'static str {
    assert!(path.len() <= MAX_SCOPE_BYTES, "{}", TOO_LONG);
    path
}

pub(super) const TOO_LONG: &str = "the default scope of this function is its path, which is longer \
                                   than the 255 bytes that a scope can have; name a shorter scope, \
                                   as in `scope = \"payments\"`";

/// Returns the full path of the function that encloses a closure, as the compiler writes it.
/// Early-bound lifetimes, which the compiler writes as `<'_>`, are removed. The path has no type or
/// const parameters, because a generic function has to name its scope (ANN-1).
pub(super) fn place<H>(_: &H) -> &'static str {
    let mut path = type_name::<H>();
    // Remove every `{{closure}}` at the end. The closure itself adds one. The future of an async
    // function adds another, and so does each attribute that wraps the body in a closure.
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    opening(path).map_or(path, |at| &path[..at])
}

/// Returns `<Owner as Trait>::name` for a trait method, wherever its `impl` is, and `Owner::name`
/// for any other method. Returns `place` unchanged if it has neither form, because a later compiler
/// may write paths differently: a scope that is too narrow is better than one scope for two
/// methods.
pub(super) fn method_path(owner: &str, name: &str, place: &str) -> String {
    let own = || format!("{owner}::{name}");
    let bare = name.strip_prefix("r#").unwrap_or(name);
    let Some(block) = place.strip_suffix(bare).and_then(|block| block.strip_suffix("::")) else {
        return own();
    };
    if block == owner {
        return own();
    }
    let Some(at) = opening(block).filter(|at| *at == 0 || block[..*at].ends_with("::")) else {
        return place.to_owned();
    };
    // For a trait method, the block is `<Owner as Trait>`. For a trait method whose `impl` is in a
    // module that defines neither the trait nor the type, the block is `<impl Trait for Owner>`.
    // For an inherent method, the block is `<Owner>` or `<impl Owner>`.
    let block = &block[at + 1..block.len() - 1];
    let header = block.strip_prefix("impl ").unwrap_or(block);
    let of_trait = block
        .strip_prefix(owner)
        .and_then(|rest| rest.strip_prefix(" as "))
        .or_else(|| header.strip_suffix(owner).and_then(|rest| rest.strip_suffix(" for ")));
    match of_trait {
        Some(of_trait) => format!("<{owner} as {of_trait}>::{name}"),
        None if header == owner => own(),
        None => place.to_owned(),
    }
}

/// Returns the position of the `<` that matches the last `>` of a path.
fn opening(path: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in path.bytes().enumerate().rev() {
        match byte {
            // The `>` in `fn() -> u8` is not a closing bracket.
            b'>' if !path[..at].ends_with('-') => open += 1,
            b'<' => open = open.checked_sub(1)?,
            _ => {}
        }
        if open == 0 {
            return (byte == b'<').then_some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ann_4_the_arrow_of_a_function_type_is_no_bracket() {
        assert_eq!(opening("a::Runner<fn() -> u8>"), Some(9));
        assert_eq!(opening("a::Runner<fn(Vec<u8>) -> Vec<u8>>"), Some(9));
        assert_eq!(opening("a::Runner"), None);
    }
}
