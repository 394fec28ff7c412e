// TaskManagers: who holds their slots, how their processes are, and their logs.
import { attention, COLLECTING, silentAfter } from "../app/attention.js";
import { now as daemonTime, useNow } from "../app/clock.js";
import { cluster, colourOf, heardFrom, nameOf } from "../app/cluster.js";
import { age, ago, bytes, plural, seconds, share, short, time, whole } from "../app/format.js";
import { classes, html, useState } from "../app/html.js";
import { useKey } from "../app/keys.js";
import { LogView } from "../app/logs.js";
import { DrainButton } from "../app/drain.js";
import { Notices } from "../app/notices.js";
import { Empty, Fault, Figures, Head, Panel, Phases, PhaseLegend, phaseColour, useAnswer } from "../app/parts.js";
import { go, to } from "../app/router.js";
import { State } from "../app/status.js";
import { useStore } from "../app/store.js";
import { parts } from "./timeline.js";
import { Slot, memoryOf } from "./overview.js";

const STEP = 50; // TaskManagers that are shown at first, and with each further click

export function TaskManagersPage() {
  const known = useStore(cluster);
  const [most, setMost] = useState(STEP);
  const now = useNow();
  if (!known.known) return html`<${Head} title="TaskManagers" /><${Empty}>Asking the daemon …</${Empty}>`;
  const { overview, managers } = known;
  const jobs = [...new Set(managers.flatMap((one) => one.minflinkd.slots.map((slot) => slot["job-id"])).filter(Boolean))];
  const notices = attention({ overview: null, jobs: [], managers, figures: null, heardAt: heardFrom(known, now), silentFor: silentAfter(known.overview) }, now);
  const { starting } = overview.minflinkd;
  return html`<${Head} title="TaskManagers" about=${html`<span>${plural(overview.taskmanagers, "TaskManager")}</span><span>${overview["slots-available"]} of ${plural(overview["slots-total"], "slot")} free</span>
      ${overview.minflinkd["taskmanagers-lost"] > 0 && html`<span>${overview.minflinkd["taskmanagers-lost"]} lost</span>`}`} />
    <div class="stack">
      <${Notices} notices=${notices} now=${now} />
      ${jobs.length > 0 && html`<div class="legend">${jobs.slice(0, 24).map((jid) => html`<span key=${jid}><i style=${{ color: colourOf(jid) }}></i><a href=${to("jobs", jid)}>${nameOf(jid)}</a></span>`)}</div>`}
      ${managers.slice(0, most).map((manager) => html`<${Card} key=${manager.id} manager=${manager} now=${now} />`)}
      ${managers.length > most && html`<button class="button" onClick=${() => setMost(most + STEP)}>${plural(managers.length - most, "other TaskManager")}</button>`}
      ${starting.map((one) => html`<${Panel} key=${one.id} label=${one.id}><div class="pad alone row"><${State} state="starting" /><strong>${one.id}</strong><span class="muted">for ${age(one.since, now)}</span></div></${Panel}>`)}
      ${!managers.length && !starting.length && html`<${Panel}><${Empty}>No TaskManager is registered. One is started when a job needs it.</${Empty}></${Panel}>`}
    </div>`;
}

const PROCESSES = [["supervisor", "supervisor"], ["session", "Python driver"], ["jvm", "JVM"], ["python_workers", "Python workers"]];

/** What its processes have of the machine's memory. */
function Memory({ manager }) {
  const { metrics } = manager.minflinkd;
  const machine = manager.hardware.physicalMemory;
  const shown = PROCESSES.filter(([name]) => metrics[`${name}.rss_bytes`] !== undefined);
  const words = shown.map(([name, words]) => `${words} ${bytes(metrics[`${name}.rss_bytes`])}`).join(", ");
  return html`<div class="memory"><div class="row"><span>${bytes(memoryOf(manager))}</span><span class="faint">of ${bytes(machine)}</span></div>
    <span class="phases" role="img" aria-label=${words} title=${words}>${shown.map(([name], i) => html`<i key=${name} style=${{ flexGrow: machine ? metrics[`${name}.rss_bytes`] / machine : 0, background: phaseColour(i) }}></i>`)}</span>
    <span class="legend">${shown.map(([name, words], i) => html`<span key=${name}><i style=${{ color: phaseColour(i) }}></i>${words}<b>${bytes(metrics[`${name}.rss_bytes`])}</b></span>`)}</span></div>`;
}

const heap = (metrics) => (metrics["jvm.heap.used_bytes"] === undefined ? "–" : `${bytes(metrics["jvm.heap.used_bytes"])} of ${bytes(metrics["jvm.heap.max_bytes"])}`);
const collects = (metrics) => metrics["jvm.gc_share"] > COLLECTING;

