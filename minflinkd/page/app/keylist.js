// The list of keys, and whether single keys do anything.
import { html, useState } from "./html.js";
import { allKeys, setSingleKeys, singleKeys } from "./keys.js";
import { Dialog } from "./parts.js";

export function KeyList({ onClose }) {
  const [on, setOn] = useState(singleKeys());
  const change = (event) => {
    setSingleKeys(event.target.checked);
    setOn(event.target.checked);
  };
  return html`<${Dialog} title="Keys" onClose=${onClose}><div class="inside">
    <h2>Keys</h2>
    <dl class="keys">${allKeys().map(({ keys, means }) => html`<dt key=${keys}>${means}</dt>
      <dd>${keys.split(" ").map((key) => html`<kbd key=${key}>${key}</kbd> `)}</dd>`)}</dl>
    <div class="buttons"><label class="row muted"><input type="checkbox" checked=${on} onChange=${change} /> Single keys</label>
      <button class="button" onClick=${onClose}>Close</button></div>
  </div></${Dialog}>`;
}
