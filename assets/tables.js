/* Tables whose headings sort them, once up and once down; what a section fills anew keeps its order. */
explorer.tables = {
  /* [column, descending] by the table's name. */
  orders: {},

  sort(table) {
    const {table: name} = table.dataset, [at, descending] = explorer.tables.orders[name] || [];
    if (at === undefined) return;
    const value = row => {
      const cell = row.cells[at];
      if (!cell.matches('.num')) return cell.textContent;
      return 'value' in cell.dataset ? Number(cell.dataset.value) : null;
    };
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      if (a === null || b === null) return (a === null) - (b === null);  // what has no number comes last
      const up = typeof a === 'number' ? a - b : a.localeCompare(b);
      return descending ? -up : up;
    };
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (i === at) head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
      else head.removeAttribute('aria-sort');
    });
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
  },
};

document.addEventListener('click', ({target}) => {
  const head = target.closest?.('[data-sort]')?.closest('th');
  if (!head) return;
  const table = head.closest('table'), {orders} = explorer.tables, {table: name} = table.dataset;
  const [at, descending] = orders[name] || [];
  orders[name] = [head.cellIndex, at === head.cellIndex && !descending];
  explorer.tables.sort(table);
});
document.addEventListener('filled', ({target}) => {
  target.querySelectorAll('table[data-table]').forEach(explorer.tables.sort);
}, true);
