/* Small helpers for the drawings of the place Learn. Text goes in as text, never as markup. */
explorer.svg = {
  /* An SVG element with attributes and, if given, text. */
  node(name, attributes = {}, text = undefined) {
    const node = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  },

  /* A text that reads base to the power of `exponent`, the exponent raised. */
  power(base, exponent, attributes) {
    const text = this.node('text', attributes, base);
    const raised = {dy: '-0.45em', 'font-size': '0.75em'};
    text.append(this.node('tspan', raised, String(exponent).replace('-', '−')));
    return text;
  },

  /* The width of a place as it was last seen: to ask for it after a change would lay out the whole page. */
  widthOf(place) { return Math.max(place.seenWidth ?? place.clientWidth, 280); },

  /* An empty drawing as wide as its place, in CSS pixels; `label` is what a screen reader says. */
  sheet(place, height, label) {
    const width = this.widthOf(place);
    const sheet = this.node('svg', {width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
      'aria-label': label});
    place.style.minHeight = height + 'px';
    const old = place.querySelector('svg');
    if (old) old.replaceWith(sheet); else place.prepend(sheet);
    return {sheet, width};
  },

  /* Draw again whenever the place gets another width (a resize, a tab that opens). */
  onWidth(place, draw) {
    new ResizeObserver(() => {
      if (!place.clientWidth || place.clientWidth === place.seenWidth) return;
      place.seenWidth = place.clientWidth;
      draw();
    }).observe(place);
  },

  /* About `count` round numbers from low to high. */
  ticks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find(factor => factor * power >= raw);
    const first = Math.ceil(low / step), last = Math.floor(high / step);
    return Array.from({length: Math.max(last - first + 1, 0)}, (_, i) => (first + i) * step);
  },
};
