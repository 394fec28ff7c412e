// The root: which page is shown, what it follows, and what is said if a page fails.
import { returnToPlace } from "./api.js";
import { follow, learnWho } from "./cluster.js";
import { Frame } from "./frame.js";
import { html, render, useEffect, useErrorBoundary, useRef } from "./html.js";
import { followJob } from "./job.js";
import { find } from "./pages.js";
import { Empty, Head } from "./parts.js";
import { useRoute } from "./router.js";

function App() {
  const route = useRoute();
  const page = find(route.parts);
  const jid = page?.follows === "job" ? page.values.jid : null;
  useEffect(() => (jid ? followJob(jid) : follow()), [jid]);
  const opened = useRef(true);
  useEffect(() => {
    if (opened.current) {
      opened.current = false; // the browser begins at the top
      return;
    }
    if (document.activeElement === document.body || document.activeElement?.closest("main")) document.getElementById("main").focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [route.path]);
  return html`<${Frame} path=${route.path}><${Guarded} key=${route.path} page=${page} query=${route.query} /></${Frame}>`;
}

/** A page that fails leaves the others usable. */
function Guarded({ page, query }) {
  const [error] = useErrorBoundary((problem) => console.error(problem));
  if (error) return html`<${Head} title="This page has failed" /><${Empty}>${String(error)}. Reload it; the other pages still work.</${Empty}>`;
  if (!page) return html`<${Head} title="Nothing is here" /><${Empty}><a href="#/">The overview</a> leads everywhere.</${Empty}>`;
  return html`<${page.view} ...${page.values} query=${query} />`;
}

returnToPlace();
learnWho();
render(html`<${App} />`, document.getElementById("page"));
