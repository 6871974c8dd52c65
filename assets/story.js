/* The guided story: steps that share one row, one picture and one line of numbers. Moving anything quantizes
   the row again and draws it, in the browser alone. */
explorer.story = {
  at: 0,

  start(element) {
    const find = selector => element.querySelector(selector);
    this.data = JSON.parse(find('.story').dataset.story);
    this.parts = {
      steps: [...element.querySelectorAll('.steps-list button')],
      words: [...element.querySelectorAll('article')],
      sliders: [...element.querySelectorAll('[data-slider]')],
      options: find('.options'), back: find('.back'), next: find('.next'),
      picture: find('#story-picture'), curve: find('#story-curve'),
      numbers: [...element.querySelectorAll('[data-number]')],
    };
    this.listen();
    explorer.svg.onWidth(this.parts.picture, () => this.draw());
    this.read(new URLSearchParams(location.search));
    explorer.readers.push(query => this.read(query));
  },

  /* Open the step that an address says, counted from 1. */
  read(query) {
    const at = Number(query.get('step') ?? 1) - 1;
    this.open(at in this.data.steps ? at : 0);
  },

  /* Open a step by hand: the address follows. */
  turn(at) {
    this.open(at);
    explorer.note({step: at ? at + 1 : null});
  },

  listen() {
    const {steps, sliders, options, back, next, picture, curve} = this.parts;
    steps.forEach((step, i) => step.addEventListener('click', () => this.turn(i)));
    back.addEventListener('click', () => this.turn(this.at - 1));
    next.addEventListener('click', () => this.at + 1 < steps.length ? this.turn(this.at + 1)
      : document.getElementById('learn-training')?.scrollIntoView({block: 'start'}));
    for (const label of sliders) {
      label.querySelector('input').addEventListener('input', event => {
        this.moved[label.dataset.slider] = Number(event.target.value);
        this.draw();
      });
    }
    options.addEventListener('click', event => {
      const option = event.target.closest('button');
      if (option) { this.chosen = Number(option.value); this.draw(); }
    });
    this.dragOn(picture, event => event.target.closest('.handle'), (x, y) => this.dragTo(y));
    this.dragOn(curve, () => true, x => this.clipTo(x));
  },

  /* Call `move` with the place in `area` while a pointer that went down on a `grip` moves. */
  dragOn(area, grip, move) {
    const to = event => {
      const box = area.getBoundingClientRect();
      move(event.clientX - box.left, event.clientY - box.top);
    };
    area.addEventListener('pointerdown', event => {
      if (!grip(event)) return;
      event.preventDefault();
      area.setPointerCapture(event.pointerId);
      to(event);
    });
    area.addEventListener('pointermove', event => {
      if (area.hasPointerCapture(event.pointerId)) to(event);
    });
  },

  dragTo(y) {
    const [least, most] = this.limits();
    const value = explorer.storyPicture.valueAt(y) - (this.moved.shift ?? 0);
    this.moved.outlier = Math.min(Math.max(Math.round(value * 50) / 50, least), most);
    this.draw();
  },

  clipTo(x) {
    this.moved.clip = Math.round(100 * Math.min(Math.max(explorer.storyCurve.factorAt(x), 0.2), 1)) / 100;
    this.draw();
  },

  /* Range of the outlier in this step. */
  limits() {
    const [low, high] = this.step.reach;
    return [Math.ceil(50 * (low + 0.1)) / 50, Math.floor(50 * (high - 0.1 - (this.moved.shift ?? 0))) / 50];
  },

  get step() { return this.data.steps[this.at]; },

  open(at) {
    this.at = at;
    this.moved = {...this.step.sliders};
    this.chosen = this.step.chosen;
    const {steps, words, sliders, options, back, next} = this.parts;
    steps.forEach((step, i) => {
      if (i === at) step.setAttribute('aria-current', 'step'); else step.removeAttribute('aria-current');
    });
    for (const article of words) article.hidden = Number(article.dataset.step) !== at;
    for (const label of sliders) label.hidden = !(label.dataset.slider in this.moved);
    options.replaceChildren(...this.step.choices.map((choice, i) => this.option(choice, i)));
    back.disabled = at === 0;
    next.textContent = at + 1 < steps.length ? 'Next' : 'On to training';
    this.draw();
  },

  option(choice, i) {
    const button = document.createElement('button');
    button.type = 'button';
    button.value = i;
    for (const name of ['label', 'bits', 'sqnr', 'bar']) {
      button.append(Object.assign(document.createElement('span'), {className: name}));
    }
    button.firstChild.textContent = choice.label;
    return button;
  },

  /* The row as the sliders have it, in float32. */
  row() {
    const {row, outlierAt} = this.data, {outlier, shift = 0} = this.moved;
    return row.map((value, i) => Math.fround((i === outlierAt ? outlier : value) + shift));
  },

  /* The scheme of this step, under one of its choices. */
  scheme(choice = this.chosen) {
    const named = {...this.step.scheme, ...this.step.choices[choice]?.changes, ...('clip' in this.moved
      ? {clip: this.moved.clip} : {})};
    const {formats} = this.data;
    return {...named, format: formats[named.format], scaleFormat: formats[named.scaleFormat]};
  },

  draw() {
    if (!this.parts.picture.clientWidth) return;
    const row = this.row(), scheme = this.scheme(), stored = explorer.row.quantize(row, scheme);
    explorer.storyPicture.draw(this.parts.picture, this.step.reach, row, stored, this.data.outlierAt);
    this.parts.curve.hidden = !('clip' in this.moved);
    if ('clip' in this.moved) explorer.storyCurve.draw(this.parts.curve, row, scheme);
    this.drawSliders();
    this.drawOptions(row);
    this.drawNumbers(row, scheme, stored.restored);
  },

  drawSliders() {
    for (const label of this.parts.sliders) {
      const value = this.moved[label.dataset.slider], input = label.querySelector('input');
      if (value === undefined) continue;
      if (label.dataset.slider === 'outlier') [input.min, input.max] = this.limits();
      input.value = value;
      label.querySelector('output').textContent = label.dataset.slider === 'clip'
        ? `${Math.round(100 * value)} % of the largest` : explorer.numbers.text(value, 3);
    }
  },

  /* Result of each choice for the current row. */
  drawOptions(row) {
    [...this.parts.options.children].forEach((button, i) => {
      const scheme = this.scheme(i), db = explorer.row.sqnr(row, explorer.row.quantize(row, scheme).restored);
      const [, bits, sqnr, bar] = button.children;
      button.setAttribute('aria-pressed', String(i === this.chosen));
      bits.textContent = explorer.numbers.text(explorer.row.bits(row, scheme), 4) + ' bits';
      sqnr.textContent = this.decibels(db);
      bar.style.width = Math.min(Math.max(db / 45, 0.02), 1) * 100 + '%';
    });
  },

  drawNumbers(row, scheme, restored) {
    const others = values => values.filter((_, i) => i !== this.data.outlierAt);
    const errors = row.map((value, i) => Math.abs(restored[i] - value));
    const zeroed = row.filter((value, i) => value && !restored[i]).length;
    const shown = {
      sqnr: this.decibels(explorer.row.sqnr(row, restored)),
      others: this.decibels(explorer.row.sqnr(others(row), others(restored))),
      zeroed: `${zeroed} of ${row.length}`,
      largest: explorer.numbers.text(Math.max(...errors), 3),
      bits: explorer.numbers.text(explorer.row.bits(row, scheme), 4),
    };
    for (const number of this.parts.numbers) number.textContent = shown[number.dataset.number];
  },

  decibels(db) { return db === Infinity ? 'exact' : db.toFixed(1).replace('-', '−') + ' dB'; },
};

