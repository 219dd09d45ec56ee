// Log: offsets, size, retention per rule, and replay from a time into the tail.
import { Chart } from "./chart.js";
import { bytes, count, duration, field, h, percent, refresh, replace, shown, table, tile } from "./dom.js";
import { problemList } from "./overview.js";

export function logPage(view, api) {
  const size = new Chart({ title: "Size of the log", format: bytes, isBinary: true, series: [{ key: "log_bytes", label: "size" }], span_s: 900 });
  const end = new Chart({ title: "Next offset", format: (n) => count(n === null || n === undefined ? n : Math.round(n)), series: [{ key: "log_end", label: "offset" }], span_s: 900, floating: true });
  const tiles = h("div", { cls: "tiles wide" }), rules = h("div"), note = h("div");
  const filter = h("input", { required: true, placeholder: "home/#", value: "#", maxlength: "1000" });
  const back = new Date(Date.now() - 3600e3);
  const local = new Date(back.getTime() - back.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
  const from = h("input", { type: "datetime-local", step: "1", required: true, value: local });
  const replay = (event) => {
    event.preventDefault();
    const at_us = new Date(from.value).getTime() * 1000;
    location.hash = `#/topics?${new URLSearchParams({ filter: filter.value, since: String(at_us) })}`;
  };
  const draw = (found) => {
    const { summary, columns } = found;
    const free = summary["log/disk/free_bytes"], disk = summary["log/disk/size_bytes"];
    refresh(tiles,
      tile("First offset", count(summary["log/first_offset"])), tile("Next offset", count(summary["log/next_offset"])),
      tile("Messages", count((summary["log/next_offset"] ?? 0) - (summary["log/first_offset"] ?? 0))),
      tile("Size", bytes(summary["log/size_bytes"])), tile("Disk free", disk ? percent((100 * free) / disk) : "–"), tile("Room", bytes(free)),
      tile("Deleted", count(summary["log/deleted"])));
    refresh(rules, table("Rules of retention", [["Topics"], ["Maximum age", "num"], ["Maximum size", "num"]],
      found.retention.map((one) => [one.pattern === null ? "all others" : h("span", { cls: "mono" }, shown(one.pattern)),
        one.max_age_s === null ? "no limit" : duration(one.max_age_s), one.max_bytes === null ? "no limit" : bytes(one.max_bytes)]),
      found.durable ? "No rules: messages are kept until the disk is full." : "The log of this broker is in memory; the oldest messages are dropped."));
    const problems = found.problems.filter((one) => one.page === "log");
    refresh(note, found.missing ? h("p", { cls: "banner", role: "alert" }, "The figures of the broker are missing: ", shown(found.missing)) : problems.length ? problemList(problems) : "");
    size.update(columns.at, [columns.log_bytes]);
    end.update(columns.at, [columns.log_end]);
  };
  const load = async () => {
    try {
      draw(await api.request("log"));
    } catch (error) {
      replace(note, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
    }
  };
  const off = api.on("overview", load);
  view.append(h("div", { cls: "head" }, h("h1", {}, "Log")), note, tiles, h("div", { cls: "charts" }, size.element, end.element),
    h("div", { cls: "columns" },
      h("section", { cls: "card", "aria-label": "Retention" }, h("h2", {}, "Retention"), rules),
      h("form", { cls: "card", onsubmit: replay, "aria-label": "Replay" }, h("h2", {}, "Replay messages from a time"),
        field("Topic filter", filter), field("From", from), h("div", {}, h("button", { cls: "primary", type: "submit" }, "Replay")))));
  return {
    refresh: load,
    close() {
      off();
      size.close();
      end.close();
    },
  };
}
