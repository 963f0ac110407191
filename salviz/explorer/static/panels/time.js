// Panel 'time': a slider over the recorded steps with playback, and the curves below it on the same axis.
import {curveMargins, curvesView, epochSpans, lastStep} from './curves.js';
import {countWords} from '../lib/words.js';
import {elementOf, setText, svgNode} from '../lib/controls.js';

const timeSpeeds = [1, 2, 4, 8, 15, 30];
const timeKeys = ['meta', 'frames', 'rows', 'run', 'probe', 'step', 'playing', 'speed', 'size'];
const epochLetter = 6;

function timeButton(text, label, onClick) {
  const button = elementOf('button', 'sv-time-button', text);
  button.type = 'button';
  button.setAttribute('aria-label', label);
  button.title = label;
  button.addEventListener('click', onClick);
  return button;
}

// The phase of cross-tuning in this epoch; names of combined methods are joined by a plus sign.
export function phaseWords(run, frame) {
  const phase = run?.cross_tuning ? frame?.info?.phase : null;
  if (!phase) return '';
  return phase.includes('ad_drop') ? `${run.cross_tuning} phase` : 'plain fine-tuning phase';
}

// Was this run trained? Runs from `explore` have no method and a single step, 0, without losses or scores.
export function isTrained(store, state) {
  const {run, probe} = state, {method, methods} = store.frameOf(state)?.info ?? {};
  return Boolean(method || methods) || store.run(run)?.total_steps !== 0 || store.rows(run).length > 0
    || store.steps(run, probe).at(-1) > 0;
}

// A training loop that is watched without epoch= has epoch 0 at all steps.
export function epochIsSet({epoch, step}) { return epoch > 0 || step === 0; }

// 'step 40 of 160, epoch 2, AD-DROP phase'
export function stepWords(store, state) {
  const run = store.run(state.run), step = store.stepOf(state);
  if (!run || step === null) return 'no recorded step';
  const frame = store.frame(state.run, state.probe, step),
    total = Math.max(run.total_steps ?? 0, store.steps(state.run, state.probe).at(-1) ?? 0);
  const each = run.steps_per_epoch, epochs = each > 0 ? Math.max(1, Math.ceil(total / each)) : 1;
  const ofStep = frame?.info?.method_epoch ?? (each > 0 ? Math.min(epochs, Math.floor(step / each) + 1) : null),
    epoch = frame && !epochIsSet(frame) ? null : ofStep;
  const where = total ? `step ${step} of ${total}` : `step ${step}`;
  return [where, epoch === null ? '' : `epoch ${epoch}`, phaseWords(run, frame)].filter(Boolean).join(', ');
}

// Plays the available steps at the chosen speed, independently of the screen's frame rate.
class Player {
  constructor(ctx) { Object.assign(this, {ctx, running: false, due: 0}); }

  steps() { return this.ctx.store.shipped(this.ctx.state.run, this.ctx.state.probe); }

  toggle() {
    const {store, state} = this.ctx, steps = this.steps();
    if (steps.length < 2) return;
    if (state.playing) return void state.set({playing: false});
    const ended = store.stepOf(state) >= steps.at(-1);
    state.set({playing: true, step: ended ? steps[0] : store.stepOf(state)});
  }

  update() {
    if (!this.ctx.state.playing || this.running) return;
    this.running = true;
    this.due = performance.now() + 1000 / this.ctx.state.speed;
    this.ask();
  }

  ask() { this.request = requestAnimationFrame(now => this.tick(now)); }

  tick(now) {
    const {store, state} = this.ctx;
    if (!state.playing) return void (this.running = false);
    const gap = 1000 / state.speed;
    // Allow half a screen frame of slack; otherwise 30 steps per second become 20 on a 60 Hz screen.
    if (now >= this.due - 4) {
      const next = this.steps().find(step => step > store.stepOf(state));
      this.due = Math.max(this.due + gap, now - gap);
      if (next === undefined) return void (state.set({playing: false}), this.running = false);
      state.set({step: next});
    }
    return this.ask();
  }

  stop() { cancelAnimationFrame(this.request); }
}

function moveStep(ctx, by) {
  const {store, state} = ctx, steps = store.shipped(state.run, state.probe), here = store.stepOf(state);
  const next = by > 0 ? steps.find(step => step > here) : steps.filter(step => step < here).at(-1);
  if (next === undefined) return;
  state.set({step: next, playing: false});
  ctx.announce(stepWords(store, state));
}

