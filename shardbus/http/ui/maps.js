// The maps of all types side by side: a card for each, with its summary, its map and the shard under
// the pointer. One question has the maps that have changed, another one the rates of their shards.

import { address, count, number, rate, visible } from "./format.js";
import { h, name, show } from "./dom.js";
import { ShardMap } from "./map.js";
import { homeOf } from "./model.js";

const SHOWN = 12;

export class Maps {
  /** `onchoose(type, shard)` opens a shard, `onrebalance(type)` asks to balance, `announce` tells
   * readers of screens. */
  constructor(place, { onchoose, onrebalance, announce }) {
    Object.assign(this, { place, onchoose, onrebalance, announce, cards: new Map(), members: [], bad: new Set(), writes: false, all: false });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.showAll() });
    place.after(this.more);
  }

  /** Show these types, in their order. */
  setTypes(types, writes) {
    const shown = this.all ? types : types.slice(0, SHOWN);
    this.more.hidden = shown.length === types.length;
    this.more.textContent = `Show all ${number(types.length)} types`;
    this.types = types;
    this.writes = writes;
    if (shown.join("\n") !== [...this.cards.keys()].join("\n")) {
      this.cards = new Map(shown.map((type) => [type, this.cards.get(type) ?? this.#card(type)]));
      show(this.place, [...this.cards.values()].map((card) => card.place));
    }
    this.place.closest("section").hidden = shown.length === 0;
    for (const card of this.cards.values()) card.rebalance.hidden = !writes;
  }

  showAll() {
    this.all = true;
    this.setTypes(this.types, this.writes);
  }

  #card(type) {
    const card = { type, title: h("h3", {}, name(type, 60)), summary: h("p", { class: "map-summary muted" }), line: h("p", { class: "map-line muted" }) };
    card.rebalance = h("button", { type: "button", class: "write", "aria-label": `Rebalance ${visible(type, 60)}…`, onclick: () => this.onrebalance(type) }, "Rebalance…");
    const canvas = h("canvas", { class: "map", tabIndex: 0, role: "application", "aria-label": `Map of shards of ${visible(type, 60)}`, "aria-describedby": "map-keys" });
    const space = h("div", { class: "map-space" }, canvas);
    const scroll = h("div", { class: "map-scroll" }, space);
    card.place = h("article", { class: "map-card" }, h("div", { class: "heading" }, card.title, card.rebalance), card.summary, scroll, card.line);
    card.scroll = scroll;
    card.map = new ShardMap({ scroll, space, canvas, onpoint: (item) => this.#point(card, item), onchoose: (shard) => this.onchoose(type, shard) });
    card.map.setMembers(this.members, this.bad);
    return card;
  }

  #point(card, item) {
    const words = card.map.words(item);
    card.line.textContent = words || "\u00a0";
    if (item >= 0 && document.activeElement === card.map.canvas) this.announce(words);
  }

  setMembers(members, bad) {
    Object.assign(this, { members, bad });
    for (const card of this.cards.values()) card.map.setMembers(members, bad);
  }

  setRates(rates) {
    for (const [type, card] of this.cards) card.map.setRates(rates[type] ?? {});
  }

  /** The types whose maps are shown, each with the version that it has. */
  get known() {
    return [...this.cards].map(([type, card]) => `${type}=${card.map.map?.version ?? ""}`);
  }

  /** True if a shard moves. */
  get moving() {
    return [...this.cards.values()].some((card) => card.map.map?.moving);
  }

  /** Take an answer of `/v1/maps`. Returns the shards that moved, each with its type, and whether any
   * map has changed. */
  take(answers, now) {
    const moved = [];
    let changed = false;
    for (const answer of answers) {
      const card = this.cards.get(answer.type);
      if (!card) continue;
      changed ||= answer.shards !== null;
      moved.push(...card.map.take(answer, now).map((one) => ({ type: answer.type, ...one })));
    }
    return [moved, changed];
  }

  /** The rows of all maps. */
  rows() {
    return [...this.cards.values()].flatMap(({ type, map }) => (map.map?.shards ?? []).map((shard, i) => ({ type, shard, home: homeOf(map.map, i), state: map.map.states[i], rate: map.rates[shard] ?? 0 })));
  }

  /** The last changes of homes, newest first. */
  changes() {
    const rows = [...this.cards.values()].flatMap(({ type, map }) => (map.map?.changes ?? []).map(([shard, age, from, to, why, took]) => ({ type, shard, at: Date.now() - 1000 * age, from, to, why, took })));
    return rows.sort((a, b) => b.at - a.at);
  }

  placeAll() {
    for (const card of this.cards.values()) card.map.place();
  }

  repaint() {
    for (const card of this.cards.values()) card.map.soon();
  }

  focus() {
    [...this.cards.values()].find((card) => !card.scroll.hidden)?.map.canvas.focus();
  }

  draw() {
    for (const card of this.cards.values()) if (card.map.map) this.#summary(card);
  }

  #summary({ type, map, summary, scroll, line }) {
    const now = map.map;
    scroll.hidden = line.hidden = now.shards.length === 0;
    const moving = [...now.states].filter((one) => one !== "r").length;
    const shards = count(now.shards.length, "shard");
    const nodes = count(now.nodes.length, "node");
    const where = now.shards.length ? `${shards} on ${nodes}, ${moving ? `${number(moving)} on the move or starting` : "all run"}.` : "No shard has a home yet: each gets one with its first message.";
    show(summary,
      where, " Coordinator: ", now.coordinator ? name(address(now.coordinator)) : "not known here yet",
      now.complete || !now.coordinator ? "." : ". It does not answer: these are the homes that this node knows.",
      now.paused ? " Rebalancing is paused." : "", now.held && !now.paused ? ` Nothing moves for balance: ${visible(now.held)}.` : "",
      map.top ? ` Most messages: ${rate(map.top)} for one shard.` : "");
    map.canvas.setAttribute("aria-label", now.shards.length ? `Map of ${shards} of ${visible(type)} on ${nodes}` : `Map of ${visible(type)}, which has no shard yet`);
    line.textContent ||= "\u00a0";
  }
}
