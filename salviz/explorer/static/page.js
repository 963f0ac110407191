// The explorer as a page of its own: everything lies in script elements of the page, packed; a probe is unpacked when
// it is looked at.
import {mountApp} from './app.js';
import {unpackPage} from './state/codec.js';
import {plotlyLoader} from './lib/plotly.js';
import {stateOfLink} from './state/link.js';
import {State} from './state/state.js';
import {sameProbe, Store} from './state/store.js';
import {watchTheme} from './lib/theme.js';

function pageText(id) { return document.getElementById(id)?.textContent ?? ''; }

function pageJson(id) { return JSON.parse(pageText(id) || 'null'); }

function pageBytes(id) {
  const binary = atob(pageText(id)), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// Probe numbers of every run that show the sentence in view: a comparison needs both sides.
function pageSame(store, {run, probe}) {
  const here = store.probe(run, probe);
  const shows = (p, i) => i === run ? p.id === probe : here && sameProbe(p, here);
  return store.runs.flatMap((of, i) => of.probes.filter(p => shows(p, i)).map(p => `salviz-frames-${i}-${p.id}`));
}

// Frames of a sentence, once they are asked for: `ready` when the newest is there, `whole` when all are.
class PageFrames {
  constructor(store) {
    this.store = store;
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
    const place = document.getElementById(id);
    if (!place) return;
    const bytes = pageBytes(id);
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

// What the address asks for, null where it asks for nothing that can be shown.
function pageAsked(el) {
  try { return stateOfLink(location.hash); } catch (error) {
    pageSay(el,
      `The view in this page’s address could not be read (${error.message}); the page opens as it was saved.`);
    return null;
  }
}

export async function openPage(el) {
  const store = new Store(), options = pageJson('salviz-options') ?? {}, frames = new PageFrames(store);
  store.load(pageJson('salviz-meta'));
  (pageJson('salviz-rows') ?? []).forEach((rows, run) => store.setRows(run, rows));
  const state = new State({...options.state, ...pageAsked(el)}), first = store.run(state.run)?.probes[0];
  if (!store.probe(state.run, state.probe) && first) state.set({probe: first.id});
  const failed = error => pageSay(el,
    `A part of this page could not be read (${error.message}); it was damaged, save it anew.`);
  const begun = frames.show(state);
  begun.whole.catch(failed);
  await begun.ready;
  watchTheme(theme => {
    state.set({theme});
    document.documentElement.dataset.theme = theme;
  });
  state.on(changed => { if (changed.has('probe') || changed.has('run')) frames.show(state).whole.catch(failed); });
  const app = mountApp(el, store, {state, panels: options.panels ?? null, isPage: true,
    plotly: plotlyLoader(async () => pageBytes('salviz-plotly'))});
  window.addEventListener('hashchange', () => {
    const asked = pageAsked(el);
    if (asked) state.set(asked);
  });
  return {...app, whole: () => frames.show(state).whole};
}

const pagePlace = document.getElementById('salviz-page');
if (pagePlace) {
  openPage(pagePlace).then(app => { window.salviz = app; },
    error => pageSay(pagePlace,
      `This page could not be opened (${error.message}). It was made for a current browser.`));
}
