// On a narrow screen one half of the page is shown at a time.

import { by } from "./dom.js";

const NAMES = ["chat", "engine"];

export function show(name) {
  document.body.dataset.tab = name;
  for (const each of NAMES) {
    const tab = by(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
  }
  window.dispatchEvent(new Event("resize"));
}

for (const [place, name] of NAMES.entries()) {
  const tab = by(`tab-${name}`);
  tab.addEventListener("click", () => show(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = NAMES[(place + 1) % NAMES.length];
    show(other);
    by(`tab-${other}`).focus();
  });
}

show("chat");
