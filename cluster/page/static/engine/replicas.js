// How each engine replica is, and, in a demonstration, the button that kills one of its workers.

import { json } from "../shared/api.js";
import { by, make } from "../shared/dom.js";

export function drawReplicas({ engines, can_kill: canKill }) {
  by("replicas").replaceChildren(...engines.map(replica));
  by("kill").hidden = !canKill;
  const well = engines.filter((engine) => !engine.problem).length;
  by("health").textContent = `${well} of ${engines.length} engine${engines.length === 1 ? "" : "s"} healthy`;
  by("health").classList.toggle("ill", well < engines.length || !engines.length);
}

function replica(engine) {
  const state = engine.problem ?? (engine.is_leaving ? "leaves when its successor is ready" : "healthy");
  const about = make("div", {},
    make("div", {}, make("strong", { textContent: engine.model }), " ", make("span", { className: "state", textContent: state })),
    make("div", { className: "facts", textContent: facts(engine) }),
  );
  const kind = engine.problem ? "ill" : engine.is_leaving ? "leaving" : "";
  return make("li", { className: kind }, make("span", { className: "dot" }), about);
}

function facts(engine) {
  const ranks = numRanksOf(engine);
  return [
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
