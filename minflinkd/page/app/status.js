// States: a shape, a colour and a word for each, so that no colour is needed to tell them apart.
import { html } from "./html.js";

const KINDS = {
  RUNNING: ["good", "disc"],
  FINISHED: ["off", "check"],
  CANCELED: ["off", "slash"],
  FAILED: ["bad", "cross"],
  FAILING: ["bad", "ring"],
  RESTARTING: ["warn", "ring"],
  CANCELLING: ["off", "ring"],
  CANCELING: ["off", "ring"],
  CREATED: ["warn", "hollow"],
  SCHEDULED: ["warn", "hollow"],
  DEPLOYING: ["busy", "ring"],
  INITIALIZING: ["busy", "ring"],
  RECONCILING: ["busy", "ring"],
  SUSPENDED: ["off", "slash"],
  IN_PROGRESS: ["busy", "ring"],
  COMPLETED: ["good", "check"],
  completed: ["good", "check"],
  failed: ["bad", "cross"],
  "rolled-back": ["warn", "cross"],
  "on-trial": ["warn", "ring"],
  "handing-over": ["busy", "ring"],
  starting: ["busy", "ring"],
  "turning-back": ["warn", "ring"],
  replaced: ["off", "slash"],
  abandoned: ["off", "slash"],
  ready: ["good", "disc"],
  info: ["busy", "disc"],
  warning: ["warn", "triangle"],
  problem: ["bad", "cross"],
  calm: ["good", "check"],
};
const WORDS = { CREATED: "waiting", IN_PROGRESS: "in progress" };

const SHAPES = {
  disc: html`<circle cx="6" cy="6" r="4" fill="currentColor" />`,
  hollow: html`<circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="1.6" />`,
  ring: html`<g><circle cx="6" cy="6" r="4.3" fill="none" stroke="currentColor" stroke-opacity=".3" stroke-width="1.8" />
    <path class="turning" d="M6 1.7A4.3 4.3 0 0 1 10.3 6" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" /></g>`,
  check: html`<path d="M2 6.4 4.7 9 10 3.2" fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />`,
  cross: html`<path d="m2.6 2.6 6.8 6.8m0-6.8L2.6 9.4" fill="none" stroke="currentColor" stroke-width="1.9" stroke-linecap="round" />`,
  slash: html`<g fill="none" stroke="currentColor" stroke-width="1.6"><circle cx="6" cy="6" r="4.2" /><path d="m3.2 8.8 5.6-5.6" /></g>`,
  triangle: html`<path d="M6 1.4 11.2 10.6H.8Z" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" /><path d="M6 4.8v2.6M6 8.7v.4" stroke="currentColor" stroke-width="1.4" />`,
};

const kind = (state) => KINDS[state] ?? ["off", "hollow"];

/** The name of the colour's class. */
export const tone = (state) => kind(state)[0];

export const wordOf = (state) => WORDS[state] ?? String(state).toLowerCase().replaceAll("_", " ").replaceAll("-", " ");

export function Sign({ state, size = 12 }) {
  return html`<svg class=${tone(state)} width=${size} height=${size} viewBox="0 0 12 12" aria-hidden="true">${SHAPES[kind(state)[1]]}</svg>`;
}

/** The sign and the word. `chip`: with a ground of its own. */
export function State({ state, chip, children }) {
  return html`<span class="state ${tone(state)} ${chip ? "chip" : ""}"><${Sign} state=${state} />${children ?? wordOf(state)}</span>`;
}
