/* The divider over the photograph is a range input, so that mouse, touch and keys move it as they move any
   slider; the picture follows by one CSS variable. */
explorer.divider = ({element}) => {
  const box = element.querySelector('.before-after'), slider = box.querySelector('input');
  const move = () => {
    const at = Number(slider.value), name = box.querySelector('.after')?.alt || 'rounded';
    box.style.setProperty('--at', at + '%');
    slider.setAttribute('aria-valuetext', `${at} % original, ${100 - at} % ${name}`);
  };
  slider.addEventListener('input', move);
  element.addEventListener('filled', move);
  move();
};
