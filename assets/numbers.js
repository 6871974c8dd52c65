/* Number formats in the browser: decode and encode with the bits of explorer.formats, from the facts that
   app/learn/playground.py writes into the page. A format is one of those objects; a number is a double, and
   every step below is exact in doubles, so that a number is rounded once. */
explorer.numbers = {
  /* The value of a code. Formats of up to 8 bits bring the table of their values. */
  decode(format, code) {
    if (format.values) return code < format.count ? Number(format.values[code]) : NaN;
    const fields = Math.floor(code % 2 ** format.bits / 2 ** format.unused);
    const top = 2 ** (format.exponent + format.mantissa), negative = fields >= top;
    const value = this.ofMagnitude(format, fields % top);
    return negative ? -value : value;
  },

  /* The value of exponent and mantissa fields. */
  ofMagnitude({exponent, mantissa, bias}, magnitude) {
    const e = Math.floor(magnitude / 2 ** mantissa), m = magnitude % 2 ** mantissa;
    if (e === 2 ** exponent - 1) return m ? NaN : Infinity;
    return e ? (1 + m / 2 ** mantissa) * 2 ** (e - bias) : m * 2 ** (1 - bias - mantissa);
  },

  /* The code that a number takes, or null for NaN in a format that has no code for it. */
  encode(format, number) {
    if (Number.isNaN(number)) return format.nan;
    return this[format.kind](format, number);
  },

  /* A number rounded to a format. */
  round(format, number) {
    const code = this.encode(format, number);
    return code === null ? null : this.decode(format, code);
  },

  float(format, number) {
    const {exponent, mantissa, bias, unused} = format;
    const size = Math.min(Math.abs(number), format.saturates ? format.max : Infinity);
    const infinity = (2 ** exponent - 1) * 2 ** mantissa;
    let magnitude = infinity;
    if (size < Infinity) {
      const e = Math.max(this.exponentOf(size), 1 - bias);
      const steps = this.roundWhole(size / 2 ** (e - mantissa), format.away);
      magnitude = (e + bias - 1) * 2 ** mantissa + steps;
      if (!format.saturates) magnitude = Math.min(magnitude, infinity);
    }
    const negative = format.signed && (number < 0 || Object.is(number, -0))
      && (magnitude > 0 || format.negativeZero);
    return (magnitude + (negative ? 2 ** (exponent + mantissa) : 0)) * 2 ** unused;
  },

  /* E8M0: up to a power of two. */
  scale(format, number) {
    const size = Math.abs(number), e = this.exponentOf(size);
    return Math.min(Math.max((size > 2 ** e ? e + 1 : e) + format.bias, 0), 254);
  },

  /* Two's complement of a whole number of 2^-fraction. */
  integer({bits, fraction}, number) {
    const top = 2 ** (bits - 1);
    const whole = this.roundWhole(Math.min(Math.max(number * 2 ** fraction, -top), top - 1));
    return whole < 0 ? whole + 2 * top : whole + 0;
  },

  /* Number of boundaries between neighbouring levels below the number. */
  codebook({boundaries}, number) {
    return boundaries.filter(([middle, up]) => number > middle || (up && number === middle)).length;
  },

  /* floor(log2(size)) from the exponent field; -1023 for zero and for doubles without a leading one. */
  exponentOf(size) {
    this.double.setFloat64(0, size);
    return (this.double.getUint16(0) >> 4 & 0x7FF) - 1023;
  },
  double: new DataView(new ArrayBuffer(8)),

  /* To the nearest whole number, ties to even, or away from zero for numbers that are not negative. */
  roundWhole(number, away = false) {
    const below = Math.floor(number), rest = number - below;
    if (rest !== 0.5) return rest > 0.5 ? below + 1 : below;
    return away || below % 2 ? below + 1 : below;
  },

  /* The next finite values below and above the value of a code, null where there is none. */
  neighbours(format, code) {
    const value = this.decode(format, code);
    if (!Number.isFinite(value)) return [null, null];
    if (format.levels) {
      const above = format.levels.findIndex(level => level > value);
      const below = format.levels.findLastIndex(level => level < value);
      return [below < 0 ? null : format.levels[below], above < 0 ? null : format.levels[above]];
    }
    const top = 2 ** (format.exponent + format.mantissa);
    const fields = Math.floor(code / 2 ** format.unused), place = fields % top * (fields >= top ? -1 : 1);
    return [place - 1, place + 1].map(at => {
      const next = Math.sign(at) * this.ofMagnitude(format, Math.abs(at));
      return Number.isFinite(next) ? next : null;
    });
  },

  /* Parse the entry: {code} for 0b and 0x, else {number}; {problem} names the accepted input. */
  parse(text, format) {
    const word = text.trim().toLowerCase().replaceAll('_', '').replaceAll('−', '-');
    if (/^0b[01]+$|^0x[0-9a-f]+$/.test(word)) {
      const code = Number(word);
      if (code < format.count) return {code};
      return {problem: `${format.label} has codes 0 to ${this.hex(format, format.count - 1)} `
        + `(${format.bits} bits).`};
    }
    if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/.test(word)) return {number: Number(word)};
    const special = word.match(/^([+-]?)(inf|infinity|nan)$/);
    if (special) {
      const size = special[2] === 'nan' ? NaN : Infinity;
      return {number: special[1] === '-' ? -size : size};
    }
    return {problem: 'Number takes a decimal such as 0.3 or 1e-5, bits such as 0b0101, hex such as 0x5A, '
      + 'inf or nan.'};
  },

  hex(format, code) {
    return '0x' + code.toString(16).toUpperCase().padStart(Math.ceil(format.bits / 4), '0');
  },

  binary(format, code) {
    return code.toString(2).padStart(format.bits, '0');
  },

  /* For people: so many significant digits, a real minus sign, no trailing zeros. */
  text(number, digits = 7) {
    if (number === null) return 'none';
    if (!Number.isFinite(number)) return Number.isNaN(number) ? 'NaN' : number < 0 ? '−∞' : '∞';
    if (Object.is(number, -0)) return '−0';
    const size = Math.abs(number), plain = !size || (size >= 1e-4 && size < 1e9);
    const [mantissa, power] = (plain ? String(Number(number.toPrecision(digits)))
      : number.toExponential(digits - 1)).split('e');
    const short = mantissa.includes('.') ? mantissa.replace(/\.?0+$/, '') : mantissa;
    return (power ? short + ' × 10' + this.raised(Number(power)) : short).replaceAll('-', '−');
  },

  /* A whole number as superscript characters. */
  raised(whole) {
    return String(whole).replaceAll('-', '⁻').replace(/\d/g, digit => '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit]);
  },
};
