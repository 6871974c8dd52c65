/* One explanation for each term, in a small popover at the button that was pressed. Native popovers close by
   Escape and by a click elsewhere. */
explorer.glossary = {
  get entries() {
    return this.read ??= JSON.parse(document.getElementById('glossary').textContent);
  },

  start() {
    document.addEventListener('click', event => {
      const button = event.target.closest('[data-term]');
      if (button) this.open(button.dataset.term, button);
    });
    for (const happening of ['scroll', 'resize']) {
      addEventListener(happening, () => this.place(), {passive: true, capture: true});
    }
  },

  get card() { return document.getElementById('explanation') || this.makeCard(); },

  makeCard() {
    document.body.insertAdjacentHTML('beforeend', `<div id="explanation" popover="auto" tabindex="-1" role="dialog"
      aria-labelledby="explanation-title"><h2 id="explanation-title"></h2><p></p><div class="see"></div></div>`);
    const card = document.body.lastElementChild;
    card.addEventListener('toggle', event => {
      if (event.newState === 'closed') this.opener?.setAttribute('aria-expanded', 'false');
    });
    return card;
  },

  /* Explain `id` at `button`; from within the card, the place stays where it was. */
  open(id, button) {
    const {card} = this, entry = this.entries[id], [title, text, see] = card.children;
    title.textContent = entry.term;
    text.textContent = entry.text;
    const links = entry.see.map(other => this.link(other));
    see.replaceChildren(...(links.length ? ['See also', ...links] : []));
    if (!card.contains(button)) {
      this.opener = button;
      button.setAttribute('aria-expanded', 'true');
    }
    if (!card.matches(':popover-open')) card.showPopover();
    this.place();
    card.focus({preventScroll: true});
  },

  link(id) {
    const link = Object.assign(document.createElement('button'), {type: 'button', textContent: this.entries[id].term});
    link.dataset.term = id;
    return link;
  },

  /* Below the button, or above it where there is no room; within the window at any width. */
  place() {
    const card = document.getElementById('explanation');
    if (!card?.matches(':popover-open') || !this.opener?.isConnected) return;
    const at = this.opener.getBoundingClientRect(), size = card.getBoundingClientRect();
    const left = Math.min(Math.max(at.left, 12), document.documentElement.clientWidth - size.width - 12);
    const below = at.bottom + 8 + size.height <= innerHeight || at.top < size.height + 8;
    card.style.left = left + 'px';
    card.style.top = (below ? at.bottom + 8 : at.top - size.height - 8) + 'px';
  },
};
explorer.glossary.start();
