// Elements. Text is only ever put in as text: no markup is made from strings anywhere on the page.

export function by(id) {
  return document.getElementById(id);
}

/** An element with properties and children; `data-` and `aria-` names and `role` become attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** The value of a colour of the stylesheet, which differs in dark mode. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A canvas's context, sized for the screen's pixels; coordinates are those of CSS. */
export function context(canvas, height) {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const drawing = canvas.getContext("2d");
  drawing.scale(ratio, ratio);
  return [drawing, width];
}

export function seconds(value) {
  if (value >= 100) return `${value.toFixed(0)} s`;
  if (value >= 1) return `${value.toFixed(1)} s`;
  return `${(value * 1000).toFixed(value >= 0.01 ? 0 : 1)} ms`;
}

export function percent(part) {
  return `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)}%`;
}
