// SPDX-License-Identifier: MIT OR Apache-2.0
//! CFG-1: the configuration of a whole process, from its file and its environment.

use std::process::Command;

use retryproof_core::{ErrorKind, IdempotencyConfig};

/// The part of the next test that runs in a separate process. It does nothing unless that test
/// starts it.
#[test]
fn cfg_1_child_reads_the_process_environment() {
    if let Ok(path) = std::env::var("RETRYPROOF_TEST_CONFIG") {
        match IdempotencyConfig::load(Some(path.as_ref())) {
            Ok(config) => {
                println!("lease {:?} wait {:?}", config.default_lease, config.default_wait_timeout)
            }
            Err(error) => println!("refused: {error}"),
        }
    }
}

#[test]
fn cfg_1_load_reads_the_file_and_the_process_environment() {
    let file = std::env::temp_dir().join(format!("retryproof-config-{}.toml", std::process::id()));
    std::fs::write(&file, "[idempotency]\ndefault-lease = 'PT4S'\ndefault-wait = 'PT4S'").unwrap();
    let run = |variable: &str, value: &std::ffi::OsStr| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "config_process::cfg_1_child_reads_the_process_environment",
                "--nocapture",
            ])
            .env("RETRYPROOF_TEST_CONFIG", &file)
            .env(variable, value)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let good = run("IDEMPOTENCY_DEFAULT_WAIT", "PT9S".as_ref());
    let bad = run("IDEMPOTENCY_DEFAULT_WAIT", "9s".as_ref());
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let said = run("IDEMPOTENCY_STORE", std::ffi::OsStr::from_bytes(b"memory:\xff"));
        assert!(
            said.contains("refused")
                && said.contains("(IDEMPOTENCY_STORE): the value is not UTF-8"),
            "{said}"
        );
    }
    std::fs::remove_file(&file).unwrap();
    assert!(good.contains("lease 4s wait 9s"), "{good}");
    assert!(bad.contains("refused") && bad.contains("IDEMPOTENCY_DEFAULT_WAIT"), "{bad}");
    let gone = IdempotencyConfig::load(Some(&file)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Config);
    assert!(gone.to_string().contains("cannot be read"), "{gone}");
}
