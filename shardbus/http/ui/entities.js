// The view of entities: those in memory by the beginning of their ids, a page at a time, and one of
// them in detail.

import { $, LongList, fill, h, name, prose, show } from "./dom.js";
import { address, bytes, clock, count, duration, missing, reason, sentence, visible } from "./format.js";
import { Sending } from "./send.js";
import { StoredState } from "./stored.js";

const PAGE = 200;
const ROWS_MAX = 20_000;

/** Why an entity is slow, the likeliest cause first, each with what to do. */
function causeList(causes, figures) {
  if (causes.length === 0) {
    return h("p", {}, figures ? "Nothing that this node and the home know is slow." : "Nothing that this node knows is slow; the home has given no figures.");
  }
  return h("ol", { class: "causes" }, causes.map((one) => h("li", {}, h("strong", {}, one.cause.replaceAll("_", " ")), ": ", h("bdi", {}, prose(one.text, 1000)), h("br"), "To do: ", h("bdi", {}, prose(one.remedy, 500)))));
}

/** Columns of changes of a shard's home. */
export const changeRows = [
  { title: "at", of: (row) => clock(row.at) },
  { title: "from", of: (row) => (row.from ? name(address(row.from)) : "–") },
  { title: "to", of: (row) => (row.to ? name(address(row.to)) : "–") },
  { title: "why", of: (row) => row.why.replaceAll("_", " ") },
  { title: "took", class: "amount", of: (row) => duration(row.took) },
];

export class Entities {
  /** `hasState` and `writes` say whether a type has a state, and whether commands are on. */
  constructor(api, { actions, announce, go, hasState, writes }) {
    Object.assign(this, { api, actions, announce, go, hasState, writes, rows: [], next: null, asked: null, stored: null });
    this.list = new LongList($("entity-list"), [
      { title: "id", of: (row) => name(row.instance ? `${row.id}~${row.instance}` : row.id) },
      { title: "shard", of: (row) => name(row.shard, 40) },
      { title: "node", of: (row) => name(address(row.node)) },
    ], { label: "Entities in memory", onchoose: (row) => this.show(this.asked.type, row.instance ? `${row.id}~${row.instance}` : row.id) });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.page() }, "Next page");
    $("entity-list").append(this.more);
    $("entity-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.begin();
    });
    $("entity-look").addEventListener("click", () => this.look());
  }

  listShard(type, shard) {
    $("entity-type").value = type;
    $("entity-prefix").value = "";
    $("entity-shard").value = shard;
    this.go("entities");
    this.begin();
  }

  /** The view is shown: list what is in memory, once the types are known. */
  open() {
    if (this.asked === null && $("entity-type").value) this.begin();
  }

  begin() {
    this.asked = { type: $("entity-type").value, prefix: $("entity-prefix").value, shard: $("entity-shard").value.trim() };
    this.rows = [];
    this.next = null;
    this.page();
  }

  async page() {
    const { type, prefix, shard } = this.asked;
    const asked = this.asked;
    try {
      const answer = await this.api.get(["entities", type], { prefix, shard, limit: PAGE, cursor: this.next });
      if (asked !== this.asked) return;
      this.rows.push(...answer.entities);
      this.next = this.rows.length < ROWS_MAX ? answer.next : null;
      this.list.set(this.rows);
      this.more.hidden = this.next === null;
      this.say(`${sentence(count(this.rows.length, "entity", "entities"))} in memory${this.next === null ? "" : ", and more"}.${missing(answer.silent)}`);
    } catch (failure) {
      this.say(reason(failure));
    }
  }

  /** There is another token: ask again for what was refused. */
  again() {
    this.stored?.again();
  }

  say(text) {
    $("entity-summary").textContent = visible(text, 500);
  }

  look() {
    const id = $("entity-prefix").value;
    if (!id) return this.say("Give the whole id of an entity, whether it is in memory or not.");
    return this.show($("entity-type").value, id);
  }

  /** Show why an entity is slow, where it lives, and how its shard moved. */
  async show(type, id) {
    const place = $("entity-detail");
    place.hidden = false;
    this.stored = null;
    show(place, h("p", { class: "muted" }, "Asking…"));
    let found;
    try {
      found = await this.api.get(["explain", type, id]);
    } catch (failure) {
      show(place, h("p", { class: "failure" }, reason(failure)));
      return;
    }
    const history = h("table", { class: "lines" });
    fill(history, changeRows, (found.history ?? []).toReversed().map((row) => ({ ...row, at: Date.parse(row.at), took: row.seconds })), "The home of its shard has not changed since this coordinator leads.");
    const facts = [
      ["where", found.node ? name(address(found.node)) : "no home known here"],
      ["in memory", found.running ? "yes" : found.state === "unknown" ? "unknown: its node did not answer" : "no"],
      ["shard", name(found.shard)],
      ["why", name(found.why, 500)],
      ["fence", found.fence ?? "–"],
      ["epoch", found.epoch],
      ["coordinator", found.coordinator ? name(address(found.coordinator)) : "–"],
      ["waiting here", found.buffered.messages ? `${count(found.buffered.messages, "message")} of its type, ${bytes(found.buffered.bytes)}` : "no message of its type"],
    ];
    this.stored = this.hasState(type) ? new StoredState(this.api, { type, id, actions: this.actions, announce: this.announce, writes: this.writes }) : null;
    this.sending = new Sending(this.api, { type, id, actions: this.actions, writes: this.writes() });
    show(place,
      h("h3", {}, name(type, 60), " ", name(id)),
      found.causes ? [h("h4", {}, "Why it is slow"), causeList(found.causes, found.figures)] : null,
      h("dl", {}, facts.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)])),
      h("h4", {}, "How its shard moved"),
      h("div", { class: "scrolls" }, history),
      this.sending.place,
      this.stored?.place,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => this.show(type, id) }, "Ask again"), h("button", { type: "button", onclick: () => { place.hidden = true; } }, "Close")),
    );
    this.announce(`Details of ${visible(id, 80)}`);
    place.focus({ preventScroll: true });
    if (matchMedia("(max-width: 800px)").matches) place.scrollIntoView({ block: "start" });
  }
}
