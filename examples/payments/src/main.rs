//! payments

fn main() {}
