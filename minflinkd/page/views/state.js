// A job's state: what a task keeps in a checkpoint or savepoint, as rows, as a SELECT says, or as what grew.
import { may } from "../app/allowed.js";
import { get } from "../app/api.js";
import { useNow } from "../app/clock.js";
import { cluster } from "../app/cluster.js";
import { ago, bytes, millis, seconds, time } from "../app/format.js";
import { html, useEffect, useRef, useState } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { Text } from "../app/operation.js";
import { Choice, Empty, Fault, Panel, useAnswer } from "../app/parts.js";
import { kindOf } from "../app/restore.js";
import { setQuery } from "../app/router.js";
import { Growth, LargestKeys, Result, Rows, Stores, keyOf } from "../app/staterows.js";
import { Sign } from "../app/status.js";
import { useStore } from "../app/store.js";

const AROUND = 130; // seconds for what surrounds the reading: its turn, a TaskManager, the answer
const MOST = [20, 100, 1000]; // rows
const TIMES = [60, 180, 300]; // seconds
const OTHER = "other";

export function StatePage({ jid, query }) {
  return html`<${JobFrame} jid=${jid} tab="state">${(known, now) => html`<${Allowed} known=${known} query=${query} now=${now} />`}</${JobFrame}>`;
}

function Allowed({ known, query, now }) {
  const { who } = useStore(cluster);
  const config = useAnswer(`/jobs/${known.jid}/checkpoints/config`);
  if (!who) return null;
  if (!may(who, "operate", known.job.name)) return html`<${Panel}><${Empty}>To look at state needs the role operate, as keys and values are what users' events contain. You are ${who.name}, with the role ${who.role}.</${Empty}></${Panel}>`;
  if (!known.checkpoints || !(config.value || config.error)) return html`<${Empty}>Asking the daemon …</${Empty}>`;
  return html`<${Chosen} known=${known} query=${query} now=${now} kept=${config.value?.minflinkd["num-retained"] ?? 1} />`;
}

/** The checkpoints and savepoints that are there to be read: [[what the endpoint takes, the checkpoint]]. Pure. */
export function readable({ history, latest }, kept) {
  const complete = history.filter((one) => one.status === "COMPLETED");
  const last = latest.completed;
  if (last && !complete.some((one) => one.id === last.id)) complete.unshift(last);
  const own = complete.filter((one) => kindOf(one) === "checkpoint").slice(0, kept).map((one) => [String(one.id), one]);
  const saved = latest.savepoint;
  if (saved && !complete.some((one) => one.id === saved.id)) complete.push(saved);
  return [...own, ...complete.filter((one) => kindOf(one) === "savepoint").map((one) => [one.minflinkd.savepoint, one])];
}

function Chosen({ known, query, now, kept }) {
  const { jid } = known;
  const there = readable(known.checkpoints, kept);
  const checkpoint = query.checkpoint ?? "";
  const { value, error } = useAnswer(`/jobs/${jid}/state?${new URLSearchParams({ checkpoint })}`);
  const tasks = value?.tasks ?? [];
  const wanted = tasks.find((one) => one["task-id"] === query.task) ?? tasks.find((one) => one.operators.some((each) => each.vertex === query.task));
  const task = wanted ?? tasks[0];
  return html`<${Panel} title="State in a checkpoint" label="What to look at"><div class="pad stack">
      <p class="muted">A TaskManager lays out the files of the checkpoint once more, and Spark reads this copy. The job is not touched: it is its state at the checkpoint, not now.</p>
      <div class="asked">
        <${Checkpoint} label="Checkpoint" there=${there} value=${checkpoint} onChange=${(one) => setQuery({ checkpoint: one, store: "" })} first="the latest" now=${now} />
        ${tasks.length > 0 && html`<label class="labelled"><span>Task</span><select class="field" value=${task["task-id"]} onChange=${(event) => setQuery({ task: event.target.value, store: "" })}>
          ${tasks.map((one) => html`<option key=${one["task-id"]} value=${one["task-id"]} selected=${one === task}>${one["task-id"]}, ${bytes(one["state-size"])}</option>`)}</select></label>`}
      </div>
      <${Fault} error=${error} />
      ${value && !tasks.length && html`<p>No task of the job keeps state in this checkpoint.</p>`}
      ${query.task && task && !wanted && html`<p class="warn row"><${Sign} state="warning" />${query.task} keeps no state in this checkpoint.</p>`}
    </div></${Panel}>
    ${task && html`<${Reading} key=${`${checkpoint} ${task["task-id"]}`} jid=${jid} task=${task} checkpoint=${checkpoint} read=${value.checkpoint} there=${there} query=${query} now=${now} />`}`;
}

