// SPDX-License-Identifier: MIT OR Apache-2.0
//! Puts many mutants into one source file, each behind a switch, so that one build serves all.
//!
//! `a < b` becomes `(if crate::mutant(7) { (a) <= (b) } else { a < b })`. The function
//! `crate::mutant` returns whether the environment switched on the mutant with this number.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::{LineColumn, Span};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use crate::list::{Mutant, Place};

/// The mutants of one file, by their numbers.
pub(crate) type Numbered<'a> = BTreeMap<usize, &'a Mutant>;

/// A source file with switches.
pub(crate) struct Switched {
    pub(crate) text: String,
    /// The mutants that are in the text.
    pub(crate) switched: BTreeSet<usize>,
    /// The mutants that no compiler accepts: `||` and `let` in one condition.
    pub(crate) impossible: BTreeSet<usize>,
    /// Which mutants each inserted piece belongs to, by its range in the text.
    pieces: Vec<(Range<usize>, BTreeSet<usize>)>,
    /// Each function that contains mutants, by its range in the text.
    functions: Vec<(Range<usize>, BTreeSet<usize>)>,
}

/// A text to insert at an offset of the source.
struct Insert {
    at: usize,
    /// The order of pieces at the same place. By the first number, pieces that end an expression
    /// come first, then pieces that do not nest, then pieces that begin an expression. The second
    /// number puts outer pieces outside inner ones.
    order: (i8, isize),
    text: String,
    mutants: BTreeSet<usize>,
}

struct Sites<'a> {
    source: &'a str,
    /// The offset of each line.
    lines: Vec<usize>,
    mutants: &'a Numbered<'a>,
    inserts: Vec<Insert>,
    /// The places of the keyword `const` in functions that now have switches.
    removed: Vec<Range<usize>>,
    functions: Vec<Range<usize>>,
    impossible: BTreeSet<usize>,
    /// Functions that have to stay `const`.
    constant: &'a BTreeSet<String>,
}

/// Puts the mutants into the source. A mutant whose place has no switch is left out.
pub(crate) fn switched(
    source: &str,
    mutants: &Numbered<'_>,
    constant: &BTreeSet<String>,
) -> Result<Switched, String> {
    let file = syn::parse_file(source).map_err(|error| error.to_string())?;
    let lines = std::iter::once(0).chain(source.match_indices('\n').map(|(at, _)| at + 1));
    let mut sites = Sites {
        source,
        lines: lines.collect(),
        mutants,
        inserts: Vec::new(),
        removed: Vec::new(),
        functions: Vec::new(),
        impossible: BTreeSet::new(),
        constant,
    };
    sites.visit_file(&file);
    Ok(sites.write())
}

impl Switched {
    /// Returns the mutants that may have caused an error of the compiler at these places: those of
    /// the inserted text (`true`), or else all of the function.
    pub(crate) fn blamed(&self, places: &[Range<usize>]) -> (BTreeSet<usize>, bool) {
        let meets = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        for place in places {
            let hit = self.pieces.iter().filter(|(range, _)| meets(range, place));
            let exact: BTreeSet<usize> = hit.flat_map(|(_, mutants)| mutants).copied().collect();
            if !exact.is_empty() {
                return (exact, true);
            }
        }
        let around = self.functions.iter().filter(|(range, _)| {
            places.iter().any(|place| range.start <= place.start && place.end <= range.end)
        });
        let smallest = around.min_by_key(|(range, _)| range.len());
        (smallest.map_or_else(BTreeSet::new, |(_, mutants)| mutants.clone()), false)
    }
}

