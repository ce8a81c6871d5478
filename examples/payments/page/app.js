// SPDX-License-Identifier: MIT OR Apache-2.0
// The client of the checkout page. Every retry of a purchase sends the same key and the same bytes. The page
// shows what the server did with each request: from the headers of the answer, or from the server's feed if no
// answer arrives.
"use strict";

const $ = (id) => document.getElementById(id);
const euros = (cents) => `€${(cents / 100).toFixed(2)}`;
const lasting = (ms) => (ms < 1 ? "<1 ms" : ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`);
/** How many requests the page remembers, including those of other pages. */
const KEPT = 500;

/** The texts for the states of a request that has no answer yet. */
const MEANS = { sent: "on its way", running: "the handler is at work", waiting: "for the answer of the first" };

/** Creates an element whose content is only text, so that no text of a server can become markup. */
function element(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}

const hex = (bytes) => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (b) => b.toString(16).padStart(2, "0")).join("");

/** Returns a new key; each order has one. Browsers have `randomUUID` only on localhost and over HTTPS. */
const freshKey = () => (crypto.randomUUID ? crypto.randomUUID() : hex(16));

const page = hex(4); // marks the requests of this page in the feed
const rows = new Map(); // the rows of the list, by attempt or by the server's number
let purchase;
let attempts = 0;
let connections = 0; // counts the connections to the feed, because a restarted server numbers its requests from 1 again
let feed = null;

// --- one purchase -----------------------------------------------------------------------------------------------------

function begin() {
  purchase = { key: freshKey(), order: hex(3).toUpperCase(), amount: null, last: null, sent: 0 };
  $("key").textContent = purchase.key;
  $("order").textContent = `order ${purchase.order}`;
  $("notice").hidden = true;
  tally();
  priced();
}

function cents() {
  return Math.round($("amount").valueAsNumber * 100);
}

function priced() {
  const now = cents();
  $("price").textContent = Number.isFinite(now) ? euros(now) : "";
  $("hint").hidden = purchase.amount === null || !Number.isFinite(now) || purchase.amount === now;
}

function pay() {
  if (!$("form").reportValidity()) return;
  const order = { account: "alice", amount: cents(), reference: `bicycle bell, order ${purchase.order}` };
  purchase.amount ??= order.amount;
  send(purchase, JSON.stringify(order), $("cut").checked);
  priced();
}

/** Sends the same key and the same bytes again, because any change would make it a different request. */
function retry() {
  $("notice").hidden = true;
  $("pay").focus();
  send(purchase, purchase.last, false);
}

async function send(bought, body, cut) {
  const attempt = `${page}-${(attempts += 1)}`;
  const row = place(attempt, { who: bought, nth: (bought.sent += 1) });
  bought.last = body;
  tally();
  const headers = { "Content-Type": "application/json", "Idempotency-Key": bought.key, "X-Demo-Attempt": attempt };
  if (cut) headers["X-Demo-Cut"] = "true";
  if ($("delay").value) headers["X-Demo-Delay"] = $("delay").value;
  const began = performance.now();
  try {
    const response = await fetch("/payments", { method: "POST", headers, body, cache: "no-store" });
    const text = await response.text();
    const shown = ["Idempotent-Replayed", "Retry-After", "Cache-Control"];
    // Keep what the feed has already said, because the server knows whether the handler ran.
    row.did ??= judge(response);
    row.status = response.status;
    row.headers = shown.filter((name) => response.headers.has(name)).map((name) => [name, response.headers.get(name)]);
    row.ms ??= Math.round(performance.now() - began);
    row.came = true;
    if (!response.ok && bought === purchase) explain(response, text);
    // Hide the notice about an unknown result, because this answer has settled it.
    if (response.ok && bought === purchase && $("notice").dataset.kind === "open") $("notice").hidden = true;
  } catch {
    row.came = false;
    row.live = "unknown";
    if (bought === purchase) lost();
  }
  show(row);
  ledger();
}

function judge(response) {
  if (response.headers.get("Idempotent-Replayed") === "true") return "replayed";
  if (response.ok) return "executed";
  if (response.status === 409 && response.headers.has("Retry-After")) return "in flight";
  return response.status >= 500 ? "failed" : "refused";
}

// --- notices for the user --------------------------------------------------------------------------------------------

function notice(kind, title, text, code, again) {
  $("notice").dataset.kind = kind;
  $("notice-title").textContent = title;
  $("notice-text").textContent = text;
  $("notice-code").textContent = code;
  $("notice-code").hidden = !code;
  $("retry").hidden = !again;
  $("notice").hidden = false;
}

function lost() {
  notice("open", "No answer came back.", "Was it charged? The page cannot know, and need not: the same key cannot be charged twice.", "", true);
}

/**
 * Explains an answer that is not a success. It is open if a retry can still succeed, and otherwise final. The guard
 * refuses with a problem in JSON (RFC 9457), the handler with text.
 */
function explain(response, text) {
  let problem = null;
  if ((response.headers.get("Content-Type") ?? "").startsWith("application/problem+json")) {
    try { problem = JSON.parse(text); } catch { /* shown as it is */ }
  }
  const title = problem?.title ?? "The server refused";
  const after = response.headers.get("Retry-After");
  const code = [problem?.code, `status ${response.status}`, after && `retry after ${after} s`].filter(Boolean).join(" · ");
  const again = problem?.retryable === true;
  notice(again ? "open" : "refused", `${title}.`, problem?.detail ?? text.trim(), code, again);
}

// --- the list ---------------------------------------------------------------------------------------------------------

function place(name, facts) {
  const item = element("li");
  const row = { item, did: null, live: "sent", status: null, headers: [], ms: null, cut: false, came: null, ...facts };
  rows.set(name, row);
  $("log").prepend(item);
  if (rows.size > KEPT) {
    const [oldest, { item: last }] = rows.entries().next().value;
    last.remove();
    rows.delete(oldest);
  }
  show(row);
  return row;
}

function show(row) {
  const { item, who, nth, did, live, status, headers, ms } = row;
  item.dataset.did = did ?? live;
  item.dataset.cut = row.cut;
  const name = who === null ? "another" : who === purchase ? `press ${nth}` : `${who.order} · ${nth}`;
  const answer = element("span", "answer");
  if (!did && MEANS[live]) answer.append(element("small", "", MEANS[live]));
  if (did && status !== null) answer.append(element("span", "", String(status)));
  for (const [header, value] of headers) answer.append(element("code", "", `${header}: ${value}`));
  const parts = [element("span", "who", name), element("span", "did", did ?? live), answer];
  parts.push(element("span", "ms", did && ms !== null ? lasting(ms) : ""));
  const remark = remarkOn(row);
  if (remark) parts.push(element("p", "remark", remark));
  item.replaceChildren(...parts);
  tally();
}

function remarkOn({ cut, came, again, who }) {
  if (again) return "your browser sent it again by itself";
  if (cut) return "and the answer was cut: the browser got nothing";
  if (who !== null && came === false) return "no answer reached the browser";
  return "";
}

function tally() {
  const counts = { executed: 0, replayed: 0, refused: 0 };
  let open = 0;
  for (const { who, did, again, came } of rows.values()) {
    if (who !== purchase) continue;
    if (!did) open += again || came === false ? 0 : 1;
    else counts[did in counts ? did : "refused"] += 1;
  }
  $("n-sent").textContent = purchase.sent;
  for (const [name, count] of Object.entries(counts)) $(`n-${name}`).textContent = count;
  if (purchase.sent === 0) {
    $("n-ledger").textContent = 0;
    $("status").textContent = "A new purchase, with a key of its own. Press Pay.";
    return;
  }
  const times = (n) => (n === 1 ? "once" : n === 0 ? "never" : `${n} times`);
  $("status").textContent = open > 0
    ? `Sent ${times(purchase.sent)}, ${open} unanswered.`
    : `Sent ${times(purchase.sent)}, executed ${times(counts.executed)}.`;
}

// --- the server's feed ------------------------------------------------------------------------------------------------

/** A browser opens only a few connections to one server, so a hidden page closes its connection to the feed. */
function listen() {
  feed?.close();
  document.documentElement.dataset.feed = "off";
  if (document.visibilityState === "hidden") return;
  feed = new EventSource("/events");
  feed.addEventListener("hello", () => {
    connections += 1;
    document.documentElement.dataset.feed = "on";
  });
  feed.addEventListener("message", ({ data }) => heardOf(JSON.parse(data)));
}

function heardOf(event) {
  const name = `${connections}/${event.request}`;
  let row = rows.get(event.attempt) ?? rows.get(name);
  if (row?.connection === connections && row.request !== event.request) {
    // The server has already seen this attempt under another number.
    row = rows.get(name) ?? place(name, { who: row.who, nth: row.nth, again: true });
  }
  row ??= place(name, { who: null });
  Object.assign(row, { connection: connections, request: event.request });
  if (event.state === "answered") {
    row.did = event.did;
    row.status = event.status;
    row.headers = event.headers;
    row.ms = event.ms;
    row.cut = event.cut;
    ledger();
  } else if (event.state === "left") {
    row.did ??= "left";
  } else if (event.state !== "arrived") {
    row.live = event.state;
  }
  show(row);
}

// --- the ledger -------------------------------------------------------------------------------------------------------

let asking = false;
let askAgain = false;

/** Fetches the ledger. If it is called while a fetch runs, the running call fetches once more afterwards. */
async function ledger() {
  if (asking) {
    askAgain = true;
    return;
  }
  asking = true;
  do {
    askAgain = false;
    try {
      const response = await fetch("/payments", { cache: "no-store" });
      if (response.ok) list(await response.json());
    } catch { /* the server is unavailable; the next answer fetches the ledger again */ }
  } while (askAgain);
  asking = false;
}

function list(charges) {
  const mine = (charge) => charge.reference.endsWith(`order ${purchase.order}`);
  $("n-ledger").textContent = charges.filter(mine).length;
  $("ledger-empty").hidden = charges.length > 0;
  $("ledger").replaceChildren(...charges.map((charge) => {
    const row = element("tr", mine(charge) ? "own" : "");
    row.append(
      element("td", "", `#${charge.payment}`),
      element("td", "", charge.reference),
      element("td", "", charge.account),
      element("td", "num", euros(charge.amount)),
    );
    return row;
  }));
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  pay();
});
$("ten").addEventListener("click", () => { for (let n = 0; n < 10; n += 1) pay(); });
$("retry").addEventListener("click", retry);
$("new").addEventListener("click", () => {
  begin();
  for (const row of rows.values()) show(row);
  ledger();
});
$("amount").addEventListener("input", priced);
document.addEventListener("visibilitychange", listen);

begin();
listen();
ledger();
