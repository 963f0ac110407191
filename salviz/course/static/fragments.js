// All kinds of fragments and widgets, and their common frame.
import {CourseAnswers, coursePageAnswers, courseWidgetAnswers} from './collected.js';
import {elementOf} from '../explorer/controls.js';
import {marksFragment} from './marks.js';
import {courseButton, courseKeep, coursePlain} from './parts.js';
import {CoursePredict} from './predict.js';
import {CoursePageGate, CourseReveal, CourseWidgetGate} from './reveal.js';
import {TeachPanel} from './teachpanel.js';
import {watchTheme} from '../explorer/theme.js';

// {what: options → view}. `options`: el, an empty element to draw in; about, the description; keeper, the data and
// storage; fill(el, hidden), which adds the content of a reveal to a page. A view has a method `destroy`.
export const courseFragments = {
  predict: options => new CoursePredict(options),
  reveal: ({keeper, fill, ...options}) => new CourseReveal({...options, gate: keeper.kind === 'page'
    ? new CoursePageGate(keeper, async el => fill(el, await keeper.hidden())) : new CourseWidgetGate(keeper)}),
  answers: ({el, keeper}) => new CourseAnswers({el, source: keeper.kind === 'page' ? coursePageAnswers(keeper.book)
    : courseWidgetAnswers(keeper)}),
  marks: marksFragment,
  teach: options => new TeachPanel(options),
};

const courseTyping = 'input:not([type=range]):not([type=radio]):not([type=checkbox]), textarea, select';

function courseFull(el) {
  if (document.fullscreenElement) document.exitFullscreen();
  else el.requestFullscreen?.().catch(() => {});
}

// JupyterLab matches shortcuts against the focused element, so the attribute must be there. Shortcuts with ctrl or
// cmd, such as saving, still work.
function courseSuppressShortcuts(el) {
  const mark = ({target, ctrlKey = false, metaKey = false}) => {
    if (ctrlKey || metaKey) target.removeAttribute('data-lm-suppress-shortcuts');
    else target.setAttribute('data-lm-suppress-shortcuts', 'true');
  };
  for (const type of ['focusin', 'keydown', 'keyup']) el.addEventListener(type, mark, true);
}

// Frame, theme and full screen (key F); `about.what` selects the view.
export function courseView(place, options) {
  const {about} = options, make = courseFragments[about.what];
  const el = elementOf('section', `salviz course course-${about.what}`);
  el.dataset.courseName = about.name ?? '';
  courseSuppressShortcuts(el);
  if (!make) throw new Error(`unknown kind of fragment: ${about.what}`);
  place.append(el);
  const view = make({...options, el}), full = courseButton('Full screen', () => courseFull(el), 'cr-full');
  full.title = 'Full screen (F)';
  el.querySelector('.cr-head')?.append(full);
  el.addEventListener('keydown', event => {
    if (event.key.toLowerCase() !== 'f' || !coursePlain(event) || event.target.matches(courseTyping)
      || event.target.closest('.course') !== el) return;
    courseKeep(event);
    courseFull(el);
  });
  const offTheme = watchTheme(theme => { el.dataset.theme = theme; });
  return {el, view, destroy: () => {
    offTheme();
    view.destroy();
    el.remove();
  }};
}
