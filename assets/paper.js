/* A figure as it is pasted into a paper: one or two columns wide, light, with its title, its caption and its
   font, and without the page's buttons. The page, reports and docs/ write their files by this. */
explorer.paper = {
  /* Pixels of a drawing in a millimetre, at which 12 pixels are 8 pt; pixels of the least text, 7 pt; and of a
     plot's margins without buttons or a slider. */
  PER_MM: 1.5 * 72 / 25.4, LEAST: 10.5, ROW: 26, BELOW: 44, DPI: 600,

  /* Without buttons, a slider, and what belongs to a screen; what they are switched to comes into the caption. */
  plain(layout) {
    const {meta = {}, updatemenus, sliders, ...rest} = layout;
    const chosen = (meta.switched || []).filter(path => path.startsWith('meta.'))
      .map(path => meta[path.slice(5)]);
    for (const {active, currentvalue, steps} of sliders || []) {
      chosen.push(`${currentvalue?.prefix || ''}${steps[active || 0].label}`);
      rest.height -= rest.margin.b - this.BELOW;
      rest.margin.b = this.BELOW;
    }
    if (updatemenus?.length) {
      rest.margin.t -= this.ROW;
      rest.height -= this.ROW;
      for (const note of rest.annotations || []) if (note.yref === 'paper' && note.yshift >= this.ROW) note.yshift -= this.ROW;
    }
    const enlarge = (tree, key) => {
      if (!tree || typeof tree !== 'object') return;
      if (/font$/.test(key) && tree.size < this.LEAST) tree.size = this.LEAST;
      for (const [name, branch] of Object.entries(tree)) enlarge(branch, name);
    };
    enlarge(rest);
    const caption = [meta.caption, chosen.length && `Shown: ${chosen.join(', ')}.`].filter(Boolean).join(' ');
    const look = {autosize: false, paper_bgcolor: '#ffffff', plot_bgcolor: '#ffffff'};
    return {title: meta.title, caption, layout: {height: 400, ...rest, ...look}};
  },

  /* Plotly's figure `width` pixels wide: the SVG, its height, title and caption. */
  async plotted({data, layout}, width) {
    const laid = structuredClone(layout);
    explorer.fit(laid, width);
    const {title, caption, layout: plain} = this.plain({...laid, ...explorer.callouts(laid, width)}), {height} = plain;
    const url = await Plotly.toImage({data, layout: {...plain, width}}, {format: 'svg', width, height});
    const markup = decodeURIComponent(url.slice(url.indexOf(',') + 1));
    return {root: new DOMParser().parseFromString(markup, 'image/svg+xml').documentElement, height, title, caption};
  },

  /* The same of a drawing of Learn, which is laid out anew and takes its look from the light page's styles. */
  LOOKS: ['fill', 'stroke', 'strokeWidth', 'strokeDasharray', 'opacity', 'paintOrder', 'fontSize', 'fontWeight',
    'fontFamily', 'textAnchor', 'visibility'],
  drawn({place, draw}, width) {
    const {seenWidth} = place, {classList} = document.body, dark = classList.contains('dark');
    classList.remove('dark');
    place.seenWidth = width;
    draw();
    const svg = place.querySelector('svg'), root = svg.cloneNode(true), from = svg.querySelectorAll('*');
    root.setAttribute('xmlns', svg.namespaceURI);
    root.querySelectorAll('*').forEach((node, i) => {
      const look = getComputedStyle(from[i]);
      for (const key of this.LOOKS) node.style[key] = look[key];
    });
    place.seenWidth = seenWidth;
    draw();
    classList.toggle('dark', dark);
    const made = document.querySelector('meta[name=generator]').content;
    return {root, height: svg.viewBox.baseVal.height, title: svg.getAttribute('aria-label'), caption: `${made}.`};
  },

  /* A figure as the text of an SVG file `mm` wide, and its size in millimetres. */
  async draw(figure, mm) {
    const width = mm * this.PER_MM;
    await document.fonts.load(`12px ${this.FONT}`);
    const {root, height, title, caption} = await (figure.place ? this.drawn(figure, width) : this.plotted(figure, width));
    const node = (name, attributes, text = '') => {
      const made = document.createElementNS(root.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      made.textContent = text;
      return made;
    };
    let top = 0, bottom = height;
    const write = (words, size, weight, fill) => this.lines(words, size, weight, width - 8).map(line =>
      node('text', {x: 4, 'font-family': 'Inter, Arial, Helvetica, sans-serif', 'font-size': size,
        'font-weight': weight, fill}, line));
    const head = write(title, 12, 700, '#1d2433'), foot = write(caption, this.LEAST, 400, '#475467');
    for (const line of head.toReversed()) { line.setAttribute('y', top - 5); top -= 17; }
    for (const line of foot) { line.setAttribute('y', bottom + 11); bottom += 14; }
    top -= head.length ? 3 : 0;
    bottom += foot.length ? 4 : 0;
    const sheet = {x: 0, y: top, width, height: bottom - top};
    root.setAttribute('viewBox', Object.values(sheet).join(' '));
    const size = [mm, Math.ceil(10 * sheet.height / this.PER_MM) / 10];
    ['width', 'height'].forEach((side, i) => root.setAttribute(side, `${size[i]}mm`));
    root.prepend(node('style', {}, (await this.faces()).join('')), node('title', {}, title), node('rect', {...sheet, fill: '#ffffff'}));
    root.append(...head, ...foot);
    return {svg: new XMLSerializer().serializeToString(root), size};
  },

  /* `words` in lines that fit into so many pixels. */
  lines(words, size, weight, width) {
    const pen = document.createElement('canvas').getContext('2d'), lines = [];
    pen.font = `${weight} ${size}px ${this.FONT}`;
    for (const word of (words || '').split(' ').filter(Boolean)) {
      const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
      if (lines.length && pen.measureText(longer).width <= width) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines;
  },

  /* Rules of the page's font, each of one weight, which printers take better than a variable one. */
  FONT: 'Inter',
  faces() {
    const weights = [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]).filter(rule =>
      rule instanceof CSSFontFaceRule && rule.style.fontFamily.includes(this.FONT) && !rule.style.fontWeight.includes(' '));
    this.loaded ??= Promise.all(weights.map(async ({style}) => {
      const [, url] = /url\(["']?([^"')]+)/.exec(style.getPropertyValue('src'));
      const data = url.startsWith('data:') ? url : await this.dataUrl(await (await fetch(url)).blob());
      return `@font-face{font-family:${this.FONT};font-weight:${style.fontWeight};src:url(${data}) format("woff2")}`;
    }));
    return this.loaded;
  },
  dataUrl(file) {
    return new Promise(resolve => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.readAsDataURL(file);
    });
  },

  /* Buttons that save a figure; `figure` returns it as it is seen. */
  TOOLS: `<select aria-label="Width of the saved figure" title="Width of the saved figure: one column or two">
    <option value="85">85 mm</option><option value="174">174 mm</option></select>
    <button type="button" data-kind="svg" title="Save as SVG">SVG</button>
    <button type="button" data-kind="png" title="Save as PNG, 600 dots per inch">PNG</button>
    <button type="button" data-kind="pdf" title="Print on a sheet of its size: choose “Save as PDF”">PDF</button>`,
  mm: '85',
  offer(tools, figure) {
    tools.insertAdjacentHTML('beforeend', this.TOOLS);
    tools.querySelector('select').value = this.mm;
    tools.addEventListener('change', event => {
      this.mm = event.target.value;
      document.querySelectorAll('.figure-tools select').forEach(other => { other.value = this.mm; });
    });
    tools.addEventListener('click', event => {
      const {kind} = event.target.dataset;
      if (['svg', 'png', 'pdf'].includes(kind)) this.save(figure(), kind, Number(this.mm)).catch(console.error);
    });
  },

  /* Save a figure as "svg" or "png", or print it as "pdf" on a sheet of its size. */
  async save(figure, kind, mm) {
    const drawn = await this.draw(figure, mm), of = figure.layout?.meta?.filename || figure.place?.id,
      name = `${of || 'figure'}-${mm}mm`;
    if (kind === 'pdf') return this.print(drawn, name);
    let file = new Blob([drawn.svg], {type: 'image/svg+xml'});
    if (kind === 'png') file = await this.png(file, drawn);
    const href = URL.createObjectURL(file);
    Object.assign(document.createElement('a'), {href, download: `${name}.${kind}`}).click();
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  },

  async png(file, drawn) {
    const image = Object.assign(new Image(), {src: URL.createObjectURL(file)});
    await image.decode();
    const [width, height] = drawn.size.map(mm => Math.round(mm / 25.4 * this.DPI));
    const canvas = Object.assign(document.createElement('canvas'), {width, height});
    canvas.getContext('2d').drawImage(image, 0, 0, width, height);
    URL.revokeObjectURL(image.src);
    return new Promise(resolve => { canvas.toBlob(resolve, 'image/png'); });
  },

  /* HTML that prints as one sheet with nothing but the figure. */
  sheet({svg, size}) {
    return `<!doctype html><style>@page { size: ${size.map(mm => `${mm}mm`).join(' ')}; margin: 0 }
      body { margin: 0 } svg { display: block; break-after: avoid }</style>${svg}`;
  },

  /* The browser's own dialog saves a sheet as PDF. */
  print(drawn, name) {
    const frame = Object.assign(document.createElement('iframe'), {className: 'paper', srcdoc: this.sheet(drawn)});
    frame.onload = async () => {
      const view = frame.contentWindow;
      view.document.title = name;
      await view.document.fonts.ready;
      view.onafterprint = () => frame.remove();
      view.print();
    };
    document.body.append(frame);
  },
};

/* The names of points that have room in a figure of this width, where it has several sets of them. */
explorer.callouts = (layout, width) => {
  const sets = layout.meta?.callouts;
  return sets ? {annotations: sets.find(([widest]) => widest === null || width <= widest)[1]} : {};
};

/* Lay a figure out for a narrow page where its `meta.narrow` says how; returns which way it is laid out. */
explorer.fit = (layout, width) => {
  const {below, changes} = layout.meta?.narrow || {};
  if (!(width < below)) return 'wide';
  for (const [path, value] of Object.entries(changes)) explorer.put(layout, path, value);
  return 'narrow';
};

/* The entry of a tree at a path such as "xaxis.type", and a new value for it. */
explorer.at = (tree, path) => path.split('.').reduce((part, key) => part?.[key], tree);
explorer.put = (tree, path, value) => {
  const keys = path.split('.'), last = keys.pop();
  keys.reduce((part, key) => part[key] ??= {}, tree)[last] = value;
};

/* Print of the page is light, leaves out sections that have shown nothing yet, and makes figures smaller that are
   wider than a card on a sheet of A4 or Letter: 640 pixels. */
addEventListener('beforeprint', () => {
  for (const {box, drawn} of explorer.sections?.values() || []) box.classList.toggle('not-on-paper', !drawn);
  for (const plot of document.querySelectorAll('.figure')) {
    const width = plot._fullLayout?.width;
    if (width > 640) plot.style.zoom = 640 / width;
  }
  explorer.paper.dark ||= document.body.classList.contains('dark');
  document.body.classList.remove('dark');
});
addEventListener('afterprint', () => {
  document.querySelectorAll('.figure').forEach(plot => { plot.style.zoom = ''; });
  document.body.classList.toggle('dark', Boolean(explorer.paper.dark));
  explorer.paper.dark = false;
});
