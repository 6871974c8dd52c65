/* The story's arithmetic: explorer.quantize for one row, with the same float32 steps (Math.fround after each
   operation: sums, products and quotients of two float32 numbers round the same through a double). */
explorer.row = {
  /* `row` of float32 numbers under `scheme`: {format, scaleFormat, block, asymmetric, exponent, perTensor,
     clip}. `clip` multiplies the range of min-max. Returns codes, restored values, and blocks with levels. */
  quantize(row, scheme) {
    const blocks = [], tensor = this.tensorScale(row, scheme);
    for (let start = 0; start < row.length; start += scheme.block) {
      blocks.push({start, ...this.block(row.slice(start, start + scheme.block), scheme, tensor)});
    }
    return {blocks, codes: blocks.flatMap(block => block.codes), restored: blocks.flatMap(b => b.restored)};
  },

  block(values, scheme, tensor) {
    const clip = Math.fround(scheme.clip ?? 1), low = Math.fround(Math.min(0, ...values) * clip);
    const scale = this.scaleOf(low, Math.fround(Math.max(0, ...values) * clip), scheme, tensor);
    const zero = this.zeroPoint(low, scale, scheme);
    const codes = values.map(value => this.codeOf(value, scale, zero, scheme));
    const restored = codes.map(code => this.restore(code, scale, zero, scheme));
    return {codes, restored, levels: this.levels(scale, zero, scheme)};
  },

  scaleOf(low, high, {format, scaleFormat, asymmetric, exponent}, tensor) {
    const amax = Math.max(-low, high), {numbers} = explorer;
    if (asymmetric ? high - low === 0 : amax === 0) return Math.fround(tensor ?? 1);
    if (exponent) return 2 ** Math.max(numbers.exponentOf(amax) - numbers.exponentOf(format.max), -127);
    let raw = asymmetric ? Math.fround(Math.fround(high - low) / (2 ** format.bits - 1))
      : Math.fround(amax / format.max);
    if (tensor) raw = Math.fround(raw / tensor);
    const stored = numbers.round(scaleFormat, Math.max(raw, scaleFormat.levels?.find(v => v > 0)
      ?? 2 ** (1 - scaleFormat.bias - scaleFormat.mantissa)));
    return tensor ? Math.fround(stored * tensor) : stored;
  },

  /* NVFP4's scale over the whole tensor, null for other schemes. */
  tensorScale(row, {perTensor, format, scaleFormat}) {
    if (!perTensor) return null;
    const amax = Math.max(...row.map(Math.abs));
    return amax ? Math.fround(amax / (format.max * scaleFormat.max)) : 1;
  },

  zeroPoint(low, scale, {format, asymmetric}) {
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
  levels(scale, zero, {format, asymmetric}) {
    const kept = format.kind === 'integer' && !asymmetric ? format.levels.slice(1) : format.levels;
    return kept.map(level => (level - zero) * scale);
  },

  sqnr(row, restored) {
    const sum = values => values.reduce((total, value) => total + value * value, 0);
    const noise = sum(row.map((value, i) => restored[i] - value));
    return noise ? 10 * Math.log10(sum(row) / noise) : Infinity;
  },

  /* Codes, scales and zero points, over the row's length. */
  bits(row, {format, scaleFormat, block, asymmetric, perTensor, exponent}) {
    const each = (exponent ? 8 : scaleFormat.bits) + (asymmetric ? format.bits : 0);
    const shared = Math.ceil(row.length / block) * each + (perTensor ? 32 : 0);
    return format.bits + shared / row.length;
  },
};
