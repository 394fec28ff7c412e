// A job file that is being written, with its artifacts: read by the daemon, checked by Spark, and what came of that.
import { ApiError, change } from "./api.js";
import { artifactsOf, missing, sorted, withUploads } from "./artifacts.js";
import { syntaxOf } from "./editor.js";
import { triggerId } from "./following.js";
import { useEffect, useRef, useState } from "./html.js";

export const HIDDEN = "******"; // what the daemon shows instead of a secret
export const ANALYSIS = 600_000; // milliseconds: a session may have to start first
const PAUSE = 700; // milliseconds after the last key, before it is read to see which files it names

const read = (text, name, signal) => change("POST", "/jobs/text", { text, format: syntaxOf(text, name) }, undefined, signal);

/**
 * `job`: the id of the job that it is a version of; without it, of one that is new. `checked`: {read, answer} of the text
 * as it is now; null after each change. `document`: what it says, as far as it was read; `files`: by name.
 */
export function useDraft(begin = "", job = null) {
  const [state, set] = useState({ text: begin, name: "", files: new Map(), document: null, busy: "", faults: [], lines: {}, error: null, checked: null });
  const id = useRef(job ?? triggerId());
  const stored = useRef(new Map());
  const update = (fields) => set((now) => ({ ...now, ...fields }));
  const changed = { faults: [], lines: {}, error: null, checked: null };
  const write = (text, name = "") => update({ text, name, ...changed });
  /** Files that were dropped or chosen: the job file among them is read, the others are its artifacts. */
  const add = async (list) => {
    const [file, others] = sorted([...list]);
    const text = file ? await file.text() : null;
    set((now) => ({ ...now, ...(file ? { text, name: file.name } : {}), files: new Map([...now.files, ...others.map((one) => [one.name, one])]), ...changed }));
  };
  const drop = (name) => set((now) => ({ ...now, files: new Map([...now.files].filter(([one]) => one !== name)), ...changed }));
  useEffect(() => {
    if (!state.files.size && !state.text.includes("artifacts")) return undefined;
    const control = new AbortController();
    const timer = setTimeout(() => {
      // Faults are said when it is checked: who writes has not finished yet.
      read(state.text, state.name, control.signal).then(({ document }) => update({ document }), () => {});
    }, PAUSE);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [state.text, state.files]);
  /** Upload what is not there yet. Return the document as it is submitted. */
  const complete = (found, tell) => withUploads(found.document, state.files, stored.current, id.current, tell);
  /** What was uploaded may be gone: it is uploaded once more. */
  const forget = () => stored.current.clear();
  /** Read the text, then ask for a dry run with it, at the path that `pathOf` makes of the job's id. */
  const check = async (pathOf) => {
    const { text, name, files } = state;
    update({ busy: "Reading it", faults: [], error: null, checked: null });
    let lines = {};
    try {
      const found = await read(text, name);
      lines = found.lines;
      update({ document: found.document });
      const faults = [...found.faults, ...missing(found.document, files)];
      if (faults.length) throw new ApiError(400, { errors: [], faults });
      const document = await complete(found, (what, more) => update({ busy: `${what}, ${more}` }));
      update({ lines, busy: "Spark analyses it" });
      const answer = await change("POST", pathOf(id.current), document, ANALYSIS);
      const normal = found.normal && { ...found.normal, ...(artifactsOf(document).length ? { artifacts: document.artifacts } : {}) };
      set((now) => ({ ...now, busy: "", lines, checked: now.text === text && now.files === files ? { read: { ...found, normal }, answer, id: id.current } : null }));
    } catch (error) {
      if (error.faults?.some((fault) => fault.path.startsWith("artifacts"))) forget();
      update({ busy: "", lines, faults: error.faults ?? [], error: error.faults?.length ? null : error });
    }
  };
  /** It was accepted: what is written next is another job. */
  const accepted = () => {
    if (!job) id.current = triggerId();
    forget();
    update({ checked: null });
  };
  return { ...state, write, add, drop, check, complete, forget, accepted };
}
