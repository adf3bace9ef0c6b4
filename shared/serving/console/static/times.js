// Moments in the reader's own time, with its zone.
const shown = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });
const zoned = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
const zone = zoned.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value ?? "UTC";

export function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.valueOf())) continue;
    time.textContent = shown.format(moment);
    time.title = `${time.dateTime} · ${zone}`;
  }
}

localize(document);
for (const place of document.querySelectorAll("[data-zone]")) place.textContent = `your own zone (${zone})`;
