//! lab

fn main() {}
