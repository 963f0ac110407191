// The attention of a long text as a map: pan, zoom, minimap, search, sentences and the strongest links of a unit.
import {MapImage, TileCache, levelsOf} from './tileimages.js';
import {Units, applyChange, sentenceEntries} from './tileunits.js';
import {choiceOf, elementOf, fillChoice, labelled, setText, tickBox} from '../lib/controls.js';
import {drawLinks} from './tilelinks.js';
import {drawLabels, drawMarks, drawMinimap, margin} from './tilemarks.js';

const tileSide = 256;
const restDelay = 120; // milliseconds without zooming before tiles are requested

export class TileView {
  // `source`: overview(…) and, with a kernel, tile(…) and row(…); all return promises.
  constructor(root, meta, source) {
    Object.assign(this, {root, meta, source, layer: meta.layers[0], head: 0, pool: 'maximum', token: null, version: 0});
    this.unit = new Units(meta, 'tokens');
    this.contrast = meta.size > 2000 ? 4 : meta.size > 500 ? 2 : 1; // weights are small in long texts
    this.isLive = Boolean(source.tile);
    this.isFollowing = this.isLive && meta.awaited > 0;
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
    const {layers, heads, start} = this.meta, numbers = count => Array.from({length: count}, (_, i) => [i, i]);
    this.search = Object.assign(document.createElement('input'), {type: 'search', size: 14});
    this.found = elementOf('output', 'sv-tiles-found');
    this.canvas = elementOf('canvas', 'sv-tiles-map');
    Object.assign(this.canvas, {tabIndex: 0});
    this.canvas.setAttribute('role', 'img');
    this.minimap = elementOf('canvas', 'sv-tiles-minimap');
    this.readout = elementOf('output', 'sv-tiles-readout');
    this.links = elementOf('canvas', 'sv-tiles-links');
    this.list = elementOf('ol', 'sv-tiles-list');
    this.jump = choiceOf([], i => i !== '' && this.showSentence(this.meta.sentences[i]));
    fillChoice(this.jump, sentenceEntries(this.meta.sentences), '');
    this.unitChoice = choiceOf([], name => this.chooseUnit(name));
    this.fillUnits();
    const follow = tickBox(isOn => {
      this.isFollowing = isOn;
      if (isOn) this.followText();
    });
    follow.checked = this.isFollowing;
    this.contrasts = choiceOf([1, 2, 4, 8, 16].map(x => [x, x]), x => this.choose({contrast: Number(x)}));
    this.contrasts.value = this.contrast;
    this.root.append(elementOf('div', 'sv-tiles-bar',
      labelled('Layer', choiceOf(layers.map(l => [l, l]), l => this.choose({layer: Number(l)}))),
      labelled('Head', choiceOf(numbers(heads), h => this.choose({head: Number(h)}))),
      labelled('Units', this.unitChoice),
      labelled('Cells show the', choiceOf([['maximum', 'maximum'], ['mean', 'mean']], pool => this.choose({pool}))),
      labelled('Contrast', this.contrasts),
      labelled('Search', this.search), this.found, labelled('Sentence', this.jump),
      ...(this.isLive && start !== null ? [labelled('Follow generated tokens', follow)] : [])),
    elementOf('div', 'sv-tiles-frame', this.canvas, this.minimap), this.readout, this.links, this.list);
  }

