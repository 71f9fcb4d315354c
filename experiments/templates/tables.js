// A click on a heading sorts by its column, a second one the other way round; empty cells stay last.
for (const table of document.querySelectorAll("table")) {
  const headings = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  headings.forEach((heading, column) => {
    heading.firstElementChild.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      const numeric = heading.classList.contains("number");
      const order = (row) => row.cells[column].dataset.order;
      const compare = (a, b) => {
        const [x, y] = [order(a), order(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        if (!numeric) return sign * x.localeCompare(y, "en", { numeric: true });
        return sign * (Number(x) > Number(y)) - sign * (Number(x) < Number(y));
      };
      for (const other of headings) other.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      body.append(...[...body.rows].sort(compare));
    });
  });
}
