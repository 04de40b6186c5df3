// The report: its charts in step with the toggles and the theme.
(() => {
  "use strict";

  const { draw, startTheme, hidden, variable, escapeText } = neoteny;
  const root = document.documentElement;
  const source = document.getElementById("charts");
  const charts = source ? JSON.parse(source.textContent) : [];

  const drawAll = () => Promise.all(charts.map((chart, index) => draw(chart, document.getElementById(`chart-${index}`))));

  const chips = [...document.querySelectorAll(".chip")];
  const all = document.getElementById("all");

  function showToggles() {
    for (const chip of chips) chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.key)));
    all.disabled = hidden.size === 0;
    return drawAll();
  }

  for (const chip of chips) {
    chip.addEventListener("click", () => {
      const key = chip.dataset.key;
      if (!hidden.delete(key)) hidden.add(key);
      showToggles();
    });
    chip.addEventListener("dblclick", () => {
      for (const other of chips) if (other !== chip) hidden.add(other.dataset.key);
      hidden.delete(chip.dataset.key);
      showToggles();
    });
  }
  if (all) all.addEventListener("click", () => { hidden.clear(); showToggles(); });

  for (const button of document.querySelectorAll(".save")) {
    button.addEventListener("click", () => {
      const index = Number(button.dataset.chart);
      const place = document.getElementById(`chart-${index}`);
      const name = charts[index].title.toLowerCase().replace(/[^a-z0-9]+/g, "-") || "chart";
      // On its own a picture needs a ground, a title and a legend, which the page gives it otherwise.
      const picture = {
        data: place.data.map((trace) => ({ ...trace, showlegend: trace.hoverinfo !== "skip" })),
        layout: {
          ...place.layout, paper_bgcolor: variable("--card"), showlegend: true, legend: { orientation: "h", y: -0.16 },
          title: { text: escapeText(charts[index].title), font: { size: 16 }, x: 0.02 }, margin: { l: 60, r: 16, t: 48, b: 44 },
        },
      };
      Plotly.downloadImage(picture, { format: "png", width: 900, height: 560, scale: 2, filename: name });
    });
  }

  startTheme(drawAll);
  drawAll().then(() => { root.dataset.ready = "yes"; });
})();
