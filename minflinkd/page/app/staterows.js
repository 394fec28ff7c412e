// State as tables: stores with their partitions and largest keys, rows, and what grew. How values become texts is pure.
import { bytes, plural, whole } from "./format.js";
import { html } from "./html.js";
import { Empty, Panel, Scroll } from "./parts.js";

const MOST_FIELDS = 16; // columns of a key or a value; more are shown as JSON
const WIDEST = 120; // characters in a cell

/** A value as people read it: a text as it is, everything else as JSON. Pure. */
export const written = (value) => (typeof value === "string" ? value : JSON.stringify(value));

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

/** The fields of an object, with those of objects in it: {"window.start": …}. Pure. */
export function flat(value, before = "") {
  if (!isObject(value)) return { [before]: value };
  return Object.assign({}, ...Object.entries(value).map(([name, one]) => flat(one, before ? `${before}.${name}` : name)));
}

/** The columns that keys or values make: their fields, in order; `[""]` if they are no objects, or too many. Pure. */
export function columnsOf(values) {
  const there = values.filter((one) => one !== null && one !== undefined);
  if (!there.length || !there.every(isObject)) return [""];
  const fields = [...new Set(there.flatMap((one) => Object.keys(flat(one))))];
  return fields.length > MOST_FIELDS || !fields.length ? [""] : fields;
}

/** How many of the rows are shown, in words. `total`: null if it is not known. Pure. */
export function extent(shown, { total = null, truncated, filtered }) {
  const rows = plural(shown, "row");
  if (!truncated) return filtered ? (shown ? `${rows}: all that match` : "No row matches") : shown ? `All ${rows}` : "No rows";
  if (filtered || total === null) return `The first ${rows}; there are more`;
  return `The first ${whole(shown)} of ${plural(total, "row")}`;
}

/** What is asked for as a key: one text, or fields such as `carrier=AA, origin=JFK` as the endpoint takes them. Pure. */
export function keyOf(text) {
  const parts = text.split(",").map((one) => one.match(/^\s*([\w.]+)\s*=\s*(.*?)\s*$/s));
  return text.trim() && parts.every(Boolean) ? JSON.stringify(Object.fromEntries(parts.map(([, name, value]) => [name, value]))) : text.trim();
}

function Cell({ value, column = "" }) {
  const one = column ? flat(value)[column] : value;
  if (one === undefined) return html`<td></td>`;
  if (one === null) return html`<td class="faint">null</td>`;
  const text = written(one);
  return html`<td class="value" title=${text.length > WIDEST ? text.slice(0, 2000) : undefined}>${text.length > WIDEST ? `${text.slice(0, WIDEST - 1)}…` : text}</td>`;
}

const kindOf = (store) => (store.form ? `${store.kind}, ${store.form}` : store.kind);

export function Stores({ stores }) {
  if (!stores.length) return html`<${Panel} title="Stores" label="Stores"><${Empty}>The task keeps no state in this checkpoint.</${Empty}></${Panel}>`;
  const unreadable = stores.some((store) => store.unreadable);
  return html`<${Panel} title="Stores" label="Stores"><${Scroll} label="Stores"><table>
    <thead><tr><th scope="col">Store</th><th scope="col">Kind</th><th scope="col">Vertex</th><th scope="col" class="num">Rows</th><th scope="col" class="num">Keys</th><th scope="col" class="num">Size</th><th scope="col" class="num" title="The largest partition, as a multiple of the mean">Skew</th><th scope="col">Partitions</th>${unreadable && html`<th scope="col">Not readable</th>`}</tr></thead>
    <tbody>${stores.map((store) => html`<tr key=${store.id}><td class="name mono">${store.id}</td><td>${kindOf(store)}</td><td>${store.vertex ?? "–"}</td>
      <td class="num">${whole(store.totals?.rows)}</td><td class="num">${whole(store.totals?.keys)}</td><td class="num">${bytes(store.totals?.bytes)}</td>
      <td class="num">${store.totals?.skew ?? "–"}</td><td><${Partitions} totals=${store.totals} /></td>${unreadable && html`<td class="reason">${store.unreadable ?? ""}</td>`}</tr>`)}</tbody></table></${Scroll}>
  </${Panel}>`;
}

export const LargestKeys = ({ stores }) => stores.map((store) => store.totals?.["largest-keys"].length > 0 && html`<${Largest} key=${store.id} store=${store} />`);

/** How even the partitions are: a bar for each. */
function Partitions({ totals }) {
  if (!totals?.partitions.length) return "–";
  const most = Math.max(...totals.partitions.map((one) => one.bytes), 1);
  const largest = totals.partitions.find((one) => one.bytes === most) ?? totals.partitions[0];
  const words = `${plural(totals.partitions.length, "partition")}; the largest, ${largest.partition}, has ${bytes(largest.bytes)} in ${plural(largest.rows, "row")}`;
  return html`<span class="evenness" role="img" aria-label=${words} title=${words}>${totals.partitions.map((one) => html`<i key=${one.partition} style=${{ height: `${Math.round((one.bytes / most) * 100)}%` }}></i>`)}</span>`;
}

