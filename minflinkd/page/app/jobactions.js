// What can be done to a job: each with a sentence that says what will happen.
import { may } from "./allowed.js";
import { change, get } from "./api.js";
import { cluster } from "./cluster.js";
import { bytes, plural } from "./format.js";
import { ended, operated, outcome, restarted, triggerId } from "./following.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { followed } from "./job.js";
import { Check, Operation, Text, useOperation } from "./operation.js";
import { Fault } from "./parts.js";
import { to } from "./router.js";
import { useStore } from "./store.js";

/** The buttons at the head of a job's pages. */
export function JobActions({ job }) {
  const { who } = useStore(cluster);
  const [start, dialog] = useOperation();
  const lives = job["end-time"] < 0;
  const steers = lives && may(who, "operate", job.name);
  const button = (name, operation, danger) => html`<button class=${danger ? "button danger" : "button"} onClick=${() => start(operation, { job })}>${name}</button>`;
  return html`
    ${steers && html`${button("Checkpoint", Checkpoint)}${button("Savepoint", Savepoint)}${button("Rescale", Rescale)}`}
    ${lives && may(who, "submit", job.name) && html`<a class="button" href=${to("jobs", job.jid, "new-version")}>Hot restart</a>`}
    ${steers && html`${button("Stop", Stop, true)}${button("Cancel", Cancel, true)}`}
    ${dialog}`;
}

/** Run with an id that stays the same until the daemon has answered: so a request that was lost is never done twice. */
export function useTrigger() {
  const id = useRef(null);
  return async (action) => {
    id.current ??= triggerId();
    try {
      return await action(id.current);
    } catch (error) {
      if (error.status > 0) id.current = null;
      throw error;
    }
  };
}

function Cancel({ job, onClose }) {
  const run = async (progress) => {
    progress.step("Asking the daemon to cancel it");
    await change("PATCH", `/jobs/${job.jid}`);
    const state = await ended(job.jid, progress);
    return `${job.name} is ${state.toLowerCase()}. Its slots are free.`;
  };
  const kept = followed.value.checkpoints?.latest.savepoint ? " Savepoints stay." : " There is no savepoint of it.";
  return html`<${Operation} title=${`Cancel ${job.name}?`} verb="Cancel the job" danger=${true} run=${run} onClose=${onClose}
    says=${`The job ends without a savepoint: its sinks publish what its checkpoints cover, then its checkpoints are deleted, if the job does not retain them, and its slots become free.${kept}`} />`;
}

function Directory({ value, onChange }) {
  return html`<${Text} label="Directory" value=${value} onInput=${(event) => onChange(event.target.value)} placeholder="that of the daemon" note="A path or URI that the daemon can write to. Empty: what execution.checkpointing.savepoint-dir says." spellcheck=${false} />`;
}

function Stop({ job, onClose }) {
  const [directory, setDirectory] = useState("");
  const [drain, setDrain] = useState(false);
  const trigger = useTrigger();
  const run = (progress) => trigger(async (id) => {
    progress.step("Asking the daemon for a savepoint");
    await change("POST", `/jobs/${job.jid}/stop`, { targetDirectory: directory.trim() || null, drain, triggerId: id });
    const { location } = await operated(`/jobs/${job.jid}/savepoints`, id, progress);
    const state = await ended(job.jid, progress);
    return html`${job.name} is ${state.toLowerCase()}. Its savepoint: <code>${location}</code>`;
  });
  return html`<${Operation} title=${`Stop ${job.name}?`} verb="Take a savepoint and stop" danger=${true} run=${run} onClose=${onClose}
    says="A savepoint is taken, the sinks publish exactly what it covers, and the job ends as FINISHED. It can be started again from the savepoint.">
    <${Directory} value=${directory} onChange=${setDirectory} />
    <${Check} checked=${drain} onChange=${setDrain}>Drain: first let all open windows and timers fire. Only for a job that will not be continued.</${Check}>
  </${Operation}>`;
}

