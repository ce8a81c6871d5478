// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`MessageCall`]: the key of a message, and the context of the call that handles it.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::{Poison, Verdict, body_fingerprint, verdict_of};
use crate::context::{ContextBuilder, IdempotencyContext, SubjectName};
use crate::error::Result;
use crate::identity::{Identity, IdentitySecret, Key, Scope};
use crate::panics::catch_panic;

/// A message of any broker, as [`guarded`](super::guarded) sees it. The deliveries of this
/// library's listeners implement this trait. To use `guarded` with another broker, implement the
/// trait for that broker's deliveries.
pub trait AnyDelivery: Clone + Send + 'static {
    /// Returns the body.
    fn payload(&self) -> &[u8];

    /// Returns the context of the call that handles the message.
    ///
    /// # Errors
    /// [`Poison::NoKey`], [`Poison::BadKey`].
    fn context(&self) -> Result<IdempotencyContext, Poison>;
}

/// The program's options for the calls that handle messages. By default, the scope's lease and ttl
/// apply, the wait timeout is zero (LST-1), and the body is fingerprinted (FP-1).
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MessageOptions {
    /// Same as [`ContextBuilder::ttl`].
    pub ttl: Option<Duration>,
    /// Same as [`ContextBuilder::lease`].
    pub lease: Option<Duration>,
    /// Same as [`ContextBuilder::wait_timeout`].
    pub wait_timeout: Duration,
    /// Whether a message with a known key counts as a redelivery even if its body differs.
    pub any_body: bool,
    /// The identity secret of the handler's store, to which the listener has no access. With the
    /// secret, the listener's logs print the same digests as the store's logs (ID-5).
    pub identity_secret: Option<IdentitySecret>,
}

/// The scope and the checked options of a listener.
#[derive(Debug, Clone)]
pub struct MessageSettings {
    scope: Scope,
    options: MessageOptions,
}

impl MessageSettings {
    /// Checks the options and creates the settings.
    ///
    /// # Errors
    /// `Invalid` for a duration out of range (CTX-2).
    pub fn new(scope: Scope, options: MessageOptions) -> Result<Self> {
        let settings = Self { scope, options };
        settings.context_builder("any", b"").build()?;
        Ok(settings)
    }

    /// Returns the scope.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    fn context_builder(&self, key: &str, payload: &[u8]) -> ContextBuilder {
        let MessageOptions { ttl, lease, wait_timeout, any_body, .. } = self.options;
        let mut builder = IdempotencyContext::builder(&self.scope, key).wait_timeout(wait_timeout);
        if let Some(ttl) = ttl {
            builder = builder.ttl(ttl);
        }
        if let Some(lease) = lease {
            builder = builder.lease(lease);
        }
        if any_body { builder } else { builder.fingerprint(body_fingerprint(payload)) }
    }
}

/// The key of one message, and the contexts built from it.
#[derive(Debug, Clone)]
pub struct MessageCall {
    settings: Arc<MessageSettings>,
    identity: Result<Identity, Poison>,
    subject: Option<SubjectName>,
}

impl MessageCall {
    /// Finds the key of a message with `find_key`, the program's key function. If `find_key`
    /// panics, the key counts as bad, so the panic affects only this message (LST-2).
    pub fn new(settings: Arc<MessageSettings>, find_key: impl FnOnce() -> Option<String>) -> Self {
        let key = match catch_panic(find_key) {
            Ok(Some(key)) => Key::new(key).map_err(|_| Poison::BadKey),
            Ok(None) => Err(Poison::NoKey),
            Err(_) => Err(Poison::BadKey),
        };
        let identity = key.map(|key| {
            let id = Identity::new(settings.scope.clone(), key);
            match &settings.options.identity_secret {
                Some(secret) => id.hashed(secret),
                None => id,
            }
        });
        Self { settings, identity, subject: None }
    }

    /// Finds the data subject of the message with `find_subject`, the program's function: the
    /// person or tenant whom the result is about (SEAL-3). If `find_subject` returns `None`, the
    /// result gets the key that the calls of the scope share. If `find_subject` panics, the message
    /// counts as unreadable, because its result could not later be erased along with the subject's
    /// other results.
    #[must_use]
    pub fn about(mut self, find_subject: impl FnOnce() -> Option<String>) -> Self {
        match catch_panic(find_subject) {
            Ok(subject) => self.subject = subject.map(|name| SubjectName(name.into())),
            Err(_) => self.identity = self.identity.and(Err(Poison::Unreadable)),
        }
        self
    }

    /// Returns the key.
    ///
    /// # Errors
    /// [`Poison::NoKey`], [`Poison::BadKey`] (ID-3); [`Poison::Unreadable`] if the function of
    /// [`about`](Self::about) panicked.
    pub fn key(&self) -> Result<&Key, Poison> {
        self.identity.as_ref().map(Identity::key).map_err(|poison| *poison)
    }

