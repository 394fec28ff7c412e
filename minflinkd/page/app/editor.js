// An editor for job files: lines with numbers, files that are dropped on it, and the faults at their lines.
import { sorted } from "./artifacts.js";
import { plural } from "./format.js";
import { classes, html, useRef, useState } from "./html.js";
import { Sign } from "./status.js";

const LARGEST = 262_144;

/** The line of a fault: of its path, or of the nearest part around it that has one. Pure. */
export function lineOf(fault, lines) {
  if (fault.line) return fault.line;
  for (let path = fault.path; path; path = path.replace(/(\.[^.[\]]*|\[[^\]]*\]|^[^.[\]]+)$/, "")) {
    if (lines[path]) return lines[path];
    if (!/[.[]/.test(path)) break;
  }
  return lines.job ?? null;
}

/** JSON or YAML: by the name of a file, or by how a text begins. Pure. */
export const syntaxOf = (text, name = "") => (/\.json$/i.test(name) || (!/\.ya?ml$/i.test(name) && /^\s*\{/.test(text)) ? "json" : "yaml");

/** `faults`: [{path, problem, hint, line}]. `onFiles` gets what is dropped or chosen: the job file, artifacts, or both. */
export function Editor({ text, onText, onFiles, faults, lines, label, disabled }) {
  const area = useRef(null);
  const gutter = useRef(null);
  const file = useRef(null);
  const [over, setOver] = useState(false);
  const [problem, setProblem] = useState("");
  const at = new Map();
  for (const fault of faults) at.set(lineOf(fault, lines), fault);
  const count = text.split("\n").length;
  const take = (files) => {
    const [job] = sorted([...files]);
    if (disabled || !files.length) return;
    if (job?.size > LARGEST) return setProblem(`${job.name} has ${job.size.toLocaleString("en")} bytes; ${LARGEST.toLocaleString("en")} are the most here. Use the command line.`);
    setProblem("");
    onFiles(files);
  };
  const dropped = (event) => {
    event.preventDefault();
    setOver(false);
    take([...event.dataTransfer.files]);
  };
  const hover = (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    setOver(true);
  };
  const show = (line) => {
    const rows = text.split("\n");
    const begin = rows.slice(0, line - 1).reduce((sum, row) => sum + row.length + 1, 0);
    area.current.focus();
    area.current.setSelectionRange(begin, begin + (rows[line - 1] ?? "").length);
    area.current.scrollTop = Math.max(0, (line - 6) * parseFloat(getComputedStyle(area.current).lineHeight));
  };
  return html`<div class="editing">
    <div class=${classes("editor", over && "over")} onDragOver=${hover} onDragLeave=${() => setOver(false)} onDrop=${dropped}>
      <div class="gutter" ref=${gutter} aria-hidden="true">${Array.from({ length: count }, (_, i) => html`<span key=${i} class=${at.has(i + 1) ? "bad" : ""} title=${at.get(i + 1)?.problem}>${i + 1}</span>`)}</div>
      <textarea ref=${area} aria-label=${label} spellcheck=${false} wrap="off" autocapitalize="off" disabled=${disabled} value=${text} placeholder="Drop a job file here, together with the files that it names as artifacts, or write one"
        aria-invalid=${faults.length ? "true" : undefined} aria-describedby=${faults.length ? "faults" : undefined}
        onInput=${(event) => onText(event.target.value)} onScroll=${(event) => { gutter.current.scrollTop = event.target.scrollTop; }}></textarea>
    </div>
    <div class="row"><input ref=${file} type="file" class="unseen" multiple accept=".yaml,.yml,.json,.py,.zip,.whl,.jar" tabindex="-1" aria-label="Job file and artifacts" onChange=${(event) => { take([...event.target.files]); event.target.value = ""; }} />
      <button type="button" class="button small" disabled=${disabled} onClick=${() => file.current.click()}>Choose files</button>
      <span class="faint">A job file in YAML or JSON, and its artifacts; or drop them on the editor.</span></div>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    ${faults.length > 0 && html`<section class="faults" id="faults" aria-label="Faults" role="alert"><strong class="bad">${plural(faults.length, "fault")}. Nothing was started.</strong>
      <ul>${faults.map((fault, i) => {
        const line = lineOf(fault, lines);
        return html`<li key=${i}><${Sign} state="problem" /><div><code>${fault.path}</code> ${line && html`<button type="button" class="button quiet small" onClick=${() => show(line)}>line ${line}</button>`}
          <div>${fault.problem}</div>${fault.hint && html`<div class="muted">${fault.hint}</div>`}
          ${fault.traceback && html`<details><summary>Traceback</summary><pre class="trace" tabindex="0">${fault.traceback}</pre></details>`}</div></li>`;
      })}</ul></section>`}
  </div>`;
}
