// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Scan`]: reads a store's records page by page (OPS-1), for verbs that need many records.

use std::io::IsTerminal as _;

use retryproof::store::{ScanCursor, ScanPage};
use retryproof::{IdempotencyStore as _, SharedStore};

use crate::exit::{self, VerbError};
use crate::interrupt::Interrupt;
use crate::output::remark;
use crate::position;

/// How many records are requested per page.
pub(crate) const PAGE: usize = 1_000;
/// How many pages are read between two lines of progress.
const PAGES_PER_REMARK: u64 = 100;

/// A scan that Ctrl-C can end. A later start of the command can continue it.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    store: &'a SharedStore,
    /// Where the next page starts.
    after: Option<ScanCursor>,
    interrupt: Interrupt,
    shows_progress: bool,
    pages: u64,
    records: u64,
    unreadable: u64,
}

impl<'a> Scan<'a> {
    /// Starts a scan at the first record, or at the position `after`.
    pub(crate) fn new(store: &'a SharedStore, after: Option<ScanCursor>) -> Self {
        let shows_progress = std::io::stderr().is_terminal();
        let interrupt = Interrupt::new();
        Self { store, after, interrupt, shows_progress, pages: 0, records: 0, unreadable: 0 }
    }

    /// Starts again at the first record.
    pub(crate) fn restart(&mut self) {
        self.after = None;
        (self.pages, self.records, self.unreadable) = (0, 0, 0);
    }

    /// Returns the handle for Ctrl-C, which also ends the scan.
    pub(crate) fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Reads the page at the current position. The position does not change.
    pub(crate) async fn page(&self, size: usize) -> Result<ScanPage, VerbError> {
        let page = self.interrupt.or(self.store.scan(self.after.as_ref(), size)).await??;
        page.ok_or_else(|| {
            let name = self.store.profile().name;
            VerbError::new(exit::REFUSED, format!("the {name} store cannot list records"))
        })
    }

    /// Moves the position to the end of a page that [`page`](Self::page) has returned. Returns
    /// whether more pages follow.
    pub(crate) fn advance(&mut self, page: &ScanPage) -> bool {
        self.pages += 1;
        self.records += page.records.len() as u64;
        self.unreadable += page.unreadable;
        if self.shows_progress && self.pages.is_multiple_of(PAGES_PER_REMARK) {
            remark(format_args!("{} records read", self.records));
        }
        if page.next.is_some() {
            self.after.clone_from(&page.next);
        }
        page.next.is_some()
    }

    /// Returns how many records could not be read.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Prints on stderr how many records could not be read.
    pub(crate) fn remark_unreadable(&self) {
        if self.unreadable > 0 {
            remark(format_args!(
                "records that this version of the command cannot read: {}",
                self.unreadable
            ));
        }
    }

    /// Prints on stderr why the scan ended, and how to continue it. The position contains a key, so
    /// it is printed only with `--show-keys` (ID-4).
    pub(crate) fn remark_end(&self, why: &str, show_keys: bool) {
        match (&self.after, show_keys) {
            (Some(after), true) => remark(format_args!(
                "{why}; to continue, repeat the command with `--after={}`",
                position::written(after)
            )),
            (Some(_), false) => remark(format_args!(
                "{why}; to learn where to continue, repeat the command with `--show-keys` (the \
                 position contains a key)"
            )),
            (None, _) => remark(format_args!("{why}; to continue, repeat the command")),
        }
    }
}
