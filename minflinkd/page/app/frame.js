// The frame around all pages: the bar, the connection, and what belongs to no page.
import { cluster } from "./cluster.js";
import { time } from "./format.js";
import { html, useEffect, useState } from "./html.js";
import { KeyList } from "./keylist.js";
import { useKey } from "./keys.js";
import { SECTIONS } from "./pages.js";
import { Palette } from "./palette.js";
import { go } from "./router.js";
import { useStore } from "./store.js";
import { connection } from "./stream.js";

const MARK = html`<svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true"><path d="M5 12c4.5-5.5 9 5.5 13.5 0s6.5-3 8.5-2M5 21c4.5-5.5 9 5.5 13.5 0s6.5-3 8.5-2" fill="none" stroke="currentColor" stroke-width="3.2" stroke-linecap="round" /></svg>`;

export function Frame({ path, children }) {
  const [open, setOpen] = useState(null);
  useKey("Ctrl K", "Go to a job, a page or a TaskManager", () => setOpen("palette"));
  useKey("?", "This list", () => setOpen("keys"));
  const top = `#/${path.split("/")[0]}`;
  return html`<a class="skip button" href="#main" onClick=${skip}>Skip to the page</a>
    <header class="bar">
      <a class="brand" href="#/" aria-label="minflinkd, overview">${MARK}minflinkd</a>
      <nav aria-label="Pages">
        ${SECTIONS.map(([name, address, keys]) => html`<a key=${address} href=${address} title=${keys} aria-current=${isAt(address, top) ? "page" : undefined}>${name}</a>
          <${Shortcut} key=${keys} keys=${keys} name=${name} address=${address} />`)}
      </nav>
      <div class="rest">
        <button class="button quiet optional" onClick=${() => setOpen("palette")}>Go to <kbd>Ctrl K</kbd></button>
        <${Connection} />
        <${Theme} />
        <${Who} />
        <button class="button quiet optional" aria-label="Keys" onClick=${() => setOpen("keys")}><kbd>?</kbd></button>
      </div>
    </header>
    <${Lost} />
    <main id="main" tabindex="-1">${children}</main>
    ${open === "palette" && html`<${Palette} onClose=${() => setOpen(null)} />`}
    ${open === "keys" && html`<${KeyList} onClose=${() => setOpen(null)} />`}`;
}

const isAt = (address, top) => (address === "#/" ? top === "#/" || top === "#/jobs" : address === top);

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Shortcut({ keys, name, address }) {
  useKey(keys, name, () => go(address));
  return null;
}

const WORDS = { live: "Live", connecting: "Connecting", lost: "No connection" };

function Connection() {
  const { state } = useStore(connection);
  return html`<span class="connection ${state}"><i></i><span class=${state === "live" ? "optional" : ""}>${WORDS[state]}</span></span>`;
}

/** Said only if it lasts: a connection that is mended at once is nobody's business. */
function Lost() {
  const { state, since } = useStore(connection);
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (state !== "lost") return undefined;
    const timer = setTimeout(() => setLate(true), 1500);
    return () => clearTimeout(timer);
  }, [state, since]);
  return html`<div role="status">${state === "lost" && late && html`<p class="lost-line">
    The connection to the daemon is lost since ${time(since)}. What you see is from before; the page tries again by itself.</p>`}</div>`;
}

const THEMES = { auto: ["light", "As the system: light or dark"], light: ["dark", "Light"], dark: ["auto", "Dark"] };

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "auto");
  const [next, name] = THEMES[theme];
  const change = () => {
    if (next === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // it holds until the page is closed
    }
    setTheme(next);
    dispatchEvent(new Event("themechange"));
  };
  useKey("t", "Theme: light, dark, as the system", change);
  return html`<button class="button quiet" title=${`Theme: ${name}`} aria-label=${`Theme: ${name}`} onClick=${change}>
    <svg width="15" height="15" viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="6" fill="none" stroke="currentColor" stroke-width="1.5" />
      ${theme !== "light" && html`<path d=${theme === "dark" ? "M8 2a6 6 0 0 1 0 12A6 6 0 0 1 8 2" : "M8 2a6 6 0 0 1 0 12Z"} fill="currentColor" />`}</svg>
  </button>`;
}

function Who() {
  const { who } = useStore(cluster);
  if (!who || who.name === "anonymous") return null;
  return html`<span class="muted optional" title=${`role ${who.role}${who.jobs?.length ? `, jobs ${who.jobs.join(", ")}` : ""}`}>${who.name}</span>
    <button class="button quiet optional" onClick=${logOut}>Log out</button>`;
}

async function logOut() {
  await fetch("logout", { method: "POST" }).catch(() => null);
  location.replace(location.pathname);
}
