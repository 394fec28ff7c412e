// The daemon: who leads, who stands by, how it does over the last hour, and its options.
import { Chart } from "../app/chart.js";
import { useNow } from "../app/clock.js";
import { cluster } from "../app/cluster.js";
import { age, seconds, short, time, whole } from "../app/format.js";
import { html } from "../app/html.js";
import { Empty, Figures, Head, Panel, Scroll } from "../app/parts.js";
import { Sign } from "../app/status.js";
import { useStore } from "../app/store.js";
import { Options } from "./options.js";
import { Rpc } from "./rpc.js";

const HOUR = 3600;

export function DaemonPage() {
  const known = useStore(cluster);
  const now = useNow();
  if (!known.overview) return html`<${Head} title="Daemon" /><${Empty}>Asking the daemon …</${Empty}>`;
  const { overview, figures } = known;
  const { version, leader } = overview.minflinkd;
  return html`<${Head} title="Daemon" about=${html`<span>minflinkd ${version}</span><span>the REST API of Flink ${overview["flink-version"]}</span>`} />
    <div class="stack">
      <${Leaders} extras=${overview.minflinkd} now=${now} />
      <${Figures} figures=${[
        ["Leads since", leader?.since > 0 ? age(leader.since, now) : "–", leader?.since > 0 ? time(leader.since, now) : ""],
        ["Epoch", whole(leader?.epoch), "leaderships until now"],
        ["Standbys", whole(overview.minflinkd.standbys.length)],
        ["Event loop", seconds(figures.last("loop_lag")), "how late it runs", figures.last("loop_lag") > 0.5 ? "bad" : ""],
        ["TaskManagers lost", whole(overview.minflinkd["taskmanagers-lost"])],
      ]} />
      <${Past} figures=${figures} now=${now} />
      <${Rpc} figures=${figures} common=${axis(figures, now)} line=${lines(figures)} />
      <${Options} />
    </div>`;
}

function Leaders({ extras, now }) {
  const { leader, standbys, trouble } = extras;
  const rows = [leader && { ...leader, leads: true }, ...standbys].filter(Boolean);
  return html`<${Panel} title="Who leads" label="Who leads">
    ${trouble && html`<p class="pad row bad"><${Sign} state="problem" />${trouble}</p>`}
    <${Scroll} label="Daemons"><table><thead><tr><th scope="col">Daemon</th><th scope="col">Role</th><th scope="col">Address</th><th scope="col" class="num">Since</th></tr></thead>
      <tbody>${rows.map((one) => html`<tr key=${one.url + one.name}><td class="name">${one.name || "this daemon"}</td><td><span class="row tight"><${Sign} state=${one.leads ? "RUNNING" : "CREATED"} />${one.leads ? "leads" : "stands by"}</span></td>
        <td>${/^https?:/.test(one.url) ? html`<a href=${one.url} rel="noreferrer">${one.url}</a>` : html`<span class="muted">${one.url || "not available"}</span>`}</td><td class="num">${one.leads && one.since > 0 ? time(one.since, now) : "–"}</td></tr>`)}</tbody></table></${Scroll}>
    ${!standbys.length && html`<p class="pad alone muted">No daemon stands by. If this one ends, TaskManagers and their tasks wait for the next one.</p>`}
  </${Panel}>`;
}

/** What the page's charts have in common: the last hour. */
function axis(figures, now) {
  const until = Math.floor(now / 5000) * 5;
  return { times: figures.times(), range: [until - HOUR, until] };
}

const lines = (figures) => (name, words, i) => ({ name: words, values: figures.get(name), colour: `var(--series-${i})` });

function Past({ figures, now }) {
  const common = axis(figures, now);
  const line = lines(figures);
  return html`<${Panel} title="The last hour" label="The last hour"><div class="pad charts">
    <${Chart} ...${common} title="Event loop" note="how late a timer runs" form=${seconds} series=${[line("loop_lag", "late", 1)]} />
    <${Chart} ...${common} title="Slots" form=${short} series=${[line("slots_total", "all", 2), line("slots_free", "free", 3)]} />
    <${Chart} ...${common} title="Jobs and TaskManagers" form=${short} series=${[line("jobs_running", "jobs that run", 4), line("task_managers", "TaskManagers", 5)]} />
  </div></${Panel}>`;
}
