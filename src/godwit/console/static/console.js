// The frame of the pages: login, navigation, state of the broker, colours.
import { Api } from "./api.js";
import { h, replace, s, shown } from "./dom.js";
import { overviewPage } from "./overview.js";
import { topicsPage } from "./topics.js";
import { clientsPage } from "./clients.js";
import { jobsPage } from "./jobs.js";
import { logPage } from "./log.js";
import { pipelinePage } from "./pipeline.js";

const PAGES = [
  ["overview", "Overview", overviewPage, "M3 12h4l3 8 4-16 3 8h4"],
  ["topics", "Topics", topicsPage, "M4 6h16M8 12h12M12 18h8M4 12h.01M8 18h.01"],
  ["clients", "Clients", clientsPage, "M9 11a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM2 21a7 7 0 0 1 14 0M16 4a4 4 0 0 1 0 7M18 14a7 7 0 0 1 4 7"],
  ["jobs", "Jobs", jobsPage, "M4 7h16v13H4zM9 7V4h6v3M4 13h16"],
  ["log", "Log", logPage, "M4 5c0-1 4-2 8-2s8 1 8 2v14c0 1-4 2-8 2s-8-1-8-2zM4 5c0 1 4 2 8 2s8-1 8-2M4 12c0 1 4 2 8 2s8-1 8-2"],
  ["pipeline", "Pipeline", pipelinePage, "M3 5h6v6H3zM15 13h6v6h-6zM9 8h6a3 3 0 0 1 3 3v2"],
];

const api = new Api();
const app = document.getElementById("app");
let current = null;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}
const dark = matchMedia("(prefers-color-scheme: dark)");
const stored = () => localStorage.getItem("theme");
setTheme(stored() || (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => stored() || setTheme(dark.matches ? "dark" : "light"));

function themeButton() {
  return h("button", {
    type: "button", cls: "plain", "aria-label": "Switch between dark and light", title: "Dark or light",
    onclick: () => {
      const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      localStorage.setItem("theme", theme);
      setTheme(theme);
    },
  }, "◐");
}

function brand() {
  return h("div", { cls: "brand" }, h("img", { src: "/static/icon.svg", alt: "" }), "Godwit");
}

function showLogin(isOptional) {
  document.title = "Log in – Godwit console";
  const problem = h("p", { cls: "error-text", role: "alert", id: "login-problem" });
  const name = h("input", { id: "name", autocomplete: "username", required: true, maxlength: "256" });
  const secret = h("input", { id: "secret", type: "password", autocomplete: "current-password", required: true });
  const button = h("button", { cls: "primary", type: "submit" }, "Log in");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    replace(problem);
    try {
      await api.post("/api/login", { name: name.value, secret: secret.value });
      await api.loadSession();
      showFrame();
    } catch (error) {
      replace(problem, shown(error.message));
      secret.value = "";
      secret.focus();
    }
    button.disabled = false;
  };
  const without = isOptional && h("button", { type: "button", onclick: () => showFrame() }, "Continue without a name");
  replace(app, h("main", { cls: "login", id: "main" }, h("form", { cls: "card", onsubmit: submit, "aria-label": "Log in" },
    brand(), h("h1", {}, "Log in"),
    h("p", { cls: "muted small" }, "With the name and the secret of a client of the broker at ", shown(api.session.broker),
      ". You will have exactly the rights of that client. A program that is connected under this name is disconnected: ",
      "use a name of your own."),
    h("label", { for: "name" }, "Name", name), h("label", { for: "secret" }, "Secret", secret), problem, button, without,
    h("div", {}, themeButton()))));
  name.focus();
}

