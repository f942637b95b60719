/* Linked views of points, drawn by BokehJS. All words of the user reach the page as textContent. */
"use strict";
(() => {
  const MOST_LISTED = 200;
  const MOST_IN_KEY = 60;
  const REACH = 12; // pixels between the pointer and a point

  const number = (value) => {
    if (Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return "∞";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-4 || size >= 1e6) return value.toPrecision(3);
    return value.toFixed(size < 0.1 ? 4 : size < 1 ? 3 : size < 100 ? 2 : 1);
  };
  const thousands = (value) => value.toLocaleString("en-US");
  const unpacked = ([kind, text]) => {
    const letters = atob(text);
    const bytes = new Uint8Array(letters.length);
    for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
    return new { Float32Array, Int32Array, Uint16Array }[kind](bytes.buffer);
  };
  const made = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = kind;
    return element;
  };
  const tip = made("div", "", "point-tip");
  tip.hidden = true;
  const pointer = { x: 0, y: 0 };
  const wherePointerIs = (event) => Object.assign(pointer, { x: event.clientX, y: event.clientY });
  for (const kind of ["pointermove", "pointerdown"]) document.addEventListener(kind, wherePointerIs, true);

  const showTip = (lines, image) => {
    tip.hidden = !lines.length;
    tip.replaceChildren(...(image ? [image] : []), ...lines.map((line, place) => made(place ? "div" : "strong", line)));
    placeTip();
  };
  const placeTip = () => {
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(pointer.x + 14, innerWidth - width - 4))}px`;
    tip.style.top = `${pointer.y + 18 + height > innerHeight ? pointer.y - height - 12 : pointer.y + 18}px`;
  };

  const explore = async (root, data) => {
    const find = (selector) => root.querySelector(selector);
    const points = Object.fromEntries(Object.entries(data.columns).map(([name, packed]) => [name, unpacked(packed)]));
    const groups = Object.fromEntries(
      Object.entries(data.groups).map(([name, group]) => [name, { ...group, codes: unpacked(group.codes), hidden: new Set() }]),
    );
    const near = data.neighbors && { ...data.neighbors, places: unpacked(data.neighbors.places) };
    const count = points.row.length;
    const unknown = new Float32Array(count).fill(NaN); // of a run, not every column is known
    const { lid, standard_error = unknown, kth_distance = unknown } = points;
    const noun = data.noun ?? "row";
    const regular = (point) => lid[point] > 0 && Number.isFinite(lid[point]);
    const shown = (point) => Object.values(groups).every((group) => !group.hidden.has(group.codes[point]));
    const word = (name, point) => groups[name].names[groups[name].codes[point]];

    // Images are tiles of sheets, copied to canvases.
    const images = data.images && { ...data.images, places: unpacked(data.images.places) };
    const sheets = (images?.sheets ?? []).map((text) => Object.assign(new Image(), { src: `data:image/jpeg;base64,${text}` }));
    const tile = (point) => {
      if (!images) return null;
      const { side, across, places } = images;
      const canvas = Object.assign(made("canvas", "", places[point] < 0 ? "tile gap" : "tile"), { width: side, height: side });
      if (places[point] < 0) return canvas;
      const [sheet, spot] = [sheets[Math.floor(places[point] / across ** 2)], places[point] % across ** 2];
      const from = [(spot % across) * side, Math.floor(spot / across) * side];
      const draw = () => canvas.getContext("2d").drawImage(sheet, ...from, side, side, 0, 0, side, side);
      if (sheet.complete) draw(); else sheet.addEventListener("load", draw, { once: true });
      return canvas;
    };

    // What is drawn: NaN leaves a point out of a view.
    const placed = (values, keep) => values.map((value, point) => (keep(point) ? value : NaN));
    const inDensity = (point) => regular(point) && kth_distance[point] > 0;
    const distance = placed(kth_distance, inDensity);
    const height = placed(lid, inDensity);
    const columns = { x: points.x, y: points.y, distance, height, lid: placed(lid, regular) };
    for (const [name, group] of Object.entries(groups)) columns[`${name}_code`] = Float32Array.from(group.codes);
    const source = new Bokeh.ColumnDataSource({ data: columns });
    const filter = new Bokeh.AllIndices();
    const view = new Bokeh.CDSView({ filter });
    const empty = () => ({ x: [], y: [], distance: [], height: [], lid: [] });
    const rings = { near: new Bokeh.ColumnDataSource({ data: empty() }), at: new Bokeh.ColumnDataSource({ data: empty() }) };

    const range = (values, wide) => {
      let [low, high] = [Infinity, -Infinity];
      for (const value of values) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
      if (low > high) [low, high] = [1, 2];
      if (wide) return [low / (high / low) ** 0.04 / 1.01, high * (high / low) ** 0.04 * 1.01];
      const margin = (high - low) * 0.04 || Math.abs(high) * 0.05 || 1;
      return [low - margin, high + margin];
    };
    const spread = ([low, high]) => high / low;
    const wideDistance = spread(range(distance, false)) > 4 || range(distance, false)[0] <= 0;
    const limits = (values, wide) => {
      const [start, end] = range(values, wide);
      return new Bokeh.Range1d({ start, end, reset_start: start, reset_end: end });
    };
    const coarse = matchMedia("(pointer: coarse)").matches;
    const figure = (options, dimensions) => {
      const brush = dimensions !== "none" && new Bokeh.BoxSelectTool({ dimensions, ...(dimensions === "width" ? { renderers: [] } : {}) });
      const wheel = new Bokeh.WheelZoomTool({ modifiers: { ctrl: true }, visible: false });
      const brushes = dimensions === "none" ? [] : dimensions === "width" ? [brush] : [brush, new Bokeh.LassoSelectTool()];
      const zooms = [new Bokeh.ZoomInTool(), new Bokeh.ZoomOutTool()];
      const plot = new Bokeh.Plotting.Figure({
        ...options,
        tools: [...brushes, new Bokeh.PanTool(), wheel, ...zooms, new Bokeh.ResetTool()],
        sizing_mode: "stretch_both", min_width: 100, min_height: 100, toolbar_location: "above", lod_threshold: 20000,
        background_fill_color: null, border_fill_color: null, outline_line_color: null, min_border_right: 12,
      });
      plot.toolbar.logo = null;
      plot.toolbar.active_drag = coarse || !brush ? null : brush; // on a touch screen a swipe scrolls the page
      plot.toolbar.active_scroll = wheel;
      return plot;
    };

    const size = count < 2000 ? 7 : count < 10000 ? 5 : count < 40000 ? 4 : 3;
    const dots = [];
    const scatter = (plot, x, y) => {
      const look = { size, line_color: null, fill_alpha: count < 10000 ? 0.8 : 0.6 };
      const faint = { nonselection_fill_color: data.gray, nonselection_fill_alpha: 0.12 };
      dots.push(plot.scatter({ field: x }, { field: y }, { source, view, fill_color: data.gray, ...look, ...faint }));
      const ring = { fill_color: null, line_width: 2, level: "overlay" };
      const overlays = [
        plot.scatter({ field: x }, { field: y }, { source: rings.near, size: size + 6, ...ring }),
        plot.scatter({ field: x }, { field: y }, { source: rings.at, size: size + 9, ...ring, line_width: 2.5 }),
      ];
      for (const tool of plot.toolbar.tools) if (tool instanceof Bokeh.BoxSelectTool || tool instanceof Bokeh.LassoSelectTool) tool.renderers = [dots.at(-1)];
      return overlays;
    };

    const map = figure({ x_range: limits(points.x), y_range: limits(points.y), x_axis_label: data.axes[0], y_axis_label: data.axes[1] });
    for (const axis of map.axes) axis.setv({ formatter: new Bokeh.PrintfTickFormatter({ format: "" }), major_tick_line_color: null, minor_tick_line_color: null });
    const box = { x: [map.x_range.start, map.x_range.end], y: [map.y_range.start, map.y_range.end] };
    const fit = () => { // a unit is as long in both directions
      const unit = Math.max((box.x[1] - box.x[0]) / map.inner_width, (box.y[1] - box.y[0]) / map.inner_height);
      if (!(unit > 0) || !Number.isFinite(unit)) return;
      for (const [extent, pixels, [low, high]] of [[map.x_range, map.inner_width, box.x], [map.y_range, map.inner_height, box.y]]) {
        const [start, end] = [(low + high - unit * pixels) / 2, (low + high + unit * pixels) / 2];
        extent.setv({ start, end, reset_start: start, reset_end: end });
      }
    };
    map.properties.inner_width.change.connect(fit);
    map.properties.inner_height.change.connect(fit);

    const lidType = data.wide ? "log" : "linear";
    const density = figure({
      x_range: limits(distance, wideDistance), y_range: limits(height, data.wide), x_axis_type: wideDistance ? "log" : "linear",
      y_axis_type: lidType, x_axis_label: `distance to neighbor ${data.k}   (dense → sparse)`, y_axis_label: "LID",
    });
    const overlays = [...scatter(map, "x", "y"), ...scatter(density, "distance", "height")];

    // The histogram
    const { edges } = data;
    const bins = new Int32Array(count).fill(-1);
    const spacing = data.wide ? Math.log : (value) => value;
    const step = (spacing(edges.at(-1)) - spacing(edges[0])) / (edges.length - 1);
    for (let point = 0; point < count; point++) {
      const bin = Math.floor((spacing(lid[point]) - spacing(edges[0])) / step);
      if (regular(point)) bins[point] = Math.max(0, Math.min(edges.length - 2, bin));
    }
    const counted = (those) => {
      const heights = new Array(edges.length - 1).fill(0);
      for (const point of those) if (bins[point] >= 0) heights[bins[point]] += 1;
      return heights;
    };
    const histogram = figure({
      x_range: limits(edges, data.wide), y_range: new Bokeh.Range1d({ start: 0, end: 1 }), x_axis_type: lidType,
      x_axis_label: "LID", y_axis_label: "points",
    }, "width");
    const sides = { left: edges.slice(0, -1), right: edges.slice(1) };
    const zeros = counted([]);
    const [all, some] = [0, 1].map(() => new Bokeh.ColumnDataSource({ data: { ...sides, top: zeros } }));
    const quad = { left: { field: "left" }, right: { field: "right" }, top: { field: "top" }, bottom: 0 };
    histogram.quad({ ...quad, source: all, line_color: null, fill_color: data.colors[0], fill_alpha: 0.65 });
    histogram.quad({ ...quad, source: some, line_color: null, fill_color: data.colors[1], level: "overlay" });
    overlays.push(histogram.vspan({ field: "lid" }, { source: rings.at, line_width: 2, level: "overlay" }));

    // The spectrum
    const shares = data.spectrum;
    const sums = [];
    for (const share of shares) sums.push((sums.at(-1) ?? 0) + share);
    const directions = shares.map((_, place) => place + 1);
    const logShares = shares.map((share) => (share > 0 ? share : NaN));
    const spectrum = figure({
      x_range: limits([0, shares.length + 1]), y_range: limits(logShares, true), y_axis_type: "log",
      x_axis_label: "principal axis", y_axis_label: "share of the variance",
    }, "none");
    const spectral = { x: directions, y: logShares };
    spectrum.line({ field: "x" }, { field: "y" }, { source: new Bokeh.ColumnDataSource({ data: spectral }), line_color: data.colors[0], line_width: 2 });
    const here = new Bokeh.ColumnDataSource({ data: { x: [], y: [] } });
    spectrum.scatter({ field: "x" }, { field: "y" }, { source: here, size: 9, line_color: null, fill_color: data.colors[1] });
    const spectrumTip = (event) => {
      const place = Math.max(0, Math.min(shares.length - 1, Math.round(event.x) - 1));
      here.data = { x: [place + 1], y: [logShares[place]] };
      showTip([`axis ${place + 1}`, `${number(100 * shares[place])} % of the variance`, `axes 1 to ${place + 1}: ${number(100 * sums[place])} %`]);
    };
    spectrum.on_event("mousemove", spectrumTip);
    spectrum.on_event("tap", spectrumTip);
    find(".spectrum .plot").addEventListener("pointerleave", () => { here.data = { x: [], y: [] }; showTip([]); });

    // Colors, and the key that filters
    const shading = new Bokeh.LogColorMapper({ palette: data.shades, low: data.ends[0], high: data.ends[1], nan_color: data.gray });
    const hue = (group, code) => (code < group.colored ? data.colors[code] : data.gray);
    const mappers = { lid: { field: "lid", transform: shading } };
    const choices = [["lid", "LID"]];
    for (const name of ["label", "finding"]) {
      const group = groups[name];
      if (!group || group.names.length < (name === "label" ? 1 : 2)) continue;
      const palette = group.names.map((_, code) => hue(group, code));
      const mapper = new Bokeh.LinearColorMapper({ palette, low: -0.5, high: palette.length - 0.5 });
      mappers[name] = { field: `${name}_code`, transform: mapper };
      choices.push([name, name]);
    }
    const select = find("select");
    select.append(...choices.map(([value, text]) => Object.assign(made("option", text), { value })));
    const key = find(".key");
    const [missing, apart] = [regular, inDensity].map((is) => points.row.reduce((sum, _, point) => sum + !is(point), 0));
    const drawKey = () => {
      const group = groups[select.value];
      find(".map span").textContent = `${data.map}${group ? "" : " Red: low LID."}` + (group || !missing ? "" : ` Gray: ${thousands(missing)} without a LID.`);
      if (!group) {
        const gradient = made("b");
        gradient.style.background = `linear-gradient(to right, ${data.shades.join(",")})`;
        const [low, high] = data.ends.map(number);
        key.replaceChildren(made("span", low), gradient, made("span", high));
        return;
      }
      const sizes = new Array(group.names.length).fill(0);
      for (const code of group.codes) sizes[code] += 1;
      const entries = group.names.slice(0, MOST_IN_KEY).map((name, code) => {
        const entry = made("button");
        const swatch = made("i");
        swatch.style.background = hue(group, code);
        entry.append(swatch, made("span", name), made("small", thousands(sizes[code])));
        entry.type = "button";
        entry.title = "Click to hide or show, double-click to show only these points";
        const toggle = () => group.hidden[group.hidden.has(code) ? "delete" : "add"](code);
        entry.addEventListener("click", (event) => { if (event.detail > 1) only(group, code); else toggle(); filtered(); });
        return entry;
      });
      if (group.names.length > MOST_IN_KEY) entries.push(made("span", `and ${thousands(group.names.length - MOST_IN_KEY)} more`));
      key.replaceChildren(...entries);
      pressKey();
    };
    const pressKey = () => {
      drawClasses();
      const group = groups[select.value];
      if (group) key.querySelectorAll("button").forEach((entry, code) => entry.setAttribute("aria-pressed", String(!group.hidden.has(code))));
    };
    const only = (group, code) => group.names.forEach((_, other) => group.hidden[other === code ? "delete" : "add"](other));

    // Classes: a click shows one alone, another click all
    const classes = data.classes ?? [];
    const top = classes.reduce((most, one) => Math.max(most, one.value ?? 0), 0);
    const sizes = new Array(groups.label?.names.length ?? 0).fill(0);
    for (const code of groups.label?.codes ?? []) sizes[code] += 1;
    const bars = classes.map((one) => {
      const entry = made("button");
      const swatch = made("i");
      swatch.style.background = hue(groups.label, one.code);
      const bar = made("s");
      bar.append(made("b"));
      bar.firstChild.style.width = `${(100 * (one.value ?? 0)) / top}%`;
      bar.firstChild.style.background = hue(groups.label, one.code);
      entry.append(swatch, made("span", groups.label.names[one.code]), bar, made("em", one.value === null ? "–" : number(one.value)), made("small"));
      entry.type = "button";
      if (one.low !== null) entry.title = `95 % confidence ${number(one.low)} to ${number(one.high)}`;
      entry.addEventListener("click", () => {
        const { hidden, names: all } = groups.label;
        if (hidden.size === all.length - 1 && !hidden.has(one.code)) hidden.clear(); else only(groups.label, one.code);
        filtered();
      });
      return entry;
    });
    find(".classes .plot").append(...bars);
    find(".classes").hidden = !top;
    const drawClasses = () => {
      const chosen = new Map();
      for (const point of source.selected.indices) {
        const code = groups.label?.codes[point];
        chosen.set(code, (chosen.get(code) ?? 0) + 1);
      }
      bars.forEach((entry, place) => {
        const { code } = classes[place];
        entry.setAttribute("aria-pressed", String(!groups.label.hidden.has(code)));
        entry.lastChild.textContent = source.selected.indices.length ? `${thousands(chosen.get(code) ?? 0)} of ${thousands(sizes[code])}` : thousands(sizes[code]);
      });
    };
    const paint = () => {
      for (const renderer of dots) {
        for (const glyph of [renderer.glyph, renderer.selection_glyph]) if (glyph && glyph !== "auto") glyph.fill_color = mappers[select.value];
      }
      drawKey();
    };
    select.addEventListener("change", paint);

    const every = () => Array.from({ length: count }, (_, point) => point).filter(shown);
    const filtered = () => {
      const kept = every();
      const part = kept.length < count;
      view.filter = part ? new Bokeh.IndexFilter({ indices: kept }) : new Bokeh.AllIndices();
      drawHistogram(kept);
      find(".all").hidden = !part;
      find(".all").textContent = `Show all (${thousands(count - kept.length)} hidden)`;
      choose(source.selected.indices.filter(shown));
      pressKey();
    };
    const drawHistogram = (kept) => {
      const heights = counted(kept);
      all.data = { ...sides, top: heights };
      const end = 1.08 * Math.max(1, ...heights);
      histogram.y_range.setv({ start: 0, end, reset_start: 0, reset_end: end });
    };
    find(".all").addEventListener("click", () => {
      for (const group of Object.values(groups)) group.hidden.clear();
      filtered();
    });

    // Selected points
    let [picked, listed, own] = [-1, [], false];
    const named = groups.finding && [...new Set(groups.finding.codes)].some((code) => code < groups.finding.names.length - 1);
    const names = data.table;
    const titles = { row: noun, lid: "LID", standard_error: "± error", kth_distance: "distance", nearest: "nearest row",
      nearest_distance: "its distance", duplicate_group: "duplicates", neighbor_of: "neighbor of" };
    const words = (name) => ["name", "label", "finding"].includes(name);
    const cell = (name, point) => {
      if (name === "name") return data.names[point];
      if (name === "finding") return groups.finding.codes[point] === groups.finding.names.length - 1 ? "" : word(name, point);
      return words(name) ? word(name, point) : points[name][point];
    };
    const cellShown = (name, point) => {
      const value = cell(name, point);
      if (words(name)) return value;
      if (points[name] instanceof Float32Array) return number(value);
      return value < 0 ? "" : name === "duplicate_group" ? `group ${value}` : String(value);
    };
    const cellWritten = (name, point) => {
      const value = cell(name, point);
      if (words(name)) return value;
      if (Number.isNaN(value) || (value < 0 && !(points[name] instanceof Float32Array))) return "";
      return Number.isFinite(value) ? String(Number(value.toPrecision(8))) : "inf";
    };
    const vacant = { finding: !named, duplicate_group: points.duplicate_group?.every((group) => group < 0) };
    const seen = names.filter((name) => !vacant[name]);
    const headers = seen.map((name) => made("th", titles[name] ?? name, words(name) ? "" : "n"));
    if (images) headers.unshift(made("th", "image"));
    find(".card thead").append(made("tr"));
    find(".card thead tr").append(...headers);

    const ringed = (which, those) => {
      const column = (values) => those.map((point) => values[point]);
      rings[which].data = { x: column(points.x), y: column(points.y), distance: column(distance), height: column(height), lid: column(columns.lid) };
    };
    const marked = (point = -1) => [...new Set([picked, point])].filter((one) => one >= 0);
    const list = (text) => {
      find(".status").textContent = text;
      for (const button of root.querySelectorAll(".chosen button")) button.disabled = !listed.length;
      find(".card").hidden = !listed.length;
      find(".card tbody").replaceChildren(...listed.slice(0, MOST_LISTED).map((point) => {
        const row = made("tr", "", point === picked ? "picked" : "");
        row.append(...seen.map((name) => made("td", cellShown(name, point), words(name) ? name : "n")));
        if (images) row.prepend(made("td"));
        if (images) row.firstChild.append(tile(point));
        row.addEventListener("mouseenter", () => ringed("at", marked(point)));
        row.addEventListener("click", () => pick(point));
        return row;
      }));
      find(".card").scrollTop = 0;
    };
    find(".card tbody").addEventListener("mouseleave", () => ringed("at", marked()));
    const mark = (indices) => {
      own = true;
      source.selected.indices = indices;
      own = false;
      some.data = { ...sides, top: counted(indices) };
      drawClasses();
    };
    const choose = (indices) => {
      if (indices.length === 1) return pick(indices[0]);
      picked = -1;
      listed = [...indices].sort((one, other) => lid[one] - lid[other] || points.row[one] - points.row[other]);
      mark(indices);
      ringed("at", []);
      ringed("near", []);
      const chosen = `${thousands(listed.length)} points are selected`;
      list(listed.length > MOST_LISTED ? `${chosen}; the ${MOST_LISTED} of lowest LID are listed.` : listed.length ? `${chosen}.` : "No point is selected.");
    };
    const pick = (point) => {
      picked = point;
      const all = near ? [...near.places.subarray(point * near.of_each, (point + 1) * near.of_each)] : [];
      const neighbors = all.filter((other) => other < count);
      listed = [point, ...neighbors];
      mark(listed);
      ringed("at", [point]);
      ringed("near", neighbors);
      const about = neighbors.length ? ` and its ${neighbors.length} nearest neighbors, the nearest first` : " is selected";
      list(`${noun[0].toUpperCase()}${noun.slice(1)} ${points.row[point]}${about}.`);
    };
    source.selected.properties.indices.change.connect(() => { if (!own) choose(source.selected.indices.filter(shown)); });
    find(".clear").addEventListener("click", () => choose([]));
    root.addEventListener("keydown", (event) => { if (event.key === "Escape") choose([]); });
    histogram.on_event("selectiongeometry", ({ geometry, final }) => {
      if (final === false || geometry.x0 === undefined) return;
      const [low, high] = [Math.min(geometry.x0, geometry.x1), Math.max(geometry.x0, geometry.x1)];
      choose(every().filter((point) => regular(point) && lid[point] >= low && lid[point] <= high));
    });

    // The point under the pointer
    const pixels = (extent, length, wide) => {
      const [start, end] = wide ? [Math.log(extent.start), Math.log(extent.end)] : [extent.start, extent.end];
      return [(value) => (wide ? Math.log(value) : value), length / (end - start)];
    };
    const nearest = (plot, xs, ys, [wideX, wideY], event) => {
      const [alongX, scaleX] = pixels(plot.x_range, plot.inner_width, wideX);
      const [alongY, scaleY] = pixels(plot.y_range, plot.inner_height, wideY);
      const [x, y] = [alongX(event.x), alongY(event.y)];
      let [best, least] = [-1, REACH ** 2];
      for (let point = 0; point < count; point++) {
        const gap = ((alongX(xs[point]) - x) * scaleX) ** 2 + ((alongY(ys[point]) - y) * scaleY) ** 2;
        if (gap <= least && shown(point)) [best, least] = [point, gap];
      }
      return best;
    };
    const described = (point) => {
      const lines = [`${noun} ${points.row[point]}`];
      if (data.names) lines.push(data.names[point]);
      if (groups.label) lines.push(`label ${word("label", point)}`);
      lines.push(`LID ${number(lid[point])}` + (regular(point) && standard_error !== unknown ? ` ± ${number(standard_error[point])}` : ""));
      if (groups.finding && cell("finding", point)) lines.push(word("finding", point));
      return lines;
    };
    const leave = () => {
      showTip([]);
      ringed("at", marked());
    };
    let last = -1;
    for (const [plot, ...where] of [[map, points.x, points.y, [false, false]], [density, distance, height, [wideDistance, data.wide]]]) {
      plot.on_event("mousemove", (event) => {
        const point = nearest(plot, ...where, event);
        if (point < 0) { if (last >= 0) leave(); } else {
          if (point === last) placeTip(); else {
            showTip(described(point), tile(point));
            ringed("at", marked(point));
          }
        }
        last = point;
      });
      plot.on_event("tap", (event) => {
        const point = nearest(plot, ...where, event);
        if (point < 0) choose([]); else pick(point);
        if (point >= 0) showTip(described(point), tile(point));
      });
    }
    const binAt = (value) => edges.findIndex((edge, place) => value >= edge && value < edges[place + 1]);
    histogram.on_event("mousemove", (event) => {
      const bin = binAt(event.x);
      if (bin < 0) return leave();
      const chosen = some.data.top[bin];
      const lines = [`LID ${number(edges[bin])} to ${number(edges[bin + 1])}`, `${thousands(all.data.top[bin])} points`];
      showTip(chosen ? [...lines, `${thousands(chosen)} of them selected`] : lines);
    });
    histogram.on_event("tap", (event) => {
      const bin = binAt(event.x);
      choose(bin < 0 ? [] : every().filter((point) => bins[point] === bin));
    });
    for (const plot of root.querySelectorAll(".plot")) plot.addEventListener("pointerleave", () => { last = -1; leave(); });

    // Rows to take along
    const written = (separator, quoted) => {
      const rows = listed.map((point) => names.map((name) => quoted(cellWritten(name, point))).join(separator));
      return [names.map((name) => (name === "row" ? noun : name)).join(separator), ...rows, ""].join("\n");
    };
    find(".copy").addEventListener("click", async () => {
      const text = written("\t", (value) => value.replace(/[\t\r\n]+/g, " "));
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const area = document.body.appendChild(made("textarea", text));
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      find(".copy").textContent = "Copied";
      setTimeout(() => { find(".copy").textContent = "Copy rows"; }, 1500);
    });
    find(".save").addEventListener("click", () => {
      const text = written(",", (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value));
      const link = made("a");
      link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
      link.download = `${data.title.replace(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 60) || "points"}-rows.csv`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    });

    const plain = new Bokeh.BasicTickFormatter({ use_scientific: false }); // 100, not a power of ten
    for (const axis of [...density.axes, ...histogram.axes]) axis.formatter = plain;
    spectrum.yaxes[0].formatter = new Bokeh.PrintfTickFormatter({ format: "%g" });

    // Colors of the page
    const dress = () => {
      const style = getComputedStyle(document.documentElement);
      const [ink, soft, line, accent] = ["--ink", "--soft", "--line", "--accent"].map((name) => style.getPropertyValue(name).trim());
      const font = getComputedStyle(document.body).fontFamily;
      for (const plot of [map, density, histogram, spectrum]) {
        for (const axis of plot.axes) {
          axis.setv({ axis_label_text_color: ink, axis_label_text_font: font, axis_label_text_font_style: "normal", axis_label_text_font_size: "12px" });
          axis.setv({ major_label_text_color: ink, major_label_text_font: font, axis_line_color: soft });
          if (plot !== map) axis.setv({ major_tick_line_color: soft, minor_tick_line_color: null });
        }
        for (const grid of plot.grids) grid.grid_line_color = line;
      }
      overlays.forEach((renderer, place) => { renderer.glyph.line_color = place % 2 || place === 4 ? ink : accent; });
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);

    find(".density span").textContent = "Collapse in dense spots pulls the left side down." + (apart ? ` ${thousands(apart)} without a LID are left out.` : "");
    dress();
    drawHistogram(every());
    paint();
    drawClasses();
    root.hidden = false;
    const drawing = new Bokeh.Document();
    const drawn = [["map", map, points.x], ["histogram", histogram, columns.lid], ["density", density, height], ["spectrum", spectrum, logShares]].filter(([name, , values]) => {
      const some = values.some((value) => Number.isFinite(value));
      find(`.${name}`).hidden = !some; // such as the histogram of points that all coincide
      return some;
    });
    for (const [, plot] of drawn) drawing.add_root(plot);
    await Bokeh.embed.add_document_standalone(drawing, root, drawn.map(([name]) => find(`.${name} .plot`)));
    root.points = { map, histogram, density, spectrum, source, rings }; // for tests, and for the curious
  };

  const start = async () => {
    Bokeh.logger.set_level("error");
    document.body.append(tip);
    for (const part of document.querySelectorAll("script[data-for]")) {
      const root = document.getElementById(part.dataset.for);
      try {
        await explore(root, JSON.parse(part.textContent));
      } catch (error) {
        root.hidden = true; // the still figures stay
        throw error;
      }
    }
    const still = ["histogram-", "spectrum-", "map-", "density-", "classes-"].flatMap((name) => [...document.querySelectorAll(`figure:has([id^="${name}"])`)]);
    const grid = still[0]?.parentElement;
    const alone = document.querySelectorAll(".inspection .explorer").length === 1; // of several sets they show all in one
    if (grid && alone) {
      const details = made("details", "", "still-figures");
      const inside = made("div", "", "figures");
      inside.append(...still);
      details.append(made("summary", "The same as still figures"), inside);
      grid.after(details);
    }
    document.documentElement.dataset.points = "ready";
  };
  void start();
})();
