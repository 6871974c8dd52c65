/* What the page does in the browser itself. Loaded once, in the page's head; Gradio's listeners call it by
   name. */
window.explorer = {
  /* True once a link has been read and set the sidebar and the tab. Gradio selects the first tab while it
     mounts: until then the open tab is not the visitor's choice and is not written to the address. */
  linkShown: false,

  /* True once every tab has shown the selection for the first time. */
  ready: false,

  /* Write the selection to the address. `names` are the fields of Selection, `values` what they hold. */
  writeSelection(names, values) {
    const chosen = Object.fromEntries(names.map((name, i) => [name, values[i]]));
    const ofSource = {builtin: ['sample'], model: ['model', 'revision', 'layer']}[chosen.source] || [];
    const query = new URLSearchParams(location.search);
    for (const key of ['source', 'sample', 'model', 'revision', 'layer', 'scheme']) {
      const kept = key === 'source' || key === 'scheme' || ofSource.includes(key);
      if (kept && chosen[key]) query.set(key, chosen[key]); else query.delete(key);
    }
    explorer.replaceQuery(query);
    explorer.ready = true;
  },

  writeTab(name) {
    if (!explorer.linkShown) return;
    const query = new URLSearchParams(location.search);
    query.set('tab', name);
    explorer.replaceQuery(query);
  },

  /* URLSearchParams escapes the ~ of a scheme's text, which needs no escape (RFC 3986, 2.3). */
  replaceQuery(query) {
    history.replaceState(null, '', location.pathname + '?' + query.toString().replaceAll('%7E', '~'));
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
      heading.querySelector('.cell-menu-button').click();
      await later();
      document.querySelectorAll('.cell-menu [role=menuitem]')[descending ? 1 : 0].click();
    }, true);
  },

  /* On a phone the open sidebar would cover the whole page. */
  closeSidebarOnPhones() {
    if (innerWidth <= 768) document.querySelector('.sidebar.open .toggle-button')?.click();
  },

  /* Make the bits in `element` switches: a click or Space calls `flipped(bit)`, arrow keys move between
     them. The HTML is replaced after each flip, so the focus is put back on the bit that was flipped. */
  bitSwitches(element, flipped, watch) {
    element.addEventListener('click', event => {
      const bit = event.target.closest('button.bit');
      if (!bit) return;
      element.dataset.focus = bit.dataset.bit;
      flipped(Number(bit.dataset.bit));
    });
    element.addEventListener('keydown', event => {
      const bits = [...element.querySelectorAll('button.bit')], at = bits.indexOf(document.activeElement);
      const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
      if (at < 0 || !move) return;
      event.preventDefault();
      const next = bits[(at + move + bits.length) % bits.length];
      bits.forEach(bit => bit.tabIndex = -1);
      next.tabIndex = 0;
      next.focus();
    });
    watch('value', () => {
      const again = element.querySelector(`button.bit[data-bit="${element.dataset.focus}"]`);
      if (again) { again.tabIndex = 0; again.focus({preventScroll: true}); }
    });
  },
};
