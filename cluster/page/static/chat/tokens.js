// Tokens with their probabilities, and what else could have come.

import { make, percent } from "../shared/dom.js";

// From which probability on a token looks so.
const SHADES = [[0.95, "sure"], [0.6, "likely"], [0.2, "open"], [0, "unlikely"]];

/** A row of tokens; one of them is in the order of Tab, and arrow keys lead to the others. */
export class Tokens {
  constructor() {
    this.line = make("div", { className: "text tokens", role: "group", "aria-label": "Tokens of the answer" });
    this.table = make("table", { className: "alternatives", hidden: true });
    this._decoder = new TextDecoder();
    this._open = null;
    this.line.addEventListener("keydown", (event) => this._onKey(event));
  }

  /** `told`: the positions of a chunk's `logprobs.content`. */
  add(told) {
    for (const position of told) {
      const text = this._decoder.decode(new Uint8Array(position.bytes ?? []), { stream: true });
      const probability = Math.exp(position.logprob);
      const [, shade] = SHADES.find(([least]) => probability >= least);
      const token = make("span", {
        className: `token ${shade}`,
        textContent: text || (position.bytes ? "" : position.token),
        title: percent(probability),
        role: "button",
        tabIndex: this.line.childElementCount ? -1 : 0,
        "aria-expanded": "false",
      });
      token.addEventListener("click", () => this._toggle(token, position));
      this.line.append(token);
    }
  }

  _toggle(token, position) {
    const wasOpen = token === this._open;
    this._open?.setAttribute("aria-expanded", "false");
    this._open = wasOpen ? null : token;
    this.table.hidden = wasOpen;
    if (wasOpen) return;
    token.setAttribute("aria-expanded", "true");
    const rows = position.top_logprobs.map((each) => row(each, each.token === position.token));
    if (!position.top_logprobs.some((each) => each.token === position.token)) rows.push(row(position, true));
    this.table.replaceChildren(make("tbody", {}, ...rows));
  }

  _onKey(event) {
    const token = event.target;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      token.click();
      return;
    }
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    const other = step && token[step];
    if (!other) return;
    event.preventDefault();
    token.tabIndex = -1;
    other.tabIndex = 0;
    other.focus();
  }
}

function row(told, isChosen) {
  const probability = Math.exp(told.logprob);
  return make(
    "tr",
    { className: isChosen ? "chosen" : "" },
    make("td", { textContent: JSON.stringify(told.token).slice(1, -1) || "(empty)" }),
    make("td", {}, make("meter", { value: probability, max: 1, "aria-hidden": "true" })),
    make("td", { className: "number", textContent: `${(100 * probability).toFixed(1)}%` }),
  );
}
