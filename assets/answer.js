/* The first screen: what a visitor does there is an act (assets/state.js), or opens something. */
Object.assign(explorer, {
  /* What a tap on a point of the frontier makes its scheme. */
  takes: 'a',

  /* The section asks again as more becomes known, and begins to compute it for each record. */
  answerSection(section) {
    const {element} = section;
    let tensor = '', record = '', known = '', waits = false;
    const fill = () => {
      const query = explorer.query(), of = keys => JSON.stringify(keys.map(key => query[key] || ''));
      const anew = of(section.keys.filter(key => !['scheme', 'second', 'row', 'column', 'frontier'].includes(key)));
      const other = of(section.keys) !== record;
      if (section.running && !waits ? anew === tensor : !other) return;
      [tensor, record] = [anew, of(section.keys)];
      section.restart('filling');
    };
    section.act = (kind, {data, shift}) => { if (kind === 'point' && data) explorer.takePoint(data[1], shift); };
    element.addEventListener('waits', () => {
      waits = true;  // for A or B: what the run before computes may come later
      fill();
    });
    element.addEventListener('ended', () => {
      if (known === 'complete') return;
      if (!section.failures) return fill();
      record = '';
      setTimeout(fill, Math.min(3000 * 2 ** section.failures, 60_000));
    });
    element.addEventListener('filled', ({detail}) => {
      if (detail?.said !== undefined) {
        explorer.markTakes();
        document.getElementById('frontier-card').toggleAttribute('data-table', Boolean(detail.table));
        known = detail.tick;
        waits = known === 'sample';
        if (known !== 'complete') fill();
      } else if (detail?.tick && detail.tick !== known) section.ask(true);
    });
  },

  /* --- a tensor -------------------------------------------------------------------------------------- */

  /* Open a file: the newest that was dropped or picked wins. */
  opening: 0,
  async openFile(file) {
    if (!file) return;
    const mine = ++explorer.opening;
    explorer.refuseFile('');
    explorer.notice('');
    explorer.openPlace('tensor', true);
    const accepted = document.getElementById('drop').dataset.accepted.split(' ');
    if (!accepted.some(suffix => file.name.toLowerCase().endsWith(suffix))) {
      explorer.refuseFile(file.name, `this page opens ${accepted.join(', ')}`);
      return;
    }
    explorer.notice(`Uploading ${file.name} …`);
    const stored = await explorer.upload(file).catch(error => ({why: String(error?.message || error)}));
    if (mine !== explorer.opening) return;
    explorer.notice('');
    if (!stored?.path) explorer.refuseFile(file.name, stored?.why || 'the server does not answer');
    else explorer.choose({do: 'file', path: stored.path, name: file.name});
  },

  /* The place of the file keeps the name of the one that was refused, and why, until another comes or the
     visitor dismisses it: all figures are still of the tensor before. */
  refuseFile(name, why) {
    const refused = document.querySelector('#drop .refused');
    if (!refused) return;
    refused.hidden = !name;
    refused.querySelector('b').textContent = name && `Not opened: ${name}`;
    refused.querySelector('span').textContent = name && `${why}. The previous tensor is still shown.`;
  },

  /* The browser's own picker of files. */
  pickFile() {
    const input = document.createElement('input');
    input.type = 'file';
    input.accept = document.getElementById('drop').dataset.accepted.replaceAll(' ', ',');
    input.addEventListener('change', () => explorer.openFile(input.files[0]));
    input.click();
  },

  /* Numbers as a CSV file: rows are lines, columns stand between commas, semicolons, tabs or blanks; brackets
     are left out. Null for what is no table of numbers. */
  pastedNumbers(text) {
    const semicolons = text.includes(';');
    const rows = text.replace(/\][\s,]*\[/g, '\n').replace(/[[\]()]/g, ' ').trim().split(/\s*\n\s*/)
      .map(line => semicolons ? line.split(';').map(cell => cell.trim().replace(',', '.'))
        : line.trim().split(/\s*,\s*|\s+/))
      .map(row => row.at(-1) === '' ? row.slice(0, -1) : row);
    const number = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|^[+-]?(inf|infinity|nan)$/i;
    const right = rows.length && rows.every(row => row.length && row.every(cell => number.test(cell)));
    if (!right) return null;
    return new File([rows.map(row => row.join(',')).join('\n')], 'pasted.csv', {type: 'text/csv'});
  },

  open: {
    file: () => explorer.pickFile(),
    model() {
      explorer.showSource('model');
      explorer.openPanel('tensor', '[data-of=model]');
    },
    tensors: () => explorer.openPanel('tensor', '[data-of=tensor]'),
    checkpoints() {
      explorer.openPlace('model', true);
      explorer.arrive('checkpoints');
    },
    speed: () => explorer.openPlace('speed', true),
  },

  /* --- the shortlist --------------------------------------------------------------------------------- */

  listedNow: () => [...document.querySelectorAll('#shortlist tr[data-scheme]')]
    .map(row => row.dataset.scheme),

  /* Take a scheme into the list: of a full one, the last that is neither A nor B goes. */
  takeIn(text) {
    const {scheme, second} = explorer.record, texts = explorer.listedNow();
    const {most} = document.getElementById('shortlist').dataset;
    if (texts.length >= most) texts.splice(texts.findLastIndex(one => one !== scheme && one !== second), 1);
    explorer.choose({do: 'list', texts: [...texts, text]});
  },

  takeOut(text) {
    const texts = explorer.listedNow().filter(one => one !== text);
    const clear = text === explorer.record.second ? [{do: 'clear'}] : [];
    explorer.choose(...clear, {do: 'list', texts});
  },

  /* --- clicks ---------------------------------------------------------------------------------------- */

  answerClicked(event) {
    const at = name => event.target.closest(`[data-${name}]`)?.dataset;
    const picture = event.target.closest('.picture');
    if (event.target.closest('.why-link')) {
      event.preventDefault();
      explorer.arrive('numbers');
    } else if (at('open')) explorer.open[at('open').open]();
    else if (at('sample')) explorer.choose({do: 'sample', name: at('sample').sample});
    else if (at('goal')) explorer.choose({do: 'goal', name: at('goal').goal});
    else if (at('codes')) explorer.choose({do: 'codes', codes: at('codes').codes});
    else if (at('takes')) explorer.chooseTakes(at('takes').takes);
    else if (at('element')) explorer.inspect(...at('element').element.match(/\d+/g).map(Number));
    else if (at('remove')) explorer.takeOut(at('remove').remove);
    else if (at('add')) explorer.takeIn(at('add').add);
    else if (at('take')) {
      explorer.choose({do: 'scheme', text: at('take').take, side: event.shiftKey ? 'b' : at('take').side});
    } else if (picture) {
      const box = picture.querySelector('img').getBoundingClientRect(), {rows, columns} = picture.dataset;
      const cell = (size, share) => Math.min(size - 1, Math.max(0, Math.floor(size * share)));
      const middle = event.detail === 0;  // a key, not a pointer
      explorer.inspect(cell(rows, middle ? 0.5 : (event.clientY - box.top) / box.height),
        cell(columns, middle ? 0.5 : (event.clientX - box.left) / box.width));
    } else if (at('scheme')) {
      explorer.choose({do: 'scheme', text: at('scheme').scheme, side: event.shiftKey ? 'b' : 'a'});
    }
  },

  /* A click on a point of the frontier. */
  takePoint(text, shift) {
    explorer.choose({do: 'scheme', text, side: shift ? 'b' : explorer.takes});
  },

  inspect(row, column) {
    explorer.set({row: `${row}`, column: `${column}`});
    setTimeout(() => explorer.arrive('element'));
  },

  chooseTakes(side) {
    explorer.takes = side;
    explorer.markTakes();
  },

  markTakes() {
    document.querySelectorAll('[data-takes]').forEach(button => {
      button.setAttribute('aria-pressed', button.dataset.takes === explorer.takes);
    });
  },

  /* A size that was typed: "4.25" bits, "3 MB". */
  sizeTyped(input) {
    const size = input.value.replaceAll(' ', '').replace(',', '.').replace(/bits?$/i, '');
    if (size && size !== input.defaultValue) explorer.choose({do: 'goal', name: `at-most-${size}`});
  },
});

document.addEventListener('click', event => {
  const dismissed = event.target.closest?.('[data-dismiss]')?.parentElement;
  if (dismissed?.matches('.refused')) explorer.refuseFile('');
  else dismissed?.remove();
  if (event.target.closest?.('.first')) explorer.answerClicked(event);
});
/* Shift marks text from the last click on: not where it means B. */
document.addEventListener('mousedown', event => {
  if (event.shiftKey && event.target.closest?.('.shortlist')) event.preventDefault();
});
document.addEventListener('change', event => {
  if (event.target.matches?.('[data-goal-size]')) explorer.sizeTyped(event.target);
});
document.addEventListener('paste', event => {
  if (document.documentElement.dataset.place !== 'tensor') return;
  const {files} = event.clipboardData;
  const typing = event.target.closest?.('input, textarea, [contenteditable=true]');
  if (files.length) {
    event.preventDefault();
    explorer.openFile(files[0]);
  } else if (!typing) {
    const file = explorer.pastedNumbers(event.clipboardData.getData('text'));
    if (file) explorer.openFile(file);
    else {
      explorer.notice('What was pasted is no table of numbers and no file. Still shown: the previous view.');
    }
  }
});
