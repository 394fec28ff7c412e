// A job: its graph with what each task does now, and its figures over time.
import { Autoscaler } from "../app/autoscaler.js";
import { Chart } from "../app/chart.js";
import { Diagnosis } from "../app/diagnosis.js";
import { Graph } from "../app/graph.js";
import { ago, bytes, millis, plural, rate, seconds, share, short, time, whole } from "../app/format.js";
import { html } from "../app/html.js";
import { JobFrame } from "../app/jobframe.js";
import { RANGES, seriesOf, showRange, spanOf } from "../app/job.js";
import { MarkStrip } from "../app/marks.js";
import { Partitions } from "../app/partitions.js";
import { Choice, Figures, Panel, Phases, PhaseLegend } from "../app/parts.js";
import { setQuery, stateOf, to } from "../app/router.js";
import { State } from "../app/status.js";

const SERIES = ["rows_in_per_second", "rows_out_per_second", "batch_duration", "state_rows", "state_bytes", "watermark_lag", "backpressured", "output_backlog"];
const PHASES = ["latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitOffsets"];
const MOST_LINES = 8;

export function JobPage({ jid, query }) {
  return html`<${JobFrame} jid=${jid} tab="">${(known, now) => html`<${Shown} known=${known} now=${now} chosen=${query.task ?? null} />`}</${JobFrame}>`;
}

function Shown({ known, now, chosen }) {
  const { job, figures } = known;
  const tasks = tasksOf(job, figures);
  const task = tasks.find((one) => one.id === chosen);
  const choose = (id) => setQuery({ task: id });
  return html`<${Summary} known=${known} tasks=${tasks} now=${now} />
    <${Diagnosis} job=${job} checkpoints=${known.checkpoints} now=${now} />
    <${Autoscaler} job=${job} now=${now} />
    <${Panel} title="Tasks" label="Graph" className="graph-panel" rest=${html`<${PressureLegend} />`}>
      <${Graph} tasks=${tasks} chosen=${task?.id} onChoose=${choose} />
    </${Panel}>
    ${task && html`<${TaskPanel} jid=${job.jid} task=${task} now=${now} onClose=${() => choose(null)} />`}
    <${Charts} known=${known} tasks=${tasks} task=${task} now=${now} />`;
}

/** Each task with its latest figures; without a sample, those of the job itself. */
export function tasksOf(job, figures) {
  const inputs = new Map(job.plan.nodes.map((node) => [node.id, node.inputs.map((input) => input.id)]));
  const ids = new Map(job.vertices.map((vertex) => [vertex.id, vertex.minflinkd["task-id"]]));
  return job.vertices.map((vertex) => {
    const found = vertex.minflinkd;
    const id = found["task-id"];
    const latest = Object.fromEntries(SERIES.map((name) => [name, figures.last(seriesOf(id, name))]));
    latest.batch_duration ??= found.batches > 0 ? found["batch-duration"] / 1000 : null;
    latest.state_rows ??= found["state-rows"];
    latest.state_bytes ??= found["state-bytes"];
    latest.output_backlog ??= found["output-backlog"];
    latest.backpressured ??= found.backpressured ? 1 : 0;
    return { id, name: vertex.name, state: vertex.status, inputs: (inputs.get(vertex.id) ?? []).map((one) => ids.get(one)), figures: latest, vertex };
  });
}

function PressureLegend() {
  return html`<span class="legend"><span class="warn"><i></i><span class="muted">held back by its readers 10 %</span></span><span class="bad"><i></i><span class="muted">50 %</span></span></span>`;
}

