// Interactive cells: a canvas, an overlay that outlines a cell, and a line of text about that cell.
import {doubleStroke, overlayInks, SharpCanvas} from './canvas.js';
import {elementOf} from './controls.js';

const arrowMoves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

// Looks up a pressed key in `keys` (by default the arrows: [down, right]); undefined with a modifier key.
export function plainKey(event, keys = arrowMoves) {
  return event.altKey || event.ctrlKey || event.metaKey ? undefined : keys[event.key];
}

// Keeps the key from triggering JupyterLab's shortcuts or scrolling the page.
export function claimKey(event) {
  event.preventDefault();
  event.stopPropagation();
}

// Screen readers would read the arrow between two tokens as a symbol.
export function spokenText(text) { return text.replaceAll(' → ', ' to '); }

export class CellStage {
  // `text(cell)`: the description of a cell; `first()`: where the arrow keys start. Optional: `choose(cell)`, called on
  // Enter or click; `pointed(x, y)`: {cell, text} for more than cells, or null to change nothing; `keys`: {key:
  // action}; `moved(cell)`: called when the arrow keys move; `announce(text)`: sends `spoken(cell)` to screen readers.
  constructor({text, announce, spoken = cell => spokenText(text(cell)), choose = null,
    first = () => ({row: 0, column: 0}), pointed = null, keys = {}, moved = () => {}}) {
    Object.assign(this, {text, announce, spoken, choose, first, moved, keys, cursor: null, hover: null, grids: []});
    this.pointed = pointed ?? ((x, y) => {
      const cell = this.cellAt(x, y);
      return {cell, text: cell ? text(cell) : ''};
    });
    if (choose) this.keys = {...keys, Enter: () => this.cursor && choose(this.cursor)};
    this.sharp = new SharpCanvas('sv-canvas', 'application');
    this.over = new SharpCanvas('sv-canvas sv-over', 'presentation');
    this.over.el.removeAttribute('tabindex');   // presentation elements must not be focusable
    this.el = elementOf('div', 'sv-stage');
    this.el.append(this.sharp.el, this.over.el);
    this.tip = elementOf('output', 'sv-tip');
    // Keyboard moves are announced separately; announcing pointer moves too would drown them out.
    this.tip.setAttribute('aria-live', 'off');
    this.listen();
  }

  // `grids`: the drawn grids, all with the same cells; a cell is outlined in each. `about`: a key of the drawn data;
  // the text about a cell is cleared when it changes.
  show(grids, theme, about = '') {
    Object.assign(this, {grids, theme});
    if (!this.has(this.cursor)) this.cursor = null;
    if (!this.has(this.hover)) this.hover = null;
    if (about !== this.about) this.say(this.cursor && this.about !== undefined ? this.text(this.cursor) : '');
    this.about = about;
    this.outline();
  }

  // Another sentence may have fewer tokens.
  has(cell) {
    const {rows, columns} = this.grids[0] ?? {};
    return Boolean(cell && rows) && cell.row < rows.count && cell.column < columns.count;
  }

  outline() {
    const cell = this.hover ?? this.cursor, {context} = this.over;
    this.over.size(this.sharp.width, this.sharp.height);
    if (!cell || !this.grids.length) return;
    const {columns} = this.grids[0];
    for (const grid of this.grids) {
      const {x, y, width, height} = grid.box(cell.row, cell.column), path = new Path2D();
      const draw = () => doubleStroke(context, path, overlayInks(this.theme), 1.5);
      path.rect(x - .5, y - .5, Math.max(2, width + 1), Math.max(2, height + 1));
      if (columns.span < columns.count) grid.clipped(context, draw);
      else draw();
    }
  }

  cellAt(x, y) {
    const grid = this.grids.find(each => each.inside(x, y));
    return grid ? {row: grid.rowAt(y), column: grid.columnAt(x)} : null;
  }

  say(text) { if (this.tip.textContent !== text) this.tip.textContent = text; }

  listen() {
    const {el} = this.sharp;
    el.addEventListener('pointermove', event => {
      const at = this.grids.length ? this.pointed(...this.sharp.at(event)) : null;
      if (!at) return;
      this.hover = at.cell;
      this.say(at.text);
      this.outline();
    });
    el.addEventListener('pointerleave', () => { this.hover = null; this.outline(); });
    el.addEventListener('blur', () => { this.cursor = null; this.outline(); });
    el.addEventListener('keydown', event => this.keyed(event));
    el.addEventListener('click', event => {
      const cell = this.cellAt(...this.sharp.at(event));
      if (cell) this.choose?.(cell);
      // A tap on a touch screen does not move a pointer.
      const at = this.grids.length ? this.pointed(...this.sharp.at(event)) : null;
      if (at) this.say(at.text);
    });
  }

  keyed(event) {
    const move = plainKey(event), act = plainKey(event, this.keys);
    if (!this.grids.length || !move && !act) return;
    claimKey(event);
    if (move) this.moveCursor(...move);
    else act();
  }

  moveCursor(down, right) {
    const {rows, columns} = this.grids[0], inside = (place, {count}) => Math.max(0, Math.min(count - 1, place));
    this.cursor = this.cursor
      ? {row: inside(this.cursor.row + down, rows), column: inside(this.cursor.column + right, columns)} : this.first();
    this.hover = null;
    this.moved(this.cursor);
    this.say(this.text(this.cursor));
    this.announce(this.spoken(this.cursor));
    this.outline();
  }
}
