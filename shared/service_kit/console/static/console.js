// What a page gains from a script; everything works without.
import "./times.js";
import "./live.js";
import "./charts.js";

// On a narrow screen the menu is one row that scrolls: the entry of this page is brought into view.
const menu = document.querySelector(".top nav ul");
const current = menu?.querySelector("[aria-current]");
if (current) menu.scrollLeft = current.offsetLeft - menu.offsetLeft - 16;

// Rows of a long table by a part of their text. Without a script the field is not there.
for (const part of document.querySelectorAll("[data-filter]")) {
  const field = part.querySelector("input");
  const rows = document.querySelectorAll(`#${part.dataset.filter} tbody tr`);
  part.hidden = false;
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  field.addEventListener("input", () => {
    const text = field.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  });
}

for (const note of document.querySelectorAll("[data-focus]")) note.focus();
