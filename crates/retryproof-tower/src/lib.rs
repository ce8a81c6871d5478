// SPDX-License-Identifier: MIT OR Apache-2.0
#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]

mod identify;
mod layer;
mod service;

pub use identify::{Identify, IntoContext};
pub use layer::EngineLayer;
pub use service::{EngineFuture, EngineService};
