// The keyboard: single keys and sequences such as `g o`, which can be turned off for those who dictate.
import { useLayoutEffect, useRef } from "./html.js";

const PAUSE = 1200; // milliseconds between the keys of a sequence
const bindings = new Map(); // by keys: what they do, the latest last
let before = "";
let at = 0;

const STORED = "single-keys";
let enabled = true;
try {
  enabled = localStorage.getItem(STORED) !== "off";
} catch {
  // no storage: they are on
}
export const singleKeys = () => enabled;
export function setSingleKeys(on) {
  enabled = on;
  try {
    localStorage.setItem(STORED, on ? "on" : "off");
  } catch {
    // it holds until the page is closed
  }
}

/** Bind keys while the component is there. `means` is shown in the list of keys. */
export function useKey(keys, means, action) {
  const binding = useRef({ keys }).current;
  Object.assign(binding, { means, action }); // what a key does is what was rendered last
  useLayoutEffect(() => {
    bindings.set(keys, [...(bindings.get(keys) ?? []), binding]);
    return () => bindings.set(keys, bindings.get(keys).filter((one) => one !== binding));
  }, [keys]);
}

export function allKeys() {
  return [...bindings.values()].map((all) => all.at(-1)).filter((one) => one?.means);
}

function run(keys, event) {
  const binding = bindings.get(keys)?.at(-1);
  if (!binding) return false;
  event.preventDefault();
  binding.action(event);
  return true;
}

const writes = (element) =>
  element?.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(element?.tagName);

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    run("Ctrl K", event);
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    run("Esc", event);
    return;
  }
  if (!enabled || event.key.length > 1 || writes(event.target) || document.querySelector("dialog[open]")) return;
  const sequence = event.timeStamp - at < PAUSE && before ? `${before} ${event.key}` : "";
  before = event.key;
  at = event.timeStamp;
  if (sequence && run(sequence, event)) before = "";
  else run(event.key, event);
});
