// The value under the pointer, in words below its chart. The same words are the mark's title, for those without a script.
document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest?.("svg [class]");
  const said = mark?.querySelector(":scope > title")?.textContent;
  const readout = mark?.closest("figure")?.querySelector(".readout");
  if (readout) readout.textContent = said ?? "";
});
