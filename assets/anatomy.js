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
  share: (part, whole) => part >= whole ? String(part / whole) : `1/${whole / part}`,

  valueOf: ({high, low}, code) => Math.floor(code / 2 ** low) % 2 ** (high - low + 1),

  /* One caption below each field, in the order of the format's fields. */
  captions(format, code) {
    return format.fields.map(field => this.caption(format, field.name, this.valueOf(field, code)));
  },

  caption(format, name, raw) {
    const parts = 2 ** (format.fraction || 0);
    switch (name) {
      case 'sign': return format.kind !== 'integer' ? `sign ${raw ? '−' : '+'}`
        : `−${this.share(2 ** (format.bits - 1), parts)}·${raw}`;
      case 'exponent': {
        const power = raw || format.kind === 'scale' ? raw : 1;
        return `exponent ${raw}, 2${explorer.numbers.raised(power - format.bias)}`;
      }
      case 'mantissa': return `mantissa ${raw}/${2 ** format.mantissa}`;
      case 'fraction': return `+ ${raw}/${parts}`;
      case 'whole': case 'value': return `+ ${raw}`;
      case 'index': return `index ${raw}`;
      default: return 'not used';
    }
  },

  /* The value as arithmetic, in HTML whose pieces carry their field's colour. */
  formula(format, code) {
    const value = explorer.numbers.decode(format, code), equals = ' = ' + explorer.numbers.text(value);
    if (format.kind === 'codebook') {
      return Number.isNaN(value) ? 'an index that is not used'
        : `level ${code + 1} of ${format.count}, from a table${equals}`;
    }
    if (format.kind === 'integer') return this.integerFormula(format, code) + equals;
    if (!Number.isFinite(value)) return this.piece('exponent', 'a special code') + equals;
    return this.floatFormula(format, code) + equals;
  },

  integerFormula(format, code) {
    const parts = 2 ** format.fraction, digits = [...explorer.numbers.binary(format, code)];
    const weighed = (digit, i) => `${i ? ' + ' : '−'}${2 ** (format.bits - 1 - i)}·${digit}`;
    const pieces = digits.map((digit, i) => this.piece(i ? 'value' : 'sign', weighed(digit, i))).join('');
    return "two's complement: " + (parts === 1 ? pieces : `(${pieces}) / ${parts}`);
  },

  floatFormula(format, code) {
    const {sign, exponent, mantissa = 0} = Object.fromEntries(
      format.fields.map(field => [field.name, this.valueOf(field, code)]));
    const subnormal = !exponent && format.kind !== 'scale', share = `${mantissa}/${2 ** format.mantissa}`;
    const power = this.piece('exponent', `2<sup>${subnormal ? 1 : exponent}−${format.bias}</sup>`);
    if (format.kind === 'scale') return power;
    return this.piece('sign', sign ? '−' : '+') + power + ' × '
      + this.piece('mantissa', subnormal ? share : `(1 + ${share})`)
      + (subnormal && mantissa ? ' (subnormal)' : '');
  },

  piece: (field, text) => `<span class="${field}">${text}</span>`,

  /* Effect of rounding on the number, in a sentence. */
  rounding(format, number, value) {
    const {numbers} = explorer;
    if (Number.isNaN(number)) return 'not a number';
    if (value === number) return 'Stored exactly.';
    if (format.kind !== 'codebook' && Math.abs(number) > format.max) {
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
    const {numbers} = explorer, least = format.levels ? format.levels[0] : -format.max;
    return least === -format.max ? '± ' + numbers.text(format.max, 4)
      : `${numbers.text(least, 4)} … ${numbers.text(format.max, 4)}`;
  },
};
