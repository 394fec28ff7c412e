// Drain a TaskManager: its jobs move to others, and it ends. Or use it again.
import { mayCluster } from "./allowed.js";
import { ApiError, change } from "./api.js";
import { cluster, nameOf } from "./cluster.js";
import { until } from "./following.js";
import { plural } from "./format.js";
import { html } from "./html.js";
import { Operation, useOperation } from "./operation.js";
import { useStore } from "./store.js";

/** `manager`: null if it has ended. */
export function DrainButton({ manager }) {
  const { who } = useStore(cluster);
  const [start, dialog] = useOperation();
  if (!mayCluster(who, "admin")) return null;
  const draining = manager?.minflinkd.draining;
  return html`${manager && html`<button class=${draining ? "button" : "button danger"} onClick=${() => start(draining ? Undo : Drain, { manager })}>${draining ? "Use it again" : "Drain"}</button>`}
    ${dialog}`;
}

const path = (id) => `/taskmanagers/${encodeURIComponent(id)}`;

function Drain({ manager, onClose }) {
  const { id, minflinkd: extras } = manager;
  const jobs = [...new Set(extras.slots.map((slot) => slot["job-id"]).filter(Boolean))];
  const run = async ({ step, tell, signal }) => {
    step("Asking the daemon to drain it");
    await change("POST", `${path(id)}/drain`);
    const seen = ({ minflinkd: now }) => step(holders(now["held-by"]) || "It ends");
    try {
      await until(path(id), () => false, { tell, signal, seen });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 404) throw error;
    }
    return `${id} has ended. Its jobs run elsewhere.`;
  };
  const who = jobs.length ? `${jobs.map(nameOf).join(", ")} ${jobs.length === 1 ? "moves" : "move"} to other TaskManagers, with a restart from a last checkpoint, and wait${jobs.length === 1 ? "s" : ""} here while there are no free slots.` : "No job holds its slots.";
  const end = extras.standalone ? "Then its process ends." : "Then it ends; another one is started when jobs need slots.";
  return html`<${Operation} title=${`Drain ${id}?`} verb="Drain it" danger=${true} run=${run} onClose=${onClose}
    says=${`It gives out no more slots. ${who} ${end}`} />`;
}

/** Who is still there, and why. Pure. */
export function holders(heldBy) {
  const all = Object.entries(heldBy);
  if (!all.length) return "";
  const [[jid, why]] = all;
  const others = all.length > 1 ? `, and ${plural(all.length - 1, "other job")}` : "";
  return why ? `${nameOf(jid)} is still there: ${why}${others}` : `${nameOf(jid)} moves${others}`;
}

function Undo({ manager, onClose }) {
  const { id } = manager;
  const run = async ({ step }) => {
    step("Asking the daemon to use it again");
    await change("DELETE", `${path(id)}/drain`);
    return `${id} gives out slots again.`;
  };
  return html`<${Operation} title=${`Use ${id} again?`} verb="Use it again" run=${run} onClose=${onClose}
    says="It gives out slots as before. Jobs that have left do not come back by themselves." />`;
}