/** The collectors of a session's JVM: [name, collections, seconds]. */
function collectors(metrics) {
  const names = Object.keys(metrics).filter((name) => /^jvm\.gc\..+\.count$/.test(name)).map((name) => name.slice("jvm.gc.".length, -".count".length));
  return names.sort().map((name) => [name, metrics[`jvm.gc.${name}.count`], (metrics[`jvm.gc.${name}.time_ms`] ?? 0) / 1000]);
}

function Card({ manager, now }) {
  const { id, minflinkd: extras } = manager;
  return html`<${Panel} label=${id} title=${html`<a href=${to("taskmanagers", id)}>${id}</a>`}
    rest=${html`<${State} state=${extras.draining ? "warning" : sessionState(extras)}>${extras.draining ? "draining" : extras.session}</${State}>
      <${Heartbeat} manager=${manager} />`}>
    <div class="pad manager"><div class="what">
      <div class="slots">${extras.slots.map((slot) => html`<${Slot} key=${slot.index} slot=${slot} named=${true} />`)}</div>
      <dl class="facts">
        <div><dt>Session</dt><dd>generation ${extras["session-generation"]}</dd></div>
        <div><dt>Up for</dt><dd>${age(extras.registered, now)}</dd></div>
        ${eachSlot(extras["each-slot"]) && html`<div><dt>Each slot</dt><dd>${eachSlot(extras["each-slot"])}</dd></div>`}
        <div><dt>Process</dt><dd>${extras.pid}${extras.standalone ? ", standalone" : ""}</dd></div>
        <div><dt>Heap</dt><dd>${heap(extras.metrics)}</dd></div>
        <div><dt>Garbage collection</dt><dd class=${collects(extras.metrics) ? "bad" : ""}>${share(extras.metrics["jvm.gc_share"])}</dd></div>
      </dl></div>
      <${Memory} manager=${manager} />
    </div>
  </${Panel}>`;
}

/** What each slot of a TaskManager has, such as 1 cpu, 512 MiB memory; empty if it does not say. */
const eachSlot = (each = {}) => Object.entries(each).map(([name, amount]) => `${SIZES.includes(name) ? bytes(amount) : short(amount)} ${name}`).join(", ");
const SIZES = ["memory", "off-heap", "disk"];

const sessionState = ({ session }) => ({ ready: "ready", lost: "problem" })[session] ?? "starting";

function Heartbeat({ manager }) {
  const now = heardFrom(cluster.value, daemonTime());
  const silent = now - manager.timeSinceLastHeartbeat;
  return html`<span class=${classes("nowrap", silent > silentAfter(cluster.value.overview) ? "bad" : "muted")} title=${time(manager.timeSinceLastHeartbeat, now)}>heard ${ago(manager.timeSinceLastHeartbeat, now)}</span>`;
}

export function TaskManagerPage({ id, log, query }) {
  const known = useStore(cluster);
  const now = useNow();
  const manager = known.managers.find((one) => one.id === id);
  const { value, error } = useAnswer(`/taskmanagers/${encodeURIComponent(id)}/logs`);
  useKey("u", "Up to the TaskManagers", () => go(to("taskmanagers")));
  const notices = manager ? attention({ overview: null, jobs: [], managers: [manager], figures: null, heardAt: heardFrom(known, now), silentFor: silentAfter(known.overview) }, now) : [];
  const logs = value?.logs ?? [];
  const shown = log ?? query.log ?? logs.find((one) => one.name.startsWith("taskmanager"))?.name ?? logs[0]?.name;
  return html`<${Head} title=${id} trail=${html`<a href=${to("taskmanagers")}>TaskManagers</a>`} beside=${manager && html`<${State} chip=${true} state=${sessionState(manager.minflinkd)}>${manager.minflinkd.session}</${State}>`}
      about=${manager && html`<${About} manager=${manager} now=${now} />`} actions=${html`<${DrainButton} manager=${manager} />`} />
    <div class="stack">
      <${Notices} notices=${notices} now=${now} />
      ${known.known && !manager && html`<${Panel}><${Empty}>This TaskManager is not registered any more. Its logs stay as long as it is one of the last 20 that have ended.</${Empty}></${Panel}>`}
      ${manager && html`<${Facts} manager=${manager} now=${now} />`}
      <${Panel} title="Logs" label="Logs" rest=${html`<nav class="legend" aria-label="Logs">${logs.map((one) => html`<a key=${one.name} href=${to("taskmanagers", id, "logs", one.name)} aria-current=${one.name === shown ? "true" : undefined}>${one.name} <span class="faint">${bytes(one.size)}</span></a>`)}</nav>`}>
        <div class="pad">${error ? html`<${Fault} error=${error} />` : shown ? html`<${LogView} key=${shown} name=${shown} path=${`/taskmanagers/${encodeURIComponent(id)}/logs/${encodeURIComponent(shown)}`} />` : html`<${Empty}>It has no logs.</${Empty}>`}</div>
      </${Panel}>
      ${manager && html`<${Metrics} metrics=${manager.minflinkd.metrics} />`}
    </div>`;
}

