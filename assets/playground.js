/* The format playground: one number, the format that stores it, and its code. A click changes `state` and
   draws everything from it; nothing is asked of the server. */
explorer.playground = {
  /* `number` is what was typed or flipped, as a double: it stays when the format changes. */
  state: {name: 'float8_e4m3fn', number: 8, code: 0x50, view: 'linear'},

  start(element) {
    const find = selector => element.querySelector(selector);
    const facts = JSON.parse(find('.playground').dataset.facts);
    this.formats = Object.fromEntries(facts.map(format => [format.name, format]));
    this.parts = {
      picker: find('.format-picker'), entry: find('.number-entry'), problem: find('.problem'),
      bits: find('.bit-fields'), value: find('.value'), codes: find('.codes'), formula: find('.formula'),
      rounded: find('.rounded'), below: find('.step.below'), above: find('.step.above'),
      spacing: find('.spacing-here'), range: find('.range-here'), views: find('.line-view'),
      line: find('#number-line'), chart: find('#spacing'),
      rows: [...element.querySelectorAll('tr[data-format]')],
    };
    this.listen();
    this.fresh = {...this.state};
    this.read(new URLSearchParams(location.search));
    explorer.readers.push(query => this.read(query));
    explorer.svg.onWidth(this.parts.line, () => explorer.numberLine.draw(this));
    explorer.svg.onWidth(this.parts.chart, () => explorer.spacingChart.draw(this));
    const toy = find('#toy');
    explorer.svg.onWidth(toy, () => this.fit(toy));
  },

  /* Show what an address says: a format, and a number or a code of it. */
  read(query) {
    const {fresh} = this, {numbers} = explorer, code = query.get('code') || '';
    this.state.name = Object.hasOwn(this.formats, query.get('format')) ? query.get('format') : fresh.name;
    const typed = numbers.parse(/^0x/.test(code) ? code : query.get('number') ?? '', this.format);
    this.state.number = fresh.number;
    if (!typed.problem && typed.code === undefined) this.state.number = typed.number;
    this.settle('');
    if (!typed.problem && typed.code !== undefined) this.takeCode(typed.code);
    this.parts.entry.value = numbers.text(this.state.number, 17);
  },

  /* Put the state into the address: the code only where the number has another. */
  write() {
    const {name, number, code} = this.state, {fresh} = this, {numbers} = explorer;
    const own = numbers.encode(this.format, number) === code;
    explorer.note({
      format: name === fresh.name ? null : name,
      number: !own || number === fresh.number ? null : Object.is(number, -0) ? '-0' : String(number),
      code: own ? null : '0x' + code.toString(16).toUpperCase(),
    });
  },

  /* Switches as wide as leaves a byte on one line. */
  fit(toy) {
    const room = this.parts.bits.clientWidth;
    toy.classList.toggle('narrow', room < 460);
    toy.style.setProperty('--bit', Math.min(40, (room - 30) / 8) + 'px');
  },

  get format() { return this.formats[this.state.name]; },

  listen() {
    const {picker, entry, bits, below, above, views, rows} = this.parts;
    picker.addEventListener('change', () => this.takeFormat(picker.value));
    entry.addEventListener('input', () => this.typed(false));
    entry.addEventListener('change', () => this.typed(true));
    entry.addEventListener('keydown', event => { if (event.key === 'Enter') this.typed(true); });
    bits.addEventListener('click', event => this.flip(event.target.closest('button')));
    bits.addEventListener('keydown', event => this.moveInBits(event));
    for (const step of [below, above]) step.addEventListener('click', () => this.take(Number(step.value)));
    for (const row of rows) {
      row.querySelector('button').addEventListener('click', () => this.takeFormat(row.dataset.format));
    }
    views.addEventListener('click', event => {
      if (!event.target.dataset.view) return;
      this.state.view = event.target.dataset.view;
      this.draw();
    });
    explorer.numberLine.listen(this);
  },

  /* Another format keeps the number, which is rounded anew from what was typed. */
  takeFormat(name) {
    this.state.name = name;
    this.settle('');
  },

  /* A number from the line or the neighbours; the entry shows it. */
  take(number) {
    this.state.number = number;
    this.parts.entry.value = explorer.numbers.text(number, 17);
    this.settle('');
  },

  /* Read the entry. While typing, errors are not shown. */
  typed(finished) {
    const typed = explorer.numbers.parse(this.parts.entry.value, this.format);
    if (typed.problem) {
      if (finished) this.refuse(typed.problem);
      return;
    }
    if (typed.code === undefined) {
      this.state.number = typed.number;
      this.settle('');
    } else {
      this.takeCode(typed.code);
    }
  },

  takeCode(code) {
    this.state.code = code;
    this.state.number = explorer.numbers.decode(this.format, code);
    this.refuse('');
    this.draw();
    this.write();
  },

  /* The code of the number; a format without NaN shows its zero and a message. */
  settle(problem) {
    const {numbers} = explorer, code = numbers.encode(this.format, this.state.number);
    this.state.code = code ?? numbers.encode(this.format, 0);
    if (code === null) {
      const shown = numbers.text(numbers.decode(this.format, this.state.code));
      problem = `Number: ${this.format.label} has no code for NaN; the bits show ${shown}.`;
    }
    this.refuse(problem);
    this.draw();
    this.write();
  },

  /* Say what is wrong beside the entry, which keeps its text; nothing else changes. */
  refuse(problem) {
    this.parts.problem.textContent = problem;
    this.parts.entry.setAttribute('aria-invalid', problem ? 'true' : 'false');
  },

  flip(bit) {
    if (!bit) return;
    const weight = 2 ** Number(bit.dataset.bit), on = bit.getAttribute('aria-checked') === 'true';
    const code = this.state.code + (on ? -weight : weight);
    this.focusBit(bit);
    if (code >= this.format.count) {
      return this.refuse(`${this.format.label} uses only the codes 0 to ${this.format.count - 1}.`);
    }
    this.takeCode(code);
    this.parts.entry.value = explorer.numbers.text(this.state.number, 17);
  },

  moveInBits(event) {
    const bits = [...this.parts.bits.querySelectorAll('button')], at = bits.indexOf(event.target);
    const next = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bits.length - 1}[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    this.focusBit(bits[(next + bits.length) % bits.length]);
  },

  focusBit(bit) {
    this.parts.bits.querySelectorAll('button').forEach(other => other.tabIndex = -1);
    bit.tabIndex = 0;
    bit.focus({preventScroll: true});
  },

  draw() {
    this.parts.picker.value = this.state.name;
    this.drawBits();
    this.drawValue();
    this.drawTable();
    for (const choice of this.parts.views.children) {
      choice.setAttribute('aria-pressed', String(choice.dataset.view === this.state.view));
    }
    explorer.numberLine.draw(this);
    explorer.spacingChart.mark(this);
  },

  /* The switches are made once for a format, and only their digits change afterwards. */
  drawBits() {
    const {bits} = this.parts, format = this.format;
    if (bits.dataset.format !== format.name) {
      bits.dataset.format = format.name;
      bits.classList.toggle('many', format.bits > 8);
      bits.replaceChildren(...format.fields.map(field => this.fieldOf(format, field)));
      bits.querySelector('button').tabIndex = 0;
    }
    const digits = explorer.numbers.binary(format, this.state.code);
    for (const bit of bits.querySelectorAll('button')) {
      const digit = digits[format.bits - 1 - Number(bit.dataset.bit)];
      bit.firstChild.data = digit;
      bit.setAttribute('aria-checked', String(digit === '1'));
    }
    const captions = explorer.anatomy.captions(format, this.state.code);
    bits.querySelectorAll('.caption').forEach((caption, i) => caption.textContent = captions[i]);
  },

  /* A field's switches in runs of four from its low end, over its caption. */
  fieldOf(format, field) {
    const group = document.createElement('div'), row = document.createElement('div');
    group.className = 'bit-field ' + field.name;
    row.className = 'nibbles';
    let nibble = null;
    for (let place = field.high; place >= field.low; place--) {
      if (!nibble || (place - field.low + 1) % 4 === 0) {
        nibble = row.appendChild(document.createElement('span'));
        nibble.className = 'nibble';
      }
      nibble.append(this.bitOf(format, field, place));
    }
    const caption = document.createElement('div');
    caption.className = 'caption';
    group.append(row, caption);
    return group;
  },

  bitOf(format, field, place) {
    const bit = document.createElement('button'), weight = explorer.anatomy.weight(format, field, place);
    const small = document.createElement('small');
    bit.type = 'button';
    bit.className = 'bit ' + field.name;
    bit.dataset.bit = place;
    bit.tabIndex = -1;
    bit.setAttribute('role', 'switch');
    bit.setAttribute('aria-label', `bit ${place}, ${explorer.anatomy.fieldName(format, field)}`
      + (weight ? `, weight ${weight}` : ''));
    small.textContent = weight;
    bit.append('0', small);
    return bit;
  },

  drawValue() {
    const {numbers, anatomy} = explorer, {code, number} = this.state, format = this.format, p = this.parts;
    const value = numbers.decode(format, code), [below, above] = numbers.neighbours(format, code);
    p.value.textContent = numbers.text(value);
    p.codes.textContent = `${numbers.hex(format, code)}`;
    p.formula.replaceChildren(...anatomy.formula(format, code));
    p.rounded.textContent = anatomy.rounding(format, number, value);
    for (const [step, neighbour] of [[p.below, below], [p.above, above]]) {
      step.textContent = neighbour === null ? 'none' : numbers.text(neighbour, format.bits > 16 ? 9 : 6);
      step.value = neighbour;
      step.disabled = neighbour === null;
    }
    const gap = above === null ? below === null ? null : value - below : above - value;
    const share = gap !== null && value ? ` · ${numbers.text(100 * gap / Math.abs(value), 2)} %` : '';
    p.spacing.textContent = gap === null ? 'none' : numbers.text(gap, 3) + share;
    p.range.textContent = anatomy.range(format);
  },

  drawTable() {
    const {numbers} = explorer, {name, number} = this.state;
    for (const row of this.parts.rows) {
      const format = this.formats[row.dataset.format], code = numbers.encode(format, number);
      const value = code === null ? null : numbers.decode(format, code);
      const [, stores, error, hex] = row.children;
      row.classList.toggle('on', format.name === name);
      stores.textContent = code === null ? 'no NaN' : numbers.text(value, 6);
      error.textContent = explorer.anatomy.relativeError(value, number);
      hex.textContent = code === null ? '' : numbers.hex(format, code);
    }
  },
};
