/* Figures: plotly's own script draws what Python sends; around it a row of buttons, clicks, and the width and
   theme of the page. */

/* Gradio's page has a <base>, for which plotly writes the address as it is at the first drawing into every
   reference to a clip path or gradient. Such references would lead nowhere once the address is rewritten.
   Removing it changes no other reference: it is the folder of the page itself. */
document.querySelector('base')?.remove();

explorer.touch = matchMedia('(hover: none)').matches;

/* Draw the figures that arrive in `props.value` (JSON with data and layout, or empty) in `element`. `send`
   is called with "point" and what was clicked, with "range" and where a line was dragged from and to, and, of
   a figure whose `meta.brush` asks for it, with "brush" and the rows and columns that it was zoomed to. */
explorer.figure = (element, props, watch, send) => {
  const plot = element.querySelector('.figure');
  let drawn = null, kind = null, width = 0, starts = [], home = {}, zoomed = false, near = null, fitted = '';
  let painted = null, selects = false;

  /* Only what is on the screen, or nearly, is drawn; one figure after another, so that the page takes clicks
     and keys in between. */
  const drawLater = () => {
    if (!near || drawn === props.value) return;
    explorer.drawing = explorer.drawing.then(() => new Promise(resume => setTimeout(resume)))
      .then(() => drawn === props.value || draw()).catch(console.error);
  };

  /* True once what the figure is to show was painted, or it is too far from the screen to be. */
  plot.isPainted = () => near === false || (Boolean(painted) && painted === props.value);

  const draw = async changes => {
    if (!props.value || !plot.clientWidth || !window.Plotly) return;
    const {value} = props, spec = explorer.errorMap.describe(JSON.parse(value));
    if (kind === spec.layout.uirevision) explorer.keepSwitches(plot, spec);
    else if (zoomed) {
      zoomed = false;
      brush();
    }
    kind = spec.layout.uirevision;
    starts = (spec.layout.shapes || []).map(shape => shape.x0);
    drawn = value;
    width = plot.clientWidth;
    fitted = explorer.fit(spec.layout, width);
    const names = explorer.callouts(spec.layout, width);
    const layout = {...spec.layout, ...changes, ...names, width, autosize: false};
    element.classList.remove('empty');
    if (explorer.touch) layout.dragmode = selects ? 'zoom' : false;
    const config = {displayModeBar: false, responsive: false, doubleClick: 'reset',
      edits: {shapePosition: 'draggable' in plot.dataset}};
    const first = !plot._fullLayout;
    await Plotly.react(plot, spec.data, layout, config);
    painted = value;
    plot.style.minHeight = '';
    if (!zoomed) home = explorer.ranges(plot);
    if (spec.data.some(explorer.errorMap.isOfElements)) explorer.errorMap.drawn(plot);
    if (first) listen();
    explorer.markSwitch(plot);
    showReset();
    if (zoomed) brush();
  };

  /* On a touch screen a drag scrolls the page. After Zoom, one drag selects the part to zoom to. */
  const select = now => {
    selects = now;
    tools.querySelector('[data-kind=zoom]').setAttribute('aria-pressed', now);
    if (plot._fullLayout) Plotly.relayout(plot, {dragmode: now ? 'zoom' : false});
  };

  /* Which part of a map is seen, for what goes with it; nothing for all of it. */
  const brush = () => {
    if (!plot.layout.meta?.brush) return;
    const {xaxis, yaxis} = plot._fullLayout;
    send('brush', zoomed ? {rows: [...yaxis.range], columns: [...xaxis.range]} : {rows: null, columns: null});
  };

  const listen = () => {
    plot.on('plotly_afterplot', () => explorer.markSwitch(plot));
    explorer.errorMap.listen(plot);
    plot.on('plotly_click', event => {
      const point = event.points[0], at = point.pointIndex ?? point.pointNumber ?? null;
      const element = explorer.errorMap.isOfElements(point.data)
        ? explorer.errorMap.elementOf(plot.data, point.data, ...point.pointNumber) : null;
      const data = element ? {set: {row: `${element[0]}`, column: `${element[1]}`}}
        : explorer.errorMap.cellOf(point) ?? point.customdata ?? null;
      send('point', {x: point.x ?? null, y: point.y ?? null, curve: point.curveNumber, at, data,
        shift: event.event?.shiftKey ?? false});
    });
    plot.on('plotly_relayout', changes => {
      const keys = Object.keys(changes);
      if (keys.some(key => key.endsWith('.type'))) home = explorer.ranges(plot);
      else if (keys.some(key => /^[xy]axis\d*\./.test(key))) {
        const before = zoomed;
        zoomed = !explorer.sameRanges(explorer.ranges(plot), home);
        showReset();
        if (zoomed || before) brush();
        if (selects) select(false);
      }
      const moved = keys.map(key => key.match(/^shapes\[(\d+)\]\.x0$/)).find(Boolean);
      if (moved) send('range', {from: starts[moved[1]], to: changes[moved[0]]});
    });
  };

  const tools = element.querySelector('.figure-tools');
  tools.innerHTML = `<button type="button" data-kind="reset" hidden>Reset zoom</button>
    <button type="button" data-kind="zoom" aria-pressed="false" hidden title="Drag out a part">Zoom</button>`;
  tools.hidden = !props.value;
  tools.addEventListener('click', event => {
    const {kind: tool} = event.target.dataset;
    if (tool === 'zoom') select(!selects);
    if (tool !== 'reset') return;
    zoomed = false;
    brush();
    draw({uirevision: `${Date.now()}`}).then(() => {
      if (plot.data.some(explorer.errorMap.isOfElements)) explorer.errorMap.mark(plot);
    });
  });

  /* What is drawn now, for any width: as it was switched and zoomed. */
  const asSeen = () => {
    const spec = JSON.parse(props.value);
    explorer.keepSwitches(plot, spec);
    spec.data.forEach((trace, i) => { trace.visible = plot.data[i].visible; });
    const ranges = zoomed ? Object.entries(explorer.ranges(plot)) : [];
    for (const [name, range] of ranges) Object.assign(spec.layout[name] ??= {}, {range, autorange: false});
    return spec;
  };
  explorer.paper.offer(tools, asSeen);
  const showReset = () => {
    tools.querySelector('[data-kind=reset]').hidden = !zoomed;
    tools.querySelector('[data-kind=zoom]').hidden = !explorer.touch || 'draggable' in plot.dataset;
  };

  const resized = () => {
    if (drawn !== props.value) drawLater();
    else if (plot.clientWidth && plot.clientWidth !== width) {
      const spec = JSON.parse(props.value);
      if (explorer.fit(spec.layout, plot.clientWidth) !== fitted) draw();
      else {
        width = plot.clientWidth;
        Plotly.relayout(plot, {width, ...explorer.callouts(plot.layout, width)});
      }
    }
  };
  watch('value', () => {
    if (!props.value && plot._fullLayout) { Plotly.purge(plot); drawn = null; zoomed = false; }
    element.classList.toggle('empty', !props.value);
    tools.hidden = !props.value;
    const height = !plot._fullLayout && /"height":(\d+)/.exec(props.value)?.[1];
    if (height) plot.style.minHeight = `${height}px`;
    drawLater();
  });
  new IntersectionObserver(entries => {
    near = entries.at(-1).isIntersecting;
    drawLater();
  }, {rootMargin: '500px'}).observe(element);
  new ResizeObserver(() => requestAnimationFrame(resized)).observe(plot);
  explorer.loadPlotly().then(drawLater);
};

