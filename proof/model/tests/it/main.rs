// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the model: the properties hold in every state, planted bugs are found, and the README
//! shows what the transition function does.

mod checker;
mod correct;
mod names;
mod planted;
mod rules;
mod slot;
mod tables;
