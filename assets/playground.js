/* The format playground: one number, the format that stores it, and its code. A click changes `state` and
   draws everything from it; nothing is asked of the server. */
class Playground {
  static USUAL = {name: 'float8_e4m3fn', number: 8};

  /* `number` is what was typed or flipped, as a double: it stays when the format changes. */
  state = {...Playground.USUAL, code: 0x50, view: 'linear'};

  constructor(element) {
    const find = selector => element.querySelector(selector);
    const facts = JSON.parse(find('.playground').dataset.facts);
    this.formats = Object.fromEntries(facts.map(format => [format.name, format]));
    this.parts = {
      picker: find('#format-picker'), entry: find('#number-entry'), problem: find('.problem'),
      bits: find('.bit-fields'), value: find('#toy-value'), codes: find('.codes'), formula: find('.formula'),
      rounded: find('.rounded'), steps: element.querySelectorAll('.step'), spacing: find('.spacing-here'),
      range: find('.range-here'), views: find('.line-view'), line: find('#number-line'),
      chart: find('#spacing'), rows: element.querySelectorAll('tr[data-format]'),
    };
    this.listen(element);
    explorer.svg.onWidth(this.parts.line, () => explorer.numberLine.draw(this));
    explorer.svg.onWidth(this.parts.chart, () => explorer.spacingChart.draw(this));
  }

  get format() { return this.formats[this.state.name]; }

  listen(element) {
    const {picker, entry, bits, views} = this.parts;
    picker.addEventListener('change', () => this.takeFormat(picker.value));
    entry.addEventListener('input', () => this.type(entry.value) || this.write());
    entry.addEventListener('change', () => this.refuse(this.type(entry.value) || this.lacking));
    bits.addEventListener('keydown', event => this.moveInBits(event));
    element.addEventListener('click', ({target}) => {
      const button = target.closest('button');
      if (!button) return;
      if (button.matches('.bit')) this.flip(button);
      else if (button.matches('.step')) this.take(Number(button.value));
      else if (button.matches('.take')) this.takeFormat(button.closest('tr').dataset.format);
      else if (button.parentElement === views) {
        this.state.view = button.dataset.view;
        this.draw();
      }
    });
    explorer.numberLine.listen(this);
  }

  /* --- what is shown --------------------------------------------------------------------------------- */

  /* Show what an address says: a format, and a number or a code of it; say what it says in vain. */
  read({format, number, code}) {
    const {USUAL} = Playground, known = !format || Object.hasOwn(this.formats, format);
    this.state.name = known && format || USUAL.name;
    const said = code ? code.replace(/^(?!0x)/, '0x') : number || String(USUAL.number), refused = this.type(said);
    if (refused) this.show(USUAL.number);
    this.parts.entry.value = explorer.numbers.text(this.state.number, 17);
    const lost = [!known && `The link's format is unknown: ${this.format.label} is shown.`,
      refused && `The link's number is left out. ${refused}`].filter(Boolean).join(' ');
    if (lost) this.write();
    this.refuse(lost || this.lacking);
  }

  /* Put the state into the address: the code only where the number has another. */
  write() {
    const {name, number, code} = this.state, {USUAL} = Playground;
    const own = explorer.numbers.encode(this.format, number) === code;
    explorer.note({
      format: name === USUAL.name ? null : name,
      number: !own || number === USUAL.number ? null : Object.is(number, -0) ? '-0' : String(number),
      code: own ? null : '0x' + code.toString(16).toUpperCase(),
    });
  }

  /* Another format keeps the number, which is rounded anew from what was typed. */
  takeFormat(name) {
    this.state.name = name;
    this.show(this.state.number);
    this.write();
  }

  /* A number from the line or the neighbours; the entry shows it. */
  take(number) {
    this.show(number);
    this.parts.entry.value = explorer.numbers.text(number, 17);
    this.write();
  }

  /* Show what `text` means, a number or a code; else nothing changes, and the words say what is accepted. */
  type(text) {
    const typed = explorer.numbers.parse(text, this.format);
    if (!typed.problem) this.show(typed.number, typed.code);
    return typed.problem;
  }

  /* Show a number, or the code that it is given by. A format without NaN shows its zero, and says so. */
  show(number, code) {
    const {numbers} = explorer, own = code ?? numbers.encode(this.format, number);
    this.state.code = own ?? numbers.encode(this.format, 0);
    this.state.number = code === undefined ? number : numbers.decode(this.format, code);
    this.lacking = own === null ? `Number: ${this.format.label} has no code for NaN; the bits show `
      + `${numbers.text(numbers.decode(this.format, this.state.code))}.` : '';
    this.refuse(this.lacking);
    this.draw();
  }

  /* Say what is wrong beside the entry, which keeps its text; nothing else changes. */
  refuse(problem) {
    this.parts.problem.textContent = problem;
    this.parts.entry.setAttribute('aria-invalid', problem ? 'true' : 'false');
  }

