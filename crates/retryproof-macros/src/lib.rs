//! retryproof-macros
