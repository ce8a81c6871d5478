// SPDX-License-Identifier: MIT OR Apache-2.0
//! actix's own limits on bodies, lifted to the guard's: behind the middleware their 413 would be stored (HTTP-4).

use std::rc::Rc;

use actix_web::dev::{Extensions, ServiceRequest};
use actix_web::web::{Data, FormConfig, JsonConfig, PayloadConfig};

/// What actix takes where the app says nothing.
const PAYLOAD: usize = 256 << 10;
const JSON: usize = 2 << 20;
const FORM: usize = 16 << 10;

/// One container for each kind, so that one of the app's own leaves the others.
pub(crate) struct Limits {
    payload: Rc<Extensions>,
    json: Rc<Extensions>,
    form: Rc<Extensions>,
}

impl Limits {
    pub(crate) fn new(limit: usize) -> Self {
        fn alone<T: 'static>(config: T) -> Rc<Extensions> {
            let mut container = Extensions::new();
            container.insert(config);
            Rc::new(container)
        }
        Self {
            payload: alone(PayloadConfig::new(limit)),
            json: alone(JsonConfig::default().limit(limit)),
            form: alone(FormConfig::default().limit(limit)),
        }
    }

    /// For a body of that length. Nothing is done where actix's defaults will do: to add to a request's data wants the only
    /// handle on it, and a middleware outside may keep another.
    pub(crate) fn lift(&self, request: &mut ServiceRequest, length: usize) {
        fn lift<T: 'static>(request: &mut ServiceRequest, container: &Rc<Extensions>) {
            if request.app_data::<T>().is_none() && request.app_data::<Data<T>>().is_none() {
                request.add_data_container(Rc::clone(container));
            }
        }
        if length > PAYLOAD {
            lift::<PayloadConfig>(request, &self.payload);
        }
        if length > JSON {
            lift::<JsonConfig>(request, &self.json);
        }
        if length > FORM {
            lift::<FormConfig>(request, &self.form);
        }
    }
}
