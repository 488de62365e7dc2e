// Shows the values of all curves at the round under the pointer, from the table below the chart.
for (const figure of document.querySelectorAll("figure.accuracy")) {
  const curves = [...figure.querySelectorAll(".legend li")];
  const texts = (row) => [...row.cells].map((cell) => cell.textContent);
  const rows = [...figure.querySelectorAll(".values tbody tr")].map(texts);
  const readout = figure.querySelector(".readout");

  const fill = ([round, ...values]) => {
    const heading = document.createElement("div");
    heading.textContent = `Round ${round}`;
    const shown = curves
      .map((curve, index) => ({ curve, text: values[index], value: parseFloat(values[index].replace("−", "-")) }))
      .filter(({ value }) => !isNaN(value))
      .sort((a, b) => b.value - a.value)
      .map(({ curve, text }) => {
        const row = document.createElement("div");
        const dot = document.createElement("i");
        const value = document.createElement("b");
        dot.className = curve.className;
        value.textContent = text;
        row.append(dot, curve.textContent, value);
        return row;
      });
    readout.replaceChildren(heading, ...shown);
  };

  for (const chart of figure.querySelectorAll("svg.curves")) {
    const [start, end, last] = ["start", "end", "rounds"].map((name) => Number(chart.dataset[name]));
    const cursor = chart.querySelector(".cursor");

    const show = (event) => {
      const box = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / box.width;
      const wanted = (((event.clientX - box.left) * scale - start) / (end - start)) * last;
      const nearest = rows.reduce((a, b) => (Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a));
      const x = start + (nearest[0] / last) * (end - start);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      fill(nearest);
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
