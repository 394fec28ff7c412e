// The files of code that a job file names: which are here, which are missing, and how they are uploaded.
import { upload } from "./api.js";
import { bytes, plural } from "./format.js";
import { html } from "./html.js";
import { Sign } from "./status.js";

const JOB_FILE = /\.(ya?ml|json)$/i;

/** Of files that were dropped together: [the job file or null, the others]. Pure. */
export function sorted(files) {
  const job = files.find((file) => JOB_FILE.test(file.name)) ?? null;
  return [job, files.filter((file) => file !== job)];
}

const fileName = (path) => path.split(/[?#]/, 1)[0].split("/").at(-1);

/** What a job file names: [{index, name, file}]; `file` is how the file is called, `key` that it is uploaded. Pure. */
export function artifactsOf(document) {
  const all = Array.isArray(document?.artifacts) ? document.artifacts : [];
  return all.flatMap((one, index) => {
    const { name, path, key } = typeof one === "string" ? { path: one } : one ?? {};
    const file = typeof path === "string" ? fileName(path) : name;
    return typeof file === "string" && file ? [{ index, name: typeof name === "string" ? name : file, file, key: key ?? null }] : [];
  });
}

/** The file for an artifact, among those that were dropped. Pure. */
export const fileOf = (artifact, files) => files.get(artifact.file) ?? files.get(artifact.name);

/** A fault for each file that is named and not here. Pure. */
export function missing(document, files) {
  return artifactsOf(document)
    .filter((one) => !one.key && !fileOf(one, files))
    .map((one) => ({ path: `artifacts[${one.index}]`, problem: `the file ${one.file} is not here`, hint: "drop it on the editor, beside the job file", traceback: "" }));
}

/**
 * Upload what is here and not uploaded yet. Return the document with the keys. `stored`: by name, {file, key, size} of
 * what was uploaded; it is added to. `tell` is told what is done, and how far it is.
 */
export async function withUploads(document, files, stored, job, tell) {
  const wanted = artifactsOf(document).map((one) => [one, fileOf(one, files)]).filter(([, file]) => file);
  for (const [i, [{ name }, file]] of wanted.entries()) {
    if (stored.get(name)?.file === file) continue;
    const which = wanted.length > 1 ? `, ${i + 1} of ${wanted.length}` : "";
    const seen = (sent) => tell(`Uploading ${name}${which}`, `${bytes(sent)} of ${bytes(file.size)}`);
    seen(0);
    stored.set(name, { file, ...(await upload(`/blobs/${job}`, file, seen)) });
  }
  if (!wanted.length) return document;
  const keys = new Map(wanted.map(([{ index, name }]) => [index, { name, key: stored.get(name).key, size: stored.get(name).size }]));
  return { ...document, artifacts: document.artifacts.map((one, i) => keys.get(i) ?? one) };
}

/** The files that the job file names, and those that were dropped without being named. */
export function Artifacts({ document, files, onDrop, disabled }) {
  const named = artifactsOf(document);
  const used = new Set(named.map((one) => fileOf(one, files)));
  const others = [...files.values()].filter((file) => !used.has(file));
  if (!named.length && !others.length) return null;
  const absent = missing(document, files).length;
  return html`<section class="artifacts" aria-label="Artifacts"><strong>Artifacts</strong> <span class="muted" role="status">${absent ? `${absent} of ${plural(named.length, "file")} missing: drop ${absent === 1 ? "it" : "them"} on the editor` : named.length ? "all are here" : ""}</span>
    <ul>${named.map((one) => {
      const file = fileOf(one, files);
      const [sign, words] = file ? ["calm", `${bytes(file.size)}, to be uploaded`] : one.key ? ["calm", "uploaded before"] : ["problem", "missing"];
      return html`<li key=${one.index}><${Sign} state=${sign} /><span class="mono">${one.name}</span><span class="muted">${words}${one.file !== one.name && ` (the file ${one.file})`}</span></li>`;
    })}
    ${others.map((file) => html`<li key=${`file ${file.name}`}><${Sign} state="warning" /><span class="mono">${file.name}</span><span class="muted">the job file does not name it under <code>artifacts</code>: it is not sent</span>
      <button type="button" class="button quiet small" disabled=${disabled} aria-label=${`Take away ${file.name}`} onClick=${() => onDrop(file.name)}>Take away</button></li>`)}</ul>
  </section>`;
}
