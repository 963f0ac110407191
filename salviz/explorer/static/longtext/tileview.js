// The attention of a long text as a map: pan, zoom, minimap, search, sentences and the strongest links of a token.
import {MapImage, TileCache, levelsOf} from './tileimages.js';
import {choiceOf, elementOf, labelled, setText} from '../lib/controls.js';
import {drawLinks} from './tilelinks.js';

const tileSide = 256, margin = {left: 96, top: 72}, labelSize = 11;
const restDelay = 120; // milliseconds without zooming before tiles are requested

export class TileView {
  // `source`: overview(layer, head) and, with a kernel, tile(…) and row(…); all return promises.
  constructor(root, meta, source) {
    Object.assign(this, {root, meta, source, layer: meta.layers[0], head: 0, pool: 'maximum', token: null});
    this.isLive = Boolean(source.tile);
    this.pointers = new Map();
    this.heads = new Map();
    this.cache = new TileCache(key => this.loadTile(key));
    this.build();
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas.parentElement);
    this.resize();
    this.choose({});
  }

  build() {
    const {layers, heads, sentences} = this.meta, numbers = count => Array.from({length: count}, (_, i) => [i, i]);
    const cut = text => text.length > 48 ? `${text.slice(0, 47)}…` : text;
    this.search = Object.assign(document.createElement('input'), {type: 'search', size: 14});
    this.found = elementOf('output', 'sv-tiles-found');
    this.canvas = elementOf('canvas', 'sv-tiles-map');
    Object.assign(this.canvas, {tabIndex: 0});
    this.canvas.setAttribute('role', 'img');
    this.minimap = elementOf('canvas', 'sv-tiles-minimap');
    this.readout = elementOf('output', 'sv-tiles-readout');
    this.links = elementOf('canvas', 'sv-tiles-links');
    this.list = elementOf('ol', 'sv-tiles-list');
    const jump = choiceOf([['', 'choose'], ...sentences.map((s, i) => [i, `${i + 1}: ${cut(s.text)}`])],
      i => i !== '' && this.showRows(sentences[i].start, sentences[i].stop));
    this.root.append(elementOf('div', 'sv-tiles-bar',
      labelled('Layer', choiceOf(layers.map(l => [l, l]), l => this.choose({layer: Number(l)}))),
      labelled('Head', choiceOf(numbers(heads), h => this.choose({head: Number(h)}))),
      labelled('Cells show the', choiceOf([['maximum', 'maximum'], ['mean', 'mean']], pool => this.choose({pool}))),
      labelled('Search token', this.search), this.found, labelled('Sentence', jump)),
    elementOf('div', 'sv-tiles-frame', this.canvas, this.minimap), this.readout, this.links, this.list);
  }

  listen() {
    const {canvas} = this, at = e => [e.offsetX - margin.left, e.offsetY - margin.top];
    canvas.addEventListener('wheel', e => {
      e.preventDefault();
      this.zoom(Math.exp(-e.deltaY / 400), ...at(e));
    }, {passive: false});
    canvas.addEventListener('pointerdown', e => {
      canvas.setPointerCapture(e.pointerId);
      this.pointers.set(e.pointerId, [e.offsetX, e.offsetY]);
      this.moved = false;
    });
    canvas.addEventListener('pointermove', e => this.pointers.has(e.pointerId) ? this.drag(e) : this.point(...at(e)));
    for (const kind of ['pointerup', 'pointercancel']) canvas.addEventListener(kind, e => {
      const clicked = this.pointers.delete(e.pointerId) && !this.moved && kind === 'pointerup';
      if (clicked) this.chooseToken(Math.floor(this.y + (e.offsetY - margin.top) / this.scale));
    });
    canvas.addEventListener('keydown', e => this.press(e));
    this.search.addEventListener('keydown', e => e.key === 'Enter' && this.findNext(e.shiftKey ? -1 : 1));
    const go = e => {
      const side = this.minimap.clientWidth, to = v => v / side * this.meta.size;
      if (e.buttons) this.centre(to(e.offsetX), to(e.offsetY));
    };
    this.minimap.addEventListener('pointerdown', go);
    this.minimap.addEventListener('pointermove', go);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.redraw());
  }

  press(e) {
    const step = 60 / this.scale, [w, h] = this.area(), moves = {ArrowLeft: [-step, 0], ArrowRight: [step, 0],
      ArrowUp: [0, -step], ArrowDown: [0, step]};
    if (moves[e.key]) this.move(this.x + moves[e.key][0], this.y + moves[e.key][1]);
    else if (e.key === '+' || e.key === '=') this.zoom(1.5, w / 2, h / 2);
    else if (e.key === '-') this.zoom(1 / 1.5, w / 2, h / 2);
    else if (e.key === '0') this.fit();
    else if (e.key === 'Escape') this.chooseToken(null);
    else return;
    e.preventDefault();
  }

  drag(e) {
    const before = this.pointers.get(e.pointerId), now = [e.offsetX, e.offsetY];
    if (Math.hypot(now[0] - before[0], now[1] - before[1]) < 3 && !this.moved) return;
    this.moved = true;
    const other = [...this.pointers].find(([id]) => id !== e.pointerId)?.[1];
    this.pointers.set(e.pointerId, now);
    const by = [0, 1].map(k => (now[k] - before[k]) / this.scale);
    if (!other) return this.move(this.x - by[0], this.y - by[1]);
    const apart = p => Math.hypot(p[0] - other[0], p[1] - other[1]);
    const [x, y] = [0, 1].map(k => (now[k] + other[k]) / 2 - [margin.left, margin.top][k]);
    this.zoom(apart(now) / Math.max(1, apart(before)), x, y);
  }

  area() { return [this.canvas.clientWidth - margin.left, this.canvas.clientHeight - margin.top]; }
  leastScale() { return Math.min(...this.area()) / this.meta.size; }

  fit() {
    this.scale = this.leastScale();
    this.move(0, 0);
  }

  move(x, y) {
    const [w, h] = this.area(), {size} = this.meta, within = (v, length) => Math.max(0, Math.min(v, size - length));
    [this.x, this.y] = [within(x, w / this.scale), within(y, h / this.scale)];
    this.redraw();
  }

  zoom(factor, x, y) {
    const scale = Math.max(this.leastScale(), Math.min(32, this.scale * factor));
    const [column, row] = [this.x + x / this.scale, this.y + y / this.scale];
    Object.assign(this, {scale, zoomed: performance.now()});
    setTimeout(() => this.redraw(), restDelay + 20);
    this.move(column - x / scale, row - y / scale);
  }

  centre(column, row) {
    const [w, h] = this.area();
    this.move(column - w / 2 / this.scale, row - h / 2 / this.scale);
  }

  // Shows the rows from `start` to `stop`, with the diagonal in view.
  showRows(start, stop) {
    const [w, h] = this.area();
    this.scale = Math.max(this.leastScale(), Math.min(24, h / (stop - start + 2)));
    this.move(stop - w / this.scale * .9, start - 1);
    this.chooseToken(start);
  }

  resize() {
    const ratio = devicePixelRatio || 1, width = Math.max(320, this.root.clientWidth), height = Math.min(640, width);
    for (const [canvas, w, h] of [[this.canvas, width, height], [this.minimap, 128, 128], [this.links, width, 110]]) {
      Object.assign(canvas, {width: w * ratio, height: h * ratio});
      Object.assign(canvas.style, {width: `${w}px`, height: `${h}px`});
    }
    this.scale = Math.max(this.scale || 0, this.leastScale());
    this.move(this.x || 0, this.y || 0);
  }

  async choose(change) {
    Object.assign(this, change);
    const key = `${this.layer}.${this.head}`;
    if (!this.heads.has(key)) {
      setText(this.readout, `Computing the overview of layer ${this.layer}, head ${this.head} …`);
      const {bytes, cells} = await this.source.overview(this.layer, this.head);
      this.heads.set(key, levelsOf(bytes, cells, this.meta.size));
    }
    this.redraw();
    this.showLinks();
  }

  levels() { return this.heads.get(`${this.layer}.${this.head}`); }

  async loadTile(key) {
    const [layer, head, pool, cell, row, column] = key.split('/').map((part, i) => i === 2 ? part : Number(part));
    const {bytes, rows, columns} = await this.source.tile({layer, head, pool, cell, row, column, side: tileSide});
    return new MapImage(new Float32Array(bytes), columns, rows);
  }

  // The finest cell that is not smaller than a pixel, a power of 2.
  cell() { return 2 ** Math.max(0, Math.ceil(Math.log2(1 / this.scale / (devicePixelRatio || 1)))); }

  isDark() {
    const stated = document.documentElement.dataset.theme ?? document.body.dataset.jpThemeLight;
    if (stated) return stated === 'dark' || stated === 'false';
    return matchMedia('(prefers-color-scheme: dark)').matches;
  }

  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      if (this.levels()) this.draw();
    });
  }

  draw() {
    const context = this.canvas.getContext('2d'), ratio = devicePixelRatio || 1, levels = this.levels();
    const wanted = this.cell(), level = levels.filter(one => one.cell <= wanted).at(-1) ?? levels[0];
    const [w, h] = this.area();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, w + margin.left, h + margin.top);
    context.imageSmoothingEnabled = false;
    context.save();
    context.translate(margin.left, margin.top);
    context.beginPath();
    context.rect(0, 0, w, h);
    context.clip();
    this.paint(context, level[this.pool], level.cell, 0, 0);
    this.shown = {cell: level.cell, missing: 0};
    if (this.isLive && wanted < levels[0].cell) this.drawTiles(context, wanted, w, h);
    this.markToken(context, w, h);
    context.restore();
    this.drawLabels(context, w, h);
    this.drawMinimap(w, h);
    this.describe();
  }

  paint(context, image, cell, column, row) {
    const {scale} = this;
    context.drawImage(image.canvas(this.isDark()), (column - this.x) * scale, (row - this.y) * scale,
      image.columns * cell * scale, image.rows * cell * scale);
  }

  drawTiles(context, cell, w, h) {
    const isResting = performance.now() - (this.zoomed ?? -restDelay) >= restDelay;
    const width = cell * tileSide, last = v => Math.floor(Math.min(this.meta.size - 1, v) / width);
    this.shown.cell = cell;
    for (let row = Math.floor(this.y / width); row <= last(this.y + h / this.scale); row++)
      for (let column = Math.floor(this.x / width); column <= last(this.x + w / this.scale); column++) {
        const key = this.tileKey(cell, row, column);
        const tile = isResting ? this.cache.get(key, () => this.redraw()) : this.cache.tiles.get(key);
        if (tile) this.paint(context, tile, cell, column * width, row * width);
        else this.shown.missing++;
      }
  }

  tileKey(cell, row, column) { return [this.layer, this.head, this.pool, cell, row, column].join('/'); }

  markToken(context, w) {
    if (this.token === null) return;
    context.strokeStyle = this.isDark() ? '#7fd4ff' : '#d6530e';
    context.lineWidth = 1;
    context.strokeRect(-1, (this.token - this.y) * this.scale - .5, w + 2, Math.max(2, this.scale) + 1);
  }

  drawLabels(context, w, h) {
    const {tokens, size} = this.meta, step = Math.ceil(labelSize * 1.2 / this.scale);
    context.fillStyle = this.isDark() ? '#ddd' : '#222';
    context.font = `${labelSize}px system-ui, sans-serif`;
    context.textBaseline = 'middle';
    const label = i => step > 1 ? String(i) : tokens[i].slice(0, 13), every = step > 1 ? step * 4 : 1;
    const first = v => Math.ceil(v / every) * every;
    for (let i = first(this.y); i < Math.min(size, this.y + h / this.scale); i += every) {
      context.textAlign = 'right';
      context.fillText(label(i), margin.left - 6, margin.top + (i + .5 - this.y) * this.scale);
    }
    for (let i = first(this.x); i < Math.min(size, this.x + w / this.scale); i += every) {
      context.save();
      context.translate(margin.left + (i + .5 - this.x) * this.scale, margin.top - 6);
      context.rotate(-Math.PI / 2);
      context.textAlign = 'left';
      context.fillText(label(i), 0, 0);
      context.restore();
    }
  }

  drawMinimap(w, h) {
    const context = this.minimap.getContext('2d'), ratio = devicePixelRatio || 1, side = 128, {size} = this.meta;
    const levels = this.levels(), level = levels.find(one => Math.ceil(size / one.cell) <= side) ?? levels.at(-1);
    const cells = Math.ceil(size / level.cell), at = v => v / size * side;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.drawImage(level[this.pool].canvas(this.isDark()), 0, 0, cells * at(level.cell), cells * at(level.cell));
    context.strokeStyle = this.isDark() ? '#7fd4ff' : '#d6530e';
    context.lineWidth = 2;
    context.strokeRect(at(this.x), at(this.y), Math.max(4, at(w / this.scale)), Math.max(4, at(h / this.scale)));
  }

  describe(point = '') {
    const {cell, missing} = this.shown ?? {cell: 1, missing: 0}, one = cell === 1;
    const shows = one ? 'one weight per cell' : `each cell: ${this.pool} of ${cell} x ${cell} weights`;
    const kernel = this.isLive || this.cell() >= cell ? '' : '; the finest level of this page, a kernel computes more';
    const waiting = missing ? `; computing ${missing} tile${missing > 1 ? 's' : ''}` : '';
    const text = `Layer ${this.layer}, head ${this.head}; ${shows}; colour: cube root of the weight${kernel}${waiting}`;
    setText(this.readout, point ? `${text}. ${point}` : text);
    this.canvas.setAttribute('aria-label', `Attention map, rows: queries, columns: keys. ${text}`);
    Object.assign(this.root.dataset, {cell, missing});
  }

  point(x, y) {
    const [column, row] = [this.x + x / this.scale, this.y + y / this.scale].map(Math.floor), {tokens} = this.meta;
    if (!this.levels() || x < 0 || y < 0 || !(tokens[row] && tokens[column] !== undefined)) return;
    const {cell} = this.shown, width = cell * tileSide, coarse = this.levels().find(one => one.cell === cell);
    const [tileRow, tileColumn] = [row, column].map(v => Math.floor(v / width));
    const tile = coarse ? null : this.cache.tiles.get(this.tileKey(cell, tileRow, tileColumn));
    const inside = v => Math.floor((coarse ? v : v % width) / cell);
    const weight = (coarse?.[this.pool] ?? tile)?.weightAt(inside(row), inside(column));
    if (weight === undefined) return;
    const of = cell === 1 ? '' : `, ${this.pool} of its cell`;
    this.describe(`${row} “${tokens[row]}” to ${column} “${tokens[column]}”${of}: ${weight.toPrecision(3)}`);
  }

  findNext(step) {
    const text = this.search.value.trim().toLowerCase(), {tokens} = this.meta;
    const at = text ? tokens.flatMap((token, i) => token.toLowerCase().includes(text) ? [i] : []) : [];
    if (!at.length) return setText(this.found, text ? 'not found' : '');
    const next = at.findIndex(i => i > (this.token ?? -1));
    const before = at.filter(i => i < (this.token ?? this.meta.size)).length;
    const k = (step > 0 ? Math.max(0, next) : before - 1 + at.length) % at.length;
    setText(this.found, `${k + 1} of ${at.length}`);
    this.scale = Math.max(this.scale, 14);
    this.centre(at[k], at[k]);
    this.chooseToken(at[k]);
  }

  chooseToken(token) {
    this.token = token === null || token < 0 || token >= this.meta.size ? null : token;
    this.redraw();
    this.showLinks();
  }

  // The strongest links of the token: of single keys with a kernel, of cells of the finest level without one.
  async showLinks() {
    const {token, layer, head} = this;
    let cell = 1, weights = null;
    if (token !== null && this.levels()) {
      if (this.isLive) weights = new Float32Array((await this.source.row({layer, head, row: token})).bytes);
      else {
        const level = this.levels()[0], row = Math.floor(token / level.cell);
        cell = level.cell;
        weights = Float32Array.from({length: level.maximum.columns}, (_, k) => level.maximum.weightAt(row, k));
      }
    }
    const isCurrent = token === this.token && layer === this.layer && head === this.head;
    if (isCurrent) drawLinks(this, weights, cell);
  }
}
