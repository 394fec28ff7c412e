// The overview: what needs attention first, the jobs, and who holds the slots.
import { may } from "../app/allowed.js";
import { attention } from "../app/attention.js";
import { useNow } from "../app/clock.js";
import { cluster, colourOf, hasEnded, heardFrom, nameOf } from "../app/cluster.js";
import { age, ago, bytes, millis, plural, rate, seconds, time, whole } from "../app/format.js";
import { classes, html, useRef, useState } from "../app/html.js";
import { useKey } from "../app/keys.js";
import { Notices } from "../app/notices.js";
import { Empty, Head, Panel, Scroll } from "../app/parts.js";
import { go, to } from "../app/router.js";
import { Sparkline } from "../app/sparkline.js";
import { State } from "../app/status.js";
import { useStore } from "../app/store.js";

const MOST_MANAGERS = 20;

export function OverviewPage() {
  const known = useStore(cluster);
  const now = useNow();
  if (!known.known) return html`<${Head} title="Overview" /><${Empty}>Asking the daemon …</${Empty}>`;
  const notices = attention({ ...known, heardAt: heardFrom(known, now) }, now);
  const submit = may(known.who, "submit") && html`<a class="button" href=${to("submit")}>Submit a job</a>`;
  return html`<${Head} title="Overview" about=${html`<${Standing} overview=${known.overview} now=${now} />`} actions=${submit} />
    <div class="stack">
      <${Notices} notices=${notices} now=${now} calm=${calmly(known)} />
      <div class="columns with-side">
        <${Jobs} known=${known} now=${now} />
        <${Cluster} known=${known} now=${now} />
      </div>
    </div>`;
}

function calmly({ overview, jobs }) {
  const running = jobs.filter((job) => job.state === "RUNNING").length;
  return `Nothing needs attention. ${running === 1 ? "1 job runs" : `${whole(running)} jobs run`}, ${overview["slots-available"]} of ${plural(overview["slots-total"], "slot")} ${overview["slots-available"] === 1 ? "is" : "are"} free.`;
}

function Standing({ overview, now }) {
  const { version, leader, standbys } = overview.minflinkd;
  return html`<span>minflinkd ${version}</span>
    ${leader?.since > 0 && html`<span>${leader.name} leads since ${time(leader.since, now)}</span>`}
    ${standbys.length > 0 && html`<span>${plural(standbys.length, "standby")}</span>`}`;
}

function Jobs({ known, now }) {
  const [filter, setFilter] = useState("");
  const [at, setAt] = useState(-1);
  const field = useRef(null);
  const wanted = filter.trim().toLowerCase();
  const shown = known.jobs.filter((job) => !wanted || job.name.toLowerCase().includes(wanted) || job.jid.startsWith(wanted) || job.state.toLowerCase().includes(wanted));
  const active = shown.filter((job) => !hasEnded(job));
  const ended = shown.filter(hasEnded);
  const move = (by) => {
    const next = Math.max(0, Math.min(at + by, shown.length - 1));
    setAt(next);
    document.getElementById(`job-${shown[next]?.jid}`)?.scrollIntoView({ block: "nearest" });
  };
  useKey("/", "Filter the jobs", () => field.current?.focus());
  useKey("j", "Next job", () => move(1));
  useKey("k", "Previous job", () => move(-1));
  useKey("o", "Open the job", () => shown[at] && go(to("jobs", shown[at].jid)));
  const typed = (event) => {
    setFilter(event.target.value);
    setAt(-1);
  };
  const done = (event) => {
    if (event.key === "Escape") setFilter("");
    if (event.key === "Escape" || event.key === "Enter") field.current.blur();
  };
  const rest = known.jobs.length > 5 && html`<input ref=${field} class="field" type="search" placeholder="Filter" aria-label="Filter the jobs" value=${filter} onInput=${typed} onKeyDown=${done} />`;
  return html`<div class="stack">
    <${Panel} title=${html`Jobs <span class="faint">${active.length}</span>`} label="Jobs" rest=${rest}>
      ${active.length
        ? html`<${JobTable} jobs=${active} known=${known} now=${now} at=${shown[at]?.jid} label="Jobs" />`
        : html`<${Empty}>${wanted ? "No job has this in its name." : html`No job runs. Submit one: <code>minflinkd run job.yaml</code>`}</${Empty}>`}
    </${Panel}>
    ${ended.length > 0 && html`<${Panel} title=${html`Ended <span class="faint">${ended.length}</span>`} label="Ended jobs">
      <${JobTable} jobs=${ended} known=${known} now=${now} at=${shown[at]?.jid} label="Ended jobs" /></${Panel}>`}
  </div>`;
}

function JobTable({ jobs, known, now, at, label }) {
  const over = jobs.every(hasEnded);
  return html`<${Scroll} label=${label}><table>
    <thead><tr><th scope="col">Name</th><th scope="col" class="hide-narrow">State</th><th scope="col" class=${classes("num", !over && "hide-narrow")}>${over ? "Ended" : "Running for"}</th>
      ${over
        ? html`<th scope="col" class="num hide-narrow">Lasted</th>`
        : html`<th scope="col" class="num">Rows in</th><th scope="col" class="hide-narrow">Last hour</th><th scope="col" class="num">Last checkpoint</th>`}
      <th scope="col" class="num hide-narrow">Restarts</th><th scope="col" class="num hide-narrow">Tasks</th></tr></thead>
    <tbody>${jobs.map((job) => html`<${JobRow} key=${job.jid} job=${job} values=${known.rates.get(job.jid)} now=${now} at=${job.jid === at} over=${over} />`)}</tbody>
  </table></${Scroll}>`;
}

