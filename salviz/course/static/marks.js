// Mark words, one sentence at a time, and hand in the marks as a file or a short code.
import {elementOf, setText} from '../explorer/controls.js';
import {watchTheme} from '../explorer/theme.js';
import {marksCode, marksDone, marksFile, marksFileName, marksNickname, marksSheet} from './markscode.js';
import {courseStore, courseStored} from './storage.js';

// Return the stored marks if they fit these sentences.
export function marksStateOf(set, stored) {
  const empty = {marks: set.spans.map(() => null), at: 0, nickname: ''};
  if (stored === null || typeof stored !== 'object') return empty;
  const nickname = typeof stored.nickname === 'string' ? stored.nickname : '';
  const at = Number.isInteger(stored.at) && stored.at >= 0 && stored.at < set.spans.length ? stored.at : 0;
  try { return {marks: marksSheet(set, 'x', stored.marks).marks, at, nickname}; } catch { return {...empty, nickname}; }
}

export function marksSave(name, text, type = 'application/json') {
  const link = elementOf('a'), url = URL.createObjectURL(new Blob([text], {type}));
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// The text is also in a field, for browsers without clipboard access.
export async function marksCopy(field) {
  try { await navigator.clipboard.writeText(field.value); } catch {
    field.focus();
    field.select();
    return false;
  }
  return true;
}

function marksButton(text, act, className = '') {
  const button = elementOf('button', className, text);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
}

function marksPlural(n, word) { return `${n} ${word}${n === 1 ? '' : 's'}`; }

class MarksView {
  constructor(el, set, initial, write) {
    Object.assign(this, {set, write, state: marksStateOf(set, initial), cursor: 0});
    this.el = elementOf('section', 'sv-marks');
    this.el.dataset.lmSuppressShortcuts = 'true';
    this.el.setAttribute('aria-label', 'Marks');
    const limit = `at most ${marksPlural(set.most, 'word')}`;
    this.el.append(elementOf('p', 'sv-marks-task', 'Mark the words that you need to judge the sentence: ',
      elementOf('strong', '', limit), '. Use your own judgement; do not guess what a model would do.'));
    this.el.append(this.progress(), this.sentence(), this.moves(), this.handIn());
    this.el.addEventListener('keydown', event => this.pressed(event));
    el.append(this.el);
    this.unwatch = watchTheme(theme => { this.el.dataset.theme = theme; });
    this.draw();
  }

  progress() {
    this.where = elementOf('span', 'sv-marks-where');
    this.count = elementOf('span', 'sv-marks-count');
    this.bar = elementOf('progress', 'sv-marks-bar');
    this.bar.max = this.set.spans.length;
    this.bar.setAttribute('aria-label', 'sentences done');
    return elementOf('div', 'sv-marks-progress', this.where, this.bar, this.count);
  }

  sentence() {
    this.list = elementOf('div', 'sv-marks-words');
    this.list.setAttribute('role', 'listbox');
    this.list.setAttribute('aria-multiselectable', 'true');
    this.message = elementOf('p', 'sv-marks-said');
    this.message.setAttribute('aria-live', 'polite');
    return elementOf('div', '', this.list, this.message);
  }

  moves() {
    this.back = marksButton('← Back', () => this.go(this.state.at - 1));
    this.forth = marksButton('Next →', () => this.go(this.state.at + 1));
    this.none = marksButton('No word is needed', () => this.needNone());
    const keys = 'Arrow keys: move between words. Space: mark. Page Up and Page Down: move between sentences.';
    return elementOf('div', '', elementOf('div', 'sv-marks-moves', this.back, this.forth, this.none),
      elementOf('p', 'sv-marks-keys', keys));
  }

  handIn() {
    this.name = elementOf('input');
    Object.assign(this.name, {type: 'text', maxLength: 40, autocomplete: 'off', spellcheck: false,
      value: this.state.nickname});
    this.name.addEventListener('input', () => this.set_({nickname: this.name.value}));
    this.code = elementOf('textarea', 'sv-marks-code');
    Object.assign(this.code, {readOnly: true, rows: 3, spellcheck: false});
    this.code.setAttribute('aria-label', 'code');
    this.file = marksButton('Download file', () => this.download());
    this.copy = marksButton('Copy code', () => this.copied());
    this.handed = elementOf('p', 'sv-marks-said');
    this.handed.setAttribute('aria-live', 'polite');
    const field = elementOf('label', 'sv-marks-name', 'Nickname ', this.name);
    const parts = elementOf('div', 'sv-marks-moves', field, this.file, this.copy);
    return elementOf('div', 'sv-marks-hand', elementOf('h3', '', 'Hand in'), parts, this.code, this.handed);
  }

  set_(changed) {
    this.state = {...this.state, ...changed};
    this.write(this.state);
    this.draw();
  }

  // The kernel or another view of the widget changed the state.
  take(state) {
    this.state = marksStateOf(this.set, state);
    if (marksNickname(this.name.value) !== marksNickname(this.state.nickname)) this.name.value = this.state.nickname;
    this.draw();
  }

  isBack() {
    const startOver = () => {
      back.remove();
      this.name.value = '';
      this.set_(marksStateOf(this.set, null));
      this.focusWord();
    };
    const back = elementOf('p', 'sv-marks-keys', 'These marks were restored from this browser. ',
      marksButton('Not mine: start over', startOver));
    this.el.prepend(back);
  }

  get flags() { return this.state.marks[this.state.at]; }

  setFlags(flags) { this.set_({marks: this.state.marks.map((old, i) => i === this.state.at ? flags : old)}); }

  go(at) {
    if (at < 0 || at >= this.set.spans.length) return;
    const away = document.activeElement;
    this.cursor = 0;
    this.set_({at});
    this.say(`Sentence ${at + 1} of ${this.set.spans.length}`);
    if (away && (away.disabled || away.getAttribute('role') === 'option' || !away.isConnected)) this.focusWord();
  }

  toggle(word) {
    const flags = this.flags ? [...this.flags] : this.set.spans[this.state.at].map(() => 0);
    const text = this.wordsOf(this.state.at)[word], marked = flags.filter(Boolean).length;
    this.cursor = word;
    if (!flags[word] && marked >= this.set.most) {
      this.say(`You can mark ${marksPlural(this.set.most, 'word')} at most; remove one mark first`);
      this.draw();
      return;
    }
    flags[word] = 1 - flags[word];
    const count = marked + (flags[word] ? 1 : -1);
    this.say(`${text}: ${flags[word] ? 'marked' : 'not marked'}, ${count} of ${this.set.most}`);
    this.setFlags(flags.some(Boolean) ? flags : null);
  }

  needNone() {
    const isNone = this.flags && !this.flags.some(Boolean);
    this.say(isNone ? 'This sentence is no longer marked as done' : 'No word is needed in this sentence');
    this.setFlags(isNone ? null : this.set.spans[this.state.at].map(() => 0));
  }

  wordsOf(i) { return this.set.spans[i].map(([a, b]) => marksCut(this.set.texts[i], a, b)); }

  say(text) { setText(this.message, text); }

  focusWord() { this.list.querySelector('[tabindex="0"]')?.focus(); }

  // Outside of fields, pass only F on to the frame, which toggles full screen.
  pressed(event) {
    if (event.key.toLowerCase() !== 'f' || event.target.matches('input, textarea')) event.stopPropagation();
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = {PageDown: 1, PageUp: -1}[event.key];
    if (step && event.target !== this.code) {
      event.preventDefault();
      this.go(this.state.at + step);
    } else if (event.target.getAttribute('role') === 'option') this.pressedInList(event);
  }

  pressedInList(event) {
    const last = this.set.spans[this.state.at].length - 1;
    const to = {ArrowRight: this.cursor + 1, ArrowDown: this.cursor + 1, ArrowLeft: this.cursor - 1,
      ArrowUp: this.cursor - 1, Home: 0, End: last}[event.key];
    if (to !== undefined) this.cursor = Math.min(last, Math.max(0, to));
    else if (event.key === ' ' || event.key === 'Enter') this.toggle(this.cursor);
    else return;
    event.preventDefault();
    this.draw();
    this.focusWord();
  }

  sheet() {
    if (!marksNickname(this.state.nickname)) {
      setText(this.handed, 'Type a nickname first.');
      this.name.focus();
      return null;
    }
    return marksSheet(this.set, this.state.nickname, this.state.marks);
  }

  download() {
    const sheet = this.sheet();
    if (!sheet) return;
    const name = marksFileName(sheet.nickname);
    marksSave(name, marksFile(this.set, sheet));
    setText(this.handed, `${name} is in your downloads; give it to your teacher.`);
  }

  async copied() {
    if (!this.sheet()) return;
    const done = await marksCopy(this.code);
    setText(this.handed, done ? 'Code copied. You can now paste it.'
      : 'The code is selected. Copy it with Ctrl+C or Cmd+C.');
  }

  draw() {
    const {at, marks, nickname} = this.state, total = this.set.spans.length, done = marksDone({marks});
    setText(this.where, `Sentence ${at + 1} of ${total}`);
    setText(this.count, `${done} done`);
    this.bar.value = done;
    this.drawWords();
    [this.back.disabled, this.forth.disabled] = [at === 0, at === total - 1];
    this.none.setAttribute('aria-pressed', String(Boolean(this.flags) && !this.flags.some(Boolean)));
    const name = marksNickname(nickname);
    this.code.value = name ? marksCode(this.set, marksSheet(this.set, name, marks)) : '';
    this.code.placeholder = 'Type a nickname to get a code';
    if (!this.handed.textContent || /unfinished|All/.test(this.handed.textContent)) {
      const left = total - done, verb = left === 1 ? 'is' : 'are';
      const rest = left > 0
        ? `${marksPlural(left, 'sentence')} ${verb} unfinished, but you can already hand in your marks.`
        : `All ${total} sentences are done.`;
      setText(this.handed, rest);
    }
  }

  drawWords() {
    const {at} = this.state, words = this.wordsOf(at), hasFocus = this.list.contains(document.activeElement);
    this.list.setAttribute('aria-label', `Words of sentence ${at + 1}`);
    if (this.drawn !== at) {
      this.list.replaceChildren(...words.map((text, i) => {
        const word = elementOf('span', 'sv-marks-word', text);
        word.setAttribute('role', 'option');
        word.addEventListener('click', () => { this.toggle(i); this.focusWord(); });
        return word;
      }));
      this.drawn = at;
    }
    [...this.list.children].forEach((word, i) => {
      word.setAttribute('aria-selected', String(Boolean(this.flags?.[i])));
      word.tabIndex = i === this.cursor ? 0 : -1;
    });
    if (hasFocus) this.focusWord();
  }

  destroy() {
    this.unwatch();
    this.el.remove();
  }
}

// Slice a text by code points, as Python does.
export function marksCut(text, start, end) { return [...text].slice(start, end).join(''); }

// Draw the marks in `el`; `initial` is the first state, `write(state)` is called after each change.
export function mountMarks(el, set, initial, write) { return new MarksView(el, set, initial, write); }

// The storage key of a page: its sentences and its address, so that each copy of a lesson has its own marks.
// All notebooks share one key, because JupyterLab's address does not identify the open notebook.
function marksPlace({id}, kind) { return `salviz-marks ${id} ${kind === 'page' ? location.pathname : 'notebook'}`; }

function marksRead(about, kind) {
  try { return JSON.parse(courseStored(marksPlace(about, kind))); } catch {
    return null; // no storage, or other content: nothing is marked yet
  }
}

function marksRemember(about, kind, state) {
  try { courseStore(marksPlace(about, kind), JSON.stringify(state)); } catch { /* a reload forgets */ }
}

function marksInitial(about, book) {
  return marksRead(about, 'page') ?? {marks: about.set.spans.map(() => null), nickname: book.stored.nickname};
}

// After a kernel restart, restore the marks from the browser.
function marksAgain(about, model) {
  if (marksDone(marksStateOf(about.set, model.get('state')))) return false;
  const stored = marksStateOf(about.set, marksRead(about, 'widget'));
  if (!marksDone(stored)) return false;
  model.set('state', stored);
  model.save_changes();
  return true;
}

// Marks as a fragment: a notebook stores them in the kernel, a page in the browser.
export function marksFragment({el, about, keeper}) {
  el.append(elementOf('div', 'cr-head', elementOf('span', 'cr-what', 'Your marks'),
    elementOf('span', 'cr-state', `${about.set.spans.length} sentences`)));
  if (keeper.kind === 'page') {
    return mountMarks(el, about.set, marksInitial(about, keeper.book), state => {
      marksRemember(about, 'page', state);
    });
  }
  const {model} = keeper, isBack = marksAgain(about, model);
  const view = mountMarks(el, about.set, model.get('state'), state => {
    model.set('state', state);
    model.save_changes();
    marksRemember(about, 'widget', state);
  });
  if (isBack) view.isBack();
  const take = () => { if (model.get('state') !== view.state) view.take(model.get('state')); };
  model.on('change:state', take);
  return {destroy: () => {
    model.off('change:state', take);
    view.destroy();
  }};
}
