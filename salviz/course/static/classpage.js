// The class page: drop files, paste codes, merge marks. Nothing leaves the page.
import {elementOf, setText} from '../explorer/controls.js';
import {watchTheme} from '../explorer/theme.js';
import {classLines, classMerge, classPoint, classRead} from './classmerge.js';
import {marksCut, marksSave} from './marks.js';
import {marksFolded} from './markscode.js';
import {courseForget, courseStore, courseStored} from './storage.js';
import {courseLargest, coursePrintable, courseReadText} from './untrusted.js';
import {votesCount, votesOf, votesStudents} from './votes.js';
import {VoteScreen} from './votescreen.js';

function classButton(text, act) {
  const button = elementOf('button', '', text);
  button.type = 'button';
  button.addEventListener('click', act);
  return button;
}

// The browser stores what was handed in, so that a reload loses nothing; `forget` deletes it.
class ClassStorage {
  constructor(id) { this.key = `salviz-class-${id}`; }

  read() {
    try {
      const stored = JSON.parse(courseStored(this.key));
      const isText = x => typeof x === 'string' && x.length <= courseLargest;
      const handed = stored.handed.filter(([source, text]) => isText(source) && isText(text));
      return {handed, without: stored.without.filter(name => typeof name === 'string')};
    } catch { return {handed: [], without: []}; }
  }

  write(state) {
    try { courseStore(this.key, JSON.stringify(state)); } catch { /* no storage: a reload loses everything */ }
  }

  forget() { try { courseForget(this.key); } catch { /* nothing was stored */ } }
}

class ClassPage {
  constructor(el, {set, rows, questions}, truths) {
    const storage = new ClassStorage(set.id);
    Object.assign(this, {place: el, set, rows, questions, truths, storage, unreadable: []});
    Object.assign(this, this.storage.read());
    this.el = elementOf('main', 'sv-marks sv-merge');
    const about = `${set.spans.length} sentences, set ${set.id}. This page works offline and sends no data. `
      + 'Your files and codes are stored only in this browser.';
    this.message = elementOf('p', 'sv-marks-said');
    this.message.setAttribute('role', 'status');
    this.results = elementOf('div');
    this.el.append(elementOf('h1', '', 'Marks and votes of a class'), elementOf('p', '', about), this.taking(),
      this.message, this.results);
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
    const wanted = 'Drop marks-….json and answers-….json files here, or choose them';
    const drop = elementOf('label', 'sv-merge-drop', wanted, input);
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
    const placeholder = 'codes such as marks1:nickname:… or SVA1.…, one per line, or the text of a whole chat';
    Object.assign(field, {rows: 4, spellcheck: false, placeholder});
    const read = classButton('Read codes', () => {
      if (!field.value.trim()) { setText(this.message, 'Paste a code first.'); return; }
      this.take([['', field.value]]);
      field.value = '';
    });
    const label = elementOf('label', '', 'Or paste codes', field);
    label.style.width = '100%';
    return elementOf('div', 'sv-merge-take', drop, elementOf('div', 'sv-merge-codes', label, read));
  }

  async files(files) {
    const texts = [...files].map(async file => {
      const name = coursePrintable(file.name);
      try { return [name, await courseReadText(file)]; } catch (error) { return [name, null, error.message]; }
    });
    this.take(await Promise.all(texts));
  }

  // Report texts without marks or answers, and do not store them: a reload would read them again.
  take(handed) {
    const readable = handed.filter(([, text]) => text !== null), existing = new Set(this.handed.map(x => x.join('\n')));
    const unknown = readable.filter(([source, text]) => !existing.has(`${source}\n${text}`));
    const read = unknown.map(([source, text]) => classRead(this.set, text, source));
    const holds = (_, i) => read[i].sheets.length > 0 || read[i].answers.length > 0;
    const fresh = unknown.filter(holds), again = new Set(handed.map(([source]) => source));
    this.handed = [...this.handed, ...fresh];
    this.unreadable = [...this.unreadable.filter(({from}) => !again.has(from)),
      ...handed.filter(([, text]) => text === null).map(([source, , reason]) => ({from: source, source, reason})),
      ...unknown.flatMap((one, i) => holds(one, i) ? [] : read[i].broken.map(x => ({...x, from: one[0]})))];
    this.keep();
    const twice = readable.length - unknown.length;
    this.draw(`Newly read: ${fresh.length}${twice ? `; already loaded: ${twice}` : ''}. `);
  }

  keep() { this.storage.write({handed: this.handed, without: this.without}); }

  forget() {
    [this.handed, this.without, this.unreadable] = [[], [], []];
    this.storage.forget();
    this.draw('Everything was deleted. ');
    this.el.querySelector('input').focus();
  }

