/* Sections: each is one component whose slots a view of the address's record fills (app/parts/section.py). */
Object.assign(explorer, {
  /* Make the section of `element`. `facts`: its name, title, and the keys that it reads; `script` is called
     with the section once; `server`: its functions; `send`: to Gradio's queue. */
  mount(element, props, facts, script, server, send, watch, upload) {
    const section = new Section(element, facts, script, server, send, upload);
    explorer.upload ??= upload;
    explorer.sections.set(facts.name, section);
    explorer.contents.fill();
    watch('value', () => section.heard(props.value));
    section.listen();
  },

  /* A run ended without saying so: its request was refused, or the server has failed. */
  runEnded(name) {
    const section = explorer.sections.get(name);
    if (!section?.running) return;
    section.failures += 1;
    section.endRun('The server does not answer.');
  },
});

class Section {
  constructor(element, {name, title, keys, eager}, script, server, send, upload) {
    Object.assign(this, {element, name, title, keys, eager, script, server, send, upload});
    this.box = element.closest('.block') || element;
    this.near = false;   // on the screen, or nearly
    this.drawn = false;  // it has shown something
    this.asked = 0;      // counts requests: the newest answer wins
    this.acted = 0;      // the same, of acts and of files that are sent
    this.failures = 0;   // runs that failed one after another
    this.stale = true;   // what is shown is of another record
    this.running = null;
    this.figures = {};
    if (!element.querySelector('.unbuilt')) this.built();
  }

  /* What is inside is there from now on. */
  built() {
    for (const box of this.element.querySelectorAll('[data-figure]')) this.addFigure(box);
    this.script?.(this);
    this.setControls();
  }

  /* A section that was never near the screen has nothing inside: get it. */
  async build() {
    if (!this.building) {
      this.building = true;
      const {markup, refused} = await this.call('build', {});
      this.building = false;
      if (refused) return explorer.notice(refused);
      this.element.innerHTML = markup;
      this.built();
      this.ask();
    }
  }

  /* --- what is shown ------------------------------------------------------------------------------- */

  addFigure(box) {
    const props = {value: ''}, name = box.dataset.figure;
    let changed = () => {};
    explorer.figure(box, props, (_, then) => { changed = then; }, (kind, what) => this.act(kind, what, name));
    this.figures[name] = value => {
      if (props.value === value) return;
      props.value = value;
      changed();
    };
  }

  /* Show the slots of an answer, without a change where a slot holds the same; the focus stays on the same
     control or button. */
  fill(slots) {
    for (const [name, value] of Object.entries(slots || {})) {
      if (this.figures[name]) {
        this.figures[name](value);
        continue;
      }
      const slot = this.element.querySelector(`[data-slot="${name}"]`);
      if (!slot || slot.holds === value) continue;
      const at = slot.contains(document.activeElement) && explorer.pathOf(document.activeElement);
      slot.innerHTML = value;
      slot.holds = value;
      if (at) slot.querySelector(at)?.focus({preventScroll: true});
    }
    this.setControls();
    this.element.dispatchEvent(new CustomEvent('filled', {detail: slots}));
  }

  /* Controls hold what the record says. */
  setControls() {
    const query = explorer.query();
    for (const control of this.element.querySelectorAll('[data-key]')) {
      const typed = control.matches('input:not([type=checkbox], [type=range]), textarea') || this.dragging;
      if (control === document.activeElement && typed) continue;
      const text = query[control.dataset.key] || control.dataset.usual;
      if (control.type === 'checkbox') control.checked = text === '1';
      else if (control.value !== text) control.value = text;
      const output = control.parentElement.querySelector('output');
      if (output && !control.dataset.said) output.textContent = control.value;
    }
    for (const group of this.element.querySelectorAll('[data-choice], [data-several]')) {
      const {choice, several, usual} = group.dataset, held = (query[choice || several] || usual).split(',');
      for (const input of group.querySelectorAll('input')) input.checked = held.includes(input.value);
    }
  }

  /* A line of the section: why it shows nothing new. */
  say(words, kind = '') {
    const line = this.element.querySelector('[data-slot=status]'), top = line?.getBoundingClientRect().top;
    this.box.toggleAttribute('data-computing', kind === 'computing');
    const unseen = !line?.parentElement.offsetParent || top < explorer.contents.bottom() || top > innerHeight;
    const told = words === document.querySelector('#answer [role=alert]')?.textContent;
    if (words && unseen && !told && (!line || kind === 'refusal')) explorer.notice(words);
    if (!line) return;
    const said = Object.assign(document.createElement('div'), {className: `status ${kind}`, textContent: words});
    said.setAttribute('role', 'status');
    line.replaceChildren(...words ? [said] : []);
    line.holds = null;
  }

  /* --- asking --------------------------------------------------------------------------------------- */

