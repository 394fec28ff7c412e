// A job's checkpoints: how they went, the last ones, and one of them down to its tasks.
import { may } from "../app/allowed.js";
import { Chart } from "../app/chart.js";
import { cluster } from "../app/cluster.js";
import { ago, bytes, firstLine, millis, plural, seconds, short, time, whole } from "../app/format.js";
import { html } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { RANGES, showRange, spanOf } from "../app/job.js";
import { MarkStrip } from "../app/marks.js";
import { Choice, Copy, Empty, Fault, Figures, Panel, PhaseLegend, Phases, Scroll, useAnswer } from "../app/parts.js";
import { RestoreButton, kindOf } from "../app/restore.js";
import { go, stateOf, to } from "../app/router.js";
import { State } from "../app/status.js";
import { useStore } from "../app/store.js";

export function CheckpointsPage({ jid }) {
  return html`<${JobFrame} jid=${jid} tab="checkpoints">${(known, now) => html`<${Shown} known=${known} now=${now} />`}</${JobFrame}>`;
}

function Shown({ known, now }) {
  const { checkpoints, jid } = known;
  if (!checkpoints) return html`<${Empty}>Asking the daemon …</${Empty}>`;
  return html`<${Summary} checkpoints=${checkpoints} now=${now} />
    <${Causes} checkpoints=${checkpoints} now=${now} />
    <${Charts} known=${known} now=${now} />
    <${History} checkpoints=${checkpoints} jid=${jid} now=${now} />
    <${StartFrom} checkpoints=${checkpoints} job=${known.job} now=${now} />
    <${Settings} jid=${jid} />`;
}

function Summary({ checkpoints, now }) {
  const { counts, latest, minflinkd: extras } = checkpoints;
  const last = latest.completed;
  const { files } = extras;
  return html`<${Figures} figures=${[
    ["Completed", whole(counts.completed), counts.in_progress ? `${counts.in_progress} under way` : "none under way"],
    ["Failed", whole(counts.failed), extras["consecutive-failures"] ? `the last ${extras["consecutive-failures"]} in a row` : counts.failed ? `last ${ago(latest.failed?.failure_timestamp, now)}` : "", extras["consecutive-failures"] ? "bad" : ""],
    ["Last", last ? ago(last.latest_ack_timestamp, now) : "–", last ? `checkpoint ${last.id}, ${millis(last.end_to_end_duration)}` : "none yet"],
    ["Interval", extras.interval ? millis(extras.interval) : "none", extras.interval ? "" : "only when asked for"],
    ["State", bytes(last?.state_size), last ? `${bytes(last.checkpointed_size)} of it new` : ""],
    ["Files", whole(files.physical), `${bytes(files["bytes-stored"])}, ${files.amplification.toFixed(2)} × needed`],
  ]} />`;
}

function Causes({ checkpoints, now }) {
  const { minflinkd: extras, latest } = checkpoints;
  const failed = Object.entries(extras["failed-by-cause"]);
  const refused = Object.entries(extras.refused);
  const restored = latest.restored;
  if (!failed.length && !refused.length && !extras.damaged.length && !restored) return null;
  return html`<${Panel} title="Failures and restores" label="Failures and restores"><div class="pad"><dl class="pairs">
    ${failed.length > 0 && html`<dt>Failed because of</dt><dd>${failed.map(([cause, count]) => `${cause} (${count})`).join(", ")}</dd>`}
    ${latest.failed && html`<dt>Last failure</dt><dd>${time(latest.failed.failure_timestamp, now)}: ${latest.failed.failure_message}</dd>`}
    ${refused.length > 0 && html`<dt>Not begun because of</dt><dd>${refused.map(([reason, count]) => `${reason} (${count})`).join(", ")}</dd>`}
    ${restored && html`<dt>Last restore</dt><dd>from checkpoint ${restored.id}, ${ago(restored.restore_timestamp, now)}</dd>`}
    ${extras.damaged.map((one) => html`<dt class="bad" key=${one.id}>Damaged</dt><dd key=${`d${one.id}`}>checkpoint ${one.id}: ${one.files.map((file) => `${file.file} ${file.why}`).join(", ")}</dd>`)}
  </dl></div></${Panel}>`;
}

