/* Places, sections and the address, which is what a link carries and what Back and Forward lead to. */
Object.assign(explorer, {
  /* --- places and sections ------------------------------------------------------------------------- */

  /* By every name that a link may give as `tab`: the place and the section that hold it. */
  places: {},

  /* By the name of a section that has moved: the same. */
  moved: {},

  /* Sections by name (assets/section.js). */
  sections: new Map(),

  header(element) {
    const nav = element.querySelector('nav');
    explorer.places = JSON.parse(nav.dataset.places);
    explorer.moved = JSON.parse(nav.dataset.moved);
    element.addEventListener('click', explorer.barClicked);
    explorer.showPlace(explorer.placeOf(new URLSearchParams(location.search)).place);
  },

  /* Place and section of an address. */
  placeOf(query) {
    const tab = query.get('tab'), named = query.get('section');
    if (Object.hasOwn(explorer.moved, named)) {
      const [place, section] = explorer.moved[named];
      return {place, section};
    }
    const [place, section] = Object.hasOwn(explorer.places, tab) ? explorer.places[tab] : ['tensor', ''];
    return {place, section: named || section};
  },

  /* Place and section in the URL; "" is the beginning of the place. */
  addressOf(place, section) {
    return {tab: place === 'tensor' ? null : place, section};
  },

  showPlace(name) {
    explorer.read = '';
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
    if (visit) {
      explorer.settle();
      if (explorer.read) explorer.writeQuery({section: explorer.read}, false);
    }
    explorer.showPlace(name);
    if (visit) explorer.writeQuery(explorer.addressOf(name, ''), true);
    explorer.arrive('');
  },

  /* The last section that was gone to, and how far the page was scrolled then. */
  arrived: {},

  /* The section that begins in the window's upper third, the first of several; else the one that began above
     it; "" above the first one. At the page's end the last one, or the one that was gone to. */
  sectionAtTop() {
    const root = document.documentElement, shown = [];
    for (const [name, {box}] of explorer.sections) if (box.offsetHeight && box.matches('.section')) shown.push([name, box]);
    if (scrollY < 2) return '';
    const {section, at} = explorer.arrived;
    if (scrollY + innerHeight > root.scrollHeight - 2) {
      return (at === scrollY && shown.some(([name]) => name === section) ? section : shown.at(-1)?.[0]) || '';
    }
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
    box.querySelector('.fold:not([open]) > summary')?.click();  // a section that is folded
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
      explorer.arrived = {section, at: scrollY};
      explorer.contents.markLater();
      if (!explorer.ready || (calm < 10 && performance.now() - began < 8000)) setTimeout(hold, 100);
      else setTimeout(leave, 200);
    };
    explorer.leave = box && leave;
    if (box) hold();
    else scrollTo({top: 0, behavior: 'instant'});
  },

  /* Where a visitor read who scrolls up to the header, which is out of sight there: Back leads to it. */
  read: '',

  /* Scrolling writes the section that is at the top; arriving at one does not. */
  watchScroll() {
    let waiting = 0, last = 0;
    addEventListener('click', ({target}) => {
      if (!target.closest('#header')) explorer.read = '';
    }, true);
    for (const hand of ['wheel', 'touchmove', 'keydown', 'pointerdown']) {
      addEventListener(hand, () => explorer.leave?.(), {passive: true, capture: true});
    }
    addEventListener('scroll', () => {
      if (scrollY > last) explorer.read = '';
      else explorer.read ||= explorer.placeOf(new URLSearchParams(location.search)).section;
      last = scrollY;
      clearTimeout(waiting);
      waiting = setTimeout(explorer.settle, 150);
    }, {passive: true});
  },

  /* --- the address ----------------------------------------------------------------------------------- */

  /* Called when the first record is shown. */
  start() {
    const {section} = explorer.placeOf(new URLSearchParams(location.search));
    if (section) explorer.arrive(section);
    explorer.watchScroll();
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

  /* Change the address's query. With `visit`, Back leads to what it was; `anew`: also where the query is the
     same, of another file. An entry keeps the file's path, which no address holds. */
  writeQuery(changes, visit, anew = false) {
    const search = explorer.queryWith(location.search, changes);
    if (search === location.search && !anew) return;
    const {file} = explorer.local;
    history[visit ? 'pushState' : 'replaceState']({file}, '', location.pathname + search);
  },
});
