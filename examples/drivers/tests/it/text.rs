// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that texts that exist in two places are the same in both.

/// The adapters of SeaORM 1 and SeaORM 2 are the same, except for the name of the crate and the
/// name of one method.
#[test]
fn the_adapters_of_both_versions_of_sea_orm_differ_in_two_words() {
    let pairs = [
        (
            include_str!("../../src/sea_orm_postgres.rs"),
            include_str!("../../src/sea_orm_1_postgres.rs"),
        ),
        (include_str!("../../src/sea_orm_mysql.rs"), include_str!("../../src/sea_orm_1_mysql.rs")),
    ];
    for (newer, older) in pairs {
        let newer =
            newer.replace("use sea_orm::", "use sea_orm_1::").replace(".execute_raw(", ".execute(");
        let code = |text: &str| text.split_once("\nuse ").map(|(_, code)| code.to_owned()).unwrap();
        assert_eq!(code(&newer), code(older));
    }
}

/// The snippets of the guide are compiled, because each is a part of `src/guide.rs`.
#[test]
fn the_snippets_of_the_guide_are_those_that_are_compiled() {
    // Remove all white space, because the code and the guide are wrapped at different widths.
    let dense = |text: &str| text.split_whitespace().collect::<String>();
    // In this crate, the older sqlx has a different name, because both versions are dependencies.
    let compiled = dense(&include_str!("../../src/guide.rs").replace("sqlx_of_08::", "sqlx::"));
    let page = include_str!("../../../../crates/retryproof/src/guide/guarantees.md");
    let (_, section) = page.split_once("\n### Driver by driver\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("its end");
    let snippets: Vec<&str> =
        section.split("```").filter_map(|part| part.strip_prefix("rust,ignore\n")).collect();
    assert_eq!(snippets.len(), 5);
    for snippet in snippets {
        assert!(compiled.contains(&dense(snippet)), "not compiled:\n{snippet}");
    }
}
