// The page: asks the node, keeps what it learns, and draws what has changed, once per frame.
//
//   stream of events ──> members, events ──┐
//   /v1/overview, each 2 s ──> all nodes ──┤
//   /v1/findings, each 5 s ──> attention ──┼──> dirty views ──> one frame
//   /v1/maps, each second ──> the maps ────┤
//   /v1/history, each 10 s ──> the hour ───┘
//
// Out of sight it asks each 20 s. While the node does not answer, it asks less and less often.

import { Actions } from "./actions.js";
import { Api } from "./api.js";
import { Entities, changeRows } from "./entities.js";
import { $, LongList, fill, h, name, offer, prose, show } from "./dom.js";
import { address, amount, bytes, clock, count, duration, missing, number, percent, rate, reason, sentence, visible } from "./format.js";
import { Handlers } from "./handlers.js";
import { Maps } from "./maps.js";
import { EVENTS_MAX, HISTORY, addUp, applyEvent, attention, dropTable, earlierEvents, endedNodes, hourOf, point, rates, stateOf, stateWord, typeTable } from "./model.js";
import { Plots } from "./plot.js";

const OVERVIEW_MS = 2_000;
const MAP_MS = 1_000;
const MOVING_MS = 250;
const HIDDEN_MS = 20_000;
const RETRY_MAX_MS = 15_000;
const LIST_MS = 5_000;
const FINDINGS_MS = 5_000;
const HISTORY_MS = 10_000;
const CHANGES = 12;
const PROBLEMS = 30;
const LETTERS = 50;
const EVENTS_SHOWN = 200;
const MINUTE_MS = 60_000;
const VIEWS = ["cluster", "handlers", "entities", "trouble", "events", "settings"];
const MARKS = { good: "●", note: "◌", warning: "▲", fault: "✕" };
const KEYS = [
  ["1 … 6", "a view"], ["/", "search for an entity"], ["m", "the maps of shards"], ["t", "the next theme"],
  ["?", "this list"], ["arrow keys", "in the map and in lists: choose"], ["Enter", "open what is chosen"], ["Esc", "close a dialog"],
];

const api = new Api();
const state = {
  overview: null, findings: null, before: null, points: [], events: [], earlier: null, opened: Date.now(), paused: false, view: "", settings: null,
  slow: null, letters: null, wanted: null, drops: new Map(), failures: 0, list: null, sort: ["node", 1],
};
const dirty = new Set();
let frame = 0;
/** What gets the focus when the view that was asked for is shown; null is the whole view. */
let next = null;

/** Draw parts of the page in the next frame. */
function draw(...parts) {
  parts.forEach((part) => dirty.add(part));
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const now = [...dirty];
    dirty.clear();
    now.forEach((part) => DRAW[part]());
  });
}

/** Tell readers of screens, and nobody else. */
function announce(text) {
  $("announcement").textContent = text;
}

function fail(failure) {
  $("failure").hidden = !failure;
  $("failure").textContent = failure ? reason(failure) : "";
}

/** Call `work` again and again: `pause` after each success, ever later after failures. */
class Repeating {
  constructor(work, pause) {
    Object.assign(this, { work, pause, timer: 0, running: false, failures: 0, again: false });
  }

  async run() {
    clearTimeout(this.timer);
    if (this.running) {
      this.again = true;
      return;
    }
    this.running = true;
    this.again = false;
    let wait = this.pause();
    try {
      await this.work();
      this.failures = 0;
    } catch (failure) {
      this.failures++;
      wait = Math.max(wait, Math.min(RETRY_MAX_MS, 500 * 2 ** this.failures));
      onFailure(failure);
    }
    this.running = false;
    this.timer = setTimeout(() => this.run(), this.again ? 50 : document.hidden ? HIDDEN_MS : wait);
  }
}

function onFailure(failure) {
  if (failure.status === undefined) throw failure;
  if (failure.status === 401) {
    setLink("refused", "needs a token");
    if (!$("dialog").open) actions.token("This node's pages need a token.");
    return;
  }
  if (failure.status === 0) setLink("lost", "no answer");
  fail(failure);
}

function setLink(word, text) {
  const link = $("link");
  if (link.dataset.state !== word) announce(`Connection: ${text}`);
  link.dataset.state = word;
  link.textContent = text;
}

