// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Scopes`]: the scopes of a shard's records. Each scope is stored once, under a number, for as
//! long as a record uses it.

use std::collections::BTreeMap;

use retryproof_core::Scope;

use crate::index::NONE;

pub(crate) struct Scopes {
    places: Vec<Place>,
    by_text: BTreeMap<Box<str>, u32>,
    free: u32,
    /// The number of the last inserted record's scope. An insertion compares with this scope first,
    /// because most shards see the same scope again and again.
    last: u32,
}

struct Place {
    /// The address and the length of the scope's text. Two texts with the same address and length
    /// are equal without a comparison of their bytes.
    address: usize,
    len: usize,
    /// `None` in a free entry.
    scope: Option<Scope>,
    /// The number of records that use the scope; in a free entry, the index of the next free entry.
    records: u32,
}

impl Place {
    #[inline(never)]
    fn is_same(&self, scope: &Scope) -> bool {
        self.scope.as_ref() == Some(scope)
    }
}

impl Scopes {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), by_text: BTreeMap::new(), free: NONE, last: NONE }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_text.len()
    }

    /// Whether `at` is the number of this scope, compared byte for byte (ID-2).
    #[inline(always)]
    pub(crate) fn is(&self, at: u32, scope: &Scope) -> bool {
        let Some(kept) = self.places.get(at as usize) else { return false };
        let text = scope.as_str();
        // Compare the pointers first, because both scopes are usually the same literal.
        (kept.address == text.as_ptr().addr() && kept.len == text.len()) || kept.is_same(scope)
    }

    /// Returns the scope with the number `at`.
    pub(crate) fn get(&self, at: u32) -> Option<&Scope> {
        self.places.get(at as usize)?.scope.as_ref()
    }

    /// Returns the number of `scope`, and counts one more record for that scope.
    #[inline]
    pub(crate) fn enter(&mut self, scope: &Scope) -> u32 {
        let text = scope.as_str();
        if let Some(last) = self.places.get_mut(self.last as usize)
            && last.address == text.as_ptr().addr()
            && last.len == text.len()
        {
            last.records += 1;
            return self.last;
        }
        self.enter_another(scope)
    }

    fn enter_another(&mut self, scope: &Scope) -> u32 {
        self.last = match self.by_text.get(scope.as_str()) {
            Some(at) => *at,
            None => self.add(scope),
        };
        self.places[self.last as usize].records += 1;
        self.last
    }

    /// Counts one record fewer for the scope with the number `at`. A scope without records is
    /// removed.
    #[inline]
    pub(crate) fn leave(&mut self, at: u32) {
        let place = &mut self.places[at as usize];
        place.records -= 1;
        if place.records == 0 {
            self.forget(at);
        }
    }

    #[cold]
    fn add(&mut self, scope: &Scope) -> u32 {
        let text = scope.as_str();
        let place = Place {
            address: text.as_ptr().addr(),
            len: text.len(),
            scope: Some(scope.clone()),
            records: 0,
        };
        let at = if self.free == NONE {
            // The number fits into a u32: a shard has at most as many scopes as slots, and slots
            // have u32 numbers.
            self.places.push(place);
            u32::try_from(self.places.len() - 1).unwrap_or(NONE)
        } else {
            let at = self.free;
            self.free = std::mem::replace(&mut self.places[at as usize], place).records;
            at
        };
        self.by_text.insert(scope.as_str().into(), at);
        at
    }

    #[cold]
    fn forget(&mut self, at: u32) {
        let place = &mut self.places[at as usize];
        place.records = self.free;
        (place.address, place.len) = (0, 0);
        self.free = at;
        if let Some(scope) = place.scope.take() {
            self.by_text.remove(scope.as_str());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_2_scopes_are_kept_while_used_and_never_mixed_up() {
        let scope = |text: &str| Scope::new(text).unwrap();
        let mut scopes = Scopes::new();
        let a = scopes.enter(&scope("a"));
        let b = scopes.enter(&scope("b"));
        assert_eq!(scopes.enter(&scope("a")), a);
        assert!(
            scopes.is(a, &scope("a")) && !scopes.is(a, &scope("A")) && !scopes.is(b, &scope("a"))
        );
        scopes.leave(a);
        assert!(scopes.is(a, &scope("a")), "one record should still use the scope");
        scopes.leave(a);
        assert!(!scopes.is(a, &scope("a")));
        assert_eq!(scopes.enter(&scope("c")), a, "the number should be reused");
        assert!(scopes.is(a, &scope("c")) && scopes.is(b, &scope("b")));
        assert_eq!(scopes.len(), 2);
    }
}
