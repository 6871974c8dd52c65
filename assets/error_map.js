/* Maps: a cell stands for several elements and shows the largest error among them, or for several blocks
   and shows their largest scale. The server sends codes and places of two bytes; the words under the mouse
   are made from them here. */
explorer.errorMap = {
  TYPES: {u1: Uint8Array, u2: Uint16Array, u4: Uint32Array},

  /* plotly's {dtype, bdata, shape} as rows; arrays as they are. */
  rows(typed) {
    if (!typed || Array.isArray(typed)) return typed;
    const bytes = Uint8Array.from(atob(typed.bdata), letter => letter.charCodeAt(0));
    const flat = new explorer.errorMap.TYPES[typed.dtype](bytes.buffer);
    const wide = Number(String(typed.shape).split(',')[1]);
    return Array.from({length: flat.length / wide}, (_, row) => flat.subarray(row * wide, (row + 1) * wide));
  },

  /* [row, column] of the largest error in the cell [down, right] of a map whose `places` are decoded. */
  element(meta, places, down, right) {
    const place = places ? places[down][right] : 0;
    return [down * meta.tall + Math.floor(place / meta.wide), right * meta.wide + place % meta.wide];
  },

  /* The value that a code of `z` stands for. */
  value(meta, code) {
    const {low, high, first} = meta, share = (code - first) / (meta.codes - first);
    if (meta.zero && code === 0) return 0;
    return meta.logarithmic ? low * (high / low) ** share : low + (high - low) * share;
  },

  /* The same in words, to no more digits than the code has where codes are equal steps. */
  words(meta, code) {
    const digits = meta.logarithmic ? 3 : Math.min(String(code).length, 3);
    const least = meta.cut && code === meta.first;
    return (least ? 'at most ' : '') + explorer.words.number(explorer.errorMap.value(meta, code), digits);
  },

  /* Position of a cell [down, right]: the element that has its value, or the rows and columns of blocks. */
  where(meta, places, down, right) {
    if (places || meta.tall * meta.wide === 1) {
      const [row, column] = explorer.errorMap.element(meta, places, down, right);
      return `${meta.unit}row ${row}, ${meta.unit}column ${column}`;
    }
    const span = (from, size) => size === 1 ? from : `${from} and the next ${size - 1}`;
    return `the largest of ${meta.unit}row ${span(down * meta.tall, meta.tall)}`
      + `, ${meta.unit}column ${span(right * meta.wide, meta.wide)}`;
  },

  /* True if a trace is a map of elements, whose cells are chosen by a click. */
  isOfElements(trace) {
    return Boolean(trace.meta?.codes) && !trace.meta.unit;
  },

  /* The element under a click on the map: `point` is one of plotly_click's. */
  clicked(point) {
    const trace = point.data, [down, right] = point.pointNumber;
    return explorer.errorMap.element(trace.meta, explorer.errorMap.rows(trace.customdata), down, right);
  },

  /* Arrow keys move the inspected element while the map has the focus, which a click gives it. */
  focusable(plot) {
    if (plot.tabIndex === 0) return;
    plot.tabIndex = 0;
    plot.setAttribute('role', 'group');
    plot.setAttribute('aria-label', 'Error map: arrow keys move the inspected element');
    plot.addEventListener('pointerdown', () => plot.focus({preventScroll: true}));
  },

  /* Give the maps of a figure, before plotly draws it, their words for the hover. */
  describe(figure) {
    for (const trace of figure.data) {
      if (trace.type !== 'heatmap' || !trace.meta?.codes) continue;
      const codes = explorer.errorMap.rows(trace.z), places = explorer.errorMap.rows(trace.customdata);
      const {errorMap} = explorer, {meta} = trace;
      trace.text = codes.map((cells, down) => Array.from(cells, (code, right) =>
        `${meta.label} ${errorMap.words(meta, code)}<br>${errorMap.where(meta, places, down, right)}`));
      trace.hovertemplate = '%{text}<extra></extra>';
    }
    return figure;
  },
};
