// Figures as people read them. What is not known is a dash, never a zero.
export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SCALE = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k", 1e3]];
const BYTES = [[1024 ** 4, "TiB"], [1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]];

const three = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));

export const whole = (value) => (known(value) ? plain.format(value) : UNKNOWN);

/** 12,345 stays readable as 12.3 k. */
export function short(value) {
  if (!known(value)) return UNKNOWN;
  for (const [from, unit, by = from] of SCALE) if (Math.abs(value) >= from) return `${three(value / by)} ${unit}`;
  return Math.abs(value) >= 100 || Number.isInteger(value) ? plain.format(value) : three(value);
}

export const rate = (value) => (known(value) ? `${short(value)}/s` : UNKNOWN);

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  for (const [from, unit] of BYTES) if (Math.abs(value) >= from) return `${three(value / from)} ${unit}`;
  return `${plain.format(value)} B`;
}

export const share = (value) => (known(value) ? `${Math.round(value * 100)} %` : UNKNOWN);

/** A duration in seconds: 12 ms, 3.4 s, 5 min 20 s, 2 h 10 min, 3 d 4 h. */
export function seconds(value) {
  if (!known(value) || value < 0) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return pair(value, 60, "min", 1, "s");
  if (value < 86400) return pair(value, 3600, "h", 60, "min");
  return pair(value, 86400, "d", 3600, "h");
}

function pair(value, large, largeUnit, small, smallUnit) {
  const rounded = Math.round(value / small) * small;
  const rest = Math.round((rounded % large) / small);
  const first = `${Math.floor(rounded / large)} ${largeUnit}`;
  return rest && rounded < 10 * large ? `${first} ${rest} ${smallUnit}` : first;
}

export const millis = (value) => (known(value) && value >= 0 ? seconds(value / 1000) : UNKNOWN);

/** How long ago something was. */
export const ago = (at, now) => (known(at) && at > 0 ? (now - at < 1000 ? "now" : `${seconds(Math.floor((now - at) / 1000))} ago`) : UNKNOWN);
export const age = (at, now) => (known(at) && at > 0 ? seconds(Math.max(0, Math.floor((now - at) / 1000))) : UNKNOWN);

const pad = (number) => String(number).padStart(2, "0");

/** The time of day here; with the date if it was another day. */
export function time(at, now = Date.now()) {
  if (!known(at) || at <= 0) return UNKNOWN;
  const then = new Date(at);
  const clock = `${pad(then.getHours())}:${pad(then.getMinutes())}:${pad(then.getSeconds())}`;
  return then.toDateString() === new Date(now).toDateString() ? clock : `${date(at)} ${clock}`;
}

export function date(at) {
  const then = new Date(at);
  return `${then.getFullYear()}-${pad(then.getMonth() + 1)}-${pad(then.getDate())}`;
}

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/** The first line of a text, at most so long. */
export function firstLine(text, most = 240) {
  const line = String(text ?? "").split("\n", 1)[0];
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}