function Savepoint({ job, onClose }) {
  const [directory, setDirectory] = useState("");
  const trigger = useTrigger();
  const run = (progress) => trigger(async (id) => {
    progress.step("Asking the daemon for a savepoint");
    await change("POST", `/jobs/${job.jid}/savepoints`, { "target-directory": directory.trim() || null, triggerId: id });
    const { location } = await operated(`/jobs/${job.jid}/savepoints`, id, progress);
    return html`The savepoint is complete: <code>${location}</code>`;
  });
  const size = followed.value.checkpoints?.latest.completed?.state_size;
  return html`<${Operation} title=${`Savepoint of ${job.name}`} verb="Take a savepoint" run=${run} onClose=${onClose}
    says=${`The job goes on. All of its state${size ? `, ${bytes(size)} at the last checkpoint,` : ""} is written to a directory that belongs to you: it is kept until you delete it.`}>
    <${Directory} value=${directory} onChange=${setDirectory} />
  </${Operation}>`;
}

function Checkpoint({ job, onClose }) {
  const [full, setFull] = useState(false);
  const trigger = useTrigger();
  const run = (progress) => trigger(async (id) => {
    progress.step("Asking the daemon for a checkpoint");
    await change("POST", `/jobs/${job.jid}/checkpoints`, { checkpointType: full ? "FULL" : "CONFIGURED", triggerId: id });
    const { checkpointId } = await operated(`/jobs/${job.jid}/checkpoints`, id, progress);
    return html`Checkpoint <a href=${to("jobs", job.jid, "checkpoints", String(checkpointId))} onClick=${onClose}>${checkpointId}</a> is complete.`;
  });
  return html`<${Operation} title=${`Checkpoint of ${job.name}`} verb="Take a checkpoint" run=${run} onClose=${onClose}
    says="The job goes on. A checkpoint is taken now, in addition to the periodic ones, and is deleted as they are.">
    <${Check} checked=${full} onChange=${setFull}>Full: upload all state anew, so that it refers to no file of an earlier checkpoint.</${Check}>
  </${Operation}>`;
}

function Rescale({ job, onClose }) {
  const [now, setNow] = useState(null);
  const [error, setError] = useState(null);
  const [wanted, setWanted] = useState("");
  const [least, setLeast] = useState("");
  useEffect(() => {
    get(`/jobs/${job.jid}/resource-requirements`).then((found) => {
      const bounds = Object.values(found).map((one) => one.parallelism);
      setNow(bounds);
      setWanted(String(Math.max(...bounds.map((one) => one.upperBound))));
    }, setError);
  }, []);
  const number = Number(wanted);
  const lowest = least.trim() ? Number(least) : -1;
  const ready = now !== null && Number.isInteger(number) && number >= 1 && Number.isInteger(lowest) && (lowest === -1 || (lowest >= 1 && lowest <= number));
  const run = async (progress) => {
    progress.step("Asking the daemon to rescale it");
    const before = Math.max(0, ...(followed.value.job ?? job).minflinkd["hot-restarts"].map((one) => one.number));
    const bounds = { parallelism: { lowerBound: lowest, upperBound: number } };
    await change("PUT", `/jobs/${job.jid}/resource-requirements`, Object.fromEntries(job.vertices.map((vertex) => [vertex.id, bounds])));
    const found = await restarted(job.jid, null, before, progress);
    outcome(found);
    return `${job.name} runs with parallelism ${number}.`;
  };
  const highest = now && Math.max(...now.map((one) => one.upperBound));
  return html`<${Operation} title=${`Rescale ${job.name}`} verb="Rescale" ready=${ready} run=${run} onClose=${onClose}
    says=${`Nothing stops if its TaskManagers have the slots and its state has so many partitions. Otherwise it is a hot restart: a last checkpoint is taken, and the job goes on from it. ${highest ? `It asks for ${plural(highest, "slot")} now, for each of ${plural(job.vertices.length, "task")}.` : ""}`}>
    <${Fault} error=${error} />
    <${Text} label="Parallelism of all tasks" type="number" min="1" step="1" required value=${wanted} onInput=${(event) => setWanted(event.target.value)} />
    <${Text} label="Least" type="number" min="1" step="1" value=${least} onInput=${(event) => setLeast(event.target.value)} note="With fewer slots no task starts. Empty: as it is." />
  </${Operation}>`;
}
