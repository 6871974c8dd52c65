/* Drawings of the place Learn, made as text. What stands in them is the project's own: names of formats, and
   numbers that `explorer.numbers.text` has written. */
explorer.svg = {
  /* A text that reads base to the power of `exponent`, the exponent raised. */
  power(base, exponent) {
    const raised = String(exponent).replace('-', '−');
    return `${base}<tspan dy="-0.45em" font-size="0.75em">${raised}</tspan>`;
  },

  /* The width of a place as it was last seen: to ask for it after a change would lay out the whole page. */
  widthOf(place) { return Math.max(place.seenWidth ?? place.clientWidth, 280); },

  /* Show a drawing as wide as its place, in CSS pixels; `label` is what a screen reader says. */
  show(place, height, label, inside) {
    const width = this.widthOf(place);
    place.style.minHeight = height + 'px';
    place.querySelector('svg')?.remove();
    place.insertAdjacentHTML('afterbegin', `<svg width="${width}" height="${height}" role="img"
      viewBox="0 0 ${width} ${height}" aria-label="${label}">${inside}</svg>`);
  },

  /* Draw again whenever the place gets another width (a resize, a tab that opens). */
  onWidth(place, draw) {
    const tools = Object.assign(document.createElement('div'), {className: 'figure-tools of-drawing'});
    place.before(tools);
    explorer.paper.offer(tools, () => ({place, draw}));
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

/* A chapter that is drawn in the browser: what the address says of its section goes to `read` alone. */
explorer.chapter = (section, Chapter) => {
  const chapter = new Chapter(section.element);
  section.ask = () => {
    section.stale = false;
    chapter.read(explorer.query());
  };
};
