// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes one logical call: sets its key once, then sends the request until an answer is final or a
//! limit is reached.

use std::sync::Arc;
use std::time::Duration;

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next};
use tokio::time::{Instant, sleep, timeout_at};

use self::builder::Builder;
use crate::answer;
use crate::backoff;
use crate::error::{CallError, ErrorKind};
use crate::key::{IdempotencyKey, InvalidKey};
use crate::problem::Problem;
use crate::report::{CallReport, GaveUp, SendOnce, WithoutKey, is_replay};
use crate::retry_after;
use crate::verdict::{self, ResponseFacts};

pub(crate) mod builder;

/// Gives each logical call one key, and retries the call with that key and the same bytes until an
/// answer is final or a limit is reached. See the [crate's page](crate).
///
/// # Cancel safety
/// Dropping a call drops the current attempt. The server may continue the work. A later call with
/// the same key then gets the result of that work.
#[derive(Debug, Clone)]
pub struct IdempotencyMiddleware {
    settings: Arc<Builder>,
}

impl Default for IdempotencyMiddleware {
    fn default() -> Self {
        Self::with(Builder::new())
    }
}

impl IdempotencyMiddleware {
    /// Returns a builder with the default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn with(settings: Builder) -> Self {
        Self { settings: Arc::new(settings) }
    }
}

/// The result of one attempt.
enum AttemptResult {
    /// The server answered. The other fields were read from the response.
    Answered {
        response: Response,
        retryable: bool,
        after: Option<Duration>,
        problem: Option<Problem>,
    },
    /// There was no answer, but another attempt can succeed.
    Failed(reqwest_middleware::Error),
    /// There was no answer in time.
    TimedOut,
    /// There was no answer, and another attempt would fail too.
    Refused {
        error: reqwest_middleware::Error,
        /// Whether this attempt is known to have sent nothing.
        unsent: bool,
    },
}

/// The state that all attempts of a call share.
struct Call<'a> {
    settings: &'a Builder,
    /// Whether the request carries a key: generated, given, or set as a header by the caller.
    has_key: bool,
    key: Option<IdempotencyKey>,
    once: bool,
    deadline: Instant,
}

#[async_trait::async_trait]
impl Middleware for IdempotencyMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        if extensions.get::<WithoutKey>().is_some() {
            return next.run(request, extensions).await;
        }
        let call = Call::prepare(&self.settings, &mut request, extensions)
            .map_err(reqwest_middleware::Error::middleware)?;
        call.make(request, extensions, next).await
    }
}

impl<'a> Call<'a> {
    /// Puts the key into the request. Refuses a body that cannot be sent twice, unless the request
    /// will be sent only once.
    fn prepare(
        settings: &'a Builder,
        request: &mut Request,
        extensions: &Extensions,
    ) -> Result<Self, CallError> {
        let once = extensions.get::<SendOnce>().is_some();
        if !once && request.body().is_some_and(|body| body.as_bytes().is_none()) {
            let way_out = "collect the body into bytes, or use `send_once()`";
            return Err(CallError::new(ErrorKind::BodyNotReplayable, way_out));
        }
        if let Some(why) = extensions.get::<InvalidKey>() {
            return Err(CallError::new(ErrorKind::InvalidKey, "").because(*why));
        }
        let mut key = extensions.get::<IdempotencyKey>().cloned();
        // A key is generated if the method is not safe and the caller has set neither a key nor the
        // header.
        let by_hand = request.headers().contains_key(&settings.header);
        if key.is_none() && !by_hand && !request.method().is_safe() {
            if settings.given_keys_only {
                let way_out = "set a key with `idempotency_key(..)`";
                return Err(CallError::new(ErrorKind::KeyMissing, way_out));
            }
            let drawn = IdempotencyKey::random();
            key = Some(drawn.map_err(|why| CallError::new(ErrorKind::NoRandom, "").because(why))?);
        }
        if let Some(line) = key.as_ref().and_then(|key| key.to_header(settings.quoted_keys)) {
            request.headers_mut().insert(settings.header.clone(), line);
        }
        let has_key = key.is_some() || by_hand;
        Ok(Self { settings, has_key, key, once, deadline: Instant::now() + settings.deadline })
    }

