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
    const {svg, numbers} = explorer, {state} = playground, rows = this.rows(playground);
    const place = playground.parts.line, width = svg.widthOf(place);
    this.row = this.ROWS / rows.length;
    this.scale = this.scaleOf(playground, width - this.LABEL - 14);
    const {low, high} = this.scale, names = rows.map(format => format.name);
    const still = [state.view, low, high, width, state.name, ...names].join();
    if (place.still !== still) {
      place.still = still;
      this.drawStill(svg.sheet(place, this.TOP + this.ROWS + this.BOTTOM, ''), rows, state.name);
    }
    const sheet = place.querySelector('svg');
    sheet.setAttribute('aria-label', `Values of ${rows.length} formats on a line, `
      + `the number ${numbers.text(state.number)} marked`);
    sheet.querySelector('.moving').replaceChildren(...this.moving(rows, state.number, width));
  },

  /* Parts that stay while the number moves: the axis, and each format's values. */
  drawStill({sheet, width}, rows, chosen) {
    this.drawAxis(sheet, this.TOP + this.ROWS);
    rows.forEach((format, i) => this.drawRow(sheet, format, this.middleOf(i), width, format.name === chosen));
    sheet.append(explorer.svg.node('g', {class: 'moving'}));
  },

  middleOf(i) { return this.TOP + (i + 0.5) * this.row; },

  /* The number across all rows, and what each of them stores for it. */
  moving(rows, number, width) {
    if (Number.isNaN(number)) return [];
    const {svg, numbers} = explorer, {at, low, high} = this.scale, bottom = this.TOP + this.ROWS;
    const stored = rows.map(format => numbers.round(format, number));
    const x = Math.min(Math.max(at(Math.min(Math.max(number, low), high)), this.LABEL), width - 4);
    return [
      ...rows.map((format, i) => svg.node('circle', {class: 'stored', cx: at(stored[i]), cy: this.middleOf(i),
        r: 4.5, fill: format.color})).filter((_, i) => stored[i] >= low && stored[i] <= high),
      svg.node('line', {class: 'marker', x1: x, x2: x, y1: this.TOP - 6, y2: bottom}),
      svg.node('text', {class: 'marker-text', x, y: 14, 'text-anchor': 'middle'}, numbers.text(number, 6)),
    ];
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

  drawAxis(sheet, bottom) {
    const {svg, numbers} = explorer, {at, ticks, log} = this.scale;
    for (const tick of ticks) {
      const x = at(tick), place = {class: 'tick', x, y: bottom + 18, 'text-anchor': 'middle'};
      const power = Math.log2(Math.abs(tick)), raised = log && tick && Math.abs(power) > 4;
      sheet.append(svg.node('line', {class: 'grid', x1: x, x2: x, y1: this.TOP, y2: bottom}),
        raised ? svg.power(tick < 0 ? '−2' : '2', power, place)
          : svg.node('text', place, numbers.text(tick, 4)));
    }
  },

  drawRow(sheet, format, y, width, chosen) {
    const {svg} = explorer, {at, low, high} = this.scale, top = y - this.row / 2;
    if (chosen) {
      sheet.append(svg.node('rect', {class: 'chosen', x: 0, y: top, width, height: this.row, rx: 6}));
    }
    sheet.append(svg.node('text', {class: chosen ? 'name on' : 'name', x: 8, y: y + 4}, format.label));
    const shown = format.levels.filter(level => level >= low && level <= high);
    const ticks = shown.map(level => `M${at(level).toFixed(1)} ${y - 8}v16`).join('');
    sheet.append(svg.node('path', {class: 'levels', d: ticks, stroke: format.color}));
  },

  /* The format and level under a place in the drawing, or null. */
  under(playground, event) {
    const box = playground.parts.line.getBoundingClientRect();
    const x = event.clientX - box.left, row = Math.floor((event.clientY - box.top - this.TOP) / this.row);
    const format = this.rows(playground)[row];
    if (!format || x < this.LABEL - 8) return null;
    const {at, low, high} = this.scale;
    const shown = format.levels.filter(level => level >= low && level <= high);
    if (!shown.length) return null;
    const distance = level => Math.abs(at(level) - x);
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
    place.addEventListener('pointerleave', () => tip.hidden = true);
    place.addEventListener('click', event => {
      const found = this.under(playground, event);
      if (!found) return;
      playground.state.name = found.format.name;
      playground.take(found.level);
    });
  },
};