  merged() {
    const read = this.handed.map(([source, text]) => classRead(this.set, text, source));
    const merged = classMerge(this.set, read.flatMap(x => x.sheets), this.without);
    const students = votesStudents(read.flatMap(x => x.answers));
    const voters = students.filter(({entries}) => Object.keys(entries).length).length;
    const rounds = this.questions.map(about => ({about, answers: votesOf(about, students),
      truth: this.truths[about.name] ?? null})).filter(({answers}) => answers.first.length);
    return {...merged, voters, rounds, broken: [...this.unreadable, ...read.flatMap(x => x.broken)]};
  }

  draw(first = '') {
    const m = this.merged(), n = m.sheets.length, marked = n || this.without.length;
    const students = count => `${count} student${count === 1 ? '' : 's'}`, found = [];
    if (marked || !m.voters) found.push(`The marks of ${students(n)} are counted.`);
    if (m.voters) found.push(`${students(m.voters)} answered questions.`);
    setText(this.message, first + found.join(' '));
    if (!this.handed.length && !m.broken.length) { this.results.replaceChildren(); return; }
    this.results.replaceChildren(...m.voters ? this.votes(m) : [], ...marked || !m.voters ? [this.agreement(m)] : [],
      ...this.troubles(m), ...marked ? this.students(m) : [], ...n ? this.sentences(m, this.selected) : [],
      this.leaving(m));
  }

  // Each answered question with a button that opens its vote screen.
  votes({rounds}) {
    const title = elementOf('h2', '', 'Votes');
    const none = 'None of these answers belongs to a question on this page.';
    if (!rounds.length) return [title, elementOf('p', '', none)];
    this.screen?.el.remove();
    this.screen = new VoteScreen(this.place, rounds, name => {
      this.el.hidden = false;
      [...this.el.querySelectorAll('.sv-merge-votes button')].find(one => one.dataset.name === name)?.focus();
    });
    const list = rounds.map(({about, answers}, i) => {
      const show = classButton('Show', () => {
        this.el.hidden = true;
        this.screen.open(i);
      });
      show.dataset.name = about.name;
      show.setAttribute('aria-label', `Show ${about.name}`);
      const counts = `${votesCount(answers.first)}; ${answers.again} answered again after discussion`;
      return elementOf('li', '', show, elementOf('span', '', elementOf('strong', '', about.name), ` ${about.question} `,
        elementOf('span', 'sv-marks-keys', counts)));
    });
    const says = 'Press “Show” to open a question for the projector. Then press → or space to show the first answers, '
      + 'the answers after discussion and the correct answer, one at a time.';
    return [title, elementOf('p', '', says), elementOf('ul', 'sv-merge-votes', ...list)];
  }

  agreement({alpha, sheets}) {
    const value = alpha.value === null ? 'not defined: fewer than two students per word, or all marks equal'
      : classPoint(alpha.value);
    const sampled = alpha.low === null ? '' : ` (95% interval over sentences: ${classPoint(alpha.low)} to `
      + `${classPoint(alpha.high)})`;
    const whole = sheets.filter(sheet => sheet.marks.every(flags => flags !== null)).length;
    const parts = [elementOf('p', '', "Krippendorff's alpha ", elementOf('strong', '', value), sampled,
      '. A value of 1 means perfect agreement; 0 means agreement by chance.'),
    elementOf('p', '', `Sheets with all ${this.set.spans.length} sentences: ${whole} of ${sheets.length}. In `
      + 'incomplete sheets, only the finished sentences count.')];
    return elementOf('section', '', elementOf('h2', '', 'Agreement'), ...parts);
  }

  troubles({broken, doubled, outliers}) {
    const name = sheet => sheet.source || sheet.nickname;
    const lists = {
      'Could not be read': broken.map(({source, reason}) => `${source || 'the pasted text'}: ${reason}`),
      'Duplicates': doubled.map(({better, other, reason}) => `${reason}; ` + (name(better) === name(other)
        ? 'only one of them counts' : `${name(better)} counts, but ${name(other)} does not`)),
      'Outliers (still counted)': outliers.map(({nickname, reason}) => `${nickname}: ${reason}`)};
    return Object.entries(lists).filter(([, lines]) => lines.length).map(([title, lines]) => elementOf('section', '',
      elementOf('h2', '', title), elementOf('ul', '', ...lines.map(line => elementOf('li', '', line)))));
  }

