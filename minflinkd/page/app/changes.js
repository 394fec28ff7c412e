// What a new version changes, in the daemon's words and as two documents side by side.
import { folded, sideBySide } from "./diff.js";
import { plural } from "./format.js";
import { classes, html, useMemo, useState } from "./html.js";
import { Panel, Scroll } from "./parts.js";
import { Sign } from "./status.js";

const SIGNS = { added: ["+", "good"], removed: ["−", "bad"], changed: ["~", "warn"] };
const FATES = { kept: ["calm", "is kept"], lost: ["problem", "is lost"], incompatible: ["problem", "does not fit"] };

export function Changes({ changes }) {
  const { vertices, settings, state } = changes;
  const nothing = !vertices.length && !settings.length && !state.length;
  return html`<${Panel} title="What changes" label="What changes"><div class="pad stack">
    ${nothing && html`<p>Nothing: it is the version that runs.</p>`}
    ${vertices.length > 0 && html`<ul class="changed" aria-label="Vertices">${vertices.map((one) => {
      const [sign, tone] = SIGNS[one.change] ?? ["~", "warn"];
      return html`<li key=${one.vertex}><b class="mono ${tone}" aria-hidden="true">${sign}</b><span><strong>${one.vertex}</strong> is ${one.change}${one.fields.length > 0 && html`<span class="muted">: ${one.fields.join(", ")}</span>`}</span></li>`;
    })}</ul>`}
    ${state.length > 0 && html`<ul class="changed" aria-label="State">${state.map((one) => {
      const [sign, words] = FATES[one.fate] ?? ["warning", one.fate];
      return html`<li key=${`${one.vertex} ${one.kind}`}><${Sign} state=${sign} /><span>The state of <strong>${one.vertex}</strong> <span class="muted">(${one.kind})</span> ${words}${one.reason && html`<span class="muted">: ${one.reason}</span>`}</span></li>`;
    })}</ul>`}
    ${settings.length > 0 && html`<${Scroll} label="Settings"><table><thead><tr><th scope="col">Setting</th><th scope="col">Now</th><th scope="col">Then</th></tr></thead>
      <tbody>${settings.map((one) => html`<tr key=${one.path}><td><code>${one.path}</code></td><td class="mono muted">${one.before || "not set"}</td><td class="mono">${one.after || "not set"}</td></tr>`)}</tbody></table></${Scroll}>`}
  </div></${Panel}>`;
}

/** Whether the daemon would refuse it without leave. Pure. */
export const loses = (changes) => changes.state.some((one) => one.fate !== "kept");

const written = (document) => JSON.stringify(document, null, 2);

export function Documents({ before, after }) {
  const [all, setAll] = useState(false);
  const rows = useMemo(() => sideBySide(written(before), written(after)), [before, after]);
  const changed = rows.filter(([left, right]) => left !== right).length;
  const shown = all ? rows : folded(rows);
  return html`<${Panel} title="The two documents" label="The two documents" rest=${html`<span class="muted">${changed ? plural(changed, "line differs", "lines differ") : "no line differs"}</span>
      <button class="button quiet small" aria-pressed=${String(all)} onClick=${() => setAll(!all)}>${all ? "Only changes" : "Everything"}</button>`}>
    <${Scroll} label="The documents side by side"><table class="diff"><thead><tr><th scope="col">Runs now</th><th scope="col">New version</th></tr></thead>
      <tbody>${shown.map((row, i) => (typeof row === "number"
        ? html`<tr key=${i} class="fold"><td colspan="2">${plural(row, "equal line")}</td></tr>`
        : html`<tr key=${i}><${Side} text=${row[0]} mark=${row[0] !== row[1] && "left"} /><${Side} text=${row[1]} mark=${row[0] !== row[1] && "right"} /></tr>`))}</tbody></table></${Scroll}>
  </${Panel}>`;
}

function Side({ text, mark }) {
  return html`<td class=${classes("mono", mark && text !== null && (mark === "left" ? "gone" : "new"))}>${mark && text !== null && html`<span class="unseen">${mark === "left" ? "removed: " : "added: "}</span>`}${text ?? ""}</td>`;
}
