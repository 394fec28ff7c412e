// One stream of server-sent events: kept open, mended when it breaks, and silent while nobody looks at the page.
import { ApiError, logInAgain } from "./api.js";
import { now } from "./clock.js";
import { Store } from "./store.js";

const QUIET = 30_000; // without any event for so long, the connection is taken for lost; samples come every 5 s
const HIDDEN = 60_000; // a page that is hidden for longer needs no stream
const LONGEST = 15_000; // between two tries

/** What is said of the connection, for all pages: there is one stream at a time. */
export const connection = new Store({ state: "connecting", since: now() });

export class Stream {
  #source = null;
  #quiet = 0;
  #again = 0;
  #hide = 0;
  #tries = 0;
  #closed = false;
  #seen = () => this.#visibility();

  /**
   * `handlers`: by the name of an event. `opened` is called when a stream begins that does not go on from another one.
   * An EventSource does not say why it was refused. So `probe.path` is asked then: 403 and 404 are told to `probe.gone`.
   */
  constructor(path, handlers, opened = () => {}, probe = { path: "whoami", gone: () => {} }) {
    this.path = path;
    this.probe = probe;
    this.handlers = handlers;
    this.opened = opened;
    document.addEventListener("visibilitychange", this.#seen);
    if (connection.value.state !== "live") connection.set({ state: "connecting", since: now() });
    this.#open();
  }

  close() {
    this.#closed = true;
    document.removeEventListener("visibilitychange", this.#seen);
    this.#drop();
    clearTimeout(this.#again);
    clearTimeout(this.#hide);
  }

  #open() {
    this.#drop();
    if (this.#closed) return;
    const source = new EventSource(this.path.replace(/^\//, ""));
    this.#source = source;
    let fresh = true;
    source.onopen = () => {
      this.#tries = 0;
      this.#heard();
      if (fresh) this.opened();
      fresh = false;
    };
    source.onerror = () => {
      this.#lost();
      // The browser tries again by itself and names the last event it has seen, unless it has given up.
      if (source.readyState === EventSource.CLOSED) this.#retry();
    };
    for (const [name, handler] of Object.entries({ reset: this.opened, ...this.handlers })) {
      source.addEventListener(name, (event) => {
        this.#heard();
        handler(event.data ? JSON.parse(event.data) : null);
      });
    }
    this.#watch();
  }

  #drop() {
    clearTimeout(this.#quiet);
    this.#source?.close();
    this.#source = null;
  }

  #heard() {
    if (connection.value.state !== "live") connection.set({ state: "live", since: now() });
    this.#watch();
  }

  #watch() {
    clearTimeout(this.#quiet);
    this.#quiet = setTimeout(() => {
      this.#lost();
      this.#retry();
    }, QUIET);
  }

  #lost() {
    if (!this.#closed && connection.value.state !== "lost") connection.set({ state: "lost", since: now() });
  }

  async #retry() {
    this.#drop();
    clearTimeout(this.#again);
    const pause = Math.min(LONGEST, 1000 * 2 ** this.#tries++);
    this.#again = setTimeout(() => this.#open(), pause);
    const asked = await fetch(this.probe.path.replace(/^\//, "")).catch(() => null);
    if (this.#closed) return;
    if (asked?.status === 401) logInAgain();
    if (asked?.status === 404 || asked?.status === 403) {
      const body = await asked.json().catch(() => null);
      if (this.#closed) return;
      this.close();
      connection.set({ state: "live", since: now() });
      this.probe.gone(new ApiError(asked.status, body));
    }
  }

  /** A browser has few connections to a host, and pages are left open for days. */
  #visibility() {
    clearTimeout(this.#hide);
    if (document.hidden) {
      this.#hide = setTimeout(() => this.#drop(), HIDDEN);
    } else if (this.#source === null || this.#source.readyState === EventSource.CLOSED) {
      this.#tries = 0;
      clearTimeout(this.#again);
      this.#open();
    }
  }
}
