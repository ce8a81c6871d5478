// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Error`]: one opaque type with a kind, an operation, a masked identity and a source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

/// The result of a call to the engine or a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type BoxedSource = Box<dyn StdError + Send + Sync + 'static>;

/// The class of an error, by which a caller can decide what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A scope, key, duration or other argument is outside its bounds (ID-3, CTX-2). The store was
    /// not called.
    Invalid,
    /// The store could not be reached, did not answer in time, or cannot carry out the call at the
    /// moment (STO-5). Among the errors of a store, only this one is worth a retry.
    Unavailable,
    /// The engine is shutting down and grants no more leases (RUN-5).
    ShuttingDown,
    /// `max-running` actions are already running (RUN-5).
    TooBusy,
    /// A stored record cannot be read. Nothing ran and nothing was deleted (CMP-8).
    Corrupt,
    /// A configuration value is missing, unknown or out of range (CFG-1), or the server rejects it,
    /// for example a wrong password.
    Config,
    /// The store, or this way of calling it, does not support the operation.
    Unsupported,
    /// The store's tables are missing or have a different version (STO-3).
    Schema,
    /// The store is full (STO-1). It refuses new keys. The engine repeats the calls of holders (CMP-3).
    Full,
    /// The value is larger than the store accepts (CMP-9).
    TooLarge,
    /// A value could not be encoded, or a stored value could not be decoded into the requested
    /// type.
    Codec,
    /// The store failed for a reason that a retry does not fix. For example, the store is
    /// read-only, a privilege is missing, or there is a bug.
    Unexpected,
}

impl ErrorKind {
    fn text(self) -> &'static str {
        match self {
            Self::Invalid => "invalid argument",
            Self::Unavailable => "store unavailable",
            Self::ShuttingDown => "shutting down",
            Self::TooBusy => "too busy",
            Self::Corrupt => "stored record unreadable",
            Self::Config => "invalid configuration",
            Self::Unsupported => "unsupported",
            Self::Schema => "store schema missing or of a different version",
            Self::Full => "store full",
            Self::TooLarge => "value too large for the store",
            Self::Codec => "value cannot be encoded or decoded",
            Self::Unexpected => "unexpected store error",
        }
    }
}

/// An error of the engine or of a store.
///
/// An error prints its kind, the operation, the masked identity (ID-4) and some short context, but
/// never a key, a body or a password. If a database driver reported an error, the driver's error is
/// the [`source`](StdError::source).
///
/// ```
/// use retryproof_core::{Error, ErrorKind, Identity};
///
/// let error = Error::unavailable("no answer within 5 s")
///     .during("acquire")
///     .for_identity(&Identity::of("payments", "order-17")?);
/// assert_eq!(error.kind(), ErrorKind::Unavailable);
/// assert!(error.is_retryable());
/// assert!(error.to_string().starts_with("store unavailable during acquire of payments#"));
/// # Ok::<(), Error>(())
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    operation: Option<&'static str>,
    identity: Option<String>,
    about_key: bool,
    context: Vec<(&'static str, String)>,
    source: Option<BoxedSource>,
}

// `#[cold]` keeps the code that builds errors out of the hot path.
impl Error {
    /// Creates an error of `kind`. `message` says what happened and how to fix it, without keys,
    /// bodies or passwords.
    #[must_use]
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            operation: None,
            identity: None,
            about_key: false,
            context: Vec::new(),
            source: None,
        }))
    }

    /// Creates an error of the kind [`ErrorKind::Unavailable`].
    #[must_use]
    #[cold]
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// Creates an error of the kind [`ErrorKind::Corrupt`] (CMP-8).
    #[must_use]
    #[cold]
    pub fn corrupt(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// Sets the operation, unless the error already has one. The innermost operation is the most
    /// precise.
    #[must_use]
    #[cold]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Sets the identity, unless the error already has one. `masked` returns the identity's masked
    /// form, because no key may appear in an error (ID-4).
    pub(crate) fn about(mut self, masked: impl FnOnce() -> String) -> Self {
        self.0.identity.get_or_insert_with(masked);
        self
    }

    /// Adds one short `name = value` pair.
    #[must_use]
    #[cold]
    pub fn with(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Adds the underlying error.
    #[must_use]
    #[cold]
    pub fn because(mut self, source: impl Into<BoxedSource>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Marks the error as caused by the key. A key is data, so such an error is not a mistake in
    /// the program.
    #[must_use]
    #[cold]
    pub(crate) fn about_key(mut self) -> Self {
        self.0.about_key = true;
        self
    }

    /// Whether the key caused the error.
    pub(crate) fn is_about_key(&self) -> bool {
        self.0.about_key
    }

    /// Returns the class of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the operation that failed, for example `"acquire"`, `"peek"` or `"complete"`. `None`
    /// if the error does not come from an operation.
    #[must_use]
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// Whether the same call, unchanged, can succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Unavailable | ErrorKind::ShuttingDown | ErrorKind::TooBusy)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        f.write_str(inner.kind.text())?;
        if let Some(operation) = inner.operation {
            write!(f, " during {operation}")?;
        }
        if let Some(identity) = &inner.identity {
            write!(f, " of {identity}")?;
        }
        write!(f, ": {}", inner.message)?;
        for (at, (name, value)) in inner.context.iter().enumerate() {
            write!(f, "{}{name} = {value}", if at == 0 { " (" } else { ", " })?;
        }
        if !inner.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Error");
        s.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(operation) = self.0.operation {
            s.field("operation", &operation);
        }
        if let Some(identity) = &self.0.identity {
            s.field("identity", identity);
        }
        if !self.0.context.is_empty() {
            s.field("context", &self.0.context);
        }
        if let Some(source) = &self.0.source {
            s.field("source", source);
        }
        s.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}