  /* What is shown is of another record. */
  behind() {
    this.stale = true;
    this.refresh();
  }

  /* All of it is a part that nobody has unfolded. */
  get folded() {
    return Boolean(this.element.querySelector(':scope > details:only-child:not([open])'));
  }

  /* The first screen of the place that is shown follows wherever the page is scrolled to: what stands below
     waits for what it computes. */
  get follows() { return this.near || Boolean(this.eager && this.box.offsetParent); }

  refresh() {
    return this.follows && this.stale ? this.ask() : null;
  }

  /* Show the view of the record, unless another one is asked for meanwhile; `same`: what was asked for last is
     of this record, of which more is known. What is shown is of another one until an answer comes. */
  async ask(same = false) {
    if (this.element.querySelector('.unbuilt')) return this.build();
    if (this.folded) return;
    this.stale = false;
    this.other ||= !same;
    if (!this.server?.view) return this.setControls();
    clearTimeout(this.again);
    const mine = ++this.asked, slow = setTimeout(() => {
      if (this.drawn) this.box.toggleAttribute('data-behind', this.other);
      else if (this.element.querySelector('[data-slot=status]')) this.say('Computing …', 'computing');
    }, 250);
    this.asking = true;
    const answer = await this.call('view', explorer.query());
    this.asking = mine !== this.asked;
    clearTimeout(slow);
    if (mine !== this.asked) return;
    if (answer.waits || answer.failed) {
      const some = Object.keys(answer.slots || {}).length > 0;
      if (some) this.fill(answer.slots);
      this.drawn ||= some;
      this.other &&= !some;
      this.box.toggleAttribute('data-waits', Boolean(answer.waits) && !some);
      this.box.toggleAttribute('data-behind', this.drawn && !some);
      this.say(answer.waits || answer.refused, 'computing');
      if (answer.waits) this.element.dispatchEvent(new CustomEvent('waits'));
      const soon = answer.waits ? 400 : 3000;
      this.again = setTimeout(() => { if (this.near) this.ask(); else this.stale = true; }, soon);
      return;
    }
    this.other = false;
    this.box.removeAttribute('data-behind');
    this.box.removeAttribute('data-waits');
    this.take(answer);
    this.drawn = true;
  }

  /* Show the same again: a control may hold what was refused. */
  restore() {
    for (const slot of this.element.querySelectorAll('[data-slot]')) slot.holds = null;
    this.behind();
  }

  /* Call a server function. Gradio's client gives nothing for a refusal, as of a busy page: that is an answer
     too. A server that hangs is said, and not waited for any longer after a minute. */
  async call(name, given) {
    let told = false, end;
    const said = setTimeout(() => {
      told = true;
      explorer.notice('The server has not answered for 8 s.');
    }, 8000);
    const late = new Promise(done => { end = setTimeout(done, 60_000); });
    const answer = await Promise.race([this.server[name](given).catch(() => null), late]);
    clearTimeout(said);
    clearTimeout(end);
    if (told) explorer.notice('');
    return answer || {failed: true, refused: 'The server is busy or does not answer; what is shown stays.'};
  }

  take(answer) {
    const problems = [...new Set(Object.values(answer.problems || {}))];
    explorer.drop(Object.keys(answer.problems || {}));
    if (answer.set) explorer.set(answer.set);
    this.say([answer.refused, ...problems].filter(Boolean).join('. '), answer.refused ? 'refusal' : '');
    for (const words of answer.notices || []) explorer.notice(words);
    if (answer.slots) this.fill(answer.slots);
    else if (!answer.set) this.setControls();
  }

  /* Do an act of the section, named by a button or a figure, on `what`. What a point of a figure holds as
     `set` needs no server. The newest act wins, and Back. */
  async act(name, what, figure = '') {
    if (what?.data?.set) return explorer.set(what.data.set);
    if (!this.server?.act) return;
    const mine = ++this.acted, {visits} = explorer;
    const said = {...explorer.query(), act: name, what: JSON.stringify({...what, figure})};
    const answer = await this.call('act', said);
    if (mine === this.acted && visits === explorer.visits) this.take(answer);
  }

  /* --- runs ----------------------------------------------------------------------------------------- */

  run(name) {
    if (this.running) return;
    const query = explorer.query();
    this.running = {name, number: `${Date.now()}`, query};
    this.markRun();
    this.say('');
    this.send('run', {run: name, number: this.running.number, query});
  }

  /* Run anew; the server ends the run before. */
  restart(name) {
    this.running = null;
    this.run(name);
  }

  stop() {
    if (!this.running) return;
    this.send('stop', {});
    this.endRun('Stopped; what was finished is shown.');
  }

  endRun(words) {
    if (!this.running) return;
    this.running = null;
    this.markRun();
    if (words) this.say(words);
    this.element.dispatchEvent(new CustomEvent('ended'));
  }

