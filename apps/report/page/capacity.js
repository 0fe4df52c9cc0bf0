"use strict";
// Fills the page from a capacity plan.

(() => {
  const plan = JSON.parse(document.getElementById("run-data").textContent);
  const { element } = Plots;
  const at = (id) => document.getElementById(id);
  const tooltip = at("tooltip");
  const strategies = plan.strategies;
  const knowsCompute = plan.compute_ms !== undefined;

  function scaled(value, factor, units) {
    let i = 0;
    for (; value >= factor * 0.9995 && i < units.length - 1; ++i) value /= factor;
    return `${Number(value.toPrecision(3))} ${units[i]}`;
  }
  const bytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
  const count = (value) => scaled(value, 1000, ["", "thousand", "million", "billion", "trillion"]).trim();
  const seconds = (value) => (value >= 1 ? `${value.toPrecision(3)} s` : scaled(value * 1e6, 1000, ["µs", "ms"]));
  const whole = (value) => value.toLocaleString("en");

  const MEMORY = [
    ["parameters", "--blue", (s) => s.parameters_bytes],
    ["gradients", "--orange", (s) => s.gradients_bytes],
    ["main values", "--green", (s) => s.main_bytes],
    ["optimizer", "--violet", (s) => s.optimizer_bytes],
    ["pools", "--gold", (s) => s.parameter_pool_bytes + s.gradient_pool_bytes],
    ["staging", "--rose", (s) => s.staging_bytes + s.scratch_bytes + s.checks_bytes],
    ["activations", "--slate", (s) => s.activations_bytes],
  ];
  const AXES = [["all ranks", "--blue"], ["inner axis", "--green"], ["outer axis", "--orange"], ["verdict", "--slate"],
    ["tensor", "--red"], ["context", "--violet"], ["expert", "--gold"], ["pipeline", "--rose"]];
  const ofAxis = (strategy, axis, value) =>
    strategy.communicators.filter((c) => c.axis === axis).reduce((sum, c) => sum + value(c), 0);

  function heading() {
    at("name").textContent = plan.model ? `Capacity of ${plan.model}` : "Capacity of equal units";
    document.title = at("name").textContent;
    const parts = [`${whole(plan.ranks)} ranks`, `${whole(plan.rounds)} round${plan.rounds === 1 ? "" : "s"}`,
      `${plan.numerics} numerics`, plan.optimizer, plan.dtype];
    if (plan.tensor_parallel > 1) parts.push(`layers shared by ${plan.tensor_parallel}`);
    if (plan.context_parallel > 1) parts.push(`sequences shared by ${plan.context_parallel}`);
    if (plan.expert_parallel > 1) parts.push(`experts distributed over ${plan.expert_parallel}`);
    if (plan.stages > 1) parts.push(`${plan.stages} stages`);
    if (plan.world > plan.ranks) parts.push(`${whole(plan.world)} ranks in all`);
    if (plan.model) parts.push(`microbatches of ${plan.sequences} × ${whole(plan.length)} tokens`);
    at("subtitle").textContent = parts.join(" · ");
    at("notes").textContent = plan.notes;
    at("theme").addEventListener("click", () => {
      const dark = getComputedStyle(document.documentElement).getPropertyValue("--card").trim() !== "#ffffff";
      document.documentElement.dataset.theme = dark ? "light" : "dark";
    });
  }

  function figure(name, value, note) {
    const box = element(at("figures"), "div", "figure");
    element(box, "span", "", name);
    element(box, "b", "", value);
    element(box, "small", "", note);
  }

  function figures() {
    const chosen = strategies.find((s) => s.strategy === plan.choose);
    figure("choose", plan.choose || "none", plan.verdict.replace(/^[^:]*: /, ""));
    figure("parameters", count(plan.elements), `in ${whole(plan.units)} units`);
    figure("device memory", bytes(plan.device_bytes), `${strategies.filter((s) => s.fits).length} of ${strategies.length} strategies fit`);
    if (!chosen) return;
    figure("memory of a rank", bytes(chosen.total_bytes),
      `${Math.round(100 * chosen.total_bytes / plan.device_bytes)} % of the device`);
    figure("sent per step", bytes(chosen.sent_bytes), "by a rank");
    figure("communication", seconds(chosen.communication_seconds),
      knowsCompute ? `${seconds(chosen.exposed_seconds)} of it exposed` : "per step, if nothing else ran");
  }

  function tell(event, title, rows) {
    tooltip.textContent = "";
    element(tooltip, "strong", "", title);
    for (const [name, text, color] of rows) {
      const line = element(tooltip, "div");
      const label = element(line, "span");
      if (color) element(label, "span", "key").style.background = `var(${color})`;
      label.append(name);
      element(line, "span", "", text);
    }
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    tooltip.style.left = `${Math.max(4, Math.min(event.clientX + 16, innerWidth - box.width - 4))}px`;
    tooltip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.height - 4))}px`;
  }

  // One stacked bar per strategy. spec: {title, unit, series: [[name, color, value(strategy)]], format, limit}
  function bars(spec) {
    const card = element(at("bars"), "div", "card");
    const head = element(card, "div", "plot-head");
    element(head, "h2", "", spec.title);
    element(head, "span", "unit", spec.unit);
    const legend = element(head, "div", "legend");
    const series = spec.series.filter(([, , value]) => strategies.some((s) => value(s) > 0));
    for (const [name, color] of series) {
      const item = element(legend, "span");
      element(item, "span", "key").style.background = `var(${color})`;
      item.append(name);
    }
    const total = (s) => series.reduce((sum, [, , value]) => sum + value(s), 0);
    const largest = Math.max(...strategies.map(total), 1e-12);
    // A limit far beyond all bars would leave nothing to see of them.
    const limit = spec.limit && spec.limit <= 3 * largest ? spec.limit : 0;
    const most = Math.max(largest, limit) * 1.02;
    const list = element(card, "div", "bars");
    for (const strategy of strategies) {
      const row = element(list, "div", strategy.strategy === plan.choose ? "bar chosen" : "bar");
      const label = element(row, "span", "bar-name", strategy.strategy);
      element(label, "small", "", strategy.mesh);
      const track = element(row, "div", "bar-track");
      for (const [name, color, value] of series) {
        const part = element(track, "div", "bar-part");
        part.style.width = `${100 * value(strategy) / most}%`;
        part.style.background = `var(${color})`;
        part.setAttribute("aria-label", `${name} ${spec.format(value(strategy))}`);
      }
      if (limit) element(track, "div", "bar-limit").style.left = `${100 * limit / most}%`;
      element(row, "span", "bar-value" + (spec.limit && !strategy.fits ? " bad" : ""), spec.format(total(strategy)));
      const rows = series.map(([name, color, value]) => [name, spec.format(value(strategy)), color]);
      rows.push(["together", spec.format(total(strategy))]);
      row.addEventListener("pointermove", (event) => tell(event, `${strategy.strategy} on ${strategy.mesh}`, rows));
      row.addEventListener("pointerleave", () => { tooltip.hidden = true; });
    }
    if (spec.limit) {
      const note = limit ? `The dotted line is the device's ${bytes(spec.limit)}.`
                         : `The device's ${bytes(spec.limit)} are far to the right.`;
      element(card, "p", "bar-note", note);
    }
  }

  function plots() {
    bars({ title: "Memory of a rank", unit: "the one that needs most", series: MEMORY, format: bytes, limit: plan.device_bytes });
    const used = AXES.filter(([axis]) => strategies.some((s) => s.communicators.some((c) => c.axis === axis)));
    const byAxis = (value) => used.map(([axis, color]) => [axis, color, (s) => ofAxis(s, axis, value)]);
    bars({ title: "Bytes sent", unit: "by a rank, per step", series: byAxis((c) => c.sent_bytes), format: bytes });
    bars({ title: "Time of communication", unit: "per step, if nothing else ran", series: byAxis((c) => c.seconds), format: seconds });
    if (!knowsCompute) return;
    bars({ title: "Step", unit: "compute, and what communication adds to it", format: seconds,
      series: [["compute", "--slate", (s) => s.compute_seconds], ["exposed communication", "--orange", (s) => s.exposed_seconds]] });
  }

  function table(parent, head, rows, textual) {
    const made = element(element(parent, "div", "scroll"), "table");
    const first = element(element(made, "thead"), "tr");
    head.forEach((name, i) => element(first, "th", i < textual ? "text" : "", name));
    const body = element(made, "tbody");
    for (const cells of rows) {
      const row = element(body, "tr");
      cells.forEach((cell, i) => element(row, "td", i < textual ? "text" : "", cell));
    }
  }

  function tables() {
    table(at("memory-table"), ["strategy", "mesh", ...MEMORY.map(([name]) => name), "total", "fits"],
      strategies.map((s) => [s.strategy, s.mesh, ...MEMORY.map(([, , value]) => bytes(value(s))), bytes(s.total_bytes), s.fits ? "yes" : "no"]), 2);
    const head = ["strategy", "axis", "link", "launches", "sent", "time"];
    if (knowsCompute) head.push("exposed");
    const rows = strategies.flatMap((s) => s.communicators.map((c) => {
      const cells = [s.strategy, c.axis, c.link, whole(c.launches), bytes(c.sent_bytes), seconds(c.seconds)];
      return knowsCompute ? [...cells, seconds(c.exposed_seconds)] : cells;
    }));
    table(at("time-table"), head, rows, 3);
  }

  function assumptions() {
    const link = (one) => `${scaled(one.bytes_per_second, 1000, ["B", "kB", "MB", "GB", "TB"])}/s, ${seconds(one.latency_seconds)}`;
    const rows = [["inner link", link(plan.inner)], ["outer link", link(plan.outer)], ["ranks of a node", whole(plan.node_ranks)],
      ["optimizer", plan.optimizer], ["dtype", plan.dtype], ["numerics", plan.numerics]];
    if (knowsCompute) rows.push(["compute of a unit and round", `${plan.compute_ms} ms`]);
    if (plan.model) rows.push(["activations computed anew", plan.recompute ? "yes" : "no"]);
    const list = element(at("configuration"), "dl", "pairs");
    for (const [name, value] of rows) {
      const row = element(list, "div");
      element(row, "dt", "", name);
      element(row, "dd", "", value);
    }
  }

  heading();
  figures();
  plots();
  tables();
  assumptions();
})();
