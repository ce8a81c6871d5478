// SPDX-License-Identifier: MIT OR Apache-2.0
//! Raises actix's body limits to the guard's limit. Otherwise an extractor could refuse a body over
//! actix's limit, and the guard would store the resulting 413 (HTTP-4).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

use actix_web::dev::{Extensions, Payload, ServiceRequest};
use actix_web::web::{Data, FormConfig, JsonConfig, PayloadConfig};
use actix_web::{HttpMessage as _, HttpRequest};

/// actix's default limits, in bytes.
const PAYLOAD: usize = 256 << 10;
const JSON: usize = 2 << 20;
const FORM: usize = 16 << 10;

/// Each kind of limit has its own container, so that the guard can raise one kind even if the app
/// has set another.
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

    /// Like [`lift`](Self::lift), but takes a request without its payload.
    pub(crate) fn lifted(&self, request: HttpRequest, length: usize) -> HttpRequest {
        if length <= FORM {
            return request;
        }
        let mut request = ServiceRequest::from_parts(request, Payload::None);
        self.lift(&mut request, length);
        request.into_parts().0
    }

    /// Raises the limits that would refuse a body of `length` bytes, unless the app has set them.
    /// Data can be added to a request only while the request has a single handle. If an outer
    /// middleware holds another handle, the limits stay unchanged.
    fn lift(&self, request: &mut ServiceRequest, length: usize) {
        fn lift<T: 'static>(request: &mut ServiceRequest, container: &Rc<Extensions>) {
            if request.app_data::<T>().is_some() || request.app_data::<Data<T>>().is_some() {
                return;
            }
            // If another handle to the request exists, `add_data_container` panics before it
            // changes anything. actix offers no other way to check for another handle.
            let added =
                catch_unwind(AssertUnwindSafe(|| request.add_data_container(Rc::clone(container))));
            if added.is_err() {
                static SAID: Once = Once::new();
                SAID.call_once(|| {
                    tracing::warn!(
                        "the guard could not raise actix-web's own body limits for a request, \
                         because an outer middleware holds a clone of the request; set the limits \
                         yourself, for example with `web::PayloadConfig` (logged once)"
                    );
                });
            }
        }
        if length > PAYLOAD {
            lift::<PayloadConfig>(request, &self.payload);
        }
        if length > JSON {
            lift::<JsonConfig>(request, &self.json);
        }
        if length > FORM && is_form(request) {
            lift::<FormConfig>(request, &self.form);
        }
    }
}

/// Whether the request's content type is a form. `web::Form` refuses every other type, whatever the
/// body's length.
fn is_form(request: &ServiceRequest) -> bool {
    request.content_type().eq_ignore_ascii_case("application/x-www-form-urlencoded")
}
