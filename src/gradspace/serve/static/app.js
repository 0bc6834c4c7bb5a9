// Turns what is typed, dropped or clicked into an address, and an address into what is shown.

import * as api from "./api.js";
import { byId, make, several } from "./dom.js";
import { whenDropped } from "./drop.js";
import * as item from "./item.js";
import * as results from "./results.js";
import { MOST_K, fromAddress, toAddress } from "./state.js";

const TYPING = 160;
const PAUSE = 1500;
const pictures = []; // searched by; an address cannot hold one, so the history has its number
let indexes = [];
let state = fromAddress(location.search);
let picture = null;
let weight = 0.5;
let columns = [];
let searched = "";
let searching = null;
let typed = { timer: 0, at: 0 };

// --- state and history -------------------------------------------------------------------------

function go(changes, { push = true } = {}) {
  state = { ...state, ...changes };
  const entry = { picture: picture?.number ?? null };
  history[push ? "pushState" : "replaceState"](entry, "", toAddress(state));
  show();
}

function fromHistory() {
  state = fromAddress(location.search);
  picture = pictures[history.state?.picture] ?? null;
  show();
}

const link = (changes) => toAddress({ ...state, ...changes });
const chosen = () => {
  const known = state.index.map((id) => indexes.find((each) => each.id === id)).filter(Boolean);
  return known.length ? known : indexes.slice(0, 1);
};

const readPictures = () => chosen().every((each) => each.reads_pictures);
const conditions = () => [...new Set(chosen().flatMap((each) => each.conditions))];
const sentences = () => chosen()[0].sentences;

// --- search ------------------------------------------------------------------------------------

const isAsked = () => Boolean(state.q.trim() || state.like || picture);

async function search() {
  const { item: _, from: __, ...asked } = state;
  const key = JSON.stringify([asked, picture?.number, weight, chosen().map((each) => each.id)]);
  if (key === searched) return;
  searched = key;
  searching?.abort();
  searching = new AbortController();
  const { signal } = searching;
  document.body.classList.toggle("waiting", isAsked());
  if (!isAsked()) {
    columns = [];
    drawResults();
    return;
  }
  const found = await Promise.all(chosen().map(async (index) => {
    try {
      return { index, ...(await api.search({ ...asked, file: picture?.file, weight }, index.id, signal)), index };
    } catch (error) {
      return { index, error: error.message, hits: [] };
    }
  }));
  if (signal.aborted) return;
  document.body.classList.remove("waiting");
  columns = found;
  drawResults();
  showItem();
}

function drawResults() {
  const focused = document.activeElement?.dataset.key;
  results.draw(columns, link);
  byId("count").textContent = columns.length ? results.count(columns) : "";
  byId("more").hidden = state.k >= MOST_K || !columns.some((each) => each.hits.length === state.k);
  const fields = new Set(columns.flatMap((each) => each.hits.flatMap((hit) => Object.keys(hit.metadata))));
  const begun = [...fields].map((field) => `${field}=`);
  byId("fields").replaceChildren(...[...conditions(), ...begun].map((value) => make("option", { value })));
  if (focused) results.focusTile(document.querySelector(`.tile[data-key="${CSS.escape(focused)}"]`));
}

// --- display -----------------------------------------------------------------------------------

function show() {
  document.body.classList.toggle("start", !isAsked());
  document.title = state.q ? `${state.q} · gradspace` : "gradspace search";
  if (byId("q").value.trim() !== state.q.trim()) byId("q").value = state.q;
  showSeed();
  showOptions();
  showTries();
  showItem();
  search();
}

function showSeed() {
  const like = picture ? "" : state.like;
  byId("seed").hidden = !picture && !like;
  byId("weight").hidden = !(picture && state.q.trim());
  byId("weigh").value = weight;
  byId("q").placeholder = picture ? "add a sentence" : like ? "or type a sentence" : sentences()[0] ?? "what is to be seen";
  byId("seed-text").textContent = like ? "more like this" : "";
  if (picture) showSeedImage(picture.address, picture.file.name || "your picture");
  else if (like) showLiked(chosen()[0].id, like);
}

