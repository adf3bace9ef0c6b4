// A page with a live part follows its events. At each one it is fetched again, and its parts take the place of the old
// ones. Once its state differs, the whole content does, so that a page ends as a reload would show it.
import { localize } from "./times.js";

const PAUSE_MS = 400; // at most one fetch in this time, however fast events come
const RETRY_MS = [1000, 2000, 5000, 15000];
const main = document.getElementById("main");
const said = document.getElementById("said");
const live = () => main.querySelector("[data-live]");
let failures = 0, source, heard, waiting = false;

if (live() && !("ended" in live().dataset)) {
  heard = sentence();
  open();
  addEventListener("pagehide", () => source.close());
}

function open() {
  source = new EventSource(live().dataset.live);
  source.onopen = () => { failures = 0; delete live().dataset.away; };
  source.onmessage = again;
  for (const kind of ["trial", "run", "query", "inbox", "change"]) source.addEventListener(kind, again);
  source.onerror = () => {
    source.close(); // by itself a browser gives up after some answers
    live().dataset.away = "";
    const pause = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
    setTimeout(async () => { if (await draw()) open(); }, pause);
  };
}

function again() {
  if (waiting) return;
  waiting = true;
  setTimeout(async () => { waiting = false; if (!await draw()) source.close(); }, PAUSE_MS);
}

// Whether there is more to follow.
async function draw() {
  try {
    const reply = await fetch(live().dataset.page, { headers: { "X-Fragment": "1" } });
    if (reply.status === 401) { location.reload(); return false; }
    if (!reply.ok) return true;
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").getElementById("main");
    const next = fresh.querySelector("[data-live]");
    if (next && next.dataset.state === live().dataset.state) fresh.querySelectorAll("[data-part]").forEach(exchange);
    else exchange(fresh);
    if (sentence() && sentence() !== heard) said.textContent = sentence(); // one short line to screen readers
    heard = sentence();
    return next !== null && !("ended" in next.dataset);
  } catch { /* the network is away: the next event or try brings it back */ }
  return true;
}

// What is open, focused and typed stays where the new part has it too. A tick does not: it was about the old part.
function exchange(fresh) {
  const old = document.getElementById(fresh.id);
  if (!old) return;
  const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
  const title = (details) => details.querySelector("summary").textContent;
  const opened = new Set([...old.querySelectorAll("details[open]")].map(title));
  const typed = [...old.querySelectorAll("form [name]")].filter((field) => field.defaultValue !== undefined && field.value !== field.defaultValue);
  for (const details of fresh.querySelectorAll("details")) details.open ||= opened.has(title(details));
  for (const field of typed) {
    const form = [...fresh.querySelectorAll("form")].find((form) => form.action === field.form.action && form.elements[field.name]);
    if (form && field.type !== "file") form.elements[field.name].value = field.value;
  }
  localize(fresh);
  old.replaceChildren(...fresh.childNodes);
  const next = focus ? document.getElementById(focus) : document.activeElement === document.body && old.querySelector("[autofocus]");
  if (next) next.focus();
}

function sentence() {
  return main.querySelector("[data-say]")?.textContent.trim().replace(/\s+/g, " ") ?? "";
}
