// The charts of one recording share a view: what is zoomed or pointed at in one is so in all.
const dark = matchMedia('(prefers-color-scheme: dark)');
const LEFT = 72, RIGHT = 10, TOP = 8, BOTTOM = 22;

class View {
  constructor(section, recording) {
    this.section = section;
    this.data = recording;
    this.axis = 'calls';
    this.still = recording.last === 0;
    this.cursor = recording.peak_at;
    this.cursorPlace = null;
    this.chosen = -1;
    this.charts = [...section.querySelectorAll('figure[data-chart]')].map((figure) => this.chart(figure));
    this.choices();
    this.showAll();
    new ResizeObserver(() => this.redraw()).observe(section);
    dark.addEventListener('change', () => { this.colours(); this.redraw(); });
  }

  chart(figure) {
    const kind = figure.dataset.chart;
    const chart = { kind, figure, canvas: figure.querySelector('canvas'), output: figure.querySelector('output') };
    if (this.still && kind !== 'map') figure.hidden = true;
    listen(this, chart);
    return chart;
  }

  choices() {
    const { section, data } = this;
    const fill = (select, options) => options.forEach(([value, text]) => select.add(new Option(text, value)));
    const colour = section.querySelector('[data-choose=colour]');
    const options = [['size', 'size'], ['kept', 'never freed'], ['lifetime', 'lifetime']];
    if (data.streams.length > 1) options.push(['stream', 'stream']);
    if (data.owners.length > 1) options.push(['owner', data.owner_kind]);
    fill(colour, options);
    if (data.streams.length > 1) colour.value = 'stream';
    if (data.owners.length > 1) colour.value = 'owner';
    colour.onchange = () => { this.colours(); this.redraw(); };
    const region = section.querySelector('[data-choose=region]');
    const regions = data.regions.map((r, i) => [i, `${r[0]}, ${people(r[2])}`, r[2]]).sort((a, b) => b[2] - a[2]);
    fill(region, [['all', regions.length > 1 ? `all ${regions.length} regions, stacked` : 'all'], ...regions.slice(0, 40)]);
    region.onchange = () => this.chooseRegion(region.value);
    const axis = section.querySelector('[data-choose=axis]');
    if (!data.times.length) axis.closest('label').hidden = true;
    axis.onchange = () => this.chooseAxis(axis.value);
    for (const button of section.querySelectorAll('[data-do]')) button.onclick = () => this.act(button.dataset.do);
    if (this.still) section.querySelector('.tools').hidden = true;
    this.colours();
  }

  colours() {
    const by = this.section.querySelector('[data-choose=colour]').value;
    const { groups, group } = colouring(this.data, by, dark.matches);
    this.groupOf = Uint8Array.from({ length: this.data.count }, (_, b) => group(b));
    this.pixels = Uint32Array.from(groups, ([, colour]) => pixel(colour));
    const used = new Set(this.groupOf);
    const legend = this.section.querySelector('.legend');
    legend.replaceChildren(...groups.flatMap(([name, colour], g) => {
      if (!used.has(g)) return [];
      const entry = document.createElement('span');
      const chip = document.createElement('i');
      chip.style.background = colour;
      entry.append(chip, name);
      return [entry];
    }));
    if (this.data.count < this.data.all_blocks) {
      legend.append(`The map shows ${grouped(this.data.count)} of ${grouped(this.data.all_blocks)} blocks: the largest and longest.`);
    }
  }

  // Axis units: calls, or microseconds.
  toAxis(moment) { return this.axis === 'time' ? this.data.timeOf(moment) : moment; }
  toMoment(value) { return this.axis === 'time' ? this.data.momentAt(value) : value; }
  get whole() { return Math.max(1, this.still ? 1 : this.toAxis(this.data.last)); }

  showAll() {
    [this.x0, this.x1, this.y0, this.y1] = [0, this.whole, 0, this.data.height];
    this.section.querySelector('[data-choose=region]').value = 'all';
    this.redraw();
  }

  chooseRegion(value) {
    const region = this.data.regions[value];
    [this.y0, this.y1] = region ? [region[1], region[1] + Math.max(1, region[2])] : [0, this.data.height];
    this.redraw();
  }

  chooseAxis(axis) {
    const [from, to] = [this.toMoment(this.x0), this.toMoment(this.x1)];
    this.axis = axis;
    this.setX(this.toAxis(from), this.toAxis(to));
  }

