// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use crate::switch::{Numbered, switched};

fn mutant(start: list::Place, genre: &str, replacement: &str) -> Mutant {
    Mutant {
        file: "src/a.rs".into(),
        start,
        end: start,
        change: format!("{genre} {start:?}"),
        genre: genre.into(),
        replacement: replacement.into(),
    }
}

/// Returns the source with switches for these mutants, which are numbered from 0.
fn with(source: &str, mutants: &[Mutant]) -> switch::Switched {
    let numbered: Numbered<'_> = mutants.iter().enumerate().collect();
    switched(source, &numbered, &BTreeSet::new()).unwrap()
}

#[test]
fn the_arguments_name_crates_seed_and_count() {
    let parse = |line: &str| {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        wanted(&words).map(|w| {
            let names: Vec<_> = w.subjects.iter().map(|subject| subject.name).collect();
            (names, w.seed, w.count)
        })
    };
    let (all, seed, count) = parse("").unwrap();
    assert_eq!((all.len(), seed, count), (SUBJECTS.len(), 1, 300));
    let some = parse("core --seed 7 retryproof-sqlite --count 20");
    assert_eq!(some, Ok((vec!["core", "sqlite"], 7, 20)));
    for (line, part) in [("kore", "kore"), ("--seed", "--seed"), ("--count x", "x")] {
        assert!(parse(line).unwrap_err().contains(part), "{line}");
    }
}

#[test]
fn nested_operators_and_a_body_are_switched_each_alone() {
    let out = with(
        "fn f(a: u8, b: u8) -> bool {\n    a + 1 < b\n}\n",
        &[
            mutant((2, 5), "FnValue", "true"),
            mutant((2, 11), "BinaryOperator", "<="),
            mutant((2, 11), "BinaryOperator", ">"),
            mutant((2, 7), "BinaryOperator", "-"),
        ],
    );
    let expected = "fn f(a: u8, b: u8) -> bool {\n    if crate::mutant(0) { return true; } \
                    (if crate::mutant(1) { (a + 1) <= (b) } else \
                    if crate::mutant(2) { (a + 1) > (b) } else { \
                    (if crate::mutant(3) { (a) - (1) } else { a + 1 }) < b })\n}\n";
    assert_eq!(out.text, expected);
    assert_eq!(out.switched, (0..4).collect());
}

#[test]
fn arms_guards_fields_and_signs_are_switched() {
    let out = with(
        "const fn f(a: i8) -> T {\n match a {\n  1 => T { a, ..D },\n  x if x > 2 => T { a: -x, ..D },\n  _ => D\n }\n}\n",
        &[
            mutant((3, 3), "MatchArm", ""),
            mutant((3, 12), "StructField", ""),
            mutant((4, 8), "MatchArmGuard", "true"),
            mutant((4, 8), "MatchArmGuard", "false"),
            mutant((4, 24), "UnaryOperator", ""),
        ],
    );
    let field = "(if crate::mutant(1) { { let rest: T = D; rest.a } } else { a })";
    let guard = "if crate::mutant(2) { true } else if crate::mutant(3) { false } else { x > 2 }";
    let sign = "(if crate::mutant(4) { x } else { -x })";
    let expected = format!(
        " fn f(a: i8) -> T {{\n match a {{\n  1 if !crate::mutant(0) => T {{ a: {field}, ..D }},\n  \
         x if {guard} => T {{ a: {sign}, ..D }},\n  _ => D\n }}\n}}\n"
    );
    assert_eq!(out.text, expected);
}

#[test]
fn what_has_no_place_for_a_switch_is_left_out() {
    let out = with(
        "const A: u8 = 1 + 2;\nfn f(a: bool) {\n    if a && let Some(_) = g() {}\n}\n",
        &[mutant((1, 17), "BinaryOperator", "-"), mutant((3, 10), "BinaryOperator", "||")],
    );
    assert!(out.switched.is_empty());
    assert_eq!(out.impossible, [1].into());
}

