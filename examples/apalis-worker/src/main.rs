// SPDX-License-Identifier: MIT OR Apache-2.0
//! `apalis-worker demo`, or `run OUTBOX MAILS STORE`: `OUTBOX` is a file of JSON lines, `MAILS` is
//! the file that receives the mails, and `STORE` is the URL of a store.

use std::path::Path;

use apalis_worker::{BoxError, demo};

const USAGE: &str = "usage: apalis-worker demo | run OUTBOX MAILS STORE";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::WARN).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["demo"] => {
            let folder = std::env::temp_dir().join(format!("apalis-worker-{}", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            let result = demo::demo(&folder, |line| println!("{line}")).await;
            std::fs::remove_dir_all(&folder)?;
            result
        }
        ["run", outbox, mails, store] => {
            let tally = demo::run(Path::new(outbox), Path::new(mails), store).await?;
            println!("{} jobs done, {} given up", tally.done, tally.failed);
            if tally.failed > 0 {
                Err("some jobs failed; they stay in the outbox".into())
            } else {
                Ok(())
            }
        }
        _ => Err(USAGE.into()),
    }
}
