/* Places, sections and the address, which is what a link carries and what Back and Forward lead to. */
Object.assign(explorer, {
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
    element.addEventListener('click', explorer.barClicked);
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
     yet. One that has a title is in the bar's list. */
  section(element, name, title, seen) {
    const section = {seen, title, near: false, shown: 0, drawn: false, box: element.closest('.section')};
    explorer.sections.set(name, section);
    explorer.contents.fill();
    new IntersectionObserver(entries => {
      section.near = entries.at(-1).isIntersecting;
      explorer.refresh(section);
    }, {rootMargin: '150px'}).observe(section.box);
  },

  /* A section shows what was chosen when it was last seen. */
  sectionShown(name) {
    const section = explorer.sections.get(name);
    section.drawn = true;
    section.box.toggleAttribute('data-behind', explorer.sampled || section.shown !== explorer.version);
  },

  refresh(section) {
    if (!section.near || section.shown === explorer.version) return;
    section.shown = explorer.version;
    section.seen();
  },

  /* The section that begins in the window's upper third, the first of several; else the one that began above
     it; "" above the first one. */
  sectionAtTop() {
    const root = document.documentElement, shown = [];
    for (const [name, {box}] of explorer.sections) if (box.offsetHeight) shown.push([name, box]);
    if (scrollY < 2) return '';
    if (scrollY + innerHeight > root.scrollHeight - 2) return shown.at(-1)?.[0] || '';
    const bar = explorer.contents.bottom(), top = ([, box]) => box.getBoundingClientRect().top;
    const above = shown.findLast(one => top(one) < bar + 30);
    const begins = shown.find(one => top(one) >= bar - 8 && top(one) < innerHeight / 3);
    return (begins || above)?.[0] || '';
  },

  /* Scroll to a section of the place, a new entry of the browser's history; keys go on from there. */
  openSection(name) {
    explorer.settle();
    explorer.writeQuery(explorer.addressOf(document.documentElement.dataset.place, name), true);
    explorer.arrive(name);
    const box = document.getElementById('section-' + name);
    if (!box) return;
    box.querySelector(`#${name} > button.label-wrap:not(.open)`)?.click();  // a section that is folded
    box.tabIndex = -1;
    box.focus({preventScroll: true});
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

  /* Called when the first answer is shown. */
  start() {
    const {section} = explorer.placeOf(new URLSearchParams(location.search));
    if (section) explorer.arrive(section);
    explorer.watchScroll();
  },

  /* A control of a section that the address keeps: nothing for what it holds on a fresh page, for an
     empty one, for what is longer than `most`, and for a number that is not above the first and at most the
     second of `within`. What follows a step is not written where Back or Forward has led meanwhile. */
  keep(key, value, fresh, visit, most, within) {
    const asked = [...explorer.acts, ...explorer.sent?.acts || []];
    if (!visit && asked.some(act => act.do === 'visit')) return;
    if (visit) explorer.settle();
    const text = key === 'shape' ? String(value).replaceAll('×', 'x') : String(value);
    const outside = within && !(value > within[0] && value <= within[1]);
    const left = value === null || text === String(fresh) || (most !== null && text.length > most) || outside;
    explorer.writeQuery({[key]: left ? null : text}, visit);
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

  /* A query with changes; null and "" take a key out. */
  queryWith(search, changes) {
    const query = new URLSearchParams(search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === '') query.delete(key);
      else query.set(key, value);
    }
    // URLSearchParams escapes the ~ of a scheme's text, which needs no escape (RFC 3986, 2.3).
    const text = query.toString().replaceAll('%7E', '~');
    return text && '?' + text;
  },

  /* Change the address's query. With `visit`, Back leads to what it was. */
  writeQuery(changes, visit) {
    const search = explorer.queryWith(location.search, changes);
    if (search === location.search) return;
    history[visit ? 'pushState' : 'replaceState'](null, '', location.pathname + search);
    if (!explorer.sent) explorer.shownAddress = location.search;
  },
});

explorer.linked();
