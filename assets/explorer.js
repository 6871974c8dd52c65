/* Client-side code of the page. Loaded once, in the page's head; Gradio's listeners and the
   sections (app/parts/section.py) call it by name. */
window.explorer = {
  /* --- the bar and its panels ------------------------------------------------------------------------ */

  /* A click into the header, the bar or its list of sections. */
  barClicked(event) {
    const {place, panel, command, section} = event.target.closest('button')?.dataset || {};
    if (place) explorer.openPlace(place, true);
    if (panel) explorer.togglePanel(panel);
    if (command) explorer.command(command);
    if (section !== undefined) explorer.openSection(section);
  },

  togglePanel(name) {
    const open = document.documentElement.dataset.panel === name;
    explorer.closePanels();
    if (open) return;
    explorer.openPanel(name, explorer.touch ? '' : 'input, select');
  },

  /* Open a panel; the first control that `focus` selects has the focus, as soon as it is there. */
  openPanel(name, focus) {
    document.documentElement.dataset.panel = name;
    explorer.markPanels();
    if (!focus) return;
    const panel = document.getElementById('panel-' + name);
    const go = () => {
      const control = panel.querySelector(`:is(${focus})`);
      if (!control?.offsetParent) return;
      panel.removeEventListener('filled', go, true);
      control.focus({preventScroll: true});
      control.select?.();
    };
    panel.addEventListener('filled', go, true);
    go();
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

  command(act, side) {
    if (act !== 'copy') explorer.closePanels();
    if (act === 'copy') explorer.copyLink();
    else if (act === 'keys') document.getElementById('keys')?.showModal();
    else explorer.choose({do: act, side: side || 'a'});
  },

  async copyLink() {
    explorer.settle();
    const say = words => document.querySelectorAll('[data-command=copy]').forEach(button => {
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
      if (!files(event) || event.target.closest('[data-upload]')) return;
      event.preventDefault();
      event.stopPropagation();
      explorer.openFile(event.dataTransfer.files[0]);
    }, true);
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
  const act = {']': ['next', 'a'], '[': ['previous', 'a'], '}': ['next', 'b'], '{': ['previous', 'b'],
    x: ['swap'], '?': ['keys']}[event.key];
  if (act && document.documentElement.dataset.place !== 'learn') explorer.command(...act);
});

document.addEventListener('pointerdown', event => {
  if (!event.target.closest('.drawer, #chips')) explorer.closePanels();
});

explorer.acceptDrops();