    async fn make(
        self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let mut kept = Some(request);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let copy = if self.once { None } else { kept.as_ref().and_then(Request::try_clone) };
            // With `send_once()`, the only attempt takes the request itself. Otherwise each attempt
            // sends a copy.
            let Some(request) = copy.or_else(|| kept.take()) else {
                return Err(self.gave_up(attempts - 1, "the request cannot be sent again", None));
            };
            let attempt = self.attempt(request, extensions, next.clone()).await;
            let pause = self.pause(attempts, &attempt);
            match (attempt, pause) {
                (AttemptResult::Refused { error, unsent: true }, _) if attempts == 1 => {
                    return Err(error);
                }
                (AttemptResult::Refused { error, .. }, _) => {
                    let detail = "the last attempt failed, and another one would fail too";
                    return Err(self.gave_up(attempts, detail, Some(error)));
                }
                (AttemptResult::Answered { response, retryable, problem, .. }, Err(ran_out)) => {
                    return Ok(self.report(
                        response,
                        attempts,
                        retryable.then_some(ran_out),
                        problem,
                    ));
                }
                (AttemptResult::Answered { response, retryable: false, problem, .. }, Ok(_)) => {
                    return Ok(self.report(response, attempts, None, problem));
                }
                (AttemptResult::Failed(error), Err(ran_out)) => {
                    let detail = format!("the last attempt failed, {}", said(ran_out));
                    return Err(self.gave_up(attempts, detail, Some(error)));
                }
                (AttemptResult::TimedOut, Err(ran_out)) => {
                    let detail = format!("the last attempt timed out, {}", said(ran_out));
                    return Err(self.gave_up(attempts, detail, None));
                }
                (attempt, Ok(pause)) => {
                    tracing::debug!(
                        attempts,
                        ?pause,
                        why = attempt.why(),
                        "an attempt failed and will be repeated"
                    );
                    drop(attempt);
                    sleep(pause).await;
                }
            }
        }
    }

    async fn attempt(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> AttemptResult {
        let (method, origin) = (request.method().clone(), request.url().origin());
        let answered = async {
            let response = next.run(request, extensions).await?;
            if self.has_key && response.url().origin() != origin {
                tracing::warn!(
                    "a redirect sent a request and its idempotency key to a different origin; \
                     build the client with `redirect(same_origin_redirects())`"
                );
            }
            // For a request without a key, collect the body only if the answer is a problem
            // document, because any other answer can be a large download.
            let wanted = self.has_key || crate::problem::is_problem(response.headers());
            if wanted && answer::is_holdable(&response, &method, self.settings.held_bytes) {
                return Ok(answer::hold(response, self.settings.held_bytes).await?);
            }
            Ok((response, None))
        };
        let limit = self.deadline.min(Instant::now() + self.settings.attempt_timeout);
        let (response, problem) = match timeout_at(limit, answered).await {
            Err(_) => return AttemptResult::TimedOut,
            Ok(Err(error)) if verdict::is_passing(&error) => return AttemptResult::Failed(error),
            Ok(Err(error)) => {
                let unsent = verdict::cannot_be_sent(&error, |url| url.origin() == origin);
                return AttemptResult::Refused { error, unsent };
            }
            Ok(Ok(answered)) => answered,
        };
        let headers = response.headers();
        let after = retry_after::read(headers, || (self.settings.wall_clock)());
        let retryable = verdict::is_retryable(ResponseFacts {
            status: response.status(),
            replayed: is_replay(headers),
            problem: problem.as_ref(),
            retry_after: after.is_some(),
        });
        AttemptResult::Answered { response, retryable, after, problem }
    }

    /// Returns how long to wait before the next attempt, or the limit that rules out another
    /// attempt.
    fn pause(&self, attempts: u32, attempt: &AttemptResult) -> Result<Duration, GaveUp> {
        let settings = self.settings;
        if self.once {
            return Err(GaveUp::SentOnce);
        }
        if attempts >= settings.attempts {
            return Err(GaveUp::Attempts);
        }
        let asked = match attempt {
            AttemptResult::Answered { after, .. } => after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        // Add a random pause to the server's `Retry-After`. Otherwise, clients that were refused at
        // the same time would also retry at the same time.
        let ceiling = backoff::ceiling(settings.backoff_base, settings.backoff_cap, attempts);
        let pause = asked.saturating_add(backoff::jitter(ceiling, (settings.bits)()));
        let left = self.deadline.saturating_duration_since(Instant::now());
        if pause < left { Ok(pause) } else { Err(GaveUp::Deadline) }
    }

    fn report(
        self,
        mut response: Response,
        attempts: u32,
        gave_up: Option<GaveUp>,
        problem: Option<Problem>,
    ) -> Response {
        let replayed = is_replay(response.headers());
        let code = problem.and_then(|problem| problem.code);
        response.extensions_mut().insert(CallReport {
            attempts,
            replayed,
            gave_up,
            code,
            key: self.key,
        });
        response
    }

    fn gave_up(
        self,
        attempts: u32,
        detail: impl Into<String>,
        source: Option<reqwest_middleware::Error>,
    ) -> reqwest_middleware::Error {
        let mut error = CallError::new(ErrorKind::GaveUp, detail).after(attempts, self.key);
        if let Some(source) = source {
            error = error.because(without_password(source));
        }
        reqwest_middleware::Error::middleware(error)
    }
}

/// Removes the user and the password from the URL that the error shows. reqwest removes them from
/// the URL of a request builder, but not from that of a finished request.
fn without_password(mut error: reqwest_middleware::Error) -> reqwest_middleware::Error {
    if let reqwest_middleware::Error::Reqwest(error) = &mut error
        && let Some(url) = error.url_mut()
    {
        // Both fail only for URLs without a host, which have no password.
        let _ = url.set_password(None);
        let _ = url.set_username("");
    }
    error
}

impl AttemptResult {
    /// Returns why another attempt follows, as text for the log. The text leaves out the URL,
    /// because the URL's query can contain private data.
    fn why(&self) -> &str {
        match self {
            Self::Answered { response, .. } => {
                response.status().canonical_reason().unwrap_or("an answer")
            }
            Self::Failed(error) if error.is_connect() => "no connection",
            Self::Failed(error) if error.is_timeout() => "no answer in time",
            Self::Failed(_) | Self::Refused { .. } => "the connection broke",
            Self::TimedOut => "no answer in time",
        }
    }
}

fn said(ran_out: GaveUp) -> &'static str {
    match ran_out {
        GaveUp::Attempts => "and no attempts are left",
        GaveUp::Deadline => "and no time is left",
        GaveUp::SentOnce => "and the request's body could be sent only once",
    }
}
