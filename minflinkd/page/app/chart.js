// A chart over time. All charts of a page share one time axis and one crosshair, and show the same marks.
import uPlot from "../vendor/uplot.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { colourOfMark } from "./marks.js";
import { time } from "./format.js";

const HEIGHT = 148;
const CROSSHAIR = "page";
const NEAR = 5; // pixels from a mark within which its text is shown
const POWERS = Array.from({ length: 50 }, (_, i) => 2 ** i); // steps of an axis of bytes

/** `series`: [{name, values, colour}]; `stack`: they are parts of a whole. `form` writes a value, `range` is [from, to] in seconds. */
export function Chart({ title, series, times, range, form, marks = [], stack = false, binary = false, note }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [at, setAt] = useState(null); // the index under the crosshair
  const latest = useRef(null);
  const data = useMemo(() => [times, ...(stack ? stacked(series) : series.map((one) => one.values))], [times, series]);
  latest.current = { range, marks, form };
  const names = series.map((one) => one.name).join("\n");

  useEffect(() => {
    const draw = () => {
      plot.current?.destroy();
      plot.current = make(box.current, series, data, { latest, stack, binary, setAt });
    };
    draw();
    const fitted = new ResizeObserver(() => box.current && plot.current?.setSize({ width: box.current.clientWidth, height: HEIGHT }));
    fitted.observe(box.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", draw);
    dark.addEventListener("change", draw);
    return () => {
      fitted.disconnect();
      removeEventListener("themechange", draw);
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [names]);
  useEffect(() => plot.current?.setData(data), [data, range[0], range[1], marks]);

  const nothing = !series.some((one) => one.values.some((value) => value !== null && value !== undefined));
  const index = at ?? times.length - 1;
  const near = at === null ? null : marks.find((mark) => Math.abs(mark.at / 1000 - times[at]) <= nearTo(plot.current));
  return html`<figure class="chart">
    <figcaption><h3>${title}</h3>${note && html`<span class="faint">${note}</span>`}
      <span class="at faint">${at === null ? "" : time(times[at] * 1000)}</span></figcaption>
    <div ref=${box} class="plot" hidden=${nothing} tabindex="0" role="img" aria-label=${inWords(title, series, form)} onKeyDown=${(event) => step(event, plot.current, at, times)}></div>
    ${nothing && html`<p class="none">Nothing was measured in this time</p>`}
    <div class="legend">
      ${series.map((one) => html`<span key=${one.name} title=${one.name}><i style=${{ color: one.colour }}></i><span class="clip">${one.name}</span><b>${form(one.values[index])}</b></span>`)}
      ${near && html`<span class="near" style=${{ color: colourOfMark(near.kind) }}>${near.text}</span>`}
    </div>
  </figure>`;
}

const nearTo = (plot) => (plot ? Math.abs(plot.posToVal(NEAR, "x") - plot.posToVal(0, "x")) : 0);

function inWords(title, series, form) {
  const last = series.map((one) => `${one.name} ${form(one.values.at(-1))}`).join(", ");
  return `${title}. Now: ${last || "nothing is known"}. The arrow keys move along the time.`;
}

/** Move the crosshair of all charts with the arrow keys. */
function step(event, plot, at, times) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !plot || !times.length) return;
  event.preventDefault();
  const next = Math.max(0, Math.min((at ?? times.length - 1) + by * (event.shiftKey ? 12 : 1), times.length - 1));
  plot.setCursor({ left: plot.valToPos(times[next], "x"), top: 20 }, true, true);
}

/** Sums from the first series on, the largest first, so that each is drawn over the one before. */
function stacked(series) {
  const length = series[0]?.values.length ?? 0;
  const sums = new Array(length).fill(null);
  return series
    .map(({ values }) => {
      for (let i = 0; i < length; i++) if (values[i] !== null && values[i] !== undefined) sums[i] = (sums[i] ?? 0) + values[i];
      return sums.slice();
    });
}

/** Canvas knows no variables of CSS: the colour as the browser computes it. */
function computed(colour) {
  const probe = document.createElement("i");
  probe.style.color = colour;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faded = (colour, share) => computed(`color-mix(in srgb, ${colour} ${share}%, transparent)`);

function make(box, series, data, { latest, stack, binary, setAt }) {
  const text = computed("var(--faint)");
  const grid = { stroke: computed("var(--line)"), width: 1 };
  const axis = { stroke: text, font: '11px "Inter", system-ui, sans-serif', ticks: { show: false }, grid };
  const lines = series.map((one, i) => ({
    label: one.name,
    stroke: computed(one.colour),
    width: stack ? 1 : 1.5,
    fill: stack ? faded(one.colour, 45) : series.length === 1 ? faded(one.colour, 9) : undefined,
    points: { show: (plot, n) => plot.data[n].filter((value) => value !== null && value !== undefined).length < 3 },
    spanGaps: false,
    order: stack ? -i : 0,
  }));
  return new uPlot(
    {
      width: box.clientWidth,
      height: HEIGHT,
      padding: [8, 14, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: CROSSHAIR, setSeries: false },
        drag: { x: false, y: false },
        y: false,
        points: { size: 6, width: 1.5, fill: computed("var(--surface)") },
      },
      scales: {
        x: { time: true, range: () => latest.current.range },
        y: { range: (_, low, high) => [Math.min(low ?? 0, 0), high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 70, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step)) },
        { ...axis, size: 62, space: 34, gap: 6, incrs: binary ? POWERS : undefined, values: (_, splits) => splits.map((value) => latest.current.form(value)) },
      ],
      series: [{}, ...lines],
      bands: stack ? series.slice(1).map((_, i) => ({ series: [i + 2, i + 1] })) : undefined,
      hooks: {
        draw: [(plot) => drawMarks(plot, latest.current.marks)],
        setCursor: [(plot) => setAt(plot.cursor.idx ?? null)],
      },
    },
    data,
    box,
  );
}

function clock(at, step) {
  const then = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = `${two(then.getHours())}:${two(then.getMinutes())}`;
  return step < 60 ? `${minutes}:${two(then.getSeconds())}` : minutes;
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = Math.round(plot.valToPos(mark.at / 1000, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = computed(colourOfMark(mark.kind));
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
