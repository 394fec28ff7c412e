// A job's tasks as a graph in layers, with what each does now. dagre says where everything is.
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Sign } from "./status.js";
import { classes } from "./html.js";
import { UNKNOWN, bytes, plural, rate, seconds, share, short } from "./format.js";
import { useKey } from "./keys.js";

const FULL = { width: 236, height: 112, apart: 56 };
const COMPACT = { width: 168, height: 62, apart: 34 };
const MANY = 14; // tasks from which on each of them shows less
const SMALLEST = 0.5;
const PADDING = 34; // pixels beside the graph

/** `tasks`: {id, name, state, inputs, figures}; `chosen`: the id of one; `onChoose` gets an id or null. */
export function Graph({ tasks, chosen, onChoose }) {
  const box = useRef(null);
  const [width, setWidth] = useState(0);
  const [zoom, setZoom] = useState(null); // null: so that it fits
  const [dagre, setDagre] = useState(null);
  useEffect(() => {
    import("../vendor/dagre.js").then((module) => setDagre(() => module));
    const measured = new ResizeObserver(() => setWidth(Math.max(0, (box.current?.clientWidth ?? 0) - PADDING)));
    measured.observe(box.current);
    return () => measured.disconnect();
  }, []);
  const shape = tasks.map((task) => `${task.id}<${task.inputs.join()}`).join();
  const size = tasks.length < MANY ? FULL : COMPACT;
  const placed = useMemo(() => (dagre && width ? best(dagre, tasks, size, width) : null), [dagre, shape, Math.round(width / 40)]);
  useKey("+", "Larger graph", () => setZoom((z) => Math.min(1.5, (z ?? fit) * 1.2)));
  useKey("-", "Smaller graph", () => setZoom((z) => Math.max(0.25, (z ?? fit) / 1.2)));
  useKey("0", "Graph that fits", () => setZoom(null));
  const fit = placed ? Math.max(SMALLEST, Math.min(1, width / placed.width)) : 1;
  const scale = zoom ?? fit;
  return html`<div class="graph" ref=${box} tabindex="0" role="group" aria-label=${`Graph of ${tasks.length} tasks`}>
    ${placed && html`<div class="sized" style=${{ width: `${Math.max(placed.width * scale, 1)}px`, height: `${placed.height * scale}px` }}>
      <div class="drawn" style=${{ width: `${placed.width}px`, height: `${placed.height}px`, transform: `scale(${scale})` }}>
        <svg width=${placed.width} height=${placed.height} aria-hidden="true">
          <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 .8 7 4 0 7.2Z" class="tip" /></marker></defs>
          ${placed.edges.map((edge) => html`<path key=${edge.key} d=${edge.path} class="edge" marker-end="url(#arrow)" />`)}
        </svg>
        ${tasks.map((task) => html`<${Node} key=${task.id} task=${task} place=${placed.nodes[task.id]} size=${size} chosen=${task.id === chosen} onChoose=${onChoose} />`)}
      </div></div>`}
  </div>
  ${zoom !== null && html`<button class="button quiet small fit" onClick=${() => setZoom(null)}>Fit</button>`}`;
}

const pressure = (held) => (held >= 0.5 ? "bad" : held >= 0.1 ? "warn" : "");

function Node({ task, place, size, chosen, onChoose }) {
  const { state, name, figures } = task;
  const held = figures.backpressured ?? 0;
  const lag = figures.watermark_lag;
  const compact = size === COMPACT;
  if (!place) return null;
  return html`<button class=${classes("node", compact && "compact", pressure(held) && `held-${pressure(held)}`, chosen && "chosen")} aria-pressed=${String(chosen)}
    style=${{ left: `${place.x - size.width / 2}px`, top: `${place.y - size.height / 2}px`, width: `${size.width}px`, height: `${size.height}px` }}
    onClick=${() => onChoose(chosen ? null : task.id)}>
    <span class="top"><${Sign} state=${state} /><span class="clip" title=${name}>${name}</span></span>
    <span class="flow"><span><small>in</small> ${rate(figures.rows_in_per_second)}</span><span><small>out</small> ${rate(figures.rows_out_per_second)}</span></span>
    ${!compact && html`<span class="more"><span><small>batch</small> ${seconds(figures.batch_duration)}</span>
      <span title=${`${plural(figures.state_rows ?? 0, "row")} of state, ${bytes(figures.state_bytes)} of memory`}><small>state</small> ${figures.state_rows > 0 ? short(figures.state_rows) : UNKNOWN}</span>
      <span><small>watermark</small> ${lag === null || lag === undefined ? UNKNOWN : `−${seconds(lag)}`}</span>
      <span class=${pressure(held)}><small>held back</small> ${share(figures.backpressured)}</span></span>`}
    ${held > 0.005 && html`<span class="hold" aria-hidden="true"><i style=${{ width: `${Math.round(held * 100)}%` }}></i></span>`}
  </button>`;
}

/** From left to right, or from top to bottom if it can be read better so. */
function best(dagre, tasks, size, width) {
  const across = layout(dagre, tasks, size, false);
  if (across.width <= width) return across;
  const down = layout(dagre, tasks, size, true);
  return down.width < across.width ? down : across;
}

function layout(dagre, tasks, size, down) {
  const graph = new dagre.Graph();
  graph.setGraph({ rankdir: down ? "TB" : "LR", nodesep: 22, ranksep: down ? 34 : size.apart, marginx: 2, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  const known = new Set(tasks.map((task) => task.id));
  for (const task of tasks) graph.setNode(task.id, { width: size.width, height: size.height });
  for (const task of tasks) for (const input of task.inputs) if (known.has(input)) graph.setEdge(input, task.id);
  dagre.layout(graph);
  const whole = graph.graph();
  const edges = graph.edges().map((edge) => ({ key: `${edge.v} ${edge.w}`, path: curve(graph.edge(edge).points, down) }));
  return { width: whole.width, height: whole.height, nodes: Object.fromEntries(tasks.map(({ id }) => [id, graph.node(id)])), edges };
}

/** A smooth line through the points, level at both ends. */
function curve(points, down) {
  let path = `M${points[0].x} ${points[0].y}`;
  for (let i = 1; i < points.length; i++) {
    const [from, to] = [points[i - 1], points[i]];
    const bend = down ? [from.x, (from.y + to.y) / 2, to.x, (from.y + to.y) / 2] : [(from.x + to.x) / 2, from.y, (from.x + to.x) / 2, to.y];
    path += `C${bend[0]} ${bend[1]} ${bend[2]} ${bend[3]} ${to.x} ${to.y}`;
  }
  return path;
}