  students({unique, students, outliers}) {
    const body = elementOf('tbody', '', ...unique.map(sheet => this.student(sheet,
      students.find(row => row.nickname === sheet.nickname), outliers.some(one => one.nickname === sheet.nickname))));
    const heads = ['Student', 'counts', 'F1', 'done', 'words', 'alpha without'];
    const cells = heads.map(text => {
      const cell = elementOf('th', '', text);
      cell.scope = 'col';
      return cell;
    });
    const table = elementOf('table', '', elementOf('thead', '', elementOf('tr', '', ...cells)), body);
    const wide = elementOf('div', 'sv-merge-wide', table);
    Object.assign(wide, {tabIndex: 0});
    wide.setAttribute('role', 'region');
    wide.setAttribute('aria-label', 'Students');
    const says = 'F1: agreement with the majority vote of the other students. '
      + 'Words: mean number of marked words per sentence. '
      + 'Alpha without: alpha of the class without this student.';
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
    const head = elementOf('td', isUnlike ? 'sv-merge-unlike' : '', sheet.nickname,
      isUnlike ? ' (outlier)' : '');
    return elementOf('tr', '', head, elementOf('td', '', counts), ...values.map(x => elementOf('td', '', String(x))));
  }

  sentences(m, selected) {
    const mine = m.sheets.find(sheet => marksFolded(sheet.nickname) === selected);
    const choice = elementOf('select'), list = elementOf('div');
    const option = (value, text) => {
      const one = elementOf('option', '', text);
      [one.value, one.selected] = [value, value === (mine ? selected : '')];
      return one;
    };
    choice.append(option('', 'nobody'), ...m.sheets.map(s => option(marksFolded(s.nickname), s.nickname)));
    choice.addEventListener('change', () => {
      this.selected = choice.value;
      this.draw();
      this.el.querySelector('.sv-merge-legend select').focus();
    });
    const model = this.rows.map(({name}) => [name, 'model']);
    const rows = [['majority', 'majority'], ['fraction of votes', 'votes'], ...model];
    if (mine) rows.unshift([mine.nickname, 'own']);
    const keys = rows.map(([name, hue]) => {
      const key = elementOf('span', 'sv-merge-key');
      key.style.background = `var(--mk-${hue})`;
      return elementOf('span', '', key, name);
    });
    list.append(...this.set.spans.map((_, i) => this.sentence(m, mine, rows, i)));
    return [elementOf('h2', '', 'Words'),
      elementOf('div', 'sv-merge-legend', elementOf('label', '', 'Marks of ', choice), ...keys), list];
  }

  sentence({votes, respondents, majority}, mine, rows, i) {
    const fractions = votes[i].map(v => respondents[i] ? v / respondents[i] : 0);
    const flags = majority[i] ?? fractions.map(() => 0);
    const extra = this.rows.map(({values}) => {
      const largest = Math.max(...values[i].map(Math.abs), 1e-12);
      return values[i].map(x => Math.abs(x) / largest);
    });
    const columns = [...mine ? [mine.marks[i] ?? fractions.map(() => 0)] : [], flags, fractions, ...extra];
    const units = this.set.spans[i].map(([a, b], w) => {
      const text = marksCut(this.set.texts[i], a, b);
      const bars = columns.map((values, row) => classBar(values[w], rows[row][1]));
      const unit = elementOf('span', `sv-merge-unit${flags[w] ? ' sv-marked' : ''}`, text, ...bars);
      unit.setAttribute('role', 'img');
      const heard = columns.map((values, row) => `${rows[row][0]} ${classPoint(values[w])}`).join(', ');
      unit.setAttribute('aria-label', `${text}: ${heard}`);
      unit.title = `${votes[i][w]} of ${respondents[i]} marked it`;
      return unit;
    });
    return elementOf('div', 'sv-merge-sentence', elementOf('span', 'sv-merge-number', `${i + 1}.`), ...units);
  }

  leaving(m) {
    const download = classButton('Download marks.jsonl', () =>
      marksSave('marks.jsonl', classLines(this.set, m), 'application/x-ndjson'));
    download.disabled = !m.sheets.some(sheet => sheet.marks.some(flags => flags !== null));
    const forget = classButton('Delete everything', () => {
      if (forget.dataset.sure) { this.forget(); return; }
      forget.dataset.sure = 'yes';
      setText(forget, 'Press again to delete everything');
    });
    const holds = 'For each sentence, marks.jsonl contains the text, label, votes and majority, but no names.';
    return elementOf('section', '', elementOf('h2', '', 'Export'), elementOf('p', '', holds),
      elementOf('div', 'sv-marks-moves', download, forget));
  }
}

function classBar(fraction, hue) {
  const bar = elementOf('span', 'sv-merge-bar');
  Object.assign(bar.style, {width: `${Math.round(100 * fraction)}%`, background: `var(--mk-${hue})`});
  return elementOf('span', 'sv-merge-rail', bar);
}

export function mountClass(el, contents, truths) { return new ClassPage(el, contents, truths); }
