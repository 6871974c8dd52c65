/* What is chosen is the address's record. A control says what the visitor does, an act; the bar's server function
   computes the next record from it, and every section on the screen shows its view of that. */
Object.assign(explorer, {
  /* Facts of the record that the bar shows: schemes, source, shape, the inspected element. Null at first. */
  record: null,

  /* True once the bar has shown the first record. */
  ready: false,

  /* Values that no address holds: the path of an uploaded file, which a reload keeps, and long texts. */
  local: {file: history.state?.file || sessionStorage.getItem('file') || ''},

  /* The record: what the address says, and what it cannot hold. */
  query() {
    const said = Object.fromEntries(new URLSearchParams(location.search));
    return {...said, ...Object.fromEntries(Object.entries(explorer.local).filter(([, value]) => value))};
  },

  /* Change the record. With `visit`, Back leads to what it was. An empty value takes a key out. */
  set(changes, visit = true) {
    if (visit) explorer.settle();
    explorer.notice('');
    explorer.refuseFile('');
    const linked = {...changes}, {file} = explorer.local;
    for (const key of Object.keys(changes)) {
      if (key in explorer.local) [explorer.local[key], linked[key]] = [changes[key], ''];
    }
    if (changes.file) sessionStorage.setItem('file', changes.file);
    explorer.writeQuery(linked, visit, file !== explorer.local.file);
    explorer.recordChanged();
    if (!('tab' in changes)) return;
    const {place, section} = explorer.placeOf(new URLSearchParams(location.search));
    explorer.showPlace(place);
    explorer.arrive(section);
  },

  /* Keys whose values mean nothing leave the address: what is shown is of the usual ones. */
  drop(keys) {
    explorer.writeQuery(Object.fromEntries(keys.map(key => [key, null])), false);
    explorer.known = explorer.query();
  },

  /* Sections that read a key which has changed show it, those on the screen at once: the first screen before
     what stands below it. */
  known: null,
  recordChanged() {
    const before = explorer.known || {}, now = explorer.known = explorer.query();
    const same = key => (before[key] || '') === (now[key] || '');
    const changed = [...explorer.sections.values()].filter(section => !section.keys.every(same));
    for (const section of changed) section.stale = true;
    const first = changed.filter(section => section.eager && section.follows);
    const rest = () => changed.forEach(section => section.refresh());
    if (first.length) Promise.all(first.map(section => section.refresh())).finally(rest);
    else rest();
  },

  /* --- acts ------------------------------------------------------------------------------------------ */

  /* Acts that were not sent yet. What waits is sent together, after the answer to those before. */
  acts: [],

  /* Do these acts (app/state/record.py). One that has a `place` leads there when it is done. */
  async choose(...acts) {
    explorer.acts.push(...acts);
    if (explorer.choosing) return;
    explorer.choosing = true;
    while (explorer.acts.length) await explorer.chooseNow(explorer.acts.splice(0)).catch(console.error);
    explorer.choosing = false;
  },

  async chooseNow(acts) {
    const bar = await explorer.bar, {visits} = explorer, file = acts.find(act => act.do === 'file');
    const answer = await bar.call('act', {...explorer.query(), act: 'choose', what: JSON.stringify({acts})});
    if (visits !== explorer.visits) return;  // Back has led elsewhere meanwhile
    if (answer.refused) {
      if (file) explorer.refuseFile(file.name, answer.refused);
      else explorer.notice(answer.refused);
      for (const name of ['panel-tensor', 'panel-a', 'panel-b']) explorer.sections.get(name)?.restore();
      return;
    }
    const to = acts.findLast(act => act.place)?.place;
    explorer.set({...answer.set, ...to ? explorer.addressOf(to, '') : {}});
    for (const words of answer.notices || []) explorer.notice(words);
    if (to) explorer.closePanels();
  },

  /* A run of a section has ended: what it has made may be shown by others. */
  ran(section) {
    for (const one of explorer.sections.values()) {
      if (one !== section && !one.eager && one.box.offsetParent) one.behind();
    }
  },

  /* --- the bar ----------------------------------------------------------------------------------------- */

  /* The bar's section, as soon as it is there. */
  bar: new Promise(there => { window.barIsThere = there; }),

  barSection(section) {
    const {element} = section;
    window.barIsThere(section);
    section.near = true;
    element.addEventListener('click', explorer.barClicked);
    explorer.contents.start(element);
    element.addEventListener('filled', ({detail}) => {
      if (!detail?.record) return;
      explorer.record = JSON.parse(detail.record);
      explorer.showSource(explorer.record.source);
      explorer.markPanels();
      if (explorer.ready) return;
      explorer.ready = true;
      explorer.start();
    });
  },

  /* A panel of a scheme: the picker holds what is chosen. */
  schemePanel(section) {
    const box = section.element.querySelector('[data-picker]'), {picker, none} = box.dataset;
    const props = {value: ''};
    let shown = () => {};
    explorer.picker(box, props, (_, then) => { shown = then; }, picker, none);
    section.element.addEventListener('filled', ({detail}) => {
      if (detail?.chosen === undefined) return;
      props.value = detail.chosen;
      shown();
    });
  },

  /* A native control of the bar's panels has another value. */
  barChanged(target) {
    const {source, does, part} = target.dataset;
    if (source !== undefined) {
      explorer.showSource(target.value);
      if (target.value === 'builtin') explorer.choose({do: 'sample', name: explorer.record?.sample || ''});
      return;
    }
    const panel = target.closest('.drawer');
    const at = name => panel.querySelector(`[data-of=${name}]`)?.value || '';
    const model = {model: at('model'), revision: at('revision')};
    if (does === 'layer') explorer.choose({do: 'layer', ...model, layer: target.value});
    else if (does === 'model') explorer.choose({do: 'model', ...model});
    else if (does) explorer.choose({do: does, name: target.value});
    if (['layer', 'tensor', 'sample'].includes(does)) explorer.closePanels();
    if (part) explorer.chooseParts(panel);
  },

  chooseParts(panel) {
    const parts = [...panel.querySelectorAll('[data-part]')].map(control => {
      if (control.matches('fieldset')) return [...control.querySelectorAll(':checked')].map(({value}) => value);
      if (control.type === 'checkbox') return control.checked;
      return control.type === 'number' ? control.valueAsNumber : control.value;
    });
    explorer.choose({do: 'parts', side: panel.querySelector('[data-side]').dataset.side, parts});
  },

  /* A line below the bar, until it is dismissed or another one comes. */
  notice(words) {
    document.querySelectorAll('.page-notice').forEach(line => line.remove());
    if (!words) return;
    const line = document.createElement('div');
    Object.assign(line, {className: 'status page-notice', textContent: words});
    line.setAttribute('role', 'status');
    line.append(Object.assign(document.createElement('button'), {type: 'button', textContent: '×'}));
    Object.assign(line.lastChild.dataset, {dismiss: ''});
    line.lastChild.setAttribute('aria-label', 'Dismiss');
    document.getElementById('notice').append(line);
  },

  /* Callbacks for the query at each visit, in addition to sections' views. */
  readers: [],
  visits: 0,
});

document.addEventListener('change', ({target}) => {
  if (target.closest?.('.drawer')) explorer.barChanged(target);
});
document.addEventListener('click', ({target}) => {
  const list = target.closest?.('[data-list-layers]');
  if (list) explorer.barChanged(list.closest('.drawer').querySelector('[data-of=model]'));
});

/* Back and Forward. */
addEventListener('popstate', () => {
  const query = new URLSearchParams(location.search), {place, section} = explorer.placeOf(query);
  explorer.visits += 1;
  explorer.noted = {};
  explorer.notice('');
  explorer.refuseFile('');
  explorer.local.file = history.state?.file ?? explorer.local.file;
  explorer.acts = [];
  explorer.closePanels();
  const moved = place !== document.documentElement.dataset.place || section !== explorer.sectionAtTop();
  explorer.showPlace(place);
  explorer.leave?.();  // on the way to where the address before led
  if (moved) explorer.arrive(section);
  for (const read of explorer.readers) read(query);
  explorer.recordChanged();
});
