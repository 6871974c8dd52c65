/* The list of the place's sections, in the bar: a click goes there, and the one on the screen is marked. */
explorer.contents = {
  start(element) {
    this.list = element.querySelector('nav');
    addEventListener('scroll', () => this.markLater(), {passive: true});
    addEventListener('resize', () => this.markLater(), {passive: true});
    new MutationObserver(() => this.fill())
      .observe(document.documentElement, {attributes: true, attributeFilter: ['data-place']});
    this.fill();
  },

  /* The sections that have a title, as they stand in the place; the first entry is the place's beginning. */
  fill() {
    if (!this.list) return;
    const place = document.getElementById('place-' + document.documentElement.dataset.place);
    const listed = [...explorer.sections].filter(([, {title, box}]) => title && place?.contains(box));
    const {DOCUMENT_POSITION_FOLLOWING: after} = Node;
    listed.sort(([, a], [, b]) => a.box.compareDocumentPosition(b.box) & after ? -1 : 1);
    const entries = listed.map(([name, {title}]) => [name, title]);
    if (document.documentElement.dataset.place === 'tensor') entries.unshift(['', 'Answer']);
    const key = JSON.stringify(entries);
    if (key === this.filled) return;
    this.filled = key;
    this.list.replaceChildren(...entries.map(([name, title]) => {
      const button = document.createElement('button');
      Object.assign(button, {type: 'button', textContent: title});
      button.dataset.section = name;
      return button;
    }));
    this.mark();
  },

  markLater() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.mark();
    });
  },

  /* Mark where the page is: a section without a title belongs to the listed one before it. */
  mark() {
    const at = explorer.sectionAtTop(), box = explorer.sections.get(at)?.box;
    const buttons = [...this.list.children];
    let now = buttons[0];
    for (const button of buttons) {
      const own = explorer.sections.get(button.dataset.section)?.box;
      const before = own && box && (own === box || own.contains(box)
        || own.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING);
      if (before) now = button;
    }
    for (const button of buttons) {
      if (button !== now) button.removeAttribute('aria-current');
      else if (!button.hasAttribute('aria-current')) {
        button.setAttribute('aria-current', 'location');
        const {list} = this, left = button.offsetLeft - list.offsetLeft;
        list.scrollLeft = left - (list.clientWidth - button.offsetWidth) / 2;
      }
    }
  },

  /* Where the page begins below the bar, in pixels from the window's top. */
  bottom() {
    const bar = document.getElementById('bar'), at = bar?.getBoundingClientRect();
    return at && at.top <= 1 ? this.list.getBoundingClientRect().bottom : 0;
  },
};
