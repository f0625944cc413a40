// A model's calls of tools: their arguments as they come, and where their results are entered.

import { make } from "../shared/dom.js";

export class Calls {
  /** `onResults`: called with the messages that answer all calls. */
  constructor(onResults) {
    this.list = make("div");
    this.calls = []; // as they are sent back in the next request
    this._shown = [];
    this._onResults = onResults;
  }

  /** `told`: a chunk's `delta.tool_calls`. */
  add(told) {
    for (const { index, id, function: part } of told) {
      this.calls[index] ??= this._begin(index);
      const call = this.calls[index];
      if (id) call.id = id;
      call.function.name += part?.name ?? "";
      call.function.arguments += part?.arguments ?? "";
      this._shown[index].textContent = `${call.function.name}(${call.function.arguments})`;
    }
  }

  /** The answer has ended: ask for results. */
  end() {
    if (!this.calls.length) return;
    const inputs = this.calls.map((call) => make("input", { required: true, "aria-label": `Result of ${call.function.name}` }));
    const form = make("form", {}, ...inputs, make("button", { textContent: "Send result" }));
    inputs.forEach((input, place) => {
      input.placeholder = this.calls.length > 1 ? `Result of ${place + 1}` : "Result of the call";
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.remove();
      this._onResults(
        this.calls.map((call, place) => ({ role: "tool", tool_call_id: call.id, content: inputs[place].value })),
      );
    });
    this.list.lastElementChild.append(form);
    inputs[0].focus();
  }

  _begin(index) {
    this._shown[index] = make("code");
    this.list.append(make("div", { className: "call" }, "Calls ", this._shown[index]));
    return { id: "", type: "function", function: { name: "", arguments: "" } };
  }
}