  act(what) {
    if (what === 'all') return this.showAll();
    if (what === 'peak') return this.moveTo(this.data.peak_at, true);
    this.zoom(what === 'in' ? 0.5 : 2, this.toAxis(this.cursor));
  }

  setX(from, to) {
    const least = this.axis === 'time' ? 20 : Math.min(8, this.whole);
    const span = Math.min(this.whole, Math.max(least, to - from));
    this.x0 = Math.max(0, Math.min(this.whole - span, from));
    this.x1 = this.x0 + span;
    this.redraw();
  }

  setY(from, to) {
    const span = Math.min(this.data.height, Math.max(256, to - from));
    this.y0 = Math.max(0, Math.min(this.data.height - span, from));
    this.y1 = this.y0 + span;
    this.redraw();
  }

  /** Zooms so that `around` stays where it is, or comes to the middle if it was out of sight. */
  zoom(factor, around) {
    const span = this.x1 - this.x0;
    const part = around < this.x0 || around > this.x1 ? 0.5 : (around - this.x0) / span;
    this.setX(around - span * factor * part, around + span * factor * (1 - part));
  }

  zoomY(factor, around) {
    this.setY(around - (around - this.y0) * factor, around + (this.y1 - around) * factor);
  }

  moveTo(moment, reveal) {
    this.cursor = Math.max(0, Math.min(this.data.last, Math.round(moment)));
    const at = this.toAxis(this.cursor);
    if (reveal && (at < this.x0 || at > this.x1)) {
      const half = (this.x1 - this.x0) / 2;
      this.setX(at - half, at + half);
    }
    this.redraw();
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      for (const chart of this.charts) if (!chart.figure.hidden) draw(this, chart);
    });
  }
}

/** Space and scales of a chart as it is now. */
function place(view, chart) {
  const w = chart.canvas.clientWidth, h = chart.canvas.clientHeight;
  const left = Math.min(LEFT, w / 4), right = w - RIGHT, bottom = h - BOTTOM;
  const x = (value) => left + (value - view.x0) / (view.x1 - view.x0) * (right - left);
  const value = (px) => view.x0 + (px - left) / (right - left) * (view.x1 - view.x0);
  const [low, high] = chart.kind === 'map' ? [view.y0, view.y1] : [0, chart.kind === 'idle' ? view.data.mostIdle : view.data.most * 1.04];
  const y = (bytes) => bottom - (bytes - low) / (high - low) * (bottom - TOP);
  const up = (px) => low + (bottom - px) / (bottom - TOP) * (high - low);
  return { w, h, left, right, bottom, x, value, y, up, low, high };
}

function draw(view, chart) {
  const { canvas } = chart;
  const p = place(view, chart);
  if (p.w < 20) return;
  const scale = Math.min(2, devicePixelRatio || 1);
  const [width, height] = [Math.round(p.w * scale), Math.round(p.h * scale)];
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const g = canvas.getContext('2d');
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue('--' + name).trim();
  g.setTransform(1, 0, 0, 1, 0, 0);
  g.clearRect(0, 0, width, height);
  if (chart.kind === 'map') drawMap(view, g, p, scale, colour('empty'));
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.font = '12px system-ui, sans-serif';
  drawAxes(view, chart, g, p, colour);
  g.save();
  g.beginPath();
  g.rect(p.left, 0, p.right - p.left, p.h);
  g.clip();
  if (chart.kind === 'timeline') drawTimeline(view, g, p, colour);
  if (chart.kind === 'idle') drawArea(g, columns(view, p, (point) => view.data.idle[point]), p, colour('held'), colour('idle'));
  if (!view.still) drawCursor(view, chart, g, p, colour);
  if (chart.drag) drawDrag(chart, g, p, colour);
  g.restore();
  say(view, chart, p);
}

function drawAxes(view, chart, g, p, colour) {
  g.fillStyle = colour('soft');
  g.strokeStyle = colour('line');
  g.lineWidth = 1;
  g.textAlign = 'right';
  g.textBaseline = 'middle';
  const yStep = niceStep(p.high - p.low, chart.kind === 'idle' ? 3 : 5, true);
  for (let bytes = Math.ceil(p.low / yStep) * yStep; bytes <= p.high; bytes += yStep) {
    const y = Math.round(p.y(bytes)) + 0.5;
    if (chart.kind !== 'map') { g.beginPath(); g.moveTo(p.left, y); g.lineTo(p.right, y); g.stroke(); }
    g.fillText(bytes ? people(bytes) : '0', p.left - 6, Math.max(8, y));
  }
  if (view.still) return;
  g.textBaseline = 'top';
  const time = view.axis === 'time';
  const step = Math.max(1, niceStep(view.x1 - view.x0, Math.max(2, (p.right - p.left) / 110), false));
  for (let at = Math.ceil(view.x0 / step) * step; at <= view.x1; at += step) {
    const x = p.x(at), text = time ? duration(at) : grouped(at);
    const wide = g.measureText(text).width;
    g.textAlign = x + wide / 2 > p.right ? 'right' : x - wide / 2 < p.left - 30 ? 'left' : 'center';
    g.fillText(text, Math.min(x, p.right), p.bottom + 6);
    g.beginPath(); g.moveTo(x, p.bottom); g.lineTo(x, p.bottom + 4); g.stroke();
  }
}

