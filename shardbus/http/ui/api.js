// Requests to the node that served this page. The operator's token is kept in this tab, and travels in
// a header only.

import { parseEvents } from "./model.js";

const STORED = "shardbus-token";
const WITHIN_MS = 8_000;
const EVENT_BYTES_MAX = 8 * 2 ** 20;

export class Failure extends Error {
  constructor(status, message, hint = "", code = "") {
    super(message);
    Object.assign(this, { status, hint, code });
  }
}

export class Api {
  constructor() {
    this.token = sessionStorage.getItem(STORED) ?? "";
  }

  /** Use a token, in this tab until it is closed if `keeps`, else until the page is left. */
  use(token, keeps) {
    this.token = token;
    if (token && keeps) sessionStorage.setItem(STORED, token);
    else sessionStorage.removeItem(STORED);
  }

  get headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  /** Ask for a page. Parts of the path are encoded here, so that an id may hold anything. */
  async get(parts, query = {}) {
    return this.#ask("GET", parts, query);
  }

  /** Send a command, with a text of JSON as its body if there is one. */
  async post(parts, query = {}, body = null) {
    return this.#ask("POST", parts, query, body);
  }

  async remove(parts, query = {}) {
    return this.#ask("DELETE", parts, query);
  }

  async #ask(method, parts, query, sent = null) {
    const asked = new URLSearchParams();
    for (const [key, value] of Object.entries(query)) {
      for (const one of [value].flat()) if (one !== null && one !== "") asked.append(key, one);
    }
    const text = asked.toString();
    const url = `v1/${parts.map(encodePart).join("/")}${text ? `?${text}` : ""}`;
    let answer;
    try {
      const headers = sent === null ? this.headers : { ...this.headers, "content-type": "application/json" };
      answer = await fetch(url, { method, headers, body: sent, cache: "no-store", signal: AbortSignal.timeout(WITHIN_MS) });
    } catch {
      throw new Failure(0, "this node does not answer", "It may have ended: open the page of another node.");
    }
    const body = await answer.json().catch(() => null);
    if (answer.ok && body) return body;
    const error = body?.error ?? {};
    throw new Failure(answer.status, error.message ?? `status ${answer.status}`, error.hint ?? "", error.code ?? "");
  }

  /** Read events until the stream ends. A header carries the token, so this is not an EventSource. */
  async events(onopen, onevent) {
    const ends = new AbortController();
    const slow = setTimeout(() => ends.abort(), WITHIN_MS);
    const answer = await fetch("v1/events", { headers: this.headers, cache: "no-store", signal: ends.signal });
    clearTimeout(slow);
    if (!answer.ok) throw new Failure(answer.status, "events are refused");
    onopen();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const [found, rest] = parseEvents(text + value);
      text = rest.length > EVENT_BYTES_MAX ? "" : rest;
      found.forEach(onevent);
    }
  }
}

/** A part of a path. A browser takes dots alone for folders, however they are written. */
function encodePart(part) {
  if (part === "." || part === "..") {
    throw new Failure(0, "a browser cannot ask for an id of dots alone", "Use `shardbus explain` in a terminal.");
  }
  return encodeURIComponent(part);
}
