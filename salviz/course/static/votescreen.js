// The vote screen for a projector: question, first answers, answers after discussion, truth; one key press each.
import {elementOf, setText} from '../explorer/controls.js';
import {courseButton, courseKeep, coursePlain, courseRest} from './parts.js';
import {votesCount, votesRows, votesTruth} from './votes.js';

const votesStages = ['question', 'first answers', 'answers after discussion', 'truth'];
const votesForward = ['Show first answers', 'Show answers after discussion', 'Show the answer'];
const votesForwardKeys = ['ArrowRight', 'PageDown', ' '], votesBackKeys = ['ArrowLeft', 'PageUp'];

function votesBar({fraction, text}, kind) {
  const bar = elementOf('span', `vt-bar vt-bar-${kind}`);
  bar.style.inlineSize = `${100 * fraction}%`;
  return elementOf('span', 'vt-line', elementOf('span', 'vt-track', bar), elementOf('span', 'vt-count', text));
}

export class VoteScreen {
  // `rounds`: [{about, answers, truth}] of the answered questions; `closed(name)` is called to return to the page.
  constructor(el, rounds, closed) {
    Object.assign(this, {rounds, closed, at: 0, stage: 0});
    this.el = elementOf('main', 'sv-marks sv-votes');
    this.el.setAttribute('aria-label', 'Votes');
    this.el.hidden = true;
    this.name = elementOf('p', 'vt-name');
    this.question = elementOf('h1', 'vt-question');
    this.question.dir = 'auto';
    this.picture = elementOf('div', 'vt-shown');
    this.rows = elementOf('ul', 'vt-rows');
    this.legend = elementOf('p', 'vt-legend');
    this.truth = elementOf('p', 'vt-truth');
    this.truth.setAttribute('role', 'status');
    this.forth = courseButton('', () => this.forward(), 'vt-main');
    this.back = courseButton('Back', () => this.backward());
    const full = courseButton('Full screen', () => this.full()), close = courseButton('Close', () => this.close());
    const keys = '→ or space: show more. ←: back. F: full screen. Esc: close.';
    this.el.append(this.name, this.question, this.picture, this.rows, this.legend, this.truth,
      elementOf('div', 'vt-buttons', this.forth, this.back, full, close, elementOf('span', 'vt-keys', keys)));
    this.el.addEventListener('keydown', event => this.pressed(event));
    el.append(this.el);
  }

  get last() { return this.rounds[this.at].truth === null ? 2 : 3; }

  open(at) {
    this.el.hidden = false;
    this.go(at, 0);
    courseRest(this.el);
  }

  close() {
    if (document.fullscreenElement) document.exitFullscreen();
    this.el.hidden = true;
    this.closed(this.rounds[this.at].about.name);
  }

  full() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.el.requestFullscreen?.().catch(() => {});
  }

  go(at, stage) {
    Object.assign(this, {at, stage});
    this.draw();
  }

  // The next question follows the truth.
  forward() {
    if (this.stage < this.last) this.go(this.at, this.stage + 1);
    else if (this.at < this.rounds.length - 1) this.go(this.at + 1, 0);
  }

  backward() {
    if (this.stage) this.go(this.at, this.stage - 1);
    else if (this.at) this.go(this.at - 1, 0);
  }

  pressed(event) {
    if (!coursePlain(event)) return;
    const isButton = event.target.tagName === 'BUTTON', key = event.key === ' ' && isButton ? '' : event.key;
    if (votesForwardKeys.includes(key)) this.forward();
    else if (votesBackKeys.includes(key)) this.backward();
    else if (key.toLowerCase() === 'f') this.full();
    else if (key === 'Escape') this.close();
    else return;
    courseKeep(event);
  }

  draw() {
    const {about, answers, truth} = this.rounds[this.at], {stage} = this, isTrue = stage === 3;
    this.el.dataset.theme = document.documentElement.dataset.theme;
    this.el.dataset.stage = votesStages[stage];
    setText(this.name, `${about.name}: ${votesCount(answers.first)}`);
    setText(this.question, about.question);
    this.picture.innerHTML = stage ? '' : about.picture ?? ''; // HTML that Python wrote
    this.picture.hidden = !this.picture.innerHTML;
    const rows = stage || about.kind !== 'head' ? votesRows(about, answers, isTrue ? truth : null) : [];
    this.rows.style.setProperty('--vt-count', Math.max(4, rows.length));
    this.rows.replaceChildren(...rows.map(row => this.row(row)));
    this.rows.hidden = !rows.length;
    this.drawLegend(about, answers);
    setText(this.truth, isTrue ? votesTruth(about, answers, truth) : '');
    const isOver = stage === this.last, isEnd = isOver && this.at === this.rounds.length - 1;
    setText(this.forth, isOver ? 'Next question' : votesForward[stage]);
    this.forth.disabled = isEnd;
    this.back.disabled = !stage && !this.at;
    if (document.activeElement?.disabled) this.el.focus();
  }

  row({text, note, isTrue, bars}) {
    const label = elementOf('span', 'vt-text', text);
    label.dir = 'auto';
    const item = elementOf('li', isTrue ? 'vt-row vt-true' : 'vt-row', label);
    const tags = [isTrue ? 'true' : '', note].filter(Boolean);
    item.append(elementOf('span', 'vt-tags', ...tags.map(tag => elementOf('span', 'vt-tag', tag))));
    const kinds = ['first', 'second'].slice(0, Math.min(this.stage, 2));
    item.append(elementOf('span', 'vt-bars', ...kinds.map((kind, i) => votesBar(bars[i], kind))));
    return item;
  }

  drawLegend({kind}, {first, again, sure: [guess, think, sure]}) {
    const key = (name, text) => elementOf('span', '', elementOf('span', `vt-key vt-bar-${name}`), text);
    const what = kind === 'order' ? 'mean position; a full bar is position 1' : 'number of answers';
    const parts = [
      this.stage > 0 ? key('first', `first answers (${sure} sure, ${think} think so, ${guess} guess)`) : '',
      this.stage > 1 ? key('second', `after discussion (${again} of ${first.length} answered again)`) : '',
      this.stage > 0 ? what : ''];
    this.legend.replaceChildren(...parts.filter(Boolean));
  }
}
