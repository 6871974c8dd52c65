/* Numbers in words for people, as explorer/words.py has them. */
explorer.words = {
  /* To so many significant digits, without zeros at the end: "2,110", "0.0352", "1.2 × 10⁻⁷". */
  number(value, digits = 3) {
    if (!Number.isFinite(value)) return Number.isNaN(value) ? 'not a number' : value > 0 ? '∞' : '−∞';
    if (value === 0) return '0';
    const [mantissa, power] = value.toExponential(digits - 1).split('e'), exponent = Number(power);
    const rounded = Number(`${mantissa}e${power}`), size = Math.abs(rounded);
    const fraction = {maximumFractionDigits: Math.max(digits - 1 - exponent, 0)};
    const text = size >= 1e-4 && size < 1e15 ? rounded.toLocaleString('en-US', fraction)
      : `${Number(mantissa)} × 10${explorer.numbers.raised(exponent)}`;
    return text.replace('-', '−');
  },
};
