/* What is chosen. A control says what the visitor does, an act; acts go to the server one request after
   another; what it answers is shown whole, or nothing changes. The address is written from the answer, and
   going back or forward is an act too. */
Object.assign(explorer, {
  /* What is shown: the record's fields by name. Null until the first answer. */
  record: null,

  /* Acts that were not sent yet, and the request whose answer is awaited. */
  acts: [],
  sent: null,
  requests: 0,

  /* What the controls held when the record was shown, in the order in which `settled` is given them. */
  held: null,

  /* The address of what is shown. */
  shownAddress: null,

  /* --- acts ------------------------------------------------------------------------------------------ */

  /* Do these acts. One that has a `place` leads there when it is done. */
  choose(...acts) {
    for (const act of acts) {
      if (act.do === 'file') explorer.forgetRefused();
      const last = explorer.acts.at(-1);
      if (act.do === 'move' && last?.do === 'move') {
        last.down += act.down;
        last.right += act.right;
      } else explorer.acts.push(act);
    }
    explorer.sendActs();
    setTimeout(explorer.overtake, explorer.patienceMs);
  },

  /* What has taken a while and is not what is wanted any more is given up: its acts are sent again with those
     that follow, and only the last view of them is computed. Not what opens a file or a model: it would begin
     anew. */
  patienceMs: 300,
  opening: ['visit', 'file', 'model', 'layer'],
  overtake() {
    const {sent, acts, opening} = explorer;
    const looks = all => all.every(act => act.do === 'look');
    if (!sent || sent.overtaken || looks(acts) || looks(sent.acts)) return;
    if (sent.acts.some(act => opening.includes(act.do))) return;
    sent.overtaken = true;
    explorer.giveUp?.();
  },

  /* Call `giveUp()` to end what the server computes for the request that was sent. */
  onOvertake(giveUp) {
    explorer.giveUp = giveUp;
  },

  /* The page is open: what its address says is the first act, before what was pressed meanwhile. */
  begin() {
    history.scrollRestoration = 'manual';
    explorer.acts.unshift({do: 'visit', query: location.search});
    explorer.sendActs();
  },

  /* Call `go()` when there are acts, but not while an answer is awaited: Gradio would send them with the
     record from before it. */
  onActs(go) {
    explorer.go = go;
    explorer.sendActs();
  },
  sendActs() {
    if (explorer.sent || !explorer.acts.length || !explorer.go) return;
    explorer.requests += 1;
    explorer.sent = {number: explorer.requests, acts: explorer.acts.splice(0), visits: explorer.visits};
    document.documentElement.toggleAttribute('data-asking', true);
    explorer.sayWaiting(explorer.sent);
    if (document.documentElement.hasAttribute('data-going')) explorer.sayGoing();
    explorer.go();
  },

  /* Where Back or Forward leads is not what is shown while it is computed, or waits for what was chosen
     before: after a moment a line names it, and what is shown is dimmed. */
  goingMs: 250,
  goesTo: () => [...explorer.sent?.acts || [], ...explorer.acts].findLast(act => act.do === 'visit'),
  sayGoing() {
    const visit = explorer.goesTo();
    if (!visit || !explorer.record) return;
    const query = new URLSearchParams(visit.query), of = key => query.get(key);
    const tensor = of('file_tensor') || of('layer') || of('sample') || 'the first tensor';
    const schemes = [of('scheme'), of('second')].filter(Boolean).join(' and ');
    document.documentElement.toggleAttribute('data-going', true);
    explorer.notice(`Going to ${tensor}${schemes && ` by ${schemes}`}. Until then the view before is shown.`);
  },
  endGoing() {
    if (!explorer.goesTo()) document.documentElement.removeAttribute('data-going');
  },

  /* After so long without a word a line says that the server is silent, and for how long. The page goes on
     waiting. */
  silentMs: 15000,
  sayWaiting(sent) {
    const began = performance.now(), words = 'The server has not answered for ';
    let said = null;
    const timer = setInterval(() => {
      const silent = performance.now() - Math.max(began, explorer.stream.heard);
      if (explorer.sent !== sent || silent < explorer.silentMs) {
        said?.remove();
        said = null;
        if (explorer.sent !== sent) clearInterval(timer);
        return;
      }
      const text = `${words}${Math.round(silent / 1000)} s. Still waiting; still shown: the previous view.`;
      if (said) said.firstChild.data = text;  // whether or not the visitor has dismissed it
      else {
        explorer.notice(text);
        said = document.querySelector('.page-notice');
        setTimeout(() => said?.setAttribute('aria-live', 'off'), 500);  // it is read once, not each second
      }
    }, Math.min(1000, explorer.silentMs));
  },

  /* The values of the request: the acts are the first. */
  send(values) {
    const {number, acts} = explorer.sent || {number: 0, acts: []};
    const {everything, sampled} = explorer;
    return [JSON.stringify({number, whole: !explorer.record, acts, everything, sampled}), ...values.slice(1)];
  },

  /* The server's last answer. It comes by its own component: what Gradio gives to a function that follows a
     handler may be from before the handler's last answer was taken in. */
  answer: null,
  onAnswer(props, watch) {
    watch('value', () => {
      const said = props.value ? JSON.parse(props.value) : null;
      if (said?.sampled && !said.overtaken) {
        explorer.showSampled(said);
        return;
      }
      explorer.answer = said;
      const {missed, answer} = explorer;
      if (!missed || answer?.number !== missed.number || !answer.record) return;
      explorer.missed = null;
      explorer.commit(missed, answer, explorer.held || []);
      explorer.notice('');
    });
  },

  /* True while numbers of a sample are shown, of a record that is not the page's yet. */
  sampled: false,

  /* Numbers of a sample are shown until those of the whole tensor are there: the address names that record.
     What stands further down is blank until then, because it is of the tensor or the schemes before. */
  showSampled({number, sampled}) {
    const sent = explorer.sent;
    if (sent?.number !== number) return;
    const before = explorer.sampled;
    explorer.markSampled(true);
    delete document.documentElement.dataset.linked;
    if (sent.visits !== explorer.visits) return;
    if (document.documentElement.hasAttribute('data-going')) {
      document.documentElement.removeAttribute('data-going');
      explorer.notice('');
    }
    const went = sent.acts.some(act => act.do === 'visit');
    if (!went) explorer.settle();
    explorer.writeQuery(explorer.addressOfRecord(sampled), !went && !before);
  },

  markSampled(now) {
    explorer.sampled = now;
    document.documentElement.toggleAttribute('data-sampled', now);
    if (now) for (const {box, drawn} of explorer.sections.values()) box.toggleAttribute('data-behind', drawn);
  },

  /* The figures further down are again those of what is shown. */
  noneBehind() {
    for (const {box} of explorer.sections.values()) box.removeAttribute('data-behind');
  },

  /* A request that was given up, in case its answer comes after all. */
  missed: null,

  /* Resolves when the request `sent` was answered or refused; to nothing where no word of it has come in `ms`
     after its end in which the page was awake, or it was given up meanwhile: an answer may lie waiting while
     figures are drawn. An answer to an earlier request is none to this one. */
  async heard(sent, ms) {
    const before = explorer.answered;
    const mine = answer => answer !== before && answer && (answer.refused || answer.number === sent.number);
    for (let awake = 0; !mine(explorer.answer) && explorer.sent === sent && awake < ms;) {
      const asleep = performance.now();
      await new Promise(resume => setTimeout(resume, 10));
      awake += Math.min(performance.now() - asleep, 20);
    }
    const answer = mine(explorer.answer) ? explorer.answer : null;
    if (answer) explorer.answered = answer;
    return answer;
  },
  answered: null,

  /* The request has ended, whether it was answered or not. `now` is what the controls hold; returns what they
     are to hold, an empty update for what stays. An answer is awaited for `ms`. */
  async settled(now, ms = 3000) {
    const sent = explorer.sent, same = now.map(() => ({__type__: 'update'}));
    if (!sent) return same;
    const answer = await explorer.heard(sent, ms), done = answer?.number === sent.number;
    if (explorer.sent !== sent) return same;
    explorer.sent = null;
    document.documentElement.removeAttribute('data-asking');
    explorer.endGoing();
    if (sent.acts.every(act => act.do === 'look')) {
      if (done) explorer.answerShown();
      setTimeout(explorer.sendActs);
      return same;
    }
    explorer.notice('');
    if (done && answer.overtaken) {
      if (answer.sampled) explorer.markSampled(true);
      explorer.acts.unshift(...sent.acts);
      setTimeout(explorer.sendActs);
      return same;
    }
    if (done) explorer.commit(sent, answer, now);
    else {
      if (!answer) explorer.missed = sent;
      explorer.revert(sent, answer);
    }
    setTimeout(explorer.sendActs);
    return done || !explorer.held ? same : explorer.held;
  },
  fileControl: 2,

  /* The request has ended in an error, which Gradio shows as a message: no answer follows. */
  failed(now) {
    if (explorer.sent) explorer.sent.failed = true;
    return explorer.settled(now, 100);
  },

  /* Keys of the address gone to whose values mean nothing: it loses them. */
  dropped: [],

  /* The answer to `sent` is what is shown from now on; `now` is what the controls hold. */
  commit(sent, answer, now) {
    const before = explorer.record;
    sent.sampled = explorer.sampled;
    explorer.markSampled(false);
    explorer.record = answer.record;
    explorer.dropped = answer.dropped || [];
    explorer.held = answer.held.map((value, i) => value ?? explorer.held?.[i] ?? now[i]);
    if (sent.acts.some(act => act.do === 'file')) explorer.refuseFile('');
    explorer.held[explorer.fileControl] = now[explorer.fileControl];
    explorer.show(sent, before);
  },

  /* A request was not taken, or the stream of answers broke: Gradio says nothing of it. Where the end of the
     request that was sent is not heard soon, it is given up, unless its answer came before that. */
  lost() {
    const sent = explorer.sent;
    if (sent) sent.lost = true;
    setTimeout(() => {
      if (!sent || explorer.sent !== sent) return;
      explorer.sent = null;
      document.documentElement.removeAttribute('data-asking');
      explorer.endGoing();
      const {answer} = explorer;
      if (answer?.number === sent.number && answer.record && !answer.overtaken) {
        explorer.answered = answer;
        explorer.commit(sent, answer, explorer.held || []);
        explorer.notice('');
        explorer.sendActs();
        return;
      }
      explorer.missed = sent;
      explorer.revert(sent, null);
      explorer.restore?.();
      explorer.sendActs();
    }, 1000);
  },

  /* Call `restore()` when the controls are to hold again what is shown: `restored` are the values. */
  onRestore(restore) {
    explorer.restore = restore;
  },
  restored: now => explorer.held || now,

  /* The record is shown: the address is its, and sections on the screen are next. */
  show(sent, before) {
    const overtaken = sent.visits !== explorer.visits, now = explorer.record;
    const acts = sent.acts.filter(act => act.do !== 'look');
    const went = acts.some(act => act.do === 'visit'), walked = acts.every(act => act.do === 'move');
    const to = acts.findLast(act => act.place)?.place;
    const lost = Object.fromEntries(explorer.dropped.map(key => [key, null]));
    const there = {...lost, ...to ? explorer.addressOf(to, '') : {}, ...explorer.addressOfRecord(now)};
    if (overtaken) explorer.shownAddress = explorer.queryWith(explorer.shownAddress, there);
    else {
      if (!went && !walked) explorer.settle();
      explorer.writeQuery(there, !went && !walked && !sent.sampled);
      explorer.shownAddress = location.search;
      if (to) {
        explorer.closePanels();
        explorer.showPlace(to);
        explorer.arrive('');
      }
    }
    explorer.showSource(now.source);
    explorer.markPanels();
    explorer.answerShown();
    const of = record => JSON.stringify(record && [record.source, record.sample, record.file,
      record.file_tensor, record.model, record.revision, record.layer]);
    if (before && of(before) !== of(now)) explorer.left?.();
    const chosen = JSON.stringify([of(now), now.scheme, now.second]);
    document.querySelectorAll('#error-map .figure').forEach(explorer.markElement);
    const asked = now.goal + now.shortlist;
    if (chosen === explorer.chosen && !went) {
      if (asked !== explorer.askedFor) explorer.seenAnew('frontier');
      explorer.askedFor = asked;
      explorer.noneBehind();
      return;
    }
    explorer.chosen = chosen;
    explorer.askedFor = asked;
    explorer.chosenAnew?.();
    delete document.documentElement.dataset.linked;
    if (!overtaken) explorer.shownAnew();
  },

  /* Sections on the screen are next. Not after an answer that Back has overtaken: another one follows. */
  shownAnew() {
    explorer.version += 1;
    const first = !explorer.ready;
    explorer.ready = true;
    if (first) {
      explorer.start();
      setTimeout(() => explorer.firstLook.pageReady());
    }
    explorer.sections.forEach(explorer.refresh);
  },

  /* A section has to show again what is chosen. */
  seenAnew(name) {
    const section = explorer.sections.get(name);
    if (!section) return;
    section.shown = 0;
    explorer.refresh(section);
  },

  /* Nothing has changed: the address is again that of what is shown. `answer`: the server has said why. */
  revert(sent, answer) {
    const went = sent.acts.some(act => act.do === 'visit'), {sampled} = explorer;
    if (sampled && answer) {
      explorer.markSampled(false);
      explorer.noneBehind();
      if (!went && sent.visits === explorer.visits) {
        history.replaceState(null, '', location.pathname + explorer.shownAddress);
      }
    }
    if (went && explorer.shownAddress !== null && !explorer.acts.length) {
      const {place} = explorer.placeOf(new URLSearchParams(explorer.shownAddress));
      history.replaceState(null, '', location.pathname + explorer.shownAddress);
      explorer.showPlace(place);
      explorer.shownAnew();
    }
    const file = sent.acts.findLast(act => act.do === 'file');
    const error = sent.failed && !sent.lost;
    const why = error ? 'server reports an error' : 'server does not answer';
    if (file) explorer.refuseFile(file.name || 'the file', answer?.why || `the ${why}`);
    explorer.firstLook.end();
    explorer.showSource(explorer.record?.source);
    const shown = sampled ? 'Shown: numbers of a sample' : 'Still shown: the previous view';
    explorer.notice(answer ? '' : `The ${why}. ${shown}.`);
  },

  /* Put the rings of the maps around the inspected element: the last three controls are its row, its column,
     and whether the largest error is followed. */
  markElement(plot) {
    const marks = (plot.data || []).flatMap((trace, at) => trace.meta?.picked ? [at] : []);
    if (!marks.length || !explorer.held) return;
    const [row, column] = explorer.held.slice(-3), each = value => marks.map(() => [value]);
    Plotly.restyle(plot, {x: each(column), y: each(row)}, marks);
  },

  /* A line below the bar that the page writes itself; an answer of the server takes its place. */
  notice(words) {
    document.querySelectorAll('.page-notice').forEach(line => line.remove());
    if (!words) return;
    const line = document.createElement('div');
    Object.assign(line, {className: 'status page-notice', textContent: words});
    line.setAttribute('role', 'status');
    line.append(Object.assign(document.createElement('button'), {type: 'button', textContent: '×'}));
    Object.assign(line.lastChild.dataset, {dismiss: ''});
    line.lastChild.setAttribute('aria-label', 'Dismiss');
    document.getElementById('notice').before(line);
  },

  /* --- controls -------------------------------------------------------------------------------------- */

  /* The parts of scheme `side`, unless they are what is shown: a box that is left is no change. */
  chooseParts(side, parts) {
    const first = explorer.tensorControls + 1 + (side === 'b' ? 1 + parts.length : 0);
    const shown = explorer.held?.slice(first, first + parts.length);
    if (JSON.stringify(shown) === JSON.stringify(parts)) return;
    explorer.choose({do: 'parts', side, parts});
  },
  tensorControls: 7,

  /* Another source: a form to fill in, and an act where what it needs is there. */
  chooseSource([source, sample, file, tensor, model, revision, layer]) {
    explorer.showSource(source);
    if (source === 'builtin') explorer.choose({do: 'sample', name: sample});
    if (source === 'file' && file) explorer.choose({do: 'tensor', name: tensor});
    if (source === 'model' && layer) explorer.choose({do: 'layer', model, revision, layer});
  },

  /* --- the address ----------------------------------------------------------------------------------- */

  /* The name of the file that the page was started on, if the address that was opened says it. */
  opened: new URLSearchParams(location.search).get('opened') || '',

  /* The record in the address: null takes a key out. */
  addressOfRecord(record) {
    const ofSource = {builtin: ['sample'], file: ['file_tensor'], model: ['model', 'revision', 'layer']};
    const kept = ['source', 'scheme', 'second', 'goal', ...ofSource[record.source] || []];
    const changes = {};
    for (const name of Object.keys(record)) {
      if (['element', 'shortlist', 'file'].includes(name)) continue;
      changes[name] = kept.includes(name) ? record[name] : null;
    }
    const isOpened = record.source === 'file' && record.file?.includes(explorer.opened);
    changes.opened = isOpened ? explorer.opened : null;
    const [row, column] = record.element ? record.element.split(',') : [null, null];
    return {...changes, row, column, list: record.shortlist};
  },

  /* Call `left()` when another tensor is shown. */
  onTensor(left) {
    explorer.left = left;
  },

  /* Call `chosenAnew()` as soon as another selection is shown. */
  onChosen(chosenAnew) {
    explorer.chosenAnew = chosenAnew;
  },

  /* Callbacks for the URL's query at each visit, in addition to setting the controls. */
  readers: [],
  visits: 0,
});

/* Back and Forward. What was pressed before and waits is dropped; what is on its way is followed by this. */
addEventListener('popstate', () => {
  const query = new URLSearchParams(location.search), {place, section} = explorer.placeOf(query);
  explorer.visits += 1;
  explorer.noted = {};
  explorer.acts = [];
  explorer.closePanels();
  const moved = place !== document.documentElement.dataset.place || section !== explorer.sectionAtTop();
  explorer.showPlace(place);
  explorer.leave?.();  // on the way to where the address before led
  if (moved) explorer.arrive(section);
  for (const read of explorer.readers) read(query);
  explorer.choose({do: 'visit', query: location.search});
  setTimeout(explorer.sayGoing, explorer.goingMs);
});
