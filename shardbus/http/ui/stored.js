// The stored state of one entity: shown as text when it is asked for, edited and removed where
// commands are on.
//
//   idle ──> shown ──edit──> editing ──save──> shown
//              ^                │ refused, or not JSON: the draft stays
//              └────cancel──────┘ changed meanwhile: what is stored now stands beside the draft
//
// A save names the revision that was read, so it never undoes one that came in between. The text is
// what the node sent, as a browser would lose digits of large numbers.

import { Failure } from "./api.js";
import { h, name, show } from "./dom.js";
import { address, bytes, clock, count, escaped, visible } from "./format.js";

const TOO_LONG = 16 * 2 ** 20;
const ROWS_MAX = 24;

export class StoredState {
  constructor(api, { type, id, actions, announce, writes }) {
    Object.assign(this, { api, type, id, actions, announce, writes, refused: false, found: null });
    this.status = h("p", { role: "status" });
    this.body = h("div", { class: "stored" });
    this.place = h("div", { class: "stored" }, h("h4", {}, "Stored state"), this.body, this.status);
    this.body.append(
      h("p", { class: "muted" }, "What the store has, for operators: each look is logged."),
      h("div", { class: "row" }, this.#button("Show the stored state", () => this.read())));
  }

  get path() {
    return ["state", this.type, this.id];
  }

  #button(title, onclick, options = {}) {
    return h("button", { type: "button", onclick, ...options }, title);
  }

  #say(text, failure = null) {
    this.status.className = failure ? "failure" : "";
    show(this.status, ...(failure ? this.actions.refusal(failure).childNodes : [text]));
  }

  /** Read what was refused before, now that there is another token. */
  again() {
    if (this.refused && !this.found) this.read();
  }

  /** Read and show what is stored. */
  async read(said = "") {
    const found = await this.#fetch();
    if (!found) return;
    this.found = found;
    this.#show();
    this.#say(said);
    this.announce(said || `Stored state of ${visible(this.id, 80)}`);
  }

  async #fetch() {
    this.#say("Asking…");
    this.refused = false;
    try {
      return { ...(await this.api.get(this.path, { text: "true" })), at: Date.now() };
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      this.refused = failure.status === 401 || failure.status === 403;
      this.#say("", failure);
      return null;
    }
  }

  #facts(found) {
    if (!found.bytes) return h("p", {}, `It has none, at ${clock(found.at)}.`);
    return h("p", { class: "muted small" }, `${bytes(found.bytes)}, version ${found.version ?? "unknown"} of its class, revision `, h("code", {}, visible(found.revision).slice(0, 12)), `, at ${clock(found.at)}`);
  }

  #text(found, label) {
    if (found.unreadable) return h("p", { class: "failure" }, "It is not shown: ", name(found.unreadable, 500));
    return found.bytes ? h("pre", { tabIndex: 0, role: "region", "aria-label": label }, escaped(found.text)) : null;
  }

  #show() {
    const { found } = this;
    const writes = this.writes();
    show(this.body,
      this.#facts(found),
      this.#text(found, "The stored state") ?? "",
      h("div", { class: "row" },
        this.#button("Read again", () => this.read()),
        writes ? this.#button(found.bytes ? "Edit" : "Set one", () => this.#edit(), { id: "stored-edit" }) : null,
        writes && found.bytes ? this.#button("Remove…", () => this.actions.removal(this.type, this.id, this.found.revision, () => this.read("The state is removed."))) : null));
  }

  #edit() {
    const { found } = this;
    this.field = h("textarea", { id: "stored-text", maxLength: TOO_LONG, value: found.text == null ? "" : escaped(found.bytes ? found.text : "{}"), "aria-describedby": "stored-effect" });
    this.field.setAttribute("spellcheck", "false");
    this.field.rows = Math.min(ROWS_MAX, this.field.value.split("\n").length + 1);
    this.field.setSelectionRange(0, 0);
    this.beside = h("div", { class: "stored" });
    this.save = this.#button("Save", null, { type: "submit", class: "primary" });
    show(this.body,
      this.#facts(found), this.beside,
      h("form", { class: "stored", onsubmit: (event) => { event.preventDefault(); this.#send(); } },
        h("label", { for: "stored-text" }, "The state as JSON"), this.field,
        h("p", { id: "stored-effect", class: "muted small" }, "Its owner checks it against the class, saves it between two messages, and starts the entity again with it: what it did not save is lost. The log names the change and the address that it came from."),
        h("div", { class: "row" }, this.save, this.#button("Cancel", () => this.#leave()))));
    this.#say("");
    this.field.focus();
  }

  #leave(said = "") {
    this.#show();
    this.#say(said);
    this.body.querySelector("#stored-edit")?.focus();
  }

  async #send() {
    const text = this.field.value;
    this.field.removeAttribute("aria-invalid");
    try {
      JSON.parse(text);
    } catch (error) {
      this.field.setAttribute("aria-invalid", "true");
      this.field.focus();
      return this.#say("", new Failure(400, `This is not JSON: ${error.message}`, "Nothing was sent."));
    }
    this.save.disabled = true;
    this.#say("Sending…");
    try {
      const done = await this.api.post(this.path, { revision: this.found.revision }, text);
      const said = `Saved: ${bytes(done.bytes)}, by ${visible(address(done.node))}.`;
      await this.read(said);
      this.body.querySelector("#stored-edit")?.focus();
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      this.#say("", failure);
      if (failure.code === "state_changed") await this.#compare(failure);
    }
    this.save.disabled = false;
  }

  /** Show what is stored now beside the draft, which may then replace it. */
  async #compare(failure) {
    const now = await this.#fetch();
    if (!now) return;
    this.found = now;
    show(this.beside, this.#facts(now), this.#text(now, "The state that is stored now") ?? "");
    this.body.firstChild.textContent = "What is stored now, another state than the one that you began with:";
    this.#say("", new Failure(failure.status, failure.message, "What is stored now stands above your draft: Save replaces it."));
  }
}