impl Sites<'_> {
    fn offset(&self, (line, column): Place) -> usize {
        let line = self.lines[line - 1];
        let mut chars = self.source[line..].char_indices();
        chars.nth(column - 1).map_or(self.source.len(), |(at, _)| line + at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(place(span.start()))..self.offset(place(span.end()))
    }

    fn text(&self, node: &impl syn::spanned::Spanned) -> &str {
        &self.source[self.range(node.span())]
    }

    fn at(&self, span: Span, genre: &str) -> Vec<usize> {
        let start = place(span.start());
        let here = |mutant: &Mutant| mutant.start == start && mutant.genre == genre;
        self.mutants.iter().filter(|(_, m)| here(m)).map(|(&number, _)| number).collect()
    }

    fn insert(&mut self, at: usize, order: (i8, isize), text: String, mutants: &[usize]) {
        self.inserts.push(Insert { at, order, text, mutants: mutants.iter().copied().collect() });
    }

    /// Puts text before and after an expression.
    fn wrap(&mut self, range: &Range<usize>, before: &[(String, usize)], after: &str) {
        let mutants: Vec<usize> = before.iter().map(|&(_, number)| number).collect();
        let (start, end) = (range.start.cast_signed(), range.end.cast_signed());
        for (text, number) in before {
            self.insert(range.start, (1, -end), text.clone(), &[*number]);
        }
        self.insert(range.end, (-1, -start), after.into(), &mutants);
    }

    /// Puts an expression behind the switches of its changed forms.
    fn choose(&mut self, range: &Range<usize>, forms: Vec<(usize, String)>) {
        let last = forms.len().saturating_sub(1);
        let text = |(at, (number, form)): (usize, (usize, String))| {
            let (open, close) =
                (if at == 0 { "(" } else { "" }, if at == last { "{ " } else { "" });
            (format!("{open}if crate::mutant({number}) {{ {form} }} else {close}"), number)
        };
        let before: Vec<_> = forms.into_iter().enumerate().map(text).collect();
        if !before.is_empty() {
            self.wrap(range, &before, " })");
        }
    }

    fn function(&mut self, whole: Span, signature: &syn::Signature, block: &syn::Block) -> bool {
        let name = signature.ident.to_string();
        if signature.constness.is_some() && self.constant.contains(&name) {
            return false;
        }
        let range = self.range(whole);
        let inside = self.mutants.values().any(|m| range.contains(&self.offset(m.start)));
        if let (Some(keyword), true) = (&signature.constness, inside) {
            self.removed.push(self.range(keyword.span()));
        }
        self.functions.push(range);
        let Some(first) = block.stmts.first() else { return true };
        let at = self.range(first.span()).start;
        for number in self.at(first.span(), "FnValue") {
            let value = &self.mutants[&number].replacement;
            let text = format!("if crate::mutant({number}) {{ return {value}; }} ");
            self.insert(at, (0, 0), text, &[number]);
        }
        true
    }

    fn write(mut self) -> Switched {
        let offset = |(&number, mutant): (&usize, &&Mutant)| (number, self.offset(mutant.start));
        let offsets: Vec<(usize, usize)> = self.mutants.iter().map(offset).collect();
        self.inserts.sort_by_key(|insert| (insert.at, insert.order));
        let mut out = Switched {
            text: String::new(),
            switched: BTreeSet::new(),
            impossible: self.impossible,
            pieces: Vec::new(),
            functions: Vec::new(),
        };
        // For each offset of the source, its offset in the text.
        let mut moved = vec![0; self.source.len() + 1];
        let mut inserts = self.inserts.into_iter().peekable();
        for (at, c) in self.source.char_indices().chain([(self.source.len(), '\n')]) {
            while let Some(insert) = inserts.next_if(|insert| insert.at == at) {
                let start = out.text.len();
                out.text.push_str(&insert.text);
                out.switched.extend(&insert.mutants);
                out.pieces.push((start..out.text.len(), insert.mutants));
            }
            moved[at] = out.text.len();
            let removed = self.removed.iter().any(|range| range.contains(&at));
            if at < self.source.len() && !removed {
                out.text.push(c);
            }
        }
        for range in self.functions {
            let inside = |&(number, at): &(usize, usize)| {
                range.contains(&at) && out.switched.contains(&number)
            };
            let mutants =
                offsets.iter().copied().filter(inside).map(|(number, _)| number).collect();
            out.functions.push((moved[range.start]..moved[range.end], mutants));
        }
        out
    }
}

fn place(at: LineColumn) -> Place {
    (at.line, at.column + 1)
}

/// Returns whether a condition contains a `let`, which only `&&` may join to the rest.
fn has_let(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Sites<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if self.function(item.span(), &item.sig, &item.block) {
            self.visit_block(&item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if self.function(item.span(), &item.sig, &item.block) {
            self.visit_block(&item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let Some(block) = &item.default else { return };
        if self.function(item.span(), &item.sig, block) {
            self.visit_block(block);
        }
    }

    // Do not visit constants, because code that runs at compile time cannot read a switch.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}

    fn visit_expr_repeat(&mut self, expr: &'ast syn::ExprRepeat) {
        self.visit_expr(&expr.expr);
    }

    fn visit_expr_binary(&mut self, expr: &'ast syn::ExprBinary) {
        let numbers = self.at(expr.op.span(), "BinaryOperator");
        if has_let(&expr.left) || has_let(&expr.right) {
            self.impossible.extend(numbers);
        } else {
            let (left, right) = (self.text(&expr.left), self.text(&expr.right));
            let form = |number| {
                let operator = &self.mutants[&number].replacement;
                (number, format!("({left}) {operator} ({right})"))
            };
            let forms = numbers.into_iter().map(form).collect();
            self.choose(&self.range(expr.span()), forms);
        }
        visit::visit_expr_binary(self, expr);
    }

    fn visit_expr_unary(&mut self, expr: &'ast syn::ExprUnary) {
        let operand = self.text(&expr.expr).to_owned();
        let numbers = self.at(expr.op.span(), "UnaryOperator");
        let forms = numbers.into_iter().map(|number| (number, operand.clone())).collect();
        self.choose(&self.range(expr.span()), forms);
        visit::visit_expr_unary(self, expr);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let deleted = self.at(arm.span(), "MatchArm");
        if let (syn::Pat::Guard(guarded), numbers) = (&arm.pat, &deleted) {
            let constants: Vec<_> = self.at(guarded.guard.span(), "MatchArmGuard");
            let mut before = Vec::new();
            for number in constants.into_iter().chain(numbers.iter().copied()) {
                // Each of these mutants replaces the whole guard by `true` or `false`.
                let value = self.mutants[&number].replacement == "true";
                before.push((format!("if crate::mutant({number}) {{ {value} }} else "), number));
            }
            if let Some((last, _)) = before.last_mut() {
                last.push_str("{ ");
                self.wrap(&self.range(guarded.guard.span()), &before, " }");
            }
        } else if let [number] = deleted[..] {
            let end = self.range(arm.pat.span()).end;
            self.insert(end, (0, 0), format!(" if !crate::mutant({number})"), &[number]);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr_struct(&mut self, expr: &'ast syn::ExprStruct) {
        if let Some(rest) = &expr.rest {
            let (kind, rest) = (self.text(&expr.path).to_owned(), self.text(rest).to_owned());
            for field in &expr.fields {
                let [number] = self.at(field.span(), "StructField")[..] else { continue };
                let name = self.text(&field.member).to_owned();
                let form = format!("{{ let rest: {kind} = {rest}; rest.{name} }}");
                let range = self.range(field.expr.span());
                if field.colon_token.is_none() {
                    let colon = format!("{name}: ");
                    self.insert(range.start, (0, 0), colon, &[number]);
                }
                self.choose(&range, vec![(number, form)]);
            }
        }
        visit::visit_expr_struct(self, expr);
    }
}
