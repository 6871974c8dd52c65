/* The first look: markup in the page's HTML that shows what the page shows once Gradio has built it
   (app/first_look.py). It lies over the page, in a shadow root that nothing else sees, until the page has
   drawn the same. What was clicked before is done as soon as the page is ready. */
explorer.firstLook = {
  /* The element, and its shadow root; null where there is none, or no more. */
  host: null,
  root: null,

  /* What waits for the page, in its order. */
  waiting: [],

  /* Called just below the markup, before it is painted. */
  show() {
    const host = document.getElementById('first-look'), root = host?.internals?.shadowRoot;
    if (!root) {
      host?.remove();
      return;
    }
    Object.assign(this, {host, root});
    root.querySelector('style').after(document.getElementById('page-style').cloneNode(true));
    const theme = new URLSearchParams(location.search).get('__theme');
    const system = matchMedia('(prefers-color-scheme: dark)').matches;
    const dark = theme === 'dark' || (theme !== 'light' && system);
    for (const part of [host, root.querySelector('.look')]) part.classList.toggle('dark', dark);
    root.querySelector('[data-place=tensor]').setAttribute('aria-current', 'page');
    root.addEventListener('click', event => this.clicked(event));
    root.addEventListener('change', ({target}) => {
      if (target.matches('[data-goal-size]')) this.wait('.size', () => explorer.sizeTyped(target));
    });
    host.dataset.shown = '';
    const look = () => {
      if (!this.host) return;
      const shown = explorer.ready || explorer.sampled;
      if (shown && document.querySelector('#frontier .figure')?.isPainted()) this.end();
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  },

  /* A click is done by what does it on the page, whose markup has the same names. The browser's picker of
     files needs no page. */
  clicked(event) {
    const {target, shiftKey, detail, pageX, pageY} = event;
    const what = target.closest('button, a, [data-scheme]');
    if (!what || what.matches('a[target], .figure-tools *')) return;
    event.preventDefault();
    if (what.dataset.open === 'file') explorer.pickFile();
    else this.wait(what, () => {
      const click = {target, shiftKey, detail, clientX: pageX - scrollX, clientY: pageY - scrollY,
        preventDefault() {}};
      if (what.closest('.figure')) explorer.takePoint(what.dataset.scheme, shiftKey);
      else if (what.closest('.first')) explorer.answerClicked(click);
      else explorer.barClicked(click);
    });
  },

  /* Do `act()` when the page is ready; until then `what`, or the part that it selects, is marked. */
  wait(what, act) {
    const part = typeof what === 'string' ? this.root?.querySelector(what) : what;
    part?.toggleAttribute('data-waiting', true);
    this.waiting.push(act);
    if (explorer.ready) this.pageReady();
  },

  /* The page can do what waits; it then shows another thing, so that the first look ends. A figure that
     cannot be drawn does not keep it. */
  pageReady() {
    const acts = this.waiting.splice(0);
    acts.forEach(act => act());
    if (acts.length) this.end();
    else setTimeout(() => this.end(), 5000);
  },

  /* Take it away. A size that is being typed is typed on in the page. */
  end() {
    if (!this.host) return;
    const typed = this.root.activeElement, size = document.querySelector('[data-goal-size]');
    this.host.remove();
    this.host = this.root = null;
    if (!size || !typed?.matches('[data-goal-size]')) return;
    size.value = typed.value;
    size.focus({preventScroll: true});
  },
};

customElements.define('first-look', class extends HTMLElement {
  internals = this.attachInternals();
});
