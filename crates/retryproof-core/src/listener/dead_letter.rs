// SPDX-License-Identifier: MIT OR Apache-2.0
//! The content of a dead letter, which is the same for every broker: the header names and the parts
//! of the message.

/// The name of the header that contains the [`Reason`](super::Reason).
pub const REASON: &str = "retryproof-reason";

/// The name of the header that lists the omitted parts of the message. See
/// [`LetterContent::omitted`].
pub const OMITTED: &str = "retryproof-omitted";

/// The parts of the original message that a dead letter contains.
///
/// If a letter is too large for its target, parts of the message are omitted. Otherwise the message
/// would block the messages behind it forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LetterContent {
    /// Whether the letter contains the body.
    pub body: bool,
    /// Whether the letter contains the headers.
    pub headers: bool,
}

/// The part of a dead letter that is too large for its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    /// The headers.
    Headers,
    /// The letter as a whole.
    Letter,
}

impl LetterContent {
    /// The whole message.
    pub const WHOLE: Self = Self { body: true, headers: true };

    /// Returns the content to try next. Headers that are too large are omitted. If the whole letter
    /// is too large, the body is omitted first, and then the headers. Returns `None` if nothing is
    /// left to omit.
    #[must_use]
    pub fn reduced(self, too_large: TooLarge) -> Option<Self> {
        match too_large {
            TooLarge::Headers if self.headers => Some(Self { headers: false, ..self }),
            TooLarge::Letter if self.body => Some(Self { body: false, ..self }),
            TooLarge::Letter if self.headers => Some(Self { headers: false, ..self }),
            _ => None,
        }
    }

    /// Returns the value of the header [`OMITTED`], or `None` if nothing is omitted.
    #[must_use]
    pub fn omitted(self) -> Option<&'static str> {
        match (self.body, self.headers) {
            (true, true) => None,
            (false, true) => Some("body"),
            (true, false) => Some("headers"),
            (false, false) => Some("body, headers"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lst_2_a_letter_loses_its_body_before_its_headers() {
        let parts = |first| {
            std::iter::successors(Some(LetterContent::WHOLE), |content| content.reduced(first))
                .map(LetterContent::omitted)
                .collect::<Vec<_>>()
        };
        assert_eq!(parts(TooLarge::Letter), [None, Some("body"), Some("body, headers")]);
        assert_eq!(parts(TooLarge::Headers), [None, Some("headers")]);
    }
}
