// What somebody may do, so that the page offers nothing that the daemon would refuse.
import { allows } from "./api.js";

/** Whether a name is matched by a pattern of the shell: *, ?, [abc], [!abc]. Pure. */
export function matches(name, pattern) {
  let source = "";
  for (let i = 0; i < pattern.length; i++) {
    const end = pattern[i] === "[" ? pattern.indexOf("]", i + (pattern[i + 1] === "!" ? 3 : 2)) : -1;
    if (end > 0) {
      const inside = pattern.slice(i + 1, end).replace(/[\\\]^]/g, "\\$&");
      source += `[${inside.startsWith("!") ? `^${inside.slice(1)}` : inside}]`;
      i = end;
    } else if (pattern[i] === "*") source += "[^]*";
    else if (pattern[i] === "?") source += "[^]";
    else source += pattern[i].replace(/[.+^${}()|[\]\\]/g, "\\$&");
  }
  try {
    return new RegExp(`^${source}$`, "u").test(name);
  } catch {
    return true; // the daemon decides
  }
}

/** Whether somebody has this role, and reaches the job if one is named. */
export function may(who, role, job) {
  if (!who || !allows(who, role)) return false;
  return job === undefined || !who.jobs?.length || who.jobs.some((pattern) => matches(job, pattern));
}

/** Whether somebody may change what belongs to no job. */
export const mayCluster = (who, role) => may(who, role) && !who.jobs?.length;
