/* The photograph before and after a scheme. The divider is a range input over the picture, so that mouse,
   touch and keys move it as they move any slider; the picture follows by one CSS variable. */
explorer.picture = {
  start(element) {
    const find = selector => element.querySelector(selector);
    const box = find('.before-after'), slider = box.querySelector('input');
    const [original, cut] = element.querySelectorAll('.cuts figure');
    this.parts = {
      box, slider, original, cut, after: find('.after'), side: find('.side.right'),
      note: find('.cut-note'),
      buttons: [...element.querySelectorAll('.sights button')],
      words: [...element.querySelectorAll('.seen p')],
    };
    slider.addEventListener('input', () => this.move());
    element.querySelector('.sights').addEventListener('click', event => {
      const button = event.target.closest('button');
      if (button) this.choose(button);
    });
    this.move();
    this.choose(this.parts.buttons.find(button => button.getAttribute('aria-pressed') === 'true'));
    this.whenSeen(box);
  },

  /* Place the divider where its slider stands. */
  move() {
    const {box, slider} = this.parts, at = Number(slider.value);
    box.style.setProperty('--at', at + '%');
    const name = this.chosen?.dataset.name ?? 'rounded';
    slider.setAttribute('aria-valuetext', `${at} % original, ${100 - at} % ${name}`);
  },

  choose(button) {
    this.chosen = button;
    const {buttons, words, cut, original, side} = this.parts;
    for (const other of buttons) other.setAttribute('aria-pressed', String(other === button));
    for (const text of words) text.hidden = text.dataset.scheme !== button.value;
    side.textContent = button.querySelector('b').textContent;
    cut.querySelector('figcaption').textContent = button.dataset.name;
    cut.querySelector('image').setAttribute('href', button.querySelector('img').src);
    for (const figure of [original, cut]) {
      for (const kind of ['edges', 'block']) {
        figure.querySelector(`.${kind}`).setAttribute('d', button.dataset[kind]);
      }
    }
    this.parts.note.classList.toggle('no-edges', !button.dataset.edges);
    this.move();
    this.show();
  },

  /* The whole pictures are fetched when the chapter is first on the screen: the chosen one, then the others,
     so that every later choice is there at once. */
  whenSeen(box) {
    new IntersectionObserver((entries, observer) => {
      if (!entries.some(entry => entry.isIntersecting)) return;
      observer.disconnect();
      this.seen = true;
      const before = box.querySelector('.before');
      before.src = before.dataset.src;
      this.show().then(() => this.parts.buttons.forEach(button => this.fetched(button.value)));
    }, {rootMargin: '200px'}).observe(box);
  },

  pictures: {},

  /* The picture of a scheme, once it can be painted. */
  fetched(scheme) {
    this.pictures[scheme] ??= (() => {
      const image = new Image();
      image.src = `picture/${scheme}.png`;
      return image.decode().then(() => image.src, () => { delete this.pictures[scheme]; });
    })();
    return this.pictures[scheme];
  },

  /* Paint the chosen scheme; what was chosen meanwhile is not overwritten. */
  async show() {
    if (!this.seen) return;
    const {chosen} = this, source = await this.fetched(chosen.value);
    if (source && chosen === this.chosen) this.parts.after.src = source;
  },
};
