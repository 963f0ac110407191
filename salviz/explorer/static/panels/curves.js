// Curves of a run: losses, scores and weights over the steps, in one plotly figure that is updated in place.
import {pooledRow, rowOrMean} from '../state/derive.js';
import {claimKey, plainKey} from '../lib/cells.js';
import {idle} from '../lib/idle.js';
import {spearman} from '../lib/maths.js';
import {countWords, numberWords} from '../lib/words.js';
import {elementOf, setText} from '../lib/controls.js';

export const curveMargins = {l: 54, r: 18};

const curveColours = {
  light: ['#1f2328', '#0072b2', '#d55e00', '#009e73', '#a0488c', '#9a6a00', '#3f6fd8', '#7a5a3a'],
  dark: ['#e6e6e6', '#56b4e9', '#ff8a3d', '#2fc79a', '#e08ec0', '#f0c040', '#8fb1ff', '#c9a27c'],
};
// Values in [0, 1] of a training step that are not losses; higher is better.
const trainScores = ['teacher_agreement'];
const notATerm = new Set([...trainScores, 'kind', 'step', 'epoch', 'loss', 'task', 'learning_rate', 'seconds']);
// Fields of an evaluation that are not scores; its losses are drawn with the training losses.
const notAScore = new Set(['kind', 'split', 'step', 'epoch', 'loss', 'seconds', 'examples', 'accuracy', 'macro_f1',
  'mse', 'perplexity']);
const subplotTitles = ['loss', 'score', 'weight'], subplotHeights = [150, 110, 70];
const smoothFrom = 120;
const lossUndefined = 'No recorded loss is finite: all values are NaN or infinite.';

function isTerm(name) { return !notATerm.has(name) && !name.endsWith('_weight'); }
function plainWords(name) { return name.replaceAll('_', ' '); }
const scoreNames = {f1: 'F1', micro_f1: 'micro-F1', macro_f1: 'macro-F1', pearson: 'Pearson', spearman: 'Spearman'};
function scoreName(name) { return scoreNames[name] ?? plainWords(name); }
// Plotly parses its texts as simple HTML.
function plotlyText(text) { return String(text).replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>',
  '&gt;'); }

// Epochs as ranges of steps, each with a flag that says whether the method of cross-tuning is active in it.
export function epochSpans(run, last) {
  const each = run?.steps_per_epoch;
  if (!(each > 0)) return [];
  const spans = [];
  for (let from = 0; from < last; from += each) {
    const epoch = from / each + 1;
    spans.push({from, to: Math.min(from + each, last), epoch, shaded: Boolean(run.cross_tuning) && epoch % 2 === 0});
  }
  return spans;
}

export function lastStep(store, run, probe) {
  const rows = store.rows(run);
  let last = store.steps(run, probe).at(-1) ?? 0;
  for (const row of rows) if (row.step > last) last = row.step;
  return Math.max(1, last);
}

// Keeps the lowest and the highest value per pixel, so that no peak is lost however many rows there are.
export function thinned(x, y, most = 1200) {
  if (x.length <= 2 * most) return {x, y};
  const out = {x: [], y: []}, size = x.length / most;
  for (let b = 0; b < most; b++) {
    const from = Math.floor(b * size), to = Math.floor((b + 1) * size);
    let low = from, high = from, gap = from;
    for (let i = from; i < to; i++) {
      if (y[i] < y[low] || Number.isNaN(y[low])) low = i;
      if (y[i] > y[high] || Number.isNaN(y[high])) high = i;
      if (Number.isNaN(y[i])) gap = i;
    }
    const ends = Number.isNaN(y[gap]) ? [low, high, gap] : [low, high];
    for (const i of [...new Set(ends)].sort((a, b) => a - b)) {
      out.x.push(x[i]);
      out.y.push(y[i]);
    }
  }
  return out;
}

