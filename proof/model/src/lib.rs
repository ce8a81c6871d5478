//! The protocol model.
