// What the page computes: rates, differences of maps, layouts and problems. Pure: no element, no
// request, no clock. Everything that arrives here comes from a node and may have any text in it.

import { address, clock, count, listed, number, visible } from "./format.js";

export const HISTORY = 150;
export const EVENTS_MAX = 500;
const SAME_MS = 10_000;
export const ARRIVED_MS = 10_000;
const CELLS = [30, 22, 16, 11, 8, 6, 5];
const HOUR_MS = 3_600_000;
const SPAN_MIN_MS = 300_000;
const GAP_MS = 45_000;
const LANE_MIN = 12;
export const LEVELS = 5;
const SUBJECTS = 5;

// ---- the cluster

/** The state of a member in one word, and how grave it is. */
export function stateOf(node) {
  if (!node.reachable) return { word: "unreachable", level: "fault" };
  if (["down", "exiting", "removed"].includes(node.status)) return { word: node.status, level: "fault" };
  if (node.suspended) return { word: "suspended", level: "fault" };
  if (!node.answered) return { word: `${node.status}, silent`, level: "warning" };
  if (node.status !== "up") return { word: node.status, level: "warning" };
  if (node.service !== "open") return { word: node.service, level: "warning" };
  return { word: "up", level: "good" };
}

/** Apply an event of the stream to the members; the next overview confirms it. True if it changed
 * one. */
export function applyEvent(nodes, event) {
  const node = nodes.find((one) => one.node === event.node);
  if (!node) return false;
  const status = {
    MemberUp: "up", MemberLeaving: "leaving", MemberExiting: "exiting", MemberDowned: "down",
    MemberRemoved: "removed", MemberWeaklyUp: "weakly_up",
  }[event.event];
  if (status) node.status = status;
  else if (event.event === "UnreachableMember" || event.event === "QuarantinedMember") node.reachable = false;
  else if (event.event === "ReachableMember") node.reachable = true;
  else return false;
  return true;
}

/** What happened before the page was opened, at `opened` on its clock, newest first: from the last events
 * of all nodes, which `offset` brings to that clock. An event of membership that several nodes have
 * seen within `SAME_MS` is one; of one node each is another. */
export function earlierEvents(rows, opened, offset) {
  const last = new Map();
  const earlier = rows.map((row) => ({ ...row, at: Date.parse(row.at) + offset })).filter((row) => row.at < opened);
  const once = earlier.filter((row) => {
    if (row.type) return true;
    const key = `${row.event}\n${row.node}\n${row.text}`;
    const before = last.get(key);
    if (before && row.at - before.at <= SAME_MS && !before.by.has(row.seen_by)) {
      before.by.add(row.seen_by);
      return false;
    }
    last.set(key, { at: row.at, by: new Set([row.seen_by]) });
    return true;
  });
  return once.reverse().slice(0, EVENTS_MAX);
}

const sum = (values) => values.reduce((total, one) => total + one, 0);
const typesOf = (node) => Object.values(node.types ?? {});

/** Rates between two overviews that arrived `span` seconds apart. Each node is compared with itself:
 * one that came, went or started again adds nothing that never happened. */
export function rates(before, after, span) {
  const found = {
    received: 0, dropped: 0, late: 0, failures: 0, slow: 0, storeErrors: 0, storeCalls: 0,
    storeSeconds: 0, byNode: new Map(), timesByNode: new Map(), byType: new Map(), drops: new Map(),
  };
  const earlier = new Map((before?.nodes ?? []).map((node) => [node.node, node]));
  for (const node of after.nodes) {
    const then = earlier.get(node.node);
    if (!node.answered || !then?.answered) continue;
    const grown = (now, old) => Math.max(0, (now ?? 0) - (old ?? 0));
    const received = sum(Object.entries(node.types).map(([name, type]) => grown(type.received, then.types[name]?.received)));
    found.byNode.set(node.node, received / span);
    const times = { handled: [], waited: [] };
    found.timesByNode.set(node.node, times);
    for (const [name, type] of Object.entries(node.types)) {
      const old = then.types[name];
      const row = found.byType.get(name) ?? { received: 0, handled: [], waited: [] };
      row.received += grown(type.received, old?.received) / span;
      for (const what of ["handled", "waited"]) {
        (type[what] ?? []).forEach((n, i) => {
          const more = grown(n, old?.[what]?.[i]);
          for (const one of [row[what], times[what]]) one[i] = (one[i] ?? 0) + more;
        });
      }
      found.byType.set(name, row);
    }
    found.received += received / span;
    found.failures += sum(Object.entries(node.types).map(([name, type]) => grown(type.failures, then.types[name]?.failures))) / span;
    found.late += grown(node.late, then.late) / span;
    found.slow += grown(sum(node.slow.map((row) => row[2])), sum(then.slow.map((row) => row[2])));
    found.storeCalls += grown(node.store[0], then.store[0]);
    found.storeSeconds += grown(node.store[1], then.store[1]);
    found.storeErrors += grown(node.store[2], then.store[2]);
    const old = new Map(then.dropped.map((row) => [`${row[0]}\n${row[1]}`, row[2]]));
    for (const [type, reason, n] of node.dropped) {
      const more = grown(n, old.get(`${type}\n${reason}`));
      if (!more) continue;
      found.dropped += more / span;
      found.drops.set(`${type}\n${reason}`, (found.drops.get(`${type}\n${reason}`) ?? 0) + more);
    }
  }
  return found;
}

