// The API key: kept in this tab's session storage, and nowhere else.

import { by } from "./dom.js";

const NAME = "squadron-key";
export const GIVEN = "key-given"; // an event of the window
let asking = null;

export function key() {
  return sessionStorage.getItem(NAME) ?? "";
}

/** Asks for a key, once for all who need one meanwhile; false if none was given. From then on there
 *  is a button to give one. */
export function askForKey(problem) {
  by("key-problem").textContent = problem;
  by("key-button").hidden = false;
  asking ??= new Promise((resolve) => {
    const dialog = by("key-dialog");
    const input = by("key");
    input.value = key();
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue === "use" && input.value) sessionStorage.setItem(NAME, input.value);
      if (dialog.returnValue === "forget") sessionStorage.removeItem(NAME);
      input.value = "";
      const isGiven = dialog.returnValue === "use" && key() !== "";
      resolve(isGiven);
      if (isGiven) window.dispatchEvent(new Event(GIVEN));
    }, { once: true });
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

by("key-button").hidden = !key();
by("key-button").addEventListener("click", () => askForKey("The key of this tab."));
