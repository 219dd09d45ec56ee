// Pipeline: lag per query, last batches, tables, gold charts with anomalies, and the quarantine.
import { Chart } from "./chart.js";
import { ago, bytes, confirm, count, h, moment, payloadText, refresh, replace, short, shown, table, tile, visible } from "./dom.js";

export function pipelinePage(view, api) {
  const note = h("div", {}, h("p", { cls: "muted", role: "status" }, "Reading the tables…")), tiles = h("div", { cls: "tiles wide" }), queries = h("div"), batches = h("div"), tables = h("div");
  const charts = h("div", { cls: "charts" }), reasons = h("div"), messages = h("div"), outcome = h("p", { cls: "small", role: "status" });
  let drawn = [], reason = "", isLoading = false, isOutdated = false, lastCharts = "";

  const problem = (target, error) => replace(target, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
  const showStatus = (found) => {
    replace(note, found.problem ? h("p", { cls: "banner", role: "alert" }, "The lag is unknown: ", shown(found.problem)) : "");
    const lags = new Map(); // of each log, that of the query that is furthest behind
    for (const one of found.logs) lags.set(one.log, Math.max(lags.get(one.log) || 0, one.lag || 0));
    const lag = [...lags.values()].reduce((sum, one) => sum + one, 0);
    refresh(tiles, tile("Messages not read", found.problem ? "–" : count(lag)),
      found.tables.filter((one) => ["bronze/messages", "silver/readings", "silver/quarantine", "gold/windows", "gold/anomalies"].includes(one.table))
        .map((one) => tile(one.table, count(one.rows))));
    refresh(queries, table("Queries", [["Query"], ["Log"], ["Offset", "num"], ["Lag", "num"], ["Last batch", "num"], ["Ended"]], found.logs.map((one) => {
      const last = found.queries.find((other) => other.query === one.query);
      return [shown(one.query), h("span", { cls: "mono" }, one.log.slice(0, 8)), count(one.offset), one.lag === null ? "?" : count(one.lag),
        last ? count(last.batch) : "–", last ? ago(last.done_us) : "–"];
    }), "The pipeline has not run yet."));
    refresh(batches, table("Last changes of bronze", [["Time"], ["Operation"], ["Rows", "num"]],
      found.batches.map((one) => [moment(one.at_us), shown(one.operation || ""), one.rows === null ? "–" : count(one.rows)]), "There are no batches yet."));
    refresh(tables, table("Tables", [["Table"], ["Rows", "num"], ["Files", "num"], ["Size", "num"], ["One row is"]],
      found.tables.map((one) => [h("span", { cls: "mono" }, one.table), count(one.rows), count(one.files), bytes(one.bytes), shown(one.grain)]), "There are no tables yet."));
    const state = found.requeue.state;
    outcome.className = state === "failed" ? "error-text" : "small muted";
    replace(outcome, { none: "", running: "Decoding the quarantine again…", done: "The quarantine was decoded again. ", failed: "Decoding failed. " }[state],
      state === "none" ? "" : shown(found.requeue.output.trim().split("\n").slice(-3).join(" – ")));
    requeueButton.disabled = state === "running";
  };
  const showCharts = (found) => {
    const text = JSON.stringify(found);
    if (text === lastCharts) return;
    lastCharts = text;
    drawn.forEach((one) => one.close());
    drawn = found.series.map((one) => {
      const chart = new Chart({ title: `${one.topic} – ${one.quantity}`, format: (n) => (n === null || n === undefined ? "–" : `${short(n)} ${visible(one.unit)}`),
        series: [{ key: "mean", label: "mean" }], floating: true });
      return chart;
    });
    replace(charts, drawn.map((one) => one.element), !drawn.length && h("p", { cls: "empty" }, "There are no windows yet."));
    drawn.forEach((chart, place) => {
      const one = found.series[place];
      chart.update(one.points.map((point) => point[0] / 1e6), [one.points.map((point) => point[1])],
        one.alarms.map(([at, value, why]) => ({ at: at / 1e6, value, text: `${why}: ${value}` })));
      if (one.alarms.length) chart.element.append(h("p", { cls: "small muted" }, `${count(one.alarms.length)} anomalies, marked`));
    });
  };
  const showQuarantine = (found) => {
    refresh(reasons, table("Quarantine by reason", [["Reason"], ["Messages", "num"], ["Most frequent topics"], ["What may help"]], found.reasons.map((one) => [
      h("button", { type: "button", cls: "link", "aria-pressed": String(reason === one.reason), title: "Show only messages with this reason", onclick: () => choose(one.reason) }, shown(one.reason)), count(one.messages),
      one.topics.slice(0, 3).map(([topic, number]) => h("div", { cls: "mono" }, shown(topic), ` (${count(number)})`)),
      one.suggestion ? h("pre", { tabindex: "0" }, shown(one.suggestion, { lines: true })) : shown(one.meaning),
    ]), "The quarantine is empty."));
    refresh(messages, found.messages.length ? table("Messages in quarantine", [["Topic"], ["Reason"], ["Payload"], ["Detail"]], found.messages.slice(0, 50).map((one) => [
      h("span", { cls: "mono" }, shown(one.topic)), shown(one.reason), h("span", { cls: "mono" }, payloadText(one.payload)), shown(one.detail || "", { max: 300 }),
    ]), "") : "");
  };
  const loadQuarantine = () => {
    const wanted = reason;
    return api.request("pipeline", { part: "quarantine", reason: wanted }).then(
      (found) => wanted === reason && showQuarantine(found), (error) => problem(reasons, error));
  };
  const choose = (one) => {
    reason = reason === one ? "" : one;
    loadQuarantine();
  };
  // Reading a large lake may take longer than the interval: there is one reading at a time, and one after it at most.
  const load = async () => {
    isOutdated = true;
    if (isLoading) return;
    isLoading = true;
    try {
      while (isOutdated) {
        isOutdated = false;
        await api.request("pipeline", { part: "status" }).then(showStatus, (error) => problem(note, error));
        await api.request("pipeline", { part: "charts" }).then(showCharts, (error) => problem(charts, error));
        await loadQuarantine();
      }
    } finally {
      isLoading = false;
    }
  };
  const requeueButton = h("button", {
    type: "button", onclick: () => confirm("Decode the quarantine again?",
      "Messages that the decoders of the present configuration can read move to silver/readings. It starts Spark, and takes a minute or more. While the pipeline runs it is refused.",
      "Decode again", async () => {
        await api.request("requeue");
        load();
      }),
  }, "Requeue");
  const timer = setInterval(() => api.isOpen && !isLoading && document.visibilityState === "visible" && load(), 5000);
  view.append(h("div", { cls: "head" }, h("h1", {}, "Pipeline")), note, tiles,
    h("div", { cls: "columns" },
      h("section", { cls: "card", "aria-label": "Queries" }, h("h2", {}, "Progress"), queries),
      h("section", { cls: "card", "aria-label": "Batches" }, h("h2", {}, "Last batches"), batches)),
    h("h2", {}, "Series with their anomalies"), charts,
    h("section", { cls: "card", "aria-label": "Quarantine" }, h("div", { cls: "card-head" }, h("h2", {}, "Quarantine"), h("span", { cls: "spacer" }), requeueButton), outcome, reasons, messages),
    h("section", { cls: "card", "aria-label": "Tables" }, h("h2", {}, "Tables"), tables));
  return {
    refresh: load,
    close() {
      clearInterval(timer);
      drawn.forEach((one) => one.close());
    },
  };
}
