// A row of maps with the same tokens and size, each with its own title and scale; pointer and cursor are shared.
import {colourScale} from '../lib/colour.js';
import {CellGrid, CellPainter, doubleStroke, inksOf, labelWidth, overlayInks} from '../lib/canvas.js';
import {CellStage} from '../lib/cells.js';
import {coloursOf, drawTokenMap} from './tokenmap.js';

const rowGap = 14, rowTallest = 420, rowWidestCell = 34, rowStacks = 430, rowTitle = 18, rowLegend = 52;

export class MapRow {
  // `text(row, column)`: the description of a cell; `chooseRow(row)`; `announce(text)`.
  constructor({text, chooseRow, announce}) {
    this.cells = new CellStage({text: ({row, column}) => text(row, column), announce, choose: ({row}) => chooseRow(row),
      first: () => ({row: Math.max(0, this.row), column: 0})});
    this.painter = new CellPainter();
    const {el, sharp, tip} = this.cells;
    Object.assign(this, {el, sharp, tip});
  }

  // `items`: [{title, values, scale, scaleTitle, over(context, grid)}]; `row`: the framed row, or -1; `about`: the key
  // of a reading (see `readingKey`).
  draw({items, units, row, framed, label, about}, host, theme) {
    if (!this.el.clientWidth) return;
    Object.assign(this, {items, units, theme});
    this.inks = inksOf(host, theme);
    this.place = this.layout();
    this.sharp.size(this.place.width, this.place.height);
    this.sharp.el.setAttribute('aria-label', `${label} Arrow keys move between cells, Enter chooses the row.`);
    items.forEach((item, i) => this.drawItem(item, this.place.grids[i], i, framed ? row : -1));
    this.sharp.el.salviz = {grids: this.place.grids, units, scales: items.map(item => item.scale)};
    this.row = row;
    this.cells.show(this.place.grids, theme, about);
  }

  layout() {
    const width = this.el.clientWidth, count = this.units.length, ratio = window.devicePixelRatio || 1,
      labels = this.units.map(u => u.label);
    const {context} = this.sharp;
    const stacked = width < rowStacks, across = stacked ? 1 : this.items.length;
    const query = labelWidth(context, labels, this.inks.bold, Math.min(90, width * .16));
    const left = 16 + query + 6;
    const side = Math.min((width - left - 2 - (across - 1) * rowGap) / across, rowTallest,
      Math.max(90, count * rowWidestCell));
    const longest = labelWidth(context, labels, this.inks.bold, 84), key = longest <= side / count - 6 ? 12 : longest;
    const tall = rowTitle + 14 + key + 5 + side + rowLegend;
    const axis = {count, from: 0, span: count};
    const grids = this.items.map((_, i) => new CellGrid({x: left + (i % across) * (side + rowGap),
      y: Math.floor(i / across) * tall + rowTitle + 14 + key + 5,
      width: side, height: side, columns: axis, rows: axis, ratio}));
    return {grids, space: {key, query}, width, height: Math.ceil(this.items.length / across) * tall, across};
  }

  drawItem(item, grid, i, framed) {
    const {inks, sharp, place} = this, {context} = sharp, first = i % place.across === 0,
      rows = new Set(framed >= 0 ? [framed] : []);
    drawTokenMap(sharp, this.painter, grid, {colours: coloursOf(item.values, item.scale), units: this.units, inks,
      space: place.space, rows,
      queries: first, titles: first});
    item.over?.(context, grid);
    if (framed >= 0) this.drawFrame(context, grid, framed);
    Object.assign(context, {font: inks.bold, fillStyle: inks.fg, textAlign: 'left', textBaseline: 'top'});
    context.fillText(item.title, grid.x, grid.y - place.space.key - 5 - 14 - rowTitle + 2, grid.width);
    colourScale(context, item.scale, {x: grid.x, y: grid.y + grid.height + 24, width: Math.min(220, grid.width),
      title: item.scaleTitle, inks});
  }

  // Rows that are too thin for a frame get two marks at their ends.
  drawFrame(context, grid, row) {
    const path = new Path2D(), {halo} = overlayInks(this.theme), y = grid.top(row), height = grid.top(row + 1) - y;
    if (grid.rowPitch >= 12) {
      path.rect(grid.x + .75, y + .75, grid.width - 1.5, height - 1.5);
      doubleStroke(context, path, {ink: this.inks.accent, halo}, 1.5);
      return;
    }
    context.fillStyle = this.inks.accent;
    for (const x of [grid.x - 4, grid.x + grid.width + 1]) context.fillRect(x, y, 3, Math.max(2, height));
  }
}