function showSeedImage(address, alt) {
  const image = byId("seed-image");
  image.hidden = !address;
  image.alt = alt;
  if (address && image.getAttribute("src") !== address) image.src = address;
}

async function showLiked(index, key) {
  const found = await api.item(index, key).catch(() => null); // the search says what is wrong
  if (state.like !== key || picture) return;
  showSeedImage(found?.image ? api.thumbnail(index, found.image) : "", found?.text.split("\n")[0] ?? "");
}

function showOptions() {
  const shown = chosen();
  const kinds = new Set(shown.flatMap((each) => each.kinds));
  const kind = state.kind || (kinds.has("image") ? "image" : "caption");
  for (const radio of document.querySelectorAll('input[name="kind"]')) radio.checked = radio.value === kind;
  byId("kinds").hidden = kinds.size < 2;
  byId("pick").hidden = byId("by-picture").hidden = !readPictures();
  const condition = conditions().reduce((a, b) => (b.length < a.length ? b : a), conditions()[0]);
  byId("adder").hidden = !condition;
  byId("condition").placeholder = `filter, as ${condition}`;
  byId("condition").size = byId("condition").placeholder.length;
  byId("condition-label").textContent = `Filter, as ${condition}`;
  byId("first").value = shown[0].id;
  byId("second").value = shown[1]?.id ?? "";
  for (const option of byId("second").options) option.hidden = option.value === shown[0].id;
  byId("chips").replaceChildren(...state.where.map((condition) => make(
    "li", { class: "chip" }, make("span", {}, condition),
    make("button", { type: "button", "aria-label": `Remove the filter ${condition}`, onclick: () => go({ where: state.where.filter((each) => each !== condition) }) }, "×"),
  )));
}

// Sentences from the indexes, to start with.
function showTries() {
  const links = sentences().map((q) => make("a", { href: link({ q }), onclick: (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go({ q, like: "" });
  } }, q));
  byId("try").hidden = !links.length;
  byId("try").replaceChildren("Try ", ...links.flatMap((each, place) => place ? [" · ", each] : [each]));
}

function showItem() {
  if (!state.item) return item.close();
  const index = state.from || chosen()[0].id;
  const { explains } = indexes.find((each) => each.id === index) ?? {};
  const column = columns.find((each) => each.index.id === index);
  const hit = column?.hits.find((each) => each.key === state.item);
  item.open({ index, key: state.item, hit, many: column?.hits.length, q: explains ? state.q.trim() : "" }, {
    like: (key) => {
      picture = null;
      go({ q: "", like: key, item: "", from: "" });
      scrollTo(0, 0);
    },
    filter: (condition) => go({ item: "", from: "", where: [...new Set([...state.where, condition])] }),
  });
}

function step(by) {
  const column = columns.find((each) => each.index.id === (state.from || chosen()[0].id));
  const at = column?.hits.findIndex((hit) => hit.key === state.item) ?? -1;
  const to = at < 0 ? null : column.hits[at + by];
  if (to) go({ item: to.key }, { push: false });
}

// --- input -------------------------------------------------------------------------------------

function onTyping(now) {
  clearTimeout(typed.timer);
  typed.timer = setTimeout(() => {
    const push = now || Date.now() - typed.at > PAUSE;
    typed.at = Date.now();
    if (now) searched = ""; // Enter searches again
    if (byId("q").value.trim() !== state.q.trim()) go({ q: byId("q").value, like: "" }, { push });
    else if (now) show();
  }, now ? 0 : TYPING);
}

function searchBy(file) {
  if (!file.type.startsWith("image/")) {
    byId("count").textContent = `${file.name || "That"} is not a picture.`;
    return;
  }
  if (!readPictures()) {
    byId("count").textContent = "The model of this index reads sentences only, not pictures.";
    return;
  }
  picture = { file, number: pictures.length, address: URL.createObjectURL(file) };
  pictures.push(picture);
  go({ like: "", item: "", from: "" });
}

