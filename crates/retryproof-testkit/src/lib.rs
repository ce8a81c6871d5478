//! retryproof-testkit