  markRun() {
    for (const button of this.element.querySelectorAll('[data-run]')) button.disabled = Boolean(this.running);
    for (const button of this.element.querySelectorAll('[data-stop]')) {
      button.hidden = button.dataset.stop !== this.running?.name;
    }
  }

  listen() {
    this.element.addEventListener('change', event => this.changed(event.target));
    this.element.addEventListener('input', ({target}) => {
      const output = target.type === 'range' && target.parentElement.querySelector('output');
      if (output) output.textContent = target.value;
      if (!('live' in target.dataset) || this.asking) return;
      explorer.set({[target.dataset.key]: target.value}, !this.dragging);  // one step of Back for all of a drag
      this.dragging = true;
    });
    this.element.addEventListener('click', event => this.clicked(event));
    this.element.addEventListener('keydown', event => {
      if (event.key === 'Enter' && event.target.matches('input[data-key], input[data-act]')) event.target.blur();
    });
    this.element.addEventListener('toggle', () => this.refresh(), true);
    new IntersectionObserver(entries => {
      this.near = entries.at(-1).isIntersecting;
      this.refresh();
    }, {rootMargin: '150px'}).observe(this.box);
  }

  /* The queue's answers come as the component's value. What the last one says of the run stays. */
  heard(value) {
    if (!value) return;
    const said = JSON.parse(value), {running} = this;
    if (!running || said.number !== running.number) return;
    const now = explorer.query();
    const other = this.keys.some(key => (running.query[key] || '') !== (now[key] || ''));
    if (said.slots && !other) {
      this.fill(said.slots);
      running.told = 'status' in said.slots;
    }
    if (!said.ended) return;
    this.failures = 0;
    this.endRun('');
    if (!other && (!running.told || said.refused || Object.keys(said.problems || {}).length)) this.take(said);
    if (other) this.behind();
    if (running.name !== 'filling') explorer.ran(this);
  }

  /* --- what a visitor does ---------------------------------------------------------------------------- */

  /* A file of the visitor's: its path on the server is a value that no address holds, or, of an input that has
     `data-act`, what that act is on. */
  async sendFile(input) {
    const {upload: key, act} = input.dataset, [file] = input.files;
    if (!file) return;
    this.say(`Uploading ${file.name} …`, 'computing');
    const mine = ++this.acted, {visits} = explorer;
    const sent = await this.upload(file).catch(error => ({why: String(error?.message || error)}));
    input.value = '';
    if (mine !== this.acted || visits !== explorer.visits) return;
    if (!sent?.path) {
      return this.say(`${file.name} could not be uploaded: ${sent?.why || 'the server does not answer'}.`, 'refusal');
    }
    if (key) explorer.local[key] ??= '';
    if (act) return this.act(act, {...input.dataset, path: sent.path});
    explorer.set({[key]: sent.path});
  }

  changed(target) {
    const dragged = this.dragging;
    this.dragging = false;
    if ('upload' in target.dataset) return this.sendFile(target);
    const {act} = target.dataset;  // a control that does an act instead of setting a key
    if (act) return this.act(act, {value: target.dataset.value || target.value});
    const group = target.closest('[data-choice], [data-several]');
    const key = target.dataset.key || group?.dataset.choice || group?.dataset.several;
    if (!key) return;
    const of = group || target;
    let value = target.type === 'checkbox' && !group ? (target.checked ? '1' : '0') : target.value;
    if (group?.dataset.several) value = [...group.querySelectorAll('input:checked')].map(box => box.value).join();
    if (value.length > (of.dataset.local ?? Infinity)) explorer.local[key] ??= '';  // too long for an address
    else if ('local' in of.dataset) delete explorer.local[key];
    if (target.validity?.badInput || (target.validity && !target.validity.valid)) {
      target.reportValidity();
      return;
    }
    explorer.set({[key]: value === of.dataset.usual ? '' : value}, !dragged);
  }

  clicked(event) {
    const button = event.target.closest('[data-set], [data-act]:not(input, select), [data-run], [data-stop]');
    if (!button || !this.element.contains(button)) return;
    const {set, act, run, stop} = button.dataset;
    if (set) {
      explorer.set(JSON.parse(set));
      if (button.dataset.go) explorer.openSection(button.dataset.go);
    } else if (run) this.run(run);
    else if (stop) this.stop();
    else if (act && this.server?.act) this.act(act, {...button.dataset, shift: event.shiftKey});
    else return;
    event.preventDefault();
  }
}

/* A selector of a control or button by what it holds, to find the same one after its slot was filled anew. */
explorer.pathOf = part => part.tagName.toLowerCase() + [...part.attributes]
  .filter(({name}) => ['id', 'name', 'value'].includes(name) || name.startsWith('data-'))
  .map(({name, value}) => `[${name}="${CSS.escape(value)}"]`).join('');
