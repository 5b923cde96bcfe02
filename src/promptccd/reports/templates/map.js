"use strict";
(() => {
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const points = document.querySelectorAll("#map-points > use");
  const slider = document.getElementById("map-stage");
  const paint = document.getElementById("map-paint");
  const note = document.getElementById("map-note");
  const legends = document.querySelectorAll("[data-legend]");

  function showStage() {
    const stage = Number(slider.value);
    data.points.forEach((point, index) => {
      const element = points[index];
      const later = stage < point.stage;
      const place = point.places[later ? 0 : stage - point.stage];
      element.style.transform = `translate(${place[0]}px, ${place[1]}px)`;
      element.classList.toggle("later", later);
      element.classList.toggle("older", point.stage < stage);
    });
    note.textContent = data.notes[stage];
    slider.setAttribute("aria-valuetext", data.notes[stage]);
  }

  function showPaint() {
    data.points.forEach((point, index) => {
      const element = points[index];
      const [style, mark] = point[paint.value];
      element.setAttribute("href", `#mark${mark}`);
      element.classList.remove(...[...element.classList].filter((name) => /^s\d+$/.test(name)));
      element.classList.add(`s${style}`);
    });
    for (const legend of legends) legend.hidden = legend.dataset.legend !== paint.value;
  }

  slider.addEventListener("input", showStage);
  paint.addEventListener("change", showPaint);
  document.getElementById("map-controls").hidden = false;
  showStage();
  showPaint();
})();
