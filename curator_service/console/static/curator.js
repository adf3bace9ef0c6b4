// What the curator's pages gain from a script; everything works without.

// Parts of a form that belong to other choices are put away.
for (const form of document.querySelectorAll("form")) {
  const parts = form.querySelectorAll("[data-when]");
  if (!parts.length) continue;
  const show = () => {
    for (const part of parts) {
      const [name, values] = part.dataset.when.split("=");
      const chosen = form.querySelector(`input[name="${name}"]:checked`)?.value;
      part.hidden = !values.split(",").includes(chosen);
    }
  };
  form.addEventListener("change", show);
  show();
}

// Bounds typed for a column make it a feature at once, and a tick taken off again stays off.
document.querySelector("[data-bounded]")?.remove();
document.addEventListener("input", (event) => {
  const row = event.target.closest?.("table.inputs tr");
  const box = row?.querySelector("input[data-row]");
  if (box && event.target !== box && event.target.value.trim() !== "") box.checked = true;
});

// A value that is typed once: click or focus takes it all.
for (const field of document.querySelectorAll("[data-select]")) field.addEventListener("focus", () => field.select());

// Copies a field; without this one selects it.
for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const field = document.getElementById(button.dataset.copy);
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
    } catch {
      document.execCommand("copy"); // a page that came over plain http
    }
    button.textContent = "Copied";
  });
}

// The inbox by keyboard. Only in the value field, where these letters mean nothing else.
document.addEventListener("keydown", (event) => {
  if (!event.target.matches("[data-keys]") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "s") {
    event.preventDefault();
    document.getElementById("skip")?.click();
  } else if (event.key === "d") {
    event.preventDefault();
    const decline = document.getElementById("decline");
    if (!decline) return;
    decline.open = true;
    decline.querySelector("input[type=radio]:checked, input[type=radio]")?.focus();
  }
});
// After a refusal too: with one field alone, the field is where one goes on; its error describes it.
const value = document.querySelector("[data-keys]");
value?.focus();
value?.select();

// What takes seconds says so, and is not sent twice.
document.addEventListener("submit", ({ target }) => {
  if (target.method !== "post") return;
  target.classList.add("sent");
  setTimeout(() => target.classList.remove("sent"), 20000);
});
addEventListener("pageshow", () => document.querySelectorAll("form.sent").forEach((form) => form.classList.remove("sent")));

// The privacy dial: what it means is drawn again at each move.
const dial = document.querySelector(".dial");
if (dial) {
  const form = dial.closest("form"), range = dial.querySelector("input"), field = form.elements[dial.dataset.field ?? "release.epsilon"];
  const part = document.querySelector("#effect [data-part]"), said = document.getElementById("effect-said");
  const steps = dial.dataset.steps.split(",").map(Number);
  let waiting, newest = 0;
  const follow = () => {
    const value = Math.log(Number(field.value) || 1);
    const distances = steps.map((step) => Math.abs(Math.log(step) - value));
    range.value = distances.indexOf(Math.min(...distances));
    range.setAttribute("aria-valuetext", `epsilon ${field.value}`);
  };
  const draw = async () => {
    const mine = ++newest, headers = { "X-Fragment": "1" };
    const reply = await fetch(dial.dataset.effect, { method: "POST", headers, body: new URLSearchParams(new FormData(form)) }).catch(() => null);
    if (mine !== newest || !reply?.ok) return;
    part.replaceChildren(...new DOMParser().parseFromString(await reply.text(), "text/html").body.childNodes);
    const line = part.querySelector("[data-said]")?.textContent.trim() ?? "";
    if (said.textContent !== line) said.textContent = line;
    if (part.querySelector("[data-again]")) soon(2000);
  };
  const soon = (pause) => { clearTimeout(waiting); waiting = setTimeout(draw, pause); };
  const use = (value) => { field.value = value; follow(); soon(150); };
  range.hidden = range.labels[0].hidden = false;
  range.addEventListener("input", () => use(steps[range.value]));
  field.addEventListener("input", follow);
  form.addEventListener("input", () => soon(300));
  form.addEventListener("change", () => soon(300));
  part.addEventListener("click", (event) => {
    const value = event.target.dataset.use;
    if (!value) return;
    if (form.elements.find?.value !== "groups") return use(value);
    form.elements["groups.epsilon"].value = value;
    soon(150);
  });
  follow();
  draw();
}
