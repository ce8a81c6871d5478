// SPDX-License-Identifier: MIT OR Apache-2.0
//! `completions` and `man`: texts that are generated from the definition of the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::CommandLine;
use crate::exit::{self, VerbError};
use crate::output::write_out;

/// Prints the completions for a shell.
pub(crate) fn completions(shell: Shell) -> Result<u8, VerbError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "retryproof", &mut script);
    write_out(&script)?;
    Ok(exit::OK)
}

/// Prints the manual page of the command, or of one verb.
pub(crate) fn page(verb: Option<&str>) -> Result<u8, VerbError> {
    let mut command = CommandLine::command();
    command.build();
    let command = match verb {
        None => command,
        Some(verb) => match command.find_subcommand(verb) {
            Some(found) => found.clone(),
            None => {
                return Err(VerbError::usage(format!(
                    "there is no command {verb:?}; `retryproof --help` lists the commands"
                )));
            }
        },
    };
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|error| {
        VerbError::other(format!("the manual page could not be written: {error}"))
    })?;
    write_out(&page)?;
    Ok(exit::OK)
}
