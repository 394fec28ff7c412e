// What needs somebody's attention, worst first: a sentence, why, since when, and where to look. Pure.
import { age, firstLine, plural, seconds, share } from "./format.js";
import { to } from "./router.js";

const DAY = 86_400_000;
export const silentAfter = (overview) => overview?.minflinkd["silent-after"] || 15_000; // milliseconds; an earlier version does not say
export const COLLECTING = 0.1; // of the time: then a JVM's heap is too small for its tasks
const WAITING = 20_000; // milliseconds for which a job may wait for slots without a word
const RANK = { problem: 0, warning: 1, info: 2 };

/** `known`: {overview, jobs, managers, figures}, and `heardAt`: when the managers were heard of. Returns [{key, level, what, why, since, link, linkName}]. */
export function attention({ overview, jobs, managers, figures, heardAt, silentFor = silentAfter(overview) }, now) {
  const found = [
    ...ofCluster(overview, managers, figures),
    ...jobs.flatMap((job) => ofJob(job, now)),
    ...managers.flatMap((manager) => ofManager(manager, heardAt ?? now, silentFor)),
  ];
  return found.sort((a, b) => RANK[a.level] - RANK[b.level] || (b.since ?? 0) - (a.since ?? 0));
}

export function ofJob(job, now) {
  const extras = job.minflinkd ?? {};
  const at = { link: to("jobs", job.jid), linkName: "Open the job", job: job.jid };
  const repeated = extras["restarting-repeatedly"];
  const failure = extras["last-failure"];
  const found = [];
  if (job.state === "FAILED" && now - job["end-time"] < DAY) {
    found.push({
      ...at,
      key: `failed ${job.jid}`,
      level: "problem",
      what: `${job.name} has failed`,
      why: failure ? said(failure) : "",
      since: job["end-time"],
      link: to("jobs", job.jid, "timeline"),
      linkName: "What happened",
    });
  }
  if (repeated) {
    const where = repeated["task-name"] ? ` in ${repeated["task-name"]}` : "";
    found.push({
      ...at,
      key: `repeated ${job.jid}`,
      level: "problem",
      what: `${job.name} restarts again and again: ${plural(repeated.failures, "failure")} in a row${where}`,
      why: firstLine(repeated.message),
      since: repeated.since,
      link: to("jobs", job.jid, "timeline"),
      linkName: "What happened",
    });
  } else if (job.state === "RESTARTING" || job.state === "FAILING") {
    const again = extras["next-restart"];
    const when = again && again > now ? `; it starts again in ${seconds(Math.ceil((again - now) / 1000))}` : "";
    found.push({
      ...at,
      key: `restarting ${job.jid}`,
      level: "warning",
      what: `${job.name} is ${job.state.toLowerCase()}${when}`,
      why: failure ? said(failure) : "",
      since: job["last-modification"],
    });
  }
  if (job.state === "CREATED" && now - job["last-modification"] > WAITING) {
    found.push({
      ...at,
      key: `waiting ${job.jid}`,
      level: "warning",
      what: `${job.name} waits for slots`,
      why: extras.waiting ?? "",
      since: job["last-modification"],
    });
  }
  return [...found, ...ofCheckpoints(job, extras.checkpoints, at)];
}

function ofCheckpoints(job, checkpoints, at) {
  if (!checkpoints || job["end-time"] >= 0) return [];
  const link = { ...at, link: to("jobs", job.jid, "checkpoints"), linkName: "Its checkpoints" };
  if (checkpoints["consecutive-failures"] > 0) {
    return [
      {
        ...link,
        key: `checkpoints ${job.jid}`,
        level: checkpoints["consecutive-failures"] > 1 ? "problem" : "warning",
        what:
          checkpoints["consecutive-failures"] > 1
            ? `The last ${checkpoints["consecutive-failures"]} checkpoints of ${job.name} have failed`
            : `The last checkpoint of ${job.name} has failed`,
        why: firstLine(checkpoints["failure-message"]),
        since: checkpoints.failed,
      },
    ];
  }
  const { duration, interval } = checkpoints;
  if (interval > 0 && duration > interval) {
    return [
      {
        ...link,
        key: `slow ${job.jid}`,
        level: "warning",
        what: `Checkpoints of ${job.name} take longer than their interval`,
        why: `The last one took ${seconds(duration / 1000)}, and they are to begin every ${seconds(interval / 1000)}.`,
        since: checkpoints.completed,
      },
    ];
  }
  return [];
}

