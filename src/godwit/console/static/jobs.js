// Jobs: kinds of work with their queues, workers with their load, jobs with their progress; submit, cancel, retry.
import { Grid } from "./grid.js";
import { bytes, clock, confirm, count, dialog, duration, field, h, moment, refresh, replace, roughly, select, shown, table, toast } from "./dom.js";

const FORMS = [["text", "Text"], ["json", "JSON"], ["hex", "Hexadecimal"]];
const ENDED = ["done", "failed", "cancelled"];

// A job that the broker runs may have no task in work: it waits for a worker with room.
const statePill = (job) => {
  const isQueued = job.state === "running" && !job.leased;
  return h("span", { cls: `pill ${isQueued ? "waiting" : job.state}` }, isQueued ? "queued" : job.state);
};
const load = (share) => h("div", { cls: "bar" }, h("i", { style: { width: `${Math.round(100 * Math.min(share, 1))}%` } }));

export function jobsPage(view, api, query) {
  let state = "", linked = query.get("job");
  const grid = new Grid({
    label: "Jobs",
    columns: [
      { title: "Job", width: "48px", cls: "num", cell: (row) => `#${row.job}` },
      { title: "Kind", width: "minmax(64px, 1fr)", cell: (row) => shown(row.of_kind) },
      { title: "State", width: "82px", cell: statePill },
      { title: "Tasks", width: "46px", cls: "num", cell: (row) => `${row.finished || 0} / ${row.agreed ?? "?"}` },
      { title: "By", width: "minmax(60px, 1fr)", narrow: false, cell: (row) => shown(row.controller) },
      { title: "Submitted", width: "80px", narrow: false, cell: (row) => roughly(row.submitted_us) },
      { title: "Took", width: "54px", cls: "num", narrow: false, cell: (row) => (row.ended_us ? duration((row.ended_us - row.submitted_us) / 1e6) : "–") },
    ],
    key: (row) => row.job,
    fetch: (offset, limit) => api.request("jobs", { state, offset, limit }),
    onopen: (row) => showJob(row.job),
    empty: "There are no jobs here. Submit one, or choose another state.",
  });
  const stateSelect = select([["", "All states"], ["waiting", "Waiting"], ["running", "Running"], ["done", "Done"], ["failed", "Failed"], ["cancelled", "Cancelled"]], {
    "aria-label": "State of the jobs",
    onchange: () => {
      state = stateSelect.value;
      grid.refresh(true);
    },
  });
  const kinds = h("div"), workers = h("div");
  const refreshWorkers = async () => {
    try {
      const found = await api.request("workers");
      refresh(kinds, table("Kinds of work", [["Kind"], ["Queued", "num"], ["Running", "num"], ["Workers", "num"], ["Capacity", "num"]],
        found.kinds.map((one) => [shown(one.kind), count(one.waiting), count(one.running), one.workers ? count(one.workers) : h("span", { cls: "pill waiting" }, "none"), count(one.capacity)]),
        "No work waits, and no worker volunteers."));
      refresh(workers, table("Workers", [["Worker"], ["State"], ["Kinds"], ["Load"], ["Tasks", "num"], ["Last report"]],
        found.workers.map((one) => [shown(one.name), h("span", { cls: `pill ${one.state || "ready"}` }, one.state || "ready"), shown((one.kinds || []).join(", "), { max: 200 }),
          load((one.tasks || 0) / (one.capacity || 1)), `${one.tasks || 0} / ${one.capacity || 0}`, roughly(one.heard_us)]), "There are no workers."),
        found.worker_count > found.workers.length && h("p", { cls: "muted small" }, `${count(found.worker_count)} workers in all`));
    } catch (error) {
      replace(kinds, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
      replace(workers);
    }
  };
  const reload = () => {
    grid.refresh();
    refreshWorkers();
  };
  const timer = setInterval(() => api.isOpen && document.visibilityState === "visible" && reload(), 2500);

  // -- submit
  const kindInput = h("input", { required: true, placeholder: "resize", maxlength: "256" });
  const payloadInput = h("textarea", { rows: "3" });
  const formSelect = select(FORMS, {});
  const workersInput = h("input", { type: "number", min: "0", max: "1000000", value: "1" });
  const priorityInput = h("input", { type: "number", value: "0", min: "-1000", max: "1000" });
  const outcome = h("p", { cls: "small", role: "status" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      const found = await api.request("submit", {
        kind: kindInput.value, payload: payloadInput.value, form: formSelect.value,
        workers: Number(workersInput.value), priority: Number(priorityInput.value),
      });
      outcome.className = "small";
      replace(outcome, `Job #${found.job} is stored.`);
      reload();
      showJob(found.job);
    } catch (error) {
      outcome.className = "error-text";
      replace(outcome, shown(error.message));
    }
  };

  // -- one job
  const showJob = (number) => {
    const body = h("div", { cls: "stack" }, "…");
    const problem = h("p", { cls: "error-text", role: "alert" });
    let tick, last = "";
    const act = async (action) => {
      try {
        const found = await api.request(action, { job: number });
        if (found.job) {
          toast(`Job #${found.job} is a repetition of #${number}.`);
          element.close();
          showJob(found.job);
        }
        grid.refresh();
      } catch (error) {
        replace(problem, shown(error.message));
      }
    };
    const draw = ({ job, tasks, task_count: taskCount }) => {
      const events = [[job.submitted_us, "waiting", ["Submitted by ", shown(job.controller)]]];
      if (job.begins_us > job.submitted_us) events.push([job.begins_us, "waiting", "Earliest start"]);
      for (const task of tasks.slice(0, 50)) {
        const text = [`Task ${task.task} is ${task.state}`, task.worker ? [" – ", shown(task.worker)] : "",
          task.failures ? `, ${task.failures} failed attempts` : "", task.losses ? `, ${task.losses} lost leases` : "",
          task.error ? [": ", shown(task.error, { max: 500 })] : ""];
        events.push([task.since_us || job.submitted_us, task.state, text]);
      }
      if (job.ended_us) events.push([job.ended_us, job.state, [`The job is ${job.state}`, job.reason ? [": ", shown(job.reason)] : ""]]);
      events.sort((a, b) => a[0] - b[0]);
      const share = tasks.length ? tasks.reduce((sum, one) => sum + (one.state === "done" ? 1 : one.progress || 0), 0) / tasks.length : 0;
      const notes = tasks.filter((one) => one.note).slice(0, 5);
      refresh(body,
        h("dl", { cls: "facts" },
          h("dt", {}, "Kind"), h("dd", {}, shown(job.of_kind)),
          h("dt", {}, "State"), h("dd", { cls: "job-state" }, statePill(job)),
          h("dt", {}, "Tasks"), h("dd", {}, `${job.finished || 0} done, ${job.leased || 0} in work, ${job.failed || 0} failed, of ${job.agreed ?? "?"}`),
          h("dt", {}, "Priority"), h("dd", {}, String(job.priority || 0)),
          h("dt", {}, "Payload"), h("dd", {}, bytes(job.payload_bytes || 0)),
          h("dt", {}, "Submitted"), h("dd", {}, moment(job.submitted_us)),
          job.ended_us && [h("dt", {}, "Took"), h("dd", {}, duration((job.ended_us - job.submitted_us) / 1e6))]),
        h("label", {}, `Progress, ${Math.round(100 * share)} %`, h("progress", { max: "1", value: share })),
        notes.map((one) => h("p", { cls: "small muted" }, `Task ${one.task}: `, shown(one.note))),
        h("h2", {}, "Timeline"),
        h("ol", { cls: "timeline" }, events.map(([at, kind, text]) => h("li", { cls: kind }, h("span", { cls: "muted small" }, clock(at)), " ", text))),
        taskCount > 50 && h("p", { cls: "muted small" }, `The first 50 of ${count(taskCount)} tasks are shown.`),
        problem,
        h("div", { cls: "actions" },
          !ENDED.includes(job.state) && h("button", { type: "button", cls: "danger", onclick: () => confirm("Cancel this job?",
            `The tasks of job #${number} that run are revoked.`, "Cancel job", () => act("cancel")) }, "Cancel job"),
          ["failed", "cancelled"].includes(job.state) && h("button", { type: "button", cls: "primary", onclick: () => act("retry") }, "Retry")));
    };
    const update = async () => {
      try {
        const found = await api.request("job", { job: number });
        const text = JSON.stringify(found);
        if (text !== last) draw(found);
        last = text;
      } catch (error) {
        replace(body, h("p", { cls: "error-text", role: "alert" }, shown(error.message)));
      }
    };
    const element = dialog(`Job #${number}`, () => body, () => clearInterval(tick));
    tick = setInterval(() => api.isOpen && update(), 500);
    update();
  };

  view.append(h("div", { cls: "head" }, h("h1", {}, "Jobs")),
    h("div", { cls: "columns" },
      h("div", { cls: "stack" },
        h("section", { cls: "card", "aria-label": "List of jobs" }, h("div", { cls: "card-head" }, h("h2", {}, "Jobs"), h("span", { cls: "spacer" }), h("div", {}, stateSelect)), grid.frame),
        h("section", { cls: "card", "aria-label": "Workers" }, h("h2", {}, "Workers"), workers)),
      h("div", { cls: "stack" },
        h("section", { cls: "card", "aria-label": "Kinds of work" }, h("h2", {}, "Kinds of work"), kinds),
        h("form", { cls: "card", onsubmit: submit, "aria-label": "Submit a job" }, h("h2", {}, "Submit a job"),
          field("Kind", kindInput), field("Payload", payloadInput),
          h("div", { cls: "fields" }, field("Payload is", formSelect), field("Workers (0: all)", workersInput), field("Priority", priorityInput),
            h("button", { cls: "primary", type: "submit" }, "Submit")), outcome))));
  return {
    refresh() {
      reload();
      if (linked) showJob(Number(linked));
      linked = null;
    },
    close() {
      clearInterval(timer);
      grid.close();
    },
  };
}
