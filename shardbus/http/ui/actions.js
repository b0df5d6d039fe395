// Commands to the cluster. Each is shown before: what it does, and the plan of the coordinators where
// there is one. Nothing is sent before the operator confirms.

import { Failure } from "./api.js";
import { $, fill, h, name, show } from "./dom.js";
import { address, count, reason, sentence, visible } from "./format.js";
import { planRows } from "./model.js";

const EFFECTS = {
  cordon: "It gets no new shards. Those that it has stay, and so do their entities.",
  uncordon: "It may get new shards again.",
  drain: "Its shards move to other nodes now, and it gets no new ones. It stays a member.",
};

export class Actions {
  /** `types` returns the names of the types that have a table of their own. */
  constructor(api, { types, ondone }) {
    Object.assign(this, { api, types, ondone, dialog: $("dialog") });
    this.dialog.addEventListener("close", () => (this.opener?.isConnected ? this.opener : $("main")).focus({ preventScroll: true }));
  }

  open(title, ...content) {
    this.opener = document.activeElement;
    show(this.dialog, h("h2", { id: "dialog-title" }, title), ...content);
    if (!this.dialog.open) this.dialog.showModal();
  }

  get closing() {
    return h("button", { type: "button", onclick: () => this.dialog.close() }, "Close");
  }

  /** Ask for a command about a node. */
  async service(node, command) {
    const shown = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, command === "drain" ? "Asking the coordinators for the plan…" : ""));
    const sends = this.#confirm(`${sentence(command)} ${address(node.node)}`, () => this.api.post(["nodes", node.node, command]));
    this.open(["Node ", name(address(node.node))], h("p", {}, EFFECTS[command]), shown, ...sends.parts);
    if (command !== "drain") return sends.allow();
    const plans = await Promise.all(this.types().map((type) => this.#plan(type, { remove: node.node })));
    show(shown, ...plans);
    sends.allow();
  }

  /** Ask to check the balance of a type now. */
  async rebalance(type) {
    const shown = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Asking the coordinator for the plan…"));
    const sends = this.#confirm("Rebalance now", () => this.api.post(["rebalance", type]));
    this.open(["Rebalance ", name(type)], h("p", {}, "The coordinator checks the balance now instead of at its next interval."), shown, ...sends.parts);
    show(shown, await this.#plan(type, {}));
    sends.allow();
  }

  /** Ask to remove the stored state of an entity, if it is still the one that was read. */
  removal(type, id, revision, done) {
    const says = (answer) => {
      done();
      return `Done: ${visible(address(answer.node))} has removed it.`;
    };
    const sends = this.#confirm("Remove it", () => this.api.remove(["state", type, id], { revision }), says);
    this.open(["Remove the state of ", name(id)], h("p", {}, "Its owner removes what is stored, between two messages, and the entity starts again without a state. There is no way back: copy the state before if you may need it."), ...sends.parts);
    sends.allow();
  }

  /** Ask to send dropped messages of a type and reason again; those that would be sent are shown. */
  async replay(wanted) {
    const path = ["dead-letters", "replay"];
    const shown = h("div", { "aria-live": "polite" }, h("p", { class: "muted" }, "Asking the nodes which would be sent…"));
    const says = (done) => `Done: ${count(done.sent, "message")} sent${done.failed.length ? `, ${done.failed.length} not: ${visible(done.failed[0].why)}` : ""}.`;
    const sends = this.#confirm("Replay them", () => this.api.post(path, wanted), says);
    this.open(["Replay ", name(wanted.reason)], h("p", {}, "Each is sent once, to where its entity lives now, behind later messages. Those whose senders got an error are left out."), shown, ...sends.parts);
    let found;
    try {
      found = await this.api.post(path, { ...wanted, dry_run: true });
    } catch (failure) {
      if (!(failure instanceof Failure)) throw failure;
      return show(shown, this.refusal(failure));
    }
    const table = h("table", { class: "lines" });
    fill(table, [
      { title: "type", of: (row) => name(row.type) },
      { title: "entity", of: (row) => name(row.entity) },
      { title: "method", of: (row) => name(row.method) },
    ], found.letters, "None is left that a replay may send.");
    show(shown, h("div", { class: "scrolls" }, table), h("p", { class: "muted" }, `${count(found.letters.length, "message")}${found.more ? ", and more later" : ""}.`));
    if (found.letters.length) sends.allow();
  }

  /** Why a request was refused, with a way to give the token. */
  refusal(failure) {
    const denied = failure.status === 401 || failure.status === 403;
    return h("p", { class: "failure" }, reason(failure), denied ? h("button", { type: "button", onclick: () => this.token() }, "Give the token") : null);
  }

  /** Ask for a token. */
  token(why = "") {
    const field = h("input", { type: "password", id: "token-field", autocomplete: "off", value: this.api.token, maxLength: 4096 });
    const keeps = h("input", { type: "checkbox", id: "token-keeps" });
    const use = (token) => {
      this.api.use(token, keeps.checked);
      this.dialog.close();
      this.ondone("token");
    };
    this.open("Token",
      why ? h("p", { class: "failure" }, why) : null,
      h("p", {}, "Off the loopback the pages of a node need a token, and commands need the operator's (", h("code", {}, "http.token"), "). It stays in this tab and is sent to this node only."),
      h("form", { class: "fields", onsubmit: (event) => { event.preventDefault(); use(field.value.trim()); } },
        h("label", {}, "Token ", field), h("label", { class: "tick" }, keeps, " keep it until this tab is closed"),
        h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Use it"), h("button", { type: "button", onclick: () => use("") }, "Forget it"), this.closing)),
    );
    field.focus();
  }

  help(rows, ticks) {
    this.open("Keyboard", h("table", {}, h("tbody", {}, rows.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what))))), ticks, h("div", { class: "row" }, this.closing));
  }

  async #plan(type, query) {
    let plan;
    try {
      plan = await this.api.get(["plan", type], query);
    } catch (failure) {
      return h("p", { class: "failure" }, name(type), `: no plan, because ${failure.message}`);
    }
    const rows = planRows(plan);
    const table = h("table", { class: "cards" });
    fill(table, [
      { title: "node", of: (row) => name(address(row.node)) },
      { title: "shards now", class: "amount", of: (row) => row.before },
      { title: "then", class: "amount", of: (row) => row.after },
      { title: "change", class: "amount", of: (row) => (row.change > 0 ? `+${row.change}` : row.change) },
    ], rows, "No node gets or gives a shard.");
    const more = plan.settled ? "" : " (more may follow)";
    const held = plan.held ? h("p", { class: "muted" }, "Nothing moves for balance now: ", name(plan.held)) : null;
    return h("section", { class: "plan" }, h("h3", {}, name(type), `: ${count(plan.moves.length, "move")}${more}`), rows.length ? h("div", { class: "scrolls" }, table) : null, held);
  }

  #confirm(title, send, says = () => "Done: the node has begun with it.") {
    const said = h("p", { role: "status" });
    const button = h("button", { type: "button", class: "primary", disabled: true }, title);
    button.addEventListener("click", async () => {
      button.disabled = true;
      said.className = "";
      said.textContent = "Sending…";
      try {
        said.textContent = says(await send());
        button.hidden = true;
        this.ondone("command");
      } catch (failure) {
        if (!(failure instanceof Failure)) throw failure;
        said.className = "failure";
        show(said, ...this.refusal(failure).childNodes);
        button.disabled = false;
      }
    });
    return { parts: [said, h("div", { class: "row" }, button, this.closing)], allow: () => { button.disabled = false; } };
  }
}
