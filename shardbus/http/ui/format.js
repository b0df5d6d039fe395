// How values are written: one place for numbers, durations, sizes, counts with their nouns, and texts
// of nodes. Pure. A value that is not known is a dash.

const TEXT_MAX = 240;
const NONE = "–";
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;
const HIDDEN_IN_JSON = new RegExp(HIDDEN.source.replace("\\u0000-\\u001f", ""), "g"); // its lines and their indents stay
const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"]];
const UNITS_FROM = 2;

/** A text of a node as people should see it: controls and marks of direction as their numbers, the
 * end of a very long one cut. */
export function visible(text, most = TEXT_MAX) {
  const plain = String(text ?? "").replace(
    HIDDEN,
    (mark) => `⟨U+${mark.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
  return plain.length > most ? `${plain.slice(0, most)}… (${count(plain.length, "character")})` : plain;
}

/** JSON in which marks that have no shape of their own are written as escapes: the same value. They
 * stand in strings only, because JSON allows them nowhere else. */
export const escaped = (json) => String(json).replace(HIDDEN_IN_JSON, (mark) => `\\u${mark.codePointAt(0).toString(16).padStart(4, "0")}`);

/** host:port of a node's name. */
export const address = (node) => String(node ?? "").split("#")[0];

const unknown = (value) => value === null || value === undefined || Number.isNaN(value);

export function number(value, digits = 0) {
  return unknown(value) ? NONE : value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** An amount with three significant digits at most. */
export function amount(value) {
  if (unknown(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${number(value / 1e6, size >= 1e7 ? 0 : 1)} M`;
  if (size >= 1e4) return `${number(value / 1e3, size >= 1e5 ? 0 : 1)} k`;
  return number(value, size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

export const rate = (value) => (unknown(value) ? NONE : `${amount(value)}/s`);

/** A part of one. */
export const percent = (value) => (unknown(value) ? NONE : `${number(100 * value, value < 0.01 ? 1 : 0)} %`);

export function bytes(value) {
  if (unknown(value)) return NONE;
  if (value < 2 ** 10) return `${number(value)} B`;
  if (value < 2 ** 20) return `${number(value / 2 ** 10, 1)} KiB`;
  return value >= 2 ** 30 ? `${number(value / 2 ** 30, 1)} GiB` : `${number(value / 2 ** 20)} MiB`;
}

/** Seconds in the unit that suits them; Infinity is more than is measured. */
export function duration(value) {
  if (unknown(value)) return NONE;
  if (value === Infinity) return "> 30 s";
  const [size, unit] = UNITS.find(([seconds]) => value >= UNITS_FROM * seconds) ?? [1, "s"];
  if (size > 1) return `${number(value / size)} ${unit}`;
  if (value >= 1) return `${number(value, value < 10 ? 1 : 0)} s`;
  return value ? `${number(value * 1000, value < 0.001 ? 2 : value < 0.01 ? 1 : 0)} ms` : "0";
}

/** A number with its noun: "1 node", "2 nodes", "no node". */
export const count = (n, one, many = `${one}s`) => `${n === 0 ? "no" : number(n)} ${n === 1 || n === 0 ? one : many}`;

/** Texts as a list: "a, b and 3 more". */
export function listed(texts, most) {
  const more = texts.length - most;
  return `${texts.slice(0, most).join(", ")}${more > 0 ? ` and ${number(more)} more` : ""}`;
}

/** The first letter as at the beginning of a sentence. */
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Why a request failed, and what to do. */
export const reason = ({ message, hint }) => `${visible(message, 500)}.${hint ? ` ${visible(hint, 500)}` : ""}`;

/** That nodes did not answer; empty if all did. */
export const missing = (silent) => (silent.length ? ` ${sentence(count(silent.length, "node"))} did not answer: ${silent.length === 1 ? "its" : "their"} part is missing.` : "");

export const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