function Summary({ known, tasks, now }) {
  const { job, checkpoints, figures } = known;
  const last = checkpoints?.latest.completed;
  const lags = tasks.map((task) => task.figures.watermark_lag).filter((lag) => lag !== null && lag !== undefined);
  const memory = tasks.reduce((sum, task) => sum + (task.figures.state_bytes ?? 0), 0);
  const rows = tasks.reduce((sum, task) => sum + (task.figures.state_rows ?? 0), 0);
  const running = tasks.filter((task) => task.state === "RUNNING").length;
  const pending = job.minflinkd["pending-records"];
  return html`<${Figures} figures=${[
    ["Rows in", rate(figures.last("rows_in_per_second")), `${short(job.minflinkd["source-records"])} since it began`],
    ["Rows out", rate(figures.last("rows_out_per_second")), `${short(job.minflinkd["sink-records"])} since it began`],
    ...(pending === null || pending === undefined ? [] : [["Waiting in Kafka", short(pending), pending === 1 ? "record" : "records"]]),
    ["Watermark lag", lags.length ? seconds(Math.max(...lags)) : "–", lags.length ? "of the slowest task" : "no task has one"],
    ["State", plural(rows, "row"), `${bytes(memory)} of memory`],
    ["Last checkpoint", last ? ago(last.latest_ack_timestamp, now) : "–", last ? `took ${millis(last.end_to_end_duration)}` : "none yet"],
    ["Tasks running", `${running} of ${tasks.length}`, job.minflinkd["next-restart"] ? `next start ${time(job.minflinkd["next-restart"], now)}` : ""],
  ]} />`;
}

function TaskPanel({ jid, task, now, onClose }) {
  const { vertex, figures } = task;
  const found = vertex.minflinkd;
  const phases = Object.entries(found.phases);
  return html`<${Panel} title=${html`<span class="row"><span>${task.name}</span> <${State} state=${task.state} /></span>`} label=${`Task ${task.name}`}
    rest=${html`<button class="button quiet small" onClick=${onClose}>Close</button>`}>
    <div class="pad task-facts">
      <dl class="pairs">
        <dt>Attempt</dt><dd>${found["attempt-number"] + 1}${vertex["start-time"] > 0 ? html`, since ${time(vertex["start-time"], now)}` : ""}</dd>
        <dt>TaskManager</dt><dd>${found["taskmanager-id"] ? html`<a href=${to("taskmanagers", found["taskmanager-id"])}>${found["taskmanager-id"]}</a>` : "–"}</dd>
        <dt>Vertices</dt><dd>${found.vertices.join(", ")}</dd>
        <dt>Parallelism</dt><dd>${vertex.parallelism}</dd>
      </dl>
      <dl class="pairs">
        <dt>Rows read</dt><dd>${whole(vertex.metrics["read-records"])}</dd>
        <dt>Rows written</dt><dd>${whole(vertex.metrics["write-records"])}</dd>
        <dt>Micro-batches</dt><dd>${whole(found.batches)}${found.batches > 0 ? html`, the last took ${seconds(found["batch-duration"] / 1000)}` : ""}</dd>
        <dt>State</dt><dd>${plural(figures.state_rows ?? 0, "row")}, ${bytes(figures.state_bytes)} of memory${figures.state_rows > 0 && html`: <a href=${stateOf(jid, { task: task.id })}>look at it</a>`}</dd>
      </dl>
      <dl class="pairs">
        <dt>Watermark</dt><dd>${found.watermark ? time(found.watermark, now) : "–"}</dd>
        <dt>Held back</dt><dd>${share(figures.backpressured)}</dd>
        <dt>Output backlog</dt><dd>${bytes(figures.output_backlog)}</dd>
        ${Object.entries(found.pending ?? {}).map(([source, told]) => html`<dt>${source} in Kafka</dt><dd><${Pending} told=${told} /></dd>`)}
        ${phases.length > 0 && html`<dt>Start</dt><dd><${Phases} phases=${phases} /><${PhaseLegend} phases=${phases} /></dd>`}
      </dl>
      <${Partitions} jid=${jid} vertex=${vertex} />
    </div>
  </${Panel}>`;
}

const MOST_PARTITIONS = 8;

