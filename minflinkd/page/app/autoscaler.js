// What the autoscaler has decided for a job, why, and what it did before.
import { ago, rate, share, whole } from "./format.js";
import { html } from "./html.js";
import { Panel, Scroll } from "./parts.js";

const WORDS = { stays: "it stays", "scale-up": "more slots", "scale-down": "fewer slots", waits: "it waits", limited: "limited" };
const MOST = 5; // changes

export function Autoscaler({ job, now }) {
  const told = job.minflinkd.autoscaler;
  if (!told) return null;
  const bounds = `${told.min} to ${told.max} slots, target ${share(told["target-utilization"])}`;
  if (!told.enabled) return html`<${Panel} title="Autoscaler" rest=${html`<span class="muted">off</span>`}></${Panel}>`;
  const cooling = told.ready !== null && told.ready > now;
  return html`<${Panel} title="Autoscaler" rest=${html`<span class="muted">${bounds}</span>`}>
    <div class="pad stack">
      <p><strong class=${told.verdict === "limited" ? "warn" : ""}>${WORDS[told.verdict] ?? "not looked yet"}</strong>${told.why && html`: ${told.why}`}${cooling && html` <span class="muted">(cool-down)</span>`}</p>
      ${told.groups.length > 0 && html`<${Groups} groups=${told.groups} />`}
      ${told.changes.length > 0 && html`<dl class="pairs">${told.changes.slice(0, MOST).map((one) => html`<dt key=${one.number} class="nowrap">${ago(one.requested, now)}</dt>
        <dd>${one.why}${one.state !== "completed" && html` <span class="muted">(${one.state})</span>`}</dd>`)}</dl>`}
    </div>
  </${Panel}>`;
}

function Groups({ groups }) {
  return html`<${Scroll} label="Slots that are needed"><table>
    <thead><tr><th scope="col">Slot sharing group</th><th scope="col" class="num">Slots</th><th scope="col" class="num">Needs</th><th scope="col" class="num">Used</th>
      <th scope="col" class="num">Rows come in</th><th scope="col" class="num">It could process</th><th scope="col" class="num hide-narrow">Wait</th></tr></thead>
    <tbody>${groups.map((one) => html`<tr key=${one.group}><td>${one.group}</td><td class="num">${one.slots}</td><td class="num">${one.wanted.toFixed(1)}</td>
      <td class="num" title=${one.sure ? undefined : "at most: what a row costs is not known exactly yet"}>${one.sure ? "" : "≤ "}${share(one.utilization)}</td>
      <td class="num">${rate(one.rate)}</td><td class="num">${one.capacity === null ? "–" : rate(one.capacity)}</td>
      <td class="num hide-narrow">${one.backlog === null ? "–" : whole(one.backlog)}</td></tr>`)}</tbody>
  </table></${Scroll}>`;
}