// Moving average over neighbouring rows; rows without a number are skipped.
export function smoothed(y, half) {
  const sums = [0], counts = [0];
  y.forEach((v, i) => {
    sums.push(sums[i] + (Number.isFinite(v) ? v : 0));
    counts.push(counts[i] + (Number.isFinite(v) ? 1 : 0));
  });
  return y.map((_, i) => {
    const from = Math.max(0, i - half), to = Math.min(y.length, i + half + 1);
    return (sums[to] - sums[from]) / (counts[to] - counts[from]);
  });
}

// Values that are not finite arrive as null; they leave a gap in the curve.
function rowSeries(rows, key) {
  const with_ = rows.filter(row => Number.isFinite(row[key]) || row[key] === null);
  if (!with_.some(row => row[key] !== null)) return {x: [], y: []};
  return {x: with_.map(row => row.step), y: with_.map(row => row[key] ?? NaN)};
}

function hasGap({y}) { return y.some(v => !Number.isFinite(v)); }

// Has no recorded loss of a training step a finite value?
function isLossUndefined(rows) {
  const losses = rows.filter(row => row.kind === 'train' && 'loss' in row);
  return losses.length > 0 && losses.every(row => row.loss === null);
}

function varies(y) { return y.length > 1 && y.some(v => v !== y[0]); }

// Mean over heads of one row of the last layer, in double precision so that ties are preserved.
function lastRow(tensor, row, counts) {
  const [layers, heads, n] = tensor.shape, out = new Float64Array(n);
  for (let head = 0; head < heads; head++) {
    const values = rowOrMean(tensor.at(layers - 1, head), n, row, counts);
    for (let k = 0; k < n; k++) out[k] += values[k];
  }
  return out.map(v => v / heads);
}

// salviz.metrics.attention_agreement for one frame; NaN where the full maps are not available.
export function frameAgreement(frame, special) {
  if ('agreement' in frame.info) return frame.info.agreement ?? NaN;
  const tensor = frame.get('attention'), saliency = frame.get('saliency')?.values(), counts = special.map(s => !s);
  if (!tensor || !saliency || tensor.pooled > 1 || counts.filter(Boolean).length < 3) return NaN;
  const attention = lastRow(tensor, pooledRow(frame), counts), size = saliency.map(Math.abs);
  if (counts.some((c, i) => c && Number.isNaN(attention[i] + size[i]))) return NaN;
  return spearman(attention, size, counts);
}

// Computes the agreement of every available frame, a few at a time, without blocking the page.
class Agreements {
  constructor(store, onMore) {
    Object.assign(this, {store, onMore, cache: new Map(), requested: false});
  }

  wanted(run) {
    const probes = this.store.run(run)?.probes ?? [];
    return probes.flatMap(probe => this.store.shipped(run,
      probe.id).map(step => ({key: `${run}/${probe.id}/${step}`, run, probe, step})));
  }

  work(run, most = 8) {
    const end = performance.now() + most;
    for (const {key, probe, step} of this.wanted(run)) {
      if (this.cache.has(key)) continue;
      if (performance.now() > end) return this.later(run);
      this.cache.set(key, frameAgreement(this.store.frame(run, probe.id, step), probe.is_special));
    }
    return null;
  }

  later(run) {
    if (this.requested) return;
    this.requested = true;
    idle().then(() => {
      this.requested = false;
      this.work(run);
      this.onMore();
    });
  }

  series(run) {
    this.work(run);
    const bySteps = new Map(), probes = new Set();
    for (const {key, probe, step} of this.wanted(run)) {
      const value = this.cache.get(key);
      if (!Number.isFinite(value)) continue;
      probes.add(probe.id);
      bySteps.set(step, [...(bySteps.get(step) ?? []), value]);
    }
    const x = [...bySteps.keys()].sort((a, b) => a - b);
    return {x, y: x.map(step => bySteps.get(step).reduce((a, b) => a + b, 0) / bySteps.get(step).length),
      probes: probes.size, of: this.store.run(run)?.probes.length ?? 0};
  }
}

