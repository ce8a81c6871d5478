// SPDX-License-Identifier: MIT OR Apache-2.0
//! actix's own limits on bodies, lifted to the guard's: behind the middleware their 413 would be stored (HTTP-4).

use std::rc::Rc;

use actix_web::dev::{Extensions, ServiceRequest};
use actix_web::web::{Data, FormConfig, JsonConfig, PayloadConfig};

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

    pub(crate) fn lift(&self, request: &mut ServiceRequest) {
        fn lift<T: 'static>(request: &mut ServiceRequest, container: &Rc<Extensions>) {
            if request.app_data::<T>().is_none() && request.app_data::<Data<T>>().is_none() {
                request.add_data_container(Rc::clone(container));
            }
        }
        lift::<PayloadConfig>(request, &self.payload);
        lift::<JsonConfig>(request, &self.json);
        lift::<FormConfig>(request, &self.form);
    }
}
