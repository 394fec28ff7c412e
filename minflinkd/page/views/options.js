// The daemon's options: their values, and where each was set.
import { plural } from "../app/format.js";
import { html, useMemo, useRef, useState } from "../app/html.js";
import { useKey } from "../app/keys.js";
import { Empty, Fault, Panel, Scroll, useAnswer } from "../app/parts.js";

const LAYERS = { "command-line": "command line" }; // the others have a place

const originsOf = (option) => option.minflinkd?.origins ?? [];
const words = ({ layer, place, entry }) => [entry && `${entry}:`, place || LAYERS[layer] || layer].filter(Boolean).join(" ");

export function Options() {
  const { value, error } = useAnswer("/jobmanager/config");
  const [filter, setFilter] = useState("");
  const [onlySet, setOnlySet] = useState(false);
  const field = useRef(null);
  useKey("/", "Filter the options", () => field.current?.focus());
  const wanted = filter.trim().toLowerCase();
  const shown = useMemo(() => (value ?? []).filter((one) => (!onlySet || originsOf(one).length) && matches(one, wanted)), [value, wanted, onlySet]);
  const rest = html`<span class="muted" role="status">${value ? plural(shown.length, "option") : ""}</span>
    <label class="row tight muted"><input type="checkbox" checked=${onlySet} onChange=${(event) => setOnlySet(event.target.checked)} />Only what was set</label>
    <input ref=${field} class="field" type="search" placeholder="Filter" aria-label="Filter the options" value=${filter} onInput=${(event) => setFilter(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && (setFilter(""), field.current.blur())} />`;
  return html`<${Panel} title="Options" label="Options" rest=${rest}><${Fault} error=${error} />
    ${value && (shown.length
      ? html`<${Scroll} label="Options"><table class="options"><thead><tr><th scope="col">Option</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
          <tbody>${shown.map((one) => html`<tr key=${one.key}><td class="mono">${one.key}</td><td class="mono">${one.value || html`<span class="faint">empty</span>`}</td><td><${From} origins=${originsOf(one)} /></td></tr>`)}</tbody></table></${Scroll}>`
      : html`<${Empty}>${wanted ? "No option has this in its name, its value or where it was set." : "All options are the defaults."}</${Empty}>`)}
  </${Panel}>`;
}

function matches(option, wanted) {
  return [option.key, option.value, ...originsOf(option).map(words)].some((text) => text.toLowerCase().includes(wanted));
}

function From({ origins }) {
  if (!origins.length) return html`<span class="faint">default</span>`;
  return origins.map((one) => html`<div key=${one.entry} class=${one.place ? "mono" : ""}>${words(one)}</div>`);
}
