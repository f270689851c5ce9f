"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const tip = document.getElementById("tip");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  const config = (width) => ({
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    axis: { labelColor: color("soft"), titleColor: color("soft"), titleFontWeight: "normal", gridColor: color("line"), domainColor: color("line"), tickColor: color("line"), labelFontSize: 11, titleFontSize: 12 },
    axisY: { labelLimit: Math.max(90, width * 0.32) },
    axisX: { tickCount: Math.ceil(width / 110) },
    legend: { labelColor: color("ink"), titleColor: color("soft"), labelFontSize: 11, orient: "top", title: null, symbolType: "square", columns: width < 700 ? 2 : 8 },
    header: { labelColor: color("ink"), titleColor: color("soft") },
    text: { color: color("ink") },
    mark: { color: color("accent") },
    rule: { color: color("soft") },
  });
  // Rows of numbers; where a column has texts a number is the place of one.
  const unpack = (table) => table.rows.map((row) => Object.fromEntries(table.columns.map((name, n) => {
    const texts = (table.texts || {})[name];
    return [name, texts ? texts[row[n]] : row[n]];
  })));
  const show = (_, event, item, value) => {
    if (value === undefined || value === null || value === "") {
      tip.style.display = "none";
      return;
    }
    const lines = typeof value === "object" ? Object.entries(value).map(([k, v]) => k + ": " + v) : [String(value)];
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), { textContent: line })));
    tip.style.display = "block";
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
  };
  const draw = (figure) => {
    const at = figure.querySelector(".chart");
    const width = at.clientWidth;
    if (!width) return;
    const { spec, table, canvas } = JSON.parse(figure.querySelector("script").textContent);
    figure.view && figure.view.finalize();
    spec.data = { values: unpack(table) };
    spec.width = width;
    spec.autosize = { type: typeof spec.height === "object" ? "fit-x" : "fit", contains: "padding" };
    const compiled = vegaLite.compile(spec, { config: config(width), logger: vega.logger(vega.Error) }).spec;
    figure.view = new vega.View(vega.parse(compiled), { renderer: canvas ? "canvas" : "svg", container: at, hover: true });
    figure.view.tooltip(show);
    figure.drawn = width;
    figure.view.runAsync();
  };
  const figures = [...document.querySelectorAll("figure.vega")];
  figures.forEach(draw);
  // What is folded has no width: it is drawn when it is opened.
  document.addEventListener("toggle", (event) => {
    event.target.querySelectorAll("figure.vega").forEach((figure) => figure.drawn || draw(figure));
  }, true);
  let soon;
  const again = () => {
    clearTimeout(soon);
    soon = setTimeout(() => figures.forEach((figure) => figure.drawn && draw(figure)), 100);
  };
  new ResizeObserver(again).observe(document.querySelector("main"));
  dark.addEventListener("change", again);
})();
