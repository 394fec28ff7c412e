// What has happened to a job, as marks on the time axis of its charts.
import { firstLine, time } from "./format.js";
import { html } from "./html.js";

const KINDS = {
  submitted: ["var(--off)", "submitted"],
  restart: ["var(--warn)", "restart"],
  recovered: ["var(--good)", "recovered"],
  "hot-restart": ["var(--busy)", "hot restart"],
  rescale: ["var(--busy)", "rescale"],
  "checkpoint-failed": ["var(--bad)", "checkpoint failed"],
  savepoint: ["var(--accent)", "savepoint"],
  exception: ["var(--bad)", "exception"],
  ended: ["var(--off)", "ended"],
};

export const colourOfMark = (kind) => KINDS[kind]?.[0] ?? "var(--off)";
export const nameOfMark = (kind) => KINDS[kind]?.[1] ?? kind;

/** The marks within a range of seconds as a strip of signs above the charts: each can be reached and read. */
export function MarkStrip({ marks, range }) {
  const [from, to] = range;
  const shown = marks.filter(({ at }) => at / 1000 >= from && at / 1000 <= to).slice(-60);
  if (!shown.length) return null;
  const kinds = [...new Set(shown.map((mark) => mark.kind))];
  return html`<div class="marks">
    <ul aria-label="What has happened" class="strip">${shown.map((mark) => html`<li key=${`${mark.kind} ${mark.at}`}
      style=${{ left: `${(100 * (mark.at / 1000 - from)) / (to - from)}%`, color: colourOfMark(mark.kind) }}
      title=${`${time(mark.at)} ${nameOfMark(mark.kind)}: ${firstLine(mark.text)}`}><span class="unseen">${time(mark.at)} ${nameOfMark(mark.kind)}: ${firstLine(mark.text)}</span></li>`)}</ul>
    <span class="legend">${kinds.map((kind) => html`<span key=${kind}><i style=${{ color: colourOfMark(kind) }}></i>${nameOfMark(kind)}</span>`)}</span>
  </div>`;
}
