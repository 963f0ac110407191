// The toolbar above the panels: run, sentence, token options and colours.
import {exportMenu} from './exportview.js';
import {epochIsSet, isTrained, phaseWords} from './time.js';
import {setText} from '../lib/controls.js';
import {visibleText} from '../lib/words.js';

function toolbarSelect(label, choices, onChange) {
  const wrap = document.createElement('label'), select = document.createElement('select');
  wrap.className = 'sv-field';
  wrap.append(label, select);
  select.addEventListener('change', () => onChange(select.value));
  const fill = entries => {
    if (JSON.stringify(entries) === select.dataset.entries) return;
    select.dataset.entries = JSON.stringify(entries);
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
  };
  fill(choices);
  const name = text => { wrap.firstChild.textContent = text; };
  return {el: wrap, select, fill, name, show: value => { select.value = String(value); }};
}

function toolbarCheck(label, onChange) {
  const wrap = document.createElement('label'), box = document.createElement('input');
  wrap.className = 'sv-check';
  box.type = 'checkbox';
  wrap.append(box, label);
  box.addEventListener('change', () => onChange(box.checked));
  return {el: wrap, show: value => { box.checked = value; }};
}

const toolbarNames = {image: 'Image', series: 'Series'};

function shortText(text, most = 60) { return text.length > most ? `${text.slice(0, most - 1)}…` : text; }

// Titles a sentence by its words, and an image or a series by its class.
export function probeTitle(probe, classes = []) {
  const className = classes[probe.label] ?? '', label = className && `label ${className}`;
  const text = probe.modality in toolbarNames ? label : probe.texts.join(' | ');
  return text ? `${probe.id}: ${shortText(visibleText(text.slice(0, 400)))}` : `${probe.id}`;
}

// `more`: further elements of the toolbar.
export function toolbar(ctx, ...more) {
  const {store, state} = ctx, exporter = exportMenu(ctx);
  const el = document.createElement('div'), where = document.createElement('span');
  const knows = document.createElement('p');
  el.className = 'sv-toolbar';
  el.setAttribute('role', 'toolbar');
  el.setAttribute('aria-label', 'explorer settings');
  where.className = 'sv-where';
  knows.className = 'sv-note sv-knows';
  const run = toolbarSelect('Run', [], v => state.set({run: Number(v), step: null}));
  const probe = toolbarSelect('Sentence', [], v => state.set({probe: Number(v)}));
  const palette = toolbarSelect('Colours', ['cividis', 'viridis', 'grey'].map(name => [name, name]),
    v => state.set({palette: v}));
  const special = toolbarCheck('Special tokens', on => state.set({hideSpecial: !on}));
  const words = toolbarCheck('Whole words', on => state.set({mergeWords: on}));
  el.append(run.el, probe.el, where, special.el, words.el, palette.el, exporter.el, ...more, knows);

  const update = () => {
    run.fill(store.runs.map((r, i) => [String(i), r.title]));
    run.el.hidden = store.runs.length < 2;
    probe.fill((store.run(state.run)?.probes ?? [])
      .map(p => [String(p.id), probeTitle(p, store.run(state.run).classes)]));
    const {modality} = store.probe(state.run, state.probe) ?? {}, signal = modality in toolbarNames;
    probe.name(signal ? toolbarNames[modality] : 'Sentence');
    for (const part of [special, words, palette]) part.el.hidden = signal;
    run.show(state.run);
    probe.show(state.probe);
    palette.show(state.palette);
    special.show(!state.hideSpecial);
    words.show(state.mergeWords);
    where.textContent = toolbarWhere(store, state);
    exporter.update();
    const {stopped = '', knows: {text = '', close = false} = {}} = store.run(state.run) ?? {};
    const notes = [stopped && `This run stopped: ${stopped}.`, text && `Best checkpoint: ${text}.`].filter(Boolean);
    setText(knows, notes.join(' ')).hidden = !notes.length;
    knows.classList.toggle('sv-failed', close || Boolean(stopped));
  };
  return {el, update};
}

function toolbarWhere(store, state) {
  const of = store.run(state.run), step = store.stepOf(state);
  if (!of) return 'No run is loaded.';
  if (step === null) return of.live ? `${of.title}: waiting for the first recording`
    : `${of.title}: no recordings`;
  if (!isTrained(store, state)) return store.runs.length < 2 ? of.title : '';
  const frame = store.frame(state.run, state.probe, step);
  const epoch = frame && epochIsSet(frame) ? `epoch ${Number(frame.epoch).toFixed(2)}` : '';
  const parts = [store.runs.length < 2 ? of.title : '', `step ${step}`, epoch, phaseWords(of, frame)];
  return parts.filter(Boolean).join(', ');
}
