// The explorer: a toolbar and its panels around one store and one state.
import {State} from './state/state.js';
import {headsPanel} from './panels/heads.js';
import {mapPanel} from './panels/detail.js';
import {triptychPanel} from './panels/triptych.js';
import {comparePanel} from './panels/compare.js';
import {whatIfPanel} from './panels/whatif.js';
import {sentencePanel} from './panels/sentence.js';
import {signalPanel} from './panels/signal.js';
import {evidencePanel, hasOwn} from './panels/evidence.js';
import {timePanel} from './panels/time.js';
import {toolbar} from './panels/toolbar.js';

const appPanels = {
  heads: headsPanel, map: mapPanel, triptych: triptychPanel, compare: comparePanel, whatif: whatIfPanel,
    sentence: sentencePanel, signal: signalPanel,
  evidence: evidencePanel, time: timePanel,
};
const appTabs = {map: 'Map', triptych: 'Triptych', compare: 'Compare', whatif: 'What if'};
const appEverything = ['frames', 'rows', 'meta', 'theme', 'size'];

const appMaps = ['heads', 'map', 'triptych', 'compare'];

export const panelNames = Object.keys(appPanels);

function appElement(tag, className, text = '') {
  const el = document.createElement(tag);
  el.className = className;
  if (text) el.textContent = text;
  return el;
}

// A panel that is not on screen is not drawn; it is told what it missed when it is shown.
class AppPanel {
  constructor(name, ctx) {
    this.name = name;
    this.missed = new Set([...Object.keys(ctx.state.get()), ...appEverything]);
    this.panel = appPanels[name](ctx);
    this.el = this.panel.el;
  }

  update(changed) {
    for (const key of changed) this.missed.add(key);
    if (this.el.hidden || !this.missed.size) return;
    const missed = this.missed;
    this.missed = new Set();
    try { this.panel.update(missed); } catch (e) { this.fail(e); throw e; }
  }

  fail(e) {
    const note = this.el.querySelector('.sv-failed') ?? appElement('p', 'sv-note sv-failed');
    note.textContent = `The ${this.name} panel could not be drawn: ${e.message}`;
    this.el.append(note);
  }
}

// Images and series have neither tokens nor maps of heads, sentences are no images, and some networks for text have no
// attention.
function appFits(name, {probe, frame, run, own}) {
  const signal = Boolean(probe?.modality) && probe.modality !== 'text';
  if (name === 'time') return true;
  if (name === 'evidence') return own;
  if (signal || name === 'signal') return signal === (name === 'signal');
  return !appMaps.includes(name) || !frame || Boolean(run?.model?.heads)
    || frame.names.some(given => given.startsWith('attention'));
}

// Why the panels that were asked for are not there; nothing to say while others show the same sentence.
function appMissing(shown, fitting, {probe}) {
  const rest = shown.filter(name => !fitting.includes(name) && name !== 'signal' && name !== 'evidence');
  const text = !probe?.modality || probe.modality === 'text', others = fitting.some(name => name !== 'time');
  if (probe && shown.includes('evidence') && shown.every(name => name === 'evidence' || name === 'time') && !others)
    return 'No evidence of a method of its own was recorded in this run.';
  if (!probe || shown.every(name => name === 'time') || others && !text) return '';
  if (text && rest.length) return 'This model has no attention, so there are no maps.';
  if (text) return others ? '' : 'This is a sentence; the panel ‘signal’ shows images and series.';
  const what = probe.modality === 'series' ? 'a series' : 'an image', names = rest.map(name => `‘${name}’`).join(', ');
  return `This is ${what}, which has neither tokens nor maps of heads: ${names} cannot show it, `
      + 'the panel ‘signal’ does.';
}

function tabsBar(names, state) {
  const bar = appElement('div', 'sv-tabs');
  bar.setAttribute('role', 'tablist');
  const buttons = names.map((name, i) => {
    const button = appElement('button', 'sv-tab', appTabs[name]);
    button.setAttribute('role', 'tab');
    button.addEventListener('click', () => state.set({tab: name}));
    button.addEventListener('keydown', e => {
      const to = {ArrowRight: 1, ArrowLeft: -1}[e.key];
      if (!to) return;
      const next = (i + to + names.length) % names.length;
      state.set({tab: names[next]});
      buttons[next].focus();
      e.preventDefault();
    });
    bar.append(button);
    return button;
  });
  const show = (chosen, fitting) => buttons.forEach((button, i) => {
    button.hidden = !fitting.includes(names[i]);
    button.setAttribute('aria-selected', String(names[i] === chosen));
    button.tabIndex = names[i] === chosen ? 0 : -1;
  });
  return {el: bar, show};
}

// The head that tells most about a discard region: in the last layer of many classifiers all rows but one have no
// gradient at all.
function appTellingHead(frame) {
  const tensor = frame.get('attention_attribution'), n = tensor.shape.at(-1);
  let best = {layer: tensor.layers[0], head: 0, sum: -1};
  tensor.layers.forEach((layer, i) => {
    for (let head = 0; head < tensor.shape[1]; head++) {
      const values = tensor.at(i, head),
        rows = Array.from({length: n},
          (_, q) => values.subarray(q * n, q * n + n).reduce((a, v) => a + Math.abs(v || 0), 0));
      const sum = rows.sort((a, b) => a - b)[n >> 1];
      if (sum > best.sum) best = {layer, head, sum};
    }
  });
  return {kind: 'head', layer: best.layer, head: best.head};
}

