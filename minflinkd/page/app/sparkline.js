// A small chart without axes, for a row of a table.
import { html } from "./html.js";

const WIDTH = 120;
const HEIGHT = 22;

/** `values`: null where nothing is known, which is a gap. */
export function Sparkline({ values, label, colour = "var(--series-1)", most = 180 }) {
  const shown = values.slice(-most);
  const top = Math.max(...shown.map((value) => value ?? 0), 1e-9);
  const line = path(shown, top);
  return html`<svg class="spark" width=${WIDTH} height=${HEIGHT} viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${label} style=${{ color: colour }}>
    ${line.map(({ d, first, last }, i) => html`<g key=${i}><path class="under" d="${d}L${last} ${HEIGHT}L${first} ${HEIGHT}Z" /><path d=${d} /></g>`)}
  </svg>`;
}

function path(values, top) {
  const parts = [];
  let part = null;
  const step = WIDTH / Math.max(values.length - 1, 1);
  values.forEach((value, i) => {
    if (value === null || value === undefined) {
      part = null;
      return;
    }
    const x = (i * step).toFixed(1);
    const y = (HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    if (part === null) {
      part = { d: `M${x} ${y}`, first: x, last: x };
      parts.push(part);
    } else {
      part.d += `L${x} ${y}`;
      part.last = x;
    }
  });
  return parts;
}