function Charts({ known, now }) {
  const { figures, range, marks } = known;
  const common = { times: figures.times(), range: spanOf(known, now), marks };
  const line = (name, words, i) => [{ name: words, values: figures.get(name), colour: `var(--series-${i})` }];
  return html`<${Panel} title="Over time" label="Over time" rest=${html`<${Choice} label="Range" value=${range} onChange=${showRange} options=${RANGES.map(([name, words]) => [name, words])} />`}>
    <div class="pad"><${MarkStrip} marks=${marks} range=${common.range} />
      <div class="charts">
        <${Chart} ...${common} title="Duration" form=${seconds} series=${line("checkpoint_duration", "from trigger to the last task", 1)} />
        <${Chart} ...${common} title="Size" form=${bytes} binary=${true} series=${line("checkpoint_bytes", "state", 2)} />
      </div></div>
  </${Panel}>`;
}

/** Where a checkpoint's time went: the slowest task of each phase, then the metadata and the publication. */
export function phasesOf(checkpoint) {
  const tasks = Object.values(checkpoint.tasks ?? {}).filter((task) => task.num_acknowledged_subtasks > 0);
  const most = (field) => Math.max(0, ...tasks.map((task) => task.minflinkd[field])) / 1000;
  const { metadata, notify } = checkpoint.minflinkd;
  const all = [
    ["waiting for the cut", most("wait")],
    ["linking files", most("sync")],
    ["uploading", most("async")],
    ["metadata", metadata / 1000],
    ["publishing", Math.max(0, notify) / 1000],
  ];
  return tasks.length ? all : all.slice(3);
}

const PARTS = ["aligning", "tasks", "metadata", "publishing"];

/** The parts of a checkpoint of which no details are known. */
export function partsOf(one) {
  const { alignment, metadata, notify } = one.minflinkd;
  const aligned = Math.min(alignment, one.end_to_end_duration);
  const all = [aligned, one.end_to_end_duration - aligned, metadata, Math.max(0, notify)];
  return PARTS.map((name, i) => [name, all[i] / 1000]);
}

function History({ checkpoints, jid, now }) {
  const shown = checkpoints.history;
  if (!shown.length) return html`<${Panel} title="The last ones"><${Empty}>There was no checkpoint yet.</${Empty}></${Panel}>`;
  const longest = Math.max(...shown.map((one) => partsOf(one).reduce((sum, [, part]) => sum + part, 0)), 0.001);
  return html`<${Panel} title=${html`The last ones <span class="faint">${shown.length}</span>`} label="The last checkpoints" rest=${html`<${PhaseLegend} phases=${PARTS.map((name) => [name])} />`}>
    <${Scroll} label="The last checkpoints"><table>
      <thead><tr><th scope="col" class="num">Id</th><th scope="col">State</th><th scope="col">Kind</th><th scope="col">Triggered</th><th scope="col" class="num">Duration</th><th scope="col" class="bar-cell hide-narrow">Phases</th>
        <th scope="col" class="num">State size</th><th scope="col" class="num">Uploaded</th><th scope="col" class="num hide-narrow">Files</th><th scope="col" class="num hide-narrow" title="Bytes that are stored, by bytes that are needed">Amplification</th><th scope="col" class="num">Tasks</th></tr></thead>
      <tbody>${shown.map((one) => html`<${Row} key=${one.id} one=${one} jid=${jid} now=${now} longest=${longest} />`)}</tbody>
    </table></${Scroll}>
  </${Panel}>`;
}

function Row({ one, jid, now, longest }) {
  const address = to("jobs", jid, "checkpoints", String(one.id));
  const open = (event) => event.target.closest("a") || go(address);
  const why = one.failure_message;
  return html`<tr class="link" onClick=${open}>
    <td class="num"><a class="name" href=${address} aria-label=${`checkpoint ${one.id}`}>${one.id}</a></td>
    <td><${State} state=${one.status} />${why && html`<div class="muted clip reason" title=${why}>${firstLine(why, 90)}</div>`}</td>
    <td class="muted">${one.is_savepoint ? "savepoint" : one.minflinkd.kind || "checkpoint"}</td>
    <td class="nowrap">${time(one.trigger_timestamp, now)}</td>
    <td class="num">${millis(one.end_to_end_duration)}</td>
    <td class="hide-narrow bar-cell"><${Phases} phases=${partsOf(one)} total=${longest} /></td>
    <td class="num">${bytes(one.state_size)}</td>
    <td class="num">${bytes(one.checkpointed_size)}</td>
    <td class="num hide-narrow">${whole(one.minflinkd.files?.physical)}</td>
    <td class="num hide-narrow">${one.minflinkd.files ? one.minflinkd.files.amplification.toFixed(2) : "–"}</td>
    <td class="num">${one.num_acknowledged_subtasks}/${one.num_subtasks}</td>
  </tr>`;
}

