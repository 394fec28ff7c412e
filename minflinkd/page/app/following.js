// How an operation goes on after the daemon has accepted it: asked until it is over, through lost connections.
import { ApiError, get } from "./api.js";
import { followed } from "./job.js";

const PAUSE = 400; // milliseconds between two questions
const ENDED = ["FINISHED", "CANCELED", "FAILED"];

/** An id with which a request can be repeated without harm. */
export function triggerId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const wait = (signal, pause = PAUSE) =>
  new Promise((go, stop) => {
    const ended = () => stop(new DOMException("closed", "AbortError"));
    if (signal.aborted) ended();
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", ended);
      go();
    }, pause);
    signal.addEventListener("abort", () => { clearTimeout(timer); ended(); }, { once: true });
  });

/** Ask `path` until `over(answer)`. While nobody answers, that is told, and asked again. */
export async function until(path, over, { tell, signal, seen = () => {} }) {
  let lost = false;
  for (;;) {
    try {
      const answer = await get(path, { signal: AbortSignal.any([signal, AbortSignal.timeout(15000)]) });
      if (lost) tell(null);
      lost = false;
      if (over(answer)) return answer;
      seen(answer);
    } catch (error) {
      if (signal.aborted) throw error;
      const away = error instanceof ApiError ? error.status === 0 || error.status === 503 : error.name === "AbortError";
      if (!away) throw error;
      lost = true;
      tell("The daemon does not answer. It goes on by itself; the page asks again.");
    }
    await wait(signal);
  }
}

/** Wait for what `POST .../savepoints`, `/stop` or `/checkpoints` has begun. Return its `operation`. */
export async function operated(path, id, { step, tell, signal }) {
  const seen = () => step(underWay(followed.value.checkpoints));
  seen();
  const answer = await until(`${path}/${id}`, (one) => one.status.id === "COMPLETED", { tell, signal, seen });
  const cause = answer.operation?.["failure-cause"] ?? answer.operation?.failureCause;
  if (cause) throw new ApiError(500, { errors: [cause["stack-trace"]], code: cause.class });
  return answer.operation;
}

/** The checkpoint that is being taken, in words. Pure. */
export function underWay(checkpoints) {
  const one = checkpoints?.history.find((each) => each.status === "IN_PROGRESS");
  if (!one) return "Waiting for the checkpoint to begin, or for its files to be published";
  return `${one.num_acknowledged_subtasks} of ${one.num_subtasks} tasks have handed in their state`;
}

/** Wait until a job has ended. Return its state. */
export async function ended(jid, { step, tell, signal }) {
  const seen = ({ status }) => step(`The job is ${status.toLowerCase()}`);
  return (await until(`/jobs/${jid}/status`, ({ status }) => ENDED.includes(status), { tell, signal, seen })).status;
}

/** Wait until a job that was just submitted has got its slots. Return its state, as a word. */
export async function begun(jid, { step, tell, signal }) {
  const seen = ({ state, minflinkd }) => step(state === "CREATED" ? minflinkd.waiting[0] ?? "It waits for slots" : `The job is ${state.toLowerCase()}`);
  const job = await until(`/jobs/${jid}`, ({ state }) => !["CREATED", "INITIALIZING", "RECONCILING"].includes(state), { tell, signal, seen });
  return job.state.toLowerCase();
}

const PHASES = {
  stopped: "The old version has stopped",
  deployed: "The new version is on its TaskManagers",
  running: "The new version runs",
  first_batch: "It has processed a first micro-batch",
  first_checkpoint: "It has completed a checkpoint",
};

/** Wait until a hot restart is over, or on trial. Return it. `number`: null for the first after `before`. */
export async function restarted(jid, number, before, { step, tell, signal }) {
  const find = (job) => job.minflinkd["hot-restarts"].find((one) => (number ? one.number === number : one.number > before));
  const over = (job) => ENDED.includes(job.state) || find(job)?.over || find(job)?.state === "on-trial";
  const seen = (job) => {
    const phases = Object.entries(find(job)?.phases ?? {}).sort((a, b) => a[1] - b[1]);
    step(phases.length ? PHASES[phases.at(-1)[0]] ?? phases.at(-1)[0].replaceAll("_", " ") : "A last checkpoint is taken, then the job stops");
  };
  const job = await until(`/jobs/${jid}`, over, { tell, signal, seen });
  return { job, restart: find(job) };
}

/** What became of a hot restart, as a sentence; throws if the new version does not run. */
export function outcome({ job, restart }) {
  if (restart?.state === "completed") return `Hot restart ${restart.number} is complete: the new version runs${restart.phases.running ? ` after ${restart.phases.running.toFixed(1)} s` : ""}.`;
  if (restart?.state === "on-trial") return `The new version runs. The job has no input just now, so it is on trial until there is some.`;
  const why = restart?.error;
  const what = restart ? `Hot restart ${restart.number} was given up (${restart.state.replaceAll("-", " ")}); the job is ${job.state.toLowerCase()}.` : `The job is ${job.state.toLowerCase()}.`;
  throw new ApiError(500, { errors: [why ? `${what} ${why.message}` : what], hint: why?.hint, code: why?.code });
}
