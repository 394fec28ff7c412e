// Blobs: the code of jobs on the BlobServer, who refers to it, and what will be deleted.
import { useNow } from "../app/clock.js";
import { cluster, nameOf } from "../app/cluster.js";
import { ago, bytes, plural, time, whole } from "../app/format.js";
import { html, useRef, useState } from "../app/html.js";
import { useKey } from "../app/keys.js";
import { Copy, Empty, Fault, Figures, Head, Panel, Scroll, useAnswer } from "../app/parts.js";
import { setQuery, to } from "../app/router.js";
import { State } from "../app/status.js";
import { useStore } from "../app/store.js";

const PAGE = 100;
const STATES = { referenced: "ready", kept: "ready", receiving: "starting", staged: "info", uploaded: "info", condemned: "replaced", unknown: "warning" };
const MEANS = { receiving: "is being uploaded", uploaded: "no job refers to it yet", referenced: "a job needs it", kept: "kept for a checkpoint", staged: "goes unless somebody takes hold of it", condemned: "will be deleted", unknown: "not known to the daemon" };

export function BlobsPage({ query }) {
  const known = useStore(cluster);
  const now = useNow(5000);
  const [offset, setOffset] = useState(0);
  const field = useRef(null);
  useKey("/", "Filter by job", () => field.current?.focus());
  const job = query.job ?? "";
  const { value, error, reload } = useAnswer(`/blobs?limit=${PAGE}&offset=${offset}${job ? `&job=${encodeURIComponent(job)}` : ""}`);
  const head = html`<${Head} title="Blobs" about=${html`<span>code artifacts of jobs on the BlobServer</span>`} actions=${html`<button class="button" onClick=${reload}>Ask again</button>`} />`;
  if (error) return html`${head}<${Panel}>${error.status === 404 ? html`<${Empty}>This daemon has no BlobServer.</${Empty}>` : html`<${Fault} error=${error} />`}</${Panel}>`;
  if (!value) return html`${head}<${Empty}>Asking the daemon …</${Empty}>`;
  const choose = (event) => {
    setOffset(0);
    setQuery({ job: event.target.value });
  };
  const { totals, jobs } = value;
  const owners = [...new Set([...jobs.map((one) => one.job), ...known.jobs.map((one) => one.jid), job].filter(Boolean))];
  const last = offset + value.blobs.length;
  return html`${head}<div class="stack">
    <${Figures} figures=${[["Blobs", whole(totals.blobs)], ["Size", bytes(totals.size)], ...Object.entries(totals.states).map(([name, count]) => [name[0].toUpperCase() + name.slice(1), whole(count), MEANS[name] ?? ""])]} />
    <${Panel} title="Blobs" label="Blobs" rest=${html`<label class="row"><span class="muted">Job</span><select ref=${field} class="field" value=${job} onChange=${choose}><option value="">all</option>${owners.map((one) => html`<option key=${one} value=${one}>${one === "none" ? "of no job" : nameOf(one)}</option>`)}</select></label>`}>
      ${value.blobs.length ? html`<${Scroll} label="Blobs"><table><thead><tr><th scope="col">Key</th><th scope="col">Job</th><th scope="col">State</th><th scope="col" class="num">Size</th><th scope="col" class="num hide-narrow">References</th><th scope="col" class="hide-narrow">Kind</th><th scope="col" class="num hide-narrow">Stored</th></tr></thead>
        <tbody>${value.blobs.map((blob) => html`<tr key=${`${blob.job} ${blob.key}`}><td><span class="row tight"><code title=${blob.key}>${brief(blob.key)}</code><${Copy} text=${blob.key} /></span></td>
          <td>${blob.job === "none" ? html`<span class="muted">none</span>` : html`<a href=${to("jobs", blob.job, "plan")}>${nameOf(blob.job)}</a>`}</td>
          <td title=${MEANS[blob.state]}><${State} state=${STATES[blob.state] ?? "info"}>${blob.state}</${State}></td><td class="num">${bytes(blob.size)}</td><td class="num hide-narrow">${whole(blob.references)}</td><td class="hide-narrow muted">${blob.kind}</td>
          <td class="num hide-narrow" title=${time(blob.created, now)}>${ago(blob.created, now)}</td></tr>`)}</tbody></table></${Scroll}>`
        : html`<${Empty}>${job ? "This job has no blobs." : "There are no blobs: no job has code of its own."}</${Empty}>`}
      ${(offset > 0 || value.truncated) && html`<div class="pad alone row"><button class="button small" disabled=${offset === 0} onClick=${() => setOffset(Math.max(0, offset - PAGE))}>Before</button>
        <span class="muted">${whole(offset + 1)} to ${whole(last)} of ${plural(totals.blobs, "blob")}</span><button class="button small" disabled=${!value.truncated} onClick=${() => setOffset(offset + PAGE)}>Next</button></div>`}
    </${Panel}>
  </div>`;
}

const brief = (key) => (key.length > 26 ? `${key.slice(0, 14)}…${key.slice(-8)}` : key);
