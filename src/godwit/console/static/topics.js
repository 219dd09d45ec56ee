// Topics: the tree with rates and values, a live tail, a chart of numbers, and a form to publish.
import { Chart } from "./chart.js";
import { Grid } from "./grid.js";
import { ago, bytes, clock, count, dialog, field, h, moment, payloadText, rate, refresh, replace, select, short, shown, visible } from "./dom.js";

const KEPT = 200;
const FORMS = [["text", "Text"], ["json", "JSON"], ["hex", "Hexadecimal"]];
let tails = 0;

export function topicsPage(view, api, query) {
  const opened = new Set();
  let search = "", sort = "name", values = new Map(), watched = "", wait;

  // -- the tree
  const toggle = (row, isOpen = !opened.has(row.path)) => {
    if (isOpen) opened.add(row.path);
    else opened.delete(row.path);
    grid.refresh();
  };
  const valueCell = (row) => {
    const value = row.topic && values.get(row.path);
    if (value) return payloadText(value);
    return row.topic?.retained ? h("span", { cls: "pill retained" }, "retained") : "";
  };
  const grid = new Grid({
    label: "Topics",
    columns: [
      {
        title: "Topic", width: "minmax(140px, 1.6fr)", sort: "name",
        cell: (row) => {
          const name = h("span", { style: { paddingLeft: `${row.level * 1.1}rem` } },
            h("span", { cls: "twist", "aria-hidden": "true" }, row.children ? (row.open ? "▾" : "▸") : ""),
            row.label === "" ? h("span", { cls: "muted" }, "(empty)") : shown(row.label));
          if (row.children) name.append(h("span", { cls: "muted small" }, `  ${count(row.topics)}`));
          return name;
        },
      },
      { title: "Rate", width: "74px", cls: "num", sort: "rate", cell: (row) => (row.rate ? rate(row.rate) : "–") },
      { title: "Messages", width: "80px", cls: "num", sort: "messages", narrow: false, cell: (row) => short(row.messages) },
      { title: "Last value", width: "minmax(90px, 1.2fr)", cls: "mono", thin: "minmax(80px, 1fr)", cell: valueCell },
    ],
    key: (row) => row.path,
    fetch: (offset, limit) => api.request("topics", { open: [...opened], search, sort, offset, limit }).then((found) => {
      replace(total, `${count(found.topics)} topics`);
      return found;
    }),
    onopen: (row, event) => {
      if (row.children && (event.target?.closest?.(".twist") || !row.topic || event.key === "Enter")) toggle(row);
      choose(row);
    },
    onarrow: (row, isOpen) => row.children && toggle(row, isOpen),
    onsort: (key) => {
      sort = grid.sort = key;
      grid.refresh(true);
    },
    onpage: (rows) => {
      const row = rows.find((one) => one.path === selected?.path && one.topic);
      if (row) showDetail({ topic: row.topic });
      const wanted = rows.filter((row) => row.topic).map((row) => row.path);
      const text = JSON.stringify(wanted);
      if (text === watched) return;
      watched = text;
      clearTimeout(wait);
      wait = setTimeout(() => api.request("values", { topics: wanted }).catch(() => {}), 300);
    },
    empty: "There are no topics yet. Publish a message to create one.",
  });
  grid.sort = sort;
  const total = h("span", { cls: "muted small" });
  const searchInput = h("input", {
    type: "search", placeholder: "Search", "aria-label": "Search topics", maxlength: "500",
    oninput: () => {
      search = searchInput.value;
      grid.refresh(true);
    },
  });
  const timer = setInterval(() => api.isOpen && document.visibilityState === "visible" && grid.refresh(), 2500);

  // -- one topic
  const detail = h("div", { cls: "stack" });
  let selected = null; // the topic that is shown, with its values as far as they are known
  const showDetail = (news) => {
    Object.assign(selected, news);
    const { path, topic, last, retained } = selected;
    if (!topic || last === undefined) return;
    const value = (one, otherwise) => (one ? [h("span", { cls: "mono" }, payloadText(one)), h("span", { cls: "muted small" }, `  ${ago(one.us)}`)] : otherwise);
    refresh(detail, h("section", { cls: "card", "aria-label": "Topic" }, h("h2", { cls: "mono" }, shown(path)),
      h("dl", { cls: "facts" },
        h("dt", {}, "Last value"), h("dd", { cls: "last-value" }, value(last, "not in the log")),
        h("dt", {}, "Retained value"), h("dd", { cls: "retained-value" }, value(retained, "none")),
        h("dt", {}, "Messages"), h("dd", {}, `${count(topic.messages)} (${bytes(topic.payload_bytes)})`),
        h("dt", {}, "Last message"), h("dd", {}, moment(topic.last_us)),
        h("dt", {}, "Subscribers"), h("dd", {}, count(topic.subscribers || 0)),
        h("dt", {}, "Publishers"), h("dd", {}, count(topic.publishers || 0)),
        h("dt", {}, "Policy"), h("dd", {}, topic.policy || "open"))));
  };
  const choose = async (row) => {
    const one = (selected = { path: row.path });
    filterInput.value = chosen = row.topic ? row.path : `${row.path}/#`;
    if (row.topic) topicInput.value = row.path;
    startTail();
    replace(detail);
    if (!row.topic) return;
    try {
      const found = await api.request("topic", { topic: row.path });
      if (selected === one && found.topic) showDetail(found);
    } catch (error) {
      if (selected === one) replace(detail, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
    }
  };

  // A message does not tell whether it was published to be retained.
  const refreshRetained = async () => {
    const one = selected;
    if (!one?.topic?.retained || !one.isOutdated) return;
    one.isOutdated = false;
    const found = await api.request("topic", { topic: one.path }).catch(() => null);
    if (found && selected === one) showDetail({ retained: found.retained });
  };
  const retainedTimer = setInterval(() => api.isOpen && document.visibilityState === "visible" && refreshRetained(), 5000);

  // -- the tail
  let tail = 0, isPaused = false, messages = [], held = [], form = "text", numbers = new Map(), numberKey = "";
  let chosen = query.get("filter"); // as it is: a name of a topic may have blanks and commas
  const filterInput = h("input", { value: chosen || "", placeholder: "home/#, plant/#", "aria-label": "Topic filter of the tail", maxlength: "1000" });
  const since = query.get("since");
  const list = h("ol", { cls: "tail", "aria-label": "Messages", tabindex: "0" });
  const note = h("p", { cls: "muted small", "aria-live": "polite" }, "Choose a topic, or give a filter.");
  const pauseButton = h("button", {
    type: "button", "aria-pressed": "false",
    onclick: () => {
      isPaused = !isPaused;
      pauseButton.setAttribute("aria-pressed", String(isPaused));
      if (!isPaused) {
        messages = [...held, ...messages].slice(0, KEPT);
        held = [];
        draw();
      }
      showNote();
    },
  }, "Pause");
  const formSelect = select(FORMS, {
    "aria-label": "Payload as",
    onchange: () => {
      form = formSelect.value;
      draw();
    },
  });
  let state = "", sampled = false;
  const showNote = (text) => {
    if (text !== undefined) state = text;
    replace(note, isPaused ? `Paused, ${count(held.length)} new messages` : shown(state), !isPaused && sampled ? " – many messages: this is a sample" : "");
  };
  const startTail = (since_us) => {
    const text = filterInput.value;
    const filters = text === chosen ? [text] : text.split(",").map((one) => one.trim()).filter(Boolean);
    if (!filters.length) return;
    tail = ++tails;
    messages = [];
    held = [];
    numbers = new Map();
    sampled = false;
    draw();
    drawNumbers();
    list.classList.toggle("single", filters.length === 1 && !/[#*+]/.test(filters[0]));
    showNote(since_us ? `Replaying from ${moment(since_us)}` : "Waiting for messages");
    api.request("tail", { filters, tail, since_us: since_us || null }).catch((error) => showNote(error.message));
  };
  const preview = (message) => {
    if (form === "hex" && message.text !== undefined)
      return [...new TextEncoder().encode(message.text.slice(0, 60))].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    if (form === "json" && message.text !== undefined) {
      try {
        return shown(JSON.stringify(JSON.parse(message.text)), { max: 300 });
      } catch { /* shown as text */ }
    }
    return message.text === undefined ? payloadText({ hex: message.hex.slice(0, 180) }) : shown(message.text, { max: 300 });
  };
  const item = (message) => h("li", {}, h("button", { type: "button", onclick: () => showMessage(message) },
    h("span", { cls: "cell when" }, clock(message.received_us)),
    h("span", { cls: "cell where" }, shown(message.topic), message.retained ? [" ", h("span", { cls: "pill retained" }, "retained")] : ""),
    h("span", { cls: "cell what" }, preview(message))));
  const draw = () => replace(list, messages.map(item));
  const propertyRows = (found) => [
    found.content_type !== null && [h("dt", {}, "Content type"), h("dd", {}, shown(found.content_type))],
    found.reply_to !== null && [h("dt", {}, "Reply to"), h("dd", { cls: "mono" }, shown(found.reply_to))],
    found.expires_us !== null && [h("dt", {}, "Expires"), h("dd", {}, moment(found.expires_us))],
    found.headers.map(([name, value]) => [h("dt", {}, shown(name, { max: 200 })), h("dd", {}, shown(value, { max: 1000 }))]),
    found.header_count > found.headers.length && [h("dt", {}, "Headers"), h("dd", {}, `${count(found.header_count)} in all`)],
  ];
  const showMessage = (message) => {
    dialog(message.topic, () => {
      const body = h("pre", { tabindex: "0", "aria-label": "Payload" }, "…");
      const problem = h("p", { cls: "muted small", role: "status" });
      const properties = h("dl", { cls: "facts" });
      const show = async (kind) => {
        try {
          const found = await api.request("payload", { message: message.id, form: kind });
          replace(properties, propertyRows(found.properties));
          replace(body, found.text === undefined ? found.hex : shown(found.text, { lines: true, max: 300000 }));
          replace(problem, found.problem || "", found.cut ? " The beginning is shown." : "");
        } catch (error) {
          replace(body, message.text === undefined ? message.hex : shown(message.text, { lines: true }));
          replace(problem, shown(error.message));
        }
        for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.form === kind));
      };
      const buttons = FORMS.map(([kind, name]) => h("button", { type: "button", "data-form": kind, onclick: () => show(kind) }, name));
      show(form);
      return h("div", { cls: "stack" },
        h("dl", { cls: "facts" },
          h("dt", {}, "Received"), h("dd", {}, moment(message.received_us)),
          h("dt", {}, "Publisher"), h("dd", {}, shown(message.publisher)),
          h("dt", {}, "QoS"), h("dd", {}, String(message.qos)),
          h("dt", {}, "Offset"), h("dd", {}, message.offset === null ? "not in the log" : count(message.offset)),
          h("dt", {}, "Size"), h("dd", {}, bytes(message.bytes))), properties,
        h("div", { cls: "row" }, buttons), body, problem);
    });
  };

  // -- the chart of numbers in payloads: the payload itself, or fields of JSON
  const chart = new Chart({ title: "Values", series: [{ key: "value", label: "last" }], format: (n) => short(n), floating: true });
  const numberSelect = h("select", { "aria-label": "Number to draw", onchange: () => { numberKey = numberSelect.value; drawNumbers(); } });
  const chartCard = chart.element;
  chartCard.classList.add("hidden");
  chartCard.firstChild.after(h("label", {}, "Number", numberSelect));
  const addNumbers = (message) => {
    if (message.text === undefined || message.text.length > 2000) return;
    let value;
    try {
      value = JSON.parse(message.text);
    } catch {
      return;
    }
    const found = typeof value === "number" ? { "": value } : value && typeof value === "object" && !Array.isArray(value) ? value : {};
    for (const [name, number] of Object.entries(found).slice(0, 20)) {
      if (typeof number !== "number" || !Number.isFinite(number)) continue;
      const key = name ? `${message.topic} ${name}` : message.topic;
      if (!numbers.has(key)) {
        if (numbers.size >= 100) continue;
        numbers.set(key, []);
      }
      const points = numbers.get(key);
      points.push([message.received_us / 1e6, number]);
      if (points.length > 600) points.shift();
    }
  };
  let shownKeys = "";
  const drawNumbers = () => {
    const keys = [...numbers.keys()].sort();
    chartCard.classList.toggle("hidden", !keys.length);
    if (!keys.includes(numberKey)) numberKey = keys[0] || "";
    if (keys.join("\n") !== shownKeys) {
      shownKeys = keys.join("\n");
      replace(numberSelect, keys.map((key) => h("option", { value: key }, visible(key))));
      numberSelect.value = numberKey;
    }
    const points = (numbers.get(numberKey) || []).toSorted((a, b) => a[0] - b[0]);
    chart.update(points.map((one) => one[0]), [points.map((one) => one[1])]);
  };

  // -- publish
  const topicInput = h("input", { required: true, placeholder: "home/room1/temperature", maxlength: "1000", value: query.get("topic") || "" });
  const payloadInput = h("textarea", { rows: "3" });
  const kindSelect = select(FORMS, {});
  const qosSelect = select([["0", "0 – may get lost"], ["1", "1 – stored"], ["2", "2 – exactly once"]], {});
  qosSelect.value = "1";
  const retainInput = h("input", { type: "checkbox" });
  const outcome = h("p", { cls: "small", role: "status" });
  const publish = async (event) => {
    event.preventDefault();
    replace(outcome, "…");
    try {
      const found = await api.request("publish", {
        topic: topicInput.value, payload: payloadInput.value, form: kindSelect.value, qos: Number(qosSelect.value), retain: retainInput.checked,
      });
      outcome.className = "small";
      replace(outcome, found.reached === null ? "Sent." : `Stored. ${count(found.reached)} subscriptions matched.`);
    } catch (error) {
      outcome.className = "error-text";
      replace(outcome, shown(error.message));
    }
  };

  const offs = [
    api.on("values", (event) => {
      if (event.error) return;
      for (const [topic, value] of Object.entries(event.values)) values.set(topic, value);
      if (values.size > 5000) values = new Map([...values].slice(-2000));
      grid.draw();
    }),
    api.on("tail", (event) => {
      if (event.tail !== tail) return;
      if (event.error) return showNote(event.error);
      event.messages.forEach(addNumbers);
      const latest = event.messages.findLast((one) => one.topic === selected?.path);
      if (latest && !since) showDetail({ last: { ...latest, us: latest.received_us }, isOutdated: !latest.retained });
      drawNumbers();
      sampled ||= event.sampled;
      const found = event.messages.reverse();
      if (isPaused) held = [...found, ...held].slice(0, KEPT);
      else {
        messages = [...found, ...messages].slice(0, KEPT);
        const top = list.scrollTop;
        list.prepend(...found.slice(0, KEPT).map(item));
        while (list.childElementCount > KEPT) list.lastElementChild.remove();
        if (top) list.scrollTop = top;
      }
      showNote(since && state.startsWith("Replaying") ? state : "Live, the newest first");
    }),
  ];
  const tailForm = h("form", { cls: "row", onsubmit: (event) => { event.preventDefault(); startTail(); } },
    h("label", { cls: "wide" }, h("span", {}, "Filter"), filterInput), field("Payload as", formSelect), h("button", { cls: "primary", type: "submit" }, "Follow"), pauseButton,
    h("button", { type: "button", onclick: () => { messages = []; held = []; draw(); showNote(); } }, "Clear"));
  view.append(h("div", { cls: "head" }, h("h1", {}, "Topics"), total, h("span", { cls: "spacer" })),
    h("div", { cls: "columns" },
      h("div", { cls: "stack" },
        h("section", { cls: "card", "aria-label": "Tree" }, searchInput, grid.frame), detail,
        h("form", { cls: "card", onsubmit: publish, "aria-label": "Publish" }, h("h2", {}, "Publish a message"),
          field("Topic", topicInput), field("Payload", payloadInput),
          h("div", { cls: "fields" }, field("Payload is", kindSelect), field("QoS", qosSelect),
            h("label", { cls: "check" }, retainInput, "Retain"), h("button", { cls: "primary", type: "submit" }, "Publish")), outcome)),
      h("div", { cls: "stack" },
        h("section", { cls: "card", "aria-label": "Live tail" }, h("h2", {}, "Live tail"), tailForm, note, list), chartCard)));
  return {
    refresh() {
      grid.refresh();
      watched = "";
      if (filterInput.value) startTail(since ? Number(since) : undefined);
    },
    close() {
      clearInterval(timer);
      clearInterval(retainedTimer);
      clearTimeout(wait);
      offs.forEach((off) => off());
      grid.close();
      chart.close();
      if (api.isOpen) {
        api.request("stop_tail").catch(() => {});
        api.request("values", { topics: [] }).catch(() => {});
      }
    },
  };
}
