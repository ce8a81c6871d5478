// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model, checked: what is right holds in every state, what is planted is found, and the README
//! shows what the function does.

mod checker;
mod correct;
mod names;
mod planted;
mod rules;
mod slot;
mod tables;
