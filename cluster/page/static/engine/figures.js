// The figures at the top, of all engines that answer together.

import { by, make, percent } from "../shared/dom.js";

export function drawFigures(engines, history) {
  const sum = (name) => engines.reduce((total, engine) => total + engine.stats[name], 0);
  const [blocks, free] = [sum("num_gpu_blocks"), sum("num_free_gpu_blocks")];
  const [queries, hits] = [sum("num_prefix_queries"), sum("num_prefix_hits")];
  const preemptions = sum("num_preemptions_swap") + sum("num_preemptions_recompute");
  show([
    ["Tokens a second", history.rate("num_generation_tokens", engines).toFixed(0), `and ${history.rate("num_prompt_tokens", engines).toFixed(0)} of prompts`],
    ["Running", sum("num_requests_running"), `requests, ${sum("num_requests_finished")} ended`],
    ["Waiting", sum("num_requests_waiting"), `and ${sum("num_requests_swapped")} swapped out`],
    ["Cache in use", blocks ? percent(1 - free / blocks) : "–", `${blocks - free} of ${blocks} blocks`],
    ["Prefix hits", queries ? percent(hits / queries) : "–", `${hits} of ${queries} tokens`],
    ["Recoveries", sum("num_recoveries"), `and ${preemptions} preemptions`],
  ]);
}

function show(figures) {
  const list = by("figures");
  if (list.childElementCount !== figures.length) {
    list.replaceChildren(...figures.map(([name]) => make("div", {}, make("dt", { textContent: name }), make("dd"))));
  }
  figures.forEach(([, value, more], place) => {
    list.children[place].lastElementChild.replaceChildren(`${value} `, make("small", { textContent: more }));
  });
}
