// Elements without HTML: a text is always a text.

import { visible } from "./format.js";

export const $ = (id) => document.getElementById(id);

/** Children as elements and texts: what is null, undefined or false is left out. */
const kept = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);

/** Let an element have these children and no others. */
export function show(element, ...children) {
  element.replaceChildren(...kept(children));
}

/** An element. Properties starting with "on" are listeners, `class` and names with a dash are
 * attributes. Children are elements, texts, or null. */
export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class" || name.includes("-") || name === "role" || name === "colspan" || name === "scope" || name === "for") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...kept(children));
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A name that a node sent, kept from changing the direction of what stands around it. */
export function name(text, most) {
  const shown = visible(text, most);
  return h("bdi", { class: "name", title: shown === text ? null : String(text).slice(0, 1000) }, shown);
}

/** A sentence of a node, in which backticks are around what is code. */
export const prose = (text, most) => visible(text, most).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Replace the rows of a table. Columns: `{title, of, wide}`; `of` returns a text or elements. The
 * title stands beside each cell where rows are cards. */
export function fill(table, columns, rows, empty) {
  if (!table.tHead) {
    const titles = columns.map((column) => h("th", { scope: "col", class: column.class }, column.head ?? column.title));
    table.append(h("thead", {}, h("tr", {}, titles)), h("tbody"));
  }
  const made = rows.map((row) =>
    h("tr", { class: row.class }, columns.map((column) => {
      const cell = h("td", { "data-title": column.title, class: column.class }, column.of(row));
      if (cell.textContent === "–") cell.classList.add("none");
      return cell;
    })),
  );
  show(table.tBodies[0], made.length ? made : h("tr", {}, h("td", { colspan: columns.length, class: "empty" }, empty)));
  const around = table.parentElement;
  if (around && around.scrollWidth > around.clientWidth) around.tabIndex = 0; // keys scroll what has the focus
  else around?.removeAttribute("tabindex");
}

/** Let a field offer these values, and keep the chosen one if it is among them. */
export function offer(field, values, titleOf = (value) => visible(value, 60)) {
  if (values.join("\n") === [...field.options].map((option) => option.value).join("\n")) return;
  const chosen = field.value;
  show(field, values.map((value) => h("option", { value }, titleOf(value))));
  if (values.includes(chosen)) field.value = chosen;
}

/** A list of many rows of one height, of which only the visible ones are elements. */
export class LongList {
  constructor(place, columns, { height = 30, label, onchoose }) {
    Object.assign(this, { columns, height, onchoose, rows: [], chosen: -1 });
    this.space = h("div", { class: "long-space", role: "presentation" });
    this.head = h("div", { class: "long-row long-head", role: "row" }, columns.map((column) => h("span", { role: "columnheader" }, column.title)));
    this.scroll = h("div", { class: "long", role: "table", "aria-label": label, tabIndex: 0, onscroll: () => this.draw(), onkeydown: (event) => this.key(event) },
      h("div", { role: "rowgroup", class: "long-sticky" }, this.head), h("div", { role: "rowgroup" }, this.space));
    show(place, this.scroll);
  }

  set(rows) {
    this.rows = rows;
    this.scroll.hidden = rows.length === 0;
    this.chosen = Math.min(this.chosen, rows.length - 1);
    this.space.style.height = `${rows.length * this.height}px`;
    this.scroll.setAttribute("aria-rowcount", rows.length + 1);
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / this.height) - 4);
    const last = Math.min(this.rows.length, first + Math.ceil((this.scroll.clientHeight || 400) / this.height) + 8);
    const made = [];
    for (let i = first; i < last; i++) {
      const row = h("div", { class: `long-row${i === this.chosen ? " chosen" : ""}`, role: "row", "aria-rowindex": i + 2, onclick: () => this.choose(i) },
        this.columns.map((column) => h("span", { role: "cell", "data-title": column.title }, column.of(this.rows[i]))));
      row.style.transform = `translateY(${i * this.height}px)`;
      made.push(row);
    }
    show(this.space, made);
  }

  choose(i) {
    if (i < 0 || i >= this.rows.length) return;
    this.chosen = i;
    this.draw();
    this.onchoose(this.rows[i]);
  }

  key(event) {
    const to = { ArrowDown: this.chosen + 1, ArrowUp: this.chosen - 1, Home: 0, End: this.rows.length - 1 }[event.key];
    if (event.key === "Enter") this.choose(this.chosen);
    else if (to === undefined || !this.rows.length) return;
    else {
      this.chosen = Math.min(Math.max(0, to), this.rows.length - 1);
      const top = this.chosen * this.height;
      const seen = this.scroll.clientHeight - 2 * this.height;
      if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
      else if (top > this.scroll.scrollTop + seen) this.scroll.scrollTop = top - seen;
      this.draw();
    }
    event.preventDefault();
  }
}