function Largest({ store }) {
  const keys = store.totals["largest-keys"];
  const columns = columnsOf(keys.map((one) => one.key));
  const all = keys.length >= store.totals.keys;
  return html`<${Panel} title=${`${all ? "Keys" : "Largest keys"} of ${store.id}`} label=${`Largest keys of ${store.id}`} rest=${html`<span class="muted">${all ? `all ${plural(keys.length, "key")}` : `${keys.length} of ${plural(store.totals.keys, "key")}`}, the largest first</span>`}>
    <${Scroll} label=${`Largest keys of ${store.id}`}><table><thead><tr>${columns.map((name) => html`<th key=${name} scope="col">${name || "Key"}</th>`)}<th scope="col" class="num">Rows</th><th scope="col" class="num">Size</th><th scope="col" class="num">Partition</th></tr></thead>
    <tbody>${keys.map((one, i) => html`<tr key=${i}>${columns.map((name) => html`<${Cell} key=${name} value=${one.key} column=${name} />`)}<td class="num">${whole(one.rows)}</td><td class="num">${bytes(one.bytes)}</td><td class="num">${one.partition}</td></tr>`)}</tbody></table></${Scroll}>
  </${Panel}>`;
}

/** `rows` of a store. `filtered`: only some keys were asked for. */
export function Rows({ found, filtered }) {
  const { rows, store } = found;
  if (store === null) return null;
  const total = found.stores.find((one) => one.id === store)?.totals?.rows ?? null;
  const keys = columnsOf(rows.map((row) => row.key));
  const values = columnsOf(rows.map((row) => row.value));
  return html`<${Panel} title=${`Rows of ${store}`} label="Rows" rest=${html`<span class="muted">${extent(rows.length, { total, truncated: found.truncated, filtered })}</span>`}>
    ${rows.length > 0 && html`<${Scroll} label=${`Rows of ${store}`}><table class="rows"><thead>
      <tr><th scope="colgroup" colspan=${keys.length}>Key</th><th scope="colgroup" colspan=${values.length}>Value</th><th colspan="2"><span class="unseen">Where, and how large</span></th></tr>
      <tr>${keys.map((name) => html`<${Name} key=${`k${name}`} name=${name} instead="key" />`)}${values.map((name) => html`<${Name} key=${`v${name}`} name=${name} instead="value" />`)}<th scope="col" class="num">Partition</th><th scope="col" class="num">Size</th></tr></thead>
      <tbody>${rows.map((row, i) => html`<tr key=${i}>${row.cut
        ? html`<td colspan=${keys.length + values.length} class="muted">Key or value is longer than 16,384 characters, and is not shown.</td>`
        : html`${keys.map((name) => html`<${Cell} key=${`k${name}`} value=${row.key} column=${name} />`)}${values.map((name) => html`<${Cell} key=${`v${name}`} value=${row.value} column=${name} />`)}`}
        <td class="num">${row.partition}</td><td class="num">${bytes(row.bytes)}</td></tr>`)}</tbody></table></${Scroll}>`}
  </${Panel}>`;
}

const Name = ({ name, instead }) => html`<th scope="col">${name || html`<span class="unseen">${instead}</span>`}</th>`;

/** What a SELECT has answered. */
export function Result({ found }) {
  const { columns, types, rows } = found.result;
  return html`<${Panel} title="Result" label="Result" rest=${html`<span class="muted">${extent(rows.length, { truncated: found.truncated })}${found.store !== null && `, of store ${found.store}`}</span>`}>
    ${rows.length > 0 && html`<${Scroll} label="Result"><table><thead><tr>${columns.map((name, i) => html`<th key=${i} scope="col" title=${types[i]}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((row, i) => html`<tr key=${i}>${row.map((value, k) => html`<${Cell} key=${k} value=${value} />`)}</tr>`)}</tbody></table></${Scroll}>`}
  </${Panel}>`;
}

const both = (before, after, form) => `${form(before)} → ${form(after)}`;

export function Growth({ found }) {
  if (!found.stores.length) return html`<${Panel} title="Growth"><${Empty}>The task keeps no state in these checkpoints.</${Empty}></${Panel}>`;
  return html`<${Panel} title="What grew" label="What grew"><${Scroll} label="What grew"><table>
      <thead><tr><th scope="col">Store</th><th scope="col">Kind</th><th scope="col" class="num">Rows</th><th scope="col" class="num">Size</th><th scope="col" class="num">Keys added</th><th scope="col" class="num">Removed</th><th scope="col" class="num">Changed</th></tr></thead>
      <tbody>${found.stores.map((one) => html`<tr key=${one.store.id}><td class="name mono">${one.store.id}</td><td>${kindOf(one.store)}${one.store.unreadable && html`<div class="muted reason">${one.store.unreadable}</div>`}</td>
        <td class="num">${both(one.before?.rows, one.after?.rows, whole)}</td><td class="num">${both(one.before?.bytes, one.after?.bytes, bytes)}</td>
        <td class="num">${whole(one["keys-added"])}</td><td class="num">${whole(one["keys-removed"])}</td><td class="num">${whole(one["keys-changed"])}</td></tr>`)}</tbody></table></${Scroll}>
    </${Panel}>
    ${found.stores.map((one) => one["grown-keys"].length > 0 && html`<${Grown} key=${one.store.id} one=${one} />`)}`;
}

function Grown({ one }) {
  const columns = columnsOf(one["grown-keys"].map((each) => each.key));
  const label = `Keys of ${one.store.id} that grew most`;
  return html`<${Panel} title=${label} label=${label}><${Scroll} label=${label}><table><thead><tr>${columns.map((name) => html`<th key=${name} scope="col">${name || "Key"}</th>`)}<th scope="col" class="num">Rows</th><th scope="col" class="num">Size</th></tr></thead>
    <tbody>${one["grown-keys"].map((each, i) => html`<tr key=${i}>${columns.map((name) => html`<${Cell} key=${name} value=${each.key} column=${name} />`)}<td class="num">${both(each["rows-before"], each["rows-after"], whole)}</td><td class="num">${both(each["bytes-before"], each["bytes-after"], bytes)}</td></tr>`)}</tbody></table></${Scroll}></${Panel}>`;
}
