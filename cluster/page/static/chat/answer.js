// One answer of the model, as its stream arrives.

import { make, seconds } from "../shared/dom.js";
import { showWhy } from "../engine/why.js";
import { Calls } from "./calls.js";
import { Tokens } from "./tokens.js";

export class Answer {
  /** `onResults`: see `Calls`. */
  constructor(onResults) {
    this.content = "";
    this._text = document.createTextNode("");
    this._reasoning = document.createTextNode("");
    this._thinking = make("details", { hidden: true }, make("summary", { textContent: "Reasoning" }));
    this._thinking.append(make("div", { className: "reasoning" }, this._reasoning));
    this._plain = make("div", { className: "text" }, this._text);
    this.calls = new Calls(onResults);
    this._about = make("div", { className: "about" });
    this.element = make("li", { className: "message assistant streaming" });
    this.element.append(this._thinking, this._plain, this.calls.list, this._about);
    this._sent = performance.now();
    this._undrawn = { text: "", reasoning: "", tokens: [] };
  }

  /** Only notes what came: `draw` shows it. */

  add(chunk) {
    this._id ??= chunk.id;
    this._usage = chunk.usage ?? this._usage;
    this._warnings = chunk.warnings ?? this._warnings;
    const choice = chunk.choices[0];
    if (!choice) return;
    const { content, tool_calls: calls, reasoning_content: reasoning } = choice.delta;
    if (content || calls || reasoning) this._first ??= performance.now();
    this._undrawn.tokens.push(...(choice.logprobs?.content ?? []));
    this._undrawn.reasoning += reasoning ?? "";
    this._undrawn.text += content ?? "";
    this.content += content ?? "";
    if (calls) this.calls.add(calls);
    this._reason = choice.finish_reason ?? this._reason;
  }

  /** Shows what came since the last time: once a frame, since each change has the page laid out anew. */
  draw() {
    const { text, reasoning, tokens } = this._undrawn;
    this._undrawn = { text: "", reasoning: "", tokens: [] };
    if (text) this._text.appendData(text);
    if (reasoning) this._reasoning.appendData(reasoning);
    if (reasoning) this._thinking.hidden = false;
    if (tokens.length) this._addTokens(tokens);
  }

  /** `problem`: why the answer is not complete; "" if it is. */
  end(problem) {
    this.draw();
    this.element.classList.remove("streaming");
    this._isWhole = !problem;
    if (this._isWhole) this.calls.open();
    const told = [];
    if (this._first) {
      told.push(`first token after ${seconds((this._first - this._sent) / 1000)}`);
      const took = (performance.now() - this._first) / 1000;
      const num = this._usage?.completion_tokens;
      if (num > 1) told.push(`${num} tokens, ${((num - 1) / took).toFixed(0)} a second`);
      const cached = this._usage?.prompt_tokens_details?.cached_tokens;
      if (this._usage) told.push(`prompt ${this._usage.prompt_tokens}${cached ? `, ${cached} from the cache` : ""}`);
    }
    if (this._reason && this._reason !== "stop") told.push(`ended by ${this._reason}`);
    this._about.append(...told.map((text) => make("span", { textContent: text })));
    for (const text of [problem, ...(this._warnings ?? [])]) {
      if (text) this._about.append(make("span", { className: "problem", textContent: text }));
    }
    if (this._id) {
      const why = make("button", { type: "button", className: "why", textContent: "why" });
      why.addEventListener("click", () => showWhy(this._id));
      this._about.append(why);
    }
  }

  /** As the next request sends it, without calls that were cut off; null if there is no answer. */
  message() {
    const calls = this._isWhole ? this.calls.calls : [];
    if (!this.content && !this._isWhole) return null;
    return { role: "assistant", content: this.content, ...(calls.length && { tool_calls: calls }) };
  }

  _addTokens(told) {
    if (!this._tokens) {
      this._tokens = new Tokens();
      this._plain.replaceWith(this._tokens.line, this._tokens.table);
    }
    this._tokens.add(told);
  }
}
