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

async function send(path, { headers, timeout, ...options }) {
  let response;
  try {
    response = await fetch(path.replace(/^\//, ""), {
      // The code and the hint of an error come to those who ask for them; Flink's clients would stumble over them.
      headers: { Accept: "application/json, application/vnd.minflinkd+json", ...headers },
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

export const get = async (path, options = {}) => (await send(path, options)).json();

/** Ask for a change. The body is sent as JSON. `timeout`: milliseconds, if it may take long. */
export async function change(method, path, body, timeout) {
  const options = { method, timeout };
  if (body !== undefined) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  const response = await send(path, options);
  return response.status === 204 ? null : response.json().catch(() => null);
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
