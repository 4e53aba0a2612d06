"use strict";
// Draws every plot in the page's own colours, and again when these change: light, dark, paper.
(() => {
  const plots = JSON.parse(document.getElementById("plots").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const light = ["#1f5fa8", "#c4531b", "#2d7d46", "#7a4fa3", "#a8323f", "#5c6670"];
  const bright = ["#7fb4f0", "#f0a070", "#7ccb92", "#c3a3ea", "#ee8b95", "#b4bec8"];
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function themed(layout, onPaper, legend) {
    const narrow = window.innerWidth < 640;
    const ink = onPaper ? "#000" : colour("--ink"), line = onPaper ? "#bbb" : colour("--line");
    const out = Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      colorway: dark.matches && !onPaper ? bright : light,
      font: { color: ink, size: narrow ? 11 : 13, family: "system-ui, sans-serif" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      margin: { l: narrow ? 52 : 72, r: narrow ? 12 : 28, t: legend ? 44 : 16, b: 56 },
      hoverlabel: { align: "left" },
    });
    for (const key of Object.keys(out).filter((name) => /^[xy]axis/.test(name)).concat(["xaxis", "yaxis"])) {
      out[key] = Object.assign({ automargin: true }, out[key], { gridcolor: line, zerolinecolor: line, linecolor: line });
      out[key].title = Object.assign({ standoff: 14 }, out[key].title);
    }
    return out;
  }

  function draw(onPaper) {
    for (const [name, plot] of Object.entries(plots)) {
      if (plot.layout.height) document.getElementById(name).style.minHeight = `${plot.layout.height}px`;
      Plotly.react(name, structuredClone(plot.data), themed(plot.layout, onPaper, plot.data.length > 1), { responsive: true, displaylogo: false, displayModeBar: false });
    }
  }

  draw(false);
  dark.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
  document.documentElement.dataset.plots = String(Object.keys(plots).length);
})();
