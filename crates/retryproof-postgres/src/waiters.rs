// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`] knows which calls wait for which record, in this process and in others (ACQ-4).
//!
//! Other processes are notified with NOTIFY, and only of records for which a waiter has been
//! announced. The server locks its queue of notifications during a commit, which would cost two
//! thirds of the throughput if every completion sent a notification. So:
//! 1. A waiter announces the hash of its identity, reads the record, and sleeps.
//! 2. Every process that listens remembers the announcements. When a process completes or releases
//!    an announced record, it sends a notification *after* the commit, on a separate connection.
//!    Changes that happen while a message is being sent share the next message.
//! 3. An announcement may arrive just after the completion. A process that has finished the record
//!    in the last two seconds therefore replies immediately.
//!
//! Waiters also poll, so without notifications a wait still ends, only later.

pub(crate) mod notify;
pub(crate) mod recent;

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use retryproof_core::{Backoff, Identity, OwnerId};
use retryproof_store_kit::{Subscription, WaiterRegistry};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::record::hash::identity_hash;

use recent::RecentHashes;

/// The pauses between a waiter's reads of its record while no notifications arrive (ACQ-4).
const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
/// The pauses while notifications arrive, when polling is only a fallback.
const FALLBACK_POLL: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(1));
/// How long an announcement is valid. A waiter that sleeps longer repeats the announcement before
/// it expires.
const ANNOUNCED_FOR: Duration = Duration::from_secs(60);
pub(crate) const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a record counts as just finished, and how many such records are remembered.
const JUST_FINISHED: Duration = Duration::from_secs(2);
const MAX_FINISHED: usize = 4_096;
/// How many announcements are remembered. Beyond that, the oldest are forgotten, and their waiters
/// find the change by polling.
const MAX_ANNOUNCED: usize = 65_536;
/// The server accepts payloads of less than 8,000 bytes.
const MAX_PAYLOAD: usize = 7_900;

/// What one process sends to the others about an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WakeMessage {
    /// A call waits for the record.
    Waiting,
    /// The record may have changed.
    Changed,
}

/// The waiters of one store in this process, and the messages to other processes.
pub(crate) struct Waiters {
    /// The waiters, by the hash of the identity.
    registry: WaiterRegistry<u64>,
    /// Whether notifications arrive.
    listening: AtomicBool,
    announced: Mutex<RecentHashes>,
    /// Whether there are announcements. While there are none, a completion does not lock
    /// `announced`.
    has_announced: AtomicBool,
    just_finished: Mutex<RecentHashes>,
    outbox: Mutex<Outbox>,
    /// Notified when there is something to send, or soon will be.
    pub(crate) outbox_changed: Notify,
    /// Identifies this store's own messages, which the store also receives and ignores.
    sender_id: u64,
}

