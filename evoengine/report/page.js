"use strict";
// Shows one study at a time and draws its plots in the colours of the style sheet, again when these change.
(() => {
  const root = document.documentElement;
  const chooser = document.getElementById("chooser"); // absent if there is one study
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");
  const touch = window.matchMedia("(pointer: coarse)");
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const first = document.querySelector("article").id;
  const shown = () => document.querySelector("article.shown");

  function painted(trace) {
    if (!trace.meta) return trace;
    const own = colour(trace.meta);
    const out = Object.assign({}, trace, { line: Object.assign({}, trace.line, { color: own }) });
    out.marker = Object.assign({}, trace.marker, { color: own });
    if (trace.marker && trace.marker.line) out.marker.line = Object.assign({}, trace.marker.line, { color: colour("panel") });
    return out;
  }

  function themed(layout, legend) {
    const ink = colour("ink"), line = colour("line"), size = narrow.matches ? 12 : 13;
    const out = Object.assign({}, layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true, hovermode: "closest",
      font: { color: ink, size, family: getComputedStyle(document.body).fontFamily },
      showlegend: legend, legend: Object.assign({ orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemwidth: 30 }, layout.legend),
      margin: { l: narrow.matches ? 44 : 64, r: narrow.matches ? 8 : 24, t: legend && !layout.legend ? 40 : 16, b: 48 },
      hoverlabel: { align: "left", bgcolor: colour("panel"), bordercolor: colour("quiet"), font: { color: ink, size } },
      dragmode: touch.matches ? false : "zoom", // a drag on a phone scrolls the page
    });
    for (const key of new Set(Object.keys(out).filter((name) => /^[xy]axis/.test(name)).concat("xaxis", "yaxis"))) {
      out[key] = Object.assign({ automargin: true }, out[key], { gridcolor: line, zerolinecolor: line, linecolor: line });
      out[key].title = Object.assign({ standoff: 12 }, out[key].title);
    }
    const labelled = (note) => (note.name === "label" ? Object.assign({}, note, { bgcolor: colour("panel") }) : note);
    out.annotations = (out.annotations || []).map(labelled);
    return out;
  }

  function draw() {
    const study = shown();
    const plots = JSON.parse(document.querySelector(`script[data-study="${study.id}"]`).textContent);
    for (const [name, plot] of Object.entries(plots)) {
      const place = document.getElementById(name);
      if (plot.layout.height) place.style.minHeight = `${plot.layout.height}px`;
      const legend = plot.data.filter((trace) => trace.name).length > 1;
      const layout = Object.assign(themed(plot.layout, legend), { width: place.clientWidth }); // it may have been hidden
      Plotly.react(place, plot.data.map(painted), layout, { responsive: true, displaylogo: false, displayModeBar: false });
    }
    root.dataset.plots = String(Object.keys(plots).length);
  }

  // The fragment names a study, or a heading within it.
  function route() {
    const target = document.getElementById(location.hash.slice(1));
    const study = target && target.closest("article");
    show(study || document.getElementById(first));
    if (study && study !== target) target.scrollIntoView();
  }

  function show(study) {
    shown().classList.remove("shown");
    study.classList.add("shown");
    if (chooser) {
      chooser.value = study.id;
      document.title = `${chooser.selectedOptions[0].dataset.title} · EvoEngine`;
    }
    draw();
  }

  route();
  if (chooser) chooser.addEventListener("change", () => {
    history.pushState(null, "", `#${chooser.value}`);
    show(document.getElementById(chooser.value));
  });
  window.addEventListener("hashchange", route);
  for (const query of [dark, narrow]) query.addEventListener("change", draw);
  window.addEventListener("beforeprint", () => { root.dataset.paper = ""; draw(); });
  window.addEventListener("afterprint", () => { delete root.dataset.paper; draw(); });
})();
