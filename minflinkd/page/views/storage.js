// Storage: the physical files of checkpoints, how much more is stored than needed, and files that nobody needs.
import { may, mayCluster } from "../app/allowed.js";
import { change, get } from "../app/api.js";
import { useNow } from "../app/clock.js";
import { cluster, hasEnded, nameOf } from "../app/cluster.js";
import { ago, bytes, plural, seconds, short, whole } from "../app/format.js";
import { html, useEffect, useState } from "../app/html.js";
import { Operation, useOperation } from "../app/operation.js";
import { Empty, Fault, Figures, Head, Panel, Scroll } from "../app/parts.js";
import { to } from "../app/router.js";
import { useStore } from "../app/store.js";

const MOST = 50; // jobs that are asked for
const AT_ONCE = 4;
const SWEEP = 600_000; // milliseconds: all checkpoints are listed

export function StoragePage() {
  const known = useStore(cluster);
  const now = useNow(5000);
  const [again, setAgain] = useState(0);
  const running = known.jobs.filter((job) => !hasEnded(job));
  const asked = running.slice(0, MOST);
  const files = useFiles(asked.map((job) => job.jid), again);
  const head = html`<${Head} title="Storage" about=${html`<span>files of the checkpoints that are kept</span>`} actions=${html`<button class="button" onClick=${() => setAgain(again + 1)}>Ask again</button>`} />`;
  if (!known.known) return html`${head}<${Empty}>Asking the daemon …</${Empty}>`;
  return html`${head}<div class="stack">
    <${Totals} files=${files} />
    <${Jobs} jobs=${asked} files=${files} now=${now} left=${running.length - asked.length} />
    <${Requests} managers=${known.managers} />
    <${Orphans} who=${known.who} />
  </div>`;
}

/** Ask for the checkpoints of each job, a few at once. Return a Map: by job, what is known, null if it did not answer. */
function useFiles(ids, again) {
  const [found, set] = useState(new Map());
  const key = ids.join();
  useEffect(() => {
    if (!key) return undefined;
    const control = new AbortController();
    const left = key.split(",");
    const all = new Map();
    const one = async () => {
      for (let jid = left.shift(); jid && !control.signal.aborted; jid = left.shift()) {
        const answer = await get(`/jobs/${jid}/checkpoints`, { signal: control.signal }).catch(() => null);
        all.set(jid, answer);
        if (!control.signal.aborted) set(new Map(all));
      }
    };
    for (let n = 0; n < AT_ONCE; n++) one();
    return () => control.abort();
  }, [key, again]);
  return found;
}

const sum = (files, field) => [...files.values()].reduce((all, one) => all + (one?.minflinkd.files[field] ?? 0), 0);

function Totals({ files }) {
  if (!files.size) return null;
  const stored = sum(files, "bytes-stored");
  const needed = sum(files, "bytes-referenced");
  return html`<${Figures} figures=${[
    ["Stored", bytes(stored), plural(sum(files, "physical"), "file")],
    ["Needed", bytes(needed), plural(sum(files, "logical"), "segment")],
    ["Amplification", needed ? `${(stored / needed).toFixed(2)} ×` : "–", "stored, by needed"],
    ["To be deleted", whole(sum(files, "deleting")), "files"],
    ["Compactions", whole(sum(files, "compactions")), `${bytes(sum(files, "bytes-rewritten"))} rewritten`],
  ]} />`;
}

function Jobs({ jobs, files, now, left }) {
  if (!jobs.length) return html`<${Panel} title="By job"><${Empty}>No job runs.</${Empty}></${Panel}>`;
  return html`<${Panel} title=${html`By job <span class="faint">${jobs.length}</span>`} label="By job" rest=${left > 0 && html`<span class="muted">${plural(left, "other job")} not asked</span>`}>
    <${Scroll} label="Files by job"><table><thead><tr><th scope="col">Job</th><th scope="col" class="num">Files</th><th scope="col" class="num">Stored</th><th scope="col" class="num hide-narrow">Needed</th><th scope="col" class="num">Amplification</th>
      <th scope="col" class="num hide-narrow">Created</th><th scope="col" class="num hide-narrow">Deleted</th><th scope="col" class="num hide-narrow">Compactions</th><th scope="col" class="num hide-narrow">Last checkpoint</th></tr></thead>
    <tbody>${jobs.map((job) => html`<${Row} key=${job.jid} job=${job} found=${files.get(job.jid)} now=${now} />`)}</tbody></table></${Scroll}>
  </${Panel}>`;
}

function Row({ job, found, now }) {
  const one = found?.minflinkd.files;
  const high = one && one.amplification > 2;
  return html`<tr><td><a class="name" href=${to("jobs", job.jid, "checkpoints")}>${job.name}</a></td>
    <td class="num">${whole(one?.physical)}</td><td class="num">${bytes(one?.["bytes-stored"])}</td><td class="num hide-narrow">${bytes(one?.["bytes-referenced"])}</td>
    <td class="num ${high ? "warn" : ""}">${one ? `${one.amplification.toFixed(2)} ×` : "–"}</td>
    <td class="num hide-narrow">${short(one?.created)}</td><td class="num hide-narrow">${short(one?.deleted)}</td><td class="num hide-narrow">${short(one?.compactions)}</td>
    <td class="num hide-narrow">${ago(found?.latest.completed?.latest_ack_timestamp, now)}</td></tr>`;
}

