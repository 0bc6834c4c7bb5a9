(() => {
  "use strict";

  const pictures = JSON.parse(document.getElementById("pictures").textContent);
  for (const image of document.querySelectorAll("img[data-picture]")) {
    image.src = pictures[image.dataset.picture];
  }

  for (const gallery of document.querySelectorAll(".gallery")) {
    const controls = gallery.querySelector(".controls");
    const examples = [...gallery.querySelectorAll(".example")];
    const chosen = (name) => controls.querySelector(`input[name$="-${name}"]:checked`).value;
    const show = () => {
      const way = chosen("way");
      const outcomes = chosen("outcome").split(" ");
      const ofWay = examples.filter((example) => example.dataset.way === way);
      for (const example of examples) {
        example.hidden = !(ofWay.includes(example) && outcomes.includes(example.dataset.outcome));
      }
      const shown = ofWay.filter((example) => !example.hidden).length;
      controls.querySelector("output").textContent = `${shown} of ${ofWay.length} shown`;
      gallery.querySelector(".empty").hidden = shown > 0;
    };
    controls.addEventListener("change", show);
    controls.hidden = false;
    show();
  }

  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => {
    button.querySelector(".says").textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  button.hidden = false;
  name();

  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]),
  );
  const watch = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen) {
        if (!isIntersecting) continue;
        for (const [id, link] of links) {
          if (id === target.id) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      }
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  for (const id of links.keys()) watch.observe(document.getElementById(id));
})();