/* The row as stems from zero: what was, what is stored, the error between, and each block's levels. */
explorer.storyPicture = {
  HEIGHT: 330, LEFT: 34, RIGHT: 8, TOP: 12, BOTTOM: 14,

  draw(place, [low, high], row, stored, outlierAt) {
    const {svg, numbers} = explorer, label = `${row.length} numbers and how they are stored`;
    const {sheet, width} = svg.sheet(place, this.HEIGHT, label);
    const step = (width - this.LEFT - this.RIGHT) / row.length;
    this.low = low;
    this.high = high;
    const x = i => this.LEFT + (i + 0.5) * step, y = value => this.y(value);
    for (const tick of svg.ticks(low, high, 6)) {
      sheet.append(svg.node('text', {class: 'tick', x: this.LEFT - 8, y: y(tick) + 4, 'text-anchor': 'end'},
        numbers.text(tick, 3)));
    }
    for (const block of stored.blocks) this.drawBlock(sheet, block, step, width);
    const zero = {x1: this.LEFT, x2: width - this.RIGHT, y1: y(0), y2: y(0)};
    sheet.append(svg.node('line', {class: 'zero', ...zero}));
    const lines = (from, to) => row.map((_, i) => `M${x(i).toFixed(1)} ${y(from(i)).toFixed(1)}`
      + `V${y(to(i)).toFixed(1)}`).join('');
    sheet.append(svg.node('path', {class: 'stem', d: lines(() => 0, i => row[i])}),
      svg.node('path', {class: 'error', d: lines(i => row[i], i => stored.restored[i])}));
    row.forEach((value, i) => {
      const half = Math.min(step * 0.34, 9);
      sheet.append(svg.node('circle', {class: 'was', cx: x(i), cy: y(value), r: Math.min(step * 0.24, 4.5)}),
        svg.node('line', {class: 'now', x1: x(i) - half, x2: x(i) + half, y1: y(stored.restored[i]),
          y2: y(stored.restored[i])}));
    });
    sheet.append(svg.node('circle', {class: 'handle', cx: x(outlierAt), cy: y(row[outlierAt]), r: 14}));
  },

  y(value) {
    const room = this.HEIGHT - this.TOP - this.BOTTOM;
    return this.TOP + room * (this.high - value) / (this.high - this.low);
  },

  valueAt(y) {
    return this.high - (y - this.TOP) * (this.high - this.low) / (this.HEIGHT - this.TOP - this.BOTTOM);
  },

  /* Levels as faint lines over the block's width, as far as they can be told apart. */
  drawBlock(sheet, block, step, width) {
    const {svg} = explorer, left = this.LEFT + block.start * step;
    const right = Math.min(left + block.codes.length * step, width - this.RIGHT);
    const shown = block.levels.filter(level => level >= this.low && level <= this.high);
    const apart = Math.abs(this.y(0) - this.y(shown.length > 1 ? shown.at(-1) - shown.at(-2) : 1));
    const lines = shown.map(level => `M${(left + 2).toFixed(1)} ${this.y(level).toFixed(1)}`
      + `H${(right - 2).toFixed(1)}`).join('');
    sheet.append(svg.node('path', {class: apart < 3 ? 'levels dense' : 'levels', d: lines}));
    if (block.start) {
      sheet.append(svg.node('line', {class: 'edge', x1: left, x2: left, y1: this.TOP,
        y2: this.HEIGHT - this.BOTTOM}));
    }
  },
};

