/* The gap to the next value against magnitude, for formats of every width. */
explorer.spacingChart = {
  NAMES: ['float32', 'tfloat32', 'bfloat16', 'float16', 'float8_e4m3fn', 'float8_e5m2', 'float6_e2m3fn',
    'float6_e3m2fn', 'float4_e2m1fn', 'int8', 'int4'],
  X: [-14, 20], Y: [-16, 14], HEIGHT: 360, LEFT: 52, RIGHT: 12, TOP: 10, BOTTOM: 44,

  draw(playground) {
    const {svg} = explorer, place = playground.parts.chart;
    const label = 'Spacing of values against their magnitude, by format';
    const {sheet, width} = svg.sheet(place, this.HEIGHT, label);
    this.at = (value, [low, high], from, to) => from + (to - from) * (Math.log2(value) - low) / (high - low);
    this.x = value => this.at(value, this.X, this.LEFT, width - this.RIGHT);
    this.y = value => this.at(value, this.Y, this.HEIGHT - this.BOTTOM, this.TOP);
    const every = width < 560 ? 8 : 4;
    for (let p = -12; p <= 20; p += every) this.gridLine(sheet, this.x(2 ** p), 'x', p);
    for (let p = -16; p <= 12; p += 4) this.gridLine(sheet, this.y(2 ** p), 'y', p, width);
    sheet.append(svg.node('text', {class: 'axis', x: (this.LEFT + width) / 2, y: this.HEIGHT - 6,
      'text-anchor': 'middle'}, 'magnitude of the number'));
    const shown = [...new Set([...this.NAMES, playground.state.name])].map(name => playground.formats[name]);
    this.names = [];
    for (const format of shown) this.drawFormat(sheet, format, width);
    this.marker = sheet.appendChild(svg.node('line', {class: 'marker', y1: this.TOP,
      y2: this.HEIGHT - this.BOTTOM}));
    this.mark(playground);
  },

  gridLine(sheet, at, axis, power, width) {
    const bottom = this.HEIGHT - this.BOTTOM, {svg} = explorer;
    const [line, tick] = axis === 'x'
      ? [{x1: at, x2: at, y1: this.TOP, y2: bottom}, {x: at, y: bottom + 16, 'text-anchor': 'middle'}]
      : [{x1: this.LEFT, x2: width - this.RIGHT, y1: at, y2: at},
        {x: this.LEFT - 8, y: at + 4, 'text-anchor': 'end'}];
    sheet.append(svg.node('line', {class: 'grid', ...line}),
      svg.power('2', power, {class: 'tick', ...tick}));
  },

  /* Magnitudes and the gap above each, within the axes. */
  steps(format) {
    if (format.levels) {
      const positive = format.levels.filter(level => level > 0);
      return positive.slice(0, -1).map((level, i) => [level, positive[i + 1] - level])
        .concat([[positive.at(-1), null]]);
    }
    const least = Math.max(1 - format.bias, this.X[0]), most = Math.min(Math.log2(format.max), this.X[1]);
    const steps = [];
    for (let e = least; e <= most; e++) steps.push([2 ** e, 2 ** (e - format.mantissa)]);
    return steps.concat([[Math.min(format.max, 2 ** this.X[1]), null]]);
  },

  drawFormat(sheet, format, width) {
    const {svg} = explorer, steps = this.steps(format).filter(([x]) => x >= 2 ** this.X[0]);
    const inside = steps.filter(([, gap]) => gap === null || gap >= 2 ** this.Y[0]);
    if (inside.length < 2) return;
    let path = '', last = inside[0][1];
    for (const [x, gap] of inside) {
      path += path ? `H${this.x(x).toFixed(1)}` : `M${this.x(x).toFixed(1)} ${this.y(gap).toFixed(1)}`;
      if (gap !== null) { path += `V${this.y(gap).toFixed(1)}`; last = gap; }
    }
    const end = this.x(inside.at(-1)[0]), outside = end > width - this.RIGHT - 70;
    const group = svg.node('g', {class: 'format', 'data-format': format.name});
    const name = svg.node('text', {class: 'name', x: outside ? width - this.RIGHT : end + 5,
      y: this.free(format.label, outside ? width - this.RIGHT - 60 : end, this.y(last) + (outside ? 16 : 4)),
      'text-anchor': outside ? 'end' : 'start'}, format.label);
    group.append(svg.node('path', {class: 'steps', d: path, stroke: format.color}), name);
    sheet.append(group);
  },

  /* The height nearest to `y` at which a name that begins at `x` covers no other. */
  free(label, x, y) {
    const width = 7 * label.length, covers = at => this.names.some(other =>
      x < other.right && x + width > other.x && Math.abs(other.y - at) < 13);
    const free = [0, 13, -13, 26, -26, 39, -39].map(shift => y + shift).find(at => !covers(at)) ?? y;
    this.names.push({x, right: x + width, y: free});
    return free;
  },

  /* Move the marker and the emphasis to the number and its format. */
  mark(playground) {
    const {name, number} = playground.state, sheet = playground.parts.chart.querySelector('svg');
    if (!sheet) return;
    if (!sheet.querySelector(`[data-format="${name}"]`) && playground.format.levels && this.marked !== name) {
      this.marked = name;
      return this.draw(playground);
    }
    this.marked = name;
    for (const group of sheet.querySelectorAll('.format')) {
      group.classList.toggle('on', group.dataset.format === name);
    }
    const size = Math.abs(number), shown = size >= 2 ** this.X[0] && size <= 2 ** this.X[1];
    this.marker.setAttribute('visibility', shown ? 'visible' : 'hidden');
    if (!shown) return;
    this.marker.setAttribute('x1', this.x(size));
    this.marker.setAttribute('x2', this.x(size));
  },
};
