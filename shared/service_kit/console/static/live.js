// Live parts: upon an event, the server renders the part again and it takes the place of the old one.
import { localize } from "./times.js";

const PAUSE_MS = 400; // at most one fetch in this time, however fast events come
const RETRY_MS = [1000, 2000, 5000, 15000];
const heard = new WeakMap(); // by part: the sentence that it last showed

for (const part of document.querySelectorAll("[data-live]")) follow(part);

function follow(part) {
  if (part.querySelector("[data-ended]")) return; // it had come to its end when the page was made
  let failures = 0;
  let source;
  heard.set(part, sentence(part));
  const again = throttled(() => replace(part));

  function open() {
    source = new EventSource(part.dataset.live);
    source.onopen = () => { failures = 0; part.dataset.state = "live"; };
    source.onmessage = again;
    for (const kind of (part.dataset.kinds ?? "trial run query change").split(" ")) source.addEventListener(kind, again);
    source.onerror = () => {
      source.close(); // by itself a browser gives up after some answers
      part.dataset.state = "waiting";
      const pause = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      setTimeout(async () => { if (await replace(part)) open(); }, pause);
    };
  }

  open();
  addEventListener("pagehide", () => source.close());
}

// Whether there is more to follow: a part with data-ended has come to its end.
async function replace(part) {
  try {
    const reply = await fetch(part.dataset.fragment, { headers: { "X-Fragment": "1" } });
    if (reply.status === 401) { location.reload(); return false; }
    if (!reply.ok) return true;
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html");
    const kept = focusOf(part);
    const open = [...part.querySelectorAll("details")].map((d) => d.open);
    for (const other of fresh.querySelectorAll("[data-part]")) { // a part of the page that stands elsewhere
      other.remove();
      const old = document.getElementById(other.id);
      if (old && (old.dataset.state !== other.dataset.state || !old.contains(document.activeElement))) old.replaceWith(other);
    }
    part.replaceChildren(...fresh.body.childNodes);
    say(part);
    part.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? d.open; });
    localize(part);
    if (kept) document.getElementById(kept)?.focus();
    part.dispatchEvent(new CustomEvent("replaced", { bubbles: true }));
    if (part.querySelector("[data-ended]")) { part.dataset.state = "ended"; return false; }
  } catch { /* the network is away: the next event or try brings it back */ }
  return true;
}

function sentence(part) {
  return part.querySelector("[data-say]")?.textContent.trim().replace(/\s+/g, " ") ?? "";
}

// One short line to screen readers, where it has changed.
function say(part) {
  const now = sentence(part);
  if (now && now !== heard.get(part)) part.previousElementSibling.textContent = now;
  heard.set(part, now);
}

function focusOf(part) {
  const active = document.activeElement;
  return active && part.contains(active) ? active.id : "";
}

function throttled(act) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    setTimeout(() => { waiting = false; act(); }, PAUSE_MS);
  };
}
