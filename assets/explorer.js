/* What the page does in the browser itself. Loaded once, in the page's head; Gradio's listeners and the
   hidden components of app/widgets.py call it by name. */
window.explorer = {
  /* True once the first link has been read and shown. */
  ready: false,

  /* Counts the selections that were shown: what a section has shown is stale when this has grown. */
  version: 0,

  /* --- places and sections ------------------------------------------------------------------------- */

  /* By every name that a link may give as `tab`: the place and the section that hold it. */
  places: {},
  sections: new Map(),

  header(element) {
    const nav = element.querySelector('nav');
    explorer.places = JSON.parse(nav.dataset.places);
    nav.addEventListener('click', event => {
      const button = event.target.closest('button[data-place]');
      if (button) explorer.openPlace(button.dataset.place, '', true);
    });
    explorer.showPlace(explorer.placeOf(new URLSearchParams(location.search)).place);
  },

  /* Place and section of an address. */
  placeOf(query) {
    const [place, section] = explorer.places[query.get('tab')] || ['tensor', ''];
    return {place, section: query.get('section') || section};
  },

  showPlace(name) {
    document.documentElement.dataset.place = name;
    for (const button of document.querySelectorAll('nav button[data-place]')) {
      if (button.dataset.place === name) button.setAttribute('aria-current', 'page');
      else button.removeAttribute('aria-current');
    }
  },

  /* Open a place; with a section, scroll to it. `visit`: a new entry of the browser's history. */
  openPlace(name, section, visit) {
    explorer.closePanels();
    const before = document.documentElement.dataset.place;
    explorer.showPlace(name);
    if (visit) explorer.writeQuery({tab: name, section: section || null}, before !== name);
    if (section) document.getElementById('section-' + section)?.scrollIntoView({block: 'start'});
    else if (before !== name) scrollTo(0, 0);
  },

  /* A section of the page calls `seen()` when it is on the screen, or nearly, and does not show the selection
     yet. */
  section(element, name, seen) {
    const section = {seen, near: false, shown: 0, box: element.closest('.section')};
    explorer.sections.set(name, section);
    new IntersectionObserver(entries => {
      section.near = entries.at(-1).isIntersecting;
      explorer.refresh(section);
    }, {rootMargin: '150px'}).observe(section.box);
  },

  refresh(section) {
    if (!section.near || section.shown === explorer.version) return;
    section.shown = explorer.version;
    section.seen();
  },

  /* --- the address ----------------------------------------------------------------------------------- */

  /* Called when the first link has set the controls. */
  start() {
    const {place, section} = explorer.placeOf(new URLSearchParams(location.search));
    explorer.openPlace(place, '', false);
    explorer.showSource(new URLSearchParams(location.search).get('source') || 'builtin');
    if (section) explorer.scrollWhenStill(section);
  },

  /* Scroll to a section once what stands above it has its height. */
  scrollWhenStill(section) {
    const box = document.getElementById('section-' + section);
    let last = -1, calm = 0;
    const look = () => {
      const top = box ? box.offsetTop : 0;
      calm = top === last ? calm + 1 : 0;
      last = top;
      box?.scrollIntoView({block: 'start'});
      if (calm < 5 && performance.now() - began < 4000) setTimeout(look, 100);
    };
    const began = performance.now();
    look();
  },

  /* The selection has changed: write it to the address, then call what `onChange` was given. `names` are the
     fields of Selection; after what they hold, `values` has row, column, and whether the largest error is
     followed instead. With `visit`, Back leads to the selection before. */
  changed(names, values, visit) {
    const chosen = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    const [row, column, follow] = values.slice(names.length);
    const ofSource = {builtin: ['sample'], model: ['model', 'revision', 'layer']}[chosen.source] || [];
    const changes = {};
    for (const key of ['source', 'sample', 'model', 'revision', 'layer', 'scheme', 'second']) {
      const kept = ['source', 'scheme', 'second'].includes(key) || ofSource.includes(key);
      changes[key] = kept && chosen[key] ? chosen[key] : null;
    }
    changes.row = follow ? null : row;
    changes.column = follow ? null : column;
    explorer.showSource(chosen.source);
    explorer.markPanels();
    explorer.writeQuery(changes, visit);
    const tensor = JSON.stringify({...chosen, scheme: null, second: null});
    if (explorer.tensor && explorer.tensor !== tensor) explorer.left?.();
    explorer.tensor = tensor;
    const now = JSON.stringify(values.slice(0, names.length));
    if (visit && now === explorer.chosen) return;
    explorer.chosen = now;
    explorer.follow?.();
  },

  /* Call `left()` when another tensor has been chosen. */
  onTensor(left) {
    explorer.left = left;
  },

  /* Call `follow()` after each change of the selection. */
  onChange(follow) {
    explorer.follow = follow;
  },

  /* The selection is shown, with this element: the sections on the screen are next. */
  answered(row, column, follow) {
    explorer.writeElement(row, column, follow, false);
    explorer.ready = true;
    explorer.version += 1;
    explorer.sections.forEach(explorer.refresh);
  },

  writeElement(row, column, follow, visit) {
    explorer.writeQuery({row: follow ? null : row, column: follow ? null : column}, visit);
  },

  /* Another element is inspected: mark it on the maps and put it into the address. */
  showElement(row, column, follow, visit) {
    explorer.writeElement(row, column, follow, visit);
    for (const plot of document.querySelectorAll('#error-map .figure, #error-map-b .figure')) {
      const marks = (plot.data || []).flatMap((trace, at) => trace.type === 'scatter' ? [at] : []);
      const each = value => marks.map(() => [value]);
      if (marks.length) Plotly.restyle(plot, {x: each(column), y: each(row)}, marks);
    }
  },

  /* Change the address's query; null takes a key out. With `visit`, Back leads to what it was. */
  writeQuery(changes, visit) {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === '') query.delete(key);
      else query.set(key, value);
    }
    // URLSearchParams escapes the ~ of a scheme's text, which needs no escape (RFC 3986, 2.3).
    const address = location.pathname + '?' + query.toString().replaceAll('%7E', '~');
    if (address === location.pathname + location.search) return;
    history[visit ? 'pushState' : 'replaceState'](null, '', address);
  },

  /* Call `visit(query)` when the visitor goes back or forward. */
  onVisit(visit) {
    addEventListener('popstate', () => {
      const {place, section} = explorer.placeOf(new URLSearchParams(location.search));
      explorer.openPlace(place, section, false);
      visit(location.search);
    });
  },

  /* --- the bar and its panels ------------------------------------------------------------------------ */

  chips(element) {
    element.addEventListener('click', event => {
      const button = event.target.closest('button');
      if (button?.dataset.panel) explorer.togglePanel(button.dataset.panel);
      if (button?.dataset.act) explorer.act(button.dataset.act);
    });
  },

  togglePanel(name) {
    const open = document.documentElement.dataset.panel === name;
    explorer.closePanels();
    if (open) return;
    document.documentElement.dataset.panel = name;
    explorer.markPanels();
    const first = {a: '#preset input', b: '#second-preset input'}[name];
    if (!first || explorer.touch) return;
    document.querySelector(first)?.focus({preventScroll: true});
    for (const wait of [50, 150, 400]) {
      setTimeout(() => explorer.showChosen(document.querySelector(`#panel-${name} ul.options`)), wait);
    }
  },

  /* Gradio opens a long list at its end: scroll it to what is chosen. */
  showChosen(list) {
    const chosen = list?.querySelector('[aria-selected="true"]');
    if (chosen) list.scrollTop = chosen.offsetTop - list.clientHeight / 3;
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

  /* Of the controls of the tensor, only those of the chosen source are shown. */
  showSource(source) {
    document.documentElement.dataset.source = source || 'builtin';
    return source;
  },

  /* --- keys ------------------------------------------------------------------------------------------ */

  act(act, side) {
    if (act === 'copy') explorer.copyLink();
    else if (act === 'keys') document.getElementById('keys').showModal();
    else explorer.acted?.({act, side: side || 'a'});
  },

  /* Call `acted({act, side})` for what concerns both schemes. */
  onAct(acted) {
    explorer.acted = acted;
  },

  /* Call `moved({rows, columns})` for steps over the matrix by arrow keys. */
  onMove(moved) {
    explorer.moved = moved;
  },

  async copyLink() {
    const button = document.querySelector('#chips [data-act=copy]');
    let words = 'Copied';
    try {
      await navigator.clipboard.writeText(location.href);
    } catch (refused) {
      words = 'Copy it from the address bar';
    }
    button.textContent = words;
    setTimeout(() => { document.querySelector('#chips [data-act=copy]').textContent = 'Copy link'; }, 1500);
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
    addEventListener('drop', async event => {
      delete document.documentElement.dataset.drop;
      if (!files(event) || event.target.closest('.section .block')?.querySelector('input[type=file]')) return;
      event.preventDefault();
      event.stopPropagation();
      const transfer = new DataTransfer();
      transfer.items.add(event.dataTransfer.files[0]);
      explorer.openPlace('tensor', '', true);
      explorer.showSource('file');
      const input = await explorer.emptyFileInput();
      if (!input) return;
      input.files = transfer.files;
      input.dispatchEvent(new Event('change', {bubbles: true}));
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
  if (event.key === 'Escape') {
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
    explorer.moved?.({rows: steps[0], columns: steps[1]});
    return;
  }
  const act = {']': ['next', 'a'], '[': ['previous', 'a'], '}': ['next', 'b'], '{': ['previous', 'b'],
    x: ['swap'], '?': ['keys']}[event.key];
  if (act && document.documentElement.dataset.place !== 'learn') explorer.act(...act);
});

/* A list of Gradio's stays open when Tab leaves it: close it as Escape does. */
document.addEventListener('keydown', event => {
  if (event.key !== 'Tab' || event.target.getAttribute?.('role') !== 'listbox') return;
  event.target.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape', bubbles: false}));
}, true);

document.addEventListener('pointerdown', event => {
  if (!event.target.closest('.drawer, #chips')) explorer.closePanels();
});

explorer.acceptDrops();
explorer.sortByHeadings();
