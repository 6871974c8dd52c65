/* Figures: plotly's own script draws what Python sends; around it a row of buttons, clicks, and the width and
   theme of the page. */

/* Gradio's page has a <base>, for which plotly writes the address as it is at the first drawing into every
   reference to a clip path or gradient. Such references would lead nowhere once the address is rewritten.
   Removing it changes no other reference: it is the folder of the page itself. */
document.querySelector('base')?.remove();

explorer.touch = matchMedia('(hover: none)').matches;

/* Draw the figures that arrive in `props.value` (JSON with data and layout, or empty) in `element`. `send`
   is called with "point" and what was clicked, and with "range" and the ends of a range that was dragged. */
explorer.figure = (element, props, watch, send) => {
  const plot = element.querySelector('.figure');
  let drawn = null, width = 0;

  const draw = async () => {
    if (!props.value || !plot.clientWidth || !window.Plotly) return;
    const spec = JSON.parse(props.value);
    drawn = props.value;
    width = plot.clientWidth;
    const layout = {...spec.layout, width, autosize: false};
    element.classList.remove('empty');
    if (explorer.touch) layout.dragmode = false;
    const config = {displayModeBar: false, responsive: false, doubleClick: 'reset',
      edits: {shapePosition: Boolean(spec.layout.meta?.draggable)}};
    const first = !plot._fullLayout;
    await Plotly.react(plot, spec.data, layout, config);
    for (const [at, trace] of plot.data.entries()) {
      if (trace.meta?.unit) await Plotly.restyle(plot, {text: [explorer.hoverOf(trace)]}, [at]);
    }
    plot.style.minHeight = '';
    if (first) listen();
    showReset();
  };

  const listen = () => {
    plot.on('plotly_click', event => {
      const point = event.points[0], at = point.pointIndex ?? point.pointNumber ?? null;
      const element = point.data.meta?.unit ? explorer.elementOf(point.data, ...at) : null;
      send('point', {x: point.x ?? null, y: point.y ?? null, curve: point.curveNumber, at, element,
        data: element ? null : point.customdata ?? null});
    });
    plot.on('plotly_relayout', changes => {
      showReset();
      if (Object.keys(changes).some(key => key.startsWith('shapes['))) {
        send('range', {shapes: plot.layout.shapes.map(({name, x0, x1}) => ({name, x0, x1}))});
      }
    });
  };

  const tools = element.querySelector('.figure-tools');
  tools.addEventListener('click', event => {
    const kind = event.target.closest('button')?.dataset.kind;
    if (!kind || !plot._fullLayout) return;
    if (kind === 'reset') return explorer.resetAxes(plot);
    Plotly.downloadImage(plot, {format: kind, scale: 2, width: plot.clientWidth,
      height: plot._fullLayout.height, filename: plot.layout.meta?.filename || 'figure'});
  });
  const showReset = () => {
    tools.querySelector('[data-kind=reset]').hidden = !explorer.zoomed(plot);
  };

  const width_changed = () => {
    if (drawn !== props.value) draw();
    else if (plot.clientWidth && plot.clientWidth !== width) {
      width = plot.clientWidth;
      Plotly.relayout(plot, {width});
    }
  };
  watch('value', () => {
    if (!props.value && plot._fullLayout) { Plotly.purge(plot); drawn = null; }
    element.classList.toggle('empty', !props.value);
    draw();
  });
  new ResizeObserver(() => requestAnimationFrame(width_changed)).observe(plot);
  explorer.plotly.then(draw);
};

/* A map of elements: each cell shows its largest value, and `customdata` says which of its elements that is,
   counted along the rows of the cell. */
explorer.elementOf = (trace, down, right) => {
  const {tall, wide} = trace.meta, within = trace.customdata ? trace.customdata[down][right] : 0;
  return [down * tall + Math.floor(within / wide), right * wide + within % wide];
};

explorer.hoverOf = trace => Array.from(trace.z, (line, down) => Array.from(line, (code, right) => {
  const [row, column] = explorer.elementOf(trace, down, right);
  return `${(code * trace.meta.unit).toPrecision(3)} at row ${row}, column ${column}`;
}));

explorer.axesOf = plot => Object.keys(plot._fullLayout || {}).filter(key => /^[xy]axis[0-9]*$/.test(key));

/* Whether the visitor has zoomed or moved an axis away from where Python put it. */
explorer.zoomed = plot => explorer.axesOf(plot).some(key => {
  const axis = plot._fullLayout[key], first = axis._rangeInitial0 === undefined
    ? null : [axis._rangeInitial0, axis._rangeInitial1];
  const same = (a, b) => Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a));
  return first && first[0] != null && axis.range
    && !(same(axis.range[0], first[0]) && same(axis.range[1], first[1]));
});

explorer.resetAxes = plot => {
  const changes = {};
  for (const key of explorer.axesOf(plot)) {
    const axis = plot._fullLayout[key];
    if (axis._rangeInitial0 === undefined) changes[key + '.autorange'] = true;
    else changes[key + '.range'] = [axis._rangeInitial0, axis._rangeInitial1];
  }
  Plotly.relayout(plot, changes);
};

explorer.plotly = new Promise(resolve => {
  const script = document.getElementById('plotly');
  if (window.Plotly) resolve();
  else script.addEventListener('load', resolve);
});
