// The explorer as a Jupyter widget: the kernel's data fills one store, which all views of the widget share.
import {mountApp} from './app.js';
import {Places} from './lib/places.js';
import {plotlyLoader} from './lib/plotly.js';
import {scrollIntoSight} from './lib/sight.js';
import {State, wholeState} from './state/state.js';
import {Store} from './state/store.js';
import {watchTheme} from './lib/theme.js';

const widgetSaveAfter = 400;
const widgetElsewhere = 'Another view of this explorer sent a newer request; send this request again.';
// All pages that show the same widget receive the kernel's answers.
const widgetName = Math.random().toString(36).slice(2);

function widgetBytes(view) { return view?.byteLength ? new Uint8Array(view.buffer, view.byteOffset, view.byteLength)
  : null; }

function widgetJson(text, otherwise) { return text ? JSON.parse(text) : otherwise; }

// Theme and playback are not saved.
function widgetSavedState(state) { return JSON.stringify({...state.get(), theme: undefined, playing: undefined}); }

class WidgetSession {
  constructor(model) {
    this.model = model;
    this.store = new Store();
    this.options = widgetJson(model.get('options'), {});
    this.state = new State(widgetJson(model.get('ui'), this.options.state ?? {}));
    this.held = new Map();
    this.requested = new Set();
    this.plotly = plotlyLoader(async () => widgetBytes(model.get('plotly')));
    this.questions = 0;
    this.waiting = new Map();
    const listeners = {'change:meta': () => this.readMeta(), 'change:rows': () => this.readRows(),
      'change:index': () => this.readFrames(), 'change:own': () => this.state.touch('meta'),
      'msg:custom': (content, buffers) => this.hear(content, buffers)};
    for (const [event, listener] of Object.entries(listeners)) model.on(event, listener);
    const offState = this.state.on(changed => this.follow(changed));
    this.close = () => {
      offState();
      clearTimeout(this.saving);
      for (const [event, listener] of Object.entries(listeners)) model.off(event, listener);
    };
    this.readMeta();
    this.readRows();
    this.readFrames();
  }

  readMeta() {
    const meta = widgetJson(this.model.get('meta'), null);
    if (meta) this.store.load(meta);
  }

  readRows() { widgetJson(this.model.get('rows'), []).forEach((rows, run) => this.store.setRows(run, rows)); }

  // `index` lists the contents of each slot, with a number that changes when the slot is refilled; slots and index
  // arrive in one message.
  readFrames() {
    const index = this.model.get('index') ?? [],
      wanted = new Map(index.flatMap((entry, slot) => entry ? [[entry.join('/'), {entry, slot}]] : []));
    const staying = new Set([...wanted.values()].map(({entry}) => entry.slice(0, 3).join('/')));
    for (const [key, entry] of this.held) {
      if (wanted.has(key)) continue;
      this.held.delete(key);
      if (!staying.has(entry.slice(0, 3).join('/'))) this.store.dropFrame(...entry.slice(0, 3));
    }
    for (const [key, {entry, slot}] of wanted) {
      const bytes = this.held.has(key) ? null : widgetBytes(this.model.get(`slot_${slot}`));
      if (!bytes) continue;
      this.held.set(key, entry);
      this.store.addFrame(bytes);
    }
  }

  // Requests the missing steps of a probe example; without a kernel, nothing happens.
  follow(changed) {
    const {run, probe} = this.state;
    if (changed.has('probe') || changed.has('run')) this.request({kind: 'probe', run, probe});
    if ([...changed].some(key => key in this.state.get())) this.save();
  }

  request(what) {
    const key = JSON.stringify(what);
    if (what.kind !== 'probe' && this.requested.has(key)) return;
    this.requested.add(key);
    const failed = () => this.requested.delete(key);
    try { Promise.resolve(this.model.send(what)).catch(failed); } catch { failed(); }
  }

  // Requests to a model (a custom sentence, vectors of a head): `offers` lists the models of each run, `ask` sends a
  // request. Answers come as messages, in parts, and are not saved. Only the newest request of each kind is answered;
  // views with identical requests share the answer.
  offers() { return widgetJson(this.model.get('own'), []); }

  ask(question, answered) {
    const {kind} = question, id = `${widgetName} ${this.questions += 1}`, key = JSON.stringify(question),
      before = this.waiting.get(kind), same = before?.requested === key;
    if (!same) for (const tell of before?.listeners ?? []) tell({error: widgetElsewhere});
    this.waiting.set(kind, {id, requested: key, listeners: [...same ? before.listeners : [], answered]});
    return this.model.send({...question, id});
  }

  hear(content, buffers = []) {
    if (content?.kind === 'state') this.state.set(wholeState(content.state));
    const waiting = this.waiting.get(content?.kind);
    if (!waiting || content.id !== waiting.id) return;
    if (!content.more) this.waiting.delete(content.kind);
    for (const tell of waiting.listeners) tell({...content, frames: buffers.map(widgetBytes)});
  }

  save() {
    clearTimeout(this.saving);
    this.saving = setTimeout(() => {
      const saved = widgetSavedState(this.state);
      if (saved === this.model.get('ui')) return;
      try {
        this.model.set('ui', saved);
        this.model.save_changes();
      } catch (error) { console.warn('salviz: could not save the view', error); }
    }, widgetSaveAfter);
  }
}

function widgetView({store, state, options, plotly}, session, el) {
  const box = document.createElement('div');
  if (options.height) Object.assign(box.style, {maxHeight: `${options.height}px`, overflow: 'auto'});
  el.append(box);
  const app = mountApp(box, store, {state, panels: options.panels ?? null, plotly,
    request: what => session.request(what), kernel: session, firstUse: true});
  // Only the first view scrolls into sight; further views are opened by a user who is already there.
  const offSight = session.seen ? () => {} : scrollIntoSight(box);
  session.seen = true;
  const offTheme = watchTheme(theme => state.set({theme}));
  return () => {
    offTheme();
    offSight();
    app.destroy();
    box.remove();
  };
}

// anywidget calls this once per model, so all its views share `session`.
export default () => {
  let session = null;
  const open = model => session ??= new WidgetSession(model);
  return {
    initialize({model}) {
      open(model);
      const places = new Places(model);
      return () => {
        places.close();
        session?.close();
      };
    },
    render({model, el}) { return widgetView(open(model), session, el); },
  };
};
