// Words of a sentence: a list of toggles.
import {elementOf} from '../explorer/controls.js';
import {courseKeep, courseMarks, coursePlain, courseRove} from '../parts.js';

// The sentence as one element per word, with the spaces of the sentence.
export function courseSentence({words, spaced}, make) {
  return words.map((word, i) => {
    const el = make(word, i);
    el.dir = 'auto';
    if (spaced[i]) el.classList.add('cr-spaced');
    return el;
  });
}

// Find the word above or below in the current line layout.
function courseBeside(items, at, down) {
  const boxes = items.map(item => item.getBoundingClientRect()), here = boxes[at];
  const middle = (here.left + here.right) / 2, away = box => Math.abs((box.left + box.right) / 2 - middle);
  const rows = boxes.map((box, i) => ({box, i}))
    .filter(({box}) => down > 0 ? box.top > here.top + 2 : box.top < here.top - 2);
  if (!rows.length) return at;
  const top = rows.reduce((best, {box}) => down * (box.top - best) < 0 ? box.top : best, rows[0].box.top);
  const near = rows.filter(({box}) => Math.abs(box.top - top) <= 2);
  return near.reduce((best, one) => away(one.box) < away(best.box) ? one : best).i;
}

export class CourseWordList {
  // `changed(value)` gets the indices of the chosen words; `tell(text)` announces a text to screen readers.
  constructor(options, {changed, tell, labelledBy}) {
    Object.assign(this, {options, changed, tell, chosen: new Set(), locked: false});
    this.items = courseSentence(options, (word, i) => {
      const item = elementOf('span', 'cr-word', word);
      item.setAttribute('role', 'option');
      item.addEventListener('click', () => { this.toggle(i); courseRove(this.items, i); });
      return item;
    });
    this.el = elementOf('div', 'cr-words', ...this.items);
    this.el.setAttribute('role', 'listbox');
    this.el.setAttribute('aria-multiselectable', 'true');
    this.el.setAttribute('aria-orientation', 'horizontal');
    this.el.setAttribute('aria-labelledby', labelledBy);
    this.el.addEventListener('keydown', event => this.keyed(event));
    courseRove(this.items, 0, false);
    this.draw();
  }

  set(value) { this.chosen = new Set(value ?? []); this.draw(); }

  lock(on) {
    this.locked = on;
    this.el.setAttribute('aria-disabled', String(on));
    this.el.classList.toggle('cr-locked', on);
  }

  focus() { this.items.find(item => item.tabIndex === 0)?.focus(); }

  toggle(i) {
    if (this.locked) return;
    const {most, words} = this.options, word = words[i];
    if (this.chosen.has(i)) this.chosen.delete(i);
    else if (most === 1) this.chosen = new Set([i]);
    else if (this.chosen.size < most) this.chosen.add(i);
    else return void this.tell(`You can choose ${most} words at most; remove one first.`);
    const value = [...this.chosen].sort((a, b) => a - b);
    this.tell(`${word} ${this.chosen.has(i) ? 'chosen' : 'removed'}, ${value.length} of ${most}.`);
    this.draw();
    this.changed(value.length ? value : null);
  }

  keyed(event) {
    const at = this.items.indexOf(event.target);
    if (at < 0 || !coursePlain(event)) return;
    const last = this.items.length - 1;
    const to = {ArrowRight: Math.min(at + 1, last), ArrowLeft: Math.max(at - 1, 0), Home: 0, End: last,
      ArrowDown: () => courseBeside(this.items, at, 1), ArrowUp: () => courseBeside(this.items, at, -1)}[event.key];
    if (event.key === ' ' || event.key === 'Enter') this.toggle(at);
    else if (to === undefined) return;
    else courseRove(this.items, typeof to === 'function' ? to() : to);
    courseKeep(event);
  }

  draw() {
    this.items.forEach((item, i) => item.setAttribute('aria-selected', String(this.chosen.has(i))));
  }
}

function courseCompareWords(options, marks) {
  const votes = marks.class?.flat() ?? [];
  const items = courseSentence(options, (word, i) => {
    const tags = courseMarks(marks, value => value.includes(i));
    const count = votes.filter(vote => vote === i).length, of = marks.class?.length;
    if (count) tags.push(elementOf('span', 'cr-tag cr-tag-class', `${count} of ${of}`));
    const text = elementOf('span', 'cr-word-text', word);
    text.classList.toggle('cr-you', marks.first?.includes(i) ?? false);
    text.classList.toggle('cr-true', marks.truth?.includes(i) ?? false);
    return elementOf('span', 'cr-compared', text, elementOf('span', 'cr-tags', ...tags));
  });
  return elementOf('div', 'cr-words cr-words-compared', ...items);
}

export const courseWords = {
  kind: 'words',
  missing: 'Choose a word first.',
  how: ({most}) => `${most === 1 ? 'Click one word' : `Click up to ${most} words`}, or use the arrow keys and Space.`,
  ask: (options, context) => new CourseWordList(options, context),
  compare: courseCompareWords,
};
