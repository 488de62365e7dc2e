// Shows the values of all curves at the round under the pointer. Without this script every point has its own title.
for (const figure of document.querySelectorAll("figure.accuracy")) {
  const runs = JSON.parse(figure.querySelector("script").textContent);
  const rounds = [...new Set(runs.flatMap((run) => run.points.map(([at]) => at)))].sort((a, b) => a - b);
  const readout = figure.querySelector(".readout");

  const fill = (at) => {
    const heading = document.createElement("div");
    heading.textContent = `Round ${at}`;
    const rows = runs
      .map((run) => ({ ...run, value: (run.points.find(([round]) => round === at) || [])[1] }))
      .filter((run) => run.value !== undefined)
      .sort((a, b) => b.value - a.value)
      .map((run) => {
        const row = document.createElement("div");
        const dot = document.createElement("i");
        const value = document.createElement("b");
        dot.className = run.colour;
        value.textContent = run.value.toFixed(run.unit ? 1 : 2) + run.unit;
        row.append(dot, run.label, value);
        return row;
      });
    readout.replaceChildren(heading, ...rows);
  };

  for (const chart of figure.querySelectorAll("svg.curves")) {
    chart.querySelectorAll(".hit title").forEach((title) => title.remove());
    const [start, end, last] = ["start", "end", "rounds"].map((name) => Number(chart.dataset[name]));
    const cursor = chart.querySelector(".cursor");

    const show = (event) => {
      const box = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / box.width;
      const wanted = (((event.clientX - box.left) * scale - start) / (end - start)) * last;
      const at = rounds.reduce((a, b) => (Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a));
      const x = start + (at / last) * (end - start);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      fill(at);
      readout.hidden = false;
      const side = x / scale + 12;
      const fits = side + readout.offsetWidth <= box.width;
      readout.style.left = `${fits ? side : Math.max(0, x / scale - 12 - readout.offsetWidth)}px`;
      readout.style.top = `${chart.getBoundingClientRect().top - figure.getBoundingClientRect().top + 8}px`;
    };
    const hide = () => {
      cursor.style.visibility = "hidden";
      readout.hidden = true;
    };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", hide);
  }
}
