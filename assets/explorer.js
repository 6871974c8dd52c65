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

  /* plotly's menu saves one kind of file: put a PNG button beside its SVG one, in figures drawn later too. */
  addPngButtons() {
    const add = () => document.querySelectorAll('.js-plotly-plot').forEach(plot => {
      const svg = plot.querySelector('.modebar-btn[data-title^="Download"]');
      if (!svg || svg.parentNode.querySelector('.save-png')) return;
      svg.setAttribute('data-title', 'Download as SVG');
      const png = document.createElement('a');
      png.className = 'modebar-btn save-png';
      png.setAttribute('data-title', 'Download as PNG');
      png.textContent = 'PNG';
      png.addEventListener('click', () => {
        const options = plot._context.toImageButtonOptions;
        options.format = 'png';
        svg.click();
        options.format = 'svg';
      });
      svg.after(png);
    });
    new MutationObserver(add).observe(document.body, {childList: true, subtree: true});
    add();
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

  /* Call `clicked({row, column})` for clicks on the heat map in `target`. gr.Plot has no click event, and
     makes a new plot element for some updates: the observer binds each one once. */
  onPlotClick(target, clicked) {
    let bound = null;
    const bind = () => {
      const plot = document.querySelector(target + ' .js-plotly-plot');
      if (!plot || !plot.on || plot === bound) return;
      bound = plot;
      plot.on('plotly_click', event => {
        const point = event.points[0];
        clicked({row: Math.round(point.y), column: Math.round(point.x)});
      });
    };
    new MutationObserver(bind).observe(document.body, {childList: true, subtree: true});
    bind();
  },
};
