// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`HtmlText`]: escapes text from a store or a request, so that it cannot become markup.

use std::fmt::{self, Write as _};

/// Prints text for an element or for an attribute in double quotes. Control characters and
/// invisible characters, such as those that change the text direction, are printed in the form
/// `\u{202e}`. Otherwise one label could look like another.
pub(crate) struct HtmlText<'a>(pub(crate) &'a str);

impl fmt::Display for HtmlText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() || is_invisible(c) => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Whether a character is invisible and can change how its neighbours look.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_9_text_cannot_become_markup() {
        let shown = |text| HtmlText(text).to_string();
        assert_eq!(shown("<script>alert(1)</script>"), "&lt;script&gt;alert(1)&lt;/script&gt;");
        assert_eq!(shown("\" onclick='x' &amp;"), "&quot; onclick=&#39;x&#39; &amp;amp;");
        assert_eq!(shown("a\u{202e}b\nc\u{0}"), "a\\u{202e}b\\u{a}c\\u{0}");
        assert_eq!(shown("schlüssel ☃ 鍵"), "schlüssel ☃ 鍵");
    }
}
