// The table of plans: columns from base64, a filter of typed conditions, sorting, and pages of rows.
"use strict";
(() => {
  const PAGE = 100;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("plans-data").textContent);
  if (!byId("plans-table")) return;
  const arrays = { Int8: Int8Array, Int16: Int16Array, Int32: Int32Array, BigInt64: BigInt64Array, Float32: Float32Array,
    Float64: Float64Array };
  for (const column of data.columns) {
    const bytes = Uint8Array.from(atob(column.data), (char) => char.charCodeAt(0));
    column.values = new arrays[column.array](bytes.buffer);
    column.real = column.array.startsWith("Float");
    delete column.data;
  }
  const shown = new Set(["choices", "costs", "id"]);
  const state = { rows: [], first: 0, sort: null, down: false };

  const text = (column, row) => {
    const value = column.values[row];
    if (column.names) return column.names[value];
    if (!column.real) return String(value);
    const scaled = value / column.scale;
    if (!Number.isFinite(scaled)) return "-";
    const size = Math.abs(scaled);
    if (size >= 1e5) return Math.round(scaled).toLocaleString("en");
    return size === 0 ? "0" : size < 1e-4 ? scaled.toExponential(3) : scaled.toPrecision(5);
  };
  const make = (tag, content, attributes = {}) => {
    const made = document.createElement(tag);
    if (content !== undefined) made.textContent = content;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  // A filter: conditions with spaces between them. Each becomes a function of a row.
  const holds = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };
  const known = () => [...data.columns.map((column) => column.name), ...Object.keys(data.constant)];
  const edits = (from, to) => {
    let above = [...to, ""].map((_, at) => at);
    [...from].forEach((char, row) => {
      const line = [row + 1];
      for (let at = 0; at < to.length; at++) {
        line.push(Math.min(above[at + 1] + 1, line[at] + 1, above[at] + (char !== to[at])));
      }
      above = line;
    });
    return above[to.length];
  };
  const nearest = (name) => known().reduce((best, other) => (edits(name, other) < edits(name, best) ? other : best));
  const condition = (word) => {
    const parts = /^([^<>=!]+)(<=|>=|!=|==|=|<|>)(.*)$/.exec(word);
    if (!parts) {
      if (/[<>=!]/.test(word)) throw Error(`'${word}' is no condition; write one as in tp<=8`);
      if (known().includes(word)) throw Error(`'${word}' is a column; write a condition, as in ${word}<=8`);
      const wanted = word.toLowerCase();
      const named = data.columns.filter((column) => column.names);
      return (row) => named.some((column) => column.names[column.values[row]].toLowerCase().includes(wanted));
    }
    const name = parts[1].replace(/^nvs\.(.+)$/, "$1_nvs");
    const relation = parts[2] === "==" ? "=" : parts[2];
    const wanted = parts[3].split(",");
    if (wanted.some((one) => one === "")) throw Error(`'${word}': a value is missing, as in ${name}${relation}8`);
    const column = data.columns.find((one) => one.name === name);
    if (!column && !(name in data.constant)) throw Error(`no column '${name}'; the nearest is '${nearest(name)}'`);
    const asText = (row) => (column ? text(column, row) : data.constant[name]);
    const isText = column ? Boolean(column.names) : Number.isNaN(Number(data.constant[name]));
    if (relation in holds) {
      const bound = number(wanted[0], column);
      if (isText || wanted.length > 1 || Number.isNaN(bound)) {
        throw Error(`'${word}': ${relation} needs a column of numbers, and one number`);
      }
      return (row) => holds[relation](column ? Number(column.values[row]) / (column.scale || 1)
        : Number(data.constant[name]), bound);
    }
    const numbers = isText ? [] : wanted.map((one) => number(one, column));
    if (numbers.some(Number.isNaN)) throw Error(`'${word}': ${name} is a number`);
    const same = isText ? (row) => wanted.includes(asText(row))
      : (row) => wanted.includes(asText(row)) || numbers.includes(Number(asText(row).replaceAll(",", "")));
    return relation === "=" ? same : (row) => !same(row);
  };
  const number = (written, column) => {
    const unit = column && column.unit ? column.unit : "";
    return Number(unit && written.endsWith(unit) ? written.slice(0, -unit.length) : written);
  };

  const select = () => {
    const box = byId("filter"), status = byId("filter-status");
    let conditions;
    try {
      conditions = box.value.split(/\s+/).filter(Boolean).map(condition);
    } catch (error) {
      box.setAttribute("aria-invalid", "true");
      status.classList.add("wrong");
      status.textContent = error.message;
      return;
    }
    box.removeAttribute("aria-invalid");
    status.classList.remove("wrong");
    const rows = [];
    for (let row = 0; row < data.rows; row++) if (conditions.every((one) => one(row))) rows.push(row);
    if (state.sort) {
      const { values, names } = state.sort, sign = state.down ? -1 : 1;
      const key = names ? (row) => names[values[row]] : (row) => values[row];
      rows.sort((a, b) => {
        const x = key(a), y = key(b);
        if (x !== x || y !== y) return (x !== x) - (y !== y) || a - b;  // NaN last
        return sign * ((x > y) - (x < y)) || a - b;
      });
    }
    Object.assign(state, { rows, first: 0 });
    status.textContent = `${rows.length.toLocaleString("en")} of ${data.rows.toLocaleString("en")} rows`;
    draw();
  };

  const draw = () => {
    const columns = data.columns.filter((column) => shown.has(column.group));
    const body = make("tbody");
    for (const row of state.rows.slice(state.first, state.first + PAGE)) {
      const line = make("tr");
      line.append(make("th", String(row + 1), { scope: "row" }));
      for (const column of columns) line.append(make("td", text(column, row), column.names ? {} : { class: "number" }));
      body.append(line);
    }
    byId("plans-table").tBodies[0].replaceWith(body);
    const last = Math.min(state.first + PAGE, state.rows.length);
    byId("page-text").textContent = state.rows.length ? `${state.first + 1} to ${last}` : "no rows";
    byId("page-before").disabled = state.first === 0;
    byId("page-after").disabled = last >= state.rows.length;
  };

  const head = () => {
    const line = make("tr");
    line.append(make("th", "#", { scope: "col", title: "rank, the best first" }));
    for (const column of data.columns.filter((one) => shown.has(one.group))) {
      const sorted = state.sort === column;
      const cell = make("th", undefined, { scope: "col", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" });
      const mark = sorted ? (state.down ? " \u25be" : " \u25b4") : "";
      const button = make("button", `${column.name}${column.unit ? ` [${column.unit}]` : ""}${mark}`,
        { type: "button", title: column.about });
      button.addEventListener("click", () => {
        // Ascending, descending, then the order of the ranks again.
        if (!sorted) Object.assign(state, { sort: column, down: false });
        else if (!state.down) state.down = true;
        else Object.assign(state, { sort: null, down: false });
        const place = [...line.children].indexOf(cell);
        head();
        select();
        byId("plans-table").tHead.rows[0].children[place].firstChild.focus();
      });
      cell.append(button);
      line.append(cell);
    }
    byId("plans-table").tHead.replaceChildren(line);
  };

  for (const group of new Set(data.columns.map((column) => column.group))) {
    const label = make("label"), box = make("input", undefined, { type: "checkbox" });
    box.checked = shown.has(group);
    box.addEventListener("change", () => {
      if (box.checked) shown.add(group); else shown.delete(group);
      head();
      draw();
    });
    label.append(box, ` ${group}`);
    byId("groups").append(label);
  }
  const turn = (id, label, by) => {
    const button = make("button", label, { type: "button", id });
    button.addEventListener("click", () => { state.first += by; draw(); });
    return button;
  };
  byId("pages").append(turn("page-before", "Previous", -PAGE), make("span", "", { id: "page-text", role: "status" }),
    turn("page-after", "Next", PAGE));
  // After a pause in typing, or at once with Enter.
  let pause;
  byId("filter").addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(select, 200); });
  byId("filter").addEventListener("change", () => { clearTimeout(pause); select(); });
  head();
  select();
})();
