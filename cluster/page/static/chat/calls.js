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

  /** Asks for results: once the answer has ended, and again if they were not taken. */
  open() {
    if (!this.calls.length) return;
    const isFirst = !this._form;
    this._form ??= this._makeForm();
    this.list.lastElementChild.append(this._form);
    if (isFirst) this._form.elements[0].focus();
  }

  close() {
    this._form?.remove();
  }

  _makeForm() {
    const inputs = this.calls.map((call) => make("input", { required: true, "aria-label": `Result of ${call.function.name}` }));
    const form = make("form", {}, ...inputs, make("button", { textContent: "Send result" }));
    inputs.forEach((input, place) => {
      input.placeholder = this.calls.length > 1 ? `Result of ${place + 1}` : "Result of the call";
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._onResults(
        this.calls.map((call, place) => ({ role: "tool", tool_call_id: call.id, content: inputs[place].value })),
      );
    });
    return form;
  }

  _begin(index) {
    this._shown[index] = make("code");
    this.list.append(make("div", { className: "call" }, "Calls ", this._shown[index]));
    return { id: "", type: "function", function: { name: "", arguments: "" } };
  }
}
