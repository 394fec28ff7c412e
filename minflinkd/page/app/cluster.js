// What is known of the whole cluster, from `/events`: the overview, the jobs, the TaskManagers, and their figures.
import { get } from "./api.js";
import { learn, now } from "./clock.js";
import { SeriesSet } from "./series.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";

/** `jobs` and `managers` are in the order of the page; `known`: whether anything has been heard yet. */
export const cluster = new Store({
  known: false,
  overview: null,
  jobs: [],
  managers: [],
  managersAt: 0, // when they were heard of
  rates: new SeriesSet(), // by a job's id: rows in per second
  figures: new SeriesSet(), // of the cluster
  who: null,
});

/**
 * When a TaskManager was heard, seen from when the list came: that comes seldom, as long as only heartbeats change. If
 * it has not come for long, nobody was heard.
 */
export function heardFrom({ managers, managersAt }, at) {
  return at - managersAt > 20_000 + 200 * managers.length ? at : managersAt;
}

const ENDED = new Set(["FINISHED", "CANCELED", "FAILED"]);
export const hasEnded = (job) => ENDED.has(job.state);

function inOrder(jobs) {
  return jobs.sort((a, b) => hasEnded(a) - hasEnded(b) || b["start-time"] - a["start-time"] || (a.jid < b.jid ? -1 : 1));
}

const handlers = {
  overview: (overview) => cluster.set({ overview, known: true }),
  job(job) {
    const jobs = cluster.value.jobs.filter((one) => one.jid !== job.jid);
    cluster.set({ jobs: inOrder([...jobs, job]) });
  },
  "job-gone": ({ jid }) => cluster.set({ jobs: cluster.value.jobs.filter((one) => one.jid !== jid) }),
  taskmanagers: ({ taskmanagers }) => cluster.set({ managers: taskmanagers, managersAt: now() }),
  sample({ at, cluster: figures, jobs }) {
    const rates = Object.fromEntries(Object.entries(jobs).map(([jid, one]) => [jid, one.rows_in_per_second ?? null]));
    cluster.value.rates.append(at, rates);
    cluster.value.figures.append(at, figures);
    cluster.changed();
  },
};

async function past() {
  const found = await get("/history").catch(() => null);
  if (!found) return;
  learn(found.now);
  const rates = Object.entries(found.jobs).map(([jid, one]) => [jid, one.rows_in_per_second ?? []]);
  const axis = { start: found.start, step: found.resolution };
  cluster.set({
    rates: SeriesSet.of({ ...axis, series: Object.fromEntries(rates) }),
    figures: SeriesSet.of({ ...axis, series: found.cluster }),
  });
}

/** What is there is complete: jobs that are not named again are gone. */
function begin() {
  cluster.value.jobs = [];
  past();
}

/** Follow the cluster until the returned function is called. */
export function follow() {
  const stream = new Stream("/events", handlers, begin);
  return () => stream.close();
}

/** Ask once for what other pages show of it, such as the names of jobs. */
export async function look() {
  const [overview, { jobs }] = await Promise.all([get("/overview"), get("/jobs/overview")]);
  cluster.set({ overview, jobs: inOrder(jobs), known: true });
}

export async function learnWho() {
  cluster.set({ who: await get("/whoami").catch(() => null) });
}

export const nameOf = (jid) => cluster.value.jobs.find((job) => job.jid === jid)?.name ?? jid.slice(0, 8);

/** A colour for each job, the same on all pages. */
export function colourOf(jid) {
  let sum = 0;
  for (const letter of jid) sum = (sum * 31 + letter.charCodeAt(0)) % 9973;
  return `var(--series-${1 + (sum % 8)})`;
}

