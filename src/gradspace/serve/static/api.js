// The server's answers. An error is an Error whose message is the server's sentence.

const path = (key) => key.split("/").map(encodeURIComponent).join("/");

export const thumbnail = (index, key) => `/thumbnails/${encodeURIComponent(index)}/${path(key)}`;
export const picture = (index, key) => `/pictures/${encodeURIComponent(index)}/${path(key)}`;

async function answer(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server cannot be reached: is it still running?");
  }
  const said = await response.json().catch(() => ({}));
  if (response.ok) return said;
  const sentence = said.detail ?? `The server answered ${response.status}`;
  throw new Error(sentence.charAt(0).toUpperCase() + sentence.slice(1));
}

export const indexes = () => answer("/api/indexes");

export const item = (index, key) => answer(`/api/items/${encodeURIComponent(index)}/${path(key)}`);

export function explain(index, key, q, signal) {
  return answer(`/api/explain?${new URLSearchParams({ index, key, q })}`, { signal });
}

export function search(asked, index, signal) {
  const said = asked.file ? new FormData() : new URLSearchParams();
  const q = asked.q.trim();
  if (q) said.append("q", q);
  if (asked.file) {
    said.append("picture", asked.file);
    said.append("picture_weight", asked.weight);
  } else if (asked.like) said.append("like", asked.like);
  if (asked.kind) said.append("kind", asked.kind);
  for (const condition of asked.where) said.append("where", condition);
  said.append("k", asked.k);
  said.append("index", index);
  if (asked.file) return answer("/api/search", { method: "POST", body: said, signal });
  return answer(`/api/search?${said}`, { signal });
}
