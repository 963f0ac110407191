// The explorer as a standalone page: all data is packed in script elements of the page, and a probe example is unpacked
// when it is viewed.
import {mountApp} from './app.js';
import {PageModel} from './engine/pagemodel.js';
import {unpackPage} from './state/codec.js';
import {bytesOfBase64, bytesOfText} from './lib/packedtext.js';
import {plotlyLoader} from './lib/plotly.js';
import {stateOfLink} from './state/link.js';
import {State} from './state/state.js';
import {sameProbe, Store} from './state/store.js';
import {watchTheme} from './lib/theme.js';

// `source`: the document, or an element that contains the parts of a page.
function pageText(source, id) { return source.querySelector(`#${id}`)?.textContent ?? ''; }

function pageJson(source, id) { return JSON.parse(pageText(source, id) || 'null'); }

function pageBytes(source, id) { return bytesOfBase64(pageText(source, id)); }

// Element ids of the sentence in view in all runs: a comparison needs both sides.
function pageSame(store, {run, probe}) {
  const here = store.probe(run, probe);
  const shows = (p, i) => i === run ? p.id === probe : here && sameProbe(p, here);
  return store.runs.flatMap((of, i) => of.probes.filter(p => shows(p, i)).map(p => `salviz-frames-${i}-${p.id}`));
}

// Loads the frames of a sentence on request: `ready` resolves with the newest frame, `whole` with all of them.
class PageFrames {
  constructor(store, source) {
    Object.assign(this, {store, source});
    this.opened = new Map();
  }

  open(id) {
    if (!this.opened.has(id)) {
      let first;
      const ready = new Promise(done => { first = done; }), whole = this.unpack(id, first);
      this.opened.set(id, {whole, ready: Promise.race([ready, whole.catch(() => {})])});
    }
    return this.opened.get(id);
  }

  async unpack(id, first) {
    const place = this.source.querySelector(`#${id}`);
    if (!place) return;
    const bytes = pageBytes(this.source, id);
    place.remove();
    await unpackPage(bytes, frame => {
      this.store.addFrame(frame);
      first();
    });
  }

  show(state) {
    const opened = pageSame(this.store, state).map(id => this.open(id));
    return {ready: Promise.all(opened.map(({ready}) => ready)), whole: Promise.all(opened.map(({whole}) => whole))};
  }
}

function pageSay(el, text) {
  const note = document.createElement('p');
  note.className = 'salviz-failed';
  note.setAttribute('role', 'alert');
  note.textContent = text;
  el.append(note);
}

// The state encoded in the address, null if there is none or it is invalid.
function pageLinkState(el) {
  try { return stateOfLink(location.hash); } catch (error) {
    pageSay(el,
      `Could not read the view in this page’s address (${error.message}); showing the saved view.`);
    return null;
  }
}

// The models of a page: null for a page without one, which offers no custom sentences.
function pageKernel(source) {
  const models = pageJson(source, 'salviz-models');
  return models && new PageModel(models, name => pageText(source, name));
}

let pageCount = 0;   // explorers in this document

// Panels are landmarks, which need distinct names: from the second explorer on, they are numbered.
function pageNumbered(el) {
  pageCount += 1;
  if (pageCount === 1) return;
  for (const panel of el.querySelectorAll('section[aria-label]'))
    panel.setAttribute('aria-label', `${panel.getAttribute('aria-label')}, explorer ${pageCount}`);
}

// A standalone page has an address that encodes the view; a copy within a notebook has none.
export async function openPage(el, {source = document,
  plotly = plotlyLoader(async () => bytesOfText(pageText(source, 'salviz-plotly')))} = {}) {
  const store = new Store(), options = pageJson(source, 'salviz-options') ?? {}, frames = new PageFrames(store, source),
    isPage = source === document;
  store.load(pageJson(source, 'salviz-meta'));
  (pageJson(source, 'salviz-rows') ?? []).forEach((rows, run) => store.setRows(run, rows));
  const state = new State({...options.state, ...(isPage ? pageLinkState(el) : null)});
  const first = store.run(state.run)?.probes[0];
  if (!store.probe(state.run, state.probe) && first) state.set({probe: first.id});
  const failed = error => pageSay(el,
    `Part of this page could not be read (${error.message}); export the page again.`);
  const begun = frames.show(state);
  begun.whole.catch(failed);
  await begun.ready;
  const offTheme = watchTheme(theme => {
    state.set({theme});
    if (isPage) document.documentElement.dataset.theme = theme;
  });
  state.on(changed => { if (changed.has('probe') || changed.has('run')) frames.show(state).whole.catch(failed); });
  const kernel = pageKernel(source);
  const app = mountApp(el, store, {state, panels: options.panels ?? null, plotly, kernel, isPage, firstUse: true});
  pageNumbered(el);
  const moved = () => {
    const linked = pageLinkState(el);
    if (linked) state.set(linked);
  };
  if (isPage) window.addEventListener('hashchange', moved);
  const destroy = () => {
    window.removeEventListener('hashchange', moved);
    offTheme();
    kernel?.close();
    app.destroy();
  };
  return {...app, kernel, destroy, whole: () => frames.show(state).whole};
}

const pagePlace = document.getElementById('salviz-page');
if (pagePlace) {
  openPage(pagePlace).then(app => { window.salviz = app; },
    error => pageSay(pagePlace,
      `This page could not be opened (${error.message}); use a current browser.`));
}