/** The job again, from what is here; or the command that starts another version of it. */
function StartFrom({ checkpoints, job, now }) {
  const { savepoint, completed } = checkpoints.latest;
  const saved = savepoint?.minflinkd.savepoint ? savepoint : null; // otherwise it goes as other checkpoints do
  const usable = [saved, completed?.id !== saved?.id && completed].filter((one) => one?.external_path);
  if (!usable.length) return null;
  return html`<${Panel} title="Start from here" label="Start from here"><div class="pad start-from">
    ${usable.map((one) => html`
      <span key=${one.id}>The last ${kindOf(one)}, ${one.id}, ${ago(one.latest_ack_timestamp, now)}, ${bytes(one.state_size)}</span>
      <code class="clip" title=${one.external_path}>minflinkd run ${"JOB.yaml"} --from-savepoint ${one.external_path}</code>
      <span class="row"><${Copy} text=${`minflinkd run JOB.yaml --from-savepoint ${one.external_path}`} label="Copy the command" /><${RestoreButton} job=${job} checkpoint=${one} /></span>`)}
  </div></${Panel}>`;
}

function Settings({ jid }) {
  const { value, error } = useAnswer(`/jobs/${jid}/checkpoints/config`);
  if (error) return html`<${Panel} title="Settings"><${Fault} error=${error} /></${Panel}>`;
  if (!value) return null;
  const off = value.interval > 1e15;
  return html`<${Panel} title="Settings" label="Settings"><div class="pad"><dl class="pairs">
    <dt>Mode</dt><dd>${value.mode.replaceAll("_", " ")}</dd>
    <dt>Interval</dt><dd>${off ? "no periodic checkpoints" : millis(value.interval)}</dd>
    <dt>Timeout</dt><dd>${millis(value.timeout)}</dd>
    <dt>Pause between two</dt><dd>${millis(value.min_pause)}, ${plural(value.max_concurrent, "checkpoint")} at once</dd>
    <dt>Kept</dt><dd>the last ${value.minflinkd["num-retained"]}, ${value.externalization.delete_on_cancellation ? "deleted when the job is cancelled" : "also after the job was cancelled"}</dd>
    <dt>Unaligned</dt><dd>${value.unaligned_checkpoints ? "yes" : "no"}</dd>
    <dt>Failures that are tolerated</dt><dd>${short(value.tolerable_failed_checkpoints)}</dd>
  </dl></div></${Panel}>`;
}

export function CheckpointPage({ jid, id }) {
  return html`<${JobFrame} jid=${jid} tab="checkpoints">${(known, now) => html`<${One} known=${known} jid=${jid} id=${id} now=${now} />`}</${JobFrame}>`;
}

