// State of the page as an address, which can be bookmarked, shared, and gone back to.

export const DEFAULT_K = 24;
export const MOST_K = 200;

export function fromAddress(search) {
  const asked = new URLSearchParams(search);
  const k = Number.parseInt(asked.get("k"), 10);
  return {
    q: asked.get("q") ?? "",
    like: asked.get("q")?.trim() ? "" : asked.get("like") ?? "",
    kind: ["image", "caption"].includes(asked.get("kind")) ? asked.get("kind") : "",
    k: k >= 1 && k <= MOST_K ? k : DEFAULT_K,
    where: asked.getAll("where"),
    index: asked.getAll("index").slice(0, 2),
    item: asked.get("item") ?? "",
    from: asked.get("from") ?? "",
  };
}

export function toAddress(state) {
  const said = new URLSearchParams();
  for (const name of ["q", "like", "kind", "item", "from"]) {
    if (state[name]) said.set(name, state[name]);
  }
  if (state.k !== DEFAULT_K) said.set("k", state.k);
  for (const condition of state.where) said.append("where", condition);
  for (const index of state.index) said.append("index", index);
  return said.size ? `/?${said}` : "/";
}