// The longest form of an epoch's name that fits into `width` pixels.
function epochName(name, epoch, width) {
  return [name, `epoch ${epoch}`, String(epoch)].find(text => text.length * epochLetter + 4 <= width) ?? '';
}

// Epochs as bands and recorded steps as dots; steps that are not on this page are hollow and have a tooltip.
function drawTicks(svg, {store, state}, last) {
  const run = store.run(state.run), at = step => `${100 * step / last}%`, spans = epochSpans(run, last), nodes = [];
  for (const {from, to, epoch, shaded} of spans) {
    const name = `epoch ${epoch}${run.cross_tuning ? shaded ? `: ${run.cross_tuning}` : ': plain' : ''}`;
    nodes.push(svgNode('rect', {x: at(from), y: 0, width: at(to - from), height: 30,
      class: shaded ? 'sv-band sv-shaded' : 'sv-band'}, name));
    if (from > 0) nodes.push(svgNode('line', {x1: at(from), x2: at(from), y1: 0, y2: 30, class: 'sv-epoch'}));
    const label = svgNode('text', {x: at((from + to) / 2), y: 27, class: 'sv-epoch-name'});
    label.textContent = epochName(name, epoch, (to - from) / last * svg.clientWidth);
    nodes.push(label);
  }
  for (const step of store.steps(state.run, state.probe)) {
    const here = store.has(state.run, state.probe, step),
      why = here ? `step ${step}` : store.why(state.run, state.probe, step);
    nodes.push(svgNode('circle', {cx: at(step), cy: 8, r: here ? 3.5 : 3, class: here ? 'sv-step' : 'sv-step sv-hollow',
      'data-step': step}, why));
  }
  svg.replaceChildren(...nodes);
}

class Time {
  constructor(ctx) {
    this.ctx = ctx;
    this.player = new Player(ctx);
    this.curves = curvesView(ctx);
    this.buildControls();
    this.buildTrack();
    this.el = elementOf('section', 'sv-panel sv-time', this.head, this.track, this.note, this.curves.el);
    this.el.setAttribute('aria-label', 'Time');
  }

  buildControls() {
    const {state} = this.ctx;
    this.back = timeButton('◂', 'previous recorded step', () => moveStep(this.ctx, -1));
    this.play = timeButton('▶', 'play', () => this.player.toggle());
    this.next = timeButton('▸', 'next recorded step', () => moveStep(this.ctx, 1));
    this.live = timeButton('Live', 'follow the newest step', () => this.follow());
    this.where = elementOf('span', 'sv-time-where');
    this.speed = elementOf('select', 'sv-time-speed', ...timeSpeeds.map(s => new Option(`${s} steps/s`, s)));
    this.speed.addEventListener('change', () => state.set({speed: Number(this.speed.value)}));
    const speed = elementOf('label', 'sv-field', 'Speed', this.speed);
    this.head = elementOf('div', 'sv-time-controls', this.back, this.play, this.next, this.live, this.where, speed);
    this.note = elementOf('p', 'sv-note');
  }

  buildTrack() {
    this.range = elementOf('input', 'sv-time-range');
    Object.assign(this.range, {type: 'range', min: 0, step: 1});
    this.range.setAttribute('aria-label', 'recorded steps');
    this.range.addEventListener('input', () => this.scrub(Number(this.range.value)));
    this.range.addEventListener('keydown', e => this.key(e));
    this.ticks = svgNode('svg', {class: 'sv-time-ticks', height: 30, 'aria-hidden': 'true'});
    this.ticks.addEventListener('click', e => this.tickClick(e));
    this.track = elementOf('div', 'sv-time-track', this.range, this.ticks);
    this.track.style.marginLeft = `${curveMargins.l}px`;
    this.track.style.marginRight = `${curveMargins.r}px`;
    this.track.dir = 'ltr';
  }

  follow() {
    const {store, state} = this.ctx;
    state.set({step: state.step === null ? store.stepOf(state) : null, playing: false});
  }

