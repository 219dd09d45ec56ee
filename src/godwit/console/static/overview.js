// Overview: problems first, then charts over the last 15 minutes.
import { Chart } from "./chart.js";
import { byteRate, bytes, count, h, longest, ms, percent, rate, refresh, replace, short, shown, table, tile } from "./dom.js";

const SPAN_S = 15 * 60;

export function overviewCharts() {
  const chart = (title, format, ...series) => new Chart({ title, isBinary: format === bytes || format === byteRate, format, series: series.map(([key, label]) => ({ key, label })), span_s: SPAN_S });
  return [
    chart("Messages", rate, ["messages_in", "in"], ["messages_out", "out"]),
    chart("Data", byteRate, ["bytes_in", "in"], ["bytes_out", "out"]),
    chart("Connected clients", (n) => short(n), ["clients", "clients"]),
    chart("Commits of the log", ms, ["commit_ms", "mean"], ["commit_p99_ms", "99 %"]),
    chart("Round trips", ms, ["round_trip_ms", "median"], ["round_trip_p95_ms", "95 %"]),
    chart("Packets lost", percent, ["loss_percent", "lost"]),
    chart("Fragments sent again", rate, ["resent", "again"]),
    chart("Subscribers behind", (n) => short(n), ["behind", "behind"]),
    chart("Size of the log", bytes, ["log_bytes", "size"]),
  ];
}

export function problemList(problems) {
  if (!problems.length) return h("div", { cls: "card" }, h("p", { cls: "fine" }, "No problems"));
  return h("div", { cls: "problems" }, problems.map((one) =>
    h("div", { cls: `problem ${one.level}` }, h("b", {}, one.title), h("span", { cls: "small" }, shown(one.text)),
      one.page && h("a", { href: `#/${one.page}`, cls: "small" }, `Open ${one.page.split("?")[0]}`))));
}

const NODE_STATES = { active: "online", standby: "ready", away: "failed" };

function nodeState(node) {
  const isUnready = node.problem && node.state !== "away";
  return h("span", { cls: `pill ${(!isUnready && NODE_STATES[node.state]) || "waiting"}` },
    shown(node.state), isUnready ? ", not ready" : "");
}

function clusterCard(cluster) {
  if (!cluster) return "";
  return h("section", { cls: "card", "aria-label": "Cluster" },
    h("div", { cls: "card-head" }, h("h2", {}, "Cluster ", shown(cluster.name)),
      h("span", { cls: "muted small" }, `${count(cluster.nodes.length)} nodes, epoch ${count(cluster.epoch)}`)),
    table("Nodes", [["Node"], ["State"], ["Address"], ["Behind", "num"]], cluster.nodes.map((one) => [
      shown(one.node), nodeState(one),
      h("span", { cls: "mono" }, shown(one.address)), one.behind ? `${count(one.behind)} ${one.behind === 1 ? "record" : "records"}` : "up to date"])));
}

export function overviewPage(view, api) {
  const charts = overviewCharts();
  const problems = h("div", { "aria-live": "polite" });
  const tiles = h("div", { cls: "tiles" }), cluster = h("div", { cls: "stack hidden" });
  const missing = h("p", { cls: "banner hidden", role: "alert" });
  view.append(h("div", { cls: "head" }, h("h1", {}, "Overview")), missing, problems, tiles, cluster,
    h("div", { cls: "charts" }, charts.map((one) => one.element)));
  let columns = null;

  const showFacts = ({ summary, problems: found, missing: why, cluster: nodes }) => {
    missing.classList.toggle("hidden", !why);
    if (why) replace(missing, "The figures of the broker are missing: ", shown(why));
    refresh(problems, why ? "" : problemList(found));
    cluster.classList.toggle("hidden", !nodes);
    refresh(cluster, clusterCard(nodes));
    refresh(tiles,
      tile("Clients", count(summary["clients/connected"])), tile("Topics", count(summary.topics)),
      tile("Subscriptions", count(summary.subscriptions)), tile("Messages in", short(summary["messages/in"])),
      tile("Messages out", short(summary["messages/out"])), tile("Jobs running", count(summary["jobs/running"])),
      tile("Workers", count(summary.workers)), tile("Up for", longest(summary.uptime_s)));
  };
  const draw = () => {
    for (const chart of charts) chart.update(columns.at, chart.series.map((one) => columns[one.key]));
  };
  const load = async () => {
    try {
      const found = await api.request("overview");
      columns = found.columns;
      showFacts(found);
      draw();
    } catch (error) {
      missing.classList.remove("hidden");
      replace(missing, shown(error.message));
    }
  };
  const off = api.on("overview", (event) => {
    if (!columns) return;
    for (const [key, value] of Object.entries(event.sample)) columns[key]?.push(value);
    while (columns.at[0] < event.sample.at - SPAN_S) for (const list of Object.values(columns)) list.shift();
    showFacts(event);
    draw();
  });
  return {
    refresh: load,
    close() {
      off();
      charts.forEach((one) => one.close());
    },
  };
}
