// Small parts that pages are made of.
import { ApiError, get } from "./api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { useKey } from "./keys.js";
import { go } from "./router.js";
import { seconds } from "./format.js";

/** The head of a page: its title, what belongs beside it, and what can be done. Also the title of the window. */
export function Head({ title, trail, beside, about, actions }) {
  useEffect(() => {
    document.title = title ? `${title} · minflinkd` : "minflinkd";
  }, [title]);
  return html`<div class="head">
    <div class="title">
      ${trail && html`<div class="trail">${trail}</div>`}
      <div class="line"><h1>${title}</h1>${beside}</div>
      ${about && html`<div class="about">${about}</div>`}
    </div>
    ${actions && html`<div class="actions">${actions}</div>`}
  </div>`;
}

/** `tabs`: [name, address, whether it is shown now]. The keys 1 to 9 lead to them. */
export function Tabs({ label, tabs }) {
  return html`<nav class="tabs" aria-label=${label}>
    ${tabs.map(([name, address, at], i) => html`<${TabKey} key=${name} number=${i + 1} name=${name} address=${address} />
      <a href=${address} aria-current=${at ? "page" : undefined}>${name}</a>`)}
  </nav>`;
}

function TabKey({ number, name, address }) {
  useKey(String(number), name, () => go(address));
  return null;
}

export function Panel({ title, rest, label, children, className = "" }) {
  return html`<section class="panel ${className}" aria-label=${label ?? (typeof title === "string" ? title : undefined)}>
    ${(title || rest) && html`<header><h2>${title}</h2>${rest && html`<div class="rest">${rest}</div>`}</header>`}
    ${children}
  </section>`;
}

/** Large figures in a row: [name, value, note, title]. */
export function Figures({ figures }) {
  return html`<dl class="figures">
    ${figures.filter(Boolean).map(([name, value, note, tone]) => html`<div key=${name}><dt>${name}</dt>
      <dd class=${tone ?? ""}>${value}${note && html`<small class="note" title=${typeof note === "string" ? note : undefined}>${note}</small>`}</dd></div>`)}
  </dl>`;
}

/** A table that can be scrolled with the keyboard where it is too wide. */
export function Scroll({ label, children }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}>${children}</div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

/** An error, in the daemon's words. */
export function Fault({ error }) {
  if (!error) return null;
  return html`<div class="fault" role="alert"><span class="bad">${error.message}</span>
    ${error.faults?.length > 0 && html`<ul>${error.faults.map((fault, i) => html`<li key=${i}><code>${fault.path}</code>: ${fault.problem}${fault.hint && html`<div class="muted">${fault.hint}</div>`}</li>`)}</ul>`}
    ${error.hint && html`<div class="muted">${error.hint}</div>`}</div>`;
}

/** Time spent by phase as a bar: [[name, seconds]]. */
export function Phases({ phases, total }) {
  const sum = total ?? phases.reduce((all, [, one]) => all + one, 0);
  const words = phases.map(([name, one]) => `${name} ${seconds(one)}`).join(", ");
  return html`<span class="phases" role="img" aria-label=${words} title=${words}>
    ${phases.map(([name, one], i) => html`<i key=${name} style=${{ flexGrow: sum ? one / sum : 0, background: phaseColour(i) }}></i>`)}
  </span>`;
}

export const phaseColour = (i) => `var(--series-${1 + (i % 8)})`;

export function PhaseLegend({ phases }) {
  return html`<span class="legend">${phases.map(([name, one], i) => html`<span key=${name}><i style=${{ color: phaseColour(i) }}></i>${name}
    ${one !== undefined && html`<b>${seconds(one)}</b>`}</span>`)}</span>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = () => navigator.clipboard?.writeText(text).then(() => setDone(true), () => {});
  return html`<button class="button quiet small" onClick=${copy}><span aria-live="polite">${done ? "Copied" : label}</span></button>`;
}

/** One of several, as buttons: [[value, name]]. */
export function Choice({ label, options, value, onChange }) {
  return html`<div class="segmented" role="group" aria-label=${label}>
    ${options.map(([one, name]) => html`<button key=${one} aria-pressed=${String(one === value)} onClick=${() => onChange(one)}>${name}</button>`)}
  </div>`;
}

export function Dialog({ title, onClose, children, className = "" }) {
  const dialog = useRef(null);
  // Before the browser paints: after that, the first letters that somebody types would miss the dialog.
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    // After the dialog has gone: until then, nothing else can have the focus.
    return () => queueMicrotask(() => (before?.isConnected ? before : document.getElementById("main"))?.focus?.());
  }, []);
  const outside = (event) => event.target === dialog.current && onClose();
  return html`<dialog ref=${dialog} class=${className} aria-label=${title} onClose=${onClose} onClick=${outside}>${children}</dialog>`;
}

/** Ask for what a page shows once, and again when `key` changes. Returns {value, error, reload}. */
export function useAnswer(path, key = "") {
  const [state, set] = useState({ path: null, value: null, error: null });
  const [again, setAgain] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const control = new AbortController();
    get(path, { signal: control.signal }).then(
      (value) => set({ path, value, error: null }),
      (error) => error instanceof ApiError && set((now) => ({ path, value: now.path === path ? now.value : null, error })),
    );
    return () => control.abort();
  }, [path, key, again]);
  return { ...(state.path === path ? state : { value: null, error: null }), reload: () => setAgain((n) => n + 1) };
}
