// The page of a class: files are dropped, codes pasted, and their marks merged. Nothing of it leaves the page.
import {elementOf, setText} from '../explorer/controls.js';
import {watchTheme} from '../explorer/theme.js';
import {classLines, classMerge, classPoint, classRead} from './classmerge.js';
import {marksCut, marksSave} from './marks.js';
import {marksFolded} from './markscode.js';
import {courseForget, courseStore, courseStored} from './storage.js';
import {courseLargest, coursePrintable, courseReadText} from './untrusted.js';

function classButton(text, act) {
  const button = elementOf('button', '', text);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
}

// What was handed in is kept by the browser, so that a reload loses nothing; `forget` empties it.
class ClassKept {
  constructor(id) { this.key = `salviz-class-${id}`; }

  read() {
    try {
      const kept = JSON.parse(courseStored(this.key));
      const isText = x => typeof x === 'string' && x.length <= courseLargest;
      const handed = kept.handed.filter(([source, text]) => isText(source) && isText(text));
      return {handed, without: kept.without.filter(name => typeof name === 'string')};
    } catch { return {handed: [], without: []}; }
  }

  write(state) {
    try { courseStore(this.key, JSON.stringify(state)); } catch { /* it has no storage: a reload forgets */ }
  }

  forget() { try { courseForget(this.key); } catch { /* nothing was kept */ } }
}

class ClassPage {
  constructor(el, set, rows) {
    Object.assign(this, {set, rows, kept: new ClassKept(set.id), unreadable: []});
    Object.assign(this, this.kept.read());
    this.el = elementOf('main', 'sv-marks sv-class');
    const about = `${set.spans.length} sentences, set ${set.id}. Nothing leaves this page: it works without a network, `
      + 'and only this browser keeps what is dropped here.';
    this.said = elementOf('p', 'sv-marks-said');
    this.said.setAttribute('role', 'status');
    this.results = elementOf('div');
    this.el.append(elementOf('h1', '', 'The marks of a class'), elementOf('p', '', about), this.taking(), this.said,
      this.results);
    el.append(this.el);
    watchTheme(theme => { document.documentElement.dataset.theme = this.el.dataset.theme = theme; });
    this.draw();
  }

  taking() {
    const input = elementOf('input');
    Object.assign(input, {type: 'file', multiple: true, accept: '.json,.txt'});
    input.addEventListener('change', async () => {
      await this.files(input.files);
      input.value = '';
    });
    const drop = elementOf('label', 'sv-class-drop', 'Drop files marks-….json here, or choose them', input);
    const over = (event, isOver) => {
      event.preventDefault();
      drop.classList.toggle('sv-over', isOver);
    };
    drop.addEventListener('dragover', event => over(event, true));
    drop.addEventListener('dragleave', event => over(event, false));
    drop.addEventListener('drop', event => {
      over(event, false);
      this.files(event.dataTransfer.files);
    });
    const field = elementOf('textarea');
    const placeholder = 'marks1:nickname:…  one below the other, or a whole chat';
    Object.assign(field, {rows: 4, spellcheck: false, placeholder});
    const read = classButton('Read codes', () => {
      if (!field.value.trim()) { setText(this.said, 'There is no code in the field.'); return; }
      this.take([['', field.value]]);
      field.value = '';
    });
    const label = elementOf('label', '', 'Or paste codes', field);
    label.style.width = '100%';
    return elementOf('div', 'sv-class-take', drop, elementOf('div', 'sv-class-codes', label, read));
  }

  async files(files) {
    const texts = [...files].map(async file => {
      const name = coursePrintable(file.name);
      try { return [name, await courseReadText(file)]; } catch (error) { return [name, null, error.message]; }
    });
    this.take(await Promise.all(texts));
  }

  // What holds neither marks nor answers is named and not stored: a reload would read it again.
  take(handed) {
    const readable = handed.filter(([, text]) => text !== null), known = new Set(this.handed.map(x => x.join('\n')));
    const unknown = readable.filter(([source, text]) => !known.has(`${source}\n${text}`));
    const read = unknown.map(([source, text]) => classRead(this.set, text, source));
    const holds = (_, i) => read[i].sheets.length > 0 || read[i].answers > 0;
    const fresh = unknown.filter(holds), again = new Set(handed.map(([source]) => source));
    this.handed = [...this.handed, ...fresh];
    this.unreadable = [...this.unreadable.filter(({from}) => !again.has(from)),
      ...handed.filter(([, text]) => text === null).map(([source, , reason]) => ({from: source, source, reason})),
      ...unknown.flatMap((one, i) => holds(one, i) ? [] : read[i].broken.map(x => ({...x, from: one[0]})))];
    this.keep();
    const twice = readable.length - unknown.length;
    this.draw(`Read ${fresh.length}${twice ? `, ${twice} were there already` : ''}. `);
  }

