// One of several options.
import {elementOf} from '../explorer/controls.js';
import {courseId, courseMarks} from '../parts.js';

class CourseChoice {
  constructor({options}, {changed, labelledBy}) {
    const name = courseId();
    this.radios = options.map((_, i) => {
      const radio = document.createElement('input');
      Object.assign(radio, {type: 'radio', name, value: String(i)});
      radio.addEventListener('change', () => { this.mark(); changed(i); });
      return radio;
    });
    this.el = elementOf('div', 'cr-options', ...options.map((option, i) => {
      const text = elementOf('span', 'cr-option-text', option);
      text.dir = 'auto';
      return elementOf('label', 'cr-option', this.radios[i], text);
    }));
    this.el.setAttribute('role', 'radiogroup');
    this.el.setAttribute('aria-labelledby', labelledBy);
  }

  mark() {
    for (const radio of this.radios) radio.parentElement.classList.toggle('cr-chosen', radio.checked);
  }

  set(value) {
    this.radios.forEach((radio, i) => { radio.checked = i === value; });
    this.mark();
  }

  lock(on) { for (const radio of this.radios) radio.disabled = on; }

  focus() { (this.radios.find(radio => radio.checked) ?? this.radios[0]).focus(); }
}

function courseCompareChoice({options}, marks) {
  const of = marks.class?.length ?? 0;
  return elementOf('ul', 'cr-options cr-options-compared', ...options.map((option, i) => {
    const text = elementOf('span', 'cr-option-text', option), tags = courseMarks(marks, value => value === i);
    text.dir = 'auto';
    text.classList.toggle('cr-you', marks.first === i);
    text.classList.toggle('cr-true', marks.truth === i);
    const item = elementOf('li', 'cr-option', text, elementOf('span', 'cr-tags', ...tags));
    if (!of) return item;
    const count = marks.class.filter(value => value === i).length, bar = elementOf('span', 'cr-bar');
    bar.style.inlineSize = `${100 * count / of}%`;
    item.append(elementOf('span', 'cr-track', bar), elementOf('span', 'cr-count', `${count} of ${of}`));
    return item;
  }));
}

export const courseChoice = {
  kind: 'choice',
  missing: 'Choose an option first.',
  how: () => '',
  ask: (options, context) => new CourseChoice(options, context),
  compare: courseCompareChoice,
};
