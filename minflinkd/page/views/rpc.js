// Requests between the daemon's parties and TaskManagers: whether they are answered, and how fast.
import { Chart } from "../app/chart.js";
import { millis, plural, rate, seconds, whole } from "../app/format.js";
import { html, useState } from "../app/html.js";
import { Empty, Fault, Figures, Panel, Scroll, useAnswer } from "../app/parts.js";
import { Sign } from "../app/status.js";

const MOST = 10; // messages that are shown at first

/** `common`: the time axis of the page's charts. It is asked for again with each sample. */
export function Rpc({ figures, common, line }) {
  const { value, error } = useAnswer("/rpc", common.times.at(-1) ?? 0);
  return html`<${Panel} title="RPC" label="RPC"><${Fault} error=${error} />
    ${value && html`<div class="pad"><${Health} rpc=${value} figures=${figures} /></div>`}
    <div class="pad charts">
      <${Chart} ...${common} title="Requests" note="per second" form=${rate} series=${[line("rpc_per_second", "all", 1), line("rpc_unanswered_per_second", "unanswered", 2)]} />
      <${Chart} ...${common} title="Slowest request" form=${seconds} series=${[line("rpc_slowest", "slowest", 3)]} />
      <${Chart} ...${common} title="Requests under way" form=${whole} series=${[line("rpc_in_flight", "under way", 4)]} />
    </div>
    ${value && html`<${Messages} messages=${value.messages} /><${Mailboxes} rpc=${value} />`}
  </${Panel}>`;
}

const refusals = ({ outcomes, unanswered, requests }) => requests - unanswered - (outcomes.ok ?? 0);
const sum = (messages, of) => messages.reduce((all, one) => all + of(one), 0);
const most = (messages, of) => messages.reduce((best, one) => ((of(one) ?? 0) > (best ? of(best) : 0) ? one : best), null);

function Health({ rpc, figures }) {
  const { messages, mailboxes } = rpc;
  const unanswered = sum(messages, (one) => one.unanswered);
  const refused = sum(messages, refusals);
  const slowest = most(messages, (one) => one.slowest);
  const oldest = most(mailboxes, (one) => one.oldest);
  return html`<${Figures} figures=${[
    ["Requests", rate(figures.last("rpc_per_second")), `${whole(sum(messages, (one) => one.requests))} in the last minute`],
    ["Unanswered", whole(unanswered), unanswered ? most(messages, (one) => one.unanswered).message : "in the last minute", unanswered ? "bad" : ""],
    ["Refused", whole(refused), refused ? most(messages, refusals).message : "in the last minute"],
    ["Slowest", millis(slowest?.slowest), slowest?.message ?? "in the last minute"],
    ["Under way", whole(sum(messages, (one) => one["in-flight"]))],
    ["Waits longest", oldest ? millis(oldest.oldest) : "nothing", oldest ? `${oldest.message} at ${oldest.address}` : "in no mailbox"],
  ]} />`;
}

function Messages({ messages }) {
  const [all, setAll] = useState(false);
  if (!messages.length) return html`<${Empty}>No request has ended in the last minute.</${Empty}>`;
  const shown = all ? messages : messages.slice(0, MOST);
  return html`<${Scroll} label="Requests of the last minute"><table><thead><tr><th scope="col">Message</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Mean</th><th scope="col" class="num">Slowest</th><th scope="col" class="num">Under way</th><th scope="col">Not ok</th></tr></thead>
      <tbody>${shown.map((one) => html`<tr key=${one.message}><td class="mono">${one.message}</td><td class="num">${whole(one.requests)}</td><td class="num">${millis(one.mean)}</td><td class="num">${millis(one.slowest)}</td><td class="num">${whole(one["in-flight"])}</td><td><${Failures} message=${one} /></td></tr>`)}</tbody></table></${Scroll}>
    ${shown.length < messages.length && html`<p class="pad alone"><button class="button" onClick=${() => setAll(true)}>${plural(messages.length - shown.length, "other message")}</button></p>`}`;
}

function Failures({ message }) {
  const failed = Object.entries(message.outcomes).filter(([outcome]) => outcome !== "ok");
  if (!failed.length) return html`<span class="faint">none</span>`;
  return html`<span class="row tight">${message.unanswered > 0 && html`<${Sign} state="problem" />`}${failed.map(([outcome, count]) => `${outcome} ${whole(count)}`).join(", ")}</span>`;
}

function Mailboxes({ rpc }) {
  const { mailboxes } = rpc;
  return html`<${Scroll} label="Mailboxes"><table><thead><tr><th scope="col">Mailbox</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">The oldest for</th><th scope="col">Its message</th></tr></thead>
      <tbody>${mailboxes.map((one) => html`<tr key=${one.address}><td class="mono">${one.address}</td><td class="num">${whole(one.waiting)}</td><td class="num">${one.waiting ? millis(one.oldest) : "–"}</td><td class="mono">${one.message || "–"}</td></tr>`)}</tbody></table></${Scroll}>
    ${rpc["mailboxes-left-out"] > 0 && html`<p class="pad alone muted">${plural(rpc["mailboxes-left-out"], "other mailbox", "other mailboxes")}</p>`}`;
}
