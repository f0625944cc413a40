// Requests to the server that the page is from.

import { askForKey, key } from "./key.js";

const WANTED = "This server needs a key. It stays in this tab, and is forgotten when the tab is closed.";
const REFUSED = "The server does not know this key.";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** JSON that is sent as it is written: of a number above 2^53 JavaScript's own would be another. */
export class Written {
  /** Throws a SyntaxError if it is none. */
  constructor(text) {
    JSON.parse(text);
    this.text = text;
  }
}

/** The answer to a request. Asks for a key where one is needed, and again while it is refused. */
export async function ask(path, options = {}) {
  for (;;) {
    const shown = key();
    const headers = { ...options.headers, ...(shown && { authorization: `Bearer ${shown}` }) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.ok) return answer;
    if (answer.status !== 401) throw new ApiError(answer.status, await problemOf(answer));
    if (shown === key() && !(await askForKey(shown ? REFUSED : WANTED))) throw new ApiError(401, "An API key is needed");
  }
}

export async function json(path, options) {
  return (await ask(path, options)).json();
}

/** The events of a stream, until [DONE]; throws an ApiError that the stream tells. */
export async function* events(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: asJson(body),
    signal,
  });
  for await (const line of lines(answer.body)) {
    if (!line.startsWith("data:")) continue;
    const data = line.slice(5).trim();
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(0, event.error.message);
    yield event;
  }
  throw new ApiError(0, "The connection ended before the answer did");
}

/** Of an object, some of whose fields may be `Written`. */
function asJson(body) {
  const fields = Object.entries(body).filter(([, value]) => value !== undefined);
  const text = (value) => (value instanceof Written ? value.text : JSON.stringify(value));
  return `{${fields.map(([name, value]) => `${JSON.stringify(name)}: ${text(value)}`).join(", ")}}`;
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

async function problemOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answers ${answer.status}`;
  }
}