// ---- what comes from the node

const overviews = new Repeating(async () => {
  const answer = await api.get(["overview"]);
  const now = performance.now();
  fail(null);
  setLink("live", "live");
  if (answer.at === state.overview?.at) return; // readers share an answer
  if (state.overview) {
    const made = rates(state.overview, answer, Math.max(0.1, answer.at - state.overview.at));
    state.points.push([now, made]);
    if (state.points.length > HISTORY) state.points.shift();
    state.rates = made;
    plots.add({ at: Date.now(), ...point(answer, made) });
  }
  state.overview = answer;
  state.minute = addUp(state.points, now, MINUTE_MS);
  setTypes(answer.types);
  maps.setMembers(answer.nodes.map((node) => node.node), lostNodes(answer));
  draw("head", "nodes", "types", "plots", "moves", "drops");
}, () => OVERVIEW_MS);

const lostNodes = (overview) => new Set(overview.nodes.filter((node) => !node.reachable).map((node) => node.node));

/** An examination asks every node: where it takes long, it is asked for less often. */
const examinations = new Repeating(async () => {
  const began = performance.now();
  state.findings = await api.get(["findings"]);
  state.examined = performance.now() - began;
  draw("problems");
}, () => Math.max(FINDINGS_MS, 10 * (state.examined ?? 0)));

const placements = new Repeating(async () => {
  const { known } = maps;
  if (!known.length || document.hidden || state.view !== "cluster") return;
  const answer = await api.get(["maps"], { known });
  const [moved, changed] = maps.take(answer.maps, performance.timeOrigin + performance.now());
  if (moved.length) announce(moved.length === 1 ? `Shard ${visible(moved[0].shard)} moved to ${visible(address(moved[0].to))}` : `${count(moved.length, "shard")} moved`);
  draw("maps", ...(changed ? ["moves", "shardTable"] : []));
}, () => (maps.moving ? MOVING_MS : MAP_MS));

const loads = new Repeating(async () => {
  if (document.hidden || state.view !== "cluster") return;
  maps.setRates((await api.get(["shard-rates"])).rates);
  draw("maps", "shardTable");
}, () => LIST_MS);

const hours = new Repeating(async () => {
  if (document.hidden || state.view !== "cluster") return;
  const answer = await api.get(["history"]);
  plots.setHour(hourOf(answer, Date.now()));
  $("plots-ended").textContent = endedNodes(answer, Date.now());
  $("plots-ended").hidden = !$("plots-ended").textContent;
  draw("plots");
}, () => HISTORY_MS);

/** The table of shards has columns that the maps do not: they are asked for only while it is seen. */
const lists = new Repeating(async () => {
  if (!state.list || document.hidden || state.view !== "cluster") return;
  const answers = await Promise.all([...maps.cards.keys()].map((type) => api.get(["shards", type])));
  state.more = new Map(answers.flatMap((answer) => answer.shards.map((row) => [`${answer.type}\n${row.shard}`, { unit: answer.load_unit, ...row }])));
  draw("shardTable");
}, () => LIST_MS);

const handling = new Repeating(async () => {
  if (state.view !== "handlers") return;
  await handlers.ask();
  draw("handlers");
}, () => LIST_MS);

const slow = new Repeating(async () => {
  if (state.view !== "trouble") return;
  state.slow = await api.get(["slow"]);
  draw("slow");
}, () => LIST_MS);

const letters = new Repeating(async () => {
  if (state.view !== "trouble") return;
  state.letters = await api.get(["dead-letters"], { ...state.wanted, limit: LETTERS });
  draw("letters");
}, () => LIST_MS);

/** Show the last dropped messages of one type and reason, or all. */
function chooseLetters(wanted) {
  state.wanted = wanted;
  letters.run();
  $("letters-title").scrollIntoView({ block: "nearest" });
}

const stream = new Repeating(async () => {
  if (document.hidden && state.failures) return;
  await api.events(() => { state.failures = 0; }, onEvent);
  state.failures = 1;
}, () => 1_000);