function appFirstEntry(frame) {
  const guided = frame.get('guided'), flags = guided?.values() ?? [], first = flags.findIndex(Boolean);
  if (first >= 0) return {kind: 'head', layer: guided.layers[Math.floor(first / guided.shape[1])],
    head: first % guided.shape[1]};
  if (frame.get('attention_attribution')) return appTellingHead(frame);
  return {kind: 'head', layer: frame.layers('attention').at(-1) ?? null, head: 0};
}

// The first view of a run: a sentence that it has, and a head that shows what the method does.
function appSettle(store, state) {
  const of = store.run(state.run);
  if (!of) return;
  if (!store.probe(state.run, state.probe) && of.probes.length) state.set({probe: of.probes[0].id});
  const frame = store.frameOf(state);
  if (state.entry.layer !== null || !frame?.get('attention')) return;
  // In a plain epoch nothing is attributed; the last frame of the run in which the method was at work tells.
  const steps = store.shipped(state.run, state.probe).reverse(),
    frames = steps.slice(0, 8).map(step => store.frame(state.run, state.probe, step));
  state.set({entry: appFirstEntry(frames.find(f => f.get('attention_attribution') || f.get('guided')) ?? frame)});
}

export function mountApp(el, store, {state = new State(), panels = null, plotly = async () => null,
  request = () => {}} = {}) {
  const shown = panels ?? panelNames, root = appElement('div', 'salviz'), said = appElement('div', 'sv-said');
  const missing = appElement('p', 'sv-note sv-missing');
  const unknown = shown.filter(name => !(name in appPanels));
  if (unknown.length) throw new Error(`no panel ${unknown.join(', ')}; there are ${panelNames.join(', ')}`);
  said.setAttribute('aria-live', 'polite');
  const ctx = {store, state, plotly, request, announce: text => { said.textContent = text; }};
  appSettle(store, state);

  const bar = toolbar(ctx), body = appElement('div', 'sv-body'), side = appElement('div', 'sv-side');
  const tabbed = shown.filter(name => name in appTabs), tabs = tabsBar(tabbed, state),
    made = shown.map(name => new AppPanel(name, ctx));
  root.append(bar.el, missing, body, said);
  for (const panel of made) (panel.name in appTabs ? side : body).append(panel.el);
  if (tabbed.length > 1) side.prepend(tabs.el);
  if (tabbed.length) body.append(side);
  body.classList.toggle('sv-alone', shown.length === 1);
  el.append(root);

  // A step without it is no reason for the panel to go.
  const ownRuns = new Set();
  const update = changed => {
    if (changed.has('meta') || changed.has('frames')) appSettle(store, state);
    root.dataset.theme = state.theme;
    if (hasOwn(store.frameOf(state))) ownRuns.add(state.run);
    const seen = {probe: store.probe(state.run, state.probe), frame: store.frameOf(state), run: store.run(state.run),
      own: ownRuns.has(state.run)};
    const fitting = shown.filter(name => appFits(name, seen)), open = tabbed.filter(name => fitting.includes(name));
    const tab = open.includes(state.tab) ? state.tab : open[0];
    tabs.show(tab, open);
    missing.textContent = appMissing(shown, fitting, seen);
    missing.hidden = !missing.textContent;
    side.hidden = !open.length;
    for (const panel of made) panel.el.hidden = !fitting.includes(panel.name) || panel.name in appTabs
      && panel.name !== tab;
    bar.update(changed);
    for (const panel of made) panel.update(changed);
  };
  const everything = new Set([...Object.keys(state.get()), ...appEverything]);
  const offs = [state.on(update), ...['frames', 'rows',
    'meta'].map(event => store.on(event, () => state.touch(event)))];
  const sizes = new ResizeObserver(() => state.touch('size'));
  sizes.observe(root);
  root.addEventListener('keydown', e => appKeys(e, ctx));
  update(everything);
  const destroy = () => {
    for (const off of offs) off();
    sizes.disconnect();
    for (const {panel} of made) panel.destroy?.();
    root.remove();
  };
  return {state, store, root, destroy};
}

// Keys that work wherever the focus is within the explorer, unless somebody is writing.
function appKeys(e, {store, state}) {
  if (e.defaultPrevented || e.ctrlKey || e.metaKey || e.altKey
    || e.target.matches('input:not([type=checkbox]), select, textarea')) return;
  const steps = store.shipped(state.run, state.probe), at = steps.indexOf(store.stepOf(state));
  const probes = store.run(state.run)?.probes ?? [], which = probes.findIndex(p => p.id === state.probe);
  const moves = {
    '[': () => at > 0 && state.set({step: steps[at - 1]}),
    ']': () => at < steps.length - 1 && state.set({step: steps[at + 1]}),
    '{': () => which > 0 && state.set({probe: probes[which - 1].id}),
    '}': () => which < probes.length - 1 && state.set({probe: probes[which + 1].id}),
  };
  if (!(e.key in moves)) return;
  moves[e.key]();
  e.preventDefault();
  // JupyterLab has shortcuts of its own.
  e.stopPropagation();
}
