// The partitions of a task as bars side by side, so that an uneven one is seen at a glance. Asked for while it is shown.
import { get } from "./api.js";
import { plural, seconds, short, whole } from "./format.js";
import { classes, html, useEffect, useState } from "./html.js";

const EVERY = 3000; // milliseconds
const UNEVEN = 3; // times the mean of the others: as in the diagnosis

/** The partitions that Spark has told of: since the query was started, and in the last micro-batch. */
export const partitionsOf = (details) =>
  details.subtasks
    .filter((one) => one.minflinkd)
    .map(({ subtask, metrics, minflinkd }) => ({
      index: subtask,
      time: minflinkd["total-duration"] / 1000,
      rows: metrics["read-records"],
      written: metrics["write-records"],
      last: { time: minflinkd.duration / 1000, rows: minflinkd["read-records"] },
    }));

/** The partition with the most of something, the mean of the others, and whether that is uneven; null if it is alone. */
export function uneven(partitions, name) {
  if (partitions.length < 2) return null;
  const most = partitions.reduce((a, b) => (b[name] > a[name] ? b : a));
  const others = (partitions.reduce((sum, one) => sum + one[name], 0) - most[name]) / (partitions.length - 1);
  return { index: most.index, most: most[name], others, uneven: most[name] >= UNEVEN * others && most[name] > 0 };
}

export function Partitions({ jid, vertex }) {
  const [found, setFound] = useState(null);
  const { id, minflinkd } = vertex;
  const attempt = vertex["end-time"] < 0 ? minflinkd["attempt-id"] : null;
  useEffect(() => {
    setFound(null);
    if (!attempt) return undefined;
    const control = new AbortController();
    const look = () => document.hidden || get(`/jobs/${jid}/vertices/${id}`, { signal: AbortSignal.any([control.signal, AbortSignal.timeout(30000)]) }).then((details) => setFound(partitionsOf(details)), () => {});
    look();
    const timer = setInterval(look, EVERY);
    return () => {
      clearInterval(timer);
      control.abort();
    };
  }, [jid, id, attempt]);
  if (!found?.length) return null;
  return html`<div class="partitions">
    <${Bars} partitions=${found} name="time" title="Time by partition" form=${seconds} />
    <${Bars} partitions=${found} name="rows" title="Rows read by partition" form=${short} />
  </div>`;
}

function Bars({ partitions, name, title, form }) {
  const top = Math.max(...partitions.map((one) => one[name]), 1e-9);
  const most = uneven(partitions, name);
  const words = most ? `${most.index} has ${form(most.most)}, the others ${form(most.others)} on average` : form(partitions[0][name]);
  return html`<figure>
    <figcaption><span>${title}</span> <span class=${classes("muted", most?.uneven && "warn")}>${words}</span></figcaption>
    <div class="bars" role="img" aria-label=${`${title}, ${plural(partitions.length, "partition")}: ${words}`}>
      ${partitions.map((one) => html`<i key=${one.index} class=${classes(most?.uneven && one.index === most.index && "warn")} style=${{ height: `${Math.max(2, (100 * one[name]) / top)}%` }} title=${told(one)}></i>`)}
    </div>
  </figure>`;
}

const told = (one) =>
  `Partition ${one.index} since the query was started: ${seconds(one.time)}, ${whole(one.rows)} rows read, ${whole(one.written)} written; in the last micro-batch ${seconds(one.last.time)}, ${plural(one.last.rows, "row")}`;
