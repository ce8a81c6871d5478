// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats an expansion for the snapshot tests, and for stderr if `RETRYPROOF_MACROS_DEBUG` names
//! the function.

use std::iter::Peekable;

use proc_macro2::{Delimiter, Punct, Spacing, TokenStream, TokenTree, token_stream};

const VARIABLE: &str = "RETRYPROOF_MACROS_DEBUG";

/// Prints the expansion if the environment variable is the function's name or `*`.
pub(crate) fn print(name: &str, expansion: &TokenStream) {
    if std::env::var(VARIABLE).is_ok_and(|wanted| wanted == name || wanted == "*") {
        eprintln!("// #[idempotent] {name}\n{}", pretty(expansion));
    }
}

/// Formats the tokens readably: one statement per line, with indented blocks. This is not a full
/// formatter.
pub(crate) fn pretty(tokens: &TokenStream) -> String {
    let mut page = Page::default();
    page.stream(tokens.clone());
    page.end_line();
    page.text
}

type Tokens = Peekable<token_stream::IntoIter>;

#[derive(Default)]
struct Page {
    text: String,
    depth: usize,
    last: Last,
    /// For each open `<`, whether it follows `impl`.
    angles: Vec<bool>,
    /// Whether the next token is between the bars of a closure.
    parameters: bool,
    /// Whether the next token is in a `where` clause. Each bound of such a clause gets its own
    /// line.
    bounds: bool,
}

/// The kind of the last token on this line. It determines whether a space precedes the next token.
#[derive(Default, Clone, Copy, PartialEq)]
enum Last {
    #[default]
    LineStart,
    /// A name, a literal or a closing bracket.
    Word,
    /// A word that cannot end an expression, so the next token begins a new one.
    Keyword,
    /// A punctuation mark that is followed by a space.
    Mark,
    /// A punctuation mark that is not followed by a space.
    Tight,
}

impl Page {
    fn stream(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => self.word(&ident.to_string()),
                TokenTree::Literal(literal) => self.word(&literal.to_string()),
                TokenTree::Punct(punct) => self.mark(&joined(punct, &mut tokens)),
                TokenTree::Group(group) => match group.delimiter() {
                    Delimiter::None => self.stream(group.stream()),
                    Delimiter::Parenthesis => self.inline('(', group.stream(), ')'),
                    Delimiter::Bracket => {
                        let attribute = self.text.ends_with('#');
                        self.inline('[', group.stream(), ']');
                        if attribute {
                            self.end_line();
                        }
                    }
                    Delimiter::Brace => {
                        self.block(group.stream());
                        if !continues(tokens.peek()) {
                            self.end_line();
                        }
                    }
                },
            }
        }
    }

    fn word(&mut self, text: &str) {
        if text == "where" {
            return self.where_clause();
        }
        self.gap(matches!(self.last, Last::Word | Last::Keyword | Last::Mark));
        self.text.push_str(text);
        let keyword = matches!(
            text,
            "as" | "const" | "for" | "impl" | "in" | "let" | "match" | "return" | "where"
        );
        self.last = if keyword { Last::Keyword } else { Last::Word };
    }

    fn where_clause(&mut self) {
        self.end_line();
        self.gap(false);
        self.text.push_str("where");
        self.last = Last::Word;
        self.end_line();
        self.depth += 1;
        self.bounds = true;
    }

    fn mark(&mut self, mark: &str) {
        let behind_a_word = self.last == Last::Word;
        let behind_a_mark = matches!(self.last, Last::Mark | Last::Keyword);
        let (space, last) = match mark {
            "," | ";" | ":" | "?" => (false, Last::Mark),
            "." | "!" => (false, Last::Tight),
            "::" => (behind_a_mark, Last::Tight),
            "<" => {
                let generics = self.text.ends_with("impl");
                self.angles.push(generics);
                (behind_a_mark && !generics, Last::Tight)
            }
            ">" => {
                (false, if self.angles.pop() == Some(true) { Last::Keyword } else { Last::Word })
            }
            "|" if self.parameters || !behind_a_word => {
                self.parameters = !self.parameters;
                (
                    self.parameters && behind_a_mark,
                    if self.parameters { Last::Tight } else { Last::Mark },
                )
            }
            "#" => (behind_a_mark, Last::Tight),
            "'" => (behind_a_word || behind_a_mark, Last::Tight),
            "&" | "*" | "-" | "&&" if !behind_a_word => (behind_a_mark, Last::Tight),
            _ => (behind_a_word || behind_a_mark, Last::Mark),
        };
        self.gap(space);
        self.text.push_str(mark);
        self.last = last;
        if mark == ";" || mark == "," && self.bounds && self.angles.is_empty() {
            self.end_line();
        }
    }

    fn inline(&mut self, open: char, tokens: TokenStream, close: char) {
        let outside = (std::mem::take(&mut self.angles), std::mem::take(&mut self.bounds));
        self.gap(matches!(self.last, Last::Mark | Last::Keyword));
        self.text.push(open);
        self.last = Last::Tight;
        self.stream(tokens);
        self.gap(false);
        self.text.push(close);
        self.last = Last::Word;
        (self.angles, self.bounds) = outside;
    }

    fn block(&mut self, tokens: TokenStream) {
        if std::mem::take(&mut self.bounds) {
            self.end_line();
            self.depth -= 1;
        }
        self.gap(self.last != Last::Tight);
        self.text.push('{');
        if !tokens.is_empty() {
            self.depth += 1;
            self.last = Last::Mark;
            self.end_line();
            self.stream(tokens);
            self.end_line();
            self.depth -= 1;
            self.gap(false);
        }
        self.text.push('}');
        self.last = Last::Word;
    }

    /// At the start of a line, writes the indentation; elsewhere writes a space if `space` is set.
    fn gap(&mut self, space: bool) {
        if self.last == Last::LineStart {
            self.text.extend(std::iter::repeat_n("    ", self.depth));
        } else if space {
            self.text.push(' ');
        }
    }

    fn end_line(&mut self) {
        if self.last != Last::LineStart {
            self.text.push('\n');
            self.last = Last::LineStart;
        }
    }
}

/// The operators of more than one character that cannot be confused with generics.
const OPERATORS: [&str; 17] = [
    "::", "->", "=>", "&&", "||", "==", "!=", "<=", "..", "..=", "+=", "-=", "*=", "/=", "|=",
    "&=", "%=",
];

/// Returns the whole operator that begins with `first`.
fn joined(first: Punct, tokens: &mut Tokens) -> String {
    let mut operator = String::from(first.as_char());
    let mut spacing = first.spacing();
    while spacing == Spacing::Joint {
        let Some(TokenTree::Punct(next)) = tokens.peek() else { break };
        let longer = format!("{operator}{}", next.as_char());
        if !OPERATORS.contains(&longer.as_str()) {
            break;
        }
        operator = longer;
        spacing = next.spacing();
        tokens.next();
    }
    operator
}

/// Whether the token after a block belongs on the block's last line.
fn continues(next: Option<&TokenTree>) -> bool {
    match next {
        Some(TokenTree::Punct(punct)) => matches!(punct.as_char(), ',' | ';' | '.' | '?'),
        Some(TokenTree::Ident(ident)) => ident == "else",
        None => true,
        _ => false,
    }
}
