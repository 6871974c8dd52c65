/* Maps: a cell stands for several elements and shows the largest error among them, or for several blocks
   and shows their largest scale. The server sends codes and places of one or two bytes; the words under the
   mouse are made from them here. */
explorer.errorMap = {
  TYPES: {u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, f4: Float32Array},

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

  /* The map that says what lies under a cell of `trace`: one in other units says what its first one does. */
  first(traces, trace) {
    return trace.meta?.like === undefined ? trace : traces[trace.meta.like];
  },

  /* True if a trace is a map of elements, whose cells are chosen by a click. */
  isOfElements(trace) {
    const meta = trace.meta;
    return Boolean(meta) && !meta.unit && Boolean(meta.codes || meta.difference || meta.like !== undefined);
  },

  /* Which map of the two has the larger error in a cell of their difference. */
  worse(traces, trace, down, right) {
    const [one, other] = trace.meta.difference.map(at => traces[at]);
    const of = each => explorer.errorMap.rows(each.z)[down][right];
    return of(other) > of(one) ? other : one;
  },

  /* The element under a cell of a map of elements: that with its largest error. */
  elementOf(traces, trace, down, right) {
    const {errorMap} = explorer;
    const map = trace.meta.difference ? errorMap.worse(traces, trace, down, right)
      : errorMap.first(traces, trace);
    return errorMap.element(map.meta, errorMap.rows(map.customdata), down, right);
  },

  /* Signed 16-bit codes of `meta.values` [maps, rows, columns] as a number. */
  number(codes, at) {
    const code = codes.flat[at];
    if (!code) return 0;
    const share = (Math.abs(code) - 1) / 32766;
    return Math.sign(code) * codes.largest * 10 ** ((share - 1) * codes.decades);
  },

  /* x and what each scheme made of it, in words; the map's own scheme's is x and its error. */
  values(trace, down, right) {
    const {meta} = trace, wide = trace.wide_, cells = trace.tall_ * wide, at = down * wide + right;
    const codes = {...meta.values, flat: trace.values_}, {errorMap} = explorer;
    const x = errorMap.number(codes, at), error = errorMap.value(meta, trace.codes_[down][right]);
    const above = trace.above_[at >> 3] >> (7 - at % 8) & 1;
    const made = [x + (above ? error : -error)];
    const others = trace.values_.length / cells - 1;
    if (others) made.splice(meta.side ? 0 : 1, 0, errorMap.number(codes, cells + at));
    const word = value => explorer.words.number(value, 3);
    const names = others ? ['A', 'B'] : ['dequantized'];
    return [`x ${word(x)}`, ...made.map((value, i) => `${names[i]} ${word(value)}`)].join(' · ');
  },

  /* The typed arrays of a map, decoded once. */
  open(trace) {
    if (trace.codes_) return trace;
    const {errorMap} = explorer, {meta} = trace;
    trace.codes_ = errorMap.rows(trace.z);
    trace.places_ = errorMap.rows(trace.customdata);
    trace.tall_ = trace.codes_.length;
    trace.wide_ = trace.codes_[0].length;
    const bytes = typed => Uint8Array.from(atob(typed.bdata), letter => letter.charCodeAt(0));
    if (meta.values) {
      trace.values_ = new Int16Array(bytes(meta.values).buffer);
      trace.above_ = bytes(meta.above);
    }
    return trace;
  },

  /* [layer, scheme] of a cell of a survey's map, whose layers are rows, or columns where it is `upright`. */
  cellOf({data, pointNumber}) {
    const {names, schemes, upright} = data.meta || {};
    if (!names) return null;
    const [down, right] = pointNumber;
    return upright ? [names[right], schemes[down]] : [names[down], schemes[right]];
  },

  /* What lies under the mouse in a cell, in lines. */
  told(traces, trace, down, right) {
    const {errorMap} = explorer;
    if (trace.meta.names) {
      const [name, scheme] = errorMap.cellOf({data: trace, pointNumber: [down, right]}), {meta} = trace;
      const at = meta.schemes.indexOf(scheme), cost = errorMap.rows(trace.customdata)[down][right];
      return [name, `${meta.labels[at]}, ${meta.bits[at]} bits: ${explorer.words.number(cost, 3)}`];
    }
    if (trace.meta.difference) {
      const both = trace.meta.difference.map(at => errorMap.open(traces[at]));
      const [a, b] = both.map(map => errorMap.words(map.meta, map.codes_[down][right]));
      return [`largest |error| here: A ${a}, B ${b}`, errorMap.where(both[0].meta, null, down, right)];
    }
    const map = errorMap.open(errorMap.first(traces, trace)), {meta} = map;
    const lines = [`${meta.label} ${errorMap.words(meta, map.codes_[down][right])}`,
      errorMap.where(meta, map.places_, down, right)];
    const scaled = traces.find(other => other.meta?.like === traces.indexOf(map));
    if (scaled) lines[0] += `, ${errorMap.scaled(scaled, down, right)} of its block's scale`;
    if (meta.values) lines.push(errorMap.values(map, down, right));
    return lines;
  },

  /* An error in scales of its block, to the two digits that one byte has. */
  scaled(trace, down, right) {
    const codes = explorer.errorMap.rows(trace.z), {meta} = trace;
    return explorer.words.number(explorer.errorMap.value(meta.scale, codes[down][right]), 2);
  },

  /* --- the inspected element -------------------------------------------------------------------------- */

  /* Its row and column, and the shape of its matrix, as the card of the element has them. */
  inspected() {
    const {row, column, rows, columns} = document.getElementById('inspector')?.dataset || {};
    return row === undefined ? null : {at: [Number(row), Number(column)], shape: [Number(rows), Number(columns)]};
  },

  /* The map is drawn: arrow keys move the inspected element while it has the focus, which a click gives it. */
  drawn(plot) {
    explorer.errorMap.mark(plot);
    if (plot.tabIndex === 0) return;
    plot.tabIndex = 0;
    plot.setAttribute('role', 'group');
    plot.setAttribute('aria-label', 'Error map: arrow keys move the inspected element');
    plot.addEventListener('pointerdown', () => plot.focus({preventScroll: true}));
    plot.addEventListener('keydown', explorer.errorMap.move);
  },

  move(event) {
    const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    const found = explorer.errorMap.inspected(), {row, column} = explorer.query();
    if (!steps || !found || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const from = row && column ? [Number(row), Number(column)] : found.at;
    const [down, right] = from.map((at, i) => Math.max(0, Math.min(at + steps[i], found.shape[i] - 1)));
    explorer.set({row: `${down}`, column: `${right}`}, false);
  },

  /* Put the map's rings around the inspected element. */
  mark(plot) {
    const marks = (plot.data || []).flatMap((trace, at) => trace.meta?.picked ? [at] : []);
    const found = explorer.errorMap.inspected(), each = value => marks.map(() => [value]);
    if (marks.length && found) Plotly.restyle(plot, {x: each(found.at[1]), y: each(found.at[0])}, marks);
  },

  /* The section of the map: the part that is zoomed to is the one whose errors the histogram shows. */
  section(section) {
    explorer.local.part ??= '';
    const act = section.act.bind(section);
    section.act = (kind, what, figure) => {
      if (kind !== 'brush') return act(kind, what, figure);
      explorer.set({part: what.rows ? [...what.rows, ...what.columns].join() : ''}, false);
    };
  },

  /* The section of the element: its boxes hold where it is, and one that is typed into moves it. */
  inspector(section) {
    const boxes = ['row', 'column'].map(key => section.element.querySelector(`[data-key=${key}]`));
    section.element.addEventListener('filled', () => {
      const found = explorer.errorMap.inspected();
      if (!found) return;
      boxes.forEach((box, i) => {
        box.max = found.shape[i] - 1;
        box.dataset.usual = found.at[i];
        if (box !== document.activeElement) box.value = found.at[i];
      });
      document.querySelectorAll('#error-map .figure').forEach(explorer.errorMap.mark);
    });
    section.element.addEventListener('change', event => {
      if (!boxes.includes(event.target)) return;
      event.stopPropagation();
      if (boxes.every(box => box.value && box.reportValidity())) {
        explorer.set({row: boxes[0].value, column: boxes[1].value});
      }
    }, true);
  },

  /* Before plotly draws a figure: what lies under the mouse on its maps is written here, not by plotly. */
  describe(figure) {
    for (const trace of figure.data) {
      const ours = trace.meta?.codes || trace.meta?.names || explorer.errorMap.isOfElements(trace);
      if (trace.type !== 'heatmap' || !ours) continue;
      delete trace.hovertemplate;
      trace.hoverinfo = 'none';
    }
    return figure;
  },

  /* Write what lies under the mouse beside it while it is over a map. */
  listen(plot) {
    const tip = document.createElement('div');
    tip.className = 'map-tip';
    tip.hidden = true;
    plot.after(tip);
    plot.on('plotly_hover', ({points: [point], event}) => {
      const {data} = point;
      if (data.type !== 'heatmap' || data.hoverinfo !== 'none') return;
      const [down, right] = point.pointNumber;
      tip.replaceChildren(...explorer.errorMap.told(plot.data, data, down, right).map(line => {
        const div = document.createElement('div');
        div.textContent = line;
        return div;
      }));
      tip.hidden = false;
      const card = tip.offsetParent.getBoundingClientRect(), box = tip.getBoundingClientRect();
      const left = Math.min(event.clientX + 14, innerWidth - box.width - 6);
      tip.style.left = `${Math.max(left, 6) - card.left}px`;
      tip.style.top = `${event.clientY - card.top - box.height - 10}px`;
    });
    plot.on('plotly_unhover', () => { tip.hidden = true; });
    plot.addEventListener('keydown', () => { tip.hidden = true; }, {capture: true});
  },
};