/** The value that `part` of the counted values do not exceed, interpolated within its bound, as a
 * node does; Infinity beyond the last bound, null without a value. */
export function quantile(counts, bounds, part) {
  const wanted = part * sum(counts);
  if (!wanted) return null;
  let below = 0;
  for (let i = 0; i < bounds.length; i++) {
    const least = i ? bounds[i - 1] : 0;
    if (counts[i] && below + counts[i] >= wanted) return least + ((bounds[i] - least) * Math.max(0, wanted - below)) / counts[i];
    below += counts[i] ?? 0;
  }
  return Infinity;
}

/** Types with what all nodes say of them: shards, entities, rates and latencies of the last interval. */
export function typeTable(overview, now) {
  const bounds = overview.latency_bounds ?? [];
  return overview.types.map((type) => {
    const here = overview.nodes.map((node) => node.types?.[type.type]).filter(Boolean);
    const recent = now?.byType.get(type.type);
    return {
      type: type.type, coordinator: type.coordinator,
      shards: sum(here.map((one) => one.shards)), entities: sum(here.map((one) => one.entities)), buffered: sum(here.map((one) => one.buffered)),
      failures: sum(here.map((one) => one.failures)), received: recent?.received ?? null,
      handled: [0.5, 0.99].map((part) => quantile(recent?.handled ?? [], bounds, part)), waited: quantile(recent?.waited ?? [], bounds, 0.99),
    };
  });
}

/** One point for each plot, of the last interval; times are in seconds. As in the hour that the nodes
 * keep, the slowest node counts. */
export function point(overview, now) {
  const up = overview.nodes.filter((node) => node.answered);
  const bounds = overview.latency_bounds ?? [];
  const highest = (values) => values.reduce((top, one) => (top === null || one > top ? one : top), null);
  const slowest = (what) => {
    const found = [...now.timesByNode.values()].map((times) => quantile(times[what], bounds, 0.99)).filter((one) => one !== null);
    return found.length ? Math.min(highest(found), bounds.at(-1) ?? 0) : null;
  };
  return {
    received: now.received,
    handled: slowest("handled"),
    waited: slowest("waited"),
    store: now.storeCalls ? now.storeSeconds / now.storeCalls : null,
    busy: highest(up.map((node) => node.vitals.busy)),
    lag: highest(up.map((node) => node.vitals.lag)),
    entities: sum(up.map((node) => sum(typesOf(node).map((type) => type.entities)))),
    waiting: sum(up.map((node) => node.vitals.mailbox + sum(typesOf(node).map((type) => type.buffered)))),
    dropped: now.dropped,
    failures: now.failures,
    late: now.late,
    nodes: up.length,
  };
}

/** The points of an hour, `{at, ...}` in order, of a node's answer. `now` is the time of this page's
 * clock when it arrived. */
export function hourOf(answer, now) {
  return answer.rows.map((row) => {
    const found = Object.fromEntries(answer.columns.map((column, i) => [column, row[i]]));
    return {
      ...found, at: now - 1000 * found.ago, handled: found.handled || null, waited: found.waited || null,
      store: found.store_calls ? found.store_seconds / found.store_calls : null,
    };
  });
}

/** The nodes of the hour that are members no more, the last one first, in a sentence; empty without any. */
export function endedNodes(answer, now) {
  const ended = answer.ended.map(({ node, ago }) => `${visible(address(node))}, which ended at ${clock(now - 1000 * ago)}`);
  return ended.length ? `With the part of ${listed(ended.reverse(), SUBJECTS)}.` : "";
}

/** The hour of the nodes, and behind it the points of this page. */
export const joined = (hour, own) => [...hour, ...own.filter((one) => one.at > (hour.at(-1)?.at ?? 0))];

/** Drops of all nodes, most first: type, reason, total, in the last minute, nodes. */
export function dropTable(overview, recent) {
  const rows = new Map();
  for (const node of overview.nodes) {
    for (const [type, reason, n] of node.dropped ?? []) {
      const key = `${type}\n${reason}`;
      const row = rows.get(key) ?? { type, reason, total: 0, recent: recent.get(key) ?? 0, nodes: [] };
      row.total += n;
      row.nodes.push([node.node, n]);
      rows.set(key, row);
    }
  }
  return [...rows.values()].sort((a, b) => b.recent - a.recent || b.total - a.total);
}

