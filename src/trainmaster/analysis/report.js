// Shows the table of all runs. The columns are gzipped JSON, and only the visible rows are in the document.
(async () => {
  const ROW = 28, EXTRA = 8, PRINTED = 200;
  const find = (id) => document.getElementById(id);
  const box = find("table"), filter = find("filter"), count = find("count");
  const bytes = Uint8Array.from(atob(find("data").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const columns = await new Response(stream).json();
  const size = columns[0].values.length;
  const text = (value) => (value === null ? "" : String(value));
  const make = (tag, parent) => parent.appendChild(document.createElement(tag));
  const table = make("table", box), head = make("tr", make("thead", table)), body = make("tbody", table);
  const isNumber = columns.map(({ values }) => values.every((v) => v === null || !isNaN(v) || v === "nan" || /^-?inf$/.test(v)));
  let rows = [...Array(size).keys()], sorted = -1, sign = 1, lines = null;

  columns.forEach((column, at) => {
    const cell = make("th", head), button = make("button", cell);
    const longest = column.values.reduce((most, value) => Math.max(most, text(value).length), column.name.length + 2);
    cell.style.width = Math.min(longest, 40) + 3 + "ch";
    cell.scope = "col";
    if (isNumber[at]) cell.className = "num";
    button.textContent = button.title = column.name;
    button.onclick = () => {
      sign = sorted === at ? -sign : 1;
      sorted = at;
      [...head.children].forEach((each) => each.removeAttribute("aria-sort"));
      cell.ariaSort = sign > 0 ? "ascending" : "descending";
      select();
    };
  });

  function compare(one, other) { // missing values last, numbers before texts
    const rank = (value) => (value === null ? 2 : typeof value === "number" ? 0 : 1);
    return rank(one) - rank(other) || (one === other ? 0 : (one < other ? -1 : 1) * sign);
  }

  function select() {
    const wanted = filter.value.toLowerCase();
    if (wanted) lines ??= [...Array(size).keys()].map((row) => columns.map(({ values }) => text(values[row])).join("\n").toLowerCase());
    rows = [...Array(size).keys()].filter((row) => !wanted || lines[row].includes(wanted));
    const values = columns[sorted]?.values;
    if (values) rows.sort((one, other) => compare(values[one], values[other]) || one - other);
    count.textContent = `${rows.length.toLocaleString("en")} of ${size.toLocaleString("en")} runs`;
    draw();
  }

  function space(height) {
    const row = document.createElement("tr");
    row.className = "space";
    make("td", row).colSpan = columns.length;
    row.firstChild.style.height = height + "px";
    return row;
  }

  function line(row) {
    const element = document.createElement("tr");
    columns.forEach(({ name, values }, at) => {
      const cell = make("td", element);
      cell.textContent = cell.title = text(values[row]);
      if (isNumber[at]) cell.className = "num";
      if (name === "state") cell.dataset.state = values[row];
    });
    return element;
  }

  function draw(isPrinted) {
    const first = isPrinted ? 0 : Math.max(0, Math.floor(box.scrollTop / ROW) - EXTRA);
    const last = Math.min(rows.length, isPrinted ? PRINTED : first + Math.ceil(box.clientHeight / ROW) + 2 * EXTRA);
    const shown = rows.slice(first, last).map(line);
    body.replaceChildren(...(isPrinted ? shown : [space(first * ROW), ...shown, space((rows.length - last) * ROW)]));
  }

  box.onscroll = () => draw();
  filter.oninput = () => { box.scrollTop = 0; select(); };
  addEventListener("beforeprint", () => draw(true));
  addEventListener("afterprint", () => draw());
  addEventListener("resize", () => draw());
  select();
})();