  key(e) {
    const {store, state} = this.ctx, steps = store.shipped(state.run, state.probe),
      go = step => state.set({step: step ?? null, playing: false});
    const back = () => moveStep(this.ctx, -1), on = () => moveStep(this.ctx, 1);
    const keys = {
      ArrowLeft: back, ArrowDown: back, PageDown: back, ArrowRight: on, ArrowUp: on, PageUp: on,
      Home: () => go(steps[0]), End: () => go(steps.at(-1)), ' ': () => this.player.toggle(),
    };
    if (!keys[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    keys[e.key]();
    e.preventDefault();
    e.stopPropagation();
  }

  // The slider stops only at recorded steps. For a step that is not on this page, a note says why and the nearest
  // available step is shown.
  scrub(value) {
    const {store, state} = this.ctx, all = store.steps(state.run, state.probe);
    const nearest = store.nearest(state.run, state.probe, value);
    const meant = all.reduce((best, s) => Math.abs(s - value) < Math.abs(best - value) ? s : best, all[0]);
    this.notice = {step: nearest, text: meant === undefined ? '' : store.why(state.run, state.probe, meant)};
    if (nearest !== null) state.set({step: nearest, playing: false});
    this.show();
  }

  tickClick(e) {
    const box = this.ticks.getBoundingClientRect(),
      value = Number(e.target.dataset?.step ?? this.last * (e.clientX - box.left) / box.width);
    this.scrub(value);
    this.range.focus();
  }

  show() {
    const {store, state} = this.ctx, step = store.stepOf(state), run = store.run(state.run);
    const steps = store.shipped(state.run, state.probe), words = stepWords(store, state);
    this.range.value = step ?? 0;
    this.range.setAttribute('aria-valuetext', words);
    setText(this.where, words);
    setText(this.note, this.why(run, steps, step));
    // A disabled button would lose the focus, and with it the explorer's keyboard shortcuts.
    const dead = [[this.back, !steps.some(s => s < step)], [this.next, !steps.some(s => s > step)],
      [this.play, steps.length < 2]];
    for (const [button, off] of dead) button.setAttribute('aria-disabled', String(off));
    setText(this.play, state.playing ? '❚❚' : '▶');
    this.play.title = state.playing ? 'pause' : 'play';
    this.play.setAttribute('aria-label', this.play.title);
    this.speed.value = state.speed;
    this.live.hidden = !run?.live || run.finished;
    this.live.setAttribute('aria-pressed', String(state.step === null));
  }

  why(run, steps, step) {
    const {store, state} = this.ctx, all = store.steps(state.run, state.probe);
    if (!run) return 'No run is loaded.';
    if (!all.length && run.live) return 'Nothing has been recorded yet; the first step will appear here automatically.';
    if (!all.length) return 'This run has no recordings of this example.';
    if (step !== null && !store.has(state.run, state.probe, step)) return store.why(state.run, state.probe, step);
    if (this.notice?.text && this.notice.step === step) return this.notice.text;
    const away = all.length - steps.length;
    const words = countWords(away, 'recorded step (hollow dot) is', 'recorded steps (hollow dots) are');
    return away ? `${words} not on this page.` : '';
  }

  update(changed) {
    const {store, state} = this.ctx;
    if (timeKeys.some(key => changed.has(key))) {
      this.last = lastStep(store, state.run, state.probe);
      this.range.max = this.last;
      this.range.disabled = !store.shipped(state.run, state.probe).length;
      if (changed.has('probe') || changed.has('run')) this.notice = null;
      if (['meta', 'frames', 'rows', 'run', 'probe', 'size'].some(key => changed.has(key))) this.redraw();
      this.show();
      this.player.update();
    }
    this.curves.update(changed);
  }

  // Dots are redrawn only when the steps change.
  redraw() {
    const {store, state} = this.ctx, {run, probe} = state;
    const {clientWidth} = this.ticks;
    const key = [run, probe, this.last, clientWidth, store.steps(run, probe), store.shipped(run, probe)].join('|');
    if (key === this.drawn) return;
    this.drawn = key;
    drawTicks(this.ticks, this.ctx, this.last);
  }

  destroy() {
    this.player.stop();
    this.curves.destroy();
  }
}

export const timePanel = {
  name: 'time', title: 'Time', order: 90, shows: 'anything', image: 'time', page: 'below', plotly: true,
  fits: (frame, store, state) => isTrained(store, state),
  absent: 'This model was not trained here, so there are no steps or curves.',
  help: {says: [
    'Recorded steps (dots) and the training losses and scores on the same axis; all panels show the chosen step.',
    'Results of one run with one seed may not generalise, however smooth its curves.'],
  keys: [['← →', 'previous or next recorded step'], ['Home End', 'first or last step'], ['Space', 'play or pause'],
    ['← → ⇞ ⇟', 'on the curves: read values step by step'],
    ['Enter', 'on the curves: go to the nearest recorded step; on a name: show or hide the curve']]},
  tour: 'the recorded steps. Drag the slider, press play, or use [ and ] to show all panels at an earlier step.',
  view: Time,
};