/* The ends of every axis, by its name. */
explorer.ranges = plot => Object.fromEntries(Object.entries(plot._fullLayout)
  .filter(([name, axis]) => /^[xy]axis\d*$/.test(name) && axis.range)
  .map(([name, axis]) => [name, [...axis.range]]));

/* True if two such are equal to a thousandth of their length: a tap on a phone moves nothing. */
explorer.sameRanges = (one, other) => Object.entries(one).every(([name, [low, high]]) => {
  const [start, end] = other[name] || [low, high], slack = Math.abs(end - start) / 1000;
  return Math.abs(low - start) <= slack && Math.abs(high - end) <= slack;
});

/* What a button of a figure changes in its layout. */
explorer.changesOf = button => button?.args[button.method === 'update' ? 1 : 0] || {};

/* The buttons of a figure, of all its rows. */
explorer.buttons = layout => (layout?.updatemenus || []).flatMap(menu => menu.buttons);

/* What the visitor has switched, axes to linear or logarithmic, the mode and the order of a figure, stays so
   in the next figure of its kind. */
explorer.keepSwitches = (plot, {data, layout}) => {
  for (const kind of (layout.meta?.switched || []).filter(path => /[.](type|mode|order)$/.test(path))) {
    const now = plot.layout && explorer.at(plot.layout, kind);
    if (!now || now === explorer.at(layout, kind)) continue;
    const button = explorer.buttons(layout).find(each => explorer.changesOf(each)[kind] === now);
    for (const [path, value] of Object.entries(explorer.changesOf(button))) explorer.put(layout, path, value);
    if (button?.method !== 'update') continue;
    const [changes, , traces] = button.args;
    for (const [path, values] of Object.entries(changes)) {
      traces.forEach((trace, i) => explorer.put(data[trace], path, values[i]));
    }
  }
};

/* The buttons of what is drawn now are marked among those that switch it. */
explorer.markSwitch = plot => {
  const options = explorer.buttons(plot.layout);
  plot.querySelectorAll('.updatemenu-button').forEach((button, i) => {
    const [[path, value] = []] = Object.entries(explorer.changesOf(options[i]));
    const now = path?.startsWith('meta.') ? plot.layout : plot._fullLayout;
    button.toggleAttribute('data-chosen', Boolean(path) && explorer.at(now, path) === value);
  });
};

/* Settled once the figures that wait have been drawn. */
explorer.drawing = Promise.resolve();

/* plotly's script runs when the first figure wants it: the page is there before. */
explorer.loadPlotly = () => explorer.plotly ??= window.Plotly ? Promise.resolve() : new Promise(resolve => {
  const script = document.createElement('script');
  Object.assign(script, {src: document.getElementById('plotly').href, onload: resolve});
  document.head.append(script);
});
