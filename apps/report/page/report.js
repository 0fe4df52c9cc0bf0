"use strict";
// Fills the page from the run's data.

(() => {
  const data = JSON.parse(document.getElementById("run-data").textContent);
  const { element, known } = Plots;
  const { run, events, samples } = data;
  const steps = data.steps.step || [];
  const column = (name) => data.steps[name] || [];
  const at = (id) => document.getElementById(id);

  const fixed = (digits) => (value) => value.toFixed(digits);
  const milliseconds = (value) => `${(value * 1e3).toPrecision(4)} ms`;
  function short(value) {
    const suffixes = ["", "k", "M", "G", "T"];
    let i = 0;
    for (; Math.abs(value) >= 999.5 && i < suffixes.length - 1; ++i) value /= 1000;
    return `${Number(value.toPrecision(3))}${suffixes[i]}`;
  }

  function heading() {
    document.title = run.name;
    at("name").textContent = run.name;
    const parts = [`${run.ranks} rank${run.ranks === 1 ? "" : "s"}`];
    if (run.started_at) parts.push(`started ${run.started_at.replace("T", " ").replace("Z", " UTC")}`);
    if (steps.length && steps[steps.length - 1] + 1 < run.steps) {
      parts.push(`stopped at step ${steps[steps.length - 1] + 1} of ${run.steps.toLocaleString("en")}`);
    }
    at("subtitle").textContent = parts.join(" · ");
    at("theme").addEventListener("click", () => {
      const dark = getComputedStyle(document.documentElement).getPropertyValue("--card").trim() !== "#ffffff";
      document.documentElement.dataset.theme = dark ? "light" : "dark";
    });
  }

  function figures() {
    const rows = new Map(data.summary);
    const happened = [["restarts", "restart"], ["refused steps", "refused step"]].filter(([key]) => rows.has(key))
      .map(([key, word]) => `${rows.get(key)} ${word}${rows.get(key) === "1" ? "" : "s"}`).join(", ");
    const shown = [
      ["evaluation loss", "evaluation loss", `best ${rows.get("best evaluation loss")}`],
      ["loss", "training loss", `after ${Number(rows.get("steps")).toLocaleString("en")} steps`],
      ["tokens/s (median)", "tokens/s", "median"],
      ["step time (median)", "step time", `p99 ${rows.get("step time (p99)")}`],
      ["exposed communication", "exposed", `communication; ${rows.get("communication hidden")} hidden`],
      ["time", "duration", happened || "no restarts"],
    ];
    for (const [key, name, note] of shown) {
      const value = rows.get(key);
      if (!value || value === "-") continue;
      const box = element(at("figures"), "div", "figure");
      element(box, "span", "", name);
      element(box, "b", "", value);
      element(box, "small", "", note);
    }
  }

  function plots() {
    if (!steps.length) return;
    const index = new Map(steps.map((step, i) => [step, i]));
    const marks = events.filter((event) => !["start", "end", "save"].includes(event.kind) && index.has(event.step))
      .map((event) => ({ index: index.get(event.step), text: `${event.kind}: ${event.text}` }));
    column("committed").forEach((committed, i) => { if (!committed) marks.push({ index: i, text: "refused" }); });
    const add = (spec) => Plots.add(at("plots"), { steps, events: marks, ...spec });

    const loss = [{ name: "training", values: column("loss"), color: "var(--blue)", smooth: true }];
    const evaluation = column("evaluation_loss");
    if (evaluation.some(known)) loss.push({ name: "evaluation", values: evaluation, color: "var(--orange)" });
    add({ title: "Loss", unit: "nats per token", series: loss, format: fixed(4) });

    // What is in none of the four parts is left out of the plot, and told in its tooltip.
    add({
      title: "Step time", unit: "ms", stacked: true, zeroBased: true, format: milliseconds,
      tick: (value) => String(Number((value * 1e3).toPrecision(6))),
      series: [
        { name: "compute", values: column("compute_seconds"), color: "var(--blue)" },
        { name: "exposed communication", values: column("exposed_communication_seconds"), color: "var(--orange)" },
        { name: "exposed optimizer", values: column("optimizer_seconds"), color: "var(--green)" },
        { name: "other waits", values: column("other_wait_seconds"), color: "var(--violet)" },
      ],
      more: (i) => [["whole step", milliseconds(column("step_seconds")[i] || 0)],
                    ["all communication", milliseconds(column("communication_seconds")[i] || 0)]],
    });
    add({
      title: "Throughput", unit: "tokens per second", zeroBased: true, format: short, tick: short,
      series: [{ name: "tokens/s", values: column("tokens_per_second"), color: "var(--green)", smooth: true }],
      more: (i) => (known(column("target_tokens")[i]) ? [["target tokens", column("target_tokens")[i].toLocaleString("en")]] : []),
    });
    add({
      title: "Gradient norm", unit: "before clipping", zeroBased: true, format: fixed(4),
      series: [{ name: "norm", values: column("gradient_norm"), color: "var(--violet)", smooth: true }],
      more: (i) => (known(column("learning_rate")[i]) ? [["learning rate", column("learning_rate")[i].toExponential(3)]] : []),
    });
  }

  // Records that follow each other, added up so that no map has more cells than a page can draw.
  function expertColumns(loads) {
    const layers = loads[0].layers.length, experts = Math.max(...loads[0].layers.map((layer) => layer.chosen.length), 1);
    const room = Math.max(1, Math.floor(20000 / (Math.max(layers, 1) * experts)));
    const size = Math.ceil(loads.length / room);
    const columns = [];
    loads.forEach((load, i) => {
      if (i % size === 0) {
        const from = i === 0 ? 0 : loads[i - 1].step + 1;
        columns.push({ from, layers: load.layers.map(() => ({ chosen: new Array(experts).fill(0), dropped: new Array(experts).fill(0) })) });
      }
      const column = columns[columns.length - 1];
      column.to = load.step;
      load.layers.forEach((layer, l) => ["chosen", "dropped"].forEach((name) => layer[name].forEach((count, e) => {
        column.layers[l][name][e] += count;
      })));
    });
    return columns;
  }

  function expertLoads() {
    const loads = (data.expert_loads || []).filter((load) => load.layers.length);
    at("experts").hidden = !loads.length;
    if (!loads.length) return;
    const columns = expertColumns(loads);
    const sum = (counts) => counts.reduce((all, count) => all + count, 0);
    const share = (chosen, e) => (sum(chosen) ? (chosen[e] * chosen.length) / sum(chosen) : 1);
    const times = (value) => `${value.toFixed(2)} x`;
    element(at("experts"), "p", "bar-note", "Steps from left to right, experts from top to bottom. Orange: more tokens than an " +
      "even share, blue: fewer; full colour at twice as many, or half.");
    const maps = element(at("experts"), "div", "maps");
    loads[0].layers.forEach((layer, l) => {
      const last = columns[columns.length - 1].layers[l].chosen;
      const dropped = sum(columns.map((column) => sum(column.layers[l].dropped)));
      const all = sum(columns.map((column) => sum(column.layers[l].chosen)));
      const lost = dropped ? `, ${((100 * dropped) / all).toFixed(1)} % dropped` : "";
      Plots.addMap(maps, {
        title: `Layer ${layer.layer}`, unit: `busiest in the end ${times(Math.max(...last.map((_, e) => share(last, e))))}${lost}`,
        columns: columns.length, rows: last.length,
        share: (c, e) => share(columns[c].layers[l].chosen, e),
        tell: (c, e) => ({
          heading: `Expert ${e}, steps ${columns[c].from.toLocaleString("en")} to ${columns[c].to.toLocaleString("en")}`,
          rows: [["tokens", columns[c].layers[l].chosen[e].toLocaleString("en")],
                 ["of an even share", times(share(columns[c].layers[l].chosen, e))],
                 ["dropped", columns[c].layers[l].dropped[e].toLocaleString("en")]],
        }),
      });
    });
  }

  function sampledText() {
    at("samples").hidden = !samples.length;
    for (const sample of samples.slice().reverse()) {
      const box = element(at("samples"), "div", "sample");
      element(box, "header", "", `after step ${(sample.step + 1).toLocaleString("en")}`);
      const quote = element(box, "blockquote");
      if (sample.prompt) element(quote, "em", "", sample.prompt);
      quote.append(sample.text);
    }
  }

  // Forward blue, backward green, that of weights violet; later chunks are paler.
  function pipeline() {
    const drawn = data.pipeline;
    at("pipeline").hidden = !drawn;
    if (!drawn) return;
    const share = (value) => `${(100 * value).toFixed(1)} %`;
    const theory = known(drawn.theoretical_bubble_share)
      ? `, ${share(drawn.theoretical_bubble_share)} in theory` : "";
    element(at("pipeline"), "p", "", `Step ${drawn.step + 1}, ${drawn.schedule}: ${share(drawn.bubble_share)} of the `
      + `stages' time is bubble${theory}. F forward, B backward (of inputs, where W follows), W backward of weights; `
      + "then the microbatch and the chunk.");
    const width = 1160, row = 34, left = 60;
    const total = Math.max(...drawn.stages.flat().map((pass) => pass[2]));
    const chunks = 1 + Math.max(...drawn.stages.flat().map(([name]) => Number(name.split(".")[1] || 0)));
    const make = (parent, kind, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      if (text !== undefined) made.textContent = text;
      parent.append(made);
      return made;
    };
    const colours = { F: "var(--blue)", B: "var(--green)", W: "var(--violet)" };
    const svg = make(at("pipeline"), "svg", { viewBox: `0 0 ${width} ${row * drawn.stages.length}`, role: "img" });
    drawn.stages.forEach((passes, stage) => {
      make(svg, "text", { x: 0, y: row * stage + 19 }, `stage ${stage}`);
      for (const [name, start, end] of passes) {
        const x = left + (start / total) * (width - left), wide = ((end - start) / total) * (width - left);
        const group = make(svg, "g", {});
        make(group, "title", {}, `${name}: ${start.toFixed(3)} to ${end.toFixed(3)} ms`);
        make(group, "rect", { x, y: row * stage, width: wide, height: 28, rx: 2, fill: colours[name[0]],
          "fill-opacity": 1 - 0.6 * Number(name.split(".")[1] || 0) / chunks, stroke: "var(--card)" });
        if (wide > 7 * name.length)
          make(group, "text", { x: x + wide / 2, y: row * stage + 18, "text-anchor": "middle",
            style: "fill: var(--ink)" }, name);
      }
    });
  }

  function traffic() {
    const sent = data.traffic;
    at("traffic").hidden = !sent || !sent.axes.length;
    if (at("traffic").hidden) return;
    element(at("traffic"), "p", "", `What rank 0 sent in step ${sent.step + 1}.`);
    const all = sent.axes.reduce((sum, axis) => sum + axis.bytes, 0) || 1;
    const rows = sent.axes.map((axis) => [axis.axis, axis.launches.toLocaleString("en"),
      axis.bytes.toLocaleString("en"), `${((100 * axis.bytes) / all).toFixed(1)} %`]);
    table(at("traffic"), ["axis", "operations", "bytes", "share"], rows, [0]);
  }

  function table(parent, head, rows, textual) {
    const made = element(element(parent, "div", "scroll"), "table");
    const first = element(element(made, "thead"), "tr");
    head.forEach((name, i) => element(first, "th", textual.includes(i) ? "text" : "", name));
    const body = element(made, "tbody");
    for (const cells of rows) {
      const row = element(body, "tr");
      cells.forEach((cell, i) => {
        const made = element(row, "td", textual.includes(i) ? "text" : "");
        if (cell instanceof Node) made.append(cell); else made.textContent = cell;
      });
    }
  }

  function eventList() {
    at("events").hidden = !events.length;
    const pill = (kind) => {
      const made = document.createElement("span");
      made.className = "pill" + (["failure", "restart"].includes(kind) ? " bad" : "");
      made.textContent = kind;
      return made;
    };
    const rows = events.map((event) => [event.step.toLocaleString("en"),
      known(event.seconds_since_start) ? `${event.seconds_since_start.toFixed(1)} s` : "", pill(event.kind), event.text]);
    if (rows.length) table(at("events"), ["step", "time", "event", ""], rows, [2, 3]);
  }

  function pairs(parent, rows) {
    const list = element(parent, "dl", "pairs");
    for (const [name, value] of rows) {
      const row = element(list, "div");
      element(row, "dt", "", name);
      element(row, "dd", "", value);
    }
  }

  // Thousands of rows are made only for whoever asks for them.
  function stepTable() {
    const names = ["loss", "target_tokens", "evaluation_loss", "tokens_per_second", "step_seconds", "compute_seconds",
      "communication_seconds", "exposed_communication_seconds", "optimizer_seconds", "other_wait_seconds", "gradient_norm", "learning_rate"];
    at("all-steps").addEventListener("toggle", () => {
      if (at("all-steps").querySelector("table")) return;
      const cell = (value) => (known(value) ? String(Number(value.toPrecision(5))) : "");
      const rows = steps.map((step, i) => [step.toLocaleString("en"), ...names.map((name) => cell(column(name)[i]))]);
      table(at("all-steps"), ["step", ...names.map((name) => name.replaceAll("_", " "))], rows, []);
    });
  }

  heading();
  figures();
  plots();
  expertLoads();
  pipeline();
  traffic();
  sampledText();
  eventList();
  pairs(at("configuration"), run.configuration);
  stepTable();
})();
