// Canvas drawing that is sharp on every screen: device pixels, cells of a map, token labels along its axes.
import {cutText, visibleText} from './words.js';

const sansFamily = 'system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';
const lightInks = {fg: '#1b1f24', muted: '#57606a', line: '#d5d9de', accent: '#0b5cad', bg: '#ffffff',
  raised: '#f6f7f9', warn: '#9a3b00'};
const labelPitch = 12;

// The colours and fonts of the page, for drawing on a canvas.
export function inksOf(el, theme) {
  const style = getComputedStyle(el), inks = {theme};
  for (const [name, fallback] of Object.entries(lightInks))
    inks[name] = style.getPropertyValue(`--sv-${name}`).trim() || fallback;
  return {...inks, font: `11px ${sansFamily}`, bold: `bold 11px ${sansFamily}`, small: `10px ${sansFamily}`};
}

export class SharpCanvas {
  constructor(className, role = 'img') {
    this.el = document.createElement('canvas');
    this.el.className = className;
    this.el.setAttribute('role', role);
    this.el.tabIndex = 0;
    this.context = this.el.getContext('2d');
    Object.assign(this, {width: 0, height: 0, ratio: 1});
  }

  // Sets width and height in CSS pixels; the canvas gets the corresponding number of device pixels.
  size(width, height) {
    Object.assign(this, {width, height, ratio: window.devicePixelRatio || 1});
    const across = Math.max(1, Math.round(width * this.ratio)), down = Math.max(1, Math.round(height * this.ratio));
    if (this.el.width !== across) this.el.width = across;
    if (this.el.height !== down) this.el.height = down;
    this.el.style.width = `${across / this.ratio}px`;
    this.el.style.height = `${down / this.ratio}px`;
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.clearRect(0, 0, across, down);
    this.context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
  }

  snap(x) { return Math.round(x * this.ratio) / this.ratio; }

  at(event) {
    const box = this.el.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }
}

// The cell shown by each of `pixels` device pixels when they cover `span` cells from cell number `from` (both may be
// fractional).
export function cellsOfPixels(pixels, from, span, count) {
  return Int32Array.from({length: pixels},
    (_, p) => Math.min(count - 1, Math.max(0, Math.floor(from + (p + .5) * span / pixels))));
}

// The positions of cells on the screen. Rows and columns: {count, from, span}. All positions are in CSS pixels, with
// edges on device pixels, exactly where the colours change.
export class CellGrid {
  constructor({x, y, width, height, columns, rows, ratio}) {
    Object.assign(this, {columns, rows, ratio});
    [this.x, this.y] = [x, y].map(v => Math.round(v * ratio) / ratio);
    this.across = Math.max(1, Math.round(width * ratio));
    this.down = Math.max(1, Math.round(height * ratio));
    this.width = this.across / ratio;
    this.height = this.down / ratio;
  }

  left(column) {
    return this.x + Math.ceil((column - this.columns.from) * this.across / this.columns.span - .5) / this.ratio; }
  top(row) { return this.y + Math.ceil((row - this.rows.from) * this.down / this.rows.span - .5) / this.ratio; }
  get pitch() { return this.width / this.columns.span; }
  get rowPitch() { return this.height / this.rows.span; }

  box(row, column) {
    const x = this.left(column), y = this.top(row);
    return {x, y, width: this.left(column + 1) - x, height: this.top(row + 1) - y};
  }

  middle(row, column) {
    const {x, y, width, height} = this.box(row, column);
    return [x + width / 2, y + height / 2];
  }

  inside(px, py) { return px >= this.x && px < this.x + this.width && py >= this.y && py < this.y + this.height; }
  columnAt(px) { return Math.min(this.columns.count - 1, Math.max(0,
    Math.floor(this.columns.from + (px - this.x) * this.columns.span / this.width))); }
  rowAt(py) { return Math.min(this.rows.count - 1,
    Math.max(0, Math.floor(this.rows.from + (py - this.y) * this.rows.span / this.height))); }
  columnsInView() { return cellRange(this.columns); }
  rowsInView() { return cellRange(this.rows); }

  // Clips everything that `draw` draws to the cells.
  clipped(context, draw) {
    context.save();
    context.beginPath();
    context.rect(this.x, this.y, this.width, this.height);
    context.clip();
    draw();
    context.restore();
  }
}

function cellRange({count, from, span}) {
  return [Math.max(0, Math.floor(from)), Math.min(count, Math.ceil(from + span))]; }

