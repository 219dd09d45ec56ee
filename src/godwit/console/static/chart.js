// Line charts over time, drawn as SVG.
import { h, s, replace, visible } from "./dom.js";

const LEFT = 58, RIGHT = 8, TOP = 8, BOTTOM = 20;

function niceTop(value, isBinary) {
  if (!(value > 0)) return 1;
  if (isBinary && value >= 1024) {
    const unit = 1024 ** Math.floor(Math.log2(value) / 10);
    return niceTop(value / unit, false) * unit;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 2.5, 5, 10]) if (value <= step * power) return step * power;
  return value;
}

export class Chart {
  // series: [{key, label}]; format: number -> text; span_s: length of the time axis, or none for that of the data.
  constructor({ title, series, format, span_s = 0, floating = false, isBinary = false }) {
    Object.assign(this, { title: visible(title), series, format, span_s, floating, isBinary });
    this.times = [];
    this.values = series.map(() => []);
    this.marks = [];
    this.legend = h("div", { cls: "legend" });
    this.plot = h("div", { cls: "plot" });
    this.tip = h("div", { cls: "tip hidden" });
    this.element = h("section", { cls: "card chart", "aria-label": this.title }, h("h2", {}, this.title), this.legend, this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.point(null));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.plot);
  }

  // times: seconds; values: one list for each series. marks: [{at, value, text}]
  update(times, values, marks = []) {
    Object.assign(this, { times, values, marks });
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (!width) return;
    const { times, values } = this;
    const last = times.length ? times[times.length - 1] : Date.now() / 1000;
    const known_s = times.length ? last - times[0] : 0;
    const first = this.span_s ? last - Math.min(this.span_s, Math.max(known_s, 60)) : times.length ? times[0] : last - 60;
    const span = Math.max(last - first, 1);
    const known = values.flat().filter((value) => value !== null && value !== undefined);
    for (const mark of this.marks) known.push(mark.value);
    let low = 0, top = niceTop(Math.max(...known, 0), this.isBinary);
    if (this.floating && known.length) {
      low = Math.min(...known);
      top = Math.max(...known);
      const pad = (top - low) * 0.1 || Math.abs(top) * 0.1 || 1;
      low = low >= 0 ? Math.max(low - pad, 0) : low - pad;
      top += pad;
    }
    const x = (at) => LEFT + ((at - first) / span) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - low) / (top - low)) * (height - TOP - BOTTOM);
    this.scale = { x, y, first, span, width, height };
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const value = low + share * (top - low);
      parts.push(s("line", { cls: "grid-line", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      parts.push(s("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.format(value)));
    }
    for (const share of times.length === 1 && !this.span_s ? [0] : [0, 0.5, 1]) {
      const at = first + share * span;
      const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
      parts.push(s("text", { x: x(at), y: height - 4, "text-anchor": anchor }, this.timeText(at, last, share)));
    }
    values.forEach((list, place) => {
      let path = "", area = "", start = null, end = null;
      const isKnown = (index) => list[index] !== null && list[index] !== undefined && times[index] >= first;
      list.forEach((value, index) => {
        if (isKnown(index) && !isKnown(index - 1) && !isKnown(index + 1)) // no line leads to it
          parts.push(s("circle", { cls: `d${place}`, cx: x(times[index]), cy: y(value), r: 3 }));
        if (!isKnown(index)) {
          if (start !== null) area += `L${end} ${y(low)}L${start} ${y(low)}Z`;
          start = null;
          return;
        }
        const px = x(times[index]).toFixed(1), py = y(value).toFixed(1);
        path += `${start === null ? "M" : "L"}${px} ${py}`;
        area += `${start === null ? "M" : "L"}${px} ${py}`;
        if (start === null) start = px;
        end = px;
      });
      if (start !== null) area += `L${end} ${y(low)}L${start} ${y(low)}Z`;
      if (place === 0 && area && !this.floating) parts.push(s("path", { cls: "area", d: area }));
      if (path) parts.push(s("path", { cls: `line l${place}`, d: path }));
    });
    for (const mark of this.marks)
      parts.push(s("circle", { cls: "mark", cx: x(mark.at), cy: y(mark.value), r: 5 }, s("title", {}, visible(mark.text))));
    this.cross = s("line", { cls: "cross hidden", y1: TOP, y2: height - BOTTOM });
    parts.push(this.cross);
    const latest = values.map((list) => list[list.length - 1]);
    const label = `${this.title}: ` + this.series.map((one, place) => `${one.label} ${this.format(latest[place])}`).join(", ");
    replace(this.plot, s("svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}` }, parts), this.tip);
    replace(this.legend, this.series.map((one, place) =>
      h("span", {}, h("span", { cls: `key s${place}` }), `${one.label} `, h("b", {}, this.format(latest[place])))));
  }

  timeText(at, last, share) {
    if (this.span_s) return share === 1 ? "now" : `−${Math.round((last - at) / 6) / 10} min`;
    const text = new Date(at * 1000);
    return last - this.times[0] > 86400 ? text.toLocaleDateString("sv-SE") : text.toLocaleTimeString("en-GB");
  }

  point(event) {
    if (!event || !this.times.length || !this.scale) {
      this.tip.classList.add("hidden");
      this.cross?.classList.add("hidden");
      return;
    }
    const { x, width } = this.scale;
    const place = event.clientX - this.plot.getBoundingClientRect().left;
    let best = 0;
    this.times.forEach((at, index) => {
      if (Math.abs(x(at) - place) < Math.abs(x(this.times[best]) - place)) best = index;
    });
    const at = x(this.times[best]);
    this.cross.setAttribute("x1", at);
    this.cross.setAttribute("x2", at);
    this.cross.classList.remove("hidden");
    const texts = this.series.map((one, index) => `${one.label} ${this.format(this.values[index][best])}`);
    replace(this.tip, `${new Date(this.times[best] * 1000).toLocaleTimeString("en-GB")}  ${texts.join("  ")}`);
    this.tip.classList.remove("hidden");
    const left = Math.min(Math.max(at - this.tip.offsetWidth / 2, 0), width - this.tip.offsetWidth);
    this.tip.style.left = `${left}px`;
  }

  close() {
    this.observer.disconnect();
  }
}
