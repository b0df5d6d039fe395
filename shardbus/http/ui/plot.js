// Small plots: a line, its last value and its highest. The value is text, so that nothing is told by
// the line alone.

import { h, svg } from "./dom.js";
import { HISTORY, joined, plotPath, spanOf } from "./model.js";

const WIDTH = 220;
const HEIGHT = 40;
const LATELY_MS = 30_000;

export class Plots {
  /** `kinds`: key, title, and how a value is written. */
  constructor(place, kinds) {
    this.hour = [];
    this.own = [];
    this.plots = kinds.map((kind) => {
      const line = svg("path", { class: "line" });
      const value = h("strong", {}, "–");
      const top = h("span", { class: "muted small" });
      const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "axis", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }), line);
      place.append(h("figure", { id: `plot-${kind.key}` }, h("figcaption", {}, h("span", {}, kind.title), value), drawing, top));
      return { ...kind, line, value, top };
    });
  }

  /** Take the hour that the nodes have kept: objects with `at` and a value for each key. */
  setHour(points) {
    this.hour = points;
  }

  /** Add a point of this page: an object with `at` and a value for each key, null for none. */
  add(point) {
    this.own.push(point);
    if (this.own.length > HISTORY) this.own.shift();
  }

  /** Draw up to `now`. Returns the ms that are shown. */
  draw(now) {
    const points = joined(this.hour, this.own);
    const span = spanOf(points, now);
    for (const plot of this.plots) {
      const { path, top } = plotPath(points.map((point) => [point.at, point[plot.key] ?? null]), now, span, WIDTH, HEIGHT);
      plot.line.setAttribute("d", path);
      const last = points.findLast((point) => point.at >= now - LATELY_MS && (point[plot.key] ?? null) !== null);
      plot.value.textContent = plot.write(last?.[plot.key] ?? null);
      plot.top.textContent = top ? `highest ${plot.write(top)}` : "none yet";
    }
    return span;
  }
}
