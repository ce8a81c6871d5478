// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asks the user on the terminal before a verb changes records.

use std::io::{IsTerminal as _, Write as _};

use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;

/// Prints `question` on the terminal and reads the answer. After an error, the verb must change
/// nothing. The error has the exit code of a wrong argument if there is no terminal, and the exit
/// code of a refusal if the user declines. Ctrl-C also ends the question with an error.
pub(super) async fn confirm(interrupt: &Interrupt, question: &str) -> Result<(), VerbError> {
    if !std::io::stdin().is_terminal() {
        return Err(VerbError::usage(
            "nothing was changed: stdin is not a terminal, so confirm with `--yes`",
        ));
    }
    let mut stderr = anstream::stderr();
    let asked = stderr.write_all(question.as_bytes()).and_then(|()| stderr.flush());
    if asked.is_ok() {
        let answer = tokio::task::spawn_blocking(|| {
            let mut answer = String::new();
            std::io::stdin().read_line(&mut answer).map(|_| answer)
        });
        let answer = interrupt.or(answer).await.map_err(|end| end.about("nothing was changed"))?;
        if let Ok(Ok(answer)) = answer
            && matches!(answer.trim(), "y" | "Y" | "yes")
        {
            return Ok(());
        }
    }
    Err(VerbError::new(exit::REFUSED, "nothing was changed"))
}