// Paints cell colours (Uint32, row by row) onto a canvas with nearest-neighbour sampling; the pixel buffer is reused
// between frames.
export class CellPainter {
  pixelsFor(context, across, down) {
    if (this.image?.width !== across || this.image?.height !== down) {
      this.image = context.createImageData(across, down);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    return this.pixels;
  }

  paint(context, grid, colours) {
    const {across, down, columns, rows, ratio} = grid, pixels = this.pixelsFor(context, across, down);
    const columnOf = cellsOfPixels(across, columns.from, columns.span, columns.count);
    const rowOf = cellsOfPixels(down, rows.from, rows.span, rows.count);
    for (let y = 0, pixel = 0, last = -1; y < down; y++) {
      if (rowOf[y] === last) { pixels.copyWithin(pixel, pixel - across, pixel); pixel += across; continue; }
      last = rowOf[y];
      const base = last * columns.count;
      for (let x = 0; x < across; x++) pixels[pixel++] = colours[base + columnOf[x]];
    }
    context.putImageData(this.image, Math.round(grid.x * ratio), Math.round(grid.y * ratio));
  }
}

const mostShapes = 200;

// A token as visible text for a canvas, shortened if it is very long.
export function shownToken(label) { return visibleText(String(label ?? '').slice(0, mostShapes)); }

// A token for use within a sentence: quoted, shortened, and isolated so that it does not change the text direction
// around it.
export function quotedToken(label, most = 40) {
  const text = cutText(shownToken(label), most);
  return turnsWords.test(text) ? `“\u2068${text}\u2069”` : `“${text}”`;
}

const turnsWords = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;
const shapeSplitter = new Intl.Segmenter(undefined, {granularity: 'grapheme'});

const textWidths = new Map();

export function textWidth(context, text) {
  const key = `${context.font} ${text}`;
  if (!textWidths.has(key)) {
    if (textWidths.size > 20000) textWidths.clear();
    textWidths.set(key, context.measureText(text).width);
  }
  return textWidths.get(key);
}

// Shortens `text` with an ellipsis between two characters so that it fits into `width` pixels.
export function fitText(context, text, width) {
  if (textWidth(context, text) <= width) return text;
  const shapes = Array.from(shapeSplitter.segment(text), s => s.segment);
  let low = 0, high = shapes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (textWidth(context, `${shapes.slice(0, middle).join('')}…`) <= width) low = middle;
    else high = middle - 1;
  }
  return `${shapes.slice(0, low).join('')}…`;
}

// The width of the longest label, at most `most`.
export function labelWidth(context, labels, font, most) {
  context.font = font;
  return Math.ceil(Math.min(most,
    Math.max(8, ...labels.map(label => Math.min(most, textWidth(context, shownToken(label)))))));
}

// Which of the labels from `first` to `end` fit without touching, marked ones first: [[index, middle]].
export function thinnedLabels(first, end, middle, pitch, marked = new Set(), need = labelPitch) {
  const placed = [], stride = Math.max(1, Math.ceil(need / pitch - .05)), order = [];
  for (let i = first; i < end; i++) if (marked.has(i)) order.push(i);
  for (let i = Math.ceil(first / stride) * stride; i < end; i += stride) if (!marked.has(i)) order.push(i);
  for (const i of order) {
    const at = middle(i);
    if (placed.every(([, other]) => Math.abs(other - at) >= Math.min(need, pitch * stride) - .6)) placed.push([i, at]);
  }
  return placed;
}

// `labels`: [{label, special}]; a marked label is bold in the accent colour.
function labelStyle(context, {special}, isMarked, inks) {
  context.font = isMarked ? inks.bold : inks.font;
  context.fillStyle = isMarked ? inks.accent : special ? inks.muted : inks.fg;
}

// Draws key labels above their columns: horizontal where they fit, otherwise rotated.
export function columnLabels(context, grid, labels, {y, space, inks, marked = new Set()}) {
  const [first, end] = grid.columnsInView(), placed = [];
  context.font = inks.bold;
  const flat = labels.slice(first, end).every(({label}) => textWidth(context, shownToken(label)) <= grid.pitch - 6);
  context.direction = 'ltr';
  for (const [i, at] of thinnedLabels(first, end, k => grid.left(k) + (grid.left(k + 1) - grid.left(k)) / 2, grid.pitch,
    marked)) {
    if (at < grid.x || at > grid.x + grid.width) continue;
    labelStyle(context, labels[i], marked.has(i), inks);
    const text = fitText(context, shownToken(labels[i].label), flat ? grid.pitch : space);
    context.save();
    context.translate(at, y);
    if (!flat) context.rotate(-Math.PI / 2);
    context.textAlign = flat ? 'center' : 'left';
    context.textBaseline = flat ? 'bottom' : 'middle';
    context.fillText(text, 0, 0);
    context.restore();
    placed.push({index: i, at, text});
  }
  return placed;
}

// Draws query labels, right-aligned at `x`.
export function rowLabels(context, grid, labels, {x, space, inks, marked = new Set()}) {
  const [first, end] = grid.rowsInView(), placed = [];
  context.direction = 'ltr';
  context.textAlign = 'right';
  context.textBaseline = 'middle';
  for (const [i, at] of thinnedLabels(first, end, k => grid.top(k) + (grid.top(k + 1) - grid.top(k)) / 2, grid.rowPitch,
    marked)) {
    if (at < grid.y || at > grid.y + grid.height) continue;
    labelStyle(context, labels[i], marked.has(i), inks);
    const text = fitText(context, shownToken(labels[i].label), space);
    context.fillText(text, x, at + .5);
    placed.push({index: i, at, text});
  }
  return placed;
}

export function axisTitles(context, grid, {keyY, queryX, inks}) {
  context.font = inks.small;
  context.fillStyle = inks.muted;
  context.textAlign = 'center';
  context.textBaseline = 'top';
  context.fillText('key', grid.x + grid.width / 2, keyY);
  context.save();
  context.translate(queryX, grid.y + grid.height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText('query', 0, 0);
  context.restore();
}

// A line that is visible on light and on dark cells: a wide stroke in one colour, a narrow one in the other.
export function doubleStroke(context, path, {ink, halo}, width = 1.25) {
  context.lineJoin = 'miter';
  context.lineCap = 'square';
  context.strokeStyle = halo;
  context.lineWidth = width + 2;
  context.stroke(path);
  context.strokeStyle = ink;
  context.lineWidth = width;
  context.stroke(path);
}

export function overlayInks(theme) {
  return theme === 'dark' ? {ink: '#ffffff', halo: '#000000'} : {ink: '#000000', halo: '#ffffff'}; }