  fillUnits() {
    fillChoice(this.unitChoice, ['tokens', ...Object.keys(this.meta.units)].map(name => [name, name]), this.unit.name);
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
      const side = this.minimap.clientWidth, to = v => v / side * this.unit.size;
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
  leastScale() { return Math.min(...this.area()) / this.unit.size; }

  fit() {
    this.scale = this.leastScale();
    this.move(0, 0);
  }

  move(x, y) {
    const [w, h] = this.area(), {size} = this.unit, within = (v, length) => Math.max(0, Math.min(v, size - length));
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

  // Shows the rows of a sentence, with the diagonal in view.
  showSentence(sentence) {
    const [w, h] = this.area(), start = this.unit.at(sentence.start), stop = this.unit.at(sentence.stop - 1) + 1;
    this.scale = Math.max(this.leastScale(), Math.min(24, h / (stop - start + 2)));
    this.move(stop - w / this.scale * .9, start - 1);
    this.chooseToken(start);
  }

  resize() {
    const ratio = devicePixelRatio || 1, width = Math.max(320, this.root.clientWidth), height = Math.min(640, width);
    const small = width < 600 ? 72 : 128, sizes = [[this.canvas, width, height], [this.minimap, small, small]];
    for (const [canvas, w, h] of [...sizes, [this.links, width, 110]]) {
      Object.assign(canvas, {width: w * ratio, height: h * ratio});
      Object.assign(canvas.style, {width: `${w}px`, height: `${h}px`});
    }
    this.scale = Math.max(this.scale || 0, this.leastScale());
    this.move(this.x || 0, this.y || 0);
  }

  async choose(change) {
    Object.assign(this, change);
    if (!this.levels()) await this.loadOverview();
    this.redraw();
    this.showLinks();
  }

  // The middle of the view and the chosen unit stay at the same tokens.
  chooseUnit(name) {
    const [w, h] = this.area(), {unit, token} = this, next = new Units(this.meta, name);
    const same = v => next.at(unit.start(Math.max(0, Math.min(unit.size - 1, Math.floor(v)))));
    const [column, row] = [same(this.x + w / 2 / this.scale), same(this.y + h / 2 / this.scale)];
    Object.assign(this, {unit: next, token: token === null ? null : same(token)});
    this.scale = Math.max(this.leastScale(), Math.min(32, this.scale * unit.size / next.size));
    this.centre(column, row);
    this.choose({});
  }

  // Loads the overview, and loads it again if the text grew in the meantime.
  async loadOverview() {
    const {layer, head, unit, version} = this, key = this.key();
    if (!this.levels()) setText(this.readout, `Computing the overview of layer ${layer}, head ${head} …`);
    const {bytes, cells, size} = await this.source.overview(layer, head, unit.name);
    this.heads.set(key, levelsOf(bytes, cells, size ?? unit.size));
    if (version !== this.version && key === this.key()) await this.loadOverview();
  }

  // Adds the rows of generated tokens. Returns false if an earlier change is missing.
  grow(change) {
    const before = this.unit.copy();
    if (!applyChange(this.meta, change)) return false;
    this.showGrowth(before);
    return true;
  }

  replaceText(meta) {
    const before = this.unit.copy();
    Object.assign(this.meta, meta);
    this.showGrowth(before);
  }

  async showGrowth(before) {
    this.version++;
    this.unit = new Units(this.meta, this.unit.name);
    const same = this.unit.countSame(before);
    this.cache.expire(key => this.isAtEnd(key, same));
    for (const key of [...this.heads.keys()]) if (key !== this.key()) this.heads.delete(key);
    this.fillUnits();
    if (document.activeElement !== this.jump) fillChoice(this.jump, sentenceEntries(this.meta.sentences), '');
    if (this.isFollowing) this.followText();
    this.redraw();
    this.growing ??= this.loadOverview().finally(() => { this.growing = null; });
    await this.growing;
    this.redraw();
  }

  followText() {
    this.scale = Math.max(this.scale, 14);
    this.move(this.unit.size, this.unit.size);
    this.chooseToken(this.unit.size - 1);
  }

  key() { return `${this.unit.name}.${this.layer}.${this.head}`; }
  levels() { return this.heads.get(this.key()); }

  async loadTile(key) {
    const [unit, pool, ...numbers] = key.split('/');
    const [layer, head, cell, row, column] = numbers.map(Number);
    const {bytes, rows, columns} = await this.source.tile({unit, layer, head, pool, cell, row, column, side: tileSide});
    return new MapImage(new Float32Array(bytes), columns, rows);
  }

  // Whether a tile contains units after the first `same` units, which did not change.
  isAtEnd(key, same) {
    const [unit, , , , cell, row, column] = key.split('/');
    return unit !== this.unit.name || (Math.max(row, column) + 1) * cell * tileSide > same;
  }

  // The finest cell that is not smaller than a pixel, a power of 2.
  cell() { return 2 ** Math.max(0, Math.ceil(Math.log2(1 / this.scale / (devicePixelRatio || 1)))); }

  isDark() {
    const stated = document.documentElement.dataset.theme ?? document.body.dataset.jpThemeLight;
    if (stated) return stated === 'dark' || stated === 'false';
    return matchMedia('(prefers-color-scheme: dark)').matches;
  }

  look() { return {isDark: this.isDark(), contrast: this.contrast}; }

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
    drawMarks(this, context, w);
    context.restore();
    drawLabels(this, context, w, h);
    drawMinimap(this, w, h);
    this.describe();
  }

  paint(context, image, cell, column, row) {
    const {scale} = this;
    context.drawImage(image.canvas(this.look()), (column - this.x) * scale, (row - this.y) * scale,
      image.columns * cell * scale, image.rows * cell * scale);
  }

  drawTiles(context, cell, w, h) {
    const isResting = performance.now() - (this.zoomed ?? -restDelay) >= restDelay;
    const width = cell * tileSide, last = v => Math.floor(Math.min(this.unit.size - 1, v) / width);
    this.shown.cell = cell;
    for (let row = Math.floor(this.y / width); row <= last(this.y + h / this.scale); row++)
      for (let column = Math.floor(this.x / width); column <= last(this.x + w / this.scale); column++) {
        const key = this.tileKey(cell, row, column);
        const tile = isResting ? this.cache.get(key, () => this.redraw()) : this.cache.tiles.get(key);
        if (tile) this.paint(context, tile, cell, column * width, row * width);
        else this.shown.missing++;
      }
  }

  tileKey(cell, row, column) {
    return [this.unit.name, this.pool, this.layer, this.head, cell, row, column].join('/');
  }

  describe(point = '') {
    const {cell, missing} = this.shown ?? {cell: 1, missing: 0}, isToken = this.unit.name === 'tokens';
    const one = isToken && cell === 1, of = isToken ? 'weights' : this.unit.name;
    const {awaited, problem} = this.meta, range = cell > 1 ? `of ${cell} x ${cell} ${of}` : `over a pair of ${of}`;
    const shows = one ? 'one weight per cell' : `each cell: ${this.pool} ${range}`;
    const kernel = this.isLive || this.cell() >= cell ? ''
      : '; this page has no finer level, but a kernel can compute one';
    const waiting = missing ? `; computing ${missing} tile${missing > 1 ? 's' : ''}` : '';
    const written = problem ? `; the continuation failed: ${problem}` : awaited && this.isLive ?
      `; generating, at most ${awaited} token${awaited > 1 ? 's' : ''} left` : '';
    const where = `Layer ${this.layer}, head ${this.head}`, times = this.contrast > 1 ? `${this.contrast} x ` : '';
    const text = `${where}; ${shows}; colour: ${times}cube root of the weight${kernel}${waiting}${written}`;
    setText(this.readout, point ? `${text}. ${point}` : text);
    this.canvas.setAttribute('aria-label', `Attention map of ${this.unit.name}, rows: queries, columns: keys. ${text}`);
    Object.assign(this.root.dataset, {cell, missing});
  }

  point(x, y) {
    const [column, row] = [this.x + x / this.scale, this.y + y / this.scale].map(Math.floor), {unit} = this;
    if (!this.levels() || x < 0 || y < 0 || row >= unit.size || column >= unit.size) return;
    const {cell} = this.shown, width = cell * tileSide, coarse = this.levels().find(one => one.cell === cell);
    const [tileRow, tileColumn] = [row, column].map(v => Math.floor(v / width));
    const tile = coarse ? null : this.cache.tiles.get(this.tileKey(cell, tileRow, tileColumn));
    const inside = v => Math.floor((coarse ? v : v % width) / cell);
    const weight = (coarse?.[this.pool] ?? tile)?.weightAt(inside(row), inside(column));
    if (!(weight >= 0)) return; // not loaded
    const of = cell === 1 && unit.name === 'tokens' ? '' : `, ${this.pool} of its cell`;
    const [query, key] = [row, column].map(i => `${i} “${unit.label(i)}”`);
    this.describe(`${query} to ${key}${of}: ${weight.toPrecision(3)}`);
  }

  findNext(step) {
    const text = this.search.value.trim().toLowerCase();
    const at = text ? this.unit.labels().flatMap((label, i) => label.toLowerCase().includes(text) ? [i] : []) : [];
    if (!at.length) return setText(this.found, text ? 'not found' : '');
    const next = at.findIndex(i => i > (this.token ?? -1));
    const before = at.filter(i => i < (this.token ?? this.unit.size)).length;
    const k = (step > 0 ? Math.max(0, next) : before - 1 + at.length) % at.length;
    setText(this.found, `${k + 1} of ${at.length}`);
    this.scale = Math.max(this.scale, 14);
    this.centre(at[k], at[k]);
    this.chooseToken(at[k]);
  }

  chooseToken(token) {
    this.token = token === null || token < 0 || token >= this.unit.size ? null : token;
    this.redraw();
    this.showLinks();
  }

  // The strongest links of the chosen unit: to single units with a kernel, to cells of the finest level without one.
  async showLinks() {
    const {token, layer, head, unit, pool} = this, key = this.key();
    let cell = 1, weights = null;
    if (token !== null && this.levels()) {
      if (this.isLive) {
        const row = {layer, head, row: token, unit: unit.name, pool};
        weights = new Float32Array((await this.source.row(row)).bytes);
      } else {
        const level = this.levels()[0], row = Math.floor(token / level.cell);
        cell = level.cell;
        weights = Float32Array.from({length: level[pool].columns}, (_, k) => level[pool].weightAt(row, k));
      }
    }
    if (token === this.token && key === this.key() && pool === this.pool) drawLinks(this, weights, cell);
  }
}
