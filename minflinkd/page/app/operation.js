// One operation in a dialog: says what will happen, asks, shows how it goes on, and what became of it.
import { useNow } from "./clock.js";
import { age } from "./format.js";
import { classes, html, useEffect, useRef, useState } from "./html.js";
import { Dialog, Fault } from "./parts.js";
import { Sign } from "./status.js";

/**
 * `says`: what will happen, in a sentence. `run({step, tell, signal})` does it: `step` names the phase, and how far
 * it is; `tell` says what is in the way; it returns the sentence for the end. `signal`: nobody looks any more, but what
 * was begun goes on. `children`: what can be chosen. `ready`: whether it can begin.
 */
export function Operation({ title, says, verb, danger, run, onClose, children, ready = true }) {
  const [state, set] = useState({ at: "asking", steps: [], trouble: null, error: null, result: null });
  const control = useRef(null);
  const closing = useRef(null);
  useEffect(() => () => control.current?.abort(), []);
  useEffect(() => {
    if (state.at === "done" || state.at === "failed") closing.current?.focus();
  }, [state.at]);
  const begin = async (event) => {
    event.preventDefault();
    if (!ready || state.at === "running") return;
    control.current = new AbortController();
    const { signal } = control.current;
    const update = (fields) => signal.aborted || set((now) => ({ ...now, ...(typeof fields === "function" ? fields(now) : fields) }));
    set({ at: "running", steps: [], trouble: null, error: null, result: null });
    const step = (what, more = "") => update(({ steps }) => {
      const last = steps.at(-1);
      if (last?.what === what) return last.more === more ? {} : { steps: [...steps.slice(0, -1), { ...last, more }] };
      return { steps: [...steps, { what, more, since: Date.now() }].slice(-8) };
    });
    try {
      const result = await run({ step, tell: (trouble) => update({ trouble }), signal });
      update({ at: "done", result });
    } catch (error) {
      update({ at: "failed", error });
    }
  };
  const { at } = state;
  return html`<${Dialog} title=${title} className="operation" onClose=${onClose}>
    <form class="inside" onSubmit=${begin}>
      <h2>${title}</h2>
      <p>${says}</p>
      ${at !== "done" && children && html`<fieldset class="choices" disabled=${at === "running"}><legend class="unseen">What to do</legend>${children}</fieldset>`}
      ${at === "running" && html`<${Steps} steps=${state.steps} />`}
      <div aria-live="polite">
        ${at === "running" && state.trouble && html`<p class="warn row"><${Sign} state="warning" />${state.trouble}</p>`}
        ${at === "done" && html`<p class="row result"><${Sign} state="calm" size=${14} /><span>${state.result}</span></p>`}
      </div>
      ${at === "failed" && html`<div class="refused"><${Fault} error=${state.error} /></div>`}
      <div class="buttons">
        <button type="button" ref=${closing} class=${classes("button", at === "done" && "primary")} onClick=${onClose}>${at === "asking" ? "Leave it" : "Close"}</button>
        ${at !== "done" && html`<button type="submit" class=${classes("button", danger ? "danger" : "primary")} disabled=${!ready || at === "running"} autofocus=${!children}>${at === "failed" ? "Try again" : verb}</button>`}
      </div>
      ${at === "running" && html`<p class="faint small-print">If you close this, it goes on.</p>`}
    </form>
  </${Dialog}>`;
}

function Steps({ steps }) {
  useNow();
  return html`<ol class="steps" aria-label="Progress">
    ${steps.map(({ what, more, since }, i) => {
      const last = i === steps.length - 1;
      return html`<li key=${`${i} ${what}`}><${Sign} state=${last ? "IN_PROGRESS" : "COMPLETED"} /><span>${what}${more && html` <span class="muted">${more}</span>`}</span>
        <span class="faint">${last ? age(since, Date.now()) : ""}</span></li>`;
    })}
    ${!steps.length && html`<li><${Sign} state="IN_PROGRESS" /><span>Asking the daemon</span></li>`}
  </ol>`;
}

/** A checkbox with what it means. */
export function Check({ checked, onChange, children }) {
  return html`<label class="check"><input type="checkbox" checked=${checked} onChange=${(event) => onChange(event.target.checked)} /><span>${children}</span></label>`;
}

export function Text({ label, note, ...rest }) {
  return html`<label class="labelled"><span>${label}</span><input class="field" ...${rest} />${note && html`<small class="muted">${note}</small>`}</label>`;
}

/**
 * Return [start, dialog]: `start(operation, props)` opens one, and `dialog` is it. What it is about may vanish meanwhile,
 * together with the button that opened it: the dialog stays.
 */
export function useOperation() {
  const [open, set] = useState(null);
  const dialog = open && html`<${open.operation} ...${open.props} onClose=${() => set(null)} />`;
  return [(operation, props) => set({ operation, props }), dialog];
}
