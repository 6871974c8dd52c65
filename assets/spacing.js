/* The gap to the next value against magnitude, for formats of every width. */
explorer.spacingChart = {
  NAMES: ['float32', 'tfloat32', 'bfloat16', 'float16', 'float8_e4m3fn', 'float8_e5m2', 'float6_e2m3fn',
    'float6_e3m2fn', 'float4_e2m1fn', 'int8', 'int4'],
  X: [-14, 20], Y: [-16, 14], HEIGHT: 360, LEFT: 52, RIGHT: 12, TOP: 10, BOTTOM: 44,

  draw({parts, formats, state}) {
    const {svg} = explorer, width = svg.widthOf(parts.chart), bottom = this.HEIGHT - this.BOTTOM;
    const share = (value, [low, high]) => (Math.log2(value) - low) / (high - low);
    const x = value => this.LEFT + (width - this.RIGHT - this.LEFT) * share(value, this.X);
    const y = value => bottom - (bottom - this.TOP) * share(value, this.Y);
    const curves = [...new Set([...this.NAMES, state.name])]
      .map(name => ({format: formats[name], corners: this.corners(formats[name], x, y)}))
      .filter(curve => curve.corners.length > 1);
    const key = [width, ...curves.map(curve => curve.format.name)].join();
    if (this.key !== key) [this.key, this.spots] = [key, this.spotsOf(curves, width)];
    const drawn = curves.map((curve, i) => this.curve(curve, this.spots[i], state.name));
    const size = Math.abs(state.number);
    const marked = share(size, this.X) >= 0 && share(size, this.X) <= 1;
    const marker = `<line class="marker" x1="${x(size)}" x2="${x(size)}" y1="${this.TOP}" y2="${bottom}"/>`;
    svg.show(parts.chart, this.HEIGHT, 'Spacing of values against their magnitude, by format',
      this.grid(x, y, width) + drawn.join('') + (marked ? marker : ''));
  },

  grid(x, y, width) {
    const {power} = explorer.svg, bottom = this.HEIGHT - this.BOTTOM, right = width - this.RIGHT;
    const line = (x1, x2, y1, y2) => `<line class="grid" x1="${x1}" x2="${x2}" y1="${y1}" y2="${y2}"/>`;
    const text = (left, base, anchor, words) =>
      `<text class="tick" x="${left}" y="${base}" text-anchor="${anchor}">${words}</text>`;
    let grid = text((this.LEFT + width) / 2, this.HEIGHT - 6, 'middle', 'magnitude of the number');
    for (let p = -12; p <= 20; p += width < 560 ? 8 : 4) {
      const at = x(2 ** p);
      grid += line(at, at, this.TOP, bottom) + text(at, bottom + 16, 'middle', power('2', p));
    }
    for (let p = -16; p <= 12; p += 4) {
      const at = y(2 ** p);
      grid += line(this.LEFT, right, at, at) + text(this.LEFT - 8, at + 4, 'end', power('2', p));
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
    const corners = [];
    for (const [size, gap] of shown) {
      if (corners.length) corners.push([x(size), corners.at(-1)[1]]);
      if (gap !== null) corners.push([x(size), y(gap)]);
    }
    return corners;
  },

  curve({format, corners}, {left, base, leader}, chosen) {
    const path = corners.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join('L');
    return `<g class="format${format.name === chosen ? ' on' : ''}" data-format="${format.name}">
      <path class="steps" d="M${path}" stroke="${format.color}"/>${leader}
      <text class="name" x="${left}" y="${base}">${format.label}</text></g>`;
  },

  /* For each curve where its name covers no other and as few lines as can be, best near the curve's end. */
  spotsOf(curves, width) {
    const names = [], lines = curves.flatMap(({corners}) => corners.slice(1).map(([x, y], i) => {
      const [fromX, fromY] = corners[i];
      return this.box(Math.min(x, fromX), Math.max(x, fromX), Math.min(y, fromY), Math.max(y, fromY));
    }));
    const cost = ({box, far}) => {
      const meets = other => box.left < other.right && box.right > other.left && box.top < other.bottom
        && box.bottom > other.top;
      const outside = box.left < this.LEFT || box.right > width || box.top < 0
        || box.bottom > this.HEIGHT - this.BOTTOM;
      return 100 * names.filter(meets).length + 20 * lines.filter(meets).length + far + 500 * outside;
    };
    return curves.map(curve => {
      const spots = this.spotsNear(curve), costs = spots.map(cost);
      const best = spots[costs.indexOf(Math.min(...costs))];
      names.push(best.box);
      return best;
    });
  },

  box: (left, right, top, bottom) => ({left, right: right + 0.1, top, bottom: bottom + 0.1}),

  /* Places for a name around the last corners of its curve; a leader joins what is not beside the corner. */
  spotsNear({format, corners}) {
    const wide = 6.8 * format.label.length;
    return corners.slice(-16).reverse().flatMap(([x, y], i) => [4, -8, 17, -24, 33, -40, 49].flatMap(down =>
      [6, -wide - 6, 24, -wide - 24].map(along => {
        const left = x + along, base = y + down, end = along > 0 ? left - 2 : left + wide + 1;
        const near = Math.abs(down - 4) < 15 && Math.abs(along + wide / 2) < wide;
        const leader = `<line class="leader" x1="${x}" y1="${y}" x2="${end}" y2="${base - 4}"/>`;
        return {left, base, leader: near ? '' : leader, box: this.box(left - 3, left + wide, base - 11, base + 4),
          far: i / 2 + Math.abs(down - 4) / 3 + Math.abs(along) / 60};
      })));
  },
};