  keep() { this.kept.write({handed: this.handed, without: this.without}); }

  forget() {
    [this.handed, this.without, this.unreadable] = [[], [], []];
    this.kept.forget();
    this.draw('All of it is forgotten. ');
    this.el.querySelector('input').focus();
  }

  merged() {
    const read = this.handed.map(([source, text]) => classRead(this.set, text, source));
    const merged = classMerge(this.set, read.flatMap(x => x.sheets), this.without);
    const answers = read.reduce((sum, x) => sum + x.answers, 0);
    return {...merged, answers, broken: [...this.unreadable, ...read.flatMap(x => x.broken)]};
  }

  draw(first = '') {
    const m = this.merged(), n = m.sheets.length;
    setText(this.said, `${first}${n} student${n === 1 ? '' : 's'} count${n === 1 ? 's' : ''}.`);
    if (!this.handed.length && !m.broken.length) { this.results.replaceChildren(); return; }
    const own = this.own;
    this.results.replaceChildren(this.agreement(m), ...this.troubles(m),
      ...n || this.without.length ? this.students(m) : [], ...n ? this.sentences(m, own) : [], this.leaving(m));
  }

  agreement({alpha, sheets, answers}) {
    const value = alpha.value === null ? 'not defined: fewer than two students on a word, or all alike'
      : classPoint(alpha.value);
    const sampled = alpha.low === null ? '' : ` (95 % of samples of sentences: ${classPoint(alpha.low)} to `
      + `${classPoint(alpha.high)})`;
    const whole = sheets.filter(sheet => sheet.marks.every(flags => flags !== null)).length;
    const parts = [elementOf('p', '', "Krippendorff's alpha ", elementOf('strong', '', value), sampled,
      '. 1 is perfect agreement, 0 what chance gives.'),
    elementOf('p', '', `${whole} of ${sheets.length} have done all ${this.set.spans.length} sentences; unfinished `
      + 'marks count as far as they go.')];
    if (answers) parts.push(elementOf('p', '', `${answers} file(s) hold predictions; this page reads marks only.`));
    return elementOf('section', '', elementOf('h2', '', 'Agreement'), ...parts);
  }

  troubles({broken, doubled, outliers}) {
    const name = sheet => sheet.source || sheet.nickname;
    const lists = {
      'Could not be read': broken.map(({source, reason}) => `${source || 'what was pasted'}: ${reason}`),
      'Handed in twice': doubled.map(({better, other, reason}) =>
        `${reason}; ${name(better)} counts, ${name(other)} does not`),
      'Unlike the others, and yet counted': outliers.map(({nickname, reason}) => `${nickname}: ${reason}`)};
    return Object.entries(lists).filter(([, lines]) => lines.length).map(([title, lines]) => elementOf('section', '',
      elementOf('h2', '', title), elementOf('ul', '', ...lines.map(line => elementOf('li', '', line)))));
  }

  students({kept, students, outliers}) {
    const body = elementOf('tbody', '', ...kept.map(sheet => this.student(sheet,
      students.find(row => row.nickname === sheet.nickname), outliers.some(one => one.nickname === sheet.nickname))));
    const heads = ['Student', 'counts', 'F1', 'done', 'words', 'alpha without'];
    const cells = heads.map(text => {
      const cell = elementOf('th', '', text);
      cell.scope = 'col';
      return cell;
    });
    const table = elementOf('table', '', elementOf('thead', '', elementOf('tr', '', ...cells)), body);
    const wide = elementOf('div', 'sv-class-wide', table);
    Object.assign(wide, {tabIndex: 0});
    wide.setAttribute('role', 'region');
    wide.setAttribute('aria-label', 'Students');
    const says = 'F1: agreement with the majority of the others. Words: marked in a sentence, on average. Alpha '
      + 'without: of the class if this student did not count.';
    return [elementOf('h2', '', 'Students'), elementOf('p', 'sv-marks-keys', says), wide];
  }

