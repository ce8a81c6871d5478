//! retryproof-http
