// The requests in the engines, and those that ended last.

import { by, make, seconds } from "../shared/dom.js";
import { colourOf, shortId } from "./blocks.js";
import { showWhy } from "./why.js";

const NUM_ENDED = 6;

let rows = new Map(); // by request and choice: a row stays the same element, or clicks would be lost

export function drawRequests(engines) {
  const seen = new Map();
  let numTold = 0;
  for (const { view } of engines) {
    if (!view?.running) continue;
    const live = [...view.running, ...view.swapped, ...view.waiting];
    numTold += new Set(live.map((each) => each.request_id)).size;
    live.forEach((told) => fill(seen, told, liveCells(told), ""));
  }
  const left = numInEngines(engines) - numTold;
  if (left > 0) seen.set("more", line(`and ${left} more`));
  for (const { view } of engines) {
    (view?.ended ?? []).slice(0, NUM_ENDED).forEach((told) => fill(seen, told, endedCells(told), "ended"));
  }
  if (!seen.size) seen.set("none", line("none yet"));
  rows = seen;
  place([...seen.values()]);
}

/** Moves nothing that is where it should be: a moved element loses its focus. */
function place(wanted) {
  const body = by("requests").tBodies[0];
  if (wanted.length === body.rows.length && wanted.every((row, index) => row === body.rows[index])) return;
  const focused = document.activeElement;
  body.replaceChildren(...wanted);
  if (body.contains(focused)) focused.focus();
}

function fill(seen, told, cells, className) {
  const name = `${told.request_id}/${told.choice ?? 0}`;
  if (seen.has(name)) return;
  const row = rows.get(name) ?? make("tr", {}, nameCell(told), ...cells.map(() => make("td")));
  row.className = className;
  cells.forEach((text, index) => {
    row.cells[index + 1].textContent = text;
  });
  seen.set(name, row);
}

function line(text) {
  return make("tr", {}, make("td", { colSpan: 7, textContent: text }));
}

function numInEngines(engines) {
  const names = ["num_requests_running", "num_requests_swapped", "num_requests_waiting"];
  return engines.reduce((sum, { stats }) => sum + names.reduce((part, name) => part + stats[name], 0), 0);
}

function liveCells(told) {
  const numbers = [told.num_prompt_tokens, told.num_cached_tokens, told.num_output_tokens, told.num_blocks];
  return [told.phase, ...numbers, seconds(told.seconds)];
}

function endedCells(told) {
  return ["ended", "", "", "", "", seconds(told.seconds)];
}

function nameCell(told) {
  const requestId = told.request_id;
  const swatch = make("span", { className: "swatch" });
  swatch.style.background = colourOf(requestId);
  const button = make("button", { "data-request": requestId, title: requestId }, swatch, shortId(told));
  button.addEventListener("click", () => showWhy(requestId));
  return make("td", {}, button);
}
