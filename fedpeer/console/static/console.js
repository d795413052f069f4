// Keeps a page up to date: counts deadlines down, and fetches the page again when the ledger has grown. Takes files.
"use strict";

const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function timeLeft(seconds) {
  let rest = Math.abs(Math.round(seconds));
  const shown = parts.map(([size, name]) => { const n = Math.floor(rest / size); rest -= n * size; return [n, name]; });
  const first = Math.max(0, shown.findIndex(([n]) => n > 0));
  const at = shown.some(([n]) => n > 0) ? first : 3;
  const text = shown.slice(at, at + 2).map(([n, name]) => `${n} ${name}`).join(" ");
  return seconds >= 0 ? `${text} left` : `passed ${text} ago`;
}

function countDown() {
  for (const place of document.querySelectorAll("[data-deadline]")) {
    place.textContent = timeLeft(Number(place.dataset.deadline) - Date.now() / 1000);
  }
}

let fetching = false, again = false;

async function refresh() {
  if (fetching) { again = true; return; }
  fetching = true;
  try {
    do {
      again = false;
      const answer = await fetch(location.href, { redirect: "error" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (fresh) replace(document.querySelector("main"), fresh);
    } while (again);
    say("up to date, and follows the ledger");
  } catch {
    say("not up to date: the console does not answer");
  } finally {
    fetching = false;
  }
}

function replace(old, fresh) {
  if (old.innerHTML === fresh.innerHTML) return;
  const written = [...old.querySelectorAll("input[type=text], textarea")].filter((f) => f.id && f.value !== f.defaultValue);
  const open = [...old.querySelectorAll("details[open]")].map((d) => d.id);
  const focused = document.activeElement && document.activeElement.id;
  old.innerHTML = fresh.innerHTML;
  for (const id of open) { const d = id && document.getElementById(id); if (d) d.open = true; }
  for (const field of written) { const there = document.getElementById(field.id); if (there) there.value = field.value; }
  if (focused) { const there = document.getElementById(focused); if (there) there.focus(); }
  countDown();
}

function say(text) {
  const place = document.getElementById("live");
  if (place && place.textContent !== text) place.textContent = text;
}

// A file that is dropped or chosen is read here, into the field that its form sends.
for (const place of document.querySelectorAll("[data-drop]")) {
  place.hidden = false;
  const field = document.getElementById(place.dataset.drop);
  const read = async (files) => { if (files.length) field.value = (await files[0].slice(0, 1 << 20).text()); field.focus(); };
  place.querySelector("input").addEventListener("change", (e) => read(e.target.files));
  for (const target of [place, field]) {
    target.addEventListener("dragover", (e) => e.preventDefault());
    target.addEventListener("drop", (e) => { if (e.dataTransfer.files.length) { e.preventDefault(); read(e.dataTransfer.files); } });
  }
}

const main = document.querySelector("main[data-live]");
if (main) {
  countDown();
  setInterval(countDown, 1000);
  const events = new EventSource("/events");
  let known = false;
  events.onopen = () => { if (known) refresh(); else say("follows the ledger"); known = true; };
  events.addEventListener("moved", refresh);
  events.onerror = () => say("not up to date: the console does not answer");
}
