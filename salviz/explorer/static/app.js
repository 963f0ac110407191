// The explorer: a toolbar and its panels around one store and one state.
import {State} from './state/state.js';
import {stepWords} from './panels/time.js';
import {probeTitle, toolbar} from './panels/toolbar.js';
import {shortNumber} from './lib/colour.js';
import {buttonOf, elementOf, setText} from './lib/controls.js';
import {allKeys, panelHelp} from './lib/help.js';
import {Tour} from './lib/tour.js';
// Written by `bundle` from the files in panels/: each exports what it is called, what it shows and its view.
import {explorerPanels} from './panels.js';

const appEverything = ['frames', 'rows', 'meta', 'theme', 'size'];
const appSoon = 100, appTries = 20, appPause = 250;
const appSettledBy = ['meta', 'frames', 'entry', 'run', 'probe', 'step'];

export const panelNames = explorerPanels.map(({name}) => name);

// A panel that is not on screen, or has no width, is not drawn; it is told what it missed when it is shown.
class AppPanel {
  constructor(panel, ctx) {
    Object.assign(this, panel);
    this.ctx = ctx;
    this.missed = new Set([...Object.keys(ctx.state.get()), ...appEverything]);
    this.runs = new Set();
    this.view = new panel.view(ctx);
    this.el = this.view.el;
    if (this.help) this.explain();
  }

  // A question mark at the end of the panel's head, or at its top.
  explain() {
    const {button, el} = panelHelp(this), {head} = this.view;
    if (head) head.append(button);
    if (head) head.after(el);
    else this.el.prepend(button, el);
  }

  // Has it something to show? A panel that had, in this run, stays at a step that gives it nothing.
  hasToShow({kinds, frame}) {
    if (this.fits?.(frame, this.ctx.store, this.ctx.state)) this.runs.add(this.ctx.state.run);
    return kinds.includes(this.shows) && (!this.fits || this.runs.has(this.ctx.state.run));
  }

  update(changed) {
    for (const key of changed) this.missed.add(key);
    if (this.el.hidden || !this.el.clientWidth || !this.missed.size) return;
    const missed = this.missed;
    this.missed = new Set();
    try { this.view.update(missed); } catch (e) { this.fail(e); throw e; }
  }

  fail(e) {
    const note = this.el.querySelector('.sv-failed') ?? elementOf('p', 'sv-note sv-failed');
    note.textContent = `The ${this.name} panel could not be drawn: ${e.message}`;
    this.el.append(note);
  }
}

// What can be shown of the example: images and series have neither tokens nor maps of heads, sentences are no images,
// and some networks for text have no attention.
function appKinds({probe, frame, run}) {
  if (probe?.modality && probe.modality !== 'text') return ['anything', 'signals'];
  const maps = !frame || run?.model?.heads || frame.names.some(name => name.startsWith('attention'));
  return maps ? ['anything', 'text', 'maps'] : ['anything', 'text'];
}

// Why the panels that were asked for are not there; nothing to say while others show the same example.
function appMissing(panels, fitting, {probe}) {
  // Time is about the run: that it is there says nothing about the example.
  const requested = panels.filter(panel => panel.shows !== 'anything'
    || panel.fits && (panel.name !== 'time' || !fitting.includes(panel)));
  const others = fitting.some(panel => requested.includes(panel)),
    isText = !probe?.modality || probe.modality === 'text';
  if (!probe || !requested.length) return '';
  if (!others && requested.every(panel => panel.absent)) return requested.map(panel => panel.absent).join(' ');
  if (others && !isText) return '';
  const without = requested.filter(panel => !fitting.includes(panel) && ['maps', 'text'].includes(panel.shows));
  const maps = without.some(panel => panel.shows === 'maps');
  const signals = explorerPanels.find(panel => panel.shows === 'signals').name;
  if (isText && maps) return 'This model has no attention, so there are no maps.';
  if (isText) return others ? '' : `This is a sentence; the panel ‘${signals}’ shows images and series.`;
  const what = probe.modality === 'series' ? 'a series' : 'an image';
  return `This is ${what}, which has neither tokens nor maps of heads: `
    + `${without.map(({name}) => `‘${name}’`).join(', ')} cannot show it, the panel ‘${signals}’ does.`;
}