/// The messages to be sent, without duplicates.
#[derive(Default)]
struct Outbox {
    order: VecDeque<(WakeMessage, u64)>,
    queued: HashSet<(WakeMessage, u64)>,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *OwnerId::new().as_bytes();
        Self {
            registry: WaiterRegistry::new(),
            listening: AtomicBool::new(false),
            announced: Mutex::new(RecentHashes::new(ANNOUNCED_FOR, MAX_ANNOUNCED)),
            has_announced: AtomicBool::new(false),
            just_finished: Mutex::new(RecentHashes::new(JUST_FINISHED, MAX_FINISHED)),
            outbox: Mutex::default(),
            outbox_changed: Notify::new(),
            sender_id: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        }
    }

    /// Adds a waiter in this process. Call this before reading the record.
    pub(crate) fn subscribe(&self, id: &Identity) -> Subscription<'_, u64> {
        self.registry.subscribe(identity_hash(id))
    }

    /// Announces a waiter to the other processes.
    pub(crate) fn announce(&self, subscription: &Subscription<'_, u64>) {
        if self.is_listening() {
            self.queue(WakeMessage::Waiting, *subscription.key());
        }
    }

    /// How often a waiter reads its record, with notifications or without.
    pub(crate) fn poll(is_notified: bool) -> Backoff {
        if is_notified { FALLBACK_POLL } else { POLL }
    }

    /// Wakes this process's waiters after a record was granted again.
    pub(crate) fn notify_granted(&self, id: &Identity) {
        self.registry.notify(&identity_hash(id));
    }

    /// Wakes the waiters of all processes after a completion or a release was committed.
    pub(crate) fn notify_finished(&self, id: &Identity) {
        let hash = identity_hash(id);
        self.registry.notify(&hash);
        if !self.is_listening() {
            return;
        }
        // Note the record as finished, then look for announced waiters. `on_announcement`
        // uses the opposite order, so at least one of the two functions sees what the other has
        // noted.
        let now = Instant::now();
        self.just_finished.lock().note(hash, now);
        if self.has_announced.load(Ordering::SeqCst) && self.forget_announced(hash, now) {
            self.queue(WakeMessage::Changed, hash);
        }
    }

    fn forget_announced(&self, hash: u64, now: Instant) -> bool {
        let mut announced = self.announced.lock();
        let was_announced = announced.forget(hash, now);
        self.has_announced.store(!announced.is_empty(), Ordering::SeqCst);
        was_announced
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Sets whether notifications arrive from now on. Earlier notifications may have been missed,
    /// so all waiters are woken to read their records.
    pub(crate) fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.registry.notify_all();
    }

    /// Handles a message from another process.
    pub(crate) fn on_notification(&self, payload: &str) {
        let Some((sender, messages)) = payload.as_bytes().split_at_checked(16) else { return };
        if parse_hex(sender) == Some(self.sender_id) {
            return;
        }
        for message in messages.chunks(17) {
            let Some((kind, hash)) = message.split_first() else { continue };
            match (kind, parse_hex(hash)) {
                (b'c', Some(hash)) => self.registry.notify(&hash),
                (b'w', Some(hash)) => self.on_announcement(hash),
                // A later version of the library may send other kinds of messages.
                _ => {}
            }
        }
    }

    fn on_announcement(&self, hash: u64) {
        let now = Instant::now();
        {
            let mut announced = self.announced.lock();
            announced.note(hash, now);
            self.has_announced.store(true, Ordering::SeqCst);
        }
        if self.just_finished.lock().has(hash, now) && self.forget_announced(hash, now) {
            self.queue(WakeMessage::Changed, hash);
        } else {
            // Wake the sending task, so that it opens its connection before a message has to be
            // sent.
            self.outbox_changed.notify_one();
        }
    }

    fn queue(&self, message: WakeMessage, hash: u64) {
        let mut outbox = self.outbox.lock();
        if outbox.order.len() < MAX_FINISHED && outbox.queued.insert((message, hash)) {
            outbox.order.push_back((message, hash));
        }
        drop(outbox);
        self.outbox_changed.notify_one();
    }

    /// Takes the next payload from the outbox; `None` if the outbox is empty. The payload consists
    /// of hex digits and letters only.
    pub(crate) fn next_payload(&self) -> Option<String> {
        let mut outbox = self.outbox.lock();
        if outbox.order.is_empty() {
            return None;
        }
        let count = outbox.order.len().min((MAX_PAYLOAD - 16) / 17);
        let mut text = format!("{:016x}", self.sender_id);
        for _ in 0..count {
            let Some((message, hash)) = outbox.order.pop_front() else { break };
            outbox.queued.remove(&(message, hash));
            let kind = match message {
                WakeMessage::Waiting => 'w',
                WakeMessage::Changed => 'c',
            };
            text.push_str(&format!("{kind}{hash:016x}"));
        }
        Some(text)
    }
}

