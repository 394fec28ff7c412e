// A hot restart: write or drop the new version, see what changes, and let the job go on with it.
import { may } from "../app/allowed.js";
import { change } from "../app/api.js";
import { Artifacts } from "../app/artifacts.js";
import { Changes, Documents, loses } from "../app/changes.js";
import { cluster } from "../app/cluster.js";
import { ANALYSIS, HIDDEN, useDraft } from "../app/draft.js";
import { Editor } from "../app/editor.js";
import { outcome, restarted } from "../app/following.js";
import { html, useEffect, useState } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { Check, Operation } from "../app/operation.js";
import { Choice, Empty, Fault, Panel, useAnswer } from "../app/parts.js";
import { useStore } from "../app/store.js";

export function NewVersionPage({ jid }) {
  return html`<${JobFrame} jid=${jid} tab="new-version">${(known) => html`<${Allowed} job=${known.job} />`}</${JobFrame}>`;
}

function Allowed({ job }) {
  const { who } = useStore(cluster);
  const { value, error } = useAnswer(`/jobs/${job.jid}/graph`);
  if (!who) return null;
  if (!may(who, "submit", job.name)) return html`<${Panel}><${Empty}>A hot restart needs the role submit.</${Empty}></${Panel}>`;
  if (job["end-time"] >= 0) return html`<${Panel}><${Empty}>The job has ended. <a href="#/submit">Submit it</a> again, from its last savepoint if there is one.</${Empty}></${Panel}>`;
  if (error) return html`<${Panel}><${Fault} error=${error} /></${Panel}>`;
  return value ? html`<${Version} job=${job} running=${value} />` : html`<${Empty}>Asking the daemon …</${Empty}>`;
}

const OPTIONS = [
  ["nonRestored", "allow-non-restored-state", "Drop the state that the new version has no place for."],
  ["changed", "allow-changed-state", "Keep state although it means something else now."],
  ["replace", "replace", "Take the place of a hot restart that is under way."],
];

function Version({ job, running }) {
  const draft = useDraft(JSON.stringify(running.document, null, 2), job.jid);
  const [from, setFrom] = useState("final");
  const [chosen, setChosen] = useState({});
  const [asking, setAsking] = useState(false);
  const query = new URLSearchParams({ checkpoint: from });
  for (const [name, option] of OPTIONS) if (chosen[name]) query.set(option, "true");
  const path = `/jobs/${job.jid}/hot-restart?${query}`;
  const hidden = draft.text.includes(HIDDEN);
  const { checked, busy } = draft;
  const look = () => draft.check(() => `${path}&dry-run=true`);
  const choose = (name, value) => {
    setChosen({ ...chosen, [name]: value });
    draft.write(draft.text, draft.name); // what was checked was checked with other choices
  };
  useEffect(() => {
    if (checked) document.getElementById("checked")?.scrollIntoView?.({ block: "nearest" });
  }, [checked]);
  return html`<${Panel} title="New version" label="New version"><div class="pad stack">
      <p class="muted">This is what runs now. Change it, or drop the file of the new version.</p>
      <${Editor} text=${draft.text} onText=${draft.write} onFiles=${draft.add} faults=${draft.faults} lines=${draft.lines} label="Job file of the new version" disabled=${Boolean(busy)} />
      <${Artifacts} document=${draft.document} files=${draft.files} onDrop=${draft.drop} disabled=${Boolean(busy)} />
      ${hidden && html`<p class="warn">Secrets are hidden: <code>${HIDDEN}</code> stands for each. Write them again, or drop the file that has them.</p>`}
      <div class="choices"><div class="row"><span id="from">Go on from</span><${Choice} label="Go on from" value=${from} onChange=${(one) => { setFrom(one); draft.write(draft.text, draft.name); }} options=${[["final", "a last checkpoint"], ["latest", "the latest complete one"]]} /></div>
        ${OPTIONS.map(([name, , words]) => html`<${Check} key=${name} checked=${Boolean(chosen[name])} onChange=${(value) => choose(name, value)}>${words}</${Check}>`)}</div>
      <${Fault} error=${draft.error} />
      <div class="row"><button class="button primary" disabled=${Boolean(busy) || hidden || !draft.text.trim()} onClick=${look}>See what changes</button><span role="status" class="muted">${busy && `${busy} …`}</span></div>
    </div></${Panel}>
    ${checked && html`<div class="stack" id="checked"><${Changes} changes=${checked.answer.changes} />
      ${checked.read.normal && html`<${Documents} before=${running.document} after=${checked.read.normal} />`}
      <div class="row"><button class="button primary" onClick=${() => setAsking(true)}>Hot restart …</button><span class="muted">Nothing was started yet.</span></div></div>`}
    ${asking && checked && html`<${Confirm} job=${job} checked=${checked} draft=${draft} path=${path} from=${from} onClose=${() => setAsking(false)} />`}`;
}

function Confirm({ job, checked, draft, path, from, onClose }) {
  const { changes } = checked.answer;
  const run = async (progress) => {
    const document = await draft.complete(checked.read, progress.step);
    progress.step("The daemon checks the new version");
    const { number } = await change("POST", path, document, ANALYSIS);
    return outcome(await restarted(job.jid, number, number - 1, progress));
  };
  const start = from === "final" ? "A last checkpoint is taken, the job stops, and the new version goes on from it" : "The job stops, and the new version goes on from the latest complete checkpoint: what was processed since then is processed again";
  const state = loses(changes) ? "Some state is lost or gets another meaning." : "All state is kept.";
  return html`<${Operation} title=${`Hot restart ${job.name}?`} verb="Hot restart" run=${run} onClose=${onClose}
    says=${`${start}, in the same warm sessions. ${state} If it does not come up, the old version runs again.`} />`;
}
