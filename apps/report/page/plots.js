"use strict";
// Plots in SVG that share one x axis (steps), one zoom and one crosshair.

const Plots = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };
  const HEIGHT = 230;
  const tooltip = document.getElementById("tooltip");
  const all = [];
  const state = { from: 0, to: 1, hover: null };  // indices of steps

  function node(parent, name, attributes, text) {
    const made = document.createElementNS(NAMESPACE, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function element(parent, name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

  // Round numbers that cover [low, high] in about `count` steps.
  function ticks(low, high, count) {
    const raw = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
    const made = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) made.push(i * step + 0);  // + 0: no "-0"
    return { values: made, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9)) };
  }

  function quantile(sorted, share) {
    return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
  }

  // Single outliers (a first step that warms up) leave the plot instead of flattening it.
  function domain(values, zeroBased) {
    const sorted = values.filter(known).sort((a, b) => a - b);
    if (!sorted.length) return [0, 1];
    let low = zeroBased ? Math.min(0, sorted[0]) : sorted[0];
    let high = sorted[sorted.length - 1];
    const usual = quantile(sorted, 0.97);
    if (sorted.length > 8 && zeroBased && high > 1.8 * usual) high = 1.25 * usual;
    if (high === low) high = low + (Math.abs(low) || 1);
    const room = (high - low) * 0.06;
    return [zeroBased ? low : low - room, high + room];
  }

  // Each value's mean with as many neighbours before as after it, so that nothing lags; fewer at the ends.
  function smoothed(values) {
    const sums = [0], counts = [0];
    for (const value of values) {
      sums.push(sums[sums.length - 1] + (known(value) ? value : 0));
      counts.push(counts[counts.length - 1] + (known(value) ? 1 : 0));
    }
    const reach = Math.max(2, Math.round(values.length / 100));
    return values.map((_, i) => {
      const r = Math.min(reach, i, values.length - 1 - i);
      const count = counts[i + r + 1] - counts[i - r];
      return count ? (sums[i + r + 1] - sums[i - r]) / count : null;
    });
  }

  // Means over at most `count` equal runs of the indices from..to: [{index, value}].
  function thinned(values, from, to, count) {
    const size = Math.max(1, Math.ceil((to - from + 1) / count));
    const made = [];
    for (let begin = from; begin <= to; begin += size) {
      const end = Math.min(begin + size - 1, to);
      let sum = 0, seen = 0;
      for (let i = begin; i <= end; ++i) if (known(values[i])) { sum += values[i]; ++seen; }
      if (seen) made.push({ index: (begin + end) / 2, begin, end, value: sum / seen });
    }
    return made;
  }

  function showTooltip(clientX, clientY) {
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    const left = clientX + 16 + box.width > innerWidth ? clientX - box.width - 16 : clientX + 16;
    tooltip.style.left = `${Math.max(4, left)}px`;
    tooltip.style.top = `${Math.max(4, Math.min(clientY - box.height / 2, innerHeight - box.height - 4))}px`;
  }

  class Plot {
    constructor(parent, spec) {
      this.spec = spec;
      const card = element(parent, "div", "card");
      const head = element(card, "div", "plot-head");
      element(head, "h2", "", spec.title);
      if (spec.unit) element(head, "span", "unit", spec.unit);
      if (spec.series.length > 1) {
        const legend = element(head, "div", "legend");
        for (const series of spec.series) {
          const item = element(legend, "span");
          element(item, "span", "key" + (spec.stacked ? "" : " line")).style.background = series.color;
          item.append(series.name);
        }
      }
      this.svg = node(card, "svg", { height: HEIGHT, tabindex: 0, role: "img", "aria-label": spec.title });
      for (const series of spec.series) if (series.smooth) series.mean = smoothed(series.values);
      this.listen();
      new ResizeObserver(() => this.draw()).observe(this.svg);
    }

    x(index) {
      const span = Math.max(state.to - state.from, 1);
      return MARGIN.left + ((index - state.from) / span) * this.width;
    }

    y(value) {
      return MARGIN.top + (1 - (value - this.low) / (this.high - this.low)) * this.inner;
    }

    draw() {
      const { svg, spec } = this;
      svg.textContent = "";
      this.width = Math.max(svg.clientWidth - MARGIN.left - MARGIN.right, 50);
      this.inner = HEIGHT - MARGIN.top - MARGIN.bottom;
      const visible = (values) => values.slice(Math.floor(state.from), Math.ceil(state.to) + 1);
      const shown = spec.stacked
        ? visible(spec.series[0].values.map((_, i) => spec.series.reduce((sum, s) => sum + (s.values[i] || 0), 0)))
        : spec.series.flatMap((s) => visible(s.values));
      [this.low, this.high] = domain(shown, spec.zeroBased);
      this.drawAxes();
      const clip = "clip" + all.indexOf(this);
      const rect = { x: MARGIN.left, y: MARGIN.top - 6, width: this.width + 6, height: this.inner + 6 };
      node(node(svg, "clipPath", { id: clip }), "rect", rect);
      this.marks = node(svg, "g", { "clip-path": `url(#${clip})` });
      if (spec.stacked) this.drawAreas(); else this.drawLines();
      for (const event of spec.events || []) {
        const at = this.x(event.index);
        if (at >= MARGIN.left && at <= MARGIN.left + this.width) {
          node(svg, "line", { class: "event-mark", x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + this.inner });
        }
      }
      this.over = node(svg, "g", {});
      this.hover();
    }

    drawAxes() {
      const { svg, spec } = this;
      const right = MARGIN.left + this.width;
      const rows = ticks(this.low, this.high, 4);
      for (const value of rows.values) {
        const y = this.y(value);
        node(svg, "line", { class: "gridline", x1: MARGIN.left, x2: right, y1: y, y2: y });
        const text = spec.tick ? spec.tick(value) : value.toFixed(rows.digits);
        node(svg, "text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, text);
      }
      const bottom = MARGIN.top + this.inner;
      node(svg, "line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom });
      const first = spec.steps[Math.round(state.from)], last = spec.steps[Math.round(state.to)];
      for (const step of ticks(first, last, Math.max(2, this.width / 90)).values) {
        if (!Number.isInteger(step)) continue;
        const index = state.from + ((step - first) / Math.max(last - first, 1)) * (state.to - state.from);
        node(svg, "text", { x: this.x(index), y: HEIGHT - 5, "text-anchor": "middle" }, step.toLocaleString("en"));
      }
    }

    path(points) {
      return points.map((p, i) => `${i ? "L" : "M"}${this.x(p.index).toFixed(1)} ${this.y(p.value).toFixed(1)}`).join("");
    }

    drawLines() {
      const from = Math.floor(state.from), to = Math.ceil(state.to);
      for (const series of this.spec.series) {
        const points = thinned(series.values, from, to, this.width);
        const stroke = series.color;
        if (series.mean) {
          node(this.marks, "path", { class: "line raw", d: this.path(points), style: `stroke:${stroke}` });
          const mean = thinned(series.mean, from, to, this.width);
          node(this.marks, "path", { class: "line", d: this.path(mean), style: `stroke:${stroke}` });
        } else {
          node(this.marks, "path", { class: "line", d: this.path(points), style: `stroke:${stroke}` });
          if (points.length <= 60) {
            for (const p of points) this.dot(this.marks, p.index, p.value, stroke, 3.5);
          }
        }
      }
    }

    drawAreas() {
      const from = Math.floor(state.from), to = Math.ceil(state.to);
      let base = null;
      for (const series of this.spec.series) {
        const points = thinned(series.values, from, to, 140);
        const top = points.map((p, i) => ({ ...p, value: p.value + (base ? base[i].value : 0) }));
        const under = (base || points.map((p) => ({ ...p, value: 0 }))).slice();
        // The ends reach the plot's edges, whatever the runs that were averaged.
        for (const line of [top, under]) {
          if (!line.length) continue;
          line[0] = { ...line[0], index: from };
          line[line.length - 1] = { ...line[line.length - 1], index: line.length > 1 ? to : from + 1 };
        }
        const d = this.path(top) + this.path(under.slice().reverse()).replace(/^M/, "L") + "Z";
        node(this.marks, "path", { class: "area", d, style: `fill:${series.color}` });
        base = top;
      }
    }

    dot(parent, index, value, color, radius) {
      node(parent, "circle", { class: "dot", cx: this.x(index), cy: this.y(value), r: radius, style: `fill:${color}` });
    }

    hover() {
      if (!this.over) return;
      this.over.textContent = "";
      const index = state.hover;
      if (index === null || index < state.from || index > state.to) return;
      const x = this.x(index);
      node(this.over, "line", { class: "crosshair", x1: x, x2: x, y1: MARGIN.top, y2: MARGIN.top + this.inner });
      if (this.spec.stacked) return;
      for (const series of this.spec.series) {
        const value = series.values[index];
        if (known(value) && value >= this.low && value <= this.high) this.dot(this.over, index, value, series.color, 4);
      }
    }

    tell(clientX, clientY) {
      const { spec } = this;
      const index = state.hover;
      tooltip.textContent = "";
      element(tooltip, "strong", "", `Step ${spec.steps[index].toLocaleString("en")}`);
      const row = (name, text, color) => {
        const line = element(tooltip, "div");
        const label = element(line, "span");
        if (color) element(label, "span", "key" + (spec.stacked ? "" : " line")).style.background = color;
        label.append(name);
        element(line, "span", "", text);
      };
      for (const series of spec.series) {
        if (known(series.values[index])) row(series.name, spec.format(series.values[index]), series.color);
      }
      for (const [name, text] of spec.more ? spec.more(index) : []) row(name, text);
      for (const event of spec.events || []) {
        if (event.index === index) element(tooltip, "div", "note", event.text);
      }
      showTooltip(clientX, clientY);
    }

    indexAt(clientX) {
      const share = (clientX - this.svg.getBoundingClientRect().left - MARGIN.left) / this.width;
      const index = Math.round(state.from + share * (state.to - state.from));
      return Math.max(Math.ceil(state.from), Math.min(Math.floor(state.to), index));
    }

    listen() {
      const { svg } = this;
      let drag = null;
      svg.addEventListener("pointerdown", (event) => { drag = this.indexAt(event.clientX); });
      svg.addEventListener("pointermove", (event) => {
        setHover(this.indexAt(event.clientX));
        this.tell(event.clientX, event.clientY);
        if (drag === null || drag === state.hover) return;
        const [a, b] = [this.x(drag), this.x(state.hover)];
        const size = { x: Math.min(a, b), width: Math.abs(a - b), y: MARGIN.top, height: this.inner };
        node(this.over, "rect", { class: "selection", ...size });
      });
      svg.addEventListener("pointerup", (event) => {
        const end = this.indexAt(event.clientX);
        if (drag !== null && Math.abs(end - drag) >= 2) setView(Math.min(drag, end), Math.max(drag, end));
        drag = null;
      });
      svg.addEventListener("pointerleave", () => { drag = null; tooltip.hidden = true; setHover(null); });
      svg.addEventListener("dblclick", () => setView(0, Math.max(this.spec.steps.length - 1, 1)));
      svg.addEventListener("keydown", (event) => {
        const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        if (!move) return;
        event.preventDefault();
        const next = (state.hover === null ? Math.ceil(state.from) : state.hover) + move;
        setHover(Math.max(Math.ceil(state.from), Math.min(Math.floor(state.to), next, this.spec.steps.length - 1)));
        const box = svg.getBoundingClientRect();
        this.tell(box.left + this.x(state.hover), box.top + HEIGHT / 2);
      });
      svg.addEventListener("blur", () => { tooltip.hidden = true; setHover(null); });
    }
  }

  function setHover(index) {
    state.hover = index;
    for (const plot of all) plot.hover();
  }

  function setView(from, to) {
    [state.from, state.to] = [from, to];
    for (const plot of all) plot.draw();
  }

  // Cells in columns and rows; `share` of one is 1 where all of a column are alike. spec: {title, unit, columns,
  // rows, share(column, row), tell(column, row): {heading, rows: [[name, text]]}}
  function addMap(parent, spec) {
    const box = element(parent, "div", "map");
    const head = element(box, "div", "plot-head");
    element(head, "h3", "", spec.title);
    element(head, "span", "unit", spec.unit);
    const size = { width: 100, height: 100 };
    const svg = node(box, "svg", {
      viewBox: `0 0 ${size.width} ${size.height}`, preserveAspectRatio: "none", role: "img", "aria-label": spec.title,
    });
    const [width, height] = [size.width / spec.columns, size.height / spec.rows];
    for (let column = 0; column < spec.columns; ++column) {
      for (let row = 0; row < spec.rows; ++row) {
        // Twice as much as even, or half, has the full colour.
        const strength = Math.max(-1, Math.min(1, Math.log2(Math.max(spec.share(column, row), 1e-9))));
        const color = strength > 0 ? "var(--orange)" : "var(--blue)";
        const style = `fill:${color};opacity:${Math.abs(strength).toFixed(3)}`;
        node(svg, "rect", { x: column * width, y: row * height, width, height, style });
      }
    }
    svg.addEventListener("pointermove", (event) => {
      const area = svg.getBoundingClientRect();
      const cell = (at, length, count) => Math.max(0, Math.min(count - 1, Math.floor((at / length) * count)));
      const told = spec.tell(cell(event.clientX - area.left, area.width, spec.columns),
                             cell(event.clientY - area.top, area.height, spec.rows));
      tooltip.textContent = "";
      element(tooltip, "strong", "", told.heading);
      for (const [name, text] of told.rows) {
        const line = element(tooltip, "div");
        element(line, "span", "", name);
        element(line, "span", "", text);
      }
      showTooltip(event.clientX, event.clientY);
    });
    svg.addEventListener("pointerleave", () => { tooltip.hidden = true; });
  }

  // spec: {title, unit, steps, series: [{name, values, color, smooth}], stacked, zeroBased, format, tick, more, events}
  function add(parent, spec) {
    state.to = Math.max(spec.steps.length - 1, 1);
    all.push(new Plot(parent, spec));
  }

  return { add, addMap, element, known };
})();
