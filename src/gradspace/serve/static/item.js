// A single result, large: its captions, metadata and explanation; `q` is the sentence to explain.

import * as api from "./api.js";
import { byId, make, unseen } from "./dom.js";

const STRONGEST = 0.62; // tint of a word
const VEIL = [10, 14, 20];
const DENSEST = 215;
const LARGEST = 2.5; // times its own size: small pictures are not blown up
let asking = null;

export function open({ index, key, hit, many, q }, act) {
  const dialog = byId("dialog");
  asking?.abort();
  asking = new AbortController();
  const { signal } = asking;
  hideWhy();
  byId("why").onclick = () => toggleWhy(index, key, q, signal);
  byId("like").onclick = () => act.like(key, index);
  byId("previous").disabled = !hit || hit.rank === 1;
  byId("next").disabled = !hit || hit.rank === many;
  byId("place").textContent = hit ? `${hit.rank} of ${many} · score ${hit.score.toFixed(3)}` : "";
  if (hit) fill(hit, index, q, act);
  else empty(key);
  if (!dialog.open) dialog.showModal();
  if (!hit) {
    api.item(index, key).then(
      (found) => signal.aborted || fill(found, index, q, act),
      (error) => signal.aborted || fail(error.message),
    );
  }
}

export function close() {
  asking?.abort();
  if (byId("dialog").open) byId("dialog").close();
}

function empty(key) {
  byId("item-title").textContent = key;
  byId("why").hidden = true;
  byId("picture").removeAttribute("src");
  byId("captions").replaceChildren();
  byId("metadata").replaceChildren();
}

function fail(sentence) {
  byId("captions").replaceChildren(make("li", { class: "error" }, sentence));
}

function fill(found, index, q, act) {
  byId("why").hidden = !q || found.kind !== "image";
  const lines = found.text.split("\n").filter(Boolean);
  const title = found.kind === "caption" ? found.text : found.key.split("/").at(-1);
  byId("item-title").textContent = title;
  const image = byId("picture");
  image.alt = lines[0] || title;
  const frame = byId("frame");
  frame.classList.remove("gone");
  image.onload = () => {
    frame.style.setProperty("--ratio", image.naturalWidth / image.naturalHeight);
    frame.style.setProperty("--wide", `${LARGEST * image.naturalWidth}px`);
  };
  image.onerror = () => frame.classList.add("gone");
  if (found.image) image.src = api.picture(index, found.image);
  else image.onerror();
  const captions = found.kind === "caption" ? [] : lines;
  byId("captions").replaceChildren(...captions.map((line) => make("li", {}, line)));
  const facts = [["key", found.key, false], ...Object.entries(found.metadata).map((fact) => [...fact, true])];
  byId("metadata").replaceChildren(...facts.flatMap(([field, value, narrows]) => [
    make("dt", {}, field),
    make("dd", {}, narrows
      ? make("button", { class: "fact", type: "button", title: "Only results with this", onclick: () => act.filter(`${field}=${value}`) }, unseen("only results with "), String(value))
      : String(value)),
  ]));
}

function hideWhy() {
  byId("because").hidden = true;
  byId("heat").hidden = true;
  byId("why").setAttribute("aria-expanded", "false");
}

async function toggleWhy(index, key, q, signal) {
  if (!byId("because").hidden) return hideWhy();
  const place = byId("because");
  place.replaceChildren(make("p", { class: "note" }, "Looking closer …"));
  place.hidden = false;
  byId("why").setAttribute("aria-expanded", "true");
  try {
    const found = await api.explain(index, key, q, signal);
    await byId("picture").decode().catch(() => {}); // gone: the words are explained all the same
    if (!signal.aborted) show(found, place);
  } catch (error) {
    if (error.name !== "AbortError") place.replaceChildren(make("p", { class: "note" }, error.message));
  }
}

function show({ words, regions, attention, box }, place) {
  const veil = (cells) => heat(cells?.length > 1 ? cells : null, box ?? [0, 0, 1, 1]); // a row is not a grid
  const most = Math.max(...words.map((each) => Math.abs(each.contribution)), 1e-9);
  const tinted = words.map(({ word, contribution }, number) => {
    const looks = attention?.[number];
    const attributes = { class: contribution < 0 ? "word against" : "word", title: signed(contribution) };
    if (looks) {
      attributes.type = "button";
      for (const start of ["pointerenter", "focus"]) attributes[`on${start}`] = () => veil(looks);
      for (const end of ["pointerleave", "blur"]) attributes[`on${end}`] = () => veil(regions);
    }
    const shown = make(looks ? "button" : "span", attributes, word, unseen(` ${signed(contribution)}, `));
    shown.style.setProperty("--strength", `${Math.round(100 * STRONGEST * Math.abs(contribution) / most)}%`);
    return shown;
  });
  const legend = [];
  if (words.length) legend.push("the stronger the tint, the more a word adds to the score");
  if (words.some((each) => each.contribution < 0)) legend.push("orange words take from it");
  if (regions?.length > 1) legend.push("lit regions of the picture add the most");
  if (attention?.[0]?.length > 1) legend.push("point at a word to see where it looks");
  const sentence = legend.join("; ") || "the model cannot share out this score";
  place.replaceChildren(
    make("p", { class: "sentence" }, ...tinted.flatMap((word) => [word, " "])),
    make("p", { class: "note" }, `${sentence.charAt(0).toUpperCase()}${sentence.slice(1)}.`),
  );
  veil(regions);
}

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

// A veil over the picture, thin where the cells of the box add much.
function heat(cells, [left, top, right, bottom]) {
  const canvas = byId("heat");
  canvas.hidden = !cells;
  if (!cells) return;
  const [rows, columns] = [cells.length, cells[0].length];
  const all = cells.flat();
  const least = Math.max(0, Math.min(...all));
  const range = Math.max(Math.max(...all) - least, 1e-9);
  const small = new OffscreenCanvas(columns, rows);
  const pen = small.getContext("2d");
  const pixels = pen.createImageData(columns, rows);
  all.forEach((value, number) => {
    const share = Math.min(1, Math.max(0, (value - least) / range));
    pixels.data.set([...VEIL, Math.round(DENSEST * (1 - share) ** 1.3)], 4 * number);
  });
  pen.putImageData(pixels, 0, 0);
  const { naturalWidth: width, naturalHeight: height } = byId("picture");
  [canvas.width, canvas.height] = [width, height];
  const large = canvas.getContext("2d");
  const place = [left * width, top * height, (right - left) * width, (bottom - top) * height];
  large.fillStyle = `rgb(${VEIL.join(" ")} / ${DENSEST / 255})`;
  large.fillRect(0, 0, width, height);
  large.clearRect(...place);
  large.imageSmoothingQuality = "high";
  large.drawImage(small, ...place);
}