function lossCurves(rows) {
  const names = [...new Set(rows.flatMap(row => Object.keys(row).filter(isTerm)))], curves = [];
  const total = rowSeries(rows, 'loss'), task = rowSeries(rows, 'task');
  if (names.length || !task.x.length) curves.push({name: 'total', subplot: 0, colour: 0, ...total});
  if (task.x.length) curves.push({name: names.length ? 'task' : 'task (equals total)', subplot: 0, colour: 1, ...task});
  names.forEach((name, i) => curves.push({name: plainWords(name), subplot: 0, colour: 2 + (2 * i) % 6,
    ...rowSeries(rows, name)}));
  return curves;
}

// The papers call the weight of the guidance loss alpha.
function weightName(term) { return `weight ${term === 'attention_guidance' ? 'α ' : ''}of ${plainWords(term)}`; }

function weightCurves(rows) {
  const names = [...new Set(rows.flatMap(row => Object.keys(row).filter(name => name.endsWith('_weight'))))];
  const curves = names.map((name, i) => ({name: weightName(name.slice(0, -7)), subplot: 2, colour: 2 + (2 * i) % 6,
    ...rowSeries(rows, name)}));
  return curves.filter(curve => varies(curve.y));
}

function validationRows(rows) {
  return rows.filter(row => row.kind === 'eval' && (row.split ?? 'validation') === 'validation'); }

// Masked-LM training and translation select their checkpoint by this loss. For regression it is the mean squared error.
function validationLoss(rows) {
  const evals = validationRows(rows), squared = evals.some(row => Number.isFinite(row.mse)),
    few = {marks: true, dash: 'dot', subplot: 0};
  return {name: squared ? 'validation MSE' : 'validation loss', colour: 3, ...few,
    ...rowSeries(evals, squared ? 'mse' : 'loss')};
}

// A page unpacks a sentence when it is first viewed; the mean is over the sentences unpacked so far.
function agreementOf({probes, of}) {
  return probes < of ? `${probes} of ${countWords(of, 'sentence')}` : countWords(probes, 'sentence');
}

function scoreCurves(rows, agreement) {
  const evals = validationRows(rows), few = {marks: true, subplot: 1};
  const others = [...new Set(evals.flatMap(row =>
    Object.keys(row).filter(name => !notAScore.has(name) && Number.isFinite(row[name]))))];
  const curves = [
    {name: 'validation accuracy', colour: 3, ...few, ...rowSeries(evals, 'accuracy')},
    {name: 'validation macro-F1', colour: 5, dash: 'dot', ...few, ...rowSeries(evals, 'macro_f1')},
    ...others.map((name, i) => ({name: `validation ${scoreName(name)}`, colour: [5, 6, 2, 7][i % 4], ...few,
      ...rowSeries(evals, name)})),
    ...trainScores.map(name => ({name: plainWords(name), colour: 0, subplot: 1,
      ...rowSeries(rows.filter(row => row.kind === 'train'), name)})),
    {id: 'agreement', name: `agreement of attention and saliency (${agreementOf(agreement)})`, colour: 4, ...few,
      x: agreement.x, y: agreement.y},
  ];
  return curves.filter(curve => curve.x.length);
}

export function curveSeries(rows, agreement) {
  const train = rows.filter(row => row.kind === 'train');
  return [...lossCurves(train), validationLoss(rows), ...scoreCurves(rows, agreement),
    ...weightCurves(train)].filter(curve => curve.x.length);
}

function middleOf(y) {
  const sorted = y.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted[sorted.length >> 1];
}

// A logarithmic axis where the loss terms differ so much that the small ones would look flat.
export function wantsLog(curves) {
  const losses = curves.filter(c => c.subplot === 0),
    middles = losses.map(c => middleOf(c.y)).filter(m => m > 0);
  return middles.length > 1 && Math.max(...middles) > 50 * Math.min(...middles)
    && losses.every(c => c.y.every(v => !(v <= 0)));
}

