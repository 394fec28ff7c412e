// A log that is followed live, with search: only what is new is fetched, and only the end is kept.
import { part } from "./api.js";
import { bytes, plural, whole } from "./format.js";
import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { useKey } from "./keys.js";
import { Fault } from "./parts.js";

const FIRST = 256 * 1024; // bytes from the end that are read at first
const KEPT = 4 * 1024 * 1024; // characters of the text that are kept
const SHOWN = 2000; // lines
const PAUSE = 1000;

/** Read the end of a log, and what is added to it while `following`. */
function useLog(path, following) {
  const [log, set] = useState({ text: "", size: 0, from: 0, error: null });
  const state = useRef(null);
  useEffect(() => {
    state.current = { next: null, text: "", from: 0, decoder: new TextDecoder() };
    set({ text: "", size: 0, from: 0, error: null });
  }, [path]);
  useEffect(() => {
    let timer = 0;
    let over = false;
    const read = async () => {
      const now = state.current;
      try {
        const found = await part(path, now.next ?? -FIRST, FIRST);
        if (over) return;
        if (now.next === null) now.from = found.offset;
        if (found.size < (now.next ?? 0)) Object.assign(now, { next: null, text: "", decoder: new TextDecoder() }); // it was begun again
        else {
          now.next = found.offset + found.data.length;
          now.text = (now.text + now.decoder.decode(found.data, { stream: true })).slice(-KEPT);
          set({ text: now.text, size: found.size, from: now.from, error: null });
        }
        if (following || now.next === null || now.next < found.size) timer = setTimeout(read, now.next !== null && now.next >= found.size ? PAUSE : 0);
      } catch (error) {
        if (over) return;
        set((before) => ({ ...before, error }));
        if (following) timer = setTimeout(read, 3 * PAUSE);
      }
    };
    read();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [path, following]);
  return log;
}

export function LogView({ path, name }) {
  const [following, setFollowing] = useState(true);
  const [wanted, setWanted] = useState("");
  const [only, setOnly] = useState(true);
  const log = useLog(path, following);
  const box = useRef(null);
  const field = useRef(null);
  const lines = useMemo(() => log.text.split("\n"), [log.text]);
  const found = useMemo(() => search(lines, wanted), [lines, wanted]);
  const shown = wanted && only ? found.map((i) => lines[i]) : lines;
  const last = shown.slice(-SHOWN);
  useKey("/", "Search the log", () => field.current?.focus());
  useKey("f", "Follow the log, or stop", () => setFollowing((on) => !on));
  useEffect(() => {
    if (following && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [last.length, log.text, following]);
  const scrolled = (event) => {
    const { scrollTop, scrollHeight, clientHeight } = event.currentTarget; // the log itself may be gone by now
    if (following && scrollHeight - scrollTop - clientHeight > 80) setFollowing(false);
  };
  return html`<div class="log">
    <div class="row tools">
      <input ref=${field} class="field" type="search" placeholder="Search" aria-label="Search the log" value=${wanted} onInput=${(event) => setWanted(event.target.value)}
        onKeyDown=${(event) => event.key === "Escape" && field.current.blur()} />
      ${wanted && html`<span class="muted" role="status">${plural(found.length, "line")}</span>
        <label class="row muted"><input type="checkbox" checked=${only} onChange=${(event) => setOnly(event.target.checked)} /> only these</label>`}
      <span class="rest"><span class="faint">${bytes(log.size)}${log.from > 0 ? `, from ${bytes(log.from)} on` : ""}</span>
        <button class="button small" aria-pressed=${String(following)} onClick=${() => setFollowing(!following)}>${following ? "Following" : "Follow"}</button>
        <a class="button small" href=${path.replace(/^\//, "")} download=${name}>Download</a></span>
    </div>
    <${Fault} error=${log.error} />
    ${shown.length > SHOWN && html`<p class="muted">The last ${whole(SHOWN)} of ${whole(shown.length)} lines.</p>`}
    <pre ref=${box} class="trace lines" tabindex="0" role="log" aria-label=${name} aria-live="off" onScroll=${scrolled}>${last.map((line, i) => html`<span key=${shown.length - last.length + i} class=${level(line)}>${marked(line, wanted)}</span>`)}</pre>
  </div>`;
}

/** The numbers of the lines that have the text, in any case. */
export function search(lines, wanted) {
  const text = wanted.toLowerCase();
  return text ? lines.flatMap((line, i) => (line.toLowerCase().includes(text) ? [i] : [])) : [];
}

function level(line) {
  if (/\b(ERROR|FATAL|CRITICAL|error|critical|Traceback)\b/.test(line)) return "bad";
  return /\b(WARN|WARNING|warning)\b/.test(line) ? "warn" : "";
}

function marked(line, wanted) {
  if (!wanted) return line;
  const at = line.toLowerCase().indexOf(wanted.toLowerCase());
  return at < 0 ? line : html`${line.slice(0, at)}<mark>${line.slice(at, at + wanted.length)}</mark>${line.slice(at + wanted.length)}`;
}
