// The playground: a conversation, and the stream of the answer to its last message.

import { events } from "../shared/api.js";
import { by, make } from "../shared/dom.js";
import { GIVEN } from "../shared/key.js";
import { Answer } from "./answer.js";
import { listModels, parameters, systemMessages } from "./parameters.js";

const NEAR = 80; // pixels from the end of the list within which it follows what is added
let messages = []; // those that were answered, and their answers
let last = null; // the answer at their end
let stopping = null; // of the answer that is streaming

export function startChat() {
  by("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(by("prompt").value);
  });
  by("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    by("ask").requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) stopping?.abort();
  });
  by("stop-button").addEventListener("click", () => stopping?.abort());
  by("clear").addEventListener("click", clear);
  list();
  window.addEventListener(GIVEN, () => by("model").length || list());
}

function list() {
  listModels().then(focusPrompt, (error) => tell(error.message));
}

/** Unless something else has the focus, or a keyboard would come up on the screen. */
function focusPrompt() {
  if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) by("prompt").focus();
}

function ask(text) {
  if (stopping || !text.trim()) return;
  const fields = readFields();
  if (!fields) return;
  by("prompt").value = "";
  send(fields, [{ role: "user", content: text }]);
}

/** Those of the settings; null, and the reader is told, if one is wrong. */
function readFields() {
  try {
    return parameters();
  } catch (error) {
    by("settings").open = true;
    tell(error.message);
    return null;
  }
}

/** Sends the conversation with some messages more: the user's, or tools' results. They are part of
 *  it once an answer is; if none comes, they are taken back. */
async function send(fields, more) {
  const [before, previous] = [messages, last];
  previous?.calls.close(); // their results are sent now, or passed over
  const shown = more.map(({ role, content }) => make("li", { className: `message ${role}`, textContent: content }));
  shown.forEach(show);
  const answer = new Answer((results) => send(fields, results));
  show(answer.element);
  const problem = await receive(answer, { ...fields, messages: [...systemMessages(), ...before, ...more] });
  answer.end(problem);
  if (messages !== before) return; // a new chat was begun
  const said = answer.message();
  if (said) {
    messages = [...before, ...more, said];
    last = answer;
  } else {
    shown.forEach((element) => element.classList.add("unsent"));
    previous?.calls.open();
    takeBack(more);
  }
  follow();
}

/** Into the field where they were written; tools' results are still in theirs. */
function takeBack(unsent) {
  const text = unsent.filter(({ role }) => role === "user").map(({ content }) => content).join("\n");
  if (text && !by("prompt").value) by("prompt").value = text;
}

/** What is wrong with the answer; "" if all of it came. */
async function receive(answer, body) {
  stopping = new AbortController();
  const { signal } = stopping;
  let frame = null;
  const draw = () => {
    frame = null;
    answer.draw();
    follow();
  };
  busy(true);
  try {
    for await (const chunk of events("v1/chat/completions", body, signal)) {
      answer.add(chunk);
      frame ??= requestAnimationFrame(draw);
    }
    return "";
  } catch (error) {
    return signal.aborted ? "stopped" : error.message;
  } finally {
    if (frame !== null) cancelAnimationFrame(frame);
    stopping = null;
    busy(false);
  }
}

function busy(isBusy) {
  by("send").disabled = isBusy;
  by("stop-button").disabled = !isBusy;
}

function clear() {
  stopping?.abort();
  messages = [];
  last = null;
  by("messages").replaceChildren();
  by("prompt").focus();
}

function tell(problem) {
  show(make("li", { className: "problem", textContent: problem, role: "alert" }));
}

function show(element) {
  by("messages").append(element);
  element.scrollIntoView({ block: "nearest" });
}

/** Keeps the end in sight, unless the reader has scrolled away from it. */
function follow() {
  const list = by("messages");
  const scrolled = list.scrollHeight > list.clientHeight ? list : document.scrollingElement;
  if (scrolled.scrollHeight - scrolled.scrollTop - scrolled.clientHeight < NEAR) scrolled.scrollTop = scrolled.scrollHeight;
}
