/* The picker of a scheme: a combobox whose list has groups (ARIA 1.2). A click marks the text, typing
   filters, Enter takes what is marked; a text that no name fits goes to the server, which reads it as a
   scheme's text or says why not. The box shows what is chosen: it changes when the answer does. */
explorer.schemes = {
  get groups() {
    return this.read ??= JSON.parse(document.getElementById('schemes').textContent);
  },
  get byText() {
    return this.texts ??= new Map(this.groups.flatMap(([, rows]) => rows.map(row => [row.text, row])));
  },

  /* The names that were chosen during this visit, the last one first. */
  recent: [],
  used(text) {
    if (text) this.recent = [text, ...this.recent.filter(other => other !== text)].slice(0, 6);
  },

  /* What is offered for the typed words; nothing typed: what is chosen, listed and recent first, then all. */
  offered(typed, shown, none) {
    const words = this.plain(typed).split(/\s+/).filter(Boolean);
    const all = none ? [['', [{text: '', label: none, terms: []}]], ...this.groups] : this.groups;
    if (!words.length) {
      const record = explorer.record || {}, listed = (record.shortlist || '').split(',');
      const rows = document.querySelectorAll('.shortlist [data-scheme]');
      const inTable = [...rows].map(row => row.dataset.scheme);
      const first = [shown, record.scheme, record.second, ...listed, ...inTable, ...this.recent];
      const own = [...new Set(first)].filter(Boolean).slice(0, 8);
      return [['Chosen, shortlisted, recent', own.map(text => this.row(text))], ...all];
    }
    const fits = row => {
      const name = this.plain(row.label + ' ' + row.text);
      return words.every(word => name.includes(word));
    };
    const found = all.map(([group, rows]) => [group, rows.filter(fits)]).filter(([, rows]) => rows.length);
    const whole = this.plain(typed);
    const exact = row => row.text === typed.trim().toLowerCase() || this.plain(row.label) === whole;
    for (const [, rows] of found) rows.sort((a, b) => exact(b) - exact(a));
    return found.sort(([, a], [, b]) => b.some(exact) - a.some(exact));
  },
  plain: text => text.toLowerCase().replaceAll('×', 'x').trim(),
  row(text) { return this.byText.get(text) || {text, label: text, terms: []}; },
};

