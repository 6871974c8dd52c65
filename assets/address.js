/* Places, sections and the address. The address is what a link carries and what Back and Forward lead to: a
   change of the visitor's writes it, going back or forward reads it. */
Object.assign(explorer, {
  /* True once the first link has been read and shown. */
  ready: false,

  /* Counts the selections that were shown: what a section has shown is stale when this has grown. */
  version: 0,

  /* Number of times the visitor went back or forward, now and at the start of each pending change. */
  visits: 0,
  begun: [],

  /* Row and column of the inspected element, and whether the largest error is followed instead. */
  position: [null, null, true],

  /* The element that was shown last, as the controls held it. */
  stood: [0, 0, true],

  /* --- places and sections ------------------------------------------------------------------------- */

  /* By every name that a link may give as `tab`: the place and the section that hold it. */
  places: {},
  sections: new Map(),

  header(element) {
    const nav = element.querySelector('nav');
    explorer.places = JSON.parse(nav.dataset.places);
    element.addEventListener('click', event => {
      const button = event.target.closest('button');
      if (button?.dataset.place) explorer.openPlace(button.dataset.place, true);
      if (button?.dataset.act) explorer.act(button.dataset.act);
    });
    explorer.showPlace(explorer.placeOf(new URLSearchParams(location.search)).place);
  },

  /* Place and section of an address. */
  placeOf(query) {
    const tab = query.get('tab');
    const [place, section] = Object.hasOwn(explorer.places, tab) ? explorer.places[tab] : ['tensor', ''];
    return {place, section: query.get('section') || section};
  },

  /* Place and section in the URL; "" is the beginning of the place. */
  addressOf(place, section) {
    return {tab: place === 'tensor' ? null : place, section};
  },

  /* A link's view is another than the one that comes with the page: until it is there, none is shown. */
  linked() {
    const query = new URLSearchParams(location.search);
    const own = ['source', 'sample', 'scheme', 'second'].some(key => query.has(key));
    document.documentElement.toggleAttribute('data-linked', own);
  },

  showPlace(name) {
    document.documentElement.dataset.place = name;
    for (const button of document.querySelectorAll('nav button[data-place]')) {
      if (button.dataset.place === name) button.setAttribute('aria-current', 'page');
      else button.removeAttribute('aria-current');
    }
  },

  /* Open a place at its beginning. `visit`: a new entry of the browser's history. */
  openPlace(name, visit) {
    explorer.closePanels();
    if (document.documentElement.dataset.place === name) return;
    if (visit) explorer.settle();
    explorer.showPlace(name);
    if (visit) explorer.writeQuery(explorer.addressOf(name, ''), true);
    explorer.arrive('');
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

  /* The section whose beginning was scrolled to the top of the window or beyond; "" above the first one. */
  sectionAtTop() {
    const root = document.documentElement, shown = [];
    for (const [name, {box}] of explorer.sections) if (box.offsetHeight) shown.push([name, box]);
    if (scrollY < 2) return '';
    if (scrollY + innerHeight > root.scrollHeight - 2) return shown.at(-1)?.[0] || '';
    return shown.findLast(([, box]) => box.getBoundingClientRect().top < 140)?.[0] || '';
  },

  /* Scroll to a section, to the place's beginning for "", and stay there while what stands above gets its
     height, unless a hand scrolls. */
  arrive(section) {
    const box = document.getElementById('section-' + section), began = performance.now();
    const leave = () => { if (explorer.leave === leave) explorer.leave = null; };
    let last = -1, calm = 0;
    const hold = () => {
      if (explorer.leave !== leave) return;
      calm = box.offsetTop === last ? calm + 1 : 0;
      last = box.offsetTop;
      box.scrollIntoView({block: 'start', behavior: 'instant'});
      if (!explorer.ready || (calm < 10 && performance.now() - began < 8000)) setTimeout(hold, 100);
      else setTimeout(leave, 200);
    };
    explorer.leave = box && leave;
    if (box) hold();
    else scrollTo({top: 0, behavior: 'instant'});
  },

  /* Scrolling writes the section that is at the top; arriving at one does not. */
  watchScroll() {
    let waiting = 0;
    for (const hand of ['wheel', 'touchmove', 'keydown', 'pointerdown']) {
      addEventListener(hand, () => explorer.leave?.(), {passive: true, capture: true});
    }
    addEventListener('scroll', () => {
      clearTimeout(waiting);
      waiting = setTimeout(explorer.settle, 150);
    }, {passive: true});
  },

  /* --- the address ----------------------------------------------------------------------------------- */

  /* Called when the first link has set the controls. */
  start() {
    const query = new URLSearchParams(location.search), {section} = explorer.placeOf(query);
    history.scrollRestoration = 'manual';
    explorer.showSource(query.get('source') || 'builtin');
    if (section) explorer.arrive(section);
    explorer.watchScroll();
  },

  /* A change of the selection or of the element begins: `values` go to the server. */
  began(values) {
    explorer.begun.push(explorer.visits);
    return values;
  },

  /* A file was brought, and may be refused: that has to be said although the selection stays as it was. */
  brought(values) {
    explorer.chosen = null;
    return explorer.began(values);
  },

  /* Such a change ends. True if the visitor has gone back or forward since it began: then the address holds,
     and the controls are set by it again. */
  outdated() {
    if ((explorer.begun.shift() ?? explorer.visits) === explorer.visits) return false;
    explorer.visit();
    return true;
  },

  /* The selection has changed: write it to the address, then call what `onChange` was given. `names` are the
     fields of Selection, `values` what they hold. With `visit` it was changed by the visitor, and Back leads
     to the selection before; otherwise the address has set it. */
  changed(names, values, visit) {
    if (visit && explorer.outdated()) return;
    const chosen = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    const ofSource = {builtin: ['sample'], file: ['file_tensor'], model: ['model', 'revision', 'layer']};
    const changes = {};
    for (const name of names) {
      const kept = ['source', 'scheme', 'second'].includes(name) || ofSource[chosen.source]?.includes(name);
      changes[name] = kept ? chosen[name] : null;
    }
    explorer.showSource(chosen.source);
    explorer.markPanels();
    if (visit) explorer.settle();
    else explorer.position = explorer.positionOf(new URLSearchParams(location.search));
    explorer.writeQuery({...changes, ...explorer.elementOf(explorer.position)}, visit);
    const tensor = JSON.stringify({...chosen, scheme: null, second: null});
    if (explorer.tensor && explorer.tensor !== tensor) explorer.left?.();
    explorer.tensor = tensor;
    const now = JSON.stringify(values);
    if (visit && now === explorer.chosen) return;
    explorer.chosen = now;
    explorer.chosenAnew?.();
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

  /* Call `chosenAnew()` as soon as the selection is another one, before anything is computed of it. */
  onChosen(chosenAnew) {
    explorer.chosenAnew = chosenAnew;
  },

  /* The selection goes to be shown. `values` end with what the controls hold of the position, which an
     answer that was overtaken may have written, and why a file was refused. */
  asked(values) {
    explorer.shown = explorer.position;
    return [...values.slice(0, -4), ...explorer.position, values.at(-1)];
  },

  /* The selection is shown, with this element, the nearest to the one that was asked for: the sections on the
     screen are next. If another element was chosen in between, that one has to be shown. */
  answered(...position) {
    const overtaken = explorer.shown !== explorer.position;
    if (!position.includes(null)) explorer.stood = position;
    if (!overtaken) explorer.inspected = null;  // the maps that come with the answer have their ring
    if (!overtaken && !position[2]) explorer.position = position;
    explorer.writeQuery(explorer.elementOf(explorer.position), false);
    explorer.ready = true;
    delete document.documentElement.dataset.linked;
    explorer.version += 1;
    explorer.sections.forEach(explorer.refresh);
    if (overtaken) explorer.follow();
  },

  /* Another element is inspected: mark it on the maps and put it into the address. Returns what the controls
     hold; an emptied box goes back to the element that is shown. */
  showElement(...held) {
    const visit = held.pop(), [row, column] = held;
    if (explorer.outdated()) return held;
    if (held.includes(null)) return explorer.stood;
    explorer.position = explorer.stood = held;
    if (visit) explorer.settle();
    explorer.writeQuery(explorer.elementOf(explorer.position), visit);
    explorer.inspected = {row, column};
    document.querySelectorAll('#error-map .figure, #error-map-b .figure').forEach(explorer.markElement);
    return held;
  },

  /* Put the ring of a map around the inspected element. */
  inspected: null,
  markElement(plot) {
    const marks = (plot.data || []).flatMap((trace, at) => trace.type === 'scatter' ? [at] : []);
    if (!marks.length || !explorer.inspected) return;
    const each = value => marks.map(() => [value]);
    Plotly.restyle(plot, {x: each(explorer.inspected.column), y: each(explorer.inspected.row)}, marks);
  },

  /* A position in the address, and back. */
  elementOf([row, column, follow]) {
    return {row: follow ? null : row, column: follow ? null : column};
  },
  positionOf(query) {
    const whole = key => /^\d{1,9}$/.test(query.get(key)) ? query.get(key) : null;
    const row = whole('row'), column = whole('column');
    return row === null || column === null ? [null, null, true] : [Number(row), Number(column), false];
  },

  /* A control of a section that the address keeps: nothing for what it holds on a fresh page. */
  keep(key, value, fresh, visit) {
    if (visit) explorer.settle();
    explorer.writeQuery({[key]: value === fresh ? null : String(value).replaceAll('×', 'x')}, visit);
  },

  /* Values that change with every key or frame are written when they settle. */
  noted: {},
  note(changes) {
    Object.assign(explorer.noted, changes);
    clearTimeout(explorer.noting);
    explorer.noting = setTimeout(explorer.settle, 150);
  },

  /* Write what waits: notes, and the section at the top, if the visitor scrolled there. */
  settle() {
    const noted = explorer.noted, place = document.documentElement.dataset.place;
    explorer.noted = {};
    if (explorer.ready && !explorer.leave) {
      Object.assign(noted, explorer.addressOf(place, explorer.sectionAtTop()));
    }
    explorer.writeQuery(noted, false);
  },

  /* Change the address's query; null and "" take a key out. With `visit`, Back leads to what it was. */
  writeQuery(changes, visit) {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === '') query.delete(key);
      else query.set(key, value);
    }
    // URLSearchParams escapes the ~ of a scheme's text, which needs no escape (RFC 3986, 2.3).
    const text = query.toString().replaceAll('%7E', '~'), address = location.pathname + (text && '?' + text);
    if (address === location.pathname + location.search) return;
    history[visit ? 'pushState' : 'replaceState'](null, '', address);
  },

  /* Open what a link with this query would open, as a step that Back takes back. */
  go(query) {
    explorer.settle();
    history.pushState(null, '', `${location.pathname}?${query}`);
    dispatchEvent(new PopStateEvent('popstate'));
  },

  /* Callbacks for the URL's query at each visit, in addition to setting the controls. */
  readers: [],

  /* Call `visit()` when the visitor goes back or forward. What was pressed before and waits is dropped. */
  onVisit(visit) {
    explorer.visit = visit;
    addEventListener('popstate', () => {
      const query = new URLSearchParams(location.search), {place, section} = explorer.placeOf(query);
      explorer.visits += 1;
      explorer.noted = {};
      explorer.takeActs();
      explorer.takeSteps();
      explorer.closePanels();
      const moved = place !== document.documentElement.dataset.place || section !== explorer.sectionAtTop();
      explorer.showPlace(place);
      if (moved) explorer.arrive(section);
      for (const read of explorer.readers) read(query);
      visit();
    });
  },
});

explorer.linked();