/** The lowest and the highest value for each column of pixels. */
function columns(view, p, valueAt) {
  const { data } = view;
  const result = [];
  let point = data.pointAt(view.toMoment(view.x0));
  for (let px = Math.floor(p.left); px <= p.right; px++) {
    const to = view.toMoment(Math.min(p.value(px + 1), view.whole));
    let low = valueAt(point), high = low;
    while (point + 1 < data.live.length && data.momentOf(point + 1) <= to) {
      point++;
      const value = valueAt(point);
      if (value < low) low = value;
      if (value > high) high = value;
    }
    result.push([px, low, high]);
  }
  return result;
}

function drawArea(g, list, p, line, fill) {
  g.beginPath();
  g.moveTo(list[0][0], p.bottom);
  for (const [px, , high] of list) g.lineTo(px, p.y(high));
  g.lineTo(list[list.length - 1][0], p.bottom);
  g.fillStyle = fill;
  g.fill();
  g.beginPath();
  // Between its lowest and highest value a column is one line.
  for (const [px, low, high] of list) { g.lineTo(px, p.y(low)); g.lineTo(px, p.y(high)); }
  g.strokeStyle = line;
  g.lineWidth = 1.25;
  g.stroke();
}

function drawTimeline(view, g, p, colour) {
  const { data } = view;
  drawArea(g, columns(view, p, (point) => data.live[point]), p, colour('live'), colour('fill'));
  g.beginPath();
  let before = null;
  for (let px = Math.floor(p.left); px <= p.right; px++) {
    const y = p.y(data.reservedAt(view.toMoment(Math.min(p.value(px), view.whole))));
    if (before !== null && before !== y) g.lineTo(px, before);
    g.lineTo(px, y);
    before = y;
  }
  g.strokeStyle = colour('held');
  g.lineWidth = 1.75;
  g.setLineDash([6, 3]);
  g.stroke();
  g.setLineDash([]);
  const x = p.x(view.toAxis(data.peak_at)), y = p.y(data.peak);
  g.beginPath();
  g.arc(x, y, 5, 0, 7);
  g.fillStyle = colour('card');
  g.strokeStyle = colour('cursor');
  g.lineWidth = 2;
  g.fill();
  g.stroke();
  const right = x > (p.left + p.right) / 2;
  const text = 'peak ' + people(data.peak);
  g.textAlign = right ? 'right' : 'left';
  g.textBaseline = 'middle';
  g.lineWidth = 4;
  g.strokeStyle = colour('card');
  g.fillStyle = colour('ink');
  const at = [x + (right ? -10 : 10), Math.min(p.bottom - 10, y + 14)];
  g.strokeText(text, ...at);
  g.fillText(text, ...at);
}

/** Blocks as rectangles, written pixel by pixel: their number hardly matters. */
function drawMap(view, g, p, scale, empty) {
  const { data } = view;
  const left = Math.round(p.left * scale), top = Math.round(TOP * scale);
  const w = Math.max(1, Math.round(p.right * scale) - left), h = Math.max(1, Math.round(p.bottom * scale) - top);
  const image = g.createImageData(w, h);
  const out = new Uint32Array(image.data.buffer);
  out.fill(pixel(empty));
  const kx = w / (view.x1 - view.x0), ky = h / (view.y1 - view.y0);
  const still = view.still;
  for (let b = 0; b < data.count; b++) {
    const y1 = data.place[b], y2 = y1 + data.size[b];
    if (y2 < view.y0 || y1 > view.y1) continue;
    const from = still ? 0 : view.toAxis(data.start[b]), to = still ? 1 : view.toAxis(Math.min(data.end[b], data.last));
    if (to < view.x0 || from > view.x1) continue;
    // At least a pixel, at most what is in sight.
    const xa = Math.max(0, Math.min(w - 1, Math.floor((from - view.x0) * kx)));
    const xb = Math.min(w, Math.max(xa + 1, Math.floor((to - view.x0) * kx)));
    const yb = Math.max(1, Math.min(h, h - Math.floor((y1 - view.y0) * ky)));
    const ya = Math.max(0, Math.min(yb - 1, h - Math.floor((y2 - view.y0) * ky)));
    // A seam between neighbours, where there is room for one.
    const seam = yb - ya > 4 && xb - xa > 3 ? 1 : 0;
    const value = b === view.chosen ? 0xff00ffff : view.pixels[view.groupOf[b]];
    for (let y = ya + seam; y < yb; y++) out.fill(value, y * w + xa, y * w + xb - seam);
  }
  g.putImageData(image, left, top);
}

