/* Error maps: a cell stands for several elements and shows the largest error among them. The server sends
   codes and places of two bytes; the words under the mouse are made from them here. */
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

  /* The error that a code of `z` stands for. */
  error(meta, code) {
    const {low, high} = meta, share = code / meta.codes;
    return meta.logarithmic ? low * (high / low) ** share : low + (high - low) * share;
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

  /* Give the error maps of a figure, before plotly draws it, their words for the hover. */
  describe(figure) {
    for (const trace of figure.data) {
      if (trace.type !== 'heatmap' || !trace.meta?.codes) continue;
      const codes = explorer.errorMap.rows(trace.z), places = explorer.errorMap.rows(trace.customdata);
      trace.text = codes.map((cells, down) => Array.from(cells, (code, right) => {
        const [row, column] = explorer.errorMap.element(trace.meta, places, down, right);
        const error = Number(explorer.errorMap.error(trace.meta, code).toPrecision(3));
        return `|error| ${error}<br>row ${row}, column ${column}`;
      }));
      trace.hovertemplate = '%{text}<extra></extra>';
    }
    return figure;
  },
};