function addFilter() {
  const condition = byId("condition").value.trim();
  if (!condition) return;
  byId("condition").value = "";
  go({ where: [...new Set([...state.where, condition])] });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const inDialog = byId("dialog").open;
  const arrow = event.key.startsWith("Arrow");
  if (inDialog) {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(event.key === "ArrowLeft" ? -1 : 1);
    return;
  }
  const tile = document.activeElement.closest(".tile");
  const inField = document.activeElement.matches("input, select");
  if (event.key === "/" && !inField) byId("q").focus();
  else if (arrow && tile) {
    const to = results.neighbour(tile, event.key);
    if (!to && event.key === "ArrowUp") byId("q").focus();
    else results.focusTile(to);
  } else if (event.key === "ArrowDown" && document.activeElement === byId("q")) {
    results.focusTile(document.querySelector(".tile"));
  } else return;
  event.preventDefault();
}

function wire() {
  byId("q").addEventListener("input", () => onTyping(false));
  byId("form").addEventListener("submit", (event) => event.preventDefault());
  byId("q").addEventListener("keydown", (event) => event.key === "Enter" && onTyping(true));
  byId("condition").addEventListener("keydown", (event) => event.key === "Enter" && addFilter());
  byId("add").addEventListener("click", addFilter);
  byId("file").addEventListener("change", () => {
    if (byId("file").files[0]) searchBy(byId("file").files[0]);
    byId("file").value = "";
  });
  byId("seed-remove").addEventListener("click", () => {
    picture = null;
    go({ like: "" });
    byId("q").focus();
  });
  byId("weigh").addEventListener("change", () => {
    weight = Number(byId("weigh").value);
    show();
  });
  byId("kinds").addEventListener("change", (event) => go({ kind: event.target.value }));
  const choose = () => go({ index: [byId("first").value, byId("second").value].filter(Boolean), item: "", from: "" });
  byId("first").addEventListener("change", () => {
    if (byId("second").value === byId("first").value) byId("second").value = "";
    choose();
  });
  byId("second").addEventListener("change", choose);
  byId("more").addEventListener("click", () => go({ k: Math.min(MOST_K, 2 * state.k) }, { push: false }));
  byId("columns").addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (!tile || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    results.focusTile(tile);
    go({ item: tile.dataset.key, from: tile.dataset.index });
  });
  for (const [start, on] of [["pointerover", true], ["pointerout", false], ["focusin", true], ["focusout", false]]) {
    byId("columns").addEventListener(start, (event) => {
      const tile = event.target.closest(".tile");
      if (tile && columns.length > 1) results.pairUp(tile.dataset.key, on);
    });
  }
  byId("close").addEventListener("click", () => go({ item: "", from: "" }));
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("dialog").addEventListener("cancel", (event) => {
    event.preventDefault();
    go({ item: "", from: "" });
  });
  byId("dialog").addEventListener("click", (event) => event.target === byId("dialog") && go({ item: "", from: "" }));
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", fromHistory);
  whenDropped(searchBy, readPictures);
}

// --- start -------------------------------------------------------------------------------------

async function start() {
  try {
    indexes = await api.indexes();
  } catch (error) {
    byId("lead").textContent = error.message;
    return;
  }
  byId("models").hidden = indexes.length < 2;
  const options = () => indexes.map((each) => make("option", { value: each.id }, each.name));
  byId("first").append(...options());
  byId("second").append(make("option", { value: "" }, "compare with …"), ...options());
  byId("lead").textContent = indexes.map((each) => `${several(each.items, "item")} in ${each.name}`).join(" · ");
  wire();
  show();
  if (!state.item && !matchMedia("(pointer: coarse)").matches) byId("q").focus();
}

start();
