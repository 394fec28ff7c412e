// Requests to the daemon. An error says what was wrong and what to do, in the daemon's words.

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.errors?.[0] ?? (status ? `the daemon answered ${status}` : "the daemon does not answer"));
    this.status = status;
    this.code = body?.code ?? "";
    this.hint = body?.hint ?? "";
    this.faults = body?.faults ?? [];
  }
}

const PLACE = "where-to-return";

/** The session has ended: log in, and come back to the same page. */
export function logInAgain() {
  try {
    sessionStorage.setItem(PLACE, location.hash);
  } catch {
    // no storage: the overview comes after the log-in
  }
  location.replace(location.pathname);
}

/** After a log-in, return to where the session had ended. */
export function returnToPlace() {
  try {
    const place = sessionStorage.getItem(PLACE);
    sessionStorage.removeItem(PLACE);
    if (place && !location.hash) history.replaceState(null, "", place);
  } catch {
    // no storage
  }
}

// The code and the hint of an error come to those who ask for them; Flink's clients would stumble over them.
const ACCEPT = "application/json, application/vnd.minflinkd+json";
const here = (path) => path.replace(/^\//, "");

async function send(path, { headers, timeout, ...options }) {
  let response;
  try {
    response = await fetch(here(path), {
      headers: { Accept: ACCEPT, ...headers },
      signal: AbortSignal.timeout(timeout ?? 30000),
      ...options,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, null);
  }
  if (response.status === 401) {
    logInAgain();
    throw new ApiError(401, null);
  }
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => null));
  return response;
}

/** `exact`: numbers that are too long for a number of ours stay texts, so that no digit is lost. */
export async function get(path, { exact, ...options } = {}) {
  const response = await send(path, options);
  return exact ? exactly(await response.text()) : response.json();
}

const digits = (source) => source.replace(/e.*$/i, "").replace(/\D/g, "").replace(/^0+/, "").length;

/** JSON in which a number of more than 15 digits stays as it is written, in browsers that show it. Pure. */
export const exactly = (text) => JSON.parse(text, (_, value, context) => (typeof value === "number" && context?.source && digits(context.source) > 15 ? context.source : value));

/** Ask for a change. The body is sent as JSON. `timeout`: milliseconds, if it may take long. */
export async function change(method, path, body, timeout, signal) {
  const options = { method, timeout, ...(signal && { signal }) };
  if (body !== undefined) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const response = await send(path, options);
  return response.status === 204 ? null : response.json().catch(() => null);
}

/** Upload a file as the body. `seen` is told how many bytes are sent. */
export function upload(path, file, seen) {
  return new Promise((done, failed) => {
    const request = new XMLHttpRequest(); // `fetch` does not tell how far it is
    request.open("PUT", here(path));
    request.setRequestHeader("Accept", ACCEPT);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.responseType = "json";
    request.upload.onprogress = (event) => seen(event.loaded);
    request.onload = () => {
      if (request.status === 401) logInAgain();
      if (request.status < 300) done(request.response);
      else failed(new ApiError(request.status, request.response));
    };
    request.onerror = () => failed(new ApiError(0, null));
    request.send(file);
  });
}

/** A part of a log: its text, where it begins, and how long the whole is. */
export async function part(path, offset, length) {
  const response = await send(`${path}?offset=${offset}&length=${length}`, {});
  return {
    data: new Uint8Array(await response.arrayBuffer()),
    offset: Number(response.headers.get("X-Log-Offset")),
    size: Number(response.headers.get("X-Log-Size")),
  };
}

const ROLES = ["anybody", "view", "operate", "submit", "admin"];
export const allows = (who, role) => ROLES.indexOf(who?.role) >= ROLES.indexOf(role);
