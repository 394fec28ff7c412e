// Submit a job: drop or write its file, let the daemon and Spark check it, then start it.
import { may } from "../app/allowed.js";
import { change } from "../app/api.js";
import { Artifacts } from "../app/artifacts.js";
import { cluster } from "../app/cluster.js";
import { ANALYSIS, HIDDEN, useDraft } from "../app/draft.js";
import { Editor } from "../app/editor.js";
import { begun } from "../app/following.js";
import { plural } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { Operation } from "../app/operation.js";
import { Empty, Fault, Head, Panel, useAnswer } from "../app/parts.js";
import { to } from "../app/router.js";
import { Sign } from "../app/status.js";
import { useStore } from "../app/store.js";

/** `query`: of what job it is the file, and where that is to start; see `again`. */
export function SubmitPage({ query }) {
  const { who } = useStore(cluster);
  const head = html`<${Head} title="Submit a job" trail=${html`<a href="#/">Overview</a>`} />`;
  if (!who) return head;
  if (!may(who, "submit")) return html`${head}<${Panel}><${Empty}>To submit a job needs the role submit.</${Empty}></${Panel}>`;
  return html`${head}${query.job ? html`<${Again} jid=${query.job} path=${query.restore ?? ""} />` : html`<${Draft} />`}`;
}

/** A job that is known, to be submitted as another one: its file is in the editor. */
function Again({ jid, path }) {
  const { value, error } = useAnswer(`/jobs/${encodeURIComponent(jid)}/graph`);
  if (error) return html`<${Panel}><${Fault} error=${error} /></${Panel}>`;
  if (!value) return html`<${Empty}>Asking the daemon …</${Empty}>`;
  const document = again(value.document, path);
  return html`<${Draft} begin=${JSON.stringify(document, null, 2)} says=${html`<p class="muted">This is the file of <a href=${to("jobs", jid)}>${document.name}</a>${path && html`, to start from <code>${path}</code>`}. It becomes a new job.${document.artifacts?.length > 0 && " Artifacts belong to the job that they were uploaded for: drop them here once more."}</p>`} />`;
}

/** The file of a job, as that of a new one that starts from `path`. Pure. */
export function again({ restore, artifacts, ...rest }, path) {
  const named = artifacts?.map(({ name }) => ({ name, path: name }));
  return { ...rest, ...(named && { artifacts: named }), ...(path && { restore: { path } }) };
}

function Draft({ begin = "", says = null }) {
  const draft = useDraft(begin);
  const [asking, setAsking] = useState(null);
  const { checked, busy } = draft;
  const hidden = draft.text.includes(HIDDEN);
  return html`<div class="stack"><${Panel} title="Job file" label="Job file"><div class="pad stack">
      ${says}<${Editor} text=${draft.text} onText=${draft.write} onFiles=${draft.add} faults=${draft.faults} lines=${draft.lines} label="Job file" disabled=${Boolean(busy)} />
      <${Artifacts} document=${draft.document} files=${draft.files} onDrop=${draft.drop} disabled=${Boolean(busy)} />
      ${hidden && html`<p class="warn">Secrets are hidden: <code>${HIDDEN}</code> stands for each. Write them again.</p>`}
      <${Fault} error=${draft.error} />
      <div class="row"><button class="button primary" disabled=${Boolean(busy) || hidden || !draft.text.trim()} onClick=${() => draft.check((id) => `/jobs?dry-run=true&explain=true&jobId=${id}`)}>Check it</button><span role="status" class="muted">${busy ? `${busy} …` : ""}</span></div>
    </div></${Panel}>
    ${checked && html`<${Checked} checked=${checked} />
      <div class="row"><button class="button primary" onClick=${() => setAsking(checked)}>Submit …</button><span class="muted">Nothing was started yet.</span></div>`}
    ${asking && html`<${Confirm} checked=${asking} draft=${draft} onClose=${() => setAsking(null)} />`}</div>`;
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

function Confirm({ checked, draft, onClose }) {
  const { id } = checked; // a request that was lost is never done twice
  const { name } = checked.read;
  const run = async (progress) => {
    const { step } = progress;
    const document = await draft.complete(checked.read, step);
    step("The daemon checks it once more, and stores it");
    try {
      await change("POST", `/jobs?jobId=${id}`, document, ANALYSIS);
    } catch (error) {
      if (error.status > 0) draft.forget(); // a refused job leaves nothing behind
      throw error;
    }
    draft.accepted();
    const state = await begun(id, progress);
    return html`<a href=${to("jobs", id)} onClick=${onClose}>${name}</a> is ${state}.`;
  };
  return html`<${Operation} title=${`Submit ${name}?`} verb="Submit" run=${run} onClose=${onClose}
    says="The daemon stores the job and starts its tasks as soon as there are slots; if none are free, TaskManagers are started. It runs until it is cancelled or stopped, also after a restart of the daemon." />`;
}
