// The connection to the console's server: login, requests with replies, and events. It reconnects by itself.

const LONGEST_PAUSE_MS = 5000;

export class Api {
  constructor() {
    this.session = null;
    this.listeners = new Map();
    this.waiting = new Map();
    this.next = 1;
    this.socket = null;
    this.pause_ms = 500;
    this.isOpen = false;
    this.isStopped = false;
  }

  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set());
    this.listeners.get(event).add(listener);
    return () => this.listeners.get(event).delete(listener);
  }

  emit(event, value) {
    for (const listener of this.listeners.get(event) || []) listener(value);
  }

  async loadSession() {
    const reply = await fetch("/api/session", { cache: "no-store" });
    if (!reply.ok) throw new Error(await reply.text());
    this.session = await reply.json();
    return this.session;
  }

  async post(path, body) {
    const reply = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Godwit-Token": this.session.token },
      body: JSON.stringify(body || {}),
    });
    const text = await reply.text();
    if (!reply.ok) {
      let problem = text.trim();
      try {
        problem = JSON.parse(text).error;
      } catch { /* a plain text */ }
      throw new Error(problem);
    }
    return JSON.parse(text);
  }

  open() {
    this.isStopped = false;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = (this.socket = new WebSocket(`${scheme}://${location.host}/ws`));
    socket.onopen = () => {
      socket.send(this.session.token);
      this.isOpen = true;
      this.pause_ms = 500;
      this.emit("open");
    };
    socket.onmessage = (event) => this.receive(JSON.parse(event.data));
    socket.onclose = () => {
      if (socket !== this.socket) return;
      this.isOpen = false;
      for (const { reject } of this.waiting.values()) reject(new Error("The connection to the console was lost."));
      this.waiting.clear();
      if (this.isStopped) return;
      this.emit("lost");
      setTimeout(() => this.reopen(), this.pause_ms);
      this.pause_ms = Math.min(this.pause_ms * 2, LONGEST_PAUSE_MS);
    };
  }

  async reopen() {
    if (this.isStopped) return;
    try {
      const before = this.session;
      await this.loadSession();
      if (before && before.name !== this.session.name) return location.reload();
    } catch {
      setTimeout(() => this.reopen(), this.pause_ms);
      this.pause_ms = Math.min(this.pause_ms * 2, LONGEST_PAUSE_MS);
      return;
    }
    this.open();
  }

  stop() {
    this.isStopped = true;
    this.socket?.close();
  }

  receive(message) {
    if (message.on) return this.emit(message.on, message);
    const waiting = this.waiting.get(message.id);
    this.waiting.delete(message.id);
    if (!waiting) return;
    if ("error" in message) waiting.reject(new Error(message.error));
    else waiting.resolve(message.is);
  }

  request(action, values = {}) {
    if (!this.isOpen) return Promise.reject(new Error("The console is not connected."));
    const id = this.next++;
    this.socket.send(JSON.stringify({ id, do: action, with: values }));
    return new Promise((resolve, reject) => this.waiting.set(id, { resolve, reject }));
  }
}