/** What an operator should look into, of the node's answer of findings: those that are confirmed, the
 * gravest first, then the nodes that were lost, the last one first. */
export function attention(answer) {
  const found = (answer?.findings ?? []).filter((one) => one.confirmed).map(({ level, of, subjects, what, advice, check }) => {
    const shown = subjects.map((one) => visible(of === "members" ? address(one) : one, 80));
    return { level, check, text: `${of === "members" && shown.length === 1 ? "member" : visible(of, 60)} ${listed(shown, SUBJECTS)} ${visible(what, 600)}`, advice: visible(advice, 600) };
  });
  const lost = (answer?.lost ?? []).map((row) => {
    const shards = Object.entries(row.shards).map(([type, { freed, homed }]) => `${number(homed)} of its ${count(freed, "shard")} of ${visible(type, 60)} ${homed === 1 ? "has" : "have"} a home again`);
    return {
      level: "note", check: "lost",
      text: `${visible(address(row.node))} was lost at ${clock(Date.parse(row.at))}${row.by ? `, declared dead by ${visible(address(row.by))}: ${visible(row.why)}` : ""}`,
      advice: shards.length ? `${shards.join("; ")}.` : "",
    };
  });
  return [...found, ...lost];
}

/** Add up the last `span` ms of `[at, rates]`. */
export function addUp(points, now, span) {
  const total = { drops: new Map(), storeErrors: 0, slow: 0 };
  for (const [at, one] of points) {
    if (now - at > span) continue;
    total.storeErrors += one.storeErrors;
    total.slow += one.slow;
    for (const [key, n] of one.drops) total.drops.set(key, (total.drops.get(key) ?? 0) + n);
  }
  return total;
}

// ---- maps of shards

const LETTERS = { r: "running", h: "handing off", s: "starting", u: "without a home" };
export const stateWord = (letter) => LETTERS[letter] ?? "running";

/** The next map after an answer of `/v1/map`: the columns of `before` if it is unchanged. A shard
 * that lost its home stays, without one, until the map knows it again. */
export function nextMap(before, answer) {
  const known = before && before.type === answer.type ? before : null;
  const { changes, nodes, shards, homes, states, ...pace } = answer;
  if (shards === null) return { ...known, ...pace };
  const map = { ...pace, nodes, shards: [...shards], homes: Int32Array.from(homes), states, changes: changes ?? [] };
  const index = new Map(shards.map((shard, i) => [shard, i]));
  const lost = known ? known.shards.filter((shard) => !index.has(shard)) : [];
  if (lost.length && answer.complete) {
    for (const shard of lost) index.set(shard, map.shards.push(shard) - 1);
    map.homes = Int32Array.from([...homes, ...lost.map(() => -1)]);
    map.states += "u".repeat(lost.length);
  }
  map.index = index;
  return map;
}

export const homeOf = (map, i) => (map.homes[i] < 0 ? null : map.nodes[map.homes[i]]);

/** Shards whose home differs between two maps: shard, from and to, which may be null. */
export function diffMaps(before, after) {
  const moved = [];
  if (!before?.shards || before.type !== after.type || before.shards === after.shards) return moved;
  after.shards.forEach((shard, i) => {
    const j = before.index.get(shard);
    if (j === undefined) return;
    const [from, to] = [homeOf(before, j), homeOf(after, i)];
    if (from !== to) moved.push({ shard, from, to });
  });
  return moved;
}

/** Lanes of a map: one per member or home, in the order of `members`, then shards without a home. */
export function lanesOf(map, members) {
  const names = [...new Set([...members, ...map.nodes])];
  const at = new Map(names.map((name, i) => [name, i]));
  const lanes = names.map((node) => ({ node, items: [] }));
  const homeless = { node: null, items: [] };
  map.shards.forEach((_, i) => {
    const node = homeOf(map, i);
    (node === null ? homeless : lanes[at.get(node)]).items.push(i);
  });
  return homeless.items.length ? [...lanes, homeless] : lanes;
}

/** Place the lanes: the largest cells that fit, each lane under the one before. `label` is the width
 * of the names, 0 if they stand above their cells; `height` is the room that there is. */
export function layout(lanes, width, label, height = 440) {
  const room = Math.max(60, width - label - 8);
  let placed = { height: 0 };
  for (const cell of CELLS) {
    placed = placeLanes(lanes, cell, room, label);
    if (placed.height <= height) break;
  }
  return placed;
}

