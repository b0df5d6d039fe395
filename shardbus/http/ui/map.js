// The map of a type's shards: a canvas that shows the part in sight of a much longer drawing. A lane is
// a node, a cell is a shard; its shape says its state, so that no colour has to, and its shade how many
// messages it gets beside the one with the most.

import { address, rate, visible } from "./format.js";
import { ARRIVED_MS, LEVELS, cellAt, corner, diffMaps, homeOf, lanesOf, layout, level, nextCell, nextMap, stateWord } from "./model.js";

const FLIGHT_MS = 900;
const FLIGHTS_MAX = 300;
const LABEL = 190;
const NARROW = 560;
const NUMBERED = 22;
const DARK_TEXT = 3; // the first level whose cell is far from the ground
const COLOURS = ["text", "muted", "move", "start", "ring", "fault", "line", "panel", "on-load", ...Array.from({ length: LEVELS }, (_, i) => `load${i}`)];

export class ShardMap {
  /** `scroll` holds `space`, which is as high as the drawing and holds the canvas. `onpoint` gets the
   * shard under the pointer or the cursor, `onchoose` the one that was chosen. */
  constructor({ scroll, space, canvas, onpoint, onchoose }) {
    Object.assign(this, { scroll, space, canvas, onpoint, onchoose });
    this.map = null;
    this.rates = {};
    this.top = 0;
    this.members = [];
    this.bad = new Set();
    this.placed = null;
    this.chosen = -1;
    this.arrived = new Map();
    this.flights = [];
    this.drawing = 0;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.place()).observe(scroll);
    scroll.addEventListener("scroll", () => this.soon(), { passive: true });
    canvas.addEventListener("pointermove", (event) => this.onpoint(this.at(event)));
    canvas.addEventListener("pointerleave", () => this.onpoint(this.chosen));
    canvas.addEventListener("click", (event) => this.choose(this.at(event), true));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Take an answer of `/v1/map`. Returns the shards that moved. */
  take(answer, now) {
    const before = this.map;
    const chosen = before && before.type === answer.type ? before.shards[this.chosen] : undefined;
    this.map = nextMap(before, answer);
    if (before && before.type !== answer.type) {
      this.arrived.clear();
      this.flights = [];
      this.scroll.scrollTop = 0;
    }
    if (this.map.shards === before?.shards) return [];
    const moved = before ? diffMaps(before, this.map) : [];
    const old = this.placed;
    const from = moved.map(({ shard }) => (old && before.index.has(shard) ? corner(old, before.index.get(shard)) : null));
    this.chosen = chosen === undefined ? -1 : (this.map.index.get(chosen) ?? -1);
    this.place();
    moved.forEach(({ shard }, i) => {
      this.arrived.set(shard, now);
      if (from[i] && !this.still.matches && this.flights.length < FLIGHTS_MAX) this.flights.push({ shard, from: from[i], at: now });
    });
    if (this.arrived.size) this.later = setTimeout(() => this.soon(), ARRIVED_MS + 50);
    return moved;
  }

  /** `members`: the names of the nodes in their order; `bad`: those out of reach. */
  setMembers(members, bad) {
    const same = members.join() === this.members.join() && [...bad].join() === [...this.bad].join();
    if (same) return;
    this.members = members;
    this.bad = bad;
    this.place();
  }

  /** `rates`: messages a second by shard. */
  setRates(rates) {
    this.rates = rates;
    this.top = Math.max(0, ...Object.values(rates));
    this.soon();
  }

  place() {
    if (!this.map || !this.scroll.clientWidth) return;
    const width = this.scroll.clientWidth;
    const hosts = new Set(this.map.nodes);
    const lanes = lanesOf(this.map, this.members.filter((node) => hosts.has(node) || this.members.length <= 60));
    this.placed = layout(lanes, width, width < NARROW ? 0 : LABEL, Number.parseInt(getComputedStyle(this.scroll).maxHeight, 10) - 20);
    this.space.style.height = `${this.placed.height}px`;
    const height = Math.min(this.placed.height, this.scroll.clientHeight || this.placed.height);
    const scale = devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    this.soon();
  }

  soon() {
    this.drawing ||= requestAnimationFrame((now) => {
      this.drawing = 0;
      this.draw(performance.timeOrigin + now);
    });
  }

  draw(now) {
    if (!this.placed) return;
    const { placed, map } = this;
    const paint = this.canvas.getContext("2d");
    const scale = devicePixelRatio || 1;
    const style = getComputedStyle(this.canvas);
    const colour = Object.fromEntries(COLOURS.map((one) => [one, style.getPropertyValue(`--${one}`)]));
    paint.setTransform(scale, 0, 0, scale, 0, -this.scroll.scrollTop * scale);
    const [top, bottom] = [this.scroll.scrollTop, this.scroll.scrollTop + this.scroll.clientHeight];
    paint.clearRect(0, top, this.scroll.clientWidth, bottom - top + 1);
    paint.font = `${getComputedStyle(document.body).fontSize === "16px" ? 13 : 12}px ${style.fontFamily}`;
    paint.textBaseline = "top";
    for (const [shard, at] of this.arrived) if (now - at > ARRIVED_MS) this.arrived.delete(shard);
    this.flights = this.flights.filter((flight) => now - flight.at < FLIGHT_MS);
    const flying = new Set(this.flights.map((flight) => flight.shard));
    for (const lane of placed.lanes) {
      if (lane.y + lane.height < top || lane.y > bottom) continue;
      this.drawLabel(paint, lane, colour);
      for (const item of lane.items) if (!flying.has(map.shards[item])) this.drawCell(paint, ...corner(placed, item), item, colour);
    }
    for (const flight of this.flights) this.drawFlight(paint, flight, now, colour);
    if (this.flights.length) this.soon();
  }