// With many rows, the drawn line is a moving average.
function isMeaned({x, marks}) { return x.length >= smoothFrom && !marks; }
function runningMean({x, y}) {
  return smoothed(y, Math.round(x.length / 60)).map((v, i) => Number.isFinite(y[i]) ? v : NaN); }
function curveNumber(value) { return Number.isFinite(value) ? numberWords(value) : 'not finite'; }

// "step 20: total 0.31, validation accuracy 0.75 (at step 15)": the value of each curve at a step, or its last value
// before that step.
export function curveReading(curves, step) {
  const parts = curves.map(curve => {
    const {name, x, y} = curve, at = x.findLastIndex(v => v <= step);
    if (at < 0) return '';
    const mean = isMeaned(curve) ? `, moving average ${curveNumber(runningMean(curve)[at])}` : '',
      earlier = x[at] === step ? '' : ` (at step ${x[at]})`;
    return `${name} ${curveNumber(y[at])}${mean}${earlier}`;
  });
  return `step ${step}: ${parts.filter(Boolean).join('; ') || 'no values up to this step'}`;
}

// A stable key for a curve whose name changes: 1 of 8 sentences, 2 of 8, …
function curveKey({id, name}) { return id ?? name; }

function curveTraces(curves, colours, hidden) {
  const axis = k => k ? String(k + 1) : '';
  const traces = [];
  for (const curve of curves) {
    const common = {type: 'scatter', xaxis: 'x', yaxis: `y${axis(curve.row)}`, visible: !hidden.has(curveKey(curve)),
      cliponaxis: false};
    const line = {color: colours[curve.colour], width: 1.8, dash: curve.dash ?? 'solid'};
    const many = isMeaned(curve), drawn = thinned(curve.x, many ? runningMean(curve) : curve.y);
    const faint = {mode: 'lines', line: {...line, width: 1}, opacity: .28, hoverinfo: 'skip', name: ''};
    if (many) traces.push({...common, ...thinned(curve.x, curve.y), ...faint});
    const marker = {size: 6, symbol: curve.dash ? 'circle-open' : 'circle'},
      mode = curve.marks ? 'lines+markers' : 'lines';
    traces.push({...common, ...drawn, mode, line, marker, name: plotlyText(curve.name), hovertemplate: '%{y:.4g}'});
  }
  return traces;
}

// Subplots stacked vertically, each with the height of its kind.
function curveDomains(kinds) {
  const gap = 16, heights = kinds.map(k => subplotHeights[k]),
    total = heights.reduce((a, b) => a + b, 0) + gap * (kinds.length - 1);
  let top = total;
  const domains = heights.map(h => {
    const domain = [(top - h) / total, top / total];
    top -= h + gap;
    return domain;
  });
  return {total, domains};
}

function cssOf(el, name, otherwise) { return getComputedStyle(el).getPropertyValue(name).trim() || otherwise; }

function curveInks(el, theme) {
  const dark = theme === 'dark';
  return {
    fg: cssOf(el, '--sv-fg', dark ? '#e6e6e6' : '#1f2328'), line: cssOf(el, '--sv-line', dark ? '#444444' : '#d8d8d8'),
    back: cssOf(el, '--sv-raised', dark ? '#20242a' : '#ffffff'),
      shade: dark ? 'rgba(255, 138, 61, .13)' : 'rgba(213, 94, 0, .09)',
    family: getComputedStyle(el).fontFamily,
  };
}

function curveAxes(kinds, domains, logLoss, axis) {
  const kindOf = kind => kind === 0 && logLoss ? {type: 'log', dtick: 1, tickformat: '~g'} : {type: 'linear',
    nticks: kind === 2 ? 3 : 5};
  const title = kind => ({text: subplotTitles[kind] + (kind === 0 && logLoss ? ' (log)' : '')});
  const axisOf = (kind, i) => ({...axis, ...kindOf(kind), domain: domains[i], anchor: 'x', fixedrange: true,
    title: title(kind)});
  return Object.fromEntries(kinds.map((kind, i) => [`yaxis${i ? i + 1 : ''}`, axisOf(kind, i)]));
}

