// Light or dark as the system asks, until the reader chooses; the choice is remembered.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";
  // A browser may refuse storage to a file; then the choice lasts as long as the page.
  const remembered = (change) => {
    try { return change(localStorage); } catch { return null; }
  };
  const chosen = remembered((storage) => storage.getItem("dd_jax theme"));
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
    label();
    dark.addEventListener("change", label);
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remembered((storage) => storage.setItem("dd_jax theme", root.dataset.theme));
      label();
    });
  });
})();