function ofManager(manager, heardAt, silentFor) {
  const { id, minflinkd: extras } = manager;
  const at = { link: to("taskmanagers", id), linkName: "Open the TaskManager" };
  const silent = heardAt - manager.timeSinceLastHeartbeat;
  const found = [];
  if (silent > silentFor) {
    found.push({
      ...at,
      key: `silent ${id}`,
      level: "problem",
      what: `TaskManager ${id} has not been heard for ${age(manager.timeSinceLastHeartbeat, heardAt)}`,
      why: "If it stays silent, it is given up and its tasks start elsewhere.",
      since: manager.timeSinceLastHeartbeat,
    });
  }
  if (extras["session-error"]) {
    found.push({ ...at, key: `session ${id}`, level: "problem", what: `The session of ${id} does not start`, why: firstLine(extras["session-error"]) });
  } else if (extras["session-slow"]) {
    found.push({ ...at, key: `slow ${id}`, level: "warning", what: `The session of ${id} starts slowly`, why: firstLine(extras["session-slow"]) });
  }
  const { "jvm.gc_share": collecting, "jvm.heap.used_bytes": used, "jvm.heap.max_bytes": most } = extras.metrics ?? {};
  if (collecting > COLLECTING) {
    const heap = most > 0 ? `${share(used / most)} of its heap is in use. ` : "";
    found.push({ ...at, key: `garbage ${id}`, level: "warning", what: `TaskManager ${id} spends ${share(collecting)} of the time collecting garbage`, why: `${heap}Meanwhile all of its tasks stand still.` });
  }
  if (extras.draining) {
    const held = Object.values(extras["held-by"]).filter(Boolean);
    found.push({ ...at, key: `draining ${id}`, level: "info", what: `TaskManager ${id} is being drained`, why: held[0] ?? "Its jobs move to others." });
  }
  return found;
}

function ofCluster(overview, managers, figures) {
  if (!overview) return [];
  const extras = overview.minflinkd;
  const found = [];
  if (extras.trouble) {
    found.push({ key: "trouble", level: "problem", what: "The daemon has trouble with the coordination service", why: extras.trouble, link: to("daemon"), linkName: "Open the daemon" });
  }
  if (overview.taskmanagers === 0 && extras.starting.length === 0) {
    found.push({ key: "none", level: extras["pending-needs"] > 0 ? "problem" : "info", what: "No TaskManager is registered", why: "One is started when a job needs it." });
  } else if (extras["pending-needs"] > 0 && overview["slots-available"] === 0 && extras.starting.length === 0) {
    found.push({ key: "slots", level: "warning", what: `Jobs wait for ${plural(extras["pending-needs"], "slot")}, and none is free`, why: "", link: to("taskmanagers"), linkName: "Who holds the slots" });
  }
  for (const one of extras.starting) {
    found.push({ key: `starting ${one.id}`, level: "info", what: `TaskManager ${one.id} is starting`, why: one.waiting ? firstLine(one.waiting) : "", since: one.since });
  }
  const lag = figures?.last("loop_lag") ?? 0;
  if (lag > 0.5) {
    found.push({ key: "lag", level: "warning", what: `The daemon's event loop runs ${seconds(lag)} late`, why: "Answers and heartbeats come late.", link: to("daemon"), linkName: "Open the daemon" });
  }
  return found;
}

const said = (failure) => firstLine(failure.task ? `${failure.task}: ${failure.message}` : failure.message);