fn parse_hex(hex: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(hex).ok().filter(|text| text.len() == 16)?;
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: &str) -> Identity {
        Identity::of("wake", key).unwrap()
    }

    fn pair() -> (Waiters, Waiters) {
        let (a, b) = (Waiters::new(), Waiters::new());
        a.set_listening(true);
        b.set_listening(true);
        (a, b)
    }

    #[test]
    fn acq_4_only_announced_records_are_notified() {
        let (holder, waiter) = pair();
        holder.notify_finished(&id("no waiters"));
        assert!(holder.next_payload().is_none());
        let subscription = waiter.subscribe(&id("k"));
        waiter.announce(&subscription);
        let payload = waiter.next_payload().unwrap();
        assert_eq!(payload.len(), 33);
        waiter.on_notification(&payload);
        assert!(waiter.announced.lock().is_empty(), "a store ignores its own messages");
        holder.on_notification(&payload);
        holder.notify_finished(&id("k"));
        assert!(holder.next_payload().is_some());
        holder.notify_finished(&id("k"));
        assert!(holder.next_payload().is_none(), "sent once");
    }

    #[test]
    fn acq_4_a_late_announcement_is_answered_at_once() {
        let (holder, waiter) = pair();
        holder.notify_finished(&id("k"));
        waiter.announce(&waiter.subscribe(&id("k")));
        holder.on_notification(&waiter.next_payload().unwrap());
        assert!(holder.next_payload().is_some());
    }

    #[test]
    fn acq_4_long_messages_are_cut() {
        let (a, b) = pair();
        for at in 0..1_000 {
            a.announce(&a.subscribe(&id(&at.to_string())));
        }
        let mut messages = 0;
        while let Some(text) = a.next_payload() {
            assert!(text.len() < 8_000);
            b.on_notification(&text);
            messages += 1;
        }
        assert_eq!((messages, b.announced.lock().len()), (3, 1_000));
    }

    /// Announces a waiter for each key. Returns the payloads, each with up to 400 announcements.
    fn announcements(waiter: &Waiters, keys: std::ops::Range<usize>) -> Vec<String> {
        let mut messages = Vec::new();
        for at in keys {
            waiter.announce(&waiter.subscribe(&id(&at.to_string())));
            if at % 400 == 399 {
                messages.extend(std::iter::from_fn(|| waiter.next_payload()));
            }
        }
        messages.extend(std::iter::from_fn(|| waiter.next_payload()));
        messages
    }

    #[test]
    fn acq_4_above_the_bound_the_newest_announcements_hold_and_cost_no_more() {
        let (holder, waiter) = pair();
        let below = announcements(&waiter, 0..MAX_ANNOUNCED);
        let above = announcements(&waiter, MAX_ANNOUNCED..MAX_ANNOUNCED + 20_000);
        let receive = |messages: &[String]| {
            let began = Instant::now();
            messages.iter().for_each(|message| holder.on_notification(message));
            began.elapsed()
        };
        let (below, above) = (receive(&below), receive(&above));
        assert_eq!(holder.announced.lock().len(), MAX_ANNOUNCED);
        // Fewer than a third as many announcements arrive above the bound as below it, but they may
        // take ten times as long.
        assert!(
            above < below * 10,
            "{above:?} for 20,000 announcements, {below:?} for the first 65,536"
        );
        holder.notify_finished(&id(&(MAX_ANNOUNCED + 19_999).to_string()));
        assert!(holder.next_payload().is_some(), "the newest is notified");
        holder.notify_finished(&id("0"));
        assert!(holder.next_payload().is_none(), "the oldest was forgotten");
    }

    #[test]
    fn acq_4_foreign_messages_are_ignored() {
        let waiters = Waiters::new();
        for text in [
            "",
            "é",
            "0123456789abcdef",
            "0123456789abcdefw",
            "0123456789abcdefwxyz",
            "0123456789abcdéf",
        ] {
            waiters.on_notification(text);
        }
        assert!(waiters.announced.lock().is_empty());
    }
}
