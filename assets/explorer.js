/* Client-side code of the page. Loaded once, in the page's head; Gradio's listeners and the
   hidden components of app/parts/widgets.py call it by name. */
window.explorer = {
  /* --- the bar and its panels ------------------------------------------------------------------------ */

  chips(element) {
    element.addEventListener('click', explorer.barClicked);
  },

  /* A click into the header, the bar or its list of sections. */
  barClicked(event) {
    const {place, panel, act, section} = event.target.closest('button')?.dataset || {};
    if (place) explorer.openPlace(place, true);
    if (panel) explorer.togglePanel(panel);
    if (act) explorer.act(act);
    if (section !== undefined) explorer.openSection(section);
  },

  togglePanel(name) {
    const open = document.documentElement.dataset.panel === name;
    explorer.closePanels();
    if (open) return;
    document.documentElement.dataset.panel = name;
    explorer.markPanels();
    const first = document.querySelector(`#panel-${name} input`);
    if (!first || explorer.touch) return;
    if (first.closest('.picker')) {
      first.focus({preventScroll: true});
      first.select();
    } else explorer.focusClosed(first);
  },

  /* Give a picker the focus without opening its list, which hides the controls below: Gradio opens it at the
     focus event. A click or a key is told of the focus first, and what is typed replaces the text. Taken away
     and given back, the focus would be a choice of what stands there, whose answer overwrites what is typed
     meanwhile. */
  focusClosed(input) {
    const silent = event => event.stopImmediatePropagation();
    document.addEventListener('focus', silent, true);
    input.focus({preventScroll: true});
    document.removeEventListener('focus', silent, true);
    const used = new AbortController();
    const enter = event => {
      if (event.type === 'keydown' && ['Tab', 'Shift', 'Escape'].includes(event.key)) return;
      used.abort();
      if (event.type === 'keydown') input.select();
      else explorer.focused = null;
      input.dispatchEvent(new FocusEvent('focus'));
    };
    for (const kind of ['pointerdown', 'keydown']) {
      input.addEventListener(kind, enter, {capture: true, signal: used.signal});
    }
    input.addEventListener('blur', () => used.abort(), {signal: used.signal});
  },

  /* Gradio opens a long list at its end, or where it was left: scroll it to what is chosen until it has stood
     still for so many frames, or a hand scrolls. By frames, not by the clock: a busy machine draws few. */
  showChosen(list) {
    const hands = ['wheel', 'touchmove', 'keydown', 'pointerdown'];
    let calm = 0, last = '';
    const leave = () => { calm = Infinity; };
    const look = () => {
      const chosen = list.querySelector('[aria-selected="true"]');
      const place = [list.clientHeight, list.scrollHeight, chosen?.offsetTop].join();
      calm = place === last ? calm + 1 : calm === Infinity ? calm : 0;
      last = place;
      if (calm < 24 && list.isConnected) {
        if (chosen) list.scrollTop = chosen.offsetTop - list.clientHeight / 3;
        requestAnimationFrame(look);
      } else hands.forEach(hand => removeEventListener(hand, leave, true));
    };
    hands.forEach(hand => addEventListener(hand, leave, {passive: true, capture: true}));
    look();
  },

  /* The click that enters a picker marks its text, so that typing replaces it: Gradio filters by all that
     stands there. A second click puts the caret where it points. */
  markText() {
    document.addEventListener('pointerdown', () => { explorer.focused = document.activeElement; }, true);
    document.addEventListener('click', ({target}) => {
      const ours = target.closest('.picker') || target === explorer.focused;
      if (target.matches('input[role=combobox]') && !ours) {
        target.select();
      }
    });
  },

  /* On a phone a panel covers what a choice does: close it after the choice of a scheme or a tensor. */
  watchPanels() {
    const picked = '#preset, #second-preset, #sample, #file-tensor, #layer';
    document.addEventListener('mousedown', event => {
      const option = event.target.closest('.drawer [role=option]');
      if (option?.closest(picked) && innerWidth <= 640) setTimeout(explorer.closePanels, 100);
    }, true);
    document.addEventListener('pointerover', event => {
      const picker = event.target.closest?.('input[role=combobox]');
      if (picker) picker.title = picker.value;
    });
    new MutationObserver(changes => {
      for (const {addedNodes} of changes) for (const node of addedNodes) {
        const list = node.classList?.contains('options') && node.querySelector('[role=listbox]');
        if (list) explorer.showChosen(list);
      }
    }).observe(document.documentElement, {childList: true, subtree: true});
  },

  closePanels() {
    delete document.documentElement.dataset.panel;
    explorer.markPanels();
  },

  markPanels() {
    for (const chip of document.querySelectorAll('#chips [data-panel]')) {
      chip.setAttribute('aria-expanded', chip.dataset.panel === document.documentElement.dataset.panel);
    }
  },

  /* Show only the tensor controls of the chosen source. */
  showSource(source) {
    document.documentElement.dataset.source = source || 'builtin';
    return source;
  },

  /* --- keys ------------------------------------------------------------------------------------------ */

  act(act, side) {
    if (act !== 'copy') explorer.closePanels();
    if (act === 'copy') explorer.copyLink();
    else if (act === 'keys') document.getElementById('keys')?.showModal();
    else explorer.choose({do: act, side: side || 'a'});
  },

  async copyLink() {
    explorer.settle();
    const say = words => document.querySelectorAll('[data-act=copy]').forEach(button => {
      button.textContent = words;
    });
    let words = 'Copied';
    try {
      await navigator.clipboard.writeText(location.href);
    } catch (refused) {
      words = 'Copy it from the address bar';
    }
    say(words);
    setTimeout(() => say('Copy link'), 1500);
  },

  /* Let a click on a table's heading sort by it, a second click the other way round. Gradio sorts from a
     menu that shows only while the mouse is over the heading: its first two entries are ascending and
     descending. The listener captures, because headings keep their clicks from the document. */
  sortByHeadings() {
    const later = () => new Promise(resume => setTimeout(resume));
    document.addEventListener('click', async event => {
      const heading = event.target.closest('.header-cell');
      if (!heading || event.target.closest('.cell-menu-button')) return;
      const descending = heading.classList.contains('sorted') && heading.dataset.order === 'ascending';
      heading.dataset.order = descending ? 'descending' : 'ascending';
      await later();
      heading.querySelector('.cell-menu-button')?.click();
      await later();
      document.querySelectorAll('.cell-menu [role=menuitem]')[descending ? 1 : 0]?.click();
    }, true);
  },

  /* Dropped anywhere on the page, a file goes to the file control of the Tensor place. */
  acceptDrops() {
    const files = event => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
    addEventListener('dragover', event => {
      if (!files(event)) return;
      event.preventDefault();
      document.documentElement.dataset.drop = '';
    });
    addEventListener('dragleave', event => {
      if (!event.relatedTarget) delete document.documentElement.dataset.drop;
    });
    addEventListener('drop', event => {
      delete document.documentElement.dataset.drop;
      if (!files(event) || event.target.closest('.section .block')?.querySelector('input[type=file]')) return;
      event.preventDefault();
      event.stopPropagation();
      explorer.openFile(event.dataTransfer.files[0]);
    }, true);
  },

  /* The input of the file control, after what it holds was taken out. */
  async emptyFileInput() {
    const find = () => document.querySelector('#file input[type=file]');
    for (let tries = 0; tries < 50 && !find(); tries += 1) {
      document.querySelector('#file button[aria-label="Clear"], #file button[aria-label*="emove"]')?.click();
      await new Promise(resume => setTimeout(resume, 20));
    }
    return find();
  },
};

