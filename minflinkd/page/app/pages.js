// The pages: where each is, and what shows it. A page of its own is added here, and in `views/`.
import { BlobsPage } from "../views/blobs.js";
import { CheckpointPage, CheckpointsPage } from "../views/checkpoints.js";
import { DaemonPage } from "../views/daemon.js";
import { JobPage } from "../views/job.js";
import { OverviewPage } from "../views/overview.js";
import { PlanPage } from "../views/plan.js";
import { StatePage } from "../views/state.js";
import { StoragePage } from "../views/storage.js";
import { SubmitPage } from "../views/submit.js";
import { TaskManagerPage, TaskManagersPage } from "../views/taskmanagers.js";
import { TimelinePage } from "../views/timeline.js";
import { NewVersionPage } from "../views/version.js";

/** Entries of the bar at the top: [name, address, key]. */
export const SECTIONS = [
  ["Overview", "#/", "g o"],
  ["TaskManagers", "#/taskmanagers", "g t"],
  ["Storage", "#/storage", "g s"],
  ["Blobs", "#/blobs", "g b"],
  ["Daemon", "#/daemon", "g d"],
];

/** Tabs of a job: [name, the part of the address after the job's id]. */
export const JOB_TABS = [
  ["Job", ""],
  ["Checkpoints", "checkpoints"],
  ["Timeline", "timeline"],
  ["Plan", "plan"],
  ["State", "state"],
];

/** [the parts of the address, the page, `job` if it follows one job]: a part that begins with : has any value. */
const PAGES = [
  [[], OverviewPage],
  [["jobs", ":jid"], JobPage, "job"],
  [["jobs", ":jid", "checkpoints"], CheckpointsPage, "job"],
  [["jobs", ":jid", "checkpoints", ":id"], CheckpointPage, "job"],
  [["jobs", ":jid", "timeline"], TimelinePage, "job"],
  [["jobs", ":jid", "plan"], PlanPage, "job"],
  [["jobs", ":jid", "state"], StatePage, "job"],
  [["jobs", ":jid", "new-version"], NewVersionPage, "job"],
  [["submit"], SubmitPage],
  [["storage"], StoragePage],
  [["blobs"], BlobsPage],
  [["daemon"], DaemonPage],
  [["taskmanagers"], TaskManagersPage],
  [["taskmanagers", ":id"], TaskManagerPage],
  [["taskmanagers", ":id", "logs", ":log"], TaskManagerPage],
];

/** Return {view, follows, values} for a place, or null. */
export function find(parts) {
  for (const [wanted, view, follows = "cluster"] of PAGES) {
    if (wanted.length !== parts.length) continue;
    if (!wanted.every((one, i) => one.startsWith(":") || one === parts[i])) continue;
    const values = Object.fromEntries(wanted.map((one, i) => [one.slice(1), parts[i]]).filter((_, i) => wanted[i].startsWith(":")));
    return { view, follows, values };
  }
  return null;
}