function curveLayout(el, {kinds, last, spans, logLoss, theme, run}) {
  const {fg, line, back, shade, family} = curveInks(el, theme), {total, domains} = curveDomains(kinds),
    margin = {...curveMargins, t: 6, b: 36};
  const axis = {gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line, ticks: 'outside', ticklen: 3,
    automargin: false};
  const bottom = {anchor: kinds.length > 1 ? `y${kinds.length}` : 'y', domain: [0, 1], zeroline: false,
    hoverformat: 'd'};
  return {
    width: el.clientWidth, height: total + margin.t + margin.b, margin, paper_bgcolor: back, plot_bgcolor: back,
      showlegend: false,
    font: {family, size: 11, color: fg}, uirevision: run, hovermode: 'x unified', hoverdistance: -1, dragmode: 'zoom',
    hoverlabel: {bgcolor: back, bordercolor: line, font: {family, color: fg, size: 11}},
    xaxis: {...axis, ...bottom, range: [0, last], title: {text: 'step', standoff: 4}},
      ...curveAxes(kinds, domains, logLoss, axis),
    shapes: spans.flatMap(span => epochShapes(span, line, shade)),
  };
}

function epochShapes({from, to, shaded}, line, shade) {
  const whole = {xref: 'x', yref: 'paper', y0: 0, y1: 1, layer: 'below'}, shapes = [];
  if (from > 0) shapes.push({...whole, type: 'line', x0: from, x1: from, line: {color: line, width: 1, dash: 'dot'}});
  if (shaded) shapes.push({...whole, type: 'rect', x0: from, x1: to, line: {width: 0}, fillcolor: shade});
  return shapes;
}

// Buttons instead of plotly's legend: they wrap, never cover a curve and can be reached with Tab.
function legendButtons(el, curves, colours, hidden, toggle) {
  const key = JSON.stringify([curves.map(c => [c.name, c.colour, c.subplot]), colours[0], [...hidden]]);
  if (el.dataset.key === key) return;
  el.dataset.key = key;
  const focused = el.contains(document.activeElement) ? document.activeElement.dataset.name : null;
  const buttons = curves.map(curve => {
    const button = elementOf('button', 'sv-curve-key',
      elementOf('span', curve.dash ? 'sv-swatch sv-dotted' : 'sv-swatch'), curve.name);
    button.dataset.name = curveKey(curve);
    button.setAttribute('aria-pressed', String(!hidden.has(curveKey(curve))));
    button.firstChild.style.color = colours[curve.colour];
    button.addEventListener('click', () => toggle(curveKey(curve)));
    return button;
  });
  el.replaceChildren(...buttons);
  if (focused) buttons.find(b => b.dataset.name === focused)?.focus();
}

class Curves {
  constructor(ctx) {
    Object.assign(this, {ctx, Plotly: null, requested: false, hidden: new Set(['validation macro-F1']),
      drawnAt: -Infinity, timer: null});
    this.busy = Promise.resolve();
    this.legend = elementOf('div', 'sv-curve-keys');
    this.plot = elementOf('div', 'sv-curve-plot');
    this.marker = elementOf('div', 'sv-curve-now');
    this.reader = elementOf('div', 'sv-curve-now sv-curve-read');
    this.tip = elementOf('output', 'sv-tip');
    this.note = elementOf('p', 'sv-note');
    this.el = elementOf('div', 'sv-curves', this.legend,
      elementOf('div', 'sv-curve-box', this.plot, this.marker, this.reader), this.tip, this.note);
    this.legend.setAttribute('role', 'group');
    this.legend.setAttribute('aria-label', 'show or hide curves');
    this.plot.setAttribute('role', 'application');
    this.plot.tabIndex = 0;
    this.plot.addEventListener('keydown', e => this.keyed(e));
    this.plot.addEventListener('blur', () => this.read(null));
    // The step reached with the keys is announced once, as a whole.
    this.tip.setAttribute('aria-live', 'off');
    this.marker.hidden = this.reader.hidden = true;
    this.agreements = new Agreements(ctx.store, () => this.draw());
  }

