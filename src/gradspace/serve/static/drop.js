// Takes files dropped or pasted anywhere on the page; `wanted` tells whether to invite them.

export function whenDropped(take, wanted) {
  let depth = 0;
  const hasFile = (event) => event.dataTransfer?.types.includes("Files");
  const over = (by) => (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    depth = Math.max(0, depth + by);
    document.body.classList.toggle("dropping", depth > 0 && wanted());
  };
  addEventListener("dragenter", over(1));
  addEventListener("dragleave", over(-1));
  addEventListener("dragover", (event) => hasFile(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    depth = 0;
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])][0];
    if (!file) return;
    event.preventDefault();
    take(file);
  });
}
