(async function () {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);

  // A figure names colours as var(--name); the style sheet is the only palette.
  function coloured(value, palette) {
    if (typeof value === "string") {
      const name = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return name ? palette.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((each) => coloured(each, palette));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, coloured(each, palette)]));
    }
    return value;
  }

  function dressed(figure, narrow) {
    const palette = getComputedStyle(root);
    const colour = (name) => palette.getPropertyValue(name).trim();
    const { data, layout } = coloured(figure, palette);
    const font = { color: colour("--ink"), size: narrow ? 11 : 12, family: getComputedStyle(document.body).fontFamily };
    for (const key of ["xaxis", "yaxis"]) {
      layout[key] = {
        gridcolor: colour("--grid"), linecolor: colour("--rule"), zerolinecolor: colour("--rule"),
        automargin: true, fixedrange: touch, ...layout[key],
      };
    }
    // At the very top, so that it stays clear of labels just above the plot.
    const legend = { orientation: "h", x: 1, xanchor: "right", yref: "container", y: 1, yanchor: "top", font };
    return {
      data,
      layout: {
        font, legend, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: 8, r: 12, t: data.length > 1 ? 48 : 24, b: 8 }, showlegend: data.length > 1,
        hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--rule"), font },
        ...layout,
      },
    };
  }

  function draw(onPaper) {
    for (const key of Object.keys(figures)) drawOne(key, onPaper);
  }

  function drawOne(key, onPaper) {
    const place = document.getElementById(key);
    const width = !onPaper ? undefined : place.closest(".wide") ? 690 : 335;
    const { data, layout } = dressed(figures[key], (width || place.clientWidth) < 520);
    if (width) layout.width = width;
    Plotly.react(place, data, layout, {
      responsive: !width, displaylogo: false, scrollZoom: false, displayModeBar: false,
    });
  }

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (each) => each.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  function labelled() { button.textContent = isDark() ? "Light" : "Dark"; }

  const redraw = (onPaper) => { if (root.classList.contains("drawn")) draw(onPaper); };

  labelled();
  button.hidden = false;
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; labelled(); redraw(); });
  dark.addEventListener("change", () => { labelled(); redraw(); });

  // Paper is white and narrow, and cannot open what is closed.
  let before = null;
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    root.dataset.theme = "light";
    before.closed.forEach((each) => { each.open = true; });
    redraw(true);
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
    before.closed.forEach((each) => { each.open = false; });
    before = null;
    redraw();
  });

  // The tables stand already; charts come when plotly is unpacked.
  try {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
    root.classList.add("drawn");
    // One chart at a time, so that the page answers to a finger or a wheel in between.
    for (const key of Object.keys(figures)) {
      drawOne(key);
      await new Promise((done) => { setTimeout(done); });
    }
  } catch (error) {
    document.getElementById("no-charts").hidden = false;
    console.error(error);
  }
})();
