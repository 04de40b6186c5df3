// Charts and theme: what the report and the page of a running sweep have in common.
const neoteny = (() => {
  "use strict";

  const root = document.documentElement;
  const darkPreferred = window.matchMedia("(prefers-color-scheme: dark)");
  const coarsePointer = window.matchMedia("(pointer: coarse)");
  const hidden = new Set();

  const theme = () => root.dataset.theme || (darkPreferred.matches ? "dark" : "light");
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function fade(colour, opacity) {
    const part = (start) => parseInt(colour.slice(start, start + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${opacity})`;
  }

  // The outline of a band: one closed polygon for each stretch without gaps.
  function outline(series) {
    const x = [], y = [];
    let start = 0;
    for (let i = 0; i <= series.x.length; i++) {
      if (i < series.x.length && series.y[i] !== null) continue;
      if (i > start) {
        for (let k = start; k < i; k++) { x.push(series.x[k]); y.push(series.high[k]); }
        for (let k = i - 1; k >= start; k--) { x.push(series.x[k]); y.push(series.low[k]); }
        x.push(null); y.push(null);
      }
      start = i + 1;
    }
    return { x, y };
  }

  function traces(chart) {
    const colour = (series) => series[theme()];
    const banded = (series) => series.low.length > 0;
    const shown = (series) => !hidden.has(series.key);
    const bands = chart.markers ? [] : chart.series.filter(banded).map((series) => ({
      ...outline(series), type: "scatter", mode: "lines", fill: "toself", fillcolor: fade(colour(series), 0.16),
      line: { width: 0 }, hoverinfo: "skip", showlegend: false, visible: shown(series), name: series.name,
    }));
    const lines = chart.series.map((series) => ({
      x: series.x, y: series.y, type: "scatter", name: series.name, visible: shown(series), connectgaps: false,
      mode: chart.markers || series.x.length === 1 ? "lines+markers" : "lines",
      line: { color: colour(series), width: 2, dash: series.dash }, marker: { color: colour(series), size: 7 },
      customdata: banded(series) ? series.low.map((low, i) => [low, series.high[i]]) : undefined,
      hovertemplate: banded(series) && series.x.length
        ? "%{y:.4~g}  <span style='font-size:.85em'>[%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]</span>"
        : "%{y:.4~g}",
      error_y: chart.markers && banded(series) ? {
        type: "data", symmetric: false, thickness: 1.4, width: 3, color: colour(series),
        array: series.high.map((high, i) => (series.y[i] === null ? 0 : high - series.y[i])),
        arrayminus: series.low.map((low, i) => (series.y[i] === null ? 0 : series.y[i] - low)),
      } : undefined,
    }));
    return [...bands, ...lines];
  }

  function axis(label, logarithmic, ticks) {
    const given = ticks ? { tickmode: "array", tickvals: ticks[0], ticktext: ticks[1] } : {};
    return {
      title: { text: escapeText(label), standoff: 8, font: { size: 12.5, color: variable("--soft") } },
      type: logarithmic ? "log" : "linear", gridcolor: variable("--grid"), linecolor: variable("--line"), zeroline: false,
      tickfont: { size: 11.5, color: variable("--soft") }, automargin: true, ...given,
    };
  }

  // Plotly reads a small set of tags in its texts; ours are plain.
  const escapeText = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function layout(chart, place) {
    return {
      height: place.clientHeight, margin: { l: 52, r: 12, t: 8, b: 44 }, showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, color: variable("--ink") },
      xaxis: { ...axis(chart.xLabel, chart.logX, chart.xTicks), showgrid: false, ticks: "outside", ticklen: 4,
        tickcolor: variable("--line"), showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid",
        spikecolor: variable("--line"),
        unifiedhovertitle: { text: `${escapeText(chart.xLabel)} %{x}` } },
      yaxis: axis(chart.yLabel, chart.logY, chart.yTicks),
      hovermode: "x unified", dragmode: coarsePointer.matches ? false : "zoom",
      hoverlabel: { bgcolor: variable("--raised"), bordercolor: variable("--line"), namelength: 28,
        font: { size: 12, color: variable("--ink") } },
    };
  }

  // Draws a chart into its place, or again where it is there already; lines of methods in `hidden` are left out.
  function draw(chart, place) {
    const escaped = traces(chart).map((trace) => ({ ...trace, name: escapeText(trace.name) }));
    return Plotly.react(place, escaped, layout(chart, place), { displayModeBar: false, responsive: true });
  }

  function showTheme() {
    const button = document.getElementById("theme");
    button.setAttribute("aria-label", `Switch to the ${theme() === "dark" ? "light" : "dark"} theme`);
  }

  function remember(value) {
    try { localStorage.setItem("neoteny-theme", value); } catch { /* a page opened from a file may have no storage */ }
  }

  function recall() {
    try { return localStorage.getItem("neoteny-theme"); } catch { return null; }
  }

  // Lets the button switch the theme; `redraw` is called after each change.
  function startTheme(redraw) {
    document.getElementById("theme").addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      remember(root.dataset.theme);
      showTheme();
      redraw();
    });
    darkPreferred.addEventListener("change", () => { showTheme(); redraw(); });
    const stored = recall();
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
    showTheme();
  }

  return { draw, startTheme, hidden, variable, escapeText };
})();
