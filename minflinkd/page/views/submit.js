// Submit a job: drop or write its file, let the daemon and Spark check it, then start it.
import { may } from "../app/allowed.js";
import { change } from "../app/api.js";
import { cluster } from "../app/cluster.js";
import { ANALYSIS, HIDDEN, useDraft } from "../app/draft.js";
import { Editor } from "../app/editor.js";
import { triggerId, until } from "../app/following.js";
import { plural } from "../app/format.js";
import { html, useRef, useState } from "../app/html.js";
import { Operation } from "../app/operation.js";
import { Empty, Fault, Head, Panel } from "../app/parts.js";
import { to } from "../app/router.js";
import { Sign } from "../app/status.js";
import { useStore } from "../app/store.js";

export function SubmitPage() {
  const { who } = useStore(cluster);
  const head = html`<${Head} title="Submit a job" trail=${html`<a href="#/">Overview</a>`} />`;
  if (!who) return head;
  if (!may(who, "submit")) return html`${head}<${Panel}><${Empty}>To submit a job needs the role submit.</${Empty}></${Panel}>`;
  return html`${head}<${Draft} />`;
}

function Draft() {
  const draft = useDraft();
  const [asking, setAsking] = useState(false);
  const { checked, busy } = draft;
  const hidden = draft.text.includes(HIDDEN);
  return html`<div class="stack"><${Panel} title="Job file" label="Job file"><div class="pad stack">
      <${Editor} text=${draft.text} onText=${draft.write} faults=${draft.faults} lines=${draft.lines} label="Job file" disabled=${Boolean(busy)} />
      ${hidden && html`<p class="warn">Secrets are hidden: <code>${HIDDEN}</code> stands for each. Write them again.</p>`}
      <${Fault} error=${draft.error} />
      <div class="row"><button class="button primary" disabled=${Boolean(busy) || hidden || !draft.text.trim()} onClick=${() => draft.check("/jobs?dry-run=true&explain=true")}>Check it</button><span role="status" class="muted">${busy ? `${busy} …` : ""}</span></div>
    </div></${Panel}>
    ${checked && html`<${Checked} checked=${checked} />
      <div class="row"><button class="button primary" onClick=${() => setAsking(true)}>Submit …</button><span class="muted">Nothing was started yet.</span></div>`}
    ${asking && checked && html`<${Confirm} checked=${checked} onClose=${() => setAsking(false)} />`}</div>`;
}

function Checked({ checked }) {
  const { warnings, tasks = [] } = checked.answer;
  return html`<${Panel} title="It can run" label="What it becomes"><div class="pad stack">
    <p class="row"><${Sign} state="calm" size=${14} />No faults${tasks.length > 0 && `; it becomes ${plural(tasks.length, "task")}`}.</p>
    ${warnings.map((one) => html`<p key=${one} class="row"><${Sign} state="warning" />${one}</p>`)}
    <${SparkPlans} tasks=${tasks} />
  </div></${Panel}>`;
}

/** What Spark has said of each task. */
export function SparkPlans({ tasks }) {
  return tasks.map((task) => html`<details key=${task.id}><summary>Spark's plan of <strong>${task.id}</strong>${task.operators.some((one) => one.stateful) && html`, with state in ${[...new Set(task.operators.filter((one) => one.stateful).map((one) => one.kind))].join(", ")}`}</summary>
    <pre class="trace" tabindex="0">${task.plan || "not available"}</pre></details>`);
}

function Confirm({ checked, onClose }) {
  const id = useRef(triggerId()).current; // a request that was lost is never done twice
  const { name, document } = checked.read;
  const run = async ({ step, tell, signal }) => {
    step("The daemon checks it once more, and stores it");
    await change("POST", `/jobs?jobId=${id}`, document, ANALYSIS);
    const seen = ({ state, minflinkd }) => step(state === "CREATED" ? minflinkd.waiting[0] ?? "It waits for slots" : `The job is ${state.toLowerCase()}`);
    const job = await until(`/jobs/${id}`, ({ state }) => !["CREATED", "INITIALIZING", "RECONCILING"].includes(state), { tell, signal, seen });
    return html`<a href=${to("jobs", id)} onClick=${onClose}>${name}</a> is ${job.state.toLowerCase()}.`;
  };
  return html`<${Operation} title=${`Submit ${name}?`} verb="Submit" run=${run} onClose=${onClose}
    says="The daemon stores the job and starts its tasks as soon as there are slots; if none are free, TaskManagers are started. It runs until it is cancelled or stopped, also after a restart of the daemon." />`;
}