/** What TaskManagers have asked of storages since they began: [scheme, request, requests, bytes, seconds]. Pure. */
export function requestsOf(managers) {
  const found = new Map();
  for (const { minflinkd } of managers) {
    for (const [name, value] of Object.entries(minflinkd.metrics)) {
      const [, scheme, request, figure] = name.match(/^storage\.([^.]+)\.(.+)\.(requests|bytes|seconds)$/) ?? [];
      if (!scheme) continue;
      const key = `${scheme} ${request}`;
      const one = found.get(key) ?? { scheme, request, requests: 0, bytes: 0, seconds: 0 };
      one[figure] += value;
      found.set(key, one);
    }
  }
  return [...found.values()].sort((a, b) => b.seconds - a.seconds);
}

function Requests({ managers }) {
  const rows = requestsOf(managers);
  if (!rows.length) return null;
  return html`<${Panel} title="Requests of the TaskManagers" label="Requests" rest=${html`<span class="muted">since each of them began</span>`}>
    <${Scroll} label="Requests to storages"><table><thead><tr><th scope="col">Storage</th><th scope="col">Request</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Bytes</th><th scope="col" class="num">Time</th><th scope="col" class="num">On average</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${`${one.scheme} ${one.request}`}><td>${one.scheme}</td><td>${one.request}</td><td class="num">${whole(one.requests)}</td><td class="num">${bytes(one.bytes)}</td><td class="num">${seconds(one.seconds)}</td><td class="num">${one.requests ? seconds(one.seconds / one.requests) : "–"}</td></tr>`)}</tbody></table></${Scroll}>
  </${Panel}>`;
}

/** They are looked for when somebody asks: that lists all checkpoints. */
function Orphans({ who }) {
  const [state, set] = useState({ busy: false, found: null, error: null });
  const [start, dialog] = useOperation();
  if (!may(who, "operate")) return null;
  const look = async () => {
    set({ busy: true, found: null, error: null });
    try {
      set({ busy: false, found: await get("/storage/orphans", { timeout: SWEEP }), error: null });
    } catch (error) {
      set({ busy: false, found: null, error });
    }
  };
  const { found } = state;
  return html`<${Panel} title="Orphans" label="Orphans" rest=${html`<button class="button small" disabled=${state.busy} onClick=${look}>${found ? "Look again" : "Look for orphans"}</button>
      ${found && found.files > 0 && mayCluster(who, "admin") && html`<button class="button small danger" onClick=${() => start(Delete, { found, done: () => set({ busy: false, found: null, error: null }) })}>Delete them</button>`}`}>
    <div class="pad"><p class="muted">Files of checkpoints to which nothing refers, such as what a daemon left behind that was killed.</p>
      <p role="status">${state.busy ? "All checkpoints are listed …" : found ? (found.files ? `${plural(found.files, "file")}, ${bytes(found.size)}, older than ${seconds(found.grace)}.` : "There are none.") : ""}</p></div>
    <${Fault} error=${state.error} />${dialog}
    ${found && found.jobs.some((job) => job.files || job.skipped) && html`<${Scroll} label="Orphans by job"><table><thead><tr><th scope="col">Job</th><th scope="col" class="num">Orphans</th><th scope="col" class="num">Size</th><th scope="col" class="num">Files that stay</th><th scope="col"><span class="unseen">More</span></th></tr></thead>
      <tbody>${found.jobs.filter((job) => job.files || job.skipped).map((job) => html`<tr key=${job.job}><td>${nameOf(job.job)}</td><td class="num">${whole(job.files)}</td><td class="num">${bytes(job.size)}</td><td class="num">${whole(job.kept)}</td>
        <td>${job.skipped ? html`<span class="warn">left alone: ${job.skipped}</span>` : html`<details><summary>Names</summary><ul class="mono small-print">${job.orphans.slice(0, 100).map((one) => html`<li key=${one.name}>${one.name}</li>`)}</ul>${job.files > 100 && html`<p class="muted">and ${whole(job.files - 100)} others</p>`}</details>`}</td></tr>`)}</tbody></table></${Scroll}>`}
  </${Panel}>`;
}

function Delete({ found, done, onClose }) {
  const [deleted, setDeleted] = useState(false);
  const run = async ({ step }) => {
    step("All checkpoints are listed once more, and orphans are deleted");
    const answer = await change("DELETE", "/storage/orphans", undefined, SWEEP);
    setDeleted(true);
    return `${plural(answer.files, "file")} deleted, ${bytes(answer.size)}.`;
  };
  const close = () => {
    onClose();
    if (deleted) done();
  };
  return html`<${Operation} title="Delete the orphans?" verb="Delete them" danger=${true} run=${run} onClose=${close}
    says=${`${plural(found.files, "file")} of ${bytes(found.size)} to which nothing refers ${found.files === 1 ? "is" : "are"} deleted for ever. What a checkpoint, a savepoint or a job needs stays, and so does what is younger than ${seconds(found.grace)}.`} />`;
}
