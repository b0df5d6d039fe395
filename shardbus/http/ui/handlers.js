// The view of handlers: what each is called, how long it takes and how it fails, with its last
// exceptions.

import { $, fill, h, name, offer } from "./dom.js";
import { address, amount, clock, count, duration, missing, rate, sentence, visible } from "./format.js";

const LINE = "⟨U+000A⟩";

export class Handlers {
  constructor(api) {
    Object.assign(this, { api, answer: null });
    $("handler-type").addEventListener("change", () => this.draw());
    $("handler-failing").addEventListener("change", () => this.draw());
  }

  async ask() {
    this.answer = await this.api.get(["handlers"]);
  }

  /** The types of the cluster, to choose from. */
  setTypes(types) {
    offer($("handler-type"), ["", ...types], (type) => (type ? visible(type, 60) : "all types"));
  }

  /** Show the handlers of one type. */
  choose(type) {
    $("handler-type").value = type;
    $("handler-failing").checked = false;
    this.draw();
  }

  draw() {
    if (!this.answer) return;
    const type = $("handler-type").value;
    const failing = $("handler-failing").checked;
    const rows = this.answer.handlers.filter((row) => (!type || row.type === type) && (!failing || row.failures));
    const open = new Set([...$("handlers").querySelectorAll("details[open]")].map((one) => one.dataset.failure));
    $("handlers-summary").textContent = `${sentence(count(rows.length, "handler"))}. Calls and failures since each node has started, the rest of the last five minutes, estimated from samples.${missing(this.answer.silent)}`;
    fill($("handlers"), [
      { title: "type", of: (row) => name(row.type, 60) },
      { title: "handler", of: (row) => [name(row.handler, 80), row.parameters ? h("small", {}, ` (${visible(row.parameters, 160)})`) : null] },
      { title: "calls", class: "amount", of: (row) => amount(row.calls) },
      { title: "calls/s", class: "amount", of: (row) => (row.calls ? rate(row.rate) : "–") },
      { title: "p50", class: "amount", of: (row) => duration(row.p50) },
      { title: "p99", class: "amount", of: (row) => duration(row.p99) },
      { title: "failures", class: "amount", of: (row) => (row.failures ? h("span", { class: "state fault" }, amount(row.failures)) : "0") },
      { title: "last exceptions", class: "wide", of: (row) => (row.last.length ? row.last.map((one) => this.#failure(row, one, open)) : "–") },
    ], rows, failing ? "No handler has failed." : "No type has a handler.");
  }

  #failure({ type, handler }, { at, node, entity, error, text, stack }, open) {
    const key = `${node} ${type} ${handler} ${at}`;
    return h("details", { "data-failure": key, open: open.has(key) },
      h("summary", {}, h("time", {}, clock(Date.parse(at))), " ", name(text ? `${error}: ${text}` : error, 300)),
      h("p", { class: "muted small" }, "Of ", name(entity, 80), " on ", name(address(node)), "."),
      h("pre", {}, stack ? visible(stack, 4000).replaceAll(LINE, "\n") : "Its stack was not written: another one was, within the second before."));
  }
}
