// Ctrl K: go to a job, a page or a TaskManager by a part of its name.
import { cluster, look } from "./cluster.js";
import { html, useEffect, useState } from "./html.js";
import { Dialog } from "./parts.js";
import { SECTIONS } from "./pages.js";
import { go, to } from "./router.js";
import { wordOf } from "./status.js";
import { useStore } from "./store.js";

const MOST = 30;

export function Palette({ onClose }) {
  const { jobs, managers } = useStore(cluster);
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  useEffect(() => {
    look().catch(() => null);
  }, []);
  const places = matching(text, [
    ...SECTIONS.map(([name, address]) => [name, "page", address]),
    ...jobs.map((job) => [job.name, wordOf(job.state), to("jobs", job.jid), job.jid]),
    ...managers.map(({ id }) => [id, "TaskManager", to("taskmanagers", id)]),
  ]);
  const chosen = Math.min(at, places.length - 1);
  const open = (place) => {
    onClose();
    if (place) go(place[2]);
  };
  const keyed = (event) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, places.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") open(places[chosen]);
    else return;
    event.preventDefault();
  };
  const typed = (event) => {
    setText(event.target.value);
    setAt(0);
  };
  return html`<${Dialog} title="Go to" className="palette" onClose=${onClose}>
    <input type="text" role="combobox" aria-expanded="true" aria-controls="places" aria-label="Go to" placeholder="Go to a job, a page or a TaskManager"
      aria-activedescendant=${places.length ? `place-${chosen}` : undefined} value=${text} onInput=${typed} onKeyDown=${keyed} autofocus />
    <ul id="places" role="listbox" aria-label="Places">
      ${places.map((place, i) => html`<li key=${place[2]} id=${`place-${i}`} role="option" aria-selected=${String(i === chosen)}
        onClick=${() => open(place)}><span class="clip">${place[0]}</span><span>${place[1]}</span></li>`)}
    </ul>
    ${!places.length && html`<p class="empty">Nothing has this in its name.</p>`}
  </${Dialog}>`;
}

/** Names that begin with the text come first. */
export function matching(text, places) {
  const wanted = text.trim().toLowerCase();
  const rank = ([name, , , id = ""]) => {
    const where = name.toLowerCase().indexOf(wanted);
    return where < 0 && !id.startsWith(wanted) ? -1 : where === 0 ? 0 : 1;
  };
  const found = places.filter((place) => rank(place) >= 0);
  return found.sort((a, b) => rank(a) - rank(b)).slice(0, MOST);
}
