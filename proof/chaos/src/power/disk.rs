// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Disk`]: the content of a disk, and what would be left of it if the power failed now. Both are
//! computed from the journal that `shim.c` writes.
//!
//! A sync of a file makes the file's bytes durable, but not its name. A sync of the folder makes
//! the names durable. Everything else may be lost, and not only the newest changes: each unsynced
//! sector and each unsynced change of a name may be lost or not, independently of the others.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::random::Random;

/// A disk writes a sector as a whole or not at all.
const SECTOR: u64 = 512;
/// The length of the header before an entry's name and data, in bytes.
const HEAD: usize = 32;

/// A change of the files.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Created { name: String, inode: u64 },
    Wrote { inode: u64, at: u64, data: Range<usize> },
    Cut { inode: u64, length: u64 },
    Synced { inode: u64 },
    Removed { name: String },
    Renamed { from: String, to: String },
    SyncedFolder,
}

/// The journal of one process.
pub(crate) struct Journal {
    bytes: Vec<u8>,
    pub(crate) changes: Vec<Change>,
}

impl Journal {
    /// Reads a journal. The process was killed, so its last entry may be unfinished.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let mut changes = Vec::new();
        let mut rest = 0;
        while let Some((change, next)) = entry(&bytes, rest)? {
            changes.push(change);
            rest = next;
        }
        Ok(Self { bytes, changes })
    }

    /// Returns the text that the first `count` changes wrote to the file `name`.
    pub(crate) fn text_of(&self, name: &str, count: usize) -> String {
        let (mut text, mut of) = (Vec::new(), None);
        for change in &self.changes[..count] {
            match change {
                Change::Created { name: created, inode } if created == name => of = Some(*inode),
                Change::Wrote { inode, data, .. } if Some(*inode) == of => {
                    text.extend_from_slice(&self.bytes[data.clone()]);
                }
                _ => {}
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// Reads the entry at `at`, and returns it with the place where the next one begins.
fn entry(bytes: &[u8], at: usize) -> io::Result<Option<(Change, usize)>> {
    let Some(head) = bytes.get(at..at + HEAD) else { return Ok(None) };
    let short = |from: usize| {
        u32::from_ne_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]])
    };
    let long = |from: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&head[from..from + 8]);
        u64::from_ne_bytes(number)
    };
    let inode = u64::from(short(8)) << 32 | u64::from(short(12));
    let name_at = at + HEAD;
    let data_at = name_at + short(4) as usize;
    let end = data_at + usize::try_from(long(24)).map_err(io::Error::other)?;
    let (Some(name), Some(data)) = (bytes.get(name_at..data_at), bytes.get(data_at..end)) else {
        return Ok(None);
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let change = match short(0) {
        1 => Change::Created { name: text(name), inode },
        2 => Change::Wrote { inode, at: long(16), data: data_at..end },
        3 => Change::Cut { inode, length: long(16) },
        4 => Change::Synced { inode },
        5 => Change::Removed { name: text(name) },
        6 => Change::Renamed { from: text(name), to: text(data) },
        7 => Change::SyncedFolder,
        other => return Err(io::Error::other(format!("no entry of a journal is {other}"))),
    };
    Ok(Some((change, end)))
}

/// Which of the unsynced changes a power loss leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Left {
    /// The power loss leaves no unsynced change.
    Nothing,
    /// The power loss leaves this percentage of the sectors and of the changes of names.
    Sectors(u64),
    /// The power loss leaves this percentage of the writes, each as a whole, and of the changes of
    /// names.
    Writes(u64),
}

impl Left {
    /// Chooses a kind of loss at random.
    pub(crate) fn draw(random: &mut Random) -> Self {
        match random.within(0..4) {
            0 => Self::Nothing,
            1 => Self::Writes(random.within(1..100)),
            _ => Self::Sectors(random.within(1..100)),
        }
    }
}

#[derive(Default, Clone)]
struct File {
    durable: Vec<u8>,
    unsynced: Vec<Unsynced>,
}

#[derive(Clone)]
enum Unsynced {
    Bytes { at: u64, data: Range<usize> },
    Length(u64),
}

/// The files of one folder.
#[derive(Default, Clone)]
pub(crate) struct Disk {
    files: Vec<File>,
    /// The file that each inode belongs to now. The system reuses the inode of a removed file.
    inodes: HashMap<u64, usize>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Changes of names since the last sync of the folder: the name, and the file that has it now,
    /// if there is one.
    unsynced_names: Vec<(String, Option<usize>)>,
}

