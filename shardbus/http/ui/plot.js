// Small plots: a line, its last value and its highest. The value is text, so that nothing is told by
// the line alone.

import { h, svg } from "./dom.js";
import { HISTORY, plotPath, short } from "./model.js";

const WIDTH = 220;
const HEIGHT = 44;

export class Plots {
  /** `kinds`: key, title and unit of each plot. */
  constructor(place, kinds) {
    this.plots = kinds.map((kind) => {
      const line = svg("path", { class: "line" });
      const value = h("strong", {}, "–");
      const top = h("span", { class: "muted small" });
      const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("path", { class: "axis", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }), line);
      place.append(h("figure", { id: `plot-${kind.key}` }, h("figcaption", {}, h("span", {}, kind.title), h("span", { class: "amount" }, value, ` ${kind.unit}`)), drawing, top));
      return { ...kind, line, value, top, values: [] };
    });
  }

  /** Add a point: an object with a value for each key, null for none. */
  add(point) {
    for (const plot of this.plots) {
      plot.values.push(point[plot.key] ?? null);
      if (plot.values.length > HISTORY) plot.values.shift();
    }
  }

  draw() {
    for (const plot of this.plots) {
      const { path, top } = plotPath(plot.values, WIDTH, HEIGHT);
      plot.line.setAttribute("d", path);
      plot.value.textContent = short(plot.values.findLast((value) => value !== null) ?? null);
      plot.top.textContent = plot.values.length > 1 ? (top === null ? "none yet" : `highest ${short(top)} ${plot.unit}`) : "the first rate needs two answers";
    }
  }
}