/** A checkpoint among those that are there, or a path. */
function Checkpoint({ label, there, value, onChange, first, now }) {
  const given = value && !there.some(([one]) => one === value);
  const [other, setOther] = useState(Boolean(given));
  const [path, setPath] = useState(given ? value : "");
  const choose = (one) => {
    setOther(one === OTHER);
    if (one !== OTHER) onChange(one);
  };
  const words = (one) => `${kindOf(one)} ${one.id}, ${ago(one.latest_ack_timestamp, now)}`;
  return html`<label class="labelled"><span>${label}</span><select class="field" value=${other ? OTHER : value} onChange=${(event) => choose(event.target.value)}>
      <option value="" selected=${!other && !value}>${first}</option>
      ${there.map(([one, found]) => html`<option key=${one} value=${one} selected=${!other && one === value}>${words(found)}</option>`)}
      <option value=${OTHER} selected=${other}>another one …</option></select></label>
    ${other && html`<${Text} label=${`Number or path (${label.toLowerCase()})`} value=${path} spellcheck=${false} placeholder="/data/savepoints/savepoint-…" onInput=${(event) => setPath(event.target.value)} onChange=${() => onChange(path.trim())} />`}`;
}

const VIEWS = [["rows", "Rows"], ["select", "SELECT"], ["growth", "What grew"]];

function Reading({ jid, task, checkpoint, read, there, query, now }) {
  const [view, setView] = useState(query.since ? "growth" : query.sql ? "select" : "rows");
  const [key, setKey] = useState(query.key ?? "");
  const [sql, setSql] = useState(query.sql ?? "");
  const [since, setSince] = useState(query.since ?? "");
  const [limit, setLimit] = useState(100);
  const [patience, setPatience] = useState(TIMES[0]);
  const [state, set] = useState({ at: "asking", since: 0, error: null, found: null, filtered: false });
  const control = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  const store = query.store ?? "";
  const stores = storesOf(task, state.found);
  const ready = view === "rows" || (view === "select" ? sql.trim() : since);

  const look = async (event) => {
    event.preventDefault();
    if (!ready || state.at === "reading") return;
    const { signal } = (control.current = new AbortController());
    const asked = { rows: { key: keyOf(key) }, select: { sql: sql.trim() }, growth: { since } }[view];
    setQuery({ key: "", sql: "", since: "", ...asked, ...(asked.key && { key: key.trim() }), task: task["task-id"] });
    set({ at: "reading", since: Date.now(), error: null, found: null });
    try {
      const found = await get(pathOf(jid, task, view, { ...asked, store, checkpoint, limit, timeout: patience }), { exact: true, signal: AbortSignal.any([signal, AbortSignal.timeout((patience + AROUND) * 1000)]) });
      set({ at: "found", view, found, filtered: Boolean(asked.key) });
    } catch (error) {
      if (!signal.aborted) set({ at: "failed", error, found: null });
    }
  };
  const giveUp = () => {
    control.current.abort();
    set({ at: "given-up", found: null });
  };
  const reading = state.at === "reading";
  return html`<${Panel} title=${`State of ${task["task-id"]}`} label="What to read" rest=${html`<${Choice} label="What to read" value=${view} onChange=${setView} options=${VIEWS} />`}><form class="pad stack" onSubmit=${look}>
      <div class="asked">
        ${stores.length > 1 && html`<label class="labelled"><span>Store</span><select class="field" value=${store} onChange=${(event) => setQuery({ store: event.target.value })}><option value="">${view === "growth" ? "all" : "all, with rows of the first"}</option>${stores.map(([one, words]) => html`<option key=${one} value=${one} selected=${one === store}>${words}</option>`)}</select></label>`}
        ${view === "rows" && html`<${Text} label="Key" value=${key} placeholder="any" spellcheck=${false} note="A text that a field of the key has, or fields: carrier=AA, origin=JFK" onInput=${(event) => setKey(event.target.value)} />`}
        ${view === "growth" && html`<${Checkpoint} label="Since" there=${there.filter(([, one]) => one.id < read.id)} value=${since} onChange=${setSince} first="choose an earlier one" now=${now} />`}
        ${view !== "growth" && html`<${Amount} label="Rows at most" value=${limit} onChange=${setLimit} options=${MOST} />`}
        <${Amount} label="Time at most" value=${patience} onChange=${setPatience} options=${TIMES} words=${seconds} />
      </div>
      ${view === "select" && html`<label class="labelled"><span>SELECT</span><textarea class="field query" rows="4" spellcheck=${false} value=${sql} onInput=${(event) => setSql(event.target.value)} placeholder="SELECT key.carrier, value.count FROM state ORDER BY 2 DESC"></textarea>
        <small class="muted">One SELECT over the view <code>state</code>: <code>partition_id</code>, <code>key</code>, <code>value</code>, <code>bytes</code>.</small></label>`}
      <div class="row"><button type="submit" class="button primary" disabled=${!ready || reading}>${state.at === "failed" ? "Try again" : "Read it"}</button>
        ${reading && html`<button type="button" class="button" onClick=${giveUp}>Give up</button>`}
        <span role="status" class="row">${reading && html`<${Sign} state="IN_PROGRESS" /><span>A TaskManager lays out ${bytes(task["state-size"])} and Spark reads them</span>`}
          ${state.at === "given-up" && html`<span class="muted">Given up. The TaskManager ends the reading by itself, after ${seconds(patience)} at most; until then another one may have to wait.</span>`}</span>
        ${reading && html`<${Since} at=${state.since} most=${patience} />`}</div>
      <${Fault} error=${state.error} />
    </form></${Panel}>
    ${state.found && html`<${Found} state=${state} now=${now} />`}`;
}

