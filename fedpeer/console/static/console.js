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
      if (!answer.ok) {
        say(answer.status === 401 || answer.status === 403 ? "not up to date: sign in again" : "not up to date: the console has no answer just now");
        return;
      }
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
  const ticked = [...old.querySelectorAll("input[type=checkbox]")].filter((f) => f.id && f.checked !== f.defaultChecked);
  const open = [...old.querySelectorAll("details[open]")].map((d) => d.id);
  const active = document.activeElement, place = old.contains(active) ? placeOf(active, old) : null;
  const caret = place && "selectionStart" in active ? [active.selectionStart, active.selectionEnd] : null;
  old.innerHTML = fresh.innerHTML;
  for (const id of open) { const d = id && document.getElementById(id); if (d) d.open = true; }
  for (const field of written) { const there = document.getElementById(field.id); if (there) there.value = field.value; }
  for (const field of ticked) { const there = document.getElementById(field.id); if (there) there.checked = field.checked; }
  const there = place && find(place, old);
  if (there) { there.focus({ preventScroll: true }); if (caret && caret[0] !== null) there.setSelectionRange(...caret); }
  countDown();
}

// What has the focus is found again by its id, or as the n-th link or button that reads and leads the same.
function alike(one, other) {
  return one.tagName === other.tagName && one.textContent === other.textContent && one.getAttribute("href") === other.getAttribute("href");
}

function placeOf(element, within) {
  const same = [...within.querySelectorAll(element.tagName)].filter((e) => alike(e, element));
  return { element, id: element.id, number: same.indexOf(element) };
}

function find({ element, id, number }, within) {
  return id ? document.getElementById(id) : [...within.querySelectorAll(element.tagName)].filter((e) => alike(e, element))[number];
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
