/* The number line: a row of ticks for each format of up to 8 bits, the number across all of them, and how
   each row stores it. */
explorer.numberLine = {
  NAMES: ['float4_e2m1fn', 'float6_e2m3fn', 'float6_e3m2fn', 'float8_e4m3fn', 'float8_e5m2', 'int4', 'int8',
    'nf4', 'ternary'],
  ROWS: 320, TOP: 26, BOTTOM: 30, LABEL: 92, LOWEST: -12, HIGHEST: 17,

  /* The usual formats, after the chosen one where it is not among them. */
  rows({formats, format}) {
    const added = format.levels && !format.scaleOnly && !this.NAMES.includes(format.name);
    return [...(added ? [format.name] : []), ...this.NAMES].map(name => formats[name]);
  },

  draw(playground) {
    const {svg, numbers} = explorer, {state, parts} = playground, rows = this.rows(playground);
    const width = svg.widthOf(parts.line), height = this.TOP + this.ROWS + this.BOTTOM;
    this.row = this.ROWS / rows.length;
    this.scale = this.scaleOf(playground, width - this.LABEL - 14);
    const label = `Values of ${rows.length} formats on a line, ${numbers.text(state.number)} marked`;
    const drawn = rows.map((format, i) => this.rowOf(format, i, width, format.name === state.name)).join('');
    svg.show(parts.line, height, label, this.axis() + drawn + this.marker(rows, state.number, width));
  },

  middleOf(i) { return this.TOP + (i + 0.5) * this.row; },

  /* The number across all rows, and what each of them stores for it. */
  marker(rows, number, width) {
    if (Number.isNaN(number)) return '';
    const {numbers} = explorer, {at, low, high} = this.scale;
    const x = Math.min(Math.max(at(Math.min(Math.max(number, low), high)), this.LABEL), width - 4);
    const stored = rows.map(format => numbers.round(format, number));
    return rows.map((format, i) => stored[i] < low || stored[i] > high ? '' : `<circle class="stored"
        cx="${at(stored[i])}" cy="${this.middleOf(i)}" r="4.5" fill="${format.color}"/>`).join('')
      + `<line class="marker" x1="${x}" x2="${x}" y1="${this.TOP - 6}" y2="${this.TOP + this.ROWS}"/>
        <text class="marker-text" x="${x}" y="14" text-anchor="middle">${numbers.text(number, 6)}</text>`;
  },

  /* From a value to a place in pixels, and the values that the axis names. */
  scaleOf({state, format}, pixels) {
    const number = Number.isFinite(state.number) ? state.number : 0;
    if (state.view === 'log') return this.logScale(pixels);
    let centre = 0, half = 1.25 * Math.max(8, Math.min(Math.abs(number), 57344));
    if (state.view === 'close') {
      const value = explorer.numbers.decode(format, state.code);
      const [below, above] = explorer.numbers.neighbours(format, state.code);
      centre = number;
      half = 6 * Math.max(above === null ? value - below : above - value, Math.abs(number) / 1e6, 1e-6) || 8;
    }
    const at = value => this.LABEL + pixels * (value - centre + half) / (2 * half);
    return {at, ticks: explorer.svg.ticks(centre - half, centre + half, pixels > 420 ? 8 : 4),
      low: centre - half, high: centre + half};
  },

  /* Powers of two to both sides of zero, which takes the middle; what is smaller is drawn at the middle. */
  logScale(pixels) {
    const middle = this.LABEL + pixels / 2, span = this.HIGHEST - this.LOWEST;
    const at = value => {
      const power = Math.log2(Math.abs(value) || 2 ** this.LOWEST);
      return middle + Math.sign(value) * pixels / 2 * Math.max(0, (power - this.LOWEST) / span);
    };
    const powers = pixels > 420 ? [-8, -4, 0, 4, 8, 12, 16] : [2, 12];
    const ticks = [...powers.map(p => -(2 ** p)).reverse(), 0, ...powers.map(p => 2 ** p)];
    return {at, ticks, low: -(2 ** this.HIGHEST), high: 2 ** this.HIGHEST, log: true};
  },

  axis() {
    const {svg, numbers} = explorer, {at, ticks, log} = this.scale, bottom = this.TOP + this.ROWS;
    return ticks.map(tick => {
      const x = at(tick), power = Math.log2(Math.abs(tick)), raised = log && tick && Math.abs(power) > 4;
      return `<line class="grid" x1="${x}" x2="${x}" y1="${this.TOP}" y2="${bottom}"/>
        <text class="tick" x="${x}" y="${bottom + 18}" text-anchor="middle">${
          raised ? svg.power(tick < 0 ? '−2' : '2', power) : numbers.text(tick, 4)}</text>`;
    }).join('');
  },

  /* The levels of a format that are shown. */
  levels({levels}) {
    return levels.filter(level => level >= this.scale.low && level <= this.scale.high);
  },

  rowOf(format, i, width, chosen) {
    const y = this.middleOf(i), {at} = this.scale;
    const ticks = this.levels(format).map(level => `M${at(level).toFixed(1)} ${y - 8}v16`);
    const band = `<rect class="chosen" x="0" y="${y - this.row / 2}" width="${width}" height="${this.row}"
      rx="6"/>`;
    return (chosen ? band : '') + `<text class="name${chosen ? ' on' : ''}" x="8" y="${y + 4}">${format.label}</text>
        <path class="levels" d="${ticks.join('')}" stroke="${format.color}"/>`;
  },

  /* The format and level under a place in the drawing, or null. */
  under(playground, event) {
    const box = playground.parts.line.getBoundingClientRect();
    const x = event.clientX - box.left, row = Math.floor((event.clientY - box.top - this.TOP) / this.row);
    const format = this.rows(playground)[row], shown = format && x >= this.LABEL - 8 ? this.levels(format) : [];
    if (!shown.length) return null;
    const {at} = this.scale, distance = level => Math.abs(at(level) - x);
    const level = shown.reduce((best, other) => distance(other) < distance(best) ? other : best);
    return {format, level, x: at(level), y: this.TOP + row * this.row};
  },

  listen(playground) {
    const place = playground.parts.line, tip = place.appendChild(document.createElement('div'));
    tip.className = 'tip';
    tip.hidden = true;
    place.addEventListener('pointermove', event => {
      const found = this.under(playground, event);
      tip.hidden = !found;
      if (!found) return;
      tip.textContent = `${found.format.label}: ${explorer.numbers.text(found.level)}`;
      tip.style.left = Math.min(Math.max(found.x, 70), place.clientWidth - 70) + 'px';
      tip.style.top = found.y + 'px';
    });
    place.addEventListener('pointerleave', () => { tip.hidden = true; });
    place.addEventListener('click', event => {
      const found = this.under(playground, event);
      if (!found) return;
      playground.state.name = found.format.name;
      playground.take(found.level);
    });
  },
};
