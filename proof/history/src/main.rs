// SPDX-License-Identifier: MIT OR Apache-2.0
//! `history DIR`: judges a stored run again. The exit code is 1 after a violation or a void run,
//! and 2 if the run cannot be read.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let (Some(folder), None) = (args.next(), args.next()) else {
        eprintln!("usage: history DIR\n  DIR holds run.json and the *.jsonl of a run of `chaos`");
        return ExitCode::from(2);
    };
    match history::read(Path::new(&folder)) {
        Ok((run, lines)) => {
            let judgement = history::judge(&run);
            print!("{}", history::report(&run, &judgement, &lines));
            ExitCode::from(u8::from(!judgement.is_green()))
        }
        Err(error) => {
            eprintln!("cannot read the history: {error}");
            ExitCode::from(2)
        }
    }
}
