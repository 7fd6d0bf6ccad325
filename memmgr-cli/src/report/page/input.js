// Pointer, wheel and keys on a chart.
function listen(view, chart) {
  const { canvas } = chart;
  const spot = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const point = (event) => {
    const p = place(view, chart), [px, py] = spot(event);
    if (px < p.left || px > p.right) return;
    if (chart.kind === 'map') pointAt(view, p, p.value(px), p.up(py));
    view.moveTo(view.still ? 0 : view.toMoment(p.value(px)), false);
  };
  canvas.addEventListener('pointermove', (event) => {
    if (chart.drag) chart.drag.to = spot(event);
    if (chart.drag || event.pointerType === 'mouse') point(event);
    view.redraw();
  });
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    const at = spot(event);
    chart.drag = { from: at, to: at };
    canvas.setPointerCapture(event.pointerId);
    canvas.focus({ preventScroll: true });
    point(event);
  });
  canvas.addEventListener('pointerup', () => {
    const { drag } = chart;
    chart.drag = null;
    if (drag && !view.still && Math.abs(drag.to[0] - drag.from[0]) > 6) select(view, chart, drag);
    view.redraw();
  });
  canvas.addEventListener('pointercancel', () => { chart.drag = null; view.redraw(); });
  canvas.addEventListener('dblclick', () => view.showAll());
  canvas.addEventListener('wheel', (event) => {
    // The page scrolls over charts that nobody has chosen.
    if (view.still || (document.activeElement !== canvas && !event.ctrlKey)) return;
    event.preventDefault();
    const p = place(view, chart), [px, py] = spot(event);
    const factor = Math.exp(Math.max(-1, Math.min(1, (event.deltaY || event.deltaX) / 300)));
    if (event.shiftKey && chart.kind === 'map') view.zoomY(factor, p.up(py));
    else view.zoom(factor, p.value(px));
  }, { passive: false });
  canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (press(view, chart, event)) event.preventDefault();
  });
}

/** Zooms to what was dragged over: a range of time, on the map of addresses too. */
function select(view, chart, drag) {
  const p = place(view, chart);
  const [a, b] = [drag.from[0], drag.to[0]].map(p.value).sort((m, n) => m - n);
  if (chart.kind === 'map' && Math.abs(drag.to[1] - drag.from[1]) > 6) {
    const [low, high] = [drag.from[1], drag.to[1]].map(p.up).sort((m, n) => m - n);
    view.setY(low, high);
  }
  view.setX(a, b);
}

function pointAt(view, p, value, up) {
  const across = (px) => Math.abs(view.toMoment(Math.min(view.whole, p.value(p.left + px))) - view.toMoment(p.value(p.left)));
  view.cursorPlace = Math.max(0, Math.min(view.data.height, up));
  const slack = (view.y1 - view.y0) / (p.bottom - TOP) * 2;
  view.chosen = view.data.blockAt(view.still ? 0 : view.toMoment(value), up, view.still ? 0 : across(2), slack);
}

/** The block that was allocated next, or before, among those in sight. */
function step(view, by) {
  const { data } = view;
  let b = view.chosen;
  if (b < 0) {
    b = by > 0 ? -1 : data.count;
    while (b + by >= 0 && b + by < data.count && (by > 0 ? data.start[b + by] < view.cursor : data.start[b + by] > view.cursor)) b += by;
  }
  for (b += by; b >= 0 && b < data.count; b += by) {
    if (data.place[b] + data.size[b] < view.y0 || data.place[b] > view.y1) continue;
    view.chosen = b;
    view.cursorPlace = data.place[b] + data.size[b] / 2;
    view.moveTo(data.start[b], true);
    return;
  }
}

function press(view, chart, event) {
  const { data } = view;
  const p = place(view, chart);
  const far = event.shiftKey ? 50 : 5;
  const across = (direction) => {
    const by = (view.x1 - view.x0) / (p.right - p.left) * far * direction;
    let to = Math.round(view.toMoment(Math.max(0, Math.min(view.whole, view.toAxis(view.cursor) + by))));
    if (to === view.cursor) to += direction;
    view.moveTo(to, true);
  };
  const along = (direction) => {
    if (chart.kind !== 'map') return false;
    const by = (view.y1 - view.y0) / (p.bottom - TOP) * far * direction;
    const from = view.cursorPlace ?? (view.y0 + view.y1) / 2;
    view.cursorPlace = Math.max(view.y0, Math.min(view.y1, from + by));
    return true;
  };
  const page = (direction) => {
    const by = (view.x1 - view.x0) * 0.8 * direction;
    view.setX(view.x0 + by, view.x1 + by);
    view.moveTo(view.toMoment((view.x0 + view.x1) / 2), false);
  };
  switch (event.key) {
    case 'ArrowLeft': across(-1); break;
    case 'ArrowRight': across(1); break;
    case 'ArrowUp': if (!along(1)) return false; break;
    case 'ArrowDown': if (!along(-1)) return false; break;
    case 'Home': view.moveTo(0, true); break;
    case 'End': view.moveTo(data.last, true); break;
    case 'PageUp': page(-1); break;
    case 'PageDown': page(1); break;
    case '+': case '=': view.act('in'); break;
    case '-': view.act('out'); break;
    case '0': view.act('all'); break;
    case 'p': case 'P': view.act('peak'); break;
    case 'n': case 'N': if (chart.kind !== 'map') return false; step(view, 1); return true;
    case 'b': case 'B': if (chart.kind !== 'map') return false; step(view, -1); return true;
    default: return false;
  }
  if (chart.kind === 'map') pointAt(view, p, view.toAxis(view.cursor), view.cursorPlace ?? (view.y0 + view.y1) / 2);
  view.redraw();
  return true;
}

for (const [number, data] of JSON.parse(document.getElementById('data').textContent).entries()) {
  const section = document.getElementById('recording-' + number);
  section.querySelector('.charts').hidden = false;
  new View(section, new Recording(data));
}
