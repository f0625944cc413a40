// The form of settings, and the fields of a request that it stands for.

import { json, Written } from "../shared/api.js";
import { by, make } from "../shared/dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty"];
const NUM_ALTERNATIVES = 5;
const integer = { type: "integer" };
const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "add",
      description: "Adds two numbers",
      parameters: { type: "object", properties: { a: integer, b: integer }, required: ["a", "b"] },
    },
  },
];

/** Fills the list of models. */
export async function listModels() {
  const models = (await json("v1/models")).data.map((model) => model.id);
  by("model").replaceChildren(...models.map((name) => make("option", { textContent: name })));
}

/** The fields of a request beside its messages; throws an Error that names what is wrong. */
export function parameters() {
  const fields = { model: by("model").value || undefined, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) {
    const input = by(name);
    if (!input.checkValidity()) throw new Error(`${input.labels[0].textContent.trim()}: ${input.validationMessage}`);
    if (input.value !== "") fields[name] = Number(input.value);
  }
  const stop = by("stop").value.split("|").filter((text) => text !== "");
  if (stop.length) fields.stop = stop;
  if (by("logprobs").checked) Object.assign(fields, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
  if (by("ignore_eos").checked) fields.ignore_eos = true;
  const tools = by("tools").value.trim();
  if (tools) fields.tools = readTools(tools);
  return fields;
}

export function systemMessages() {
  const content = by("system").value.trim();
  return content ? [{ role: "system", content }] : [];
}

function readTools(text) {
  try {
    return new Written(text);
  } catch (error) {
    throw new Error(`Tools: ${error.message}`);
  }
}

by("example-tools").addEventListener("click", () => {
  by("tools").value = JSON.stringify(EXAMPLE, null, 2);
});
by("parameters").addEventListener("submit", (event) => event.preventDefault());
