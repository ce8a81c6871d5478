//! retryproof
