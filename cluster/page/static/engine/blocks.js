// The cache's blocks, in their order, in the colour of the sequence that has them.

import { by, colour, context, make } from "../shared/dom.js";
import { shortName } from "./replicas.js";

const CELL = 7; // pixels, the gap between two among them
const BLOCK = 10; // likewise, of a block of a sequence
const NUM_SHOWN = 16; // sequences
const [FREE, KEPT, SHARED, FIRST] = [0, 1, 2, 3]; // as in engine/records/view.py
const HUES = [205, 160, 30, 275, 340, 90, 240, 50];

export function drawBlocks(engines) {
  const place = by("block-maps");
  while (place.childElementCount > 3 * engines.length) place.lastElementChild.remove();
  while (place.childElementCount < 3 * engines.length) {
    place.append(make("div", { className: "tables" }), make("canvas", { className: "picture", role: "img" }));
    place.append(make("p", { className: "caption" }));
  }
  engines.forEach((engine, index) => {
    const [tables, canvas, caption] = [0, 1, 2].map((part) => place.children[3 * index + part]);
    if (!engine.view?.blocks) return;
    caption.textContent = said(engine, engines.length > 1);
    canvas.setAttribute("aria-label", `Cache blocks of ${engine.model}. ${caption.textContent}`);
    drawTables(tables, engine.view);
    drawCells(canvas, engine.view.blocks.cells, CELL, engine.view);
  });
}

/** A line for each sequence: its own blocks, one by one. */
function drawTables(place, view) {
  const shown = view.running.slice(0, NUM_SHOWN);
  place.replaceChildren(...shown.map((told) => {
    const canvas = make("canvas", { className: "picture", role: "img" });
    canvas.setAttribute("aria-label", `Request ${told.request_id}: ${told.num_blocks} blocks`);
    return make("div", { className: "table" }, make("span", { textContent: shortId(told) }), canvas);
  }));
  shown.forEach((told, index) => drawCells(place.children[index].lastElementChild, view.blocks.tables[index], BLOCK, view));
}

export function shortId({ request_id: requestId, choice }) {
  return `#${requestId.slice(requestId.lastIndexOf("-") + 1)}${choice ? `/${choice}` : ""}`;
}

function said(engine, isOneOfSeveral) {
  const name = isOneOfSeveral ? `${engine.model}, ${shortName(engine.replica)}: ` : "";
  const { num_gpu_blocks: all, num_free_gpu_blocks: free } = engine.stats;
  const { blocks_per_cell: each } = engine.view.blocks;
  const scale = each === 1 ? "a cell is a block" : `a cell is ${each} blocks`;
  return `${name}${all - free} of ${all} blocks in use, of ${engine.view.block_size} tokens; ${scale}`;
}

function drawCells(canvas, runs, size, view) {
  const cells = runs.flatMap(([kind, count]) => Array(count).fill(kind));
  const columns = Math.max(1, Math.floor(canvas.clientWidth / size));
  const [drawing] = context(canvas, Math.ceil(cells.length / columns) * size);
  const colours = new Map([[FREE, colour("free")], [KEPT, colour("kept")], [SHARED, colour("shared")]]);
  cells.forEach((kind, place) => {
    if (!colours.has(kind)) colours.set(kind, colourOf(view.running[kind - FIRST]?.request_id ?? ""));
    drawing.fillStyle = colours.get(kind);
    drawing.fillRect((place % columns) * size, Math.floor(place / columns) * size, size - 1, size - 1);
  });
}

/** The same for a request wherever it is shown. */
export function colourOf(requestId) {
  let number = 0;
  for (const character of requestId) number = (number * 31 + character.codePointAt(0)) % 9973;
  return `hsl(${HUES[number % HUES.length]} 60% 52%)`;
}

by("block-legend").append(
  ...[["a sequence's own", null], ["shared", "of-shared"], ["kept for prefix hits", "of-kept"], ["free", "of-free"]].map(
    ([text, kind]) => {
      const swatch = make("span", { className: `swatch ${kind ?? ""}` });
      if (!kind) swatch.style.background = `linear-gradient(90deg, ${HUES.slice(0, 3).map((hue) => `hsl(${hue} 60% 52%)`)})`;
      return make("li", {}, swatch, text);
    },
  ),
);
