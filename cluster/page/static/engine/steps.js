// The last steps by rank: how much of each moment a rank has worked, and at what.

import { by, colour, context, make } from "../shared/dom.js";
import { numRanksOf, shortName } from "./replicas.js";

const WINDOWS = [10, 2, 0.2]; // seconds
const LIVE = 5; // from which on the window ends now, and not with the last step
const [ROW, GAP, LABEL, AXIS] = [20, 4, 56, 18]; // pixels
const KINDS = ["decode", "prefill", "swap"];
const RESTARTING = "workers are restarting";
let chosen = WINDOWS[0];
let drawn = () => {};

export function drawSteps(engines, history) {
  drawn = () => draw(engines, history);
  drawn();
}

function draw(engines, history) {
  const place = by("timelines");
  while (place.childElementCount > 2 * engines.length) place.lastElementChild.remove();
  while (place.childElementCount < 2 * engines.length) {
    place.append(make("canvas", { className: "picture", role: "img" }), make("p", { className: "caption" }));
  }
  engines.forEach((engine, index) => {
    const [canvas, caption] = [place.children[2 * index], place.children[2 * index + 1]];
    const steps = [...history.of(engine).steps.values()];
    drawEngine(canvas, engine, steps, history.of(engine).now);
    caption.textContent = said(engine, steps.at(-1), engines.length > 1);
    canvas.setAttribute("aria-label", `Steps of ${engine.model} by rank. ${caption.textContent}`);
  });
}

function said(engine, last, isOneOfSeveral) {
  const name = isOneOfSeveral ? `${engine.model}, ${shortName(engine.replica)}: ` : "";
  if (!last) return `${name}no steps in the last seconds`;
  const parts = [`${last.sequences} sequence${last.sequences === 1 ? "" : "s"}`];
  if (last.prefill_tokens) parts.push(`${last.prefill_tokens} prompt tokens`);
  if (last.decoding) parts.push(`${last.decoding} decoding`);
  return `${name}last step ${last.step}: ${parts.join(", ")}, ${Math.max(...last.rank_ms).toFixed(1)} ms`;
}

function drawEngine(canvas, engine, steps, now) {
  const numRanks = Math.max(1, numRanksOf(engine), ...steps.map((step) => step.rank_ms.length));
  const [drawing, width] = context(canvas, numRanks * (ROW + GAP) + AXIS);
  const end = chosen >= LIVE || !steps.length ? now : steps.at(-1).finished;
  const start = end - chosen;
  const columns = Math.max(1, Math.floor(width - LABEL));
  const at = (time) => ((time - start) / chosen) * columns;
  for (let rank = 0; rank < numRanks; rank += 1) {
    const top = rank * (ROW + GAP);
    drawing.fillStyle = colour("free");
    drawing.fillRect(LABEL, top, columns, ROW);
    drawing.fillStyle = colour("faint");
    drawing.font = "12px system-ui, sans-serif";
    drawing.fillText(`rank ${rank}`, 0, top + 14);
    drawRank(drawing, top, columns, work(steps, rank, columns, at));
  }
  drawRecoveries(drawing, engine, steps, now, [start, end], at, numRanks * (ROW + GAP) - GAP);
  drawing.fillStyle = colour("faint");
  drawing.fillText(`${chosen} s ago`, LABEL, numRanks * (ROW + GAP) + 13);
  const right = chosen >= LIVE ? "now" : "last step";
  drawing.fillText(right, width - drawing.measureText(right).width, numRanks * (ROW + GAP) + 13);
}

/** By kind of step, the share of each pixel column's time in which the rank worked. */
function work(steps, rank, columns, at) {
  const shares = Object.fromEntries(KINDS.map((kind) => [kind, new Float32Array(columns)]));
  for (const step of steps) {
    const share = shares[kindOf(step)];
    const until = at(step.finished);
    const from = Math.max(0, at(Math.max(step.submitted, step.finished - (step.rank_ms[rank] ?? 0) / 1000)));
    for (let column = Math.floor(from); column < Math.min(columns, until); column += 1) {
      share[column] += Math.min(until, column + 1) - Math.max(from, column);
    }
  }
  return shares;
}

function kindOf(step) {
  if (step.swapped_out || step.swapped_in) return "swap";
  return step.prefill_tokens ? "prefill" : "decode";
}

function drawRank(drawing, top, columns, shares) {
  const base = new Float32Array(columns);
  for (const kind of KINDS) {
    drawing.fillStyle = colour(kind);
    shares[kind].forEach((share, column) => {
      const height = Math.min(share, 1 - base[column]) * ROW;
      if (height <= 0) return;
      drawing.fillRect(LABEL + column, top + ROW * (1 - base[column]) - height, 1, height);
      base[column] += height / ROW;
    });
  }
}

function drawRecoveries(drawing, engine, steps, now, [start, end], at, height) {
  const spells = (engine.view?.recovered ?? []).map((each) => [each.start, each.end]);
  if (engine.problem?.startsWith(RESTARTING)) spells.push([steps.at(-1)?.processed ?? now, now]);
  drawing.fillStyle = colour("recovery");
  drawing.globalAlpha = 0.75;
  for (const [from, until] of spells) {
    if (until < start || from > end) continue;
    const left = Math.max(0, at(from));
    drawing.fillRect(LABEL + left, 0, Math.max(2, at(Math.min(until, end)) - left), height);
  }
  drawing.globalAlpha = 1;
}

by("step-legend").append(
  ...["prefill", "decode", "swap", "recovery"].map((kind) =>
    make("li", {}, make("span", { className: `swatch of-${kind}` }), kind)),
  make("li", { textContent: "height: share of the time at work" }),
  make("li", {}, make("label", {}, "Window ", windows())),
);

function windows() {
  const select = make("select", { id: "window" });
  select.append(...WINDOWS.map((each) => make("option", { value: each, textContent: `${each} s` })));
  select.addEventListener("change", () => {
    chosen = Number(select.value);
    drawn();
  });
  return select;
}