  student(sheet, row, isUnlike) {
    const counts = elementOf('input'), name = marksFolded(sheet.nickname);
    Object.assign(counts, {type: 'checkbox', checked: !this.without.includes(name)});
    counts.setAttribute('aria-label', `${sheet.nickname} counts`);
    counts.addEventListener('change', () => {
      this.without = counts.checked ? this.without.filter(x => x !== name) : [...this.without, name];
      this.keep();
      this.draw();
      const boxes = [...this.el.querySelectorAll('tbody input')];
      boxes.find(x => x.getAttribute('aria-label') === `${sheet.nickname} counts`)?.focus();
    });
    const values = row ? [row.f1 === null ? '' : classPoint(row.f1), row.done,
      row.words === null ? '' : row.words.toFixed(1), row.alpha_without === null ? '' : classPoint(row.alpha_without)]
      : ['', '', '', ''];
    const head = elementOf('td', isUnlike ? 'sv-class-unlike' : '', sheet.nickname,
      isUnlike ? ' (unlike the others)' : '');
    return elementOf('tr', '', head, elementOf('td', '', counts), ...values.map(x => elementOf('td', '', String(x))));
  }

  sentences(m, own) {
    const mine = m.sheets.find(sheet => marksFolded(sheet.nickname) === own);
    const choice = elementOf('select'), list = elementOf('div');
    const option = (value, text) => {
      const one = elementOf('option', '', text);
      [one.value, one.selected] = [value, value === (mine ? own : '')];
      return one;
    };
    choice.append(option('', 'nobody'), ...m.sheets.map(s => option(marksFolded(s.nickname), s.nickname)));
    choice.addEventListener('change', () => {
      this.own = choice.value;
      this.draw();
      this.el.querySelector('.sv-class-legend select').focus();
    });
    const rows = [['majority', 'majority'], ['share of votes', 'votes'], ...this.rows.map(({name}) => [name, 'model'])];
    if (mine) rows.unshift([mine.nickname, 'own']);
    const keys = rows.map(([name, hue]) => {
      const key = elementOf('span', 'sv-class-key');
      key.style.background = `var(--mk-${hue})`;
      return elementOf('span', '', key, name);
    });
    list.append(...this.set.spans.map((_, i) => this.sentence(m, mine, rows, i)));
    return [elementOf('h2', '', 'Words'),
      elementOf('div', 'sv-class-legend', elementOf('label', '', 'Marks of ', choice), ...keys), list];
  }

  sentence({votes, asked, majority}, mine, rows, i) {
    const shares = votes[i].map(v => asked[i] ? v / asked[i] : 0), flags = majority[i] ?? shares.map(() => 0);
    const extra = this.rows.map(({values}) => {
      const largest = Math.max(...values[i].map(Math.abs), 1e-12);
      return values[i].map(x => Math.abs(x) / largest);
    });
    const columns = [...mine ? [mine.marks[i] ?? shares.map(() => 0)] : [], flags, shares, ...extra];
    const units = this.set.spans[i].map(([a, b], w) => {
      const text = marksCut(this.set.texts[i], a, b);
      const bars = columns.map((values, row) => classBar(values[w], rows[row][1]));
      const unit = elementOf('span', `sv-class-unit${flags[w] ? ' sv-marked' : ''}`, text, ...bars);
      unit.setAttribute('role', 'img');
      const heard = columns.map((values, row) => `${rows[row][0]} ${classPoint(values[w])}`).join(', ');
      unit.setAttribute('aria-label', `${text}: ${heard}`);
      unit.title = `${votes[i][w]} of ${asked[i]} marked it`;
      return unit;
    });
    return elementOf('div', 'sv-class-sentence', elementOf('span', 'sv-class-number', `${i + 1}.`), ...units);
  }

  leaving(m) {
    const download = classButton('Download marks.jsonl', () =>
      marksSave('marks.jsonl', classLines(this.set, m), 'application/x-ndjson'));
    download.disabled = !m.sheets.some(sheet => sheet.marks.some(flags => flags !== null));
    const forget = classButton('Forget everything', () => {
      if (forget.dataset.sure) { this.forget(); return; }
      forget.dataset.sure = 'yes';
      setText(forget, 'Really forget? Press again');
    });
    const holds = 'marks.jsonl holds text, label, votes and majority of each sentence, and no names.';
    return elementOf('section', '', elementOf('h2', '', 'What leaves'), elementOf('p', '', holds),
      elementOf('div', 'sv-marks-moves', download, forget));
  }
}

function classBar(share, hue) {
  const bar = elementOf('span', 'sv-class-bar');
  Object.assign(bar.style, {width: `${Math.round(100 * share)}%`, background: `var(--mk-${hue})`});
  return elementOf('span', 'sv-class-rail', bar);
}

export function mountClass(el, {set, rows}) { return new ClassPage(el, set, rows); }
