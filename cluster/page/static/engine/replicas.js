// How each engine replica is, and, in a demonstration, the button that kills one of its workers.

import { json } from "../shared/api.js";
import { by, make } from "../shared/dom.js";

export const CHOSEN = "replica-chosen"; // an event of the window
let name = ""; // of the replica that is chosen
let rows = new Map(); // by replica: a row stays the same element, or clicks would be lost

/** The replica of which all is to be shown; "" for the first ones. */
export function chosen() {
  return name;
}

export function drawReplicas({ engines, can_kill: canKill }) {
  if (!engines.some((engine) => engine.replica === name)) name = "";
  const isOneOfMany = engines.some((engine) => !engine.is_seen);
  const before = rows;
  rows = new Map(engines.map((engine) => [engine.replica, before.get(engine.replica) ?? makeRow(engine)]));
  engines.forEach((engine) => fill(rows.get(engine.replica), engine, isOneOfMany));
  place([...rows.values()]);
  by("kill").hidden = !canKill;
  const well = engines.filter((engine) => !engine.problem).length;
  by("health").textContent = `${well} of ${engines.length} engine${engines.length === 1 ? "" : "s"} healthy`;
  by("health").classList.toggle("ill", well < engines.length || !engines.length);
}

/** Moves nothing that is where it should be: a moved element loses its focus. */
function place(wanted) {
  const list = by("replicas");
  if (wanted.length === list.children.length && wanted.every((row, index) => row === list.children[index])) return;
  list.replaceChildren(...wanted);
}

function makeRow({ replica }) {
  const show = make("button", { type: "button", textContent: "Show", "data-replica": replica });
  show.addEventListener("click", () => {
    name = replica;
    window.dispatchEvent(new Event(CHOSEN));
  });
  const title = make("div", {}, make("strong"), " ", make("span", { className: "state" }));
  return make("li", {}, make("span", { className: "dot" }), make("div", {}, title, make("div", { className: "facts" })), show);
}

function fill(row, engine, isOneOfMany) {
  const [, about, show] = row.children;
  row.className = kind(engine);
  about.querySelector("strong").textContent = engine.model;
  about.querySelector(".state").textContent = state(engine);
  about.querySelector(".facts").textContent = facts(engine);
  show.hidden = !isOneOfMany;
  show.setAttribute("aria-pressed", String(engine.is_seen));
}

function kind(engine) {
  if (engine.problem) return "ill";
  return engine.is_leaving || engine.is_silent ? "leaving" : "";
}

function state(engine) {
  if (engine.problem) return engine.problem;
  if (engine.is_silent) return "does not answer now: below is what it told last";
  return engine.is_leaving ? "leaves when its successor is ready" : "healthy";
}

function facts(engine) {
  const ranks = numRanksOf(engine);
  return [
    ...(engine.computes_prompts ? ["computes prompts for the others"] : []),
    `replica ${shortName(engine.replica)}`,
    `process ${engine.pid}`,
    `node ${engine.node.slice(0, 8)}`,
    ...(ranks ? [`${ranks} rank${ranks === 1 ? "" : "s"}`] : []),
    `${engine.stats.num_steps} steps`,
  ].join(" · ");
}

/** Of its last step; 0 before the first. */
export function numRanksOf({ view }) {
  const place = view?.step_fields?.indexOf("rank_ms");
  return view?.steps?.at(-1)?.[place].length ?? 0;
}

/** The part of Serve's name that tells replicas apart. */
export function shortName(name) {
  return name.slice(name.lastIndexOf("#") + 1);
}

by("kill-button").addEventListener("click", async () => {
  by("kill-button").disabled = true;
  try {
    const { rank, pid } = await json("debug/kill_worker", { method: "POST" });
    by("killed").textContent = `Killed rank ${rank}, process ${pid}. Streams wait for the next worker, and go on.`;
  } catch (error) {
    by("killed").textContent = error.message;
  }
  by("kill-button").disabled = false;
});
