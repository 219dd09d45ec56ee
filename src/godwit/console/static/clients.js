// Clients: connections with their figures, subscriptions with their lag; remove a client or a subscription.
import { Grid } from "./grid.js";
import { ago, bytes, confirm, count, dialog, field, h, moment, ms, percent, replace, roughly, short, shown, table, toast } from "./dom.js";

const loss = (row) => (row.packets_sent ? (100 * (row.packets_lost || 0)) / row.packets_sent : null);

export function clientsPage(view, api, query) {
  let search = query.get("search") || "", sort = query.get("sort") || "name";
  const total = h("span", { cls: "muted small" });
  const grid = new Grid({
    label: "Clients",
    columns: [
      { title: "Client", width: "minmax(130px, 1.6fr)", thin: "minmax(80px, 1.2fr)", sort: "name", cell: (row) => [h("span", { cls: `dot dot-cell ${row.address ? "online" : ""}` }), shown(row.name)] },
      { title: "Address", width: "minmax(130px, 1.1fr)", cls: "mono", thin: "minmax(118px, 1fr)", cell: (row) => (row.address ? shown(row.address) : h("span", { cls: "pill" }, "away")) },
      { title: "Since", width: "84px", narrow: false, sort: "since", cell: (row) => roughly(row.since_us) },
      { title: "Subscriptions", width: "minmax(90px, 1.1fr)", narrow: false, cls: "mono", cell: (row) => [shown(row.subscriptions.map((one) => one.join(" + ")).join("; "), { max: 200 }), row.subscription_count > 3 ? ` +${row.subscription_count - 3}` : ""] },
      { title: "In", width: "62px", narrow: false, cls: "num", sort: "in", cell: (row) => short(row.messages_in || 0) },
      { title: "Out", width: "62px", narrow: false, cls: "num", sort: "out", cell: (row) => short(row.messages_out || 0) },
      { title: "Lag", width: "62px", thin: "44px", cls: "num", sort: "lag", cell: (row) => (row.lag ? h("span", { cls: "pill waiting" }, short(row.lag)) : "–") },
      { title: "Round trip", width: "82px", cls: "num", sort: "round_trip", narrow: false, cell: (row) => (row.round_trip_us ? ms(row.round_trip_us / 1000) : "–") },
      { title: "Lost", width: "64px", cls: "num", sort: "lost", narrow: false, cell: (row) => percent(loss(row)) },
      { title: "Sent", width: "82px", cls: "num", sort: "bytes", narrow: false, cell: (row) => (row.bytes_sent ? bytes(row.bytes_sent) : "–") },
    ],
    key: (row) => row.name,
    fetch: (offset, limit) => api.request("clients", { search, sort, offset, limit }).then((found) => {
      replace(total, [`${count(found.online)} connected`, found.clients > found.online && `, ${count(found.clients - found.online)} away with a stored session`]);
      return found;
    }),
    onopen: (row) => showClient(row.name),
    onsort: (key) => {
      sort = grid.sort = key;
      grid.refresh(true);
    },
    empty: "No client matches.",
  });
  grid.sort = sort;
  const searchInput = h("input", {
    type: "search", placeholder: "Search by name, address or filter", "aria-label": "Search clients", value: search, maxlength: "500",
    oninput: () => {
      search = searchInput.value;
      grid.refresh(true);
    },
  });
  const timer = setInterval(() => api.isOpen && document.visibilityState === "visible" && grid.refresh(), 3000);

  const disconnect = (name) => {
    const reason = h("input", { maxlength: "200", placeholder: "optional" });
    confirm("Disconnect this client?", [h("b", {}, shown(name)), " loses its connection, keeps its session, and reconnects by itself if it is a program that does."],
      "Disconnect client", async () => {
        await api.request("kick", { name, keep: true, reason: reason.value });
        toast(`${name} was disconnected.`);
        document.querySelector("dialog.client")?.close();
        grid.refresh();
      }, field("Reason, shown to the client", reason));
  };
  const kick = (name, filters) => {
    const reason = h("input", { maxlength: "200", placeholder: "optional" });
    const what = filters ? "Remove this subscription?" : "Kick this client?";
    const text = filters
      ? [h("b", {}, shown(name)), " gets no further messages of ", h("b", {}, shown(filters.join(" + "))), "."]
      : [h("b", {}, shown(name)), " is disconnected, and its session with its positions and subscriptions is deleted. It does not reconnect by itself."];
    confirm(what, text, filters ? "Remove subscription" : "Kick client", async () => {
      await api.request("kick", { name, filters: filters || [], reason: reason.value });
      toast(filters ? "The subscription was removed." : `${name} was kicked.`);
      document.querySelector("dialog.client")?.close();
      grid.refresh();
    }, field("Reason, shown to the client", reason));
  };

  const showClient = async (name) => {
    let found;
    try {
      found = await api.request("client", { name });
    } catch (error) {
      return toast(error.message);
    }
    const one = found.client;
    const element = dialog(name, () => h("div", { cls: "stack" },
      h("dl", { cls: "facts" },
        h("dt", {}, "State"), h("dd", {}, one.address ? h("span", { cls: "pill online" }, "connected") : h("span", { cls: "pill" }, "away, its session is kept")),
        h("dt", {}, "Address"), h("dd", { cls: "mono" }, one.address ? shown(one.address) : "–"),
        h("dt", {}, one.address ? "Connected" : "Left"), h("dd", {}, `${moment(one.since_us)} (${ago(one.since_us)})`),
        h("dt", {}, "Protocol"), h("dd", {}, one.protocol || "–"),
        h("dt", {}, "Retransmission"), h("dd", {}, one.arq || "–"),
        h("dt", {}, "Window"), h("dd", {}, one.window_bytes ? bytes(one.window_bytes) : "–"),
        h("dt", {}, "Round trip"), h("dd", {}, one.round_trip_us ? ms(one.round_trip_us / 1000) : "–"),
        h("dt", {}, "Packets to it"), h("dd", {}, `${count(one.packets_sent || 0)} sent, ${count(one.packets_lost || 0)} lost (${percent(loss(one) ?? 0)}), ${count(one.fragments_resent || 0)} fragments sent again`),
        h("dt", {}, "Packets from it"), h("dd", {}, count(one.packets_received || 0)),
        h("dt", {}, "Bytes to it"), h("dd", {}, bytes(one.bytes_sent || 0)),
        h("dt", {}, "Messages"), h("dd", {}, `${count(one.messages_in || 0)} published, ${count(one.messages_out || 0)} delivered`)),
      h("h2", {}, "Subscriptions"),
      table("Subscriptions", [["Filters"], ["Cursor"], ["Position", "num"], ["Lag", "num"], [""]], found.cursors.map((cursor) => [
        h("span", { cls: "mono" }, shown(cursor.filters.join(" + "))), cursor.cursor ? shown(cursor.cursor) : "–", count(cursor.position || 0),
        cursor.idle ? "up to date" : count(cursor.lag || 0),
        h("button", { type: "button", onclick: () => kick(name, cursor.filters) }, "Remove"),
      ]), "It has no subscriptions with a position."),
      h("div", { cls: "actions" }, one.address && h("button", { type: "button", onclick: () => disconnect(name) }, "Disconnect"),
        h("button", { type: "button", cls: "danger", onclick: () => kick(name) }, "Kick client"))));
    element.classList.add("client");
  };

  view.append(h("div", { cls: "head" }, h("h1", {}, "Clients"), total),
    h("section", { cls: "card", "aria-label": "List of clients" }, searchInput, grid.frame));
  return {
    refresh: () => grid.refresh(),
    close() {
      clearInterval(timer);
      grid.close();
    },
  };
}