  update(changed) {
    if (!this.requested) this.ask();
    const at = keys => keys.some(key => changed.has(key));
    // Longer texts above or below do not change the width of the curves.
    const resized = changed.has('size') && this.width !== this.el.clientWidth;
    if (resized || at(['rows', 'frames', 'meta', 'run', 'probe', 'theme'])) this.soon(resized || at(['run', 'theme']));
    this.mark();
  }

  // Loading plotly takes half a second, and so does its first drawing; the maps are drawn first.
  async ask() {
    this.requested = true;
    await idle();
    let Plotly;
    try { Plotly = await this.ctx.plotly(); } catch (error) {
      return this.without(`could not be loaded (${error.message})`);
    }
    if (!Plotly) return this.without('is not available here; install plotly and reopen the explorer');
    await idle();
    this.Plotly = Plotly;
    return this.draw();
  }

  without(why) {
    this.box(false);
    setText(this.note, `The curves need plotly, which ${why}. The steps above work without plotly.`);
  }

  // Live rows arrive many times a second; curves are redrawn at most twice a second.
  soon(now) {
    clearTimeout(this.timer);
    const wait = now ? 0 : Math.max(0, this.drawnAt + 500 - performance.now());
    if (wait) this.timer = setTimeout(() => this.draw(), wait);
    else this.draw();
  }

  draw() {
    const {store, state} = this.ctx, run = store.run(state.run);
    this.width = this.Plotly && run && this.el.clientWidth;
    if (!this.width) return;
    this.drawnAt = performance.now();
    const curves = curveSeries(store.rows(state.run), this.agreements.series(state.run));
    this.box(curves.length > 0);
    if (curves.length) return void this.drawCurves(run, curves);
    if (isLossUndefined(store.rows(state.run))) return void setText(this.note, lossUndefined);
    setText(this.note, run.live ? 'Curves appear after the first training step.'
      : 'No losses or scores were recorded in this run, so there are no curves.');
  }

  drawCurves(run, curves) {
    const {store, state} = this.ctx, last = lastStep(store, state.run, state.probe), logLoss = wantsLog(curves),
      {theme} = state;
    const kinds = [0, 1, 2].filter(k => curves.some(c => c.subplot === k)),
      colours = curveColours[theme === 'dark' ? 'dark' : 'light'];
    for (const curve of curves) curve.row = kinds.indexOf(curve.subplot);
    const undefinedLoss = isLossUndefined(store.rows(state.run)) ? [lossUndefined] : [];
    setText(this.note, [...undefinedLoss, curveNote(curves, run, logLoss)].filter(Boolean).join(' '));
    legendButtons(this.legend, curves, colours, this.hidden, name => this.toggle(name));
    this.plot.setAttribute('aria-label', `${curveSummary(curves, last)}. Arrow keys move from step to step.`);
    const seen = curves.filter(curve => !this.hidden.has(curveKey(curve)));
    this.readable = {run: state.run, curves: seen, steps: [...new Set(seen.flatMap(c => c.x))].sort((a, b) => a - b)};
    this.read(this.readAt?.run === state.run ? this.readAt.step : null);
    const layout = curveLayout(this.plot, {kinds, last, spans: epochSpans(run, last), logLoss, theme, run: state.run});
    this.react(curveTraces(curves, colours, this.hidden), layout);
  }

  box(shown) { this.plot.parentNode.hidden = this.legend.hidden = this.tip.hidden = !shown; }

