/* The story's arithmetic: explorer.quantize for one row, with the same float32 steps (Math.fround after each
   operation: sums, products and quotients of two float32 numbers round the same through a double). */
explorer.row = {
  /* `row` of float32 numbers under `scheme`: {format, scaleFormat, block, asymmetric, exponent, perTensor,
     clip}. `clip` multiplies the range of min-max; the string 'mse' searches for the one of least squared
     error. Returns codes, restored values and blocks with their scale, zero point and levels' range. */
  quantize(row, scheme) {
    const blocks = [], tensor = this.tensorScale(row, scheme);
    for (let start = 0; start < row.length; start += scheme.block) {
      blocks.push({start, ...this.block(row.slice(start, start + scheme.block), scheme, tensor)});
    }
    return {blocks, codes: blocks.flatMap(block => block.codes), restored: blocks.flatMap(b => b.restored)};
  },

  block(values, scheme, tensor) {
    const whole = {low: Math.min(0, ...values), high: Math.max(0, ...values)};
    if (scheme.clip !== 'mse') {
      const factor = scheme.clip ?? 1;
      return this.under(values, this.moved(whole, factor, factor), scheme, tensor);
    }
    return this.search(values, whole, scheme, tensor);
  },

  /* The least squared error of 80 narrower ranges; with a zero point each end moves by itself afterwards. */
  search(values, whole, scheme, tensor) {
    const ends = scheme.asymmetric ? [[1, 1], [1, 0], [0, 1]] : [[1, 1]];
    let best = null, least = Infinity, low = 1, high = 1;
    for (const [movesLow, movesHigh] of ends) {
      for (let i = 0; i < 80; i++) {
        const factor = Math.fround(1 - i / 100);
        const [tryLow, tryHigh] = [movesLow ? factor : low, movesHigh ? factor : high];
        const found = this.under(values, this.moved(whole, tryLow, tryHigh), scheme, tensor);
        const error = this.squaredError(values, found.restored);
        if (error < least) [best, least, low, high] = [found, error, tryLow, tryHigh];
      }
    }
    return best;
  },

  moved({low, high}, lowFactor, highFactor) {
    const times = (end, factor) => Math.fround(end * Math.fround(factor));
    return {low: times(low, lowFactor), high: times(high, highFactor)};
  },

  squaredError(values, restored) {
    return values.reduce((sum, value, i) => sum + Math.fround(restored[i] - value) ** 2, 0);
  },

  /* Codes of a block's values under a range. */
  under(values, range, scheme, tensor) {
    const scale = this.scaleOf(range, scheme, tensor), zero = this.zeroPoint(range, scale, scheme);
    const codes = values.map(value => this.codeOf(value, scale, zero, scheme));
    const restored = codes.map(code => this.restore(code, scale, zero, scheme));
    return {scale, zero, range, codes, restored, levels: this.levels(scale, zero, scheme)};
  },

  scaleOf({low, high}, scheme, tensor) {
    const amax = Math.max(-low, high), {format, scaleFormat} = scheme, {numbers} = explorer;
    if (scheme.asymmetric ? high - low === 0 : amax === 0) return Math.fround(tensor ?? 1);
    if (scheme.exponent) {
      return 2 ** Math.max(numbers.exponentOf(amax) - numbers.exponentOf(format.max), -127);
    }
    let raw = scheme.asymmetric ? Math.fround(Math.fround(high - low) / (2 ** format.bits - 1))
      : Math.fround(amax / format.max);
    if (tensor) raw = Math.fround(raw / tensor);
    const stored = numbers.round(scaleFormat, Math.max(raw, scaleFormat.levels?.find(v => v > 0)
      ?? 2 ** (1 - scaleFormat.bias - scaleFormat.mantissa)));
    return tensor ? Math.fround(stored * tensor) : stored;
  },

  /* NVFP4's scale over the whole tensor, null for other schemes. */
  tensorScale(row, scheme) {
    if (!scheme.perTensor) return null;
    const amax = Math.max(...row.map(Math.abs));
    return amax ? Math.fround(amax / (scheme.format.max * scheme.scaleFormat.max)) : 1;
  },

  zeroPoint({low}, scale, {format, asymmetric}) {
    if (!asymmetric) return 0;
    const least = -(2 ** (format.bits - 1));
    const zero = explorer.numbers.roundWhole(Math.fround(least - Math.fround(low / scale)));
    return Math.min(Math.max(zero, least), -least - 1);
  },

  codeOf(value, scale, zero, {format, asymmetric}) {
    const {numbers} = explorer, scaled = Math.fround(value / scale);
    if (format.kind !== 'integer') return numbers.encode(format, scaled);
    const top = 2 ** (format.bits - 1), whole = numbers.roundWhole(scaled) + zero;
    const code = Math.min(Math.max(whole, asymmetric ? -top : 1 - top), top - 1);
    return code < 0 ? code + 2 * top : code + 0;
  },

  restore(code, scale, zero, {format}) {
    return Math.fround((Math.fround(explorer.numbers.decode(format, code)) - zero) * scale);
  },

  /* Everything that the block's codes can stand for, ascending. */
  levels(scale, zero, scheme) {
    const {format} = scheme, kept = format.kind === 'integer' && !scheme.asymmetric
      ? format.levels.slice(1) : format.levels;
    return kept.map(level => (level - zero) * scale);
  },

  sqnr(row, restored) {
    const sum = values => values.reduce((total, value) => total + value * value, 0);
    const noise = sum(row.map((value, i) => restored[i] - value));
    return noise ? 10 * Math.log10(sum(row) / noise) : Infinity;
  },

  /* Codes, scales and zero points, over the row's length. */
  bits(row, scheme) {
    const {format, scaleFormat, block, asymmetric, perTensor, exponent} = scheme;
    const each = (exponent ? 8 : scaleFormat.bits) + (asymmetric ? format.bits : 0);
    const shared = Math.ceil(row.length / block) * each + (perTensor ? 32 : 0);
    return format.bits + shared / row.length;
  },
};
