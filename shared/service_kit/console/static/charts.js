// The value under the pointer, in words below its chart. The same words are the mark's title, for those without a script.
document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest?.("svg [class]");
  const said = mark?.querySelector(":scope > title")?.textContent;
  const readout = mark?.closest("figure")?.querySelector(".readout");
  if (readout) readout.textContent = said ?? "";
});

// A range that is dragged over a chart is that of the form beside it, where the page has one.
let from;
const placed = (svg, event) => {
  const [low, high, start, end] = svg.closest("[data-span]").dataset.span.split(" ").map(Number);
  const box = svg.getBoundingClientRect();
  const share = ((event.clientX - box.left) / box.width - start) / (end - start);
  return Math.round(low + Math.min(1, Math.max(0, share)) * (high - low));
};
const zoomed = () => document.getElementById("zoom");
const wide = (event) => zoomed() && event.target.closest?.("[data-span] svg.wide");

addEventListener("pointerdown", (event) => {
  const svg = wide(event);
  from = svg && event.button === 0 ? { svg, x: event.clientX, at: placed(svg, event) } : undefined;
  if (from) event.preventDefault(); // no text is marked, no link is dragged
});
addEventListener("pointerup", (event) => {
  if (!from || wide(event) !== from.svg || Math.abs(event.clientX - from.x) < 12) return;
  const to = placed(from.svg, event);
  const { first, last } = zoomed().elements;
  [first.value, last.value] = [Math.min(from.at, to), Math.max(from.at, to)];
  zoomed().requestSubmit();
});
document.addEventListener("dragstart", (event) => { if (wide(event)) event.preventDefault(); });
