// A table of any length: rows exist only where they are visible, and are requested page by page.
import { h, refresh, replace, shown } from "./dom.js";

const ROW = 40, HEAD = 36, PAGE = 100;
let ids = 0;

export class Grid {
  // columns: [{title, cell(row) -> content, width, cls, narrow: false to hide on narrow screens, sort}]
  constructor({ label, columns, fetch, key, onopen, onarrow, onpage, onsort, empty }) {
    Object.assign(this, { columns, fetch, key, onopen, onarrow, onpage, onsort, empty });
    this.id = `grid${++ids}`;
    this.pages = new Map();
    this.total = 0;
    this.active = -1;
    this.selected = null;
    this.loading = new Set();
    this.isOutdated = false;
    this.body = h("div", { cls: "grid-body", role: "rowgroup", onclick: (event) => this.click(event) });
    this.head = h("div", { role: "rowgroup" });
    this.note = h("div", { cls: "empty hidden" });
    this.element = h("div", {
      cls: "grid", role: "grid", tabindex: "0", "aria-label": label,
      onscroll: () => this.draw(), onkeydown: (event) => this.press(event),
    }, this.head, this.body);
    this.frame = h("div", {}, this.element, this.note);
    this.narrow = matchMedia("(max-width: 700px)");
    this.narrow.addEventListener("change", (this.onnarrow = () => this.draw(true)));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
    this.sort = "";
  }

  close() {
    this.observer.disconnect();
    this.narrow.removeEventListener("change", this.onnarrow);
  }

  shownColumns() {
    return this.columns.filter((column) => column.narrow !== false || !this.narrow.matches);
  }

  // Request the visible rows again; with `reset` also begin at the top. The rows from before can be opened until the new
  // ones are there. Replies to requests from before are dropped: they are those of another search or order.
  async refresh(reset = false) {
    if (reset) {
      this.element.scrollTop = 0;
      this.active = -1;
      this.loading = new Set();
      this.isOutdated = true;
    }
    const [first, last] = this.range();
    const wanted = new Set([Math.floor(first / PAGE), Math.floor(Math.max(last - 1, first) / PAGE)]);
    for (const page of [...this.pages.keys()]) if (!wanted.has(page)) this.pages.delete(page);
    await Promise.all([...wanted].map((page) => this.load(page)));
  }

  async load(page) {
    const loading = this.loading;
    if (loading.has(page)) return;
    loading.add(page);
    try {
      const found = await this.fetch(page * PAGE, PAGE);
      if (loading !== this.loading) return;
      if (this.isOutdated) {
        this.pages.clear();
        this.active = -1; // it may have moved, among the rows from before, since the refresh
      }
      this.isOutdated = false;
      this.pages.set(page, found.rows);
      this.total = found.total;
      this.note.classList.toggle("hidden", found.total > 0);
      if (!found.total) replace(this.note, this.empty);
      this.element.classList.toggle("hidden", found.total === 0);
    } catch (error) {
      if (loading !== this.loading) return;
      this.note.classList.remove("hidden");
      replace(this.note, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
      this.element.classList.add("hidden");
    } finally {
      loading.delete(page);
    }
    this.draw(true);
  }

  row(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  range() {
    const top = this.element.scrollTop, height = this.element.clientHeight || 600;
    const first = Math.max(Math.floor(top / ROW) - 2, 0);
    return [first, Math.max(Math.min(Math.ceil((top + height) / ROW) + 2, this.total), 0)];
  }

  draw() {
    const columns = this.shownColumns();
    const template = columns.map((column) => (this.narrow.matches ? column.thin : null) || column.width).join(" ");
    const header = h("div", { cls: "grid-head", role: "row", "aria-rowindex": "1", style: { gridTemplateColumns: template } },
      columns.map((column) => h("div", {
        cls: `cell ${column.cls || ""}`, role: "columnheader",
        "aria-sort": column.sort && column.sort === this.sort ? (column.sort === "name" ? "ascending" : "descending") : null,
      }, column.sort ? h("button", { type: "button", onclick: () => this.onsort(column.sort) },
        column.title, column.sort === this.sort ? (column.sort === "name" ? " ▲" : " ▼") : "") : column.title)));
    const headerKey = `${template} ${this.sort}`;
    if (headerKey !== this.headerKey) refresh(this.head, header);
    this.headerKey = headerKey;
    this.element.setAttribute("aria-rowcount", this.total + 1);
    this.element.setAttribute("aria-colcount", columns.length);
    this.body.style.height = `${Math.max(this.total * ROW, 1)}px`;
    this.element.style.height = `min(62vh, ${Math.min(this.total, 14) * ROW + HEAD + 4}px)`;
    const [first, last] = this.range();
    const rows = [];
    for (let index = first; index < last; index++) {
      const row = this.row(index);
      if (!row) {
        if (!this.loading.has(Math.floor(index / PAGE))) this.load(Math.floor(index / PAGE));
        continue;
      }
      const key = this.key(row);
      rows.push(h("div", {
        cls: `grid-row${index === this.active ? " active" : ""}${key === this.selected ? " selected" : ""}`,
        role: "row", id: `${this.id}-${index}`, "aria-rowindex": index + 2,
        "aria-selected": key === this.selected ? "true" : "false",
        style: { gridTemplateColumns: template, transform: `translateY(${index * ROW}px)` },
      }, columns.map((column) => h("div", { cls: `cell ${column.cls || ""}`, role: "gridcell" }, column.cell(row)))));
    }
    replace(this.body, rows);
    if (this.active >= first && this.active < last) this.element.setAttribute("aria-activedescendant", `${this.id}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
    this.onpage?.(Array.from({ length: last - first }, (_, place) => this.row(first + place)).filter(Boolean));
  }

  // By position, because a row may be drawn anew between pressing and releasing the button.
  click(event) {
    const index = Math.floor((event.clientY - this.body.getBoundingClientRect().top) / ROW);
    const row = this.row(index);
    if (!row) return;
    this.active = index;
    this.open(row, event);
  }

  open(row, event) {
    this.selected = this.key(row);
    this.draw();
    this.onopen?.(row, event);
  }

  press(event) {
    const visible = Math.max(Math.floor((this.element.clientHeight - HEAD) / ROW) - 1, 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: visible, PageUp: -visible, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      this.active = Math.min(Math.max((this.active < 0 ? -1 : this.active) + moves[event.key], 0), this.total - 1);
      const top = this.active * ROW;
      if (top < this.element.scrollTop) this.element.scrollTop = top;
      const end = this.element.scrollTop + this.element.clientHeight - HEAD - ROW;
      if (top > end) this.element.scrollTop = top - (this.element.clientHeight - HEAD - ROW);
      this.draw();
    } else if (event.key === "Enter" || event.key === " ") {
      const row = this.row(this.active);
      if (row) {
        event.preventDefault();
        this.open(row, event);
      }
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const row = this.row(this.active);
      if (row && this.onarrow) {
        event.preventDefault();
        this.onarrow(row, event.key === "ArrowRight");
      }
    }
  }
}