impl Disk {
    /// Reads the files of a folder, all of which count as durable.
    pub(crate) fn of(folder: &Path) -> io::Result<Self> {
        let mut disk = Self::default();
        for file in fs::read_dir(folder)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            disk.inodes.insert(file.metadata()?.ino(), disk.files.len());
            disk.names.insert(name, disk.files.len());
            disk.files.push(File { durable: fs::read(file.path())?, unsynced: Vec::new() });
        }
        disk.durable_names = disk.names.clone();
        Ok(disk)
    }

    /// Applies the first `count` changes of a journal.
    pub(crate) fn follow(&mut self, journal: &Journal, count: usize) {
        for change in &journal.changes[..count] {
            match change {
                Change::Created { name, inode } => {
                    self.inodes.insert(*inode, self.files.len());
                    self.name(name, Some(self.files.len()));
                    self.files.push(File::default());
                }
                Change::Wrote { inode, at, data } => {
                    self.change(*inode, Unsynced::Bytes { at: *at, data: data.clone() });
                }
                Change::Cut { inode, length } => self.change(*inode, Unsynced::Length(*length)),
                Change::Synced { inode } => {
                    if let Some(file) = self.inodes.get(inode).map(|file| &mut self.files[*file]) {
                        for change in std::mem::take(&mut file.unsynced) {
                            change.apply(&mut file.durable, &journal.bytes, |_| true);
                        }
                    }
                }
                Change::Removed { name } => self.name(name, None),
                Change::Renamed { from, to } => {
                    let file = self.names.get(from).copied();
                    self.name(to, file);
                    self.name(from, None);
                }
                Change::SyncedFolder => {
                    for (name, file) in std::mem::take(&mut self.unsynced_names) {
                        rename(&mut self.durable_names, name, file);
                    }
                }
            }
        }
    }

    fn change(&mut self, inode: u64, change: Unsynced) {
        if let Some(file) = self.inodes.get(&inode) {
            self.files[*file].unsynced.push(change);
        }
    }

    fn name(&mut self, name: &str, file: Option<usize>) {
        rename(&mut self.names, name.to_owned(), file);
        self.unsynced_names.push((name.to_owned(), file));
    }

    /// Writes the files that a power loss leaves to the empty folder `to`.
    pub(crate) fn lose_power(
        &self,
        journal: &Journal,
        left: Left,
        random: &mut Random,
        to: &Path,
    ) -> io::Result<()> {
        let (percent, tears) = match left {
            Left::Nothing => (0, false),
            Left::Sectors(percent) => (percent, true),
            Left::Writes(percent) => (percent, false),
        };
        let mut names = self.durable_names.clone();
        for (name, file) in &self.unsynced_names {
            if random.percent(percent) {
                rename(&mut names, name.clone(), *file);
            }
        }
        // Leave out the file of answers: the journal has its whole content, and the power loss may
        // have damaged the file.
        names.remove(super::TOLD);
        for (name, file) in names {
            let mut bytes = self.files[file].durable.clone();
            for change in &self.files[file].unsynced {
                let whole = random.percent(percent);
                change.apply(&mut bytes, &journal.bytes, |is_sector| {
                    if tears && is_sector { random.percent(percent) } else { whole }
                });
            }
            fs::write(to.join(name), bytes)?;
        }
        Ok(())
    }
}

fn rename(names: &mut BTreeMap<String, usize>, name: String, file: Option<usize>) {
    match file {
        Some(file) => names.insert(name, file),
        None => names.remove(&name),
    };
}

impl Unsynced {
    /// Applies the change, or only those of its sectors that `is_left` picks.
    fn apply(&self, bytes: &mut Vec<u8>, journal: &[u8], mut is_left: impl FnMut(bool) -> bool) {
        match self {
            Self::Length(length) => {
                if is_left(false) {
                    bytes.resize(usize::try_from(*length).unwrap_or(0), 0);
                }
            }
            Self::Bytes { at, data } => {
                let (mut at, mut data) = (*at, &journal[data.clone()]);
                while !data.is_empty() {
                    let rest = usize::try_from(SECTOR - at % SECTOR).unwrap_or(1);
                    let (sector, later) = data.split_at(rest.min(data.len()));
                    if is_left(true) {
                        let from = usize::try_from(at).unwrap_or(0);
                        if bytes.len() < from + sector.len() {
                            bytes.resize(from + sector.len(), 0);
                        }
                        bytes[from..from + sector.len()].copy_from_slice(sector);
                    }
                    at += sector.len() as u64;
                    data = later;
                }
            }
        }
    }
}
