// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`IdempotencyLayer`]: the guard as a `tower` layer.

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

use crate::filter::IdempotencyFilter;
use crate::policy::{AtHand, Policy};
use crate::service::IdempotencyService;

/// Guards the services that it wraps under one policy; made by [`IdempotencyFilter::guard`].
///
/// It lets pass what changes nothing, and what the router matched no route for: see
/// [`Policy::methods`] and [`Policy::with_unmatched`] (HTTP-1). Where it stands among other layers
/// decides what is stored: see the [crate's page](crate#layer-order).
#[derive(Clone)]
pub struct IdempotencyLayer {
    filter: IdempotencyFilter,
    policy: AtHand,
}

impl IdempotencyLayer {
    pub(crate) fn new(filter: IdempotencyFilter, policy: Policy) -> Self {
        Self { filter, policy: AtHand::Shared(Arc::new(policy)) }
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn filter(&self) -> &IdempotencyFilter {
        &self.filter
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService::new(inner, self.filter.clone(), self.policy.clone())
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyLayer").field("policy", &*self.policy).finish_non_exhaustive()
    }
}