/* SQNR against where the range ends, the best end marked as the MSE calibrator finds it. */
explorer.storyCurve = {
  HEIGHT: 128, LEFT: 34, RIGHT: 22, TOP: 22, BOTTOM: 24,

  draw(place, row, scheme) {
    const {svg} = explorer, label = 'SQNR against the end of the range';
    const {sheet, width} = svg.sheet(place, this.HEIGHT, label);
    const factors = Array.from({length: 81}, (_, i) => (20 + i) / 100);
    const sqnr = factors.map(clip => explorer.row.sqnr(row,
      explorer.row.quantize(row, {...scheme, clip}).restored));
    const low = Math.min(...sqnr) - 1, high = Math.max(...sqnr) + 1, bottom = this.HEIGHT - this.BOTTOM;
    this.width = width;
    const x = factor => this.LEFT + (width - this.LEFT - this.RIGHT) * (factor - 0.2) / 0.8;
    const y = db => bottom - (bottom - this.TOP) * (db - low) / (high - low);
    for (const factor of [0.2, 0.4, 0.6, 0.8, 1]) {
      const at = {x: x(factor), y: this.HEIGHT - 6, 'text-anchor': 'middle'};
      sheet.append(svg.node('text', {class: 'tick', ...at}, Math.round(100 * factor) + ' %'));
    }
    const points = factors.map((factor, i) => `${x(factor).toFixed(1)} ${y(sqnr[i]).toFixed(1)}`);
    sheet.append(svg.node('path', {class: 'curve', d: 'M' + points.join('L')}));
    const best = sqnr.indexOf(Math.max(...sqnr)), now = Math.round(100 * (scheme.clip - 0.2));
    sheet.append(svg.node('circle', {class: 'best', cx: x(factors[best]), cy: y(sqnr[best]), r: 5}),
      svg.node('text', {class: 'name', x: Math.min(Math.max(x(factors[best]), 70), width - 70),
        y: y(sqnr[best]) - 9, 'text-anchor': 'middle'}, `best: ${Math.round(100 * factors[best])} %`),
      svg.node('line', {class: 'marker', x1: x(scheme.clip), x2: x(scheme.clip), y1: this.TOP, y2: bottom}),
      svg.node('circle', {class: 'here', cx: x(scheme.clip), cy: y(sqnr[now]), r: 6}));
  },

  factorAt(x) { return 0.2 + 0.8 * (x - this.LEFT) / (this.width - this.LEFT - this.RIGHT); },
};
