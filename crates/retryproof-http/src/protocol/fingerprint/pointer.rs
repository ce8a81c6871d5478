// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PointerNode`]: JSON pointers (RFC 6901) as a tree.

use std::collections::HashMap;

/// A node of the tree: all pointers that begin with the same tokens.
#[derive(Debug, Default)]
pub(super) struct PointerNode {
    next: HashMap<String, Self>,
    is_end: bool,
}

impl PointerNode {
    /// Reads pointers, whose form the configuration has checked.
    pub(super) fn of<'a>(pointers: impl Iterator<Item = &'a str>) -> Self {
        let mut root = Self::default();
        for pointer in pointers {
            let mut node = &mut root;
            for token in pointer.split('/').skip(1) {
                let name = token.replace("~1", "/").replace("~0", "~");
                node = node.next.entry(name).or_default();
            }
            node.is_end = true;
        }
        root
    }

    /// Returns the node of the pointers that continue into this member or element.
    pub(super) fn next(&self, name: &str) -> Option<&Self> {
        self.next.get(name)
    }

    /// Whether a pointer ends here.
    pub(super) fn is_end(&self) -> bool {
        self.is_end
    }
}
