// What limits or ails a job, in the daemon's sentences: asked when the page opens, and when the job has changed.
import { ago, time } from "./format.js";
import { html } from "./html.js";
import { Fault, Panel, useAnswer } from "./parts.js";
import { to } from "./router.js";
import { Sign } from "./status.js";

const LEVELS = { critical: "problem", warning: "warning", info: "info" };

export function Diagnosis({ job, checkpoints, now }) {
  const changed = [job.state, job.minflinkd.restarts, checkpoints?.minflinkd["consecutive-failures"]].join();
  const { value, error, reload } = useAnswer(`/jobs/${job.jid}/diagnosis`, changed);
  if (!value && !error) return null;
  return html`<${Panel} title="Diagnosis" label="Diagnosis" rest=${html`${value && html`<span class="faint" title=${time(value.now, now)}>looked ${ago(value.now, now)}</span>`}
      <button class="button quiet small" onClick=${reload}>Look again</button>`}>
    <${Fault} error=${error} />
    ${value && !value.findings.length && html`<p class="pad row"><${Sign} state="calm" size=${14} />${value.summary}</p>`}
    ${value?.findings.map((one) => html`<${Finding} key=${`${one.code} ${one.task} ${one.taskmanager}`} finding=${one} jid=${job.jid} now=${now} />`)}
  </${Panel}>`;
}

function Finding({ finding, jid, now }) {
  const { task, taskmanager } = finding;
  return html`<div class="notice">
    <${Sign} state=${LEVELS[finding.severity] ?? "info"} size=${15} />
    <div class="what"><strong>${finding.title}</strong><p>${finding.sentence}</p>${finding.do && html`<p class="why">${finding.do}</p>`}
      ${finding.where && html`<p class="why"><code>${finding.where}</code></p>`}</div>
    <div class="since">${finding.figure}${finding.since > 0 && html`<br />${ago(finding.since, now)}`}</div>
    <div class="do">${task ? html`<a href=${`${to("jobs", jid)}?task=${encodeURIComponent(task)}`}>${task}</a>` : taskmanager && html`<a href=${to("taskmanagers", taskmanager)}>${taskmanager}</a>`}</div>
  </div>`;
}
