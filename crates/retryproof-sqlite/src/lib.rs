//! retryproof-sqlite
