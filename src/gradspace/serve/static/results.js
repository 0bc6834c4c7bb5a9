// Lists of hits: one, or two side by side with what differs between them.

import { thumbnail } from "./api.js";
import { byId, make, several, unseen } from "./dom.js";

const name = (key) => key.split("/").at(-1);

// Rank of every hit in the other list, if it has the hit.
function ranksThere(columns, here) {
  const other = columns[1 - here]?.hits;
  return other && new Map(other.map((hit) => [hit.key, hit.rank]));
}

function difference(hit, there, otherName) {
  const rank = there.get(hit.key);
  if (rank === undefined) return make("span", { class: "mark only" }, "only here");
  const moved = rank - hit.rank;
  if (moved === 0) return make("span", { class: "mark" }, "same rank");
  const arrow = make("span", { "aria-hidden": "true" }, `${moved > 0 ? "↑" : "↓"} ${Math.abs(moved)}`);
  const words = `${several(Math.abs(moved), "rank")} ${moved > 0 ? "higher" : "lower"} than in ${otherName}`;
  return make("span", { class: moved > 0 ? "mark up" : "mark down", title: words }, arrow, unseen(words));
}

function tile(hit, column, mark, link) {
  const first = hit.text.split("\n")[0];
  const label = first || name(hit.key);
  const alt = hit.kind === "caption" ? "" : label;
  const shown = hit.image
    ? make("img", { src: thumbnail(column.index.id, hit.image), alt, loading: "lazy", decoding: "async" })
    : null;
  shown?.addEventListener("error", () => shown.closest(".tile").classList.add("bare"));
  const facts = make(
    "span", { class: "facts" },
    make("span", { class: "rank" }, unseen("rank "), String(hit.rank)),
    mark,
    make("span", { class: "score", title: "cosine with the query" }, unseen("score "), hit.score.toFixed(3)),
  );
  const text = make("span", { class: "text" }, label);
  const kind = shown ? hit.kind : `${hit.kind} bare`;
  const href = link({ item: hit.key, from: column.index.id });
  return make(
    "li", {},
    make("a", { class: `tile ${kind}`, href, tabindex: "-1", "data-key": hit.key, "data-index": column.index.id },
      shown && make("span", { class: "thumb" }, shown), make("span", { class: "words" }, text, facts)),
  );
}

function column(columns, here, link) {
  const own = columns[here];
  const heading = columns.length > 1 ? make("h2", { id: `column-${here}` }, own.index.name) : null;
  if (own.error) {
    return make("section", { class: "column" }, heading, make("p", { class: "error", role: "alert" }, own.error));
  }
  const there = ranksThere(columns, here);
  const other = columns[1 - here]?.index.name;
  const unknown = own.unknown_words.map((word) => `“${word}”`).join(", ");
  const notKnown = unknown && make("p", { class: "note" }, `${columns.length > 1 ? "This" : "The"} model has never seen ${unknown}.`);
  const hits = own.hits.map((hit) => tile(hit, own, there && difference(hit, there, other), link));
  const only = there && own.hits.filter((hit) => !there.has(hit.key)).length;
  const note = there && make("p", { class: "note" }, only ? `${only} of ${several(own.hits.length, "result")} only here` : "the same results");
  return make(
    "section", { class: "column", "aria-labelledby": heading && `column-${here}` },
    heading, note, notKnown,
    make("ol", { class: `grid ${own.kind}s`, "aria-label": heading ? null : "Results" }, ...hits),
  );
}

// Draws `columns`, [{index, hits, kind} or {index, error}]; `link` makes the address of a change.
export function draw(columns, link) {
  const place = byId("columns");
  place.classList.toggle("two", columns.length > 1);
  place.replaceChildren(...columns.map((_, here) => column(columns, here, link)));
  place.querySelector(".tile")?.setAttribute("tabindex", "0");
}

export function count(columns) {
  const errors = columns.filter((own) => own.error);
  if (columns.length === 1 && errors.length) return "";
  const said = columns.filter((own) => !own.error).map((own) => {
    const found = own.hits.length ? several(own.hits.length, own.kind) : `no ${own.kind}s`;
    if (columns.length > 1) return `${found} from ${own.index.name}`;
    return own.hits.length ? `${found}, best first` : `No ${own.kind}s found`;
  });
  return said.join(" · ");
}

// Tile that an arrow key leads to: the nearest one in its direction.
export function neighbour(from, key) {
  const [x, y] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key];
  const centre = (box) => [box.left + box.width / 2, box.top + box.height / 2];
  const [fromX, fromY] = centre(from.getBoundingClientRect());
  let best = null;
  let least = Infinity;
  for (const to of byId("columns").querySelectorAll(".tile")) {
    const [toX, toY] = centre(to.getBoundingClientRect());
    const along = (toX - fromX) * x + (toY - fromY) * y;
    const aside = Math.abs((toX - fromX) * y) + Math.abs((toY - fromY) * x);
    if (to === from || along < 2 || (x && aside > 4 && aside > along / 4)) continue;
    if (along + 3 * aside < least) [best, least] = [to, along + 3 * aside];
  }
  return best;
}

export function focusTile(to) {
  if (!to) return;
  for (const old of byId("columns").querySelectorAll('.tile[tabindex="0"]')) old.setAttribute("tabindex", "-1");
  to.setAttribute("tabindex", "0");
  to.focus();
  to.scrollIntoView({ block: "nearest" });
}

// Highlights the same item in the other list while the pointer or focus is on it.
export function pairUp(key, on) {
  for (const each of byId("columns").querySelectorAll(".tile")) {
    each.classList.toggle("paired", on && each.dataset.key === key);
  }
}
