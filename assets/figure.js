/* Figures: plotly's own script draws what Python sends; around it a row of buttons, clicks, and the width and
   theme of the page. */

/* Gradio's page has a <base>, for which plotly writes the address as it is at the first drawing into every
   reference to a clip path or gradient. Such references would lead nowhere once the address is rewritten.
   Removing it changes no other reference: it is the folder of the page itself. */
document.querySelector('base')?.remove();

explorer.touch = matchMedia('(hover: none)').matches;

/* Draw the figures that arrive in `props.value` (JSON with data and layout, or empty) in `element`. `send`
   is called with "point" and what was clicked, and with "range" and where a line was dragged from and to. */
explorer.figure = (element, props, watch, send) => {
  const plot = element.querySelector('.figure');
  let drawn = null, kind = null, width = 0, starts = [], home = {}, zoomed = false, near = false;

  /* Only what is on the screen, or nearly, is drawn; one figure after another, so that the page takes clicks
     and keys in between. */
  const drawLater = () => {
    if (!near || drawn === props.value) return;
    explorer.drawing = explorer.drawing.then(() => new Promise(resume => setTimeout(resume)))
      .then(() => drawn === props.value || draw()).catch(console.error);
  };

  const draw = async changes => {
    if (!props.value || !plot.clientWidth || !window.Plotly) return;
    const spec = explorer.errorMap.describe(JSON.parse(props.value));
    if (kind === spec.layout.uirevision) explorer.keepSwitches(plot, spec.layout);
    else zoomed = false;
    kind = spec.layout.uirevision;
    starts = (spec.layout.shapes || []).map(shape => shape.x0);
    drawn = props.value;
    width = plot.clientWidth;
    const layout = {...spec.layout, ...changes, width, autosize: false};
    element.classList.remove('empty');
    if (explorer.touch) layout.dragmode = false;
    const config = {displayModeBar: false, responsive: false, doubleClick: 'reset',
      edits: {shapePosition: 'draggable' in plot.dataset}};
    const first = !plot._fullLayout;
    await Plotly.react(plot, spec.data, layout, config);
    plot.style.minHeight = '';
    if (!zoomed) home = explorer.ranges(plot);
    if (spec.data.some(explorer.errorMap.isOfElements)) explorer.errorMap.focusable(plot);
    if (first) listen();
    explorer.markSwitch(plot);
    showReset();
  };

  const listen = () => {
    plot.on('plotly_afterplot', () => explorer.markSwitch(plot));
    plot.on('plotly_click', event => {
      const point = event.points[0], at = point.pointIndex ?? point.pointNumber ?? null;
      const element = explorer.errorMap.isOfElements(point.data) ? explorer.errorMap.clicked(point) : null;
      send('point', {x: point.x ?? null, y: point.y ?? null, curve: point.curveNumber, at, element,
        data: element ? null : point.customdata ?? null});
    });
    plot.on('plotly_relayout', changes => {
      const keys = Object.keys(changes);
      if (keys.some(key => key.endsWith('.type'))) home = explorer.ranges(plot);
      else if (keys.some(key => /^[xy]axis\d*\./.test(key))) {
        zoomed = !explorer.sameRanges(explorer.ranges(plot), home);
        showReset();
      }
      const moved = keys.map(key => key.match(/^shapes\[(\d+)\]\.x0$/)).find(Boolean);
      if (moved) send('range', {from: starts[moved[1]], to: changes[moved[0]]});
    });
  };

  const tools = element.querySelector('.figure-tools');
  tools.hidden = !props.value;
  tools.addEventListener('click', event => {
    const tool = event.target.closest('button')?.dataset.kind;
    if (!tool || !plot._fullLayout) return;
    if (tool === 'reset') {
      zoomed = false;
      return draw({uirevision: `${Date.now()}`}).then(() => {
        if (plot.data.some(explorer.errorMap.isOfElements)) explorer.markElement(plot);
      });
    }
    Plotly.downloadImage(plot, {format: tool, scale: 2, width: plot.clientWidth,
      height: plot._fullLayout.height, filename: plot.layout.meta?.filename || 'figure'});
  });
  const showReset = () => {
    tools.querySelector('[data-kind=reset]').hidden = !zoomed;
  };

  const resized = () => {
    if (drawn !== props.value) drawLater();
    else if (plot.clientWidth && plot.clientWidth !== width) {
      width = plot.clientWidth;
      Plotly.relayout(plot, {width});
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
  explorer.plotly.then(drawLater);
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

/* Axes that the visitor has switched to linear or logarithmic stay so in the next figure of its kind. */
explorer.keepSwitches = (plot, layout) => {
  const at = (tree, path) => path.split('.').reduce((part, key) => part?.[key], tree);
  if (!plot.layout) return;
  const kind = (layout.meta?.switched || []).find(path => path.endsWith('.type'));
  const now = kind && at(plot.layout, kind);
  if (!now || now === at(layout, kind)) return;
  const button = layout.updatemenus[0].buttons.find(({args: [changes]}) => changes[kind] === now);
  for (const [path, value] of Object.entries(button?.args[0] || {})) {
    const keys = path.split('.'), last = keys.pop();
    at(layout, keys.join('.'))[last] = value;
  }
};

/* The button of what is drawn now is marked among those that switch it. */
explorer.markSwitch = plot => {
  const options = plot.layout?.updatemenus?.[0]?.buttons || [], now = plot._fullLayout;
  const at = path => path.split('.').reduce((part, key) => part?.[key], now);
  plot.querySelectorAll('.updatemenu-button').forEach((button, i) => {
    const [[path, value] = []] = Object.entries(options[i]?.args[0] || {});
    button.toggleAttribute('data-chosen', Boolean(path) && at(path) === value);
  });
};

/* Settled once the figures that wait have been drawn. */
explorer.drawing = Promise.resolve();

explorer.plotly = new Promise(resolve => {
  const script = document.getElementById('plotly');
  if (window.Plotly) resolve();
  else script.addEventListener('load', resolve);
});