  // Returns the step that a key moves to: the neighbouring step with a value, starting from the step in view.
  keyed(e) {
    const {steps} = this.readable ?? {}, end = steps?.length - 1;
    if (!(end >= 0)) return;
    const from = this.readAt?.step ?? this.ctx.store.stepOf(this.ctx.state) ?? steps[0],
      before = steps.findLastIndex(step => step < from), at = steps.findLastIndex(step => step <= from);
    const [back, on] = this.readAt ? [before, at + 1] : [at, at];
    const to = plainKey(e, {ArrowLeft: back, ArrowRight: on, PageDown: before - 9, PageUp: at + 10, Home: 0, End: end});
    if (to !== undefined) {
      const step = steps[Math.max(0, Math.min(end, to))];
      this.read(step);
      this.ctx.announce(curveReading(this.readable.curves, step));
    } else if (plainKey(e, {Enter: true}) && this.readAt) this.jump(this.readAt.step);
    else return;
    claimKey(e);
  }

  // Shows the values at a step and a line through all curves; null hides them.
  read(step) {
    this.readAt = step === null ? null : {run: this.readable.run, step};
    setText(this.tip, step === null ? '' : curveReading(this.readable.curves, step));
    this.mark();
  }

  // One drawing at a time; of the drawings requested meanwhile, only the newest is done.
  react(traces, layout) {
    this.waiting = [traces, layout];
    this.busy = this.busy.then(async () => {
      if (!this.waiting) return;
      const [data, next] = this.waiting;
      this.waiting = null;
      await this.Plotly.react(this.plot, data, next,
        {displayModeBar: false, displaylogo: false, responsive: false, doubleClick: 'reset'});
      if (!this.listens) this.listen();
      this.mark();
    });
  }

  listen() {
    this.listens = true;
    this.plot.on('plotly_click', event => this.jump(event.points[0]?.x));
    this.plot.on('plotly_relayout', () => this.mark());
  }

  jump(step) {
    const {store, state, announce} = this.ctx, nearest = store.nearest(state.run, state.probe, step);
    if (nearest === null) return announce('This page contains no recorded steps of this example.');
    state.set({step: nearest, playing: false});
    return announce(`step ${nearest}`);
  }

  toggle(name) {
    if (!this.hidden.delete(name)) this.hidden.add(name);
    this.draw();
  }

  // The step marker is a separate element above the plot: moving it is cheap, so playback stays smooth.
  mark() {
    this.place(this.marker, this.ctx.store.stepOf(this.ctx.state));
    this.place(this.reader, this.readAt?.step ?? null);
  }

  place(line, step) {
    const axis = this.plot._fullLayout?.xaxis, size = this.plot._fullLayout?._size;
    const at = axis && step !== null ? axis.d2p(step) : NaN;
    line.hidden = !(at >= -1 && at <= axis?._length + 1);
    if (line.hidden) return;
    line.style.transform = `translateX(${axis._offset + at}px)`;
    line.style.top = `${size.t}px`;
    line.style.height = `${size.h}px`;
  }

  destroy() {
    clearTimeout(this.timer);
    this.busy = this.busy.then(() => this.listens && this.Plotly.purge(this.plot));
  }
}

function curveNote(curves, run, log) {
  const notes = [];
  if (run.cross_tuning) notes.push(`Shaded epochs use ${run.cross_tuning}; the others use plain fine-tuning.`);
  if (curves.some(isMeaned))
    notes.push('Faint lines show every step; the lines over them are moving averages.');
  const gaps = curves.filter(hasGap).map(curve => curve.name);
  if (gaps.length) notes.push(`Gaps are values that are not finite (NaN or infinite): ${gaps.join(', ')}.`);
  if (log) notes.push('The losses differ widely, so their axis is logarithmic.');
  return notes.join(' ');
}

function curveSummary(curves, last) {
  const parts = curves.map(c => `${c.name} from ${curveNumber(c.y[0])} to ${curveNumber(c.y.at(-1))}`);
  return `Curves over ${last} steps: ${parts.join('; ')}`;
}

export function curvesView(ctx) {
  const curves = new Curves(ctx);
  return {el: curves.el, update: changed => curves.update(changed), destroy: () => curves.destroy()};
}
