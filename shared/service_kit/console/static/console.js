// What a page gains from a script; everything works without.
import "./times.js";
import "./live.js";
import "./charts.js";

for (const note of document.querySelectorAll("[data-focus]")) note.focus();
