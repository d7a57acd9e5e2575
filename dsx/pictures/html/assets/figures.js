// Draws the pictures of the page when they come near the window, in the colours of its text, again when these change.
"use strict";
(() => {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const places = [...document.querySelectorAll(".picture")];
  const drawn = new Set();
  const buttons = ["lasso2d", "select2d", "autoScale2d", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "sendChartToCloud"];
  const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: buttons };
  const colours = (ink, line) => ({
    "font.color": ink, "xaxis.gridcolor": line, "yaxis.gridcolor": line, "xaxis.linecolor": line, "yaxis.linecolor": line,
    "xaxis.tickcolor": line, "yaxis.tickcolor": line,
  });
  const ofPage = () => colours(colour("--ink"), colour("--line"));
  const repaint = (changed) => drawn.forEach((place) => Plotly.relayout(place, changed));
  const draw = (place) => {
    if (drawn.has(place)) return;
    drawn.add(place);
    const figure = JSON.parse(document.getElementById(`${place.id}-data`).textContent);
    if (place.clientWidth < 600) {
      // The legend has a line for each mark.
      figure.layout.height += 20 * figure.data.length;
      Object.assign(figure.layout.margin, { l: 40, r: 4 });
    }
    for (const [path, value] of Object.entries(ofPage())) {
      const [part, name] = path.split(".");
      (figure.layout[part] ??= {})[name] = value;
    }
    place.style.minHeight = `${figure.layout.height}px`;
    Plotly.newPlot(place, figure.data, figure.layout, settings);
  };
  const near = new IntersectionObserver(
    (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => draw(one.target)), { rootMargin: "300px" });
  places.forEach((place) => near.observe(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => repaint(ofPage()));
  addEventListener("beforeprint", () => { places.forEach(draw); repaint(colours("#000", "#999")); });
  addEventListener("afterprint", () => repaint(ofPage()));
})();