/** Records of Kafka that wait; the partitions with most of them. */
function Pending({ told }) {
  const parts = Object.entries(told.parts).filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const named = parts.slice(0, MOST_PARTITIONS).map(([part, count]) => `${part} ${whole(count)}`).join(", ");
  return html`${plural(told.records, "record")} wait${told.records === 1 ? "s" : ""}${named && html`<br /><small class="muted">${named}${parts.length > MOST_PARTITIONS ? ", …" : ""}</small>`}`;
}

const colour = (i) => `var(--series-${1 + (i % MOST_LINES)})`;

function Charts({ known, tasks, task, now }) {
  const { figures, range, marks } = known;
  const span = spanOf(known, now);
  const times = figures.times();
  const common = { times, range: span, marks };
  const shown = task ? [task] : tasks;
  const lines = (name) =>
    shown
      .map((one) => ({ name: one.name, values: figures.get(seriesOf(one.id, name)), colour: colour(tasks.indexOf(one)) }))
      .filter((one) => one.values.some((value) => value !== null && value !== 0))
      .map((one, place) => ({ one, place, most: top(one.values) }))
      .sort((a, b) => b.most - a.most)
      .slice(0, MOST_LINES)
      .sort((a, b) => a.place - b.place)
      .map(({ one }, i) => (tasks.length > MOST_LINES ? { ...one, colour: colour(i) } : one)); // no two of a chart have the same
  const slowest = task ?? [...tasks].sort((a, b) => (b.figures.batch_duration ?? 0) - (a.figures.batch_duration ?? 0))[0];
  const phases = PHASES.map((name, i) => ({ name, values: slowest ? figures.get(seriesOf(slowest.id, `phase_${name}`)) : [], colour: colour(i) })).filter((one) => one.values.length);
  const pending = figures.get("pending_records");
  const ofJob = (name, title, i) => ({ name: title, values: task ? figures.get(seriesOf(task.id, name)) : figures.get(name), colour: colour(i) });
  return html`<${Panel} title=${task ? `Figures of ${task.name}` : "Figures"} label="Figures" rest=${html`<${Choice} label="Range" value=${range} onChange=${showRange} options=${RANGES.map(([name, words]) => [name, words])} />`}>
    <div class="pad"><${MarkStrip} marks=${marks} range=${span} />
    <div class="charts">
      <${Chart} ...${common} title="Rows per second" form=${rate} series=${[ofJob("rows_in_per_second", "in", 0), ofJob("rows_out_per_second", "out", 1)]} />
      <${Chart} ...${common} title="Micro-batch" note=${cut(shown)} form=${seconds} series=${lines("batch_duration")} />
      <${Chart} ...${common} title="Where a micro-batch spends its time" note=${slowest?.name} form=${seconds} series=${phases} stack=${true} />
      <${Chart} ...${common} title="Held back by readers" form=${share} series=${lines("backpressured")} />
      <${Chart} ...${common} title="Rows of state" form=${short} series=${lines("state_rows")} />
      <${Chart} ...${common} title="Watermark lag" form=${seconds} series=${lines("watermark_lag")} />
      ${pending.some((value) => value !== null && value !== undefined) && html`<${Chart} ...${common} title="Records that wait in Kafka" form=${short} series=${[{ name: "for the whole job", values: pending, colour: colour(0) }]} />`}
      <${Chart} ...${common} title="Backlog in exchanges" form=${bytes} binary=${true} series=${lines("output_backlog")} />
      <${Chart} ...${common} title="Checkpoint duration" form=${seconds} series=${[{ name: "of the whole job", values: figures.get("checkpoint_duration"), colour: colour(0) }]} />
    </div></div>
  </${Panel}>`;
}

const top = (values) => values.reduce((most, value) => Math.max(most, value ?? 0), 0);
const cut = (shown) => (shown.length > MOST_LINES ? `the ${MOST_LINES} longest` : "");