function placeLanes(lanes, cell, room, label) {
  const step = cell + (cell > 8 ? 2 : 1);
  const columns = Math.max(1, Math.floor(room / step));
  const head = label ? 0 : 18;
  const tall = label ? 18 : 0;
  let y = 4;
  const rows = lanes.map((lane) => {
    const lines = Math.ceil(lane.items.length / columns);
    const row = { ...lane, y, top: y + head, height: head + Math.max(tall, LANE_MIN, lines * step) };
    y += row.height + (step > 8 ? 6 : 4);
    return row;
  });
  const place = new Map();
  rows.forEach((row, r) => row.items.forEach((item, i) => place.set(item, [r, i])));
  return { lanes: rows, cell, step, columns, label, height: y, place };
}

/** The corner of a cell. */
export function corner(placed, item) {
  const [r, i] = placed.place.get(item);
  const lane = placed.lanes[r];
  const line = Math.floor(i / placed.columns);
  return [placed.label + (i % placed.columns) * placed.step, lane.top + line * placed.step];
}

/** The cell at a point, or -1. */
export function cellAt(placed, x, y) {
  const lane = placed.lanes.find((one) => y >= one.top && y < one.y + one.height);
  const column = Math.floor((x - placed.label) / placed.step);
  if (!lane || x < placed.label || column >= placed.columns) return -1;
  const line = Math.floor((y - lane.top) / placed.step);
  return lane.items[line * placed.columns + column] ?? -1;
}

/** The cell that a key leads to from `item`. */
export function nextCell(placed, item, key) {
  const lanes = placed.lanes.filter((lane) => lane.items.length);
  if (!lanes.length) return -1;
  if (item < 0 || !placed.place.has(item)) return lanes[0].items[0];
  const [r, i] = placed.place.get(item);
  const lane = placed.lanes[r];
  const here = lanes.indexOf(lane);
  const to = (other, at) => other.items[Math.min(Math.max(0, at), other.items.length - 1)];
  if (key === "ArrowRight") return i + 1 < lane.items.length ? lane.items[i + 1] : to(lanes[here + 1] ?? lane, here + 1 < lanes.length ? 0 : i);
  if (key === "ArrowLeft") return i > 0 ? lane.items[i - 1] : here > 0 ? lanes[here - 1].items.at(-1) : item;
  if (key === "ArrowDown") return i + placed.columns < lane.items.length ? lane.items[i + placed.columns] : to(lanes[here + 1] ?? lane, here + 1 < lanes.length ? i % placed.columns : i);
  if (key === "ArrowUp") return i >= placed.columns ? lane.items[i - placed.columns] : to(lanes[here - 1] ?? lane, here > 0 ? lanes[here - 1].items.length - 1 : i);
  if (key === "Home") return lane.items[0];
  if (key === "End") return lane.items.at(-1);
  return item;
}

// ---- streams and plans

/** Objects in the text of an event stream, and what is left of the text. */
export function parseEvents(text) {
  const parts = text.split("\n\n");
  const rest = parts.pop();
  const found = parts.flatMap((part) => {
    const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
    return data.length ? [JSON.parse(data.join("\n"))] : [];
  });
  return [found, rest];
}

/** How many shards each node gets and gives by a plan, most first. */
export function planRows(plan) {
  return plan.nodes
    .map(({ node, before, after }) => ({ node, before, after, change: after - before }))
    .filter((row) => row.change)
    .sort((a, b) => Math.abs(b.change) - Math.abs(a.change));
}

/** The time that plots show, up to `now`: the hour, or less while there is less to show. */
export function spanOf(points, now) {
  const known = points.length ? now - points[0].at : 0;
  return Math.min(HOUR_MS, Math.max(SPAN_MIN_MS, known));
}

/** The line of `[at, value]` in a box that ends now and shows `span` ms, and its highest value. What
 * is not known is a gap. */
export function plotPath(points, now, span, width, height) {
  const shown = points.filter(([at]) => at >= now - span);
  const known = shown.map(([, value]) => value).filter((value) => value !== null);
  const top = Math.max(0, ...known);
  let path = "";
  let last = -Infinity;
  for (const [at, value] of shown) {
    if (value === null) last = -Infinity;
    else {
      const x = width - ((now - at) / span) * width;
      path += `${at - last <= GAP_MS ? "L" : "M"}${x.toFixed(1)} ${(height - (value / (top || 1)) * (height - 4) - 1).toFixed(1)}`;
      last = at;
    }
  }
  return { path, top: known.length ? top : null };
}

/** How much load a shard has beside the one with the most, from 0 for none to `LEVELS` - 1. */
export function level(value, top) {
  return value > 0 && top > 0 ? Math.min(LEVELS - 1, 1 + Math.floor(((LEVELS - 1) * value) / top)) : 0;
}
