"use strict";

// A cell as the page sorts it: the number that it begins with, without thousands and unit.
function numberOf(text) {
  const word = text.replaceAll(",", "").split(" ")[0].replace(/[%x]+$/, "");
  return word === "" ? NaN : Number(word);
}

const collator = new Intl.Collator("en", { numeric: true });

// Numbers come before texts; an empty cell comes last in either direction.
function compare(left, right, direction) {
  if (left === "" || right === "") return (left === "") - (right === "");
  const a = numberOf(left), b = numberOf(right);
  if (Number.isFinite(a) && Number.isFinite(b)) return direction * (a - b);
  if (Number.isFinite(a) !== Number.isFinite(b)) return Number.isFinite(a) ? -1 : 1;
  return direction * collator.compare(left, right);
}

function setUp(section) {
  const table = section.querySelector("table");
  if (!table) return;
  const controls = section.querySelector(".controls");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => ({
    row, cells: Array.from(row.cells, (cell) => cell.textContent),
  }));
  const headers = Array.from(table.tHead.rows[0].cells);
  const search = controls.querySelector("input[type=search]");
  const selects = Array.from(controls.querySelectorAll("select"));
  const boxes = Array.from(controls.querySelectorAll("input[type=checkbox]"));
  const output = controls.querySelector("output");
  let sorted = "";

  function say(shown) {
    output.value = `${shown} of ${rows.length} rows${sorted}`;
  }

  function isShown(column) {
    const folded = boxes.find((box) => !box.checked
      && headers[column].classList.contains(`e${box.dataset.group}`));
    return !folded;
  }

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const visible = headers.map((_, column) => isShown(column));
    let shown = 0;
    for (const { row, cells } of rows) {
      const text = cells.filter((_, column) => visible[column]).join(" ").toLowerCase();
      const fits = words.every((word) => text.includes(word)) && selects.every(
        (select) => select.value === "" || cells[Number(select.dataset.column)] === select.value);
      row.hidden = !fits;
      shown += fits;
    }
    say(shown);
  }

  function sort(column) {
    const header = headers[column];
    const direction = header.ariaSort === "ascending" ? -1 : 1;
    for (const other of headers) other.removeAttribute("aria-sort");
    header.ariaSort = direction === 1 ? "ascending" : "descending";
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], direction));
    body.append(...rows.map(({ row }) => row));
    sorted = `, ${header.ariaSort} by ${header.textContent}`;
    say(rows.filter(({ row }) => !row.hidden).length);
  }

  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sort(column));
  });
  search.addEventListener("input", filter);
  selects.forEach((select) => select.addEventListener("change", filter));
  for (const box of boxes) {
    box.addEventListener("change", () => {
      table.classList.toggle(`show${box.dataset.group}`, box.checked);
      filter();
    });
  }
  controls.hidden = false;
  filter();
}

document.documentElement.classList.add("js");
document.querySelectorAll("section.table").forEach(setUp);

const theme = document.getElementById("theme");
theme.hidden = false;
theme.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = getComputedStyle(root).colorScheme === "dark"
    || (getComputedStyle(root).colorScheme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = isDark ? "light" : "dark";
});
