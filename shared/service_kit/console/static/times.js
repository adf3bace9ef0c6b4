// Moments in the reader's own time, with its zone.
const shown = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short",
});
const zone = shown.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value ?? "UTC";

export function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    time.textContent = shown.format(moment);
    time.title = time.dateTime;
  }
}

localize(document);
for (const part of document.querySelectorAll("[data-zone]")) part.textContent = `your own zone (${zone})`;
