// SPDX-License-Identifier: MIT OR Apache-2.0
//! A headless browser, driven over WebDriver, which is plain HTTP with JSON, so the tests' own HTTP
//! client is enough.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http;

/// The time limit for each wait for the browser. A busy machine can take seconds for what an idle
/// one does at once.
const BOUND: Duration = Duration::from_secs(60);

/// In containers, the browser runs as root and has no graphics; it needs no network. It ends with
/// its driver, because the two are connected by a pipe.
const ARGUMENTS: [&str; 12] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--window-size=1120,900",
];

/// One browser with a fresh profile; closed when dropped.
pub(crate) struct Browser {
    driver: SocketAddr,
    session: String,
}

impl Browser {
    /// # Panics
    /// If there is no driver: the test is not skipped.
    pub(crate) fn open() -> Self {
        let url = crate::service("CHROMIUM", "chromium");
        let driver = url.trim_start_matches("http://").trim_end_matches('/');
        let driver =
            driver.replace("localhost", "127.0.0.1").parse().expect("a WebDriver's http://IP:PORT");
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "goog:chromeOptions": {"args": ARGUMENTS},
        }}});
        // Try three times, because a browser may fail to start on a busy machine, and only the page
        // is under test.
        let mut why = String::new();
        for _ in 0..3 {
            match call(driver, "POST", "/session", &wanted) {
                Ok(session) => {
                    let session =
                        session["sessionId"].as_str().expect("a session's name").to_owned();
                    return Self { driver, session };
                }
                Err(error) => why = error,
            }
        }
        panic!("no browser: {why}");
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("/session/{}{path}", self.session);
        call(self.driver, method, &path, body)
            .unwrap_or_else(|why| panic!("{method} {path}: {why}"))
    }

    pub(crate) fn go(&self, url: &str) {
        self.call("POST", "/url", &json!({"url": url}));
    }

    /// Runs the body of a JavaScript function, and returns its value.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until the expression is true.
    pub(crate) fn wait(&self, what: &str) {
        let began = now();
        while self.run(&format!("return Boolean({what})")) != json!(true) {
            assert!(began.elapsed() < BOUND, "never: {what}\n{}", self.text("body"));
            pause();
        }
    }

    fn element(&self, css: &str) -> String {
        let found = self.call("POST", "/element", &json!({"using": "css selector", "value": css}));
        let reference = found.as_object().and_then(|found| found.values().next()?.as_str());
        reference.expect("a reference to an element").to_owned()
    }

    /// Clicks as a person does: the element is scrolled to, visible, and not covered.
    pub(crate) fn click(&self, css: &str) {
        self.call("POST", &format!("/element/{}/click", self.element(css)), &json!({}));
    }

    /// Replaces the content of a field with `text`.
    pub(crate) fn fill(&self, css: &str, text: &str) {
        let field = self.element(css);
        self.call("POST", &format!("/element/{field}/clear"), &json!({}));
        self.call("POST", &format!("/element/{field}/value"), &json!({"text": text}));
    }

    /// Returns the text of the element `css`, as a person reads it.
    pub(crate) fn text(&self, css: &str) -> String {
        let text = self.call("GET", &format!("/element/{}/text", self.element(css)), &Value::Null);
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the label of the element `css`, as a screen reader reads it.
    pub(crate) fn label(&self, css: &str) -> String {
        let text = self.call(
            "GET",
            &format!("/element/{}/computedlabel", self.element(css)),
            &Value::Null,
        );
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Sets the size of the page's window, in CSS pixels, and the preferred colours.
    pub(crate) fn show_as(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.protocol("Emulation.setDeviceMetricsOverride", &size);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.protocol("Emulation.setEmulatedMedia", &scheme);
    }

    /// Sends a command of this browser's own protocol.
    fn protocol(&self, command: &str, parameters: &Value) {
        self.call("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    /// Takes a picture of the visible part, as a PNG.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let picture = self.call("GET", "/screenshot", &Value::Null);
        from_base64(picture.as_str().expect("a picture"))
    }

    /// Takes a picture of the whole page in light colours, without a focus ring, as a PNG.
    pub(crate) fn picture_of_all(&self, width: u32) -> Vec<u8> {
        self.run("document.activeElement.blur(); scrollTo(0, 0)");
        let height = self.run("return document.documentElement.scrollHeight").as_u64();
        let height = height.and_then(|height| u32::try_from(height).ok()).expect("a height");
        self.show_as(width, height, "light");
        let picture = self.picture();
        assert!(picture.starts_with(b"\x89PNG"), "a PNG");
        assert!((10_000..300_000).contains(&picture.len()), "{} bytes", picture.len());
        picture
    }

    /// Returns the browser's complaints since the last call, except complaints about refused and
    /// cut answers, which the page expects.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.call("POST", "/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().expect("a log").iter();
        lines
            .filter(|line| line["source"] != "network")
            .map(|line| line["message"].to_string())
            .collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let path = format!("/session/{}", self.session);
        drop(call(self.driver, "DELETE", &path, &Value::Null));
    }
}

fn call(driver: SocketAddr, method: &str, path: &str, body: &Value) -> Result<Value, String> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer = http::call(driver, method, path, &[], &body).map_err(|error| error.to_string())?;
    let mut value: Value = serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
    if answer.status == 200 {
        Ok(value["value"].take())
    } else {
        Err(value["value"]["message"].to_string())
    }
}

/// Decodes base64, in which four letters are three bytes. Skips characters outside of the alphabet,
/// such as padding.
fn from_base64(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bits, mut held, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len() / 4 * 3));
    for value in
        text.bytes().filter_map(|letter| ALPHABET.iter().position(|known| *known == letter))
    {
        bits = bits << 6 | u32::try_from(value).unwrap_or_default();
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff).to_le_bytes()[0]);
        }
    }
    bytes
}

#[expect(
    clippy::disallowed_methods,
    reason = "a page in another process does not signal that it is ready"
)]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

#[expect(clippy::disallowed_methods, reason = "bounds a wait for another process")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
