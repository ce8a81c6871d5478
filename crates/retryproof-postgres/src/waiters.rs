// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Waiters`] keeps track of the calls that wait for a record, in this process and in others
//! (ACQ-4).
//!
//! The store notifies other processes with NOTIFY, but only of records for which a waiter has been
//! announced. A commit that notifies locks the server's queue of notifications. If every completion
//! sent a notification, this lock would cost two thirds of the throughput. The processes therefore
//! work as follows:
//! 1. A waiter announces the hash of its identity, reads the record, and sleeps.
//! 2. Every process that listens remembers the announcements. When a process completes or releases
//!    an announced record, it sends a notification *after* the commit, on a separate connection.
//!    Changes that happen while a message is being sent go into the next message together.
//! 3. An announcement may arrive just after the completion. A process that has finished the record
//!    in the last two seconds therefore replies immediately.
//! 4. A change by an operator sends its notification in its own statement, whether or not a waiter
//!    has been announced. Such changes are rare. The operator's process has usually just started,
//!    so it has received no announcement, and it ends right after the change.
//!
//! Waiters also poll, so a wait ends without notifications too, but later.

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

/// How long a waiter pauses between two reads of its record when no notifications arrive (ACQ-4).
pub(crate) const POLL: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
/// How long a waiter pauses between two reads when notifications arrive. Polling is then only a
/// fallback.
pub(crate) const FALLBACK_POLL: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(1));
/// How long an announcement is valid. A waiter that sleeps longer repeats its announcement before
/// the announcement expires.
const ANNOUNCED_FOR: Duration = Duration::from_secs(60);
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(20);
/// How long a process remembers that it has finished a record.
const JUST_FINISHED: Duration = Duration::from_secs(2);
/// How many finished records a process remembers, and how many messages its outbox holds.
const MAX_FINISHED: usize = 4_096;
/// How many announcements a process remembers, including repeated announcements. When one more
/// arrives, the process forgets the oldest announcement. The waiter that sent it then finds the
/// change by polling.
const MAX_ANNOUNCED: usize = 65_536;
/// The largest payload, in bytes. The server accepts payloads of less than 8,000 bytes.
const MAX_PAYLOAD: usize = 7_900;

/// A message about an identity from one process to the others.
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
    /// The hashes of the identities for which other processes have announced a waiter.
    announced: Mutex<RecentHashes>,
    /// Whether `announced` can contain hashes. While this flag is `false`, a completion or a
    /// release does not lock `announced`.
    has_announced: AtomicBool,
    /// The hashes of the identities whose records this process has finished recently.
    just_finished: Mutex<RecentHashes>,
    outbox: Mutex<Outbox>,
    /// Wakes the sending task when a message is queued or may be queued soon.
    pub(crate) outbox_changed: Notify,
    /// The id in this store's own messages. The store receives these messages too, and ignores
    /// them.
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

    /// Announces a waiter again, if its last announcement may soon expire.
    pub(crate) fn announce_again(
        &self,
        subscription: &Subscription<'_, u64>,
        announced: &Mutex<Instant>,
    ) {
        let mut announced = announced.lock();
        if announced.elapsed() >= ANNOUNCE_INTERVAL {
            *announced = Instant::now();
            self.announce(subscription);
        }
    }

    /// Returns a waiter's pauses between reads of its record, with notifications or without.
    pub(crate) fn poll(is_notified: bool) -> Backoff {
        if is_notified { FALLBACK_POLL } else { POLL }
    }

    /// Wakes this process's waiters, after a record was granted again or changed by an operator.
    pub(crate) fn notify_local(&self, id: &Identity) {
        self.registry.notify(&identity_hash(id));
    }

    /// Wakes the waiters of all processes after a completion or a release was committed.
    pub(crate) fn notify_finished(&self, id: &Identity) {
        let hash = identity_hash(id);
        self.registry.notify(&hash);
        if !self.is_listening() {
            return;
        }
        // Note the record as finished, then look for announced waiters. `on_announcement` notes the
        // waiter first and then looks for finished records. At least one of the two functions
        // therefore sees the note of the other.
        let now = Instant::now();
        self.just_finished.lock().note(hash, now);
        if self.has_announced.load(Ordering::SeqCst) && self.forget_announced(hash, now) {
            self.queue(WakeMessage::Changed, hash);
        }
    }

    /// Returns the message by which a statement wakes the waiters of all processes. The message has
    /// no sender. If the answer to the statement is lost, this process therefore handles the
    /// message too.
    pub(crate) fn message_of_change(id: &Identity) -> String {
        format!("{:016x}c{:016x}", 0, identity_hash(id))
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
                // A later version of the library might send other kinds of messages.
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
        // One reply is enough: every process receives the reply, and wakes each waiter that has
        // read its record before the record was finished. If each announcement got a reply, a
        // waiter for a record that was granted again would wake, announce itself and be woken
        // again, endlessly.
        if self.just_finished.lock().forget(hash, now) && self.forget_announced(hash, now) {
            self.queue(WakeMessage::Changed, hash);
        } else {
            // Wake the sending task, so that the task opens its connection before a message has to
            // be sent.
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
        assert!(waiter.announced.lock().is_empty(), "a store should ignore its own messages");
        holder.on_notification(&payload);
        holder.notify_finished(&id("k"));
        assert!(holder.next_payload().is_some());
        holder.notify_finished(&id("k"));
        assert!(holder.next_payload().is_none(), "sent once");
    }

    #[tokio::test(start_paused = true)]
    async fn acq_4_a_long_wait_is_announced_again() {
        let waiter = Waiters::new();
        waiter.set_listening(true);
        let (subscription, announced) = (waiter.subscribe(&id("k")), Mutex::new(Instant::now()));
        for _ in 0..3 {
            tokio::time::advance(ANNOUNCE_INTERVAL - Duration::from_millis(1)).await;
            waiter.announce_again(&subscription, &announced);
            assert!(waiter.next_payload().is_none(), "not due");
            tokio::time::advance(Duration::from_millis(1)).await;
            waiter.announce_again(&subscription, &announced);
            assert!(waiter.next_payload().is_some(), "due");
        }
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
    fn ops_4_acq_4_the_message_of_a_change_wakes_the_waiters_of_its_record() {
        let waiters = Waiters::new();
        let subscription = waiters.subscribe(&id("k"));
        let mut woken = std::pin::pin!(subscription.woken().notified());
        waiters.on_notification(&Waiters::message_of_change(&id("other")));
        assert!(!woken.as_mut().enable());
        waiters.on_notification(&Waiters::message_of_change(&id("k")));
        assert!(woken.as_mut().enable());
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
        // The 20,000 announcements above the bound must take less than ten times as long as the
        // 65,536 announcements below the bound.
        assert!(
            above < below * 10,
            "20,000 announcements above the limit took {above:?}, and the first 65,536 took {below:?}"
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
