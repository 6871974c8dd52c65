/* The guided story: steps that share one row, one picture and one line of numbers. Moving anything quantizes
   the row again and draws it, in the browser alone. */
class Story {
  constructor(element) {
    const find = selector => element.querySelector(selector);
    this.data = JSON.parse(find('.story').dataset.story);
    this.parts = {
      steps: element.querySelectorAll('.steps-list button'), words: element.querySelectorAll('article'),
      sliders: element.querySelectorAll('[data-slider]'), options: find('.options'), back: find('.back'),
      next: find('.next'), picture: find('#story-picture'), curve: find('#story-curve'),
      numbers: element.querySelectorAll('[data-number]'),
    };
    this.listen();
    explorer.svg.onWidth(this.parts.picture, () => this.draw());
  }

  get step() { return this.data.steps[this.at]; }

  listen() {
    const {sliders, options, next, picture, curve} = this.parts;
    next.addEventListener('click', () => next.dataset.set === '{}' && explorer.openSection('training'));
    for (const label of sliders) {
      label.querySelector('input').addEventListener('input', event => {
        this.move(label.dataset.slider, Number(event.target.value));
      });
    }
    options.addEventListener('click', event => {
      const option = event.target.closest('button');
      if (option) { this.chosen = Number(option.value); this.draw(); }
    });
    this.dragOn(picture, event => event.target.closest('.handle'), (x, y) => {
      const [least, most] = this.limits(), value = this.scale.valueAt(y) - (this.moved.shift ?? 0);
      this.move('outlier', Math.min(Math.max(Math.round(value * 50) / 50, least), most));
    });
    this.dragOn(curve, () => true, x => {
      this.move('clip', Math.round(100 * Math.min(Math.max(this.factorAt(x), 0.2), 1)) / 100);
    });
  }

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
  }

  move(slider, value) {
    this.moved[slider] = value;
    this.draw();
  }

  /* Range of the outlier in this step. */
  limits() {
    const [low, high] = this.step.reach;
    return [Math.ceil(50 * (low + 0.1)) / 50, Math.floor(50 * (high - 0.1 - (this.moved.shift ?? 0))) / 50];
  }

  /* Open the step that an address says, counted from 1. */
  read({step}) {
    const last = this.data.steps.length - 1, at = Number(step || 1) - 1, {steps, words, sliders} = this.parts;
    this.at = at in this.data.steps ? at : 0;
    if (this.at !== at) {
      explorer.notice(`The link's step is none of 1 to ${last + 1}: the first is shown.`);
      explorer.note({step: null});
    }
    this.moved = {...this.step.sliders};
    this.chosen = this.step.chosen;
    steps.forEach((button, i) => {
      if (i === this.at) button.setAttribute('aria-current', 'step');
      else button.removeAttribute('aria-current');
    });
    for (const article of words) article.hidden = Number(article.dataset.step) !== this.at;
    for (const label of sliders) label.hidden = !(label.dataset.slider in this.moved);
    const empty = ['bits', 'sqnr', 'bar'].map(name => `<span class="${name}"></span>`).join('');
    this.parts.options.innerHTML = this.step.choices.map(({label}, i) =>
      `<button type="button" value="${i}"><span>${label}</span>${empty}</button>`).join('');
    const {back, next} = this.parts, to = i => JSON.stringify({step: i ? String(i + 1) : ''});
    back.disabled = !this.at;
    back.dataset.set = to(Math.max(this.at - 1, 0));
    next.dataset.set = this.at < last ? to(this.at + 1) : '{}';
    next.textContent = this.at < last ? 'Next' : 'On to training';
    this.draw();
  }

  /* The row as the sliders have it, in float32. */
  row() {
    const {row, outlierAt} = this.data, {outlier, shift = 0} = this.moved;
    return row.map((value, i) => Math.fround((i === outlierAt ? outlier : value) + shift));
  }

  /* The scheme of this step, under one of its choices. */
  scheme(choice = this.chosen) {
    const {formats} = this.data, {clip = 1} = this.moved;
    const named = {...this.step.scheme, ...this.step.choices[choice]?.changes, clip};
    return {...named, format: formats[named.format], scaleFormat: formats[named.scaleFormat]};
  }

  /* --- drawing --------------------------------------------------------------------------------------- */

  draw() {
    const {picture, curve} = this.parts;
    if (!this.moved || !picture.clientWidth) return;
    const row = this.row(), scheme = this.scheme(), stored = explorer.row.quantize(row, scheme);
    this.drawPicture(picture, row, stored);
    curve.hidden = !('clip' in this.moved);
    if (!curve.hidden) this.drawCurve(curve, row, scheme);
    this.drawSliders();
    this.drawOptions(row);
    this.drawNumbers(row, scheme, stored.restored);
  }

  drawSliders() {
    for (const label of this.parts.sliders) {
      const value = this.moved[label.dataset.slider], input = label.querySelector('input');
      if (value === undefined) continue;
      if (label.dataset.slider === 'outlier') [input.min, input.max] = this.limits();
      input.value = value;
      label.querySelector('.value').textContent = label.dataset.slider === 'clip'
        ? `${Math.round(100 * value)} % of the largest` : explorer.numbers.text(value, 3);
    }
  }

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
  }

  drawNumbers(row, scheme, restored) {
    const others = values => values.filter((_, i) => i !== this.data.outlierAt);
    const shown = {
      sqnr: this.decibels(explorer.row.sqnr(row, restored)),
      others: this.decibels(explorer.row.sqnr(others(row), others(restored))),
      zeroed: `${row.filter((value, i) => value && !restored[i]).length} of ${row.length}`,
      largest: explorer.numbers.text(Math.max(...row.map((value, i) => Math.abs(restored[i] - value))), 3),
      bits: explorer.numbers.text(explorer.row.bits(row, scheme), 4),
    };
    for (const number of this.parts.numbers) number.textContent = shown[number.dataset.number];
  }

  decibels(db) { return db === Infinity ? 'exact' : db.toFixed(1).replace('-', '−') + ' dB'; }

  /* The row as stems from zero: what was, what is stored, the error between, and each block's levels. */
  drawPicture(place, row, {blocks, restored}) {
    const {svg, numbers} = explorer, HEIGHT = 330, LEFT = 34, RIGHT = 8, TOP = 12, BOTTOM = 14;
    const [low, high] = this.step.reach, tall = HEIGHT - TOP - BOTTOM, width = svg.widthOf(place);
    const wide = (width - LEFT - RIGHT) / row.length, half = Math.min(wide * 0.34, 9);
    const x = i => LEFT + (i + 0.5) * wide, y = value => TOP + tall * (high - value) / (high - low);
    this.scale = {valueAt: at => high - (at - TOP) * (high - low) / tall};
    const lines = (from, to) => row.map((_, i) => `M${x(i)} ${y(from(i))}V${y(to(i))}`).join('');
    const ticks = svg.ticks(low, high, 6).map(tick =>
      `<text class="tick" x="${LEFT - 8}" y="${y(tick) + 4}" text-anchor="end">${numbers.text(tick, 3)}</text>`);
    // Levels are faint lines over the block's width, fainter where they can hardly be told apart.
    const grids = blocks.map(({start, codes, levels}) => {
      const left = LEFT + start * wide, right = Math.min(left + codes.length * wide, width - RIGHT);
      const shown = levels.filter(level => level >= low && level <= high);
      const apart = Math.abs(y(0) - y(shown.length > 1 ? shown.at(-1) - shown.at(-2) : 1));
      const edge = `<line class="edge" x1="${left}" x2="${left}" y1="${TOP}" y2="${HEIGHT - BOTTOM}"/>`;
      return `<path class="levels${apart < 3 ? ' dense' : ''}"
        d="${shown.map(level => `M${left + 2} ${y(level)}H${right - 2}`).join('')}"/>${start ? edge : ''}`;
    });
    const now = i => `<line class="now" x1="${x(i) - half}" x2="${x(i) + half}" y1="${y(restored[i])}"
      y2="${y(restored[i])}"/>`;
    const was = (value, i) => `<circle class="was" cx="${x(i)}" cy="${y(value)}" r="${Math.min(wide * 0.24, 4.5)}"/>`;
    svg.show(place, HEIGHT, `${row.length} numbers and how they are stored`, ticks.join('') + grids.join('')
      + `<line class="zero" x1="${LEFT}" x2="${width - RIGHT}" y1="${y(0)}" y2="${y(0)}"/>
        <path class="stem" d="${lines(() => 0, i => row[i])}"/>
        <path class="error" d="${lines(i => row[i], i => restored[i])}"/>`
      + row.map((value, i) => was(value, i) + now(i)).join('')
      + `<circle class="handle" cx="${x(this.data.outlierAt)}" cy="${y(row[this.data.outlierAt])}" r="14"/>`);
  }

  /* SQNR against where the range ends, the best end marked as the MSE calibrator finds it. */
  drawCurve(place, row, scheme) {
    const {svg} = explorer, HEIGHT = 128, LEFT = 34, RIGHT = 22, TOP = 22, bottom = HEIGHT - 24;
    const factors = Array.from({length: 81}, (_, i) => (20 + i) / 100), width = svg.widthOf(place);
    const restored = clip => explorer.row.quantize(row, {...scheme, clip}).restored;
    const sqnr = factors.map(clip => explorer.row.sqnr(row, restored(clip)));
    const low = Math.min(...sqnr) - 1, high = Math.max(...sqnr) + 1, wide = width - LEFT - RIGHT;
    const x = factor => LEFT + wide * (factor - 0.2) / 0.8;
    const y = db => bottom - (bottom - TOP) * (db - low) / (high - low);
    this.factorAt = at => 0.2 + 0.8 * (at - LEFT) / wide;
    const best = sqnr.indexOf(Math.max(...sqnr)), [bestX, bestY] = [x(factors[best]), y(sqnr[best])];
    const here = x(scheme.clip), hereY = y(sqnr[Math.round(100 * (scheme.clip - 0.2))]);
    const ticks = [0.2, 0.4, 0.6, 0.8, 1].map(factor => `<text class="tick" x="${x(factor)}" y="${HEIGHT - 6}"
      text-anchor="middle">${Math.round(100 * factor)} %</text>`);
    svg.show(place, HEIGHT, 'SQNR against the end of the range', `${ticks.join('')}
      <path class="curve" d="M${factors.map((factor, i) => `${x(factor)} ${y(sqnr[i])}`).join('L')}"/>
      <circle class="best" cx="${bestX}" cy="${bestY}" r="5"/>
      <text class="name" x="${Math.min(Math.max(bestX, 70), width - 70)}" y="${bestY - 9}"
        text-anchor="middle">best: ${Math.round(100 * factors[best])} %</text>
      <line class="marker" x1="${here}" x2="${here}" y1="${TOP}" y2="${bottom}"/>
      <circle class="here" cx="${here}" cy="${hereY}" r="6"/>`);
  }
}
explorer.story = section => explorer.chapter(section, Story);
