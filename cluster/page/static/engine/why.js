// Where one request's time went.

import { json } from "../shared/api.js";
import { by, make, percent, seconds } from "../shared/dom.js";

let asked = ""; // the request that was asked of last

export async function showWhy(id) {
  asked = id;
  by("why-id").textContent = id;
  by("why-bar").replaceChildren();
  by("why-table").tBodies[0].replaceChildren();
  by("why-dialog").showModal();
  try {
    const why = await json(`debug/why/${encodeURIComponent(id)}`);
    if (asked === id) draw(why);
  } catch (error) {
    if (asked === id) by("why-id").textContent = `${id}: ${error.message}`;
  }
}

function draw(why) {
  const phases = Object.entries(why.seconds);
  const sum = phases.reduce((total, [, value]) => total + value, 0);
  by("why-bar").replaceChildren(...phases.map(([phase, value]) => {
    const part = make("span", { className: kind(phase) });
    part.style.width = `${(100 * value) / sum}%`;
    return part;
  }));
  const rows = phases.map(([phase, value]) => row(phase, value, sum));
  rows.push(row("sum", sum, sum));
  if (why.draft_tokens) rows.push(make("tr", {}, cell(`${why.accepted_tokens} of ${why.draft_tokens} guessed tokens were right`)));
  by("why-table").tBodies[0].replaceChildren(...rows);
}

function row(phase, value, sum) {
  const name = phase === "sum" ? cell("sum") : make("td", {}, swatched(phase));
  return make("tr", { className: phase === "sum" ? "sum" : "" }, name, cell(seconds(value)), cell(percent(value / sum)));
}

function swatched(phase) {
  return make("span", { className: "name" }, make("span", { className: `swatch ${kind(phase)}` }), phase);
}

function cell(text) {
  return make("td", { textContent: text });
}

function kind(phase) {
  return `of-${phase.split(" ")[0]}`;
}
