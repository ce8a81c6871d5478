//! retryproof-core
