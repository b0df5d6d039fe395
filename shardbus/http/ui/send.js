// A message to one entity: a handler, its arguments as JSON, and the answer or the error. The text goes
// to the node as it is written, and the answer comes as the node's own text, so that no digit of a
// large number is lost. The log of the node names the handler and the sender, never the arguments.

import { Failure } from "./api.js";
import { h, name, show } from "./dom.js";
import { duration, escaped, visible } from "./format.js";

const ARGUMENTS_MAX = 16 * 2 ** 20;

export class Sending {
  /** `writes` says whether commands are on. */
  constructor(api, { type, id, actions, writes }) {
    Object.assign(this, { api, type, id, actions });
    this.place = h("div", { class: "sending" }, h("h4", {}, "Send a message"));
    this.result = h("div", { role: "status", class: "stored" });
    if (writes) this.#list();
    else this.place.append(h("p", { class: "muted" }, "Off on this node: start it with ", h("code", {}, "http.write = true"), " and ", h("code", {}, "http.token"), "."));
  }

  async #list() {
    const waits = h("p", { class: "muted" }, "Asking for its handlers…");
    this.place.append(waits);
    try {
      const { handlers } = await this.api.get(["handlers"], { type: this.type });
      waits.replaceWith(this.#form(handlers.filter((one) => one.parameters !== null && !one.handler.startsWith("receive "))), this.result);
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      waits.replaceWith(this.actions.refusal(failure));
    }
  }

  #form(handlers) {
    if (!handlers.length) return h("p", { class: "muted" }, "This type has no handler.");
    const choose = h("select", { id: "send-handler", onchange: () => this.#choose(handlers) }, handlers.map((one) => h("option", { value: one.handler }, visible(one.handler, 80))));
    this.choose = choose;
    this.declared = h("p", { id: "send-declared", class: "muted small" });
    this.field = h("textarea", { id: "send-arguments", rows: 3, maxLength: ARGUMENTS_MAX, "aria-describedby": "send-declared" });
    this.field.setAttribute("spellcheck", "false");
    this.label = h("label", { for: "send-arguments" }, "Arguments as JSON");
    this.tell = h("input", { type: "checkbox", id: "send-tell" });
    this.button = h("button", { type: "submit", class: "primary" }, "Send");
    const form = h("form", { class: "stored", onsubmit: (event) => { event.preventDefault(); this.#send(); } },
      h("div", { class: "fields" }, h("label", {}, "Handler ", choose), h("label", { class: "tick" }, this.tell, " without waiting for an answer")),
      this.declared, this.label, this.field,
      h("div", { class: "row" }, this.button));
    this.#choose(handlers);
    return form;
  }

  #choose(handlers) {
    const { handler, parameters } = handlers.find((one) => one.handler === this.choose.value);
    const receives = handler === "receive";
    show(this.declared, receives ? "A message for receive, any JSON value." : ["It takes ", h("code", {}, `(${visible(parameters, 500)})`), parameters ? ": a list in this order, or an object of these names." : ": nothing."]);
    this.label.textContent = receives ? "Message as JSON" : "Arguments as JSON";
    this.field.value = receives ? "null" : "[]";
    this.label.hidden = this.field.hidden = !receives && !parameters;
  }

  async #send() {
    this.field.removeAttribute("aria-invalid");
    try {
      JSON.parse(this.field.value);
    } catch (error) {
      this.field.setAttribute("aria-invalid", "true");
      this.field.focus();
      return this.#refused(new Failure(400, `This is not JSON: ${error.message}`, "Nothing was sent."));
    }
    const handler = this.choose.value === "receive" ? null : this.choose.value;
    this.button.disabled = true;
    show(this.result, h("p", {}, "Sending…"));
    try {
      this.#done(await this.api.post(["send", this.type, this.id], { handler, tell: this.tell.checked ? "true" : null }, this.field.value));
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      this.#refused(failure);
    }
    this.button.disabled = false;
  }

  #refused(failure) {
    show(this.result, this.actions.refusal(failure));
  }

  #done({ handler, seconds, answer, error }) {
    if (error) {
      show(this.result, h("p", { class: "failure" }, h("strong", {}, visible(error.error, 80)), ` after ${duration(seconds)}: ${visible(error.message, 2000)}. `, error.hint ? visible(error.hint, 500) : null));
    } else if (answer === null) {
      show(this.result, h("p", {}, "Sent to ", name(handler, 80), "."));
    } else {
      show(this.result, h("p", {}, "Answer of ", name(handler, 80), ` after ${duration(seconds)}:`), h("pre", { tabIndex: 0, role: "region", "aria-label": "The answer" }, escaped(answer)));
    }
  }
}