    /// Returns the context of the call that handles the message.
    ///
    /// # Errors
    /// Same as [`key`](Self::key).
    pub fn context(&self, payload: &[u8]) -> Result<IdempotencyContext, Poison> {
        // `build` cannot fail, because the key and the settings have already been checked.
        self.context_builder(payload)?.build().map_err(|_| Poison::BadKey)
    }

    /// Like [`context`](Self::context), but returns the builder.
    ///
    /// # Errors
    /// Same as [`key`](Self::key).
    pub fn context_builder(&self, payload: &[u8]) -> Result<ContextBuilder, Poison> {
        let builder = self.settings.context_builder(self.key()?.expose(), payload);
        Ok(match &self.subject {
            Some(SubjectName(subject)) => builder.subject(Arc::clone(subject)),
            None => builder,
        })
    }

    /// Runs the handler if the message has a usable key. If the handler panics, the message still
    /// gets a verdict.
    pub async fn handle<Fut>(&self, handler: impl FnOnce() -> Fut) -> Verdict
    where
        Fut: Future<Output = Result<Verdict, Poison>>,
    {
        match &self.identity {
            Ok(_) => verdict_of(async { handler().await.unwrap_or_else(Verdict::poison) }).await,
            Err(poison) => Verdict::poison(*poison),
        }
    }

    /// Returns the identity for logs, or `None` if the message has no usable key.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref().ok()
    }
}

/// Decodes a body from JSON.
///
/// # Errors
/// [`Poison::Unreadable`]. The error has no details, because they would quote the body (ID-4).
pub fn json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Poison> {
    serde_json::from_slice(payload).map_err(|_| Poison::Unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(options: MessageOptions, find_key: impl FnOnce() -> Option<String>) -> MessageCall {
        let scope = Scope::new("orders.paid").expect("the scope should be valid");
        let settings = MessageSettings::new(scope, options).expect("the options should be valid");
        MessageCall::new(Arc::new(settings), find_key)
    }

    #[test]
    fn lst_2_a_key_function_that_panics_or_finds_no_valid_key_affects_its_message_only() {
        let call = |find_key: fn() -> Option<String>| call(MessageOptions::default(), find_key);
        assert_eq!(call(|| None).context(b"").map(drop), Err(Poison::NoKey));
        assert_eq!(call(|| Some(" ".into())).context(b"").map(drop), Err(Poison::BadKey));
        let panicked = call(|| panic!("planted"));
        assert_eq!(panicked.key().map(drop), Err(Poison::BadKey));
        assert!(panicked.identity().is_none());
    }

    #[test]
    fn seal_3_a_function_names_the_subject_of_a_message() {
        let about = |find: fn() -> Option<String>| {
            call(MessageOptions::default(), || Some("o-1".into())).about(find)
        };
        let named = about(|| Some("canary".into()));
        assert!(!format!("{named:?}").contains("canary"), "{named:?}");
        assert_eq!(named.context(b"").expect("a context").subject(), Some("canary"));
        assert_eq!(about(|| None).context(b"").expect("a context").subject(), None);
        // If its subject cannot be read, the message is refused, because its result could not later
        // be erased along with the subject's other results.
        let panicked = about(|| panic!("planted"));
        assert_eq!(panicked.context(b"").map(drop), Err(Poison::Unreadable));
        let no_key = call(MessageOptions::default(), || None).about(|| panic!("planted"));
        assert_eq!(no_key.key().map(drop), Err(Poison::NoKey));
    }

    #[test]
    fn id_5_the_listener_prints_the_digest_of_the_store() {
        let secret = IdentitySecret::new("s".repeat(32)).expect("the secret should be long enough");
        let options =
            MessageOptions { identity_secret: Some(secret.clone()), ..MessageOptions::default() };
        let call = call(options, || Some("o-1".into()));
        let shown = call.identity().expect("the key should be valid").to_string();
        let id = Identity::of("orders.paid", "o-1").expect("the identity should be valid");
        assert_eq!(shown, id.stored(&secret).to_string());
        assert!(format!("{call:?}").contains(&shown), "{call:?}");
        assert_eq!(call.key().map(Key::expose), Ok("o-1"));
    }

    #[test]
    fn fp_1_the_body_is_part_of_the_context_unless_any_body_will_do() {
        let fingerprint = |any_body, body: &[u8]| {
            let options = MessageOptions { any_body, ..MessageOptions::default() };
            let context = call(options, || Some("o-1".into())).context(body);
            context.expect("the context should build").fingerprint().copied()
        };
        assert_ne!(fingerprint(false, b"1 EUR"), fingerprint(false, b"9 EUR"));
        assert_eq!(fingerprint(true, b"1 EUR"), None);
    }

    #[test]
    fn ctx_2_durations_out_of_bounds_are_refused() {
        let lease = Some(Duration::ZERO);
        let options = MessageOptions { lease, ..MessageOptions::default() };
        assert!(
            MessageSettings::new(Scope::new("s").expect("the scope should be valid"), options)
                .is_err()
        );
    }
}
