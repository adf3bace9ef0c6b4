// What a page gains from a script; everything works without.
import "./times.js";
import "./live.js";
import "./charts.js";

// On a narrow screen the menu is one row that scrolls: the entry of this page is brought into view.
const menu = document.querySelector(".top nav ul");
const here = menu?.querySelector("[aria-current]");
if (here) menu.scrollLeft = here.offsetLeft - menu.offsetLeft - 16;

for (const note of document.querySelectorAll("[data-focus]")) note.focus();
