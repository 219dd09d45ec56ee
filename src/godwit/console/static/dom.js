// Elements, texts and numbers. Texts become text nodes: no content is ever parsed as HTML.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/gu;
const FOCUSABLE = "a[href], button, input, select, textarea, [tabindex]";
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name === "cls" ? "class" : name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(4)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// The same for content that is shown again and again: the focus and the positions of scrolled parts remain.
export function refresh(element, ...children) {
  const next = element.cloneNode(false);
  append(next, children);
  if (next.isEqualNode(element)) return;
  const scrolled = [...element.querySelectorAll("[tabindex]")].map((one) => [one.scrollLeft, one.scrollTop]);
  const focus = [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
  element.replaceChildren(...next.childNodes);
  [...element.querySelectorAll("[tabindex]")].forEach((one, place) => {
    if (place < scrolled.length) [one.scrollLeft, one.scrollTop] = scrolled[place];
  });
  if (focus >= 0) element.querySelectorAll(FOCUSABLE)[focus]?.focus({ preventScroll: true });
}

// Text from the network: control characters and marks of direction are shown by their number.
export function shown(text, { lines = false, max = 100000 } = {}) {
  const found = h("span", { cls: "text", dir: "auto" });
  const part = String(text ?? "").slice(0, max);
  let from = 0;
  for (const match of part.matchAll(HIDDEN)) {
    if (lines && (match[0] === "\n" || match[0] === "\t")) continue;
    const code = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    found.append(part.slice(from, match.index), h("span", { cls: "ctl", title: `U+${code}` }, code));
    from = match.index + match[0].length;
  }
  found.append(part.slice(from));
  return found;
}

// The same as a plain text, for attributes and drawings.
export const visible = (text) => shown(text).textContent;

const plain = new Intl.NumberFormat("en");
export const count = (n) => (n === null || n === undefined ? "–" : plain.format(n));
export function short(n, unit = "") {
  if (n === null || n === undefined) return "–";
  const size = Math.abs(n);
  for (const [step, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (size >= step) return `${trim(n / step)}${letter}${unit}`;
  return `${trim(n)}${unit}`;
}
function trim(n) {
  const size = Math.abs(n);
  return String(Number(n.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [step, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]])
    if (Math.abs(n) >= step) return `${trim(n / step)} ${name}`;
  return `${trim(n)} B`;
}
export const rate = (n) => (n === null || n === undefined ? "–" : `${short(n)}/s`);
export const byteRate = (n) => (n === null || n === undefined ? "–" : `${bytes(n)}/s`);
export const ms = (n) => (n === null || n === undefined ? "–" : n >= 1000 ? `${trim(n / 1000)} s` : `${trim(n)} ms`);
export const percent = (n) => (n === null || n === undefined ? "–" : `${trim(n)} %`);
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const n = Math.round(seconds);
  if (n < 60) return `${n} s`;
  if (n < 3600) return `${Math.floor(n / 60)} min ${n % 60} s`;
  if (n < 86400) return `${Math.floor(n / 3600)} h ${Math.floor((n % 3600) / 60)} min`;
  return `${Math.floor(n / 86400)} d ${Math.floor((n % 86400) / 3600)} h`;
}
export function longest(seconds) {
  return duration(seconds).split(" ").slice(0, 2).join(" ");
}
export const clock = (us) => new Date(us / 1000).toLocaleTimeString("en-GB");
export const moment = (us) => (us ? new Date(us / 1000).toLocaleString("sv-SE") : "–");
const age = (us) => Math.max(Date.now() / 1000 - us / 1e6, 0);
export const ago = (us) => (us ? `${duration(age(us))} ago` : "–");
// For narrow columns: the largest unit only.
export const roughly = (us) => (us ? `${longest(age(us))} ago` : "–");

export function payloadText(value) {
  if (value.text !== undefined) return shown(value.text === "" ? "" : value.text);
  return h("span", { cls: "text" }, h("span", { cls: "pill" }, "hex"), " ", value.hex);
}

export function field(name, input) {
  return h("label", {}, h("span", {}, name), input);
}

export function select(options, attributes) {
  return h("select", attributes, options.map(([value, name]) => h("option", { value }, name)));
}

export function table(name, head, rows, empty) {
  if (!rows.length) return h("p", { cls: "empty" }, empty);
  const cells = (row) => row.map((cell, place) => h("td", { cls: head[place][1] }, cell));
  return h("div", { cls: "scroll", tabindex: "0", role: "region", "aria-label": name },
    h("table", {},
      h("caption", { cls: "sr" }, name),
      h("thead", {}, h("tr", {}, head.map(([title, cls]) => h("th", { cls, scope: "col" }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

export function tile(name, value) {
  return h("div", { cls: "tile" }, h("div", { cls: "name" }, name), h("div", { cls: "value" }, value));
}

let toastTimer;
export function toast(text) {
  let element = document.querySelector(".toast");
  if (!element) document.body.append((element = h("div", { cls: "toast", role: "status" })));
  replace(element, shown(text));
  element.classList.remove("hidden");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => element.classList.add("hidden"), 6000);
}

// A dialog; `build(close)` returns its content. The focus returns to where it was.
export function dialog(title, build, onclose) {
  const before = document.activeElement;
  const element = h("dialog", { "aria-label": visible(title) });
  const close = () => element.close();
  element.append(h("div", { cls: "stack" },
    h("div", { cls: "card-head" }, h("h2", {}, shown(title, { max: 200 })), h("span", { cls: "spacer" }),
      h("button", { cls: "plain", type: "button", onclick: close, "aria-label": "Close" }, "✕")),
    build(close)));
  element.addEventListener("close", () => {
    element.remove();
    before?.focus?.();
    onclose?.();
  });
  document.body.append(element);
  element.showModal();
  return element;
}

export function confirm(title, text, action, run, extra) {
  dialog(title, (close) => {
    const problem = h("p", { cls: "error-text", role: "alert" });
    const button = h("button", { cls: "primary danger-fill", type: "submit" }, action);
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await run();
        close();
      } catch (error) {
        replace(problem, shown(error.message));
        button.disabled = false;
      }
    };
    return h("form", { cls: "stack", onsubmit: submit }, h("p", {}, text), extra, problem,
      h("div", { cls: "actions" }, h("button", { type: "button", onclick: close }, "Keep"), button));
  });
}
