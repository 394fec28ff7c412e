// Where the page is: the part of the address after the #, because all other paths are the endpoint's.
import { useEffect, useState } from "./html.js";

const clean = (hash) => hash.replace(/^#?\/?/, "").replace(/\/+$/, "");

/** The parts of the path and the query, such as {parts: ["jobs", "3f…"], query: {task: "flights"}}. */
export function here() {
  const [path, query = ""] = clean(location.hash).split("?", 2);
  return {
    path,
    parts: path ? path.split("/").map(decodeURIComponent) : [],
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** The address of a place, from its parts: each is quoted. */
export const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** The address of the state of a job. `asked`: {task, checkpoint}. */
export const stateOf = (jid, asked) => `${to("jobs", jid, "state")}?${new URLSearchParams(asked)}`;

export function go(address) {
  location.hash = address;
}

/** Change the query without a new entry in the browser's history. */
export function setQuery(fields) {
  const { path, query } = here();
  const next = new URLSearchParams(Object.entries({ ...query, ...fields }).filter(([, value]) => value));
  history.replaceState(null, "", `#/${path}${next.size ? `?${next}` : ""}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [route, set] = useState(here);
  useEffect(() => {
    const changed = () => set(here());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
