/* A code in words: what each bit weighs, what each field says, and how they make the value. */
explorer.anatomy = {
  /* The name of a field for people. The first bit of an integer is no sign: it weighs -2^(bits-1). */
  fieldName(format, field) {
    if (format.kind === 'integer') return field.name === 'sign' ? "two's complement" : field.name;
    return field.name === 'unused' ? 'not used' : field.name;
  },

  /* Contribution of one bit when it is set. */
  weight(format, field, place) {
    if (format.kind === 'integer') {
      return (field.name === 'sign' ? '−' : '') + this.share(2 ** place, 2 ** format.fraction);
    }
    if (field.name === 'sign') return '±';
    if (field.name === 'unused') return '';
    if (field.name !== 'mantissa') return String(2 ** (place - field.low));
    const down = field.high - place + 1;
    return format.bits > 8 ? '2' + explorer.numbers.raised(-down) : this.share(1, 2 ** down);
  },

  /* part / whole in lowest terms; both are powers of two. */
  share(part, whole) {
    return part >= whole ? String(part / whole) : `1/${whole / part}`;
  },

  fieldsOf(format, code) {
    return Object.fromEntries(format.fields.map(({name, high, low}) =>
      [name, Math.floor(code / 2 ** low) % 2 ** (high - low + 1)]));
  },

  /* One caption below each field, in the order of the format's fields. */
  captions(format, code) {
    const fields = this.fieldsOf(format, code);
    return format.fields.map(field => this.caption(format, field, fields));
  },

  caption(format, field, fields) {
    const raw = fields[field.name], parts = 2 ** (format.fraction || 0);
    switch (field.name) {
      case 'sign': return format.kind === 'integer'
        ? `−${this.share(2 ** (format.bits - 1), parts)}·${raw}` : raw ? 'sign −' : 'sign +';
      case 'exponent': return this.exponentCaption(format, raw);
      case 'mantissa': return `mantissa ${raw}/${2 ** format.mantissa}`;
      case 'whole': return `+ ${raw}`;
      case 'fraction': return `+ ${raw}/${parts}`;
      case 'value': return `+ ${raw}`;
      case 'index': return `index ${raw}`;
      default: return 'not used';
    }
  },

  exponentCaption(format, raw) {
    const power = (raw || format.kind === 'scale' ? raw : 1) - format.bias;
    return `exponent ${raw}, 2${explorer.numbers.raised(power)}`;
  },

  /* The value as arithmetic, in pieces that carry their field's colour. */
  formula(format, code) {
    const value = explorer.numbers.decode(format, code), equals = ' = ' + explorer.numbers.text(value);
    if (format.kind === 'codebook') {
      const words = Number.isNaN(value) ? 'an index that is not used'
        : `level ${code + 1} of ${format.count}, from a table` + equals;
      return [this.piece(words)];
    }
    if (format.kind === 'integer') return this.integerFormula(format, code, equals);
    if (!Number.isFinite(value)) {
      return [this.piece('a special code', 'exponent'), this.piece(equals)];
    }
    return [...this.floatFormula(format, this.fieldsOf(format, code)), this.piece(equals)];
  },

  integerFormula(format, code, equals) {
    const digits = [...explorer.numbers.binary(format, code)], parts = 2 ** format.fraction;
    const pieces = digits.map((digit, i) => {
      const size = 2 ** (format.bits - 1 - i);
      return this.piece(`${i ? ' + ' : '−'}${size}·${digit}`, i ? 'value' : 'sign');
    });
    const kind = this.piece("two's complement: ", 'kind');
    if (parts === 1) return [kind, ...pieces, this.piece(equals)];
    return [kind, this.piece('('), ...pieces, this.piece(`) / ${parts}`), this.piece(equals)];
  },

  floatFormula(format, {sign, exponent, mantissa = 0}) {
    const subnormal = !exponent && format.kind !== 'scale';
    const power = this.piece('2', 'exponent'), raised = document.createElement('sup');
    raised.textContent = `${subnormal ? 1 : exponent}−${format.bias}`;
    power.append(raised);
    if (format.kind === 'scale') return [power];
    const share = `${mantissa}/${2 ** format.mantissa}`;
    return [this.piece(sign ? '−' : '+', 'sign'), power, this.piece(' × '),
      this.piece(subnormal ? share : `(1 + ${share})`, 'mantissa'),
      ...(subnormal && mantissa ? [this.piece(' (subnormal)')] : [])];
  },

  piece(text, field = '') {
    const span = document.createElement('span');
    span.className = field;
    span.textContent = text;
    return span;
  },

  /* Effect of rounding on the number, in a sentence. */
  rounding(format, number, value) {
    const {numbers} = explorer;
    if (Number.isNaN(number)) return 'not a number';
    if (Object.is(value, number) || value === number) return 'Stored exactly.';
    const size = Math.abs(number);
    if (format.kind !== 'codebook' && size > format.max) {
      return `${numbers.text(number)} lies beyond the range: saturated.`;
    }
    const share = this.relativeError(value, number);
    return `${numbers.text(number)} is rounded by ${numbers.text(value - number, 3)}`
      + (share ? ` (${share}).` : '.');
  },

  /* The error as a share of the number itself; nothing where there is no such share. */
  relativeError(value, number) {
    if (value === null || Number.isNaN(number)) return '';
    if (value === number) return 'exact';
    const share = 100 * (value - number) / number;
    if (!Number.isFinite(share)) return '';
    if (Math.abs(share) < 0.001) return '< 0.001 %';
    return (share > 0 ? '+' : '') + explorer.numbers.text(share, 3) + ' %';
  },

  range(format) {
    const {numbers} = explorer;
    const least = format.levels ? format.levels[0] : -format.max;
    if (least === -format.max) return '± ' + numbers.text(format.max, 4);
    return `${numbers.text(least, 4)} … ${numbers.text(format.max, 4)}`;
  },
};