// The panels that share the place at the side, one at a time.
function tabsBar(tabbed, state) {
  const bar = elementOf('div', 'sv-tabs');
  bar.setAttribute('role', 'tablist');
  const buttons = tabbed.map(({name, title}, i) => {
    const button = elementOf('button', 'sv-tab', title);
    button.setAttribute('role', 'tab');
    button.addEventListener('click', () => state.set({tab: name}));
    button.addEventListener('keydown', e => {
      const to = {ArrowRight: 1, ArrowLeft: -1}[e.key];
      if (!to) return;
      const next = (i + to + tabbed.length) % tabbed.length;
      state.set({tab: tabbed[next].name});
      buttons[next].focus();
      e.preventDefault();
    });
    bar.append(button);
    return button;
  });
  const show = (chosen, fitting) => buttons.forEach((button, i) => {
    button.hidden = !fitting.includes(tabbed[i]);
    button.setAttribute('aria-selected', String(tabbed[i] === chosen));
    button.tabIndex = tabbed[i] === chosen ? 0 : -1;
  });
  return {el: bar, show};
}

const appWhatIfNames = {topShare: 'share of the target', binarised: 'binary target', maskedShare: 'masked share',
  multiple: 'several of a kind', first: 'without a kept word before'};

// As long as what-if settings are drawn, this says so wherever one looks; its button ends them.
function whatIfBanner({state}) {
  const label = elementOf('span'), el = elementOf('div', 'sv-banner', label,
    buttonOf('Show what was recorded', 'end the what-if settings', () => state.set({whatIf: null})));
  el.setAttribute('role', 'status');
  const update = () => {
    el.hidden = !state.whatIf;
    const settings = Object.entries(state.whatIf ?? {}).map(([name, value]) =>
      `${appWhatIfNames[name] ?? name} ${typeof value === 'number' ? shortNumber(value) : value}`);
    setText(label, `What if: drawn with ${settings.join(', ')}. This was not recorded.`);
  };
  return {el, update};
}

// Does the head show something of what the method does at this step?
function appTells(frame, {layer, head}) {
  const guided = frame.get('guided'), attributed = frame.get('attention_attribution');
  if (String(frame.info.opened) === String([layer, head])) return true;
  if (guided?.values().includes(1))
    return Boolean(guided.values()[guided.layers.indexOf(layer) * guided.shape[1] + head]);
  if (!attributed) return true;
  const i = attributed.layers.indexOf(layer), n = attributed.shape.at(-1), values = i < 0 ? [] : attributed.at(i, head);
  const rows = Array.from({length: n}, (_, q) => values.slice(q * n, q * n + n));
  return rows.filter(row => row.some(v => v)).length * 2 > n || !attributed.values().some(v => v);
}

// The first view of a run: a sentence that it has, and the head that its frame names (`telling_entry` of
// salviz.views.maps). While the reader has chosen no other (`chosen` is what was chosen here), it is one that has
// something to show at the step in view.
function appSettle(store, state, chosen) {
  const of = store.run(state.run);
  if (!of) return;
  if (!store.probe(state.run, state.probe) && of.probes.length) state.set({probe: of.probes[0].id});
  const frame = store.frameOf(state);
  if (!frame?.get('attention')) return;
  const mine = JSON.stringify(state.entry) === chosen.entry;
  if (state.entry.layer !== null && (!mine || appTells(frame, state.entry))) return;
  // In a plain epoch nothing is attributed; the last frame of the run in which the method was at work tells.
  const steps = store.shipped(state.run, state.probe).reverse(),
    frames = steps.slice(0, 8).map(step => store.frame(state.run, state.probe, step));
  const telling = [frame, ...frames].find(f => f.get('attention_attribution') || f.get('guided')) ?? frame;
  const [layer, head] = telling.info.opened ?? [null, 0];
  state.set({entry: {kind: 'head', layer, head}});
  chosen.entry = JSON.stringify(state.entry);
}

