//! retryproof-duration