document.addEventListener('keydown', event => {
  const typing = event.target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select');
  if (event.key === 'Escape' && event.isTrusted) {
    const open = document.documentElement.dataset.panel;
    if (open) {
      explorer.closePanels();
      document.querySelector(`#chips [data-panel="${open}"]`)?.focus();
    }
    return;
  }
  const meant = typing || event.ctrlKey || event.metaKey || event.altKey;
  if (meant || document.querySelector('dialog[open]')) return;
  const steps = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  if (steps && document.activeElement?.closest('#element')) {
    event.preventDefault();
    explorer.choose({do: 'move', down: steps[0], right: steps[1]});
    return;
  }
  const act = {']': ['next', 'a'], '[': ['previous', 'a'], '}': ['next', 'b'], '{': ['previous', 'b'],
    x: ['swap'], '?': ['keys']}[event.key];
  if (act && document.documentElement.dataset.place !== 'learn') explorer.act(...act);
});

/* A list of Gradio's stays open when Tab leaves its box: close it as Escape does. */
document.addEventListener('focusout', event => {
  const box = event.target;
  if (box.getAttribute?.('role') !== 'combobox' || box.closest('.picker')) return;
  setTimeout(() => {
    if (document.activeElement !== box && box.getAttribute('aria-expanded') === 'true') {
      box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: true}));
    }
  });
});

document.addEventListener('pointerdown', event => {
  if (!event.target.closest('.drawer, #chips')) explorer.closePanels();
});

explorer.acceptDrops();
explorer.sortByHeadings();
explorer.watchPanels();
explorer.markText();
