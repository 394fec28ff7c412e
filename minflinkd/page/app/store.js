// A value that components watch. What changes until the next frame is rendered once.
import { useEffect, useState } from "./html.js";

export class Store {
  #watchers = new Set();
  #due = false;

  constructor(value) {
    this.value = value;
  }

  set(fields) {
    this.value = { ...this.value, ...fields };
    this.changed();
  }

  changed() {
    if (this.#due) return;
    this.#due = true;
    const tell = () => {
      this.#due = false;
      for (const watcher of [...this.#watchers]) watcher();
    };
    if (document.hidden) setTimeout(tell, 200); // there are no frames then
    else requestAnimationFrame(tell);
  }

  watch(watcher) {
    this.#watchers.add(watcher);
    return () => this.#watchers.delete(watcher);
  }
}

/** Render with the store's value, and again whenever it changes. */
export function useStore(store) {
  const [, changed] = useState(0);
  useEffect(() => {
    changed((n) => n + 1); // it may have changed before this was rendered
    return store.watch(() => changed((n) => n + 1));
  }, [store]);
  return store.value;
}