function onEvent(event) {
  if (event.event === "snapshot") {
    for (const member of event.members) {
      const node = state.overview?.nodes.find((one) => one.node === member.node);
      if (node) Object.assign(node, { status: member.status, reachable: member.reachable });
    }
  } else {
    state.events.unshift({ at: Date.now(), ...event });
    state.events.length = Math.min(state.events.length, EVENTS_MAX);
    if (event.node && event.text) announce(visible(event.text));
    if (state.overview && applyEvent(state.overview.nodes, event)) {
      maps.setMembers(maps.members, lostNodes(state.overview));
    }
    draw("events");
  }
  if (state.overview) draw("nodes");
  clearTimeout(state.soon);
  state.soon = setTimeout(() => { overviews.run(); placements.run(); examinations.run(); }, 150);
}

function setTypes(types) {
  const names = types.map((type) => type.type);
  offer($("entity-type"), names);
  const before = maps.cards.size;
  maps.setTypes(types.filter((type) => !type.within.length).map((type) => type.type), state.overview.write);
  if (maps.cards.size !== before) [placements, loads].forEach((one) => one.run());
  handlers.setTypes(names);
  if (state.view === "entities") entities.open();
}

// ---- what is drawn

function mark(level, word) {
  return h("span", { class: `state ${level}` }, h("span", { "aria-hidden": "true" }, MARKS[level]), ` ${word}`);
}

function meter(part) {
  const bar = h("span", { class: `bar${part > 0.9 ? " high" : ""}`, "aria-hidden": "true" }, h("i"));
  bar.firstChild.style.width = `${Math.min(100, 100 * part)}%`;
  return h("span", { class: "meter" }, percent(part), bar);
}

const shardsOf = (node) => Object.values(node.types ?? {}).reduce((all, type) => all + type.shards, 0);
const entitiesOf = (node) => Object.values(node.types ?? {}).reduce((all, type) => all + type.entities, 0);
const byNode = (node) => state.rates?.byNode.get(node.node) ?? null;

/** What is special about a node, in words. */
const marksOf = (node) => [node.leader && "leader", node.oldest && "oldest", node.node === state.overview.self && "this one"].filter(Boolean);

/** Columns of the nodes, with what they are sorted by. */
const NODE_COLUMNS = [
  { title: "node", by: (node) => node.node, of: (node) => [name(address(node.node)), ...marksOf(node).map((word) => [" ", h("small", { class: "tag" }, word)])] },
  { title: "state", by: (node) => stateOf(node).word, of: (node) => mark(stateOf(node).level, stateOf(node).word) },
  { title: "zone", by: (node) => node.zone, of: (node) => name(node.zone || "–", 30) },
  { title: "roles", by: (node) => node.roles.join(), of: (node) => name(node.roles.join(", ") || "–", 60) },
  { title: "version", by: (node) => node.version, of: (node) => name(node.version || "–", 30) },
  { title: "shards", class: "amount", by: shardsOf, of: (node) => (node.answered ? number(shardsOf(node)) : "–") },
  { title: "entities", class: "amount", by: entitiesOf, of: (node) => (node.answered ? number(entitiesOf(node)) : "–") },
  { title: "busy", class: "amount", by: (node) => node.vitals?.busy ?? -1, of: (node) => (node.answered ? meter(node.vitals.busy) : "–") },
  { title: "messages/s", class: "amount", by: byNode, of: (node) => amount(byNode(node)) },
  { title: "waiting", class: "amount", by: (node) => node.vitals?.mailbox ?? -1, of: (node) => (node.answered ? amount(node.vitals.mailbox) : "–") },
  { title: "late by", class: "amount", by: (node) => node.vitals?.lag ?? -1, of: (node) => duration(node.vitals?.lag) },
  { title: "memory", class: "amount", by: (node) => node.vitals?.rss ?? -1, of: (node) => bytes(node.vitals?.rss) },
  { title: "commands", of: commandsOf },
];

for (const column of NODE_COLUMNS.filter((one) => one.by)) {
  column.head = h("button", { type: "button", class: "sort", onclick: () => sortBy(column) }, column.title);
}

function sortBy(column) {
  state.sort = [column.title, state.sort[0] === column.title ? -state.sort[1] : 1];
  draw("nodes");
}