export function mountApp(el, store, {state = new State(), panels = null, plotly = async () => null,
  request = () => {}, kernel = null, firstUse = false, isPage = false} = {}) {
  const shown = panels ?? panelNames, unknown = shown.filter(name => !panelNames.includes(name));
  if (unknown.length) throw new Error(`no panel ${unknown.join(', ')}; there are ${panelNames.join(', ')}`);
  const root = elementOf('div', 'salviz'), missing = elementOf('p', 'sv-note sv-missing'),
    spoken = elementOf('div', 'sv-said');
  spoken.setAttribute('aria-live', 'polite');
  const voice = appVoice(spoken), ctx = {store, state, plotly, request, kernel, isPage, announce: voice.say};
  const chosen = {entry: null};
  appSettle(store, state, chosen);

  const all = shown.map(name => new AppPanel(explorerPanels.find(panel => panel.name === name), ctx));
  const tabbed = all.filter(panel => panel.tab), tabs = tabsBar(tabbed, state);
  const tour = new Tour(() => all.filter(panel => panel.fitting), panel => panel.tab && state.set({tab: panel.name}));
  const keys = allKeys(all.filter(panel => panel.help), () => { keys.show(false); tour.start(); });
  const bar = toolbar(ctx, keys.button), body = elementOf('div', 'sv-body'), side = elementOf('div', 'sv-side');
  const banner = whatIfBanner(ctx);
  root.append(bar.el, keys.el, banner.el, missing, body, spoken);
  // Where the page is narrow, what shows a chosen head follows the heads.
  for (const panel of all) {
    if (panel === tabbed[0]) body.append(side);
    (panel.tab ? side : body).append(panel.el);
  }
  if (tabbed.length > 1) side.prepend(tabs.el);
  body.classList.toggle('sv-alone', shown.length === 1);
  el.append(root);

  const update = changed => {
    if (appSettledBy.some(key => changed.has(key))) appSettle(store, state, chosen);
    root.dataset.theme = state.theme;
    const seen = {probe: store.probe(state.run, state.probe), frame: store.frameOf(state), run: store.run(state.run)};
    seen.kinds = appKinds(seen);
    const fitting = all.filter(panel => panel.hasToShow(seen)), open = tabbed.filter(panel => fitting.includes(panel));
    const tab = open.find(panel => panel.name === state.tab) ?? open[0];
    tabs.show(tab, open);
    missing.textContent = appMissing(all, fitting, seen);
    missing.hidden = !missing.textContent;
    side.hidden = !open.length;
    for (const panel of all) {
      panel.fitting = fitting.includes(panel);
      panel.el.hidden = !panel.fitting || panel.tab && panel !== tab;
    }
    keys.fit();
    bar.update(changed);
    banner.update();
    for (const panel of all) panel.update(changed);
    again(changed);
  };
  // When JupyterLab changes its theme there is no width for a moment, too short for an observer of sizes to notice.
  let tries = 0, trying = null;
  const again = changed => {
    clearTimeout(trying);
    tries = root.clientWidth || changed.size > 1 || !changed.has('size') ? 0 : tries + 1;
    if (!root.clientWidth && tries < appTries) trying = setTimeout(() => state.touch('size'), appSoon);
  };
  const everything = new Set([...Object.keys(state.get()), ...appEverything]);
  const offs = [state.on(update), ...['frames', 'rows',
    'meta'].map(event => store.on(event, () => state.touch(event)))];
  const sizes = new ResizeObserver(() => state.touch('size'));
  sizes.observe(root);
  root.addEventListener('keydown', e => appKeys(e, ctx, keys));
  update(everything);
  if (firstUse) tour.offer();
  const destroy = () => {
    for (const off of offs) off();
    sizes.disconnect();
    clearTimeout(trying);
    voice.stop();
    for (const panel of all) panel.view.destroy?.();
    root.remove();
  };
  return {state, store, root, destroy, tour};
}

// What is said to who listens: at once after a pause, and of many that follow one another only the last.
function appVoice(el) {
  let last = -Infinity, timer = null;
  const speak = text => {
    last = performance.now();
    el.textContent = text;
  };
  const say = text => {
    clearTimeout(timer);
    const wait = last + appPause - performance.now();
    if (wait > 0) timer = setTimeout(() => speak(text), wait);
    else speak(text);
    last = performance.now();
  };
  return {say, stop: () => clearTimeout(timer)};
}

// Keys that work wherever the focus is within the explorer, unless somebody is writing.
function appKeys(e, {store, state, announce}, keys) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  // JupyterLab has shortcuts of its own, as B for a new cell: while the explorer has the focus, plain keys are its own.
  e.stopPropagation();
  if (e.defaultPrevented || e.target.matches('input:not([type=checkbox], [type=range]), select, textarea')) return;
  const steps = store.shipped(state.run, state.probe), at = steps.indexOf(store.stepOf(state));
  const {probes = [], classes} = store.run(state.run) ?? {}, which = probes.findIndex(p => p.id === state.probe);
  const toStep = step => {
    state.set({step});
    announce(stepWords(store, state));
  };
  const toProbe = probe => {
    state.set({probe: probe.id});
    announce(probeTitle(probe, classes));
  };
  const moves = {
    '[': () => at > 0 && toStep(steps[at - 1]),
    ']': () => at < steps.length - 1 && toStep(steps[at + 1]),
    '{': () => which > 0 && toProbe(probes[which - 1]),
    '}': () => which < probes.length - 1 && toProbe(probes[which + 1]),
    '?': () => {
      keys.show(true);
      keys.el.focus();
    },
  };
  if (!(e.key in moves)) return;
  moves[e.key]();
  e.preventDefault();
}
