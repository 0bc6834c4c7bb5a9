// Elements by id, and new ones. Text enters the page as text only, never as markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null && child !== ""));
  return element;
}

export const unseen = (text) => make("span", { class: "unseen" }, text);

export const several = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