function commandsOf(node) {
  if (!state.overview.write) return h("span", { class: "muted" }, "read-only");
  const commands = node.service === "open" ? ["cordon", "drain"] : node.service === "cordoned" ? ["uncordon", "drain"] : ["uncordon"];
  return commands.map((command) => h("button", { type: "button", "data-node": node.node, "data-command": command, "aria-label": `${command} ${visible(address(node.node))}`, onclick: () => actions.service(node, command) }, `${command}…`));
}

/** Replace the content of a place, and give the focus back to the same control in it. */
function keepingFocus(place, work) {
  const { node, command } = place.contains(document.activeElement) ? document.activeElement.dataset : {};
  work();
  if (node) [...place.querySelectorAll("button[data-node]")].find((one) => one.dataset.node === node && one.dataset.command === command)?.focus();
}

const DRAW = {
  head() {
    const { cluster, self, converged, nodes, build } = state.overview;
    const up = nodes.filter((node) => node.reachable && node.status === "up").length;
    const closed = nodes.filter((node) => node.service !== "open").length;
    $("cluster-name").textContent = visible(cluster, 80);
    document.title = `${up}/${nodes.length} up · ${visible(cluster, 60)} · shardbus`;
    show($("summary"), `${up} of ${count(nodes.length, "node")} up, ${closed ? `${closed} closed to new shards, ` : ""}${converged ? "converged" : "not converged"}. Seen by `, name(address(self)), `, shardbus ${build}.`);
  },
  problems() {
    const found = attention(state.findings);
    const lines = found.length || !state.findings ? found : [{ level: "good", text: "Nothing needs attention.", advice: "" }];
    show($("problems"), lines.slice(0, PROBLEMS).map(({ level, check, text, advice }) =>
      h("li", { class: level }, mark(level, level === "good" ? "" : level), " ", check && check !== "lost" ? [h("small", { class: "tag" }, visible(check, 40)), " "] : null, h("strong", {}, prose(text, 1000)), advice ? [" ", prose(advice, 1000)] : null)),
      lines.length > PROBLEMS ? h("li", {}, `and ${count(lines.length - PROBLEMS, "other")}`) : null);
    const failing = state.findings?.failures.length ?? 0;
    $("failing-count").hidden = !failing;
    $("failing-count").textContent = number(failing);
    $("failing-count").title = `${count(failing, "handler")} failed in the last ten minutes`;
  },
  nodes() {
    const [title, sign] = state.sort;
    const column = NODE_COLUMNS.find((one) => one.title === title);
    const rows = [...state.overview.nodes].sort((a, b) => {
      const [x, y] = [column.by(a) ?? -1, column.by(b) ?? -1];
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    keepingFocus($("nodes"), () => fill($("nodes"), NODE_COLUMNS, rows, "No member is known."));
    [...$("nodes").tHead.rows[0].cells].forEach((cell, i) => {
      if (NODE_COLUMNS[i].title === title) cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
  },
  types() {
    fill($("types"), [
      { title: "type", of: (row) => h("a", { href: "#handlers", "aria-label": `Handlers of ${visible(row.type, 60)}`, onclick: () => handlers.choose(row.type) }, name(row.type, 60)) },
      { title: "messages/s", class: "amount", of: (row) => amount(row.received) },
      { title: "p50", class: "amount", of: (row) => duration(row.handled[0]) },
      { title: "p99", class: "amount", of: (row) => duration(row.handled[1]) },
      { title: "wait p99", class: "amount", of: (row) => duration(row.waited) },
      { title: "entities", class: "amount", of: (row) => number(row.entities) },
      { title: "shards", class: "amount", of: (row) => number(row.shards) },
      { title: "without a home", class: "amount", of: (row) => number(row.buffered) },
      { title: "failures", class: "amount", of: (row) => (row.failures ? h("span", { class: "state fault" }, number(row.failures)) : "0") },
    ], typeTable(state.overview, state.rates), "This node's application has no type.");
  },
  plots() {
    if (state.view !== "cluster") return;
    const span = plots.draw(Date.now()) / 1000;
    $("plots-span").textContent = `the last ${span < 3600 ? duration(span) : "hour"}, as the nodes have kept it`;
  },
  handlers: () => state.view === "handlers" && handlers.draw(),
  drops() {
    const rows = dropTable(state.overview, state.minute.drops);
    const recent = rows.reduce((all, row) => all + row.recent, 0) + state.minute.slow;
    $("trouble-count").hidden = !recent;
    $("trouble-count").textContent = amount(recent);
    $("trouble-count").title = "drops and slow handlers in the last minute";
    if (state.view !== "trouble") return;
    const examples = (row) => {
      if (!row.type && !["unknown_type", "not_allowed"].includes(row.reason)) return "–";
      const wanted = row.type ? { type: row.type, reason: row.reason } : { reason: row.reason };
      return h("button", { type: "button", "data-node": row.type, "data-command": row.reason, "aria-label": `show ${visible(row.reason)} of ${visible(row.type || "frames")}`, onclick: () => chooseLetters(wanted) }, "show");
    };
    keepingFocus($("drops"), () => fill($("drops"), [
      { title: "reason", of: (row) => name(row.reason) },
      { title: "type", of: (row) => (row.type ? name(row.type) : h("span", { class: "muted" }, "frames")) },
      { title: "last minute", class: "amount", of: (row) => number(row.recent) },
      { title: "all", class: "amount", of: (row) => number(row.total) },
      { title: "on", of: (row) => h("span", {}, row.nodes.slice(0, 4).map(([node, n], i) => [i ? ", " : "", name(address(node)), ` ${number(n)}`]), row.nodes.length > 4 ? ` and ${row.nodes.length - 4} more` : null) },
      { title: "the last", of: examples },
    ], rows, "No message was dropped."));
  },
  letters() {
    const { wanted } = state;
    $("letters-all").hidden = !wanted;
    $("letters-replay").hidden = !wanted || !state.overview?.write;
    const found = state.letters?.letters ?? [];
    show($("letters-summary"),
      wanted ? ["Those with reason ", name(wanted.reason), wanted.type ? [" of ", name(wanted.type)] : null, "."] : "Newest first, as each node keeps them.",
      state.letters?.more ? ` There are more: these are ${LETTERS}.` : null, missing(state.letters?.silent ?? []));
    fill($("letters"), [
      { title: "at", of: (row) => clock(Date.parse(row.at)) },
      { title: "reason", of: (row) => name(row.reason) },
      { title: "type", of: (row) => name(row.type) },
      { title: "entity", of: (row) => name(row.entity || "–") },
      { title: "method", of: (row) => name(row.method || "–") },
      { title: "from", of: (row) => name(row.sender ? address(row.sender) : "–") },
      { title: "on", of: (row) => name(address(row.node)) },
      { title: "body", class: "amount", of: (row) => `${bytes(row.bytes)}${row.kept ? "" : ", not kept"}` },
    ], found, "No dropped message is kept.");
  },
  slow() {
    fill($("slow"), [
      { title: "at", of: (row) => clock(Date.parse(row.at)) },
      { title: "node", of: (row) => name(address(row.node)) },
      { title: "type", of: (row) => name(row.type) },
      { title: "how", of: (row) => row.how },
      { title: "report", class: "wide", of: (row) => name(row.text, 1000) },
    ], state.slow?.handlers ?? [], "No handler was slow.");
  },
  maps: () => maps.draw(),
  moves() {
    fill($("moves"), [{ title: "type", of: (row) => name(row.type, 60) }, { title: "shard", of: (row) => name(row.shard, 60) }, ...changeRows], maps.changes().slice(0, CHANGES), "No home has changed since the coordinators lead.");
  },
  shardTable() {
    state.list?.set(maps.rows().map((row) => ({ ...row, more: state.more?.get(`${row.type}\n${row.shard}`) })));
  },
  events() {
    if (state.view !== "events" || state.paused) return;
    const wanted = $("event-filter").value.toLowerCase();
    const rows = [...state.events, ...(state.earlier ?? [])].filter((one) => `${one.event} ${one.type ?? ""} ${one.text}`.toLowerCase().includes(wanted));
    const shown = rows.slice(0, EVENTS_SHOWN);
    $("event-summary").textContent = `${sentence(count(rows.length, "event"))}, newest first${rows.length > shown.length ? `, of which the last ${shown.length} are shown` : ""}. Those from before this page was opened are the last that each node keeps.`;
    show($("event-list"), shown.map((one) => h("li", {}, h("time", {}, clock(one.at)), " ", h("span", { class: "kind" }, visible(one.event, 60)), " ", one.type ? [name(one.type, 60), ": "] : null, name(one.text ?? ""), one.seen_by && one.seen_by !== state.overview?.self ? h("span", { class: "muted" }, " · seen by ", name(address(one.seen_by))) : null)));
  },
  settings() {
    if (state.view !== "settings" || !state.settings) return;
    const wanted = $("setting-filter").value.toLowerCase();
    const changed = $("setting-changed").checked;
    const rows = state.settings.settings.filter((row) => `${row.setting} ${row.origin}`.toLowerCase().includes(wanted) && !(changed && row.origin === "default"));
    show($("settings-summary"), `${sentence(count(rows.length, "setting"))} of `, name(address(state.settings.node)), ". Secrets are masked.");
    fill($("settings"), [
      { title: "setting", of: (row) => h("code", {}, visible(row.setting)) },
      { title: "value", of: (row) => h("code", {}, visible(JSON.stringify(row.value))) },
      { title: "set by", of: (row) => (row.origin === "default" ? h("span", { class: "muted" }, "default") : name(row.origin)) },
    ], rows, "No such setting.");
  },
};

async function showShard(type, shard) {
  const place = $("shard-detail");
  const from = document.activeElement;
  place.hidden = false;
  show(place, h("p", { class: "muted" }, "Asking its coordinator…"));
  try {
    const answer = await api.get(["explain", type], { shard });
    const history = h("table", { class: "lines" });
    fill(history, changeRows, (answer.history ?? []).toReversed().map((row) => ({ ...row, at: Date.parse(row.at), took: row.seconds })), "Its home has not changed since this coordinator leads.");
    show(place,
      h("h3", {}, "Shard ", name(shard), " of ", name(type, 60)),
      h("p", {}, `${answer.state} on `, answer.node ? name(address(answer.node)) : "no node", `, epoch ${answer.epoch}`, answer.fence ? `, fence ${answer.fence}.` : "."),
      h("div", { class: "scrolls" }, history),
      h("div", { class: "row" },
        h("button", { type: "button", onclick: () => entities.listShard(type, shard) }, "List its entities"),
        h("button", { type: "button", onclick: () => { place.hidden = true; from.focus(); } }, "Close")),
    );
    place.focus({ preventScroll: true });
  } catch (failure) {
    show(place, h("p", { class: "failure" }, reason(failure)));
  }
}

// ---- the parts

const plots = new Plots($("plots"), [
  { key: "received", title: "Messages to handlers", write: rate },
  { key: "handled", title: "Handlers, p99", write: duration },
  { key: "waited", title: "Waits, p99", write: duration },
  { key: "store", title: "Store, mean of a call", write: duration },
  { key: "failures", title: "Failures", write: rate },
  { key: "busy", title: "Busiest node", write: percent },
  { key: "lag", title: "Loop lag, worst node", write: duration },
  { key: "waiting", title: "Messages waiting", write: amount },
  { key: "entities", title: "Entities in memory", write: amount },
  { key: "dropped", title: "Dropped", write: rate },
  { key: "late", title: "Asks timed out", write: rate },
  { key: "nodes", title: "Nodes that answer", write: amount },
]);
const maps = new Maps($("maps"), { onchoose: showShard, onrebalance: (type) => actions.rebalance(type), announce });
const handlers = new Handlers(api);
const actions = new Actions(api, {
  types: () => state.overview.types.filter((type) => !type.within.length).map((type) => type.type),
  ondone: (what) => {
    overviews.run();
    placements.run();
    letters.run();
    if (what === "token") {
      entities.again();
      stream.run();
      showView();
    }
  },
});
const entities = new Entities(api, {
  actions, announce, go: (view) => { location.hash = view; },
  hasState: (type) => state.overview?.types.find((one) => one.type === type)?.state ?? false,
  writes: () => state.overview?.write ?? false,
});

function showView() {
  const wanted = location.hash.slice(1);
  state.view = VIEWS.includes(wanted) ? wanted : "cluster";
  for (const view of VIEWS) $(`view-${view}`).hidden = view !== state.view;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${state.view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (state.view === "settings") {
    api.get(["settings"]).then((answer) => { state.settings = answer; draw("settings"); }, onFailure);
  }
  if (state.view === "events" && !state.earlier) {
    api.get(["events", "recent"], { limit: EVENTS_MAX }).then((answer) => {
      state.earlier = earlierEvents(answer.events, state.opened, Date.now() - Date.parse(answer.time));
      draw("events");
    }, onFailure);
  }
  if (state.view === "entities") entities.open();
  if (state.view === "handlers") handling.run();
  if (state.view === "trouble") [slow, letters].forEach((one) => one.run());
  if (state.view === "cluster") {
    maps.placeAll();
    [placements, loads, hours].forEach((one) => one.run());
  }
  if (state.overview) draw("plots", "drops");
  draw("events", "handlers");
}

function setTheme(theme) {
  if (theme === "system") {
    delete document.documentElement.dataset.theme;
    localStorage.removeItem("shardbus-theme");
  } else {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("shardbus-theme", theme);
  }
  $("theme-button").textContent = `Theme: ${theme}`;
  maps.repaint();
}

function nextTheme() {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme({ system: "dark", dark: "light", light: "system" }[now]);
}

function showHelp() {
  const off = h("input", { type: "checkbox", checked: localStorage.getItem("shardbus-keys") !== "off", onchange: () => localStorage.setItem("shardbus-keys", off.checked ? "on" : "off") });
  actions.help(KEYS, h("label", { class: "tick" }, off, " single keys are shortcuts"));
}

/** Show a view and focus a place in it, once it is shown. */
function go(view, place) {
  if (location.hash === `#${view}`) place.focus();
  else {
    next = place;
    location.hash = view;
  }
}

function onKey(event) {
  const inField = event.target.closest("input, select, textarea, dialog");
  if (inField || event.ctrlKey || event.altKey || event.metaKey || localStorage.getItem("shardbus-keys") === "off") return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = view;
  else if (event.key === "/") go("entities", $("entity-prefix"));
  else if (event.key === "m") go("cluster", maps);
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") showHelp();
  else return;
  event.preventDefault();
}

function toggleForm() {
  const table = !state.list;
  $("map-form").setAttribute("aria-pressed", String(table));
  $("map-area").hidden = table;
  $("map-table").hidden = !table;
  state.list = !table ? null : new LongList($("map-table"), [
    { title: "type", of: (row) => name(row.type, 60) },
    { title: "shard", of: (row) => name(row.shard, 60) },
    { title: "node", of: (row) => (row.home ? name(address(row.home)) : "–") },
    { title: "state", of: (row) => stateWord(row.state) },
    { title: "messages/s", of: (row) => amount(row.rate) },
    { title: "entities", of: (row) => number(row.more?.entities) },
    { title: "load", of: (row) => (row.more?.load == null ? "–" : `${amount(row.more.load)} ${row.more.unit}`) },
  ], { label: "Shards", onchoose: (row) => showShard(row.type, row.shard) });
  if (!table) show($("map-table"));
  draw("shardTable");
  if (table) lists.run();
  else maps.placeAll();
}

$("token-button").addEventListener("click", () => actions.token());
$("theme-button").addEventListener("click", nextTheme);
$("help-button").addEventListener("click", showHelp);
$("letters-all").addEventListener("click", () => chooseLetters(null));
$("letters-replay").addEventListener("click", () => actions.replay(state.wanted));
$("map-form").addEventListener("click", toggleForm);
$("event-filter").addEventListener("input", () => draw("events"));
$("event-pause").addEventListener("click", () => {
  state.paused = !state.paused;
  $("event-pause").setAttribute("aria-pressed", String(state.paused));
  draw("events");
});
$("setting-filter").addEventListener("input", () => draw("settings"));
$("setting-changed").addEventListener("change", () => draw("settings"));
document.addEventListener("keydown", onKey);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) [overviews, examinations, placements, loads, hours, lists, handling, slow, letters, stream].forEach((one) => one.run());
});
window.addEventListener("hashchange", () => {
  showView();
  if (next) next.focus();
  else $("main").focus({ preventScroll: true });
  next = null;
});
setTheme(localStorage.getItem("shardbus-theme") ?? "system");
showView();
[overviews, examinations, stream, lists].forEach((one) => one.run());
