// Sets the chosen theme, or else the system's, before the page is drawn.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("theme");
  const now = () => chosen() ?? (dark.matches ? "dark" : "light");
  const show = () => {
    if (chosen()) root.dataset.theme = chosen();
    const other = now() === "dark" ? "light" : "dark";
    document.getElementById("theme")?.setAttribute("aria-label", `Change to the ${other} theme`);
  };
  show();
  dark.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem("theme", now() === "dark" ? "light" : "dark");
      show();
    });
  });
})();