  /* --- bits ------------------------------------------------------------------------------------------ */

  flip(bit) {
    const weight = 2 ** Number(bit.dataset.bit), on = bit.getAttribute('aria-checked') === 'true';
    const code = this.state.code + (on ? -weight : weight);
    this.focusBit(bit);
    if (code >= this.format.count) {
      return this.refuse(`${this.format.label} uses only the codes 0 to ${this.format.count - 1}.`);
    }
    this.show(0, code);
    this.parts.entry.value = explorer.numbers.text(this.state.number, 17);
    this.write();
  }

  moveInBits(event) {
    const bits = [...this.parts.bits.querySelectorAll('button')], at = bits.indexOf(event.target);
    const next = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: bits.length - 1}[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    this.focusBit(bits[(next + bits.length) % bits.length]);
  }

  focusBit(bit) {
    for (const other of this.parts.bits.querySelectorAll('button')) other.tabIndex = other === bit ? 0 : -1;
    if (bit !== document.activeElement) bit.focus({preventScroll: true});
  }

  /* --- drawing --------------------------------------------------------------------------------------- */

  draw() {
    this.parts.picker.value = this.state.name;
    this.drawBits();
    this.drawValue();
    for (const row of this.parts.rows) this.drawRow(row);
    for (const choice of this.parts.views.children) {
      choice.setAttribute('aria-pressed', String(choice.dataset.view === this.state.view));
    }
    explorer.numberLine.draw(this);
    explorer.spacingChart.draw(this);
  }

  /* The switches are made once for a format, and only their digits change afterwards. */
  drawBits() {
    const {bits} = this.parts, {format} = this, {code} = this.state;
    if (bits.dataset.format !== format.name) {
      bits.dataset.format = format.name;
      bits.classList.toggle('many', format.bits > 8);
      bits.innerHTML = format.fields.map(field => this.fieldOf(field)).join('');
      bits.querySelector('button').tabIndex = 0;
    }
    const digits = explorer.numbers.binary(format, code), captions = explorer.anatomy.captions(format, code);
    for (const bit of bits.querySelectorAll('button')) {
      const digit = digits[format.bits - 1 - Number(bit.dataset.bit)];
      bit.firstChild.data = digit;
      bit.setAttribute('aria-checked', String(digit === '1'));
    }
    bits.querySelectorAll('.caption').forEach((caption, i) => { caption.textContent = captions[i]; });
  }

  /* A field's switches in runs of four from its low end, over its caption. */
  fieldOf(field) {
    const {anatomy} = explorer, {format} = this, runs = [];
    for (let place = field.high; place >= field.low; place--) {
      const weight = anatomy.weight(format, field, place), words = weight && `, weight ${weight}`;
      if (!runs.length || (place - field.low + 1) % 4 === 0) runs.push('');
      runs[runs.length - 1] += `<button type="button" class="bit ${field.name}" role="switch" tabindex="-1"
        data-bit="${place}" aria-label="bit ${place}, ${anatomy.fieldName(format, field)}${words}">0<small>${
          weight}</small></button>`;
    }
    const nibbles = runs.map(run => `<span class="nibble">${run}</span>`).join('');
    return `<div class="bit-field ${field.name}"><div class="nibbles">${nibbles}</div>
      <div class="caption"></div></div>`;
  }

  drawValue() {
    const {numbers, anatomy} = explorer, {format, parts} = this, {code, number} = this.state;
    const value = numbers.decode(format, code), around = numbers.neighbours(format, code);
    const [below, above] = around;
    parts.value.textContent = numbers.text(value);
    parts.codes.textContent = numbers.hex(format, code);
    parts.formula.innerHTML = anatomy.formula(format, code);
    parts.rounded.textContent = anatomy.rounding(format, number, value);
    parts.steps.forEach((step, i) => {
      step.textContent = numbers.text(around[i], format.bits > 16 ? 9 : 6);
      step.value = around[i];
      step.disabled = around[i] === null;
    });
    const gap = above === null ? below === null ? null : value - below : above - value;
    const share = gap !== null && value ? ` · ${numbers.text(100 * gap / Math.abs(value), 2)} %` : '';
    parts.spacing.textContent = numbers.text(gap, 3) + share;
    parts.range.textContent = anatomy.range(format);
  }

  /* The number in one of all formats. */
  drawRow(row) {
    const {numbers} = explorer, {name, number} = this.state, format = this.formats[row.dataset.format];
    const code = numbers.encode(format, number), value = code === null ? null : numbers.decode(format, code);
    const [, stores, error, hex] = row.children;
    row.classList.toggle('on', format.name === name);
    stores.textContent = code === null ? 'no NaN' : numbers.text(value, 6);
    error.textContent = explorer.anatomy.relativeError(value, number);
    hex.textContent = code === null ? '' : numbers.hex(format, code);
  }
}
explorer.playground = section => explorer.chapter(section, Playground);
