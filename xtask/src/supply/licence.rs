// SPDX-License-Identifier: MIT OR Apache-2.0
//! SPDX licence expressions, as far as crates use them: names, `WITH`, `AND`, `OR`, parentheses,
//! and the `/` of old manifests, which means `OR`.

/// Returns why crates with this expression may not be used, if they may not.
pub(super) fn refusal(expression: Option<&str>, allowed: &[&str]) -> Option<String> {
    let Some(expression) = expression else {
        return Some("no licence expression".into());
    };
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    match either(&mut rest, allowed) {
        Some(true) if rest.is_empty() => None,
        Some(false) if rest.is_empty() => {
            Some(format!("the licence `{expression}` is not among the allowed ones"))
        }
        _ => Some(format!("cannot parse the licence expression `{expression}`")),
    }
}

/// Reads terms joined by `OR`, because `AND` binds closer.
fn either(words: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut good = both(words, allowed)?;
    while words.first() == Some(&"OR") {
        *words = &words[1..];
        good |= both(words, allowed)?;
    }
    Some(good)
}

fn both(words: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let mut good = one(words, allowed)?;
    while words.first() == Some(&"AND") {
        *words = &words[1..];
        good &= one(words, allowed)?;
    }
    Some(good)
}

fn one(words: &mut &[&str], allowed: &[&str]) -> Option<bool> {
    let (&first, rest) = words.split_first()?;
    *words = rest;
    if first == "(" {
        let good = either(words, allowed)?;
        let (&last, rest) = words.split_first()?;
        *words = rest;
        return (last == ")").then_some(good);
    }
    if [")", "AND", "OR", "WITH"].contains(&first) {
        return None;
    }
    // An exception changes the licence's terms, so a licence with an exception is not allowed just
    // because its name is on the list.
    if words.first() == Some(&"WITH") {
        let (_, rest) = words[1..].split_first()?;
        *words = rest;
        return Some(false);
    }
    Some(allowed.contains(&first))
}

#[cfg(test)]
mod tests {
    use super::refusal;

    const ALLOWED: [&str; 2] = ["MIT", "ISC"];

    #[test]
    fn one_allowed_alternative_is_enough_and_each_part_of_an_and_is_needed() {
        for good in
            ["MIT", "MIT OR GPL-3.0", "GPL-3.0/MIT", "GPL-3.0 OR (MIT AND ISC)", "MIT AND ISC"]
        {
            assert_eq!(refusal(Some(good), &ALLOWED), None, "{good}");
        }
        for bad in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND GPL-3.0",
            "MIT AND GPL-3.0 OR GPL-3.0",
            "MIT WITH Some-exception",
        ] {
            let why = refusal(Some(bad), &ALLOWED).unwrap_or_default();
            assert!(why.contains("not among the allowed"), "{bad}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_parsed_is_refused() {
        for bad in ["", "MIT OR", "(MIT", "MIT)", "MIT ISC", "OR MIT", "MIT WITH"] {
            let why = refusal(Some(bad), &ALLOWED).unwrap_or_default();
            assert!(why.contains("cannot parse"), "{bad}: {why}");
        }
        assert!(refusal(None, &ALLOWED).is_some());
    }
}