function showFrame() {
  const banner = h("div", { cls: "banner hidden", role: "alert" });
  const main = h("main", { cls: "main", id: "main", tabindex: "-1" });
  const view = h("div", { cls: "stack" });
  main.append(banner, view);
  const dot = h("span", { cls: "dot" });
  const where = h("span", { cls: "where-text" });
  const links = PAGES.filter(([key]) => key !== "pipeline" || api.session.lake).map(([key, title, , path]) =>
    h("a", { href: `#/${key}`, "data-page": key }, s("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor",
      "stroke-width": "2", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, s("path", { d: path })), title));
  const logout = api.session.login === "done"
    ? h("button", { type: "button", onclick: () => leave() }, "Log out")
    : api.session.login === "offered" && h("button", { type: "button", onclick: () => { close(); showLogin(true); } }, "Log in");
  const close = () => {
    api.stop();
    current?.close();
    current = null;
    cleanups.forEach((one) => one());
  };
  const leave = async () => {
    close();
    await api.post("/api/logout").catch(() => {});
    location.hash = "";
    location.reload();
  };
  replace(app, h("div", { cls: "frame" },
    h("div", { cls: "side" }, brand(), h("nav", { cls: "nav", "aria-label": "Pages" }, links),
      h("div", { cls: "side-foot" }, h("div", { cls: "state" }, dot, where),
        api.session.name && h("div", { cls: "who" }, "Logged in as ", h("b", {}, shown(api.session.name))),
        h("div", { cls: "row" }, logout, themeButton()))), main));

  const showState = ({ state, reason, broker }) => {
    dot.className = `dot ${state}`;
    const addresses = broker.split(",").join(", ");
    replace(where, state === "online" ? "Connected to " : `${state[0].toUpperCase()}${state.slice(1)}: `, shown(addresses));
    banner.classList.toggle("hidden", state === "online");
    banner.classList.toggle("bad", state === "closed");
    const text = state === "closed" ? "The broker has ended this console's connection" : "The broker does not answer";
    const after = state === "closed" ? "" : " The page continues by itself when it is back.";
    if (state === "closed") {
      replace(banner, text, reason ? [": ", shown(reason)] : "", " ",
        h("button", { type: "button", onclick: () => location.reload() }, "Connect again"));
    } else if (state !== "online") {
      replace(banner, text, reason ? [" (", shown(reason), ")"] : "", ".", after);
    }
    if (state === "online" && isWaiting) current?.refresh?.();
    isWaiting = state !== "online";
  };
  let isWaiting = false;
  const navigate = () => {
    const [key, query] = location.hash.replace(/^#\//, "").split("?");
    const found = PAGES.find(([one]) => one === key) || PAGES[0];
    for (const link of links) {
      if (link.dataset.page === found[0]) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${found[1]} – Godwit console`;
    current?.close();
    replace(view);
    current = found[2](view, api, new URLSearchParams(query || ""));
    if (api.isOpen) current.refresh?.();
  };
  const go = () => {
    navigate();
    main.focus();
    scrollTo(0, 0);
  };
  addEventListener("hashchange", go);
  const cleanups = [
    () => removeEventListener("hashchange", go),
    api.on("state", showState),
    api.on("open", () => current?.refresh?.()),
    api.on("lost", () => {
      banner.classList.remove("hidden");
      replace(banner, "The console does not answer. The page continues by itself when it is back.");
      dot.className = "dot offline";
      isWaiting = true;
    }),
  ];
  navigate();
  api.open();
}

async function begin() {
  try {
    const session = await api.loadSession();
    if (session.login === "required") showLogin(false);
    else if (session.login === "offered") showLogin(true);
    else if (session.login === "waiting") {
      replace(app, h("main", { cls: "login", id: "main" }, h("div", { cls: "card" }, brand(), h("h1", {}, "Waiting for the broker"),
        h("p", { cls: "banner", role: "alert" }, "No broker answers at ", shown(session.broker),
          ". The page continues by itself when it is there."))));
      setTimeout(begin, 700);
    } else showFrame();
  } catch (error) {
    replace(app, h("p", { cls: "boot", role: "alert" }, shown(error.message)));
    setTimeout(begin, 3000);
  }
}
begin();