function Found({ state, now }) {
  const { found, view } = state;
  const of = view === "growth" ? html`${named(found.before, now)} and ${named(found.after, now)}` : named(found.checkpoint, now);
  return html`<p class="row" role="status"><${Sign} state="calm" size=${14} /><span>Task <strong>${found["task-id"]}</strong> in ${of}, read in ${millis(found.duration)}. Sizes are those of Spark's own rows.</span></p>
    ${view === "growth" ? html`<${Growth} found=${found} />` : view === "select" && found.result ? html`<${Result} found=${found} />`
      : html`<${Stores} stores=${found.stores} />${state.filtered && html`<${Rows} found=${found} filtered=${true} />`}<${LargestKeys} stores=${found.stores} />${!state.filtered && html`<${Rows} found=${found} />`}`}`;
}

const named = (one, now) => html`<span title=${one.path}>${one["is-savepoint"] ? "savepoint" : "checkpoint"} ${one.id} of ${time(one["trigger-timestamp"], now)}</span>`;

/** What `store` may say: the stores that were found, or before that the operators. Pure. */
export function storesOf(task, found) {
  const stores = found?.stores.map((one) => one.store ?? one);
  if (stores?.length) return stores.map((one) => [one.id, `${one.id}: ${one.name ?? one.kind}${one.vertex ? ` (${one.vertex})` : ""}`]);
  return task.operators.map((one) => [String(one.number), `${one.number}: ${one.kind}${one.vertex ? ` (${one.vertex})` : ""}`]);
}

/** The path of the question. Pure. */
export function pathOf(jid, task, view, { key, sql, since, store, checkpoint, limit, timeout }) {
  const asked = view === "growth" ? { from: since, to: checkpoint, store, timeout } : { checkpoint, store, key, sql, limit, timeout, ...(view === "select" && { "no-totals": "true" }) };
  const given = Object.entries(asked).filter(([, value]) => value !== undefined && value !== "");
  return `/jobs/${jid}/vertices/${encodeURIComponent(task["task-id"])}/state${view === "growth" ? "/growth" : ""}?${new URLSearchParams(given)}`;
}

function Amount({ label, value, onChange, options, words = String }) {
  return html`<label class="labelled"><span>${label}</span><select class="field" value=${String(value)} onChange=${(event) => onChange(Number(event.target.value))}>${options.map((one) => html`<option key=${one} value=${String(one)} selected=${one === value}>${words(one)}</option>`)}</select></label>`;
}

function Since({ at, most }) {
  useNow();
  return html`<span class="muted">${seconds(Math.max(0, Math.floor((Date.now() - at) / 1000)))} of ${seconds(most)}</span>`;
}