explorer.picker = (element, props, watch, side, none) => {
  const field = element.querySelector('input'), box = element.querySelector('.field');
  const label = element.querySelector('label'), about = element.querySelector('.terms');
  const id = 'schemes-' + side;
  let popup = null, options = [], active = -1, shown = '';

  const show = () => {
    shown = props.value || '';
    const known = explorer.schemes.byText.has(shown);
    label.textContent = !shown || known ? 'Scheme' : 'Scheme (custom)';
    field.placeholder = none || 'type to search';
    if (!popup) back();
    if (document.activeElement === field) field.select();  // typing replaces the name
    if (explorer.ready) explorer.schemes.used(shown);
    const {terms} = explorer.schemes.row(shown);
    about.replaceChildren(...terms.map(term => {
      const button = explorer.glossary.link(term);
      button.className = 'term';
      return button;
    }));
  };
  const back = () => { field.value = shown ? explorer.schemes.row(shown).label : none; };

  const open = typed => {
    if (!popup) {
      popup = document.createElement('div');
      popup.className = 'scheme-list';
      popup.append(document.createElement('ul'), document.createElement('p'));
      const [list, said] = popup.children;
      Object.assign(list, {id, className: 'option-list'});
      list.setAttribute('role', 'listbox');
      list.setAttribute('aria-label', 'Schemes');
      Object.assign(said, {id: id + '-about', className: 'explained'});
      popup.addEventListener('mousedown', event => event.preventDefault());
      popup.addEventListener('click', event => {
        const option = event.target.closest('[role=option]');
        if (option) take(option.dataset.text);
      });
      box.append(popup);
      field.setAttribute('aria-expanded', 'true');
      field.setAttribute('aria-controls', id);
    }
    fill(typed);
    place();
  };

  const fill = typed => {
    const groups = explorer.schemes.offered(typed, shown, none), list = popup.firstChild;
    let count = 0, chosen = false;
    list.replaceChildren(...groups.map(([name, rows], at) => {
      const group = document.createElement('li');
      group.setAttribute('role', name ? 'group' : 'presentation');
      if (name) {
        const head = document.createElement('span');
        Object.assign(head, {id: `${id}-group-${at}`, textContent: name, className: 'group-name'});
        head.setAttribute('aria-hidden', 'true');
        group.setAttribute('aria-label', name);
        group.append(head);
      }
      for (const row of rows) {
        const option = document.createElement('div'), selected = row.text === shown && !chosen;
        chosen ||= selected;
        Object.assign(option, {id: `${id}-${count++}`, textContent: row.label});
        option.dataset.text = row.text;
        option.setAttribute('role', 'option');
        option.setAttribute('aria-selected', selected);
        group.append(option);
      }
      return group;
    }));
    options = [...list.querySelectorAll('[role=option]')];
    list.scrollTop = 0;
    mark(typed ? 0 : options.findIndex(option => option.getAttribute('aria-selected') === 'true'));
    if (!options.length) {
      popup.lastChild.textContent = 'No name has these words. Enter reads them as a scheme’s text, such as '
        + 'int4_group48_asym.';
    }
  };

  const mark = at => {
    options[active]?.classList.remove('active');
    active = Math.min(at, options.length - 1);
    const option = options[active];
    if (!option) {
      field.removeAttribute('aria-activedescendant');
      popup.lastChild.textContent = '';
      return;
    }
    option.classList.add('active');
    field.setAttribute('aria-activedescendant', option.id);
    if (active) option.scrollIntoView({block: 'nearest'});
    const {terms} = explorer.schemes.row(option.dataset.text), {entries} = explorer.glossary;
    popup.lastChild.textContent = terms.map(term => `${entries[term].term}: ${entries[term].text}`).join(' ');
  };

  /* Below the box, or above it where there is more room; in the window, whatever scrolls around it. */
  const place = () => {
    if (!popup) return;
    const at = field.getBoundingClientRect(), below = innerHeight - at.bottom - 12, above = at.top - 12;
    const down = below >= Math.min(360, above);
    Object.assign(popup.style, {left: at.left + 'px', width: at.width + 'px',
      maxHeight: Math.min(down ? below : above, 460) + 'px',
      top: down ? at.bottom + 4 + 'px' : '', bottom: down ? '' : innerHeight - at.top + 4 + 'px'});
  };

  const close = () => {
    popup?.remove();
    popup = null;
    options = [];
    active = -1;
    field.setAttribute('aria-expanded', 'false');
    field.removeAttribute('aria-activedescendant');
    back();
  };

  const take = text => {
    close();
    if (innerWidth <= 640) explorer.closePanels();  // the sheet hides what was chosen for
    if (text === shown) return;
    explorer.choose(text || side === 'a' ? {do: 'scheme', side, text} : {do: 'clear'});
  };

  /* Before the browser puts the caret where the click points. A second click does that. */
  field.addEventListener('mousedown', event => {
    if (popup) return;
    event.preventDefault();
    field.focus({preventScroll: true});
    field.select();
    open('');
  });
  field.addEventListener('input', () => open(field.value));
  field.addEventListener('blur', close);
  field.addEventListener('keydown', event => {
    const {key} = event, step = {ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10}[key];
    if (step) {
      if (!popup) open('');
      else mark(Math.max(active + step, 0));
    } else if (key === 'Enter') {
      if (!popup) open('');
      else take(options[active]?.dataset.text ?? field.value.trim());
    } else if (key === 'Escape' && popup) {
      close();
      field.select();
      event.stopPropagation();
    } else return;
    event.preventDefault();
  });
  for (const happening of ['scroll', 'resize']) {
    addEventListener(happening, event => {
      if (!popup?.contains(event.target)) place();
    }, {passive: true, capture: true});
  }
  watch('value', show);
  show();
};
