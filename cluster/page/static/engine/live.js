// The live view: asks the server once a second, as long as somebody can see it.

import { json } from "../shared/api.js";
import { by } from "../shared/dom.js";
import { GIVEN } from "../shared/key.js";
import { drawBlocks } from "./blocks.js";
import { drawFigures } from "./figures.js";
import { CHOSEN, chosen, drawReplicas } from "./replicas.js";
import { drawRequests } from "./requests.js";
import { History } from "./history.js";
import { drawSteps } from "./steps.js";

const PERIOD = 1000; // milliseconds
const history = new History();
let timer = null;
let isAsking = false;

export function startView() {
  document.addEventListener("visibilitychange", look);
  window.addEventListener("resize", look);
  window.addEventListener(GIVEN, look);
  window.addEventListener(CHOSEN, look);
  look();
}

function isSeen() {
  return document.visibilityState === "visible" && by("engine").offsetParent !== null;
}

async function look() {
  if (isAsking || !isSeen()) return;
  clearTimeout(timer);
  isAsking = true;
  let isAllowed = true;
  try {
    draw(await json(chosen() ? `debug/view?replica=${encodeURIComponent(chosen())}` : "debug/view"));
    tell("");
  } catch (error) {
    isAllowed = error.status !== 401 && error.status !== 403;
    tell(`The engines cannot be seen now: ${error.message}`);
  }
  isAsking = false;
  if (isAllowed) timer = setTimeout(look, PERIOD); // otherwise when a key is given, or somebody looks again
}

function draw(told) {
  history.add(told.engines);
  by("view").hidden = false;
  drawFigures(told.engines.filter((engine) => !engine.computes_prompts), history);
  drawReplicas(told);
  const seen = told.engines.filter((engine) => engine.view);
  drawSteps(seen, history);
  drawBlocks(seen);
  drawRequests(told.engines);
}

function tell(problem) {
  by("view-problem").textContent = problem;
  by("view-problem").hidden = !problem;
  by("view").classList.toggle("old", Boolean(problem));
}
