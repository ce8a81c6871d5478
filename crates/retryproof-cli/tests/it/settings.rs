// SPDX-License-Identifier: MIT OR Apache-2.0
//! `config show`: values and their sources.

use crate::support::{Place, bare, code, err, out};

#[test]
fn cfg_1_each_setting_shows_its_source_and_no_secret() {
    let place = Place::sqlite();
    let file = place.path("app.toml");
    let text = "[idempotency]\nstore = \"postgres://app:canary@db:5432/shop\"\n\
                default-lease = \"PT20S\"\ndefault-ttl = \"P2D\"\nscope.\"payments\".wait = \"PT5S\"\n\
                scope.\"payments\".enabled = false\n\
                scope.\"payments\".fingerprint-while-in-flight = true\n\
                scope.\"payouts\".shadow = true\n";
    std::fs::write(&file, text).unwrap();
    let show = |arguments: &[&str]| {
        let mut command = bare();
        command.args(["config", "show", "--output", "jsonl", "--config"]).arg(&file);
        let output =
            command.args(arguments).env("IDEMPOTENCY_DEFAULT_LEASE", "PT15S").output().unwrap();
        assert_eq!(code(&output), 0, "{}", err(&output));
        assert!(!format!("{}{}", out(&output), err(&output)).contains("canary"));
        out(&output)
    };
    let shown = show(&[]);
    let row = |setting: &str| {
        let rows = shown.lines().map(serde_json::from_str::<serde_json::Value>);
        let row = rows.map(Result::unwrap).find(|row| row["setting"] == setting).unwrap();
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (text("value"), text("source"))
    };
    let at = |line: usize| format!("{}, line {line}", file.display());
    assert_eq!(row("store"), ("postgres://(hidden)@db:5432/shop".to_owned(), at(2)));
    assert_eq!(row("default-lease"), ("PT15S".into(), "IDEMPOTENCY_DEFAULT_LEASE".into()));
    assert_eq!(row("default-ttl"), ("P2D".to_owned(), at(4)));
    assert_eq!(row("scope.\"payments\".wait"), ("PT5S".to_owned(), at(5)));
    assert_eq!(row("scope.\"payments\".enabled"), ("false".to_owned(), at(6)));
    let early = "scope.\"payments\".fingerprint-while-in-flight";
    assert_eq!(row(early), ("true".to_owned(), at(7)));
    assert_eq!(row("scope.\"payouts\".shadow"), ("true".to_owned(), at(8)));
    assert_eq!(row("max-hold"), ("PT1H".to_owned(), "default".to_owned()));
    let overridden = show(&["--store", "memory:"]);
    assert!(overridden.contains(r#""source":"--store","value":"memory:""#), "{overridden}");
}

#[test]
fn cfg_1_a_wrong_file_is_a_usage_error() {
    let place = Place::sqlite();
    let file = place.path("app.toml");
    std::fs::write(&file, "[idempotency]\ndefault-tll = \"PT1S\"\n").unwrap();
    let output = bare().args(["config", "show", "--config"]).arg(&file).output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(err(&output).contains("did you mean `default-ttl`?"), "{}", err(&output));
    let output = bare().args(["stats", "--config", "/no/such/file"]).output().unwrap();
    assert_eq!(code(&output), 2, "{}", err(&output));
}