function One({ known, jid, id, now }) {
  const { who } = useStore(cluster);
  const latest = known.checkpoints?.history[0]?.id; // asked again when another one has ended
  const { value: found, error } = useAnswer(`/jobs/${jid}/checkpoints/details/${encodeURIComponent(id)}`, String(latest));
  const back = html`<a href=${to("jobs", jid, "checkpoints")}>All checkpoints</a>`;
  if (error) return html`<${Panel} title=${`Checkpoint ${id}`} rest=${back}><${Fault} error=${error} /></${Panel}>`;
  if (!found) return html`<${Panel} title=${`Checkpoint ${id}`} rest=${back}><${Empty}>Asking the daemon …</${Empty}></${Panel}>`;
  const phases = phasesOf(found);
  return html`<${Panel} title=${html`${kindOf(found) === "savepoint" ? "Savepoint" : "Checkpoint"} ${found.id} <${State} state=${found.status} />`} label=${`Checkpoint ${id}`} rest=${back}>
      <div class="pad stack">
        ${found.failure_message && html`<p class="bad">${found.failure_message}</p>`}
        ${found.minflinkd.warning && html`<p class="warn">${found.minflinkd.warning}</p>`}
        <${Phases} phases=${phases} /><${PhaseLegend} phases=${phases} />
        <dl class="pairs">
          <dt>Triggered</dt><dd>${time(found.trigger_timestamp, now)}, ${found.minflinkd.kind}</dd>
          <dt>Took</dt><dd>${millis(found.end_to_end_duration)}, of it ${millis(found.minflinkd.alignment)} alignment</dd>
          <dt>State</dt><dd>${bytes(found.state_size)}, ${bytes(found.checkpointed_size)} of it uploaded</dd>
          ${found.external_path && html`<dt>Where</dt><dd><code>${found.external_path}</code> <${Copy} text=${found.external_path} /></dd>
            <dt>Its state</dt><dd><a href=${stateOf(jid, { checkpoint: nameOf(found) })}>Look at it</a>, or choose a task below</dd>
            <dt>From here</dt><dd class="row">${may(who, "submit", known.job.name) ? html`<${RestoreButton} job=${known.job} checkpoint=${found} />` : "to restore the job needs the role submit"}</dd>`}
          ${found.minflinkd.compactions > 0 && html`<dt>Compacted</dt><dd>${plural(found.minflinkd.compactions, "file")}, ${bytes(found.minflinkd["bytes-rewritten"])} rewritten</dd>`}
        </dl>
      </div>
    </${Panel}>
    <${Tasks} found=${found} known=${known} now=${now} />`;
}

/** What the endpoint takes for a checkpoint: a savepoint is still at its path when its number is not kept any more. */
const nameOf = (checkpoint) => checkpoint.minflinkd.savepoint || String(checkpoint.id);

const TASK_PHASES = [["waiting for the cut", "wait"], ["linking files", "sync"], ["uploading", "async"]];

function Tasks({ found, known, now }) {
  const names = new Map(known.job.vertices.map((vertex) => [vertex.id, vertex.name]));
  const tasks = Object.entries(found.tasks);
  const longest = Math.max(...tasks.map(([, task]) => task.end_to_end_duration), 1) / 1000;
  return html`<${Panel} title=${html`Tasks <span class="faint">${tasks.length}</span>`} label="Tasks" rest=${html`<${PhaseLegend} phases=${TASK_PHASES.map(([name]) => [name])} />`}>
    <${Scroll} label="Tasks of the checkpoint"><table>
      <thead><tr><th scope="col">Task</th><th scope="col">State</th><th scope="col" class="num">Acknowledged</th><th scope="col" class="num">Duration</th><th scope="col" class="bar-cell">Phases</th><th scope="col" class="num">State size</th><th scope="col" class="num">Uploaded</th><th scope="col" class="num">Files</th></tr></thead>
      <tbody>${tasks.map(([id, task]) => {
        const phases = TASK_PHASES.map(([name, field]) => [name, task.minflinkd[field] / 1000]);
        const missing = task.num_acknowledged_subtasks === 0;
        const name = names.get(id) ?? (task.minflinkd["task-id"] || id);
        return html`<tr key=${id}><td class="name">${name}</td><td><${State} state=${task.status || "IN_PROGRESS"} /></td>
          <td class="num">${missing ? "–" : time(task.latest_ack_timestamp, now)}</td><td class="num">${missing ? "–" : millis(task.end_to_end_duration)}</td>
          <td class="bar-cell">${!missing && html`<${Phases} phases=${phases} total=${longest} />`}</td>
          <td class="num">${missing ? "–" : found.external_path ? html`<a href=${stateOf(known.jid, { task: task.minflinkd["task-id"], checkpoint: nameOf(found) })} aria-label=${`${bytes(task.state_size)}, state of ${name}`}>${bytes(task.state_size)}</a>` : bytes(task.state_size)}</td><td class="num">${missing ? "–" : bytes(task.checkpointed_size)}</td><td class="num">${missing ? "–" : whole(task.minflinkd.files)}</td></tr>`;
      })}</tbody>
    </table></${Scroll}>
  </${Panel}>`;
}
