// What is known of one job, from `/jobs/{id}/events`: the job, its checkpoints, its failures and its figures.
import { get } from "./api.js";
import { learn } from "./clock.js";
import { cluster, look } from "./cluster.js";
import { SeriesSet } from "./series.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";

export const RANGES = [
  ["15m", "15 min", 900, "5s"],
  ["1h", "1 h", 3600, "5s"],
  ["6h", "6 h", 21600, "1m"],
  ["24h", "24 h", 86400, "1m"],
];
/** From when to when the charts reach, in seconds: not to times before the job, and in steps of its samples. */
export function spanOf({ job, range }, now) {
  const [, , lasts] = RANGES.find(([name]) => name === range);
  const until = Math.floor(now / 5000) * 5;
  const began = Math.floor(job["start-time"] / 1000) - 5;
  return [Math.max(until - lasts, Math.min(began, until - 60)), until];
}

const MOST = { "5s": 720, "1m": 1440 };

const NOTHING = {
  jid: null,
  job: null,
  checkpoints: null,
  exceptions: null,
  missing: null, // the error, if there is no such job
  range: "1h",
  figures: new SeriesSet(), // of the job, and of its tasks as `task series`
  marks: [],
};
export const followed = new Store(NOTHING);

export const seriesOf = (task, series) => `${task} ${series}`;

/** Ask for the past of another range. */
export async function showRange(range) {
  followed.set({ range });
  await past();
}

async function past() {
  const { jid, range } = followed.value;
  const [, , lasts, resolution] = RANGES.find(([name]) => name === range);
  const since = Math.floor(Date.now() - lasts * 1000);
  const found = await get(`/jobs/${jid}/history?resolution=${resolution}&since=${since}`).catch(() => null);
  if (!found || followed.value.jid !== jid || followed.value.range !== range) return;
  learn(found.now);
  const series = { ...found.job };
  for (const [task, all] of Object.entries(found.tasks)) {
    for (const [name, values] of Object.entries(all)) series[seriesOf(task, name)] = values;
  }
  const figures = SeriesSet.of({ start: found.start, step: found.resolution, series }, Math.min(MOST[resolution], Math.ceil((lasts * 1000) / found.resolution)));
  followed.set({ figures, marks: found.marks });
}

function sampled({ at, job, tasks }) {
  const sample = { ...job };
  for (const [task, all] of Object.entries(tasks)) {
    for (const [name, value] of Object.entries(all)) sample[seriesOf(task, name)] = value;
  }
  followed.value.figures.append(at, sample);
  followed.changed();
}

/** What has happened since is marked as soon as it is known. */
function marked(kind, at, text) {
  const { marks } = followed.value;
  if (marks.some((mark) => mark.kind === kind && Math.abs(mark.at - at) < 1000)) return;
  followed.set({ marks: [...marks, { kind, at, text }] });
}

const handlers = {
  job(job) {
    const before = followed.value.job;
    followed.set({ job });
    if (before && job.minflinkd.restarts > before.minflinkd.restarts) {
      const last = job.minflinkd.recoveries[0];
      marked("restart", last?.failed ?? job.now, last?.cause ?? "restart");
    }
  },
  checkpoints(checkpoints) {
    followed.set({ checkpoints });
    const failed = checkpoints.latest.failed;
    if (failed?.failure_timestamp) marked("checkpoint-failed", failed.failure_timestamp, failed.failure_message ?? "");
  },
  exceptions: (exceptions) => followed.set({ exceptions }),
  sample: sampled,
};

/** Follow a job until the returned function is called. */
export function followJob(jid) {
  followed.set({ ...NOTHING, range: followed.value.range, figures: new SeriesSet(), jid });
  if (!cluster.value.known) look().catch(() => null); // names of other jobs, for slots and the palette
  const stream = new Stream(`/jobs/${jid}/events`, handlers, past, {
    path: `/jobs/${jid}/status`,
    gone: (missing) => followed.set({ missing }),
  });
  return () => stream.close();
}
