// What has happened to a job: its life as one line, and every event with its phases and tracebacks, newest first.
import { ago, firstLine, millis, plural, seconds, time } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { Choice, Copy, Empty, Panel, PhaseLegend, Phases, Scroll } from "../app/parts.js";
import { to } from "../app/router.js";
import { Sign, State, tone, wordOf } from "../app/status.js";

const KINDS = [["all", "All"], ["exception", "Failures"], ["recovery", "Recoveries"], ["hot-restart", "Hot restarts"], ["savepoint", "Savepoints"]];
const STEP = 50; // events that are shown at first, and with each further click

export function TimelinePage({ jid }) {
  return html`<${JobFrame} jid=${jid} tab="timeline">${(known, now) => html`<${Shown} known=${known} now=${now} />`}</${JobFrame}>`;
}

function Shown({ known, now }) {
  const [kind, setKind] = useState("all");
  const [most, setMost] = useState(STEP);
  const events = eventsOf(known);
  const shown = events.filter((event) => kind === "all" || event.kind === kind);
  const kinds = KINDS.filter(([one]) => one === "all" || events.some((event) => event.kind === one));
  return html`<${Life} job=${known.job} now=${now} />
    <${Tasks} job=${known.job} now=${now} />
    <${Panel} title="Events" label="Events" rest=${kinds.length > 2 && html`<${Choice} label="Kind of event" options=${kinds} value=${kind} onChange=${setKind} />`}>
      <ol class="timeline">${shown.slice(0, most).map((event) => html`<${Event} key=${`${event.kind} ${event.at} ${event.title}`} event=${event} now=${now} />`)}</ol>
      ${shown.length > most && html`<div class="pad"><button class="button small" onClick=${() => setMost(most + STEP)}>${plural(shown.length - most, "earlier event")}</button></div>`}
      ${known.exceptions?.exceptionHistory.truncated && html`<p class="pad muted">Earlier failures are not kept.</p>`}
    </${Panel}>`;
}

/** Phases as the daemon has them, seconds from the beginning, become parts of a whole. Pure. */
export function parts(phases) {
  const ordered = Object.entries(phases).sort((a, b) => a[1] - b[1]);
  const all = ordered.map(([name, end], i) => [name.replaceAll("_", " "), end - (i ? ordered[i - 1][1] : 0)]);
  return all.filter(([, lasted]) => lasted >= 0.0005);
}

/** A submission is analysed and stored first; what follows is counted from then on. */
function submitted({ analyzed, stored, ...rest }) {
  const known = Object.entries({ analyzed, stored }).filter(([, at]) => at !== undefined);
  return [...parts(Object.fromEntries(known)), ...parts(rest)];
}

/** Everything that is known to have happened, newest first. Pure. */
export function eventsOf({ job, exceptions, checkpoints, marks }) {
  const extras = job.minflinkd;
  const found = [];
  found.push({ kind: "submission", at: job["start-time"], state: "info", title: "Submitted", text: extras.owner ? `by ${extras.owner}` : "", phases: submitted(extras.submission) });
  for (const one of exceptions?.exceptionHistory.entries ?? []) {
    const where = one.taskName ? `${one.taskName}: ` : "";
    found.push({
      kind: "exception", at: one.timestamp, state: "problem", title: `${where}${one.exceptionName}`, text: one.minflinkd.message, hint: one.minflinkd.hint,
      trace: one.stacktrace, manager: one.taskManagerId,
    });
  }
  for (const one of extras.recoveries) {
    const from = one["checkpoint-id"] === null ? "without a checkpoint" : `from checkpoint ${one["checkpoint-id"]}`;
    const tasks = one.tasks.length ? ` of ${one.tasks.join(", ")}` : "";
    const up = one.phases.running ?? one.phases.deployed;
    found.push({ kind: "recovery", at: one.failed, state: up === undefined ? "RESTARTING" : "warning", title: `Restart${tasks} ${from}`, text: one.cause, phases: parts(one.phases), took: up });
  }
  for (const one of extras["hot-restarts"]) {
    found.push({
      kind: "hot-restart", at: one.requested, state: one.state, title: `Hot restart ${one.number}: ${wordOf(one.state)}`, text: one.error?.message ?? (one["checkpoint-id"] === null ? "" : `from checkpoint ${one["checkpoint-id"]}`),
      hint: one.error?.hint, phases: parts(one.phases), took: one.phases.running,
    });
  }
  for (const one of checkpoints?.history ?? []) {
    if (one.is_savepoint) found.push({ kind: "savepoint", at: one.trigger_timestamp, state: one.status, title: `Savepoint ${one.id}`, text: one.failure_message ?? one.external_path ?? "", took: one.end_to_end_duration / 1000 });
  }
  for (const one of marks) {
    if (one.kind === "checkpoint-failed") found.push({ kind: "checkpoint", at: one.at, state: "warning", title: "Checkpoint failed", text: one.text });
    if (one.kind === "savepoint" && !found.some((event) => event.kind === "savepoint" && Math.abs(event.at - one.at) < 2000)) found.push({ kind: "savepoint", at: one.at, state: "COMPLETED", title: "Savepoint", text: one.text });
  }
  if (job["end-time"] >= 0) found.push({ kind: "end", at: job["end-time"], state: job.state, title: `Ended: ${wordOf(job.state)}`, text: `after ${millis(job.duration)}` });
  return found.sort((a, b) => b.at - a.at);
}