  drawLabel(paint, lane, colour) {
    const bad = this.bad.has(lane.node);
    const text = lane.node === null ? "without a home" : visible(address(lane.node), 40);
    const width = placedWidth(this.placed, this.scroll.clientWidth);
    paint.fillStyle = bad || lane.node === null ? colour.fault : colour.text;
    paint.textAlign = "left";
    paint.direction = "ltr";
    const y = lane.top === lane.y ? lane.y + Math.max(0, (this.placed.cell - 14) / 2) : lane.y;
    paint.fillText(clip(paint, `${bad ? "✕ " : ""}${text}`, width - 44), 2, y);
    paint.fillStyle = colour.muted;
    paint.textAlign = "right";
    paint.fillText(String(lane.items.length), width - 8, y);
    if (!lane.items.length) {
      paint.fillStyle = colour.line;
      paint.fillRect(this.placed.label, lane.top + 7, 12, 1);
    }
  }

  drawCell(paint, x, y, item, colour) {
    const { cell } = this.placed;
    const state = this.map.states[item];
    const shade = level(this.rates[this.map.shards[item]] ?? 0, this.top);
    let ink = state === "r" && shade >= DARK_TEXT ? colour["on-load"] : colour.text;
    const inner = Math.max(1, cell - 1);
    if (state === "h") {
      paint.strokeStyle = colour.move;
      paint.lineWidth = cell > 8 ? 2 : 1;
      paint.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
      paint.beginPath();
      paint.moveTo(x + 1, y + inner - 1);
      paint.lineTo(x + inner - 1, y + 1);
      paint.stroke();
    } else if (state === "s") {
      paint.fillStyle = colour.start;
      paint.beginPath();
      paint.arc(x + inner / 2, y + inner / 2, inner / 3, 0, 7);
      paint.fill();
    } else if (state === "u") {
      paint.strokeStyle = colour.fault;
      paint.lineWidth = 1;
      paint.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
    } else {
      const lost = this.bad.has(homeOf(this.map, item));
      if (lost) ink = colour.panel;
      paint.fillStyle = lost ? colour.fault : colour[`load${shade}`];
      paint.fillRect(x, y, inner, inner);
    }
    if (cell >= NUMBERED && state !== "s") this.drawName(paint, x + inner / 2, y + inner / 2, this.map.shards[item], ink);
    if (this.arrived.has(this.map.shards[item])) this.ring(paint, x, y, inner, colour.ring);
    if (item === this.chosen) this.ring(paint, x - 1, y - 1, inner + 2, colour.text);
  }

  drawName(paint, x, y, shard, colour) {
    if (shard.length > 3) return;
    paint.fillStyle = colour;
    paint.textAlign = "center";
    paint.textBaseline = "middle";
    paint.fillText(visible(shard), x, y + 1);
    paint.textBaseline = "top";
  }

  ring(paint, x, y, size, colour) {
    paint.strokeStyle = colour;
    paint.lineWidth = 2;
    paint.strokeRect(x, y, size, size);
  }

  drawFlight(paint, flight, now, colour) {
    const item = this.map.index.get(flight.shard);
    if (item === undefined) return;
    const [x, y] = corner(this.placed, item);
    const part = Math.min(1, (now - flight.at) / FLIGHT_MS);
    const eased = 1 - (1 - part) ** 3;
    const [fx, fy] = [flight.from[0] + (x - flight.from[0]) * eased, flight.from[1] + (y - flight.from[1]) * eased];
    const half = this.placed.cell / 2;
    paint.strokeStyle = colour.ring;
    paint.lineWidth = 1;
    paint.beginPath();
    paint.moveTo(flight.from[0] + half, flight.from[1] + half);
    paint.lineTo(fx + half, fy + half);
    paint.stroke();
    this.drawCell(paint, fx, fy, item, colour);
  }

  at(event) {
    if (!this.placed) return -1;
    const box = this.canvas.getBoundingClientRect();
    return cellAt(this.placed, event.clientX - box.left, event.clientY - box.top + this.scroll.scrollTop);
  }

  choose(item, opens) {
    if (item < 0) return;
    this.chosen = item;
    const [, y] = corner(this.placed, item);
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = Math.max(0, y - 24);
    else if (y + this.placed.cell > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = y + this.placed.cell + 8 - this.scroll.clientHeight;
    this.soon();
    this.onpoint(item);
    if (opens) this.onchoose(this.map.shards[item]);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.placed) return;
    if (event.key === "Enter" && this.chosen >= 0) this.choose(this.chosen, true);
    else if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") this.choose(nextCell(this.placed, this.chosen, event.key), false);
    else return;
    event.preventDefault();
  }

  /** A shard in words. */
  words(item) {
    if (item < 0 || !this.map) return "";
    const home = homeOf(this.map, item);
    const shard = this.map.shards[item];
    const found = this.rates[shard];
    return `shard ${visible(shard)} · ${stateWord(this.map.states[item])}${home ? ` · ${visible(address(home))}` : ""}${found ? ` · ${rate(found)}` : ""}`;
  }
}

const placedWidth = (placed, width) => placed.label || width;

function clip(paint, text, width) {
  let shown = text;
  while (shown.length > 4 && paint.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  return shown;
}
