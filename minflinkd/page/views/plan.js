// A job's plan: what it was written as, the tasks that it became and why, its code, and Spark's plan of it.
import { may } from "../app/allowed.js";
import { change } from "../app/api.js";
import { cluster } from "../app/cluster.js";
import { ANALYSIS } from "../app/draft.js";
import { bytes, plural } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { Copy, Empty, Fault, Panel, Scroll, useAnswer } from "../app/parts.js";
import { to } from "../app/router.js";
import { useStore } from "../app/store.js";
import { SparkPlans } from "./submit.js";

export function PlanPage({ jid }) {
  return html`<${JobFrame} jid=${jid} tab="plan">${(known) => html`<${Plan} job=${known.job} />`}</${JobFrame}>`;
}

function Plan({ job }) {
  const changed = job.minflinkd["hot-restarts"][0];
  const { value, error } = useAnswer(`/jobs/${job.jid}/graph`, changed ? `${changed.number} ${changed.state}` : "");
  if (error) return html`<${Panel}><${Fault} error=${error} /></${Panel}>`;
  if (!value) return html`<${Empty}>Asking the daemon …</${Empty}>`;
  return html`<${Cuts} plan=${value} jid=${job.jid} />
    <div class="tasks">${inOrder(value).map((task) => html`<${Task} key=${task.id} task=${task} document=${value.document} jid=${job.jid} />`)}</div>
    <${Code} document=${value.document} />
    <${Spark} plan=${value} name=${job.name} />
    <${Document} plan=${value} />`;
}

/** A task comes after all those that it reads. Pure. */
export function inOrder({ tasks, cuts }) {
  const of = new Map(tasks.flatMap((task) => task.vertices.map((vertex) => [vertex, task])));
  const found = new Set();
  const put = (task) => {
    if (!task || found.has(task)) return;
    for (const cut of cuts) if (task.vertices.includes(cut.downstream)) put(of.get(cut.upstream));
    found.add(task);
  };
  tasks.forEach(put);
  return [...found];
}

function Cuts({ plan, jid }) {
  const groups = Object.entries(plan.slots);
  const slots = groups.length === 1 ? plural(groups[0][1], "slot") : groups.map(([name, count]) => `${plural(count, "slot")} for ${name}`).join(", ");
  return html`<${Panel} title="Why it becomes these tasks" label="Tasks and exchanges" rest=${html`<a href=${to("jobs", jid)}>How they run</a>`}><div class="pad stack">
    <p>${plural(plan.document.vertices.length, "vertex", "vertices")} run as ${plural(plan.tasks.length, "Spark query", "Spark queries")}, in ${slots}. ${plan.cuts.length ? `${plural(plan.cuts.length, "edge is", "edges are")} cut, and ${plan.cuts.length === 1 ? "goes" : "go"} through a durable exchange:` : "No edge is cut."}</p>
    ${plan.cuts.length > 0 && html`<ul class="cuts">${plan.cuts.map((cut) => html`<li key=${`${cut.upstream} ${cut.downstream}`}><span><strong>${cut.upstream}</strong> → <strong>${cut.downstream}</strong></span><span class="muted">${cut.why}</span></li>`)}</ul>`}
  </div></${Panel}>`;
}

function Task({ task, document, jid }) {
  const vertices = task.vertices.map((id) => document.vertices.find((one) => one.id === id)).filter(Boolean);
  const group = task["slot-sharing-group"];
  return html`<${Panel} label=${`Task ${task.id}`} title=${html`<a href=${`${to("jobs", jid)}?task=${encodeURIComponent(task.id)}`}>${task.vertices.join(" → ")}</a>`}
    rest=${html`<span class="muted">parallelism ${task.parallelism}${group !== "default" ? `, slot sharing group ${group}` : ""}</span>`}>
    <ol class="pad vertices">${vertices.map((vertex) => html`<${Vertex} key=${vertex.id} vertex=${vertex} />`)}</ol>
  </${Panel}>`;
}

const KINDS = ["source", "sql", "python", "sink"];