function Event({ event, now }) {
  return html`<li>
    <span class="when"><span>${time(event.at, now)}</span><span class="faint">${ago(event.at, now)}</span></span>
    <span class="dot"><${Sign} state=${event.state} size=${14} /></span>
    <div class="what">
      <div class="row"><strong>${event.title}</strong>${event.took !== undefined && html`<span class="muted">${seconds(event.took)}</span>`}
        ${event.manager && html`<a href=${to("taskmanagers", event.manager)}>${event.manager}</a>`}</div>
      ${event.text && html`<p class="text">${firstLine(event.text, 400)}</p>`}
      ${event.hint && html`<p class="muted">${event.hint}</p>`}
      ${event.phases?.length > 0 && html`<div class="phased"><${Phases} phases=${event.phases} /><${PhaseLegend} phases=${event.phases} /></div>`}
      ${event.trace && event.trace.includes("\n") && html`<${Traceback} text=${event.trace} />`}
    </div>
  </li>`;
}

function Traceback({ text }) {
  const [open, setOpen] = useState(false);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>Traceback</summary>
    ${open && html`<div class="traced"><pre class="trace" tabindex="0">${text}</pre><${Copy} text=${text} /></div>`}</details>`;
}

/** The job's life from its submission on: when it ran, and when it did not. */
function Life({ job, now }) {
  const from = job["start-time"];
  const to_ = job["end-time"] >= 0 ? job["end-time"] : now;
  const spans = spansOf(job, to_);
  const place = (at) => `${Math.max(0, Math.min(100, (100 * (at - from)) / Math.max(to_ - from, 1)))}%`;
  const down = spans.reduce((sum, span) => sum + (span.until - span.at), 0);
  const lasted = Math.max(to_ - from, 1);
  const words = `${plural(spans.length, "interruption")}, ${millis(down)} in all, ${((100 * (lasted - down)) / lasted).toFixed(2)} % of the time up`;
  return html`<${Panel} title="Life" label="Life" rest=${html`<span class="muted">${words}</span>`}><div class="pad">
    <div class="life" role="img" aria-label=${words}>
      <i class=${`whole ${job["end-time"] >= 0 ? tone(job.state) : "good"}`}></i>
      ${spans.map((span) => html`<i key=${`${span.kind} ${span.at}`} class=${`gap ${span.kind}`} title=${`${time(span.at, now)}: ${span.text}`} style=${{ left: place(span.at), width: `calc(${place(span.until)} - ${place(span.at)})` }}></i>`)}
    </div>
    <div class="ends faint"><span>${time(from, now)}</span><span>${job["end-time"] >= 0 ? time(to_, now) : "now"}</span></div>
    <div class="legend"><span class="good"><i></i><span class="muted">up</span></span><span class="warn"><i></i><span class="muted">restart after a failure</span></span><span class="busy"><i></i><span class="muted">hot restart</span></span></div>
  </div></${Panel}>`;
}

/** When the job did not run: from a failure, or a request, until its tasks ran again. Pure. */
export function spansOf(job, until) {
  const running = job.minflinkd.submission.running;
  const found = [];
  if (running !== undefined) found.push({ kind: "start", at: job["start-time"], until: job["start-time"] + running * 1000, text: `started in ${seconds(running)}` });
  for (const one of job.minflinkd.recoveries) {
    const up = one.phases.running;
    found.push({ kind: "restart", at: one.failed, until: up === undefined ? until : one.failed + up * 1000, text: one.cause });
  }
  for (const one of job.minflinkd["hot-restarts"]) {
    const { stopped, running: up } = one.phases;
    if (stopped !== undefined && up !== undefined) found.push({ kind: "hot", at: one.requested + stopped * 1000, until: one.requested + up * 1000, text: `hot restart ${one.number}` });
  }
  return found.filter((span) => span.until > span.at).sort((a, b) => a.at - b.at);
}

function Tasks({ job, now }) {
  if (!job.vertices.length) return html`<${Panel} title="Attempts"><${Empty}>The job has no tasks yet.</${Empty}></${Panel}>`;
  return html`<${Panel} title="Attempts" label="Attempts"><${Scroll} label="Attempts"><table>
    <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col" class="num">Attempt</th><th scope="col">Since</th><th scope="col">TaskManager</th><th scope="col" class="phase-cell">How it started</th></tr></thead>
    <tbody>${job.vertices.map((vertex) => {
      const found = vertex.minflinkd;
      const phases = Object.entries(found.phases);
      return html`<tr key=${vertex.id}><td><a class="name" href=${`${to("jobs", job.jid)}?task=${encodeURIComponent(found["task-id"])}`}>${vertex.name}</a></td>
        <td><${State} state=${vertex.status} /></td><td class="num">${found["attempt-number"] + 1}</td><td class="nowrap">${time(vertex["start-time"], now)}</td>
        <td>${found["taskmanager-id"] ? html`<a href=${to("taskmanagers", found["taskmanager-id"])}>${found["taskmanager-id"]}</a>` : html`<span class="faint">–</span>`}</td>
        <td class="phase-cell">${phases.length > 0 && html`<${Phases} phases=${phases} /><${PhaseLegend} phases=${phases} />`}</td></tr>`;
    })}</tbody></table></${Scroll}></${Panel}>`;
}
