// A job file that is being written: read by the daemon, checked by Spark, and what came of that.
import { ApiError, change } from "./api.js";
import { syntaxOf } from "./editor.js";
import { useState } from "./html.js";

export const HIDDEN = "******"; // what the daemon shows instead of a secret
export const ANALYSIS = 600_000; // milliseconds: a session may have to start first

/** `checked`: {read, answer} of the text as it is now; null after each change. */
export function useDraft(begin = "") {
  const [state, set] = useState({ text: begin, name: "", busy: "", faults: [], lines: {}, error: null, checked: null });
  const write = (text, name = "") => set((now) => ({ ...now, text, name, faults: [], lines: {}, error: null, checked: null }));
  /** Read the text, then ask `path` for a dry run with it. */
  const check = async (path) => {
    const { text } = state;
    set((now) => ({ ...now, busy: "Reading it", faults: [], error: null, checked: null }));
    let lines = {};
    try {
      const read = await change("POST", "/jobs/text", { text, format: syntaxOf(text, state.name) });
      lines = read.lines;
      if (read.faults.length) throw new ApiError(400, { errors: [], faults: read.faults });
      set((now) => ({ ...now, lines, busy: "Spark analyses it" }));
      const answer = await change("POST", path, read.document, ANALYSIS);
      set((now) => ({ ...now, busy: "", lines, checked: now.text === text ? { read, answer } : null }));
    } catch (error) {
      set((now) => ({ ...now, busy: "", lines, faults: error.faults ?? [], error: error.faults?.length ? null : error }));
    }
  };
  return { ...state, write, check };
}
