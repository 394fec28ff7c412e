// What needs attention, as a panel: worst first.
import { ago, time } from "./format.js";
import { html } from "./html.js";
import { Sign } from "./status.js";

/** `calm`: what is said when nothing is wrong; nothing is shown without it. */
export function Notices({ notices, now, calm }) {
  if (!notices.length) {
    return calm ? html`<section class="panel calm" aria-label="Attention"><${Sign} state="calm" size=${15} /><span>${calm}</span></section>` : null;
  }
  const worst = notices[0].level;
  return html`<section class="panel attention ${worst === "problem" ? "bad-inside" : ""}" aria-label="Attention">
    ${notices.map((one) => html`<${Notice} key=${one.key} notice=${one} now=${now} />`)}
  </section>`;
}

function Notice({ notice, now }) {
  return html`<div class="notice">
    <${Sign} state=${notice.level} size=${15} />
    <div class="what"><strong>${notice.what}</strong>${notice.why && html`<p class="why">${notice.why}</p>`}</div>
    <div class="since" title=${notice.since > 0 ? time(notice.since, now) : undefined}>${notice.since > 0 ? ago(notice.since, now) : ""}</div>
    <div class="do">${notice.link && html`<a href=${notice.link}>${notice.linkName}</a>`}</div>
  </div>`;
}