function drawCursor(view, chart, g, p, colour) {
  const x = Math.round(p.x(view.toAxis(view.cursor))) + 0.5;
  g.strokeStyle = colour('cursor');
  g.lineWidth = 1;
  g.beginPath();
  g.moveTo(x, TOP);
  g.lineTo(x, p.bottom);
  if (chart.kind === 'map' && view.cursorPlace !== null) {
    const y = Math.round(p.y(view.cursorPlace)) + 0.5;
    g.moveTo(p.left, y);
    g.lineTo(p.right, y);
  }
  g.stroke();
}

function drawDrag(chart, g, p, colour) {
  const { from, to } = chart.drag;
  const map = chart.kind === 'map';
  g.fillStyle = colour('fill');
  g.strokeStyle = colour('live');
  const box = [from[0], map ? from[1] : TOP, to[0] - from[0], map ? to[1] - from[1] : p.bottom - TOP];
  g.fillRect(...box);
  g.strokeRect(...box);
}

/** What the cursor is on, in words; and what the chart shows, for those who do not see it. */
function say(view, chart, p) {
  const { data } = view;
  const point = data.pointAt(view.cursor);
  const when = view.still ? '' : `Call ${grouped(view.cursor)}` + (data.times.length ? `, ${duration(data.timeOf(view.cursor))}` : '') + ': ';
  const held = data.reserved_known ? 'reserved' : 'in the best-fit model';
  const live = data.live[point] ?? 0;
  let text, shows;
  const range = view.still ? '' : `, calls ${grouped(view.toMoment(view.x0))} to ${grouped(view.toMoment(view.x1))}`;
  if (chart.kind === 'timeline') {
    text = `${when}${people(live)} live, ${people(data.reservedAt(view.cursor))} ${held}`;
    shows = `Live bytes of ${data.name}${range}. The peak is ${people(data.peak)} at call ${grouped(data.peak_at)}.`;
  } else if (chart.kind === 'idle') {
    const idle = data.idle[point], all = data.reservedAt(view.cursor);
    text = `${when}${people(idle)} held and not live` + (all ? `, ${(idle / all * 100).toFixed(1)}% of ${people(all)}` : '');
    shows = `Bytes held and not live${range}, at most ${people(data.mostIdle)}.`;
  } else {
    text = when + sayBlock(view, p);
    shows = `Map of ${grouped(data.count)} blocks by address and time${range}.`;
  }
  if (chart.output.textContent !== text) chart.output.textContent = text;
  const label = `${shows} Arrow keys move the cursor. ${text}`;
  if (chart.canvas.getAttribute('aria-label') !== label) chart.canvas.setAttribute('aria-label', label);
}

function sayBlock(view, p) {
  const { data } = view;
  const b = view.chosen;
  if (b < 0) return view.cursorPlace === null ? 'point at a block, or press N for the next' : `no block at ${data.addressOf(view.cursorPlace)}`;
  const kept = data.end[b] > data.last;
  const parts = [`${people(data.size[b])} at ${data.addressOf(data.place[b])}`];
  if (!view.still) {
    const born = data.start[b] ? `allocated at call ${grouped(data.start[b])}` : 'allocated before';
    parts.push(born, kept ? 'never freed' : `freed at call ${grouped(data.end[b])}`);
    const age = Math.max(0, view.cursor - data.start[b]);
    const spent = data.times.length ? ` (${duration(Math.max(0, data.timeOf(view.cursor) - data.timeOf(data.start[b])))})` : '';
    parts.push(`age ${grouped(age)} calls${spent}`);
  }
  parts.push(`stream ${data.streams[data.stream[b]] ?? 'another'}`, `${data.owner_kind} ${data.owners[data.owner[b]] ?? 'another'}`);
  return parts.join(', ');
}
