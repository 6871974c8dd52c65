/* The gap to the next value against magnitude, for formats of every width. */
explorer.spacingChart = {
  NAMES: ['float32', 'tfloat32', 'bfloat16', 'float16', 'float8_e4m3fn', 'float8_e5m2', 'float6_e2m3fn',
    'float6_e3m2fn', 'float4_e2m1fn', 'int8', 'int4'],
  X: [-14, 20], Y: [-16, 14], HEIGHT: 360, LEFT: 52, RIGHT: 12, TOP: 10, BOTTOM: 44,
  LETTER: 6.8, LINE: 13,  // width and height of a name's letter, in pixels

  draw({parts, formats, state}) {
    const {svg} = explorer, width = svg.widthOf(parts.chart), bottom = this.HEIGHT - this.BOTTOM;
    const at = (value, [low, high], from, to) => from + (to - from) * (Math.log2(value) - low) / (high - low);
    const x = value => at(value, this.X, this.LEFT, width - this.RIGHT), y = value => at(value, this.Y, bottom, this.TOP);
    const curves = [...new Set([...this.NAMES, state.name])]
      .map(name => ({format: formats[name], points: this.corners(formats[name], x, y)}))
      .filter(curve => curve.points.length > 1);
    const names = [], size = Math.abs(state.number), marked = size >= 2 ** this.X[0] && size <= 2 ** this.X[1];
    svg.show(parts.chart, this.HEIGHT, 'Spacing of values against their magnitude, by format', this.grid(x, y, width)
      + curves.map(({format, points}) => this.curve(format, points, this.spot(format.label, points, curves, names, width),
        format.name === state.name)).join('')
      + (marked ? `<line class="marker" x1="${x(size)}" x2="${x(size)}" y1="${this.TOP}" y2="${bottom}"/>` : ''));
  },

  grid(x, y, width) {
    const {power} = explorer.svg, bottom = this.HEIGHT - this.BOTTOM, right = width - this.RIGHT;
    let grid = `<text class="axis" x="${(this.LEFT + width) / 2}" y="${this.HEIGHT - 6}" text-anchor="middle">magnitude of the
      number</text>`;
    for (let p = -12; p <= 20; p += width < 560 ? 8 : 4) {
      grid += `<line class="grid" x1="${x(2 ** p)}" x2="${x(2 ** p)}" y1="${this.TOP}" y2="${bottom}"/>
        <text class="tick" x="${x(2 ** p)}" y="${bottom + 16}" text-anchor="middle">${power('2', p)}</text>`;
    }
    for (let p = -16; p <= 12; p += 4) {
      grid += `<line class="grid" x1="${this.LEFT}" x2="${right}" y1="${y(2 ** p)}" y2="${y(2 ** p)}"/>
        <text class="tick" x="${this.LEFT - 8}" y="${y(2 ** p) + 4}" text-anchor="end">${power('2', p)}</text>`;
    }
    return grid;
  },

  /* Magnitudes and the gap above each, within the axes. */
  steps(format) {
    if (format.levels) {
      const positive = format.levels.filter(level => level > 0);
      return positive.map((level, i) => [level, i + 1 < positive.length ? positive[i + 1] - level : null]);
    }
    const least = Math.max(1 - format.bias, this.X[0]), most = Math.min(Math.log2(format.max), this.X[1]);
    const steps = [];
    for (let e = least; e <= most; e++) steps.push([2 ** e, 2 ** (e - format.mantissa)]);
    return steps.concat([[Math.min(format.max, 2 ** this.X[1]), null]]);
  },

  /* The corners of a format's staircase, in pixels. */
  corners(format, x, y) {
    const shown = this.steps(format)
      .filter(([size, gap]) => size >= 2 ** this.X[0] && (gap === null || gap >= 2 ** this.Y[0]));
    const points = [];
    for (const [size, gap] of shown) {
      if (points.length) points.push([x(size), points.at(-1)[1]]);
      if (gap !== null) points.push([x(size), y(gap)]);
    }
    return points;
  },

  curve(format, points, {left, base}, on) {
    const path = points.map(([x, y], i) => `${i ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`).join('');
    return `<g class="format${on ? ' on' : ''}" data-format="${format.name}"><path class="steps" d="${path}"
      stroke="${format.color}"/><text class="name" x="${left}" y="${base}">${format.label}</text></g>`;
  },

  /* Where a name covers no other name and as few lines as can be: near a corner of its own line, the last one
     first. */
  spot(label, points, curves, names, width) {
    const wide = this.LETTER * label.length, tall = this.LINE;
    const spots = points.toReversed().flatMap(([x, y], i) => [[x + 6, y + 4], [x + 6, y - 5], [x + 6, y + 16],
      [x - wide - 6, y + 4], [x - wide, y - 7], [x - wide, y + 17]].map(([left, base]) => ({left, base, far: i})));
    const box = ({left, base}) => ({left: left - 3, right: left + wide, top: base - tall + 2, bottom: base + 4});
    const inside = ({left, right, top, bottom}) => left >= this.LEFT && right <= width && top >= 0
      && bottom <= this.HEIGHT - this.BOTTOM;
    const covered = spot => {
      const own = box(spot), meets = other => own.left < other.right && own.right > other.left
        && own.top < other.bottom && own.bottom > other.top;
      const lines = curves.flatMap(({points: all}) => all.slice(1).map(([x, y], i) => ({left: Math.min(x, all[i][0]),
        right: Math.max(x, all[i][0]) + 0.1, top: Math.min(y, all[i][1]), bottom: Math.max(y, all[i][1]) + 0.1})));
      return 50 * names.filter(meets).length + 5 * lines.filter(meets).length + spot.far / 4 + (inside(own) ? 0 : 500);
    };
    const costs = spots.map(covered), best = spots[costs.indexOf(Math.min(...costs))];
    names.push(box(best));
    return best;
  },
};
