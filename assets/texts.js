/* The strip of KL under a text: one stop of the tab key, arrows move along it, and the token under the mouse
   or the keyboard is read out below. */
Object.assign(explorer, {
  texts({element}) {
    const strip = target => target.closest?.('.kl-tokens button');
    const read = token => {
      const box = token.closest('.kl'), mark = box.closest('.text-column');
      for (const other of box.querySelectorAll('button')) {
        other.classList.toggle('read', other === token);
        other.tabIndex = other === token ? 0 : -1;
      }
      const name = mark.querySelector('h3 .mark')?.textContent || mark.getAttribute('aria-label');
      const line = text => Object.assign(document.createElement('p'), {textContent: text});
      box.querySelector('.kl-read').replaceChildren(
        line(token.getAttribute('aria-label')),
        line(`original: ${token.dataset.first}`), line(`${name}: ${token.dataset.second}`));
    };
    for (const event of ['pointerover', 'focusin', 'click']) {
      element.addEventListener(event, ({target}) => strip(target) && read(strip(target)));
    }
    element.addEventListener('keydown', event => {
      const token = strip(event.target);
      if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
      const all = [...token.parentElement.children], at = all.indexOf(token);
      const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      event.stopPropagation();  // on the page arrows move the inspected element
      all[Math.min(Math.max(to, 0), all.length - 1)].focus();
    });
  },
});