#[test]
fn an_error_is_blamed_on_the_inserted_text_or_else_on_the_function() {
    let mutants = [
        mutant((1, 25), "FnValue", "1"),
        mutant((1, 27), "BinaryOperator", "-"),
        mutant((2, 10), "FnValue", "()"),
    ];
    let out = with("fn f(a: u8) -> String { a + 1 }\nfn g() { h(); }\n", &mutants);
    let place = |part: &str| {
        let at = out.text.find(part).unwrap();
        at..at + part.len()
    };
    let blamed = |part: &str| out.blamed(&[place(part)]);
    assert_eq!(blamed("return 1"), ([0].into(), true));
    assert_eq!(blamed("(a) - (1)"), ([1].into(), true));
    assert_eq!(blamed("String"), ([0, 1].into(), false));
    assert_eq!(blamed("g()"), ([2].into(), false));
}

#[test]
fn a_result_counts_until_the_code_that_it_depends_on_changes() {
    let folder = std::env::temp_dir().join(format!("retryproof-mutants-{}", std::process::id()));
    let write = |file: &str, text: &str| {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let read = || {
        let sources = Sources::read(&folder).unwrap();
        Record::read(folder.join("results.tsv"), sources).unwrap()
    };
    for file in ["src/a.rs", "src/b.rs", "tests/it/x.rs", "tests/it/y.rs"] {
        write(file, "fn f() {}\n");
    }
    let mutants: Vec<Mutant> = (1..4).map(|line| mutant((line, 1), "FnValue", "1")).collect();
    let mut record = read();
    for (mutant, end) in mutants.iter().zip([
        End::Caught("it::x::some_test".into()),
        End::Survived,
        End::NotCompiled,
    ]) {
        record.note(mutant, end).unwrap();
    }
    let valid = || mutants.iter().map(|mutant| read().valid(mutant).is_some()).collect::<Vec<_>>();
    assert_eq!(valid(), [true, true, true]);
    write("src/a.rs", "// A comment.\nfn f() {}\n");
    assert_eq!(valid(), [true, true, true]);
    write("tests/it/y.rs", "fn g() {}\n");
    assert_eq!(valid(), [true, false, true]);
    write("tests/it/x.rs", "fn g() {}\n");
    assert_eq!(valid(), [false, false, true]);
    write("src/a.rs", "fn g() {}\n");
    assert_eq!(valid(), [false, false, false]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn too_many_survivors_are_a_problem_unless_each_has_a_reason() {
    let folder = std::env::temp_dir().join(format!("retryproof-excuses-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mutants: Vec<Mutant> = (1..21).map(|line| mutant((line, 1), "FnValue", "1")).collect();
    let mut record = Record::read(folder.join("results.tsv"), Sources::default()).unwrap();
    let none = Excused::new();
    assert!(record.report("core", &mutants, &none, 95).is_some(), "nothing was tested");
    for mutant in &mutants[..19] {
        record.note(mutant, End::Caught("it::a".into())).unwrap();
    }
    record.note(&mutants[19], End::Survived).unwrap();
    assert_eq!(record.report("core", &mutants, &none, 95), None);
    record.note(&mutants[18], End::Survived).unwrap();
    assert!(record.report("core", &mutants, &none, 95).is_some());
    let change = |at: usize| &mutants[at].change;
    let list = format!("# list\ncore\tsrc/a.rs\t{}\tno time is equal\n", change(18));
    let one = record::excused(&list).unwrap();
    assert_eq!(record.report("core", &mutants, &one, 94), None);
    assert!(record.report("http", &mutants, &one, 95).is_some());
    assert!(record::needless("core", &mutants, &one).is_empty());
    assert_eq!(record::needless("core", &mutants[..18], &one), [change(18)]);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_excuse_without_a_reason_is_refused() {
    assert!(record::excused("core\tsrc/a.rs\treplace\t \n").is_err());
    assert!(record::excused("core\tsrc/a.rs\treplace\n").is_err());
}
