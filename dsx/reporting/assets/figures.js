// Draws the pictures of the page, in the colours of its text, again when these change.
"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const places = [...document.querySelectorAll(".picture")];
  const buttons = ["lasso2d", "select2d", "autoScale2d", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d",
    "sendChartToCloud"];
  const paint = (ink, line) => ({
    "font.color": ink, "xaxis.gridcolor": line, "yaxis.gridcolor": line, "xaxis.linecolor": line, "yaxis.linecolor": line,
    "xaxis.tickcolor": line, "yaxis.tickcolor": line,
  });
  const page = () => paint(colour("--ink"), colour("--line"));
  const repaint = (colours) => places.forEach((place) => Plotly.relayout(place, colours));
  for (const place of places) {
    const figure = JSON.parse(document.getElementById(`${place.id}-data`).textContent);
    if (place.clientWidth < 600) {
      // The legend has a line for each mark.
      figure.layout.height += 20 * figure.data.length;
      Object.assign(figure.layout.margin, { l: 40, r: 4 });
    }
    const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: buttons };
    Plotly.newPlot(place, figure.data, figure.layout, settings).then(() => Plotly.relayout(place, page()));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint(page()));
  addEventListener("beforeprint", () => repaint(paint("#000", "#999")));
  addEventListener("afterprint", () => repaint(page()));
})();