function Vertex({ vertex }) {
  const kind = KINDS.find((one) => vertex[one] !== undefined) ?? "";
  const endpoint = vertex.source ?? vertex.sink;
  const where = endpoint && (endpoint.python ?? [endpoint.format, endpoint.path].filter(Boolean).join(" "));
  const facts = [
    vertex.inputs?.length && ["reads", vertex.inputs.map((one) => `${one.id}${one.exchange ? " (exchange)" : ""}`).join(", ")],
    where && [endpoint.python ? "Python" : kind === "source" ? "from" : "to", html`<code>${where}</code>`],
    vertex.python && ["Python", html`<code>${vertex.python}</code>`],
    endpoint?.schema && ["schema", html`<code>${endpoint.schema}</code>`],
    vertex.watermark && ["watermark", `${vertex.watermark.column}, rows may come ${vertex.watermark.delay} late`],
    vertex["on-bad-record"] && ["bad records", vertex["on-bad-record"].to ? `go to ${vertex["on-bad-record"].to}` : vertex["on-bad-record"] === "drop" ? "are dropped" : "fail the job"],
    vertex["output-mode"] && ["output mode", vertex["output-mode"]],
    endpoint?.delivery && ["delivery", endpoint.delivery],
    endpoint?.["partition-by"] && ["partitioned by", endpoint["partition-by"].join(", ")],
    ...Object.entries(endpoint?.options ?? {}).map(([name, value]) => [name, html`<code>${value}</code>`]),
  ].filter(Boolean);
  return html`<li><div class="row"><strong>${vertex.id}</strong><span class="kind">${kind}</span></div>
    ${facts.length > 0 && html`<dl class="pairs">${facts.map(([name, value], i) => html`<dt key=${name}>${name}</dt><dd key=${i}>${value}</dd>`)}</dl>`}
    ${vertex.sql && html`<pre class="trace sql" tabindex="0" aria-label=${`SQL of ${vertex.id}`}>${vertex.sql.trim()}</pre>`}
  </li>`;
}

function Code({ document }) {
  const artifacts = document.artifacts ?? [];
  return html`<${Panel} title=${html`Code artifacts <span class="faint">${artifacts.length}</span>`} label="Code artifacts">
    ${artifacts.length
      ? html`<${Scroll} label="Code artifacts"><table><thead><tr><th scope="col">Name</th><th scope="col" class="num">Size</th><th scope="col">Blob</th></tr></thead>
        <tbody>${artifacts.map((one) => html`<tr key=${one.name}><td class="name">${one.name}</td><td class="num">${bytes(one.size || null)}</td><td class="mono muted">${one.key ?? "–"}</td></tr>`)}</tbody></table></${Scroll}>`
      : html`<${Empty}>The job has no code of its own.</${Empty}>`}
  </${Panel}>`;
}

/** Spark's plan is not kept by the daemon: it is asked for, without starting anything. */
function Spark({ plan, name }) {
  const { who } = useStore(cluster);
  const [state, set] = useState({ busy: false, tasks: null, error: null });
  const why = !may(who, "submit", name) ? "To ask Spark needs the role submit."
    : plan.document.artifacts?.length ? html`It has code of its own, which only its file's owner can send: <code>minflinkd explain JOB.yaml</code> shows the plan.`
    : plan.hidden ? html`Its secrets are hidden here: <code>minflinkd explain JOB.yaml</code> shows the plan.` : null;
  const ask = async () => {
    set({ busy: true, tasks: null, error: null });
    const { restore, ...document } = plan.document; // where it started does not matter to Spark
    try {
      const { tasks } = await change("POST", "/jobs?dry-run=true&explain=true", document, ANALYSIS);
      set({ busy: false, tasks, error: null });
    } catch (error) {
      set({ busy: false, tasks: null, error });
    }
  };
  return html`<${Panel} title="Spark's plan" label="Spark's plan"><div class="pad stack">
    <p class="muted">The daemon keeps no plan of a running query. ${why ?? "A session analyses the job again and says its plan; nothing is started."}</p>
    ${!why && html`<div class="row"><button class="button" disabled=${state.busy} onClick=${ask}>Ask Spark</button><span role="status" class="muted">${state.busy ? "Spark analyses it …" : ""}</span></div>`}
    <${Fault} error=${state.error} />
    ${state.tasks && (state.tasks.length ? html`<${SparkPlans} tasks=${state.tasks} />` : html`<p>Spark's plan is not available.</p>`)}
  </div></${Panel}>`;
}

function Document({ plan }) {
  const text = JSON.stringify(plan.document, null, 2);
  return html`<${Panel} title="Job file" label="Job file" rest=${html`<${Copy} text=${text} />`}><div class="pad">
    ${plan.hidden && html`<p class="muted">Secrets are hidden.</p>`}
    <details><summary>As it is stored</summary><pre class="trace" tabindex="0">${text}</pre></details></div></${Panel}>`;
}