function JobRow({ job, values, now, at, over }) {
  const address = to("jobs", job.jid);
  const last = values.length ? values.at(-1) : null;
  const open = (event) => event.target.closest("a") || getSelection().toString() || go(address);
  return html`<tr id=${`job-${job.jid}`} class=${classes("link", at && "at")} aria-current=${at ? "true" : undefined} onClick=${open}>
    <td><a class="name" href=${address} title=${job.jid}>${job.name}</a><span class="only-narrow"><${State} state=${job.state} /></span></td>
    <td class="hide-narrow"><${State} state=${job.state} /></td>
    ${over
      ? html`<td class="num" title=${time(job["end-time"], now)}>${ago(job["end-time"], now)}</td><td class="num hide-narrow">${millis(job["end-time"] - job["start-time"])}</td>`
      : html`<td class="num hide-narrow" title=${time(job["start-time"], now)}>${age(job["start-time"], now)}</td>
        <td class="num">${rate(last)}</td>
        <td class="hide-narrow"><${Sparkline} values=${values} label=${`rows per second of ${job.name}, now ${rate(last)}`} /></td>
        <td class="num"><${LastCheckpoint} found=${job.minflinkd.checkpoints} now=${now} /></td>`}
    <td class=${classes("num hide-narrow", job.minflinkd["restarting-repeatedly"] && "bad")}>${whole(job.minflinkd.restarts)}</td>
    <td class="num hide-narrow">${job.tasks.running + job.tasks.finished}/${job.tasks.total}</td>
  </tr>`;
}

function LastCheckpoint({ found, now }) {
  if (!found) return html`<span class="faint">–</span>`;
  if (found["consecutive-failures"] > 0) return html`<span class="bad">${found["consecutive-failures"]} failed</span>`;
  if (!(found.completed > 0)) return html`<span class="faint">none yet</span>`;
  return html`<span title=${`it took ${millis(found.duration)}`}>${ago(found.completed, now)}</span>`;
}

function Cluster({ known, now }) {
  const { overview, managers, figures } = known;
  const lag = figures.last("loop_lag");
  const jobs = [...new Set(managers.flatMap((one) => one.minflinkd.slots.map((slot) => slot["job-id"])).filter(Boolean))];
  return html`<div class="stack">
    <${Panel} title="Slots" rest=${html`<span class="muted">${overview["slots-available"]} of ${overview["slots-total"]} free</span>`}>
      <div class="pad stack">
        ${managers.slice(0, MOST_MANAGERS).map((manager) => html`<div key=${manager.id}>
          <div class="row"><a class="clip" href=${to("taskmanagers", manager.id)}>${manager.id}</a><span class="faint nowrap">${bytes(memoryOf(manager))}</span></div>
          <div class="slots">${manager.minflinkd.slots.map((slot) => html`<${Slot} key=${slot.index} slot=${slot} />`)}</div></div>`)}
        ${managers.length > MOST_MANAGERS && html`<a href="#/taskmanagers">${plural(managers.length - MOST_MANAGERS, "other TaskManager")}</a>`}
        ${!managers.length && html`<span class="muted">No TaskManager is registered.</span>`}
        ${jobs.length > 0 && html`<div class="legend">${jobs.slice(0, 12).map((jid) => html`<span key=${jid}><i style=${{ color: colourOf(jid) }}></i>${nameOf(jid)}</span>`)}</div>`}
      </div>
    </${Panel}>
    <${Panel} title="Daemon"><div class="pad"><dl class="pairs">
      <dt>Event loop</dt><dd>${lag === null || lag === undefined ? "–" : `${seconds(lag)} late`}</dd>
      <dt>TaskManagers</dt><dd>${overview.taskmanagers}${overview.minflinkd["taskmanagers-lost"] ? html`, <span class="warn">${overview.minflinkd["taskmanagers-lost"]} lost</span>` : ""}</dd>
      <dt>Jobs</dt><dd>${overview["jobs-running"]} running, ${overview["jobs-finished"]} finished, ${overview["jobs-cancelled"]} cancelled, ${overview["jobs-failed"]} failed</dd>
    </dl></div></${Panel}>
  </div>`;
}

/** Of all of its processes together; null if nothing is known. */
export function memoryOf({ minflinkd: { metrics } }) {
  const known = ["supervisor", "session", "jvm", "python_workers"].map((name) => metrics[`${name}.rss_bytes`]).filter((one) => one !== undefined);
  return known.length ? known.reduce((sum, one) => sum + one, 0) : null;
}

export function Slot({ slot, named }) {
  const jid = slot["job-id"];
  const name = jid ? nameOf(jid) : "free";
  const words = `slot ${slot.index}: ${name}`;
  if (!jid) return html`<span class=${classes("slot", named && "named")} title=${words}>${named ? html`<span class="faint">free</span>` : html`<span class="unseen">${words}</span>`}</span>`;
  return html`<a class=${classes("slot taken", named && "named clip")} href=${to("jobs", jid)} title=${words} style=${{ color: colourOf(jid) }}>
    ${named ? html`<span>${name}</span>` : html`<span class="unseen">${words}</span>`}</a>`;
}
