// SPDX-License-Identifier: MIT OR Apache-2.0
//! The checkout page as a person uses it, in a browser, and the routes that it uses, without one.

use std::io::{BufRead as _, ErrorKind, Read as _};

use crate::browser::Browser;
use crate::http::{self, Service};

/// Opens the page, and waits until it listens to the server.
fn checkout(service: &Service) -> Browser {
    let browser = Browser::open();
    browser.go(&format!("http://{}/", service.address));
    browser.wait("document.documentElement.dataset.feed === 'on'");
    browser
}

/// Returns a JavaScript expression for the number of rows of this kind in the list.
fn rows(kind: &str) -> String {
    format!("document.querySelectorAll('#log li[data-did=\"{kind}\"]').length")
}

fn count(browser: &Browser, kind: &str) -> u64 {
    browser.run(&format!("return {}", rows(kind))).as_u64().expect("a number")
}

fn shown_in_the_ledger(browser: &Browser, payments: usize) {
    browser.wait(&format!("document.querySelectorAll('#ledger tr').length === {payments}"));
    browser.wait(&format!("document.getElementById('n-ledger').textContent === '{payments}'"));
}

#[test]
fn acq_1_ten_fast_presses_are_one_payment_and_every_press_is_shown() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    // Record every state that a row leaves, because a test that polls could miss short states.
    browser.run(
        "window.seen = [];
         new MutationObserver((changes) => seen.push(...changes.map((change) => change.oldValue)))
             .observe(document.getElementById('log'),
                      { subtree: true, attributeFilter: ['data-did'], attributeOldValue: true });",
    );
    // The delay is much shorter than the lease, so a machine that stops for a second causes no
    // takeover.
    browser.run(
        "const delay = document.getElementById('delay');
         delay.add(new Option('after 1 second', '1000'));
         delay.value = '1000'",
    );
    for _ in 0..10 {
        browser.click("#pay");
    }
    browser.wait(&format!("{} + {} === 10", rows("executed"), rows("replayed")));
    assert_eq!(count(&browser, "executed"), 1, "{}", browser.text("#log"));
    assert_eq!(browser.text("#n-sent"), "10");
    assert_eq!(browser.text("#n-replayed"), "9");
    assert_eq!(browser.text("#status"), "Sent 10 times, executed once.");
    assert!(browser.text("#log").contains("Idempotent-Replayed: true"), "{}", browser.text("#log"));
    shown_in_the_ledger(&browser, 1);
    assert_eq!(service.ledger().len(), 1);

    // Send all ten at once: a request that arrives while the first one runs waits for it. Repeat
    // this if the machine was so busy that no request arrived in time.
    let mut purchases = 1;
    while browser.run("return seen.includes('running') && seen.includes('waiting')") != true {
        assert!(purchases < 10, "no request waited in {purchases} purchases");
        browser.click("#new");
        browser.click("#ten");
        purchases += 1;
        browser.wait(&format!(
            "{} + {} === {}",
            rows("executed"),
            rows("replayed"),
            10 * purchases
        ));
        assert_eq!(count(&browser, "executed"), purchases, "{}", browser.text("#log"));
    }
    assert_eq!(service.ledger().len() as u64, purchases);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn cmp_1_a_cut_answer_is_retried_as_one_payment_and_a_replay() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    browser.click("#cut");
    browser.click("#pay");
    browser.wait("!document.getElementById('notice').hidden");
    assert!(
        browser.text("#notice").starts_with("No answer came back."),
        "{}",
        browser.text("#notice")
    );
    browser.wait(&format!("{} === 1", rows("executed")));
    assert!(browser.text("#log").contains("the answer was cut"), "{}", browser.text("#log"));
    shown_in_the_ledger(&browser, 1);
    let key = browser.text("#key");

    browser.click("#retry");
    browser.wait("document.querySelector('#log li[data-did=\"replayed\"][data-cut=\"false\"]')");
    assert_eq!(browser.text("#key"), key);
    assert_eq!(browser.text("#n-executed"), "1");
    browser.wait("document.getElementById('notice').hidden");
    assert_eq!(service.ledger().len(), 1);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn fp_1_another_amount_under_the_same_key_is_refused_in_words() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    browser.click("#pay");
    browser.wait(&format!("{} === 1", rows("executed")));
    browser.fill("#amount", "99");
    assert!(browser.text("#hint").contains("refuse"), "said before it is sent");
    browser.click("#pay");
    browser.wait(&format!("{} === 1", rows("refused")));
    browser.wait("!document.getElementById('notice').hidden");
    let said = browser.text("#notice");
    for part in [
        "The idempotency key was used with another request.",
        "new key",
        "fingerprint-mismatch",
        "422",
    ] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    assert!(!said.contains("Retry"), "what is refused for good offers no retry");
    shown_in_the_ledger(&browser, 1);
    assert_eq!(service.ledger()[0].1, 4_200);

    // The button "new" picks a new key, so this is another purchase.
    browser.click("#new");
    browser.click("#pay");
    browser.wait(&format!("{} === 2", rows("executed")));
    let amounts: Vec<i64> = service.ledger().into_iter().map(|(_, amount)| amount).collect();
    assert_eq!(amounts, [9_900, 4_200]);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn http_10_an_answer_that_is_not_ready_is_told_with_its_time_and_can_be_asked_for_again() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    // Make `fetch` answer at once as the server would after ten seconds of waiting.
    browser.run(
        r#"const real = window.fetch;
           window.fetch = (path, options) => {
               if (options?.method !== "POST") return real(path, options);
               window.fetch = real;
               const body = { title: "In progress", detail: "<b>wait</b>", code: "in-flight", retryable: true };
               const headers = { "Content-Type": "application/problem+json", "Retry-After": "3" };
               return Promise.resolve(new Response(JSON.stringify(body), { status: 409, headers }));
           };"#,
    );
    browser.click("#pay");
    browser.wait(&format!("{} === 1", rows("in flight")));
    assert!(browser.text("#log").contains("Retry-After: 3"), "{}", browser.text("#log"));
    let said = browser.text("#notice");
    for part in ["In progress.", "<b>wait</b>", "in-flight · status 409 · retry after 3 s"] {
        assert!(said.contains(part), "{part:?} is missing in {said}");
    }
    browser.click("#retry");
    browser.wait(&format!("{} === 1", rows("executed")));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_page_fits_a_phone_and_names_every_control() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    for (control, label) in [
        ("#amount", "Amount in euros"),
        ("#pay", "Pay €42.00"),
        ("#ten", "Ten times at once"),
        ("#new", "New purchase"),
        ("#cut", "Cut the answer"),
        ("#delay", "The payment provider answers"),
        ("#log", "What the server did"),
        ("#key", "Idempotency-Key"),
    ] {
        assert_eq!(browser.label(control), label);
    }
    browser.click("#pay");
    browser.wait(&format!("{} === 1", rows("executed")));
    browser.click("#cut");
    browser.click("#pay");
    browser.wait("!document.getElementById('notice').hidden");
    shown_in_the_ledger(&browser, 1);
    for width in [320, 360, 768] {
        browser.show_as(width, 800, "dark");
        browser.wait(&format!("innerWidth === {width}"));
        let wide = browser.run("return document.documentElement.scrollWidth");
        assert_eq!(wide, width, "wider than its window");
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The test always makes the picture. With `RETRYPROOF_UPDATE_PICTURE` set, the new picture
/// replaces the one in README.md.
#[test]
fn the_picture_of_the_readme_is_made_here() {
    let service = Service::start(&[]);
    let browser = checkout(&service);
    browser.show_as(1_120, 840, "light");
    browser.click("#cut");
    browser.click("#pay");
    browser.wait("!document.getElementById('notice').hidden");
    browser.click("#cut");
    browser.click("#retry");
    browser.wait(&format!("{} === 1", rows("replayed")));
    for press in 2..=6 {
        browser.click("#pay");
        browser.wait(&format!("{} === {press}", rows("replayed")));
    }
    browser.fill("#amount", "99.00");
    browser.click("#pay");
    browser.wait(&format!("{} === 1", rows("refused")));
    browser.wait("!document.getElementById('notice').hidden");
    shown_in_the_ledger(&browser, 1);
    let picture = browser.picture_of_all(1_120);
    crate::keep_picture("checkout.png", &picture);
}

#[test]
fn the_files_of_the_page_have_their_types_and_nothing_may_come_from_elsewhere() {
    let service = Service::start(&[]);
    for (path, kind, part) in [
        ("/", "text/html; charset=utf-8", "<title>"),
        ("/app.js", "text/javascript; charset=utf-8", "randomUUID"),
        ("/app.css", "text/css; charset=utf-8", "color-scheme"),
        ("/icon.svg", "image/svg+xml", "<svg"),
    ] {
        let answer = service.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{path}");
        assert!(answer.body.contains(part), "{path}");
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        for elsewhere in ["https://", "http://", "innerHTML", "style=", "onclick="] {
            let found = answer.body.replace("http://www.w3.org/2000/svg", "").contains(elsewhere);
            assert!(!found, "{elsewhere} in {path}");
        }
    }
    let plain = Service::start(&["--no-page"]);
    assert_eq!(plain.get("/").status, 404);
    // Without the page, the service ignores the demo headers, so this request is answered.
    assert_eq!(pay(&plain, "k", &[("x-demo-cut", "true")]).expect("an answer").status, 201);
}

const ORDER: &str = r#"{"account":"alice","amount":4200,"reference":"a bell"}"#;

fn pay(service: &Service, key: &str, more: &[(&str, &str)]) -> std::io::Result<http::Answer> {
    let headers =
        [&[("idempotency-key", key), ("content-type", "application/json")], more].concat();
    http::call(service.address, "POST", "/payments", &headers, ORDER)
}

#[test]
fn cmp_1_a_cut_answer_has_no_first_byte_and_its_retry_is_replayed() {
    let service = Service::start(&[]);
    let why = pay(&service, "k", &[("x-demo-cut", "true")]).err().expect("no answer");
    assert!(matches!(why.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{why}");
    let retry = pay(&service, "k", &[]).expect("an answer");
    assert_eq!((retry.status, retry.header("idempotent-replayed")), (201, Some("true")));
    for (name, value) in
        [("x-demo-cut", "perhaps"), ("x-demo-delay", "99999"), ("x-demo-attempt", "<b>")]
    {
        let refused = pay(&service, "other", &[(name, value)]).expect("an answer");
        assert_eq!(refused.status, 400);
        assert!(refused.body.to_lowercase().starts_with(name), "{}", refused.body);
    }
    assert_eq!(service.ledger().len(), 1);
}

#[test]
fn run_5_a_client_that_goes_away_is_told_of_and_the_payment_goes_on() {
    let mut service = Service::start(&[]);
    let mut events = http::send(service.address, "GET", "/events", &[], "").expect("sent");
    let head = http::head(&mut events).expect("an answer");
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
    let mut heard = |states: &[&str]| {
        loop {
            let mut line = String::new();
            assert_ne!(
                events.read_line(&mut line).expect("an event"),
                0,
                "ended before {states:?}"
            );
            assert!(!line.contains("secret"), "{line}");
            let is = |state: &&&str| line.contains(&format!("\"state\":\"{state}\""));
            if let Some(state) = states.iter().find(is) {
                return ((*state).to_owned(), line);
            }
        }
    };
    // On a busy machine, the server may make the payment before it notices that the client has
    // gone. Try again if that happens.
    let mut tries = 0;
    loop {
        tries += 1;
        let key = format!("secret-{tries}");
        let headers = [
            ("idempotency-key", key.as_str()),
            ("content-type", "application/json"),
            ("x-demo-delay", "1000"),
            ("x-demo-attempt", "mine"),
        ];
        let waiting =
            http::send(service.address, "POST", "/payments", &headers, ORDER).expect("sent");
        let (_, running) = heard(&["running"]);
        assert!(running.contains("\"attempt\":\"mine\""), "{running}");
        drop(waiting);
        let (state, _) = heard(&["left", "answered"]);
        let retry = pay(&service, &key, &[]).expect("an answer");
        assert_eq!((retry.status, retry.header("idempotent-replayed")), (201, Some("true")));
        assert!(heard(&["answered"]).1.contains("\"did\":\"replayed\""));
        assert_eq!(service.ledger().len(), tries);
        if state == "left" {
            break;
        }
        assert!(tries < 20, "the server never saw its client go");
    }

    // An open page does not keep the service from stopping.
    assert!(service.stop().expect("it ends").success());
    events.read_to_string(&mut String::new()).expect("the stream ends as well");
}
