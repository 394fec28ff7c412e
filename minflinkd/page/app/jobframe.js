// What all pages of one job have in common: its head, its tabs, and what is wrong with it.
import { attention } from "./attention.js";
import { useNow } from "./clock.js";
import { age, millis, plural, time } from "./format.js";
import { html } from "./html.js";
import { followed } from "./job.js";
import { JobActions } from "./jobactions.js";
import { useKey } from "./keys.js";
import { Notices } from "./notices.js";
import { JOB_TABS } from "./pages.js";
import { Copy, Empty, Head, Tabs } from "./parts.js";
import { go, to } from "./router.js";
import { State } from "./status.js";
import { useStore } from "./store.js";

/** `children` is a function of what is known of the job and the time. */
export function JobFrame({ jid, tab, children }) {
  const known = useStore(followed);
  const now = useNow();
  useKey("u", "Up to the overview", () => go("#/"));
  if (known.jid === jid && known.missing && !known.job) {
    return html`<${Head} title=${known.missing.status === 403 ? "This job is not shown to you" : "No such job"} trail=${html`<a href="#/">Overview</a>`} /><${Empty}>${known.missing.message}</${Empty}>`;
  }
  if (known.jid !== jid || !known.job) return html`<${Head} title="Job" trail=${html`<a href="#/">Overview</a>`} /><${Empty}>Asking the daemon …</${Empty}>`;
  const { job } = known;
  const extras = job.minflinkd;
  const over = job["end-time"] >= 0;
  const standby = extras["hot-standby"];
  const about = html`
    <span title=${time(job["start-time"], now)}>${over ? `lasted ${millis(job.duration)}, ended ${time(job["end-time"], now)}` : `submitted ${time(job["start-time"], now)}, ${age(job["start-time"], now)} ago`}</span>
    ${extras.owner && html`<span>by ${extras.owner}</span>`}
    <span>${plural(extras.restarts, "restart")}</span>
    ${standby && html`<span title=${standby.ready ? `on TaskManager ${standby["taskmanager-id"]}` : standby.why}>hot standby ${standby.ready ? "ready" : "not ready"}</span>`}
    <span class="row"><span class="mono">${jid}</span><${Copy} text=${jid} label="Copy id" /></span>`;
  return html`<${Head} title=${job.name} trail=${html`<a href="#/">Overview</a> / jobs`} beside=${html`<${State} state=${job.state} chip=${true} />`} about=${about} actions=${html`<${JobActions} job=${job} />`} />
    <${Tabs} label=${`Pages of ${job.name}`} tabs=${JOB_TABS.map(([name, part]) => [name, part ? to("jobs", jid, part) : to("jobs", jid), part === tab])} />
    <div class="stack">
      <${Notices} notices=${noticesOf(known, now)} now=${now} />
      ${children(known, now)}
    </div>`;
}

/** The same sentences as on the overview, from the details. */
function noticesOf({ job, checkpoints, exceptions }, now) {
  const last = exceptions?.exceptionHistory.entries[0];
  const completed = checkpoints?.latest.completed;
  const failed = checkpoints?.latest.failed;
  const summary = {
    ...job,
    "last-modification": Math.max(...Object.values(job.timestamps)),
    minflinkd: {
      ...job.minflinkd,
      waiting: job.minflinkd.waiting.join(" "),
      "last-failure": last && { task: last.taskName, message: last.minflinkd.message },
      checkpoints: checkpoints && {
        completed: completed?.latest_ack_timestamp ?? -1,
        duration: completed?.end_to_end_duration ?? 0,
        interval: checkpoints.minflinkd.interval,
        failed: failed?.failure_timestamp ?? -1,
        "consecutive-failures": checkpoints.minflinkd["consecutive-failures"],
        "failure-message": failed?.failure_message ?? "",
      },
    },
  };
  return attention({ overview: null, jobs: [summary], managers: [], figures: null }, now);
}

