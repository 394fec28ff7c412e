// Restore from here: a job is submitted once more, as a new job that starts from one of its checkpoints or savepoints.
import { may } from "./allowed.js";
import { change } from "./api.js";
import { cluster } from "./cluster.js";
import { ANALYSIS } from "./draft.js";
import { begun, ended, operated, triggerId } from "./following.js";
import { bytes, time } from "./format.js";
import { html, useRef, useState } from "./html.js";
import { useTrigger } from "./jobactions.js";
import { Check, Operation, useOperation } from "./operation.js";
import { Fault, useAnswer } from "./parts.js";
import { useStore } from "./store.js";

/** One that was copied is a savepoint, which outlives its job. Without its copy it is a checkpoint as all others. Pure. */
export const kindOf = (checkpoint) => (checkpoint.minflinkd.savepoint ? "savepoint" : "checkpoint");

/** A button for a checkpoint that is complete. Nothing is there without the role. */
export function RestoreButton({ job, checkpoint }) {
  const { who } = useStore(cluster);
  const [start, dialog] = useOperation();
  if (!checkpoint.external_path || !may(who, "submit", job.name)) return null;
  return html`<button class="button small" aria-label=${`Restore from here: ${kindOf(checkpoint)} ${checkpoint.id}`} onClick=${() => start(Restore, { job, checkpoint })}>Restore from here</button>${dialog}`;
}

/**
 * What can be done about the job itself: [[value, sentence]], the safest first. A checkpoint goes with its job, if that
 * does not retain it; one that is stopped is FINISHED, and retains none. Pure.
 */
export function ways({ over, savepoint, retained }) {
  if (over) return [];
  return [
    savepoint && ["stop", "Stop the running job first, with a savepoint: so you can go back to where it is now."],
    (savepoint || retained) && ["cancel", "Cancel the running job first, without another savepoint."],
    ["beside", "Leave it running beside the new job: both write to the same sinks."],
  ].filter(Boolean);
}

function Restore({ job, checkpoint, onClose }) {
  const { jid, name } = job;
  const over = job["end-time"] >= 0;
  const kind = kindOf(checkpoint);
  const graph = useAnswer(`/jobs/${jid}/graph`);
  const config = useAnswer(`/jobs/${jid}/checkpoints/config`);
  const [chosen, choose] = useState(null);
  const [lost, setLost] = useState(false);
  const [changed, setChanged] = useState(false);
  const id = useRef(triggerId()).current; // of the new job: a request that was lost is never done twice
  const gone = useRef(over);
  const trigger = useTrigger();
  const retained = config.value?.externalization.delete_on_cancellation === false;
  const possible = ways({ over, savepoint: kind === "savepoint", retained });
  const way = chosen ?? possible[0]?.[0];
  const code = graph.value?.document.artifacts ?? [];
  const file = `#/submit?${new URLSearchParams({ job: jid, restore: checkpoint.external_path })}`;

  const run = async (progress) => {
    const { step, tell } = progress;
    const going = { step, tell, signal: new AbortController().signal }; // it never ends halfway
    const body = { path: checkpoint.external_path, "allow-non-restored-state": lost, "allow-changed-state": changed };
    const again = (query) => change("POST", `/jobs/${jid}/submit-again?jobId=${id}${query}`, body, ANALYSIS);
    if (!gone.current && way !== "beside") {
      step(`The daemon and Spark check that it can start from ${kind} ${checkpoint.id}`);
      await again("&dry-run=true");
      if (way === "stop") await trigger((one) => stopped(jid, one, going));
      else {
        step("Asking the daemon to cancel it");
        await change("PATCH", `/jobs/${jid}`);
      }
      await ended(jid, going);
      gone.current = true;
    }
    step("The daemon checks the new job, and stores it");
    await again("");
    const state = await begun(id, progress);
    return html`<a href=${`#/jobs/${id}`} onClick=${onClose}>The new job</a> is ${state}. It started from ${kind} ${checkpoint.id}.`;
  };
  const from = `${kind} ${checkpoint.id} of ${time(checkpoint.trigger_timestamp)}${checkpoint.state_size ? `, ${bytes(checkpoint.state_size)} of state` : ""}`;
  const unable = over && code.length > 0;
  return html`<${Operation} title=${`Restore ${name} from ${kind} ${checkpoint.id}?`} verb=${verbs[way] ?? "Submit it again"} danger=${way === "cancel" || way === "stop"} ready=${Boolean(graph.value && config.value) && !unable} run=${run} onClose=${onClose}
    says=${`The version of ${name} that ${over ? "ran last" : "runs now"} is submitted as a new job, which starts from ${from}. What came after that is read and processed again; what was written to sinks since then stays there.`}>
    <${Fault} error=${graph.error ?? config.error} />
    ${unable && html`<p class="warn">It has code of its own, ${code.map((one) => one.name).join(", ")}, which was deleted when it ended. <a href=${file} onClick=${onClose}>Submit its file together with that code</a>.</p>`}
    ${possible.length > 1 && html`<div class="stack tight" role="radiogroup" aria-label=${`What happens to ${name}`}>${possible.map(([value, words]) => html`<label key=${value} class="check"><input type="radio" name="way" checked=${way === value} onChange=${() => choose(value)} /><span>${words}</span></label>`)}</div>`}
    ${possible.length === 1 && html`<p>${name} still runs, and goes on beside the new job: both write to the same sinks. It cannot be cancelled before, because its checkpoints are deleted then. Cancel it when the new job has a checkpoint of its own; or take a savepoint, and restore from that.</p>`}
    ${over && kind === "checkpoint" && job.state !== "FAILED" && !retained && html`<p class="muted">Checkpoints of a job that is ${job.state.toLowerCase()} are deleted, so this one may be gone.</p>`}
    <details><summary>If the job was changed since then</summary><div class="stack tight">
      <${Check} checked=${lost} onChange=${setLost}>Drop the state that it has no place for any more.</${Check}>
      <${Check} checked=${changed} onChange=${setChanged}>Keep state although it means something else now.</${Check}>
      <p class="muted"><a href=${file} onClick=${onClose}>Change its file</a> before it is submitted.</p></div></details>
    ${possible.length > 1 && way !== "beside" && html`<p class="muted">Nothing is stopped before a check has found that the new job can start. Keep this page open meanwhile.</p>`}
  </${Operation}>`;
}

const verbs = { stop: "Stop it, then restore", cancel: "Cancel it, then restore", beside: "Start beside it" };

async function stopped(jid, id, progress) {
  progress.step("Asking the daemon for a savepoint");
  await change("POST", `/jobs/${jid}/stop`, { drain: false, triggerId: id });
  await operated(`/jobs/${jid}/savepoints`, id, progress);
}
