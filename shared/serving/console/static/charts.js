// The value under the pointer, in words below the chart.
document.addEventListener("pointerover", (event) => {
  const mark = event.target.closest?.("[data-say]");
  if (!mark) return;
  const output = mark.closest("figure")?.querySelector(".readout");
  if (output) output.textContent = mark.dataset.say;
});