function About({ manager, now }) {
  const { minflinkd: extras } = manager;
  return html`<span>up for ${age(extras.registered, now)}</span><span>minflinkd ${extras.version}</span><span>process ${extras.pid}</span><${Heartbeat} manager=${manager} />`;
}

const sumOf = (metrics, field) => PROCESSES.reduce((sum, [name]) => sum + (metrics[`${name}.${field}`] ?? 0), 0);

function Facts({ manager, now }) {
  const { minflinkd: extras, hardware } = manager;
  const metrics = extras.metrics;
  const phases = parts(extras["start-phases"]);
  return html`<${Figures} figures=${[
      ["Slots free", `${manager.freeSlots} of ${manager.slotsNumber}`, extras.draining ? "it gives out none" : eachSlot(extras["each-slot"])],
      ["Session", extras.session, `generation ${extras["session-generation"]}`],
      ["Memory", bytes(memoryOf(manager)), ["supervisor", "session", "jvm"].some((name) => metrics[`${name}.threads`]) ? plural(sumOf(metrics, "threads"), "thread") : ""],
      ["Machine", bytes(hardware.physicalMemory), plural(hardware.cpuCores, "core")],
      ["Heap", bytes(metrics["jvm.heap.used_bytes"]), metrics["jvm.heap.max_bytes"] > 0 ? `of ${bytes(metrics["jvm.heap.max_bytes"])}` : ""],
      ["Garbage collection", share(metrics["jvm.gc_share"]), "of the last minute", collects(metrics) ? "bad" : ""],
      ["Registered", ago(extras.registered, now), time(extras.registered, now)],
    ]} />
    <${Panel} title="Slots and memory" label="Slots and memory"><div class="pad stack"><div class="slots">${extras.slots.map((slot) => html`<${Slot} key=${slot.index} slot=${slot} named=${true} />`)}</div>
      <${Memory} manager=${manager} />
      <${Jvm} metrics=${metrics} />
      ${phases.length > 0 && html`<div class="phased"><span class="muted">How it started</span><${Phases} phases=${phases} /><${PhaseLegend} phases=${phases} /></div>`}</div></${Panel}>`;
}

/** What the session's JVM has of memory besides its heap, and what its collectors have done since it began. */
function Jvm({ metrics }) {
  const known = collectors(metrics);
  if (!known.length) return null;
  return html`<dl class="facts">
    <div><dt>Besides the heap</dt><dd>${bytes(metrics["jvm.non_heap.used_bytes"])}</dd></div>
    <div><dt>Metaspace</dt><dd>${bytes(metrics["jvm.metaspace.used_bytes"])}</dd></div>
    <div><dt>Direct buffers</dt><dd>${bytes(metrics["jvm.direct.used_bytes"])}</dd></div>
    ${known.map(([name, count, spent]) => html`<div key=${name}><dt>${name.replaceAll("_", " ")}</dt><dd>${plural(count, "collection")}, ${seconds(spent)}</dd></div>`)}
  </dl>`;
}

/** Names say what they count: bytes, seconds, or numbers. */
function written(name, value) {
  if (/(rss|bytes|memory|heap|used|committed|_size|stored|referenced)/.test(name) && !/requests|percent/.test(name)) return bytes(value);
  if (/seconds/.test(name)) return seconds(value);
  if (/time_ms$/.test(name)) return seconds(value / 1000);
  if (/_share$/.test(name)) return share(value);
  return Number.isInteger(value) ? whole(value) : short(value);
}

function Metrics({ metrics }) {
  const names = Object.keys(metrics).sort();
  if (!names.length) return null;
  const groups = Map.groupBy(names, (name) => name.split(".")[0]);
  return html`<${Panel} title=${html`Metrics <span class="faint">${names.length}</span>`} label="Metrics"><div class="pad metrics">
    ${[...groups].map(([group, all]) => html`<dl key=${group} class="pairs" aria-label=${group}>${all.map((name) => html`<dt key=${name}>${name}</dt><dd class="num" key=${`v${name}`}>${written(name, metrics[name])}</dd>`)}</dl>`)}
  </div></${Panel}>`;
}
