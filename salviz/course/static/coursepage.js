// The course in a stand-alone page: mounts all fragments. Revealed content may contain more fragments and explorers.
import {courseBook, CoursePageKeeper} from './book.js';
import {elementOf} from '../explorer/controls.js';
import {courseView} from './fragments.js';
import {openPage} from '../explorer/page.js';
import {bytesOfText} from '../explorer/packedtext.js';
import {plotlyLoader} from '../explorer/plotly.js';
import {watchTheme} from '../explorer/theme.js';

// The page contains plotly once for all explorers.
function coursePlotly() {
  return plotlyLoader(async () => bytesOfText(document.getElementById('salviz-plotly')?.textContent ?? ''));
}

function courseExplorer({parts}) {
  const source = elementOf('div'), box = elementOf('div', 'cr-explorer');
  for (const [type, id, text] of parts) {
    const script = Object.assign(document.createElement('script'), {type, id});
    script.textContent = text;
    source.append(script);
  }
  return {el: box, ready: () => openPage(box, {source, plotly: coursePlotly()})};
}

function courseHtml({html}) {
  const box = elementOf('div', 'cr-html');
  box.innerHTML = html;
  return {el: box, ready: () => mountCourse(box)};
}

function courseText({text}) {
  const paragraph = elementOf('p', 'cr-text', text);
  paragraph.dir = 'auto';
  return {el: paragraph};
}

function coursePicture({src, alt}) {
  return {el: Object.assign(elementOf('img', 'cr-picture'), {src, alt})};
}

const courseParts = {text: courseText, picture: coursePicture, html: courseHtml, fragment: courseHtml,
  explorer: courseExplorer};

async function courseFill(el, {parts}) {
  const views = parts.map(part => courseParts[part.kind](part));
  el.append(...views.map(part => part.el));
  for (const {ready} of views) await ready?.();
}

// Mount all fragments within `root` and return them; a fragment that fails shows an error and does not stop the others.
export function mountCourse(root) {
  const book = courseBook(), places = [...root.querySelectorAll('.salviz-course:not([data-mounted])')];
  const fragments = places.map(place => {
    const [about, hidden] = ['application/json', 'text/plain']
      .map(type => place.querySelector(`:scope > script[type="${type}"]`));
    return {place, hidden, about: JSON.parse(about.textContent)};
  }).map(({place, about, hidden}) => ({place, about, keeper: new CoursePageKeeper(about, book, hidden)}));
  return fragments.map(({place, about, keeper}) => {
    place.dataset.mounted = '';
    try { return courseView(place, {about, keeper, fill: courseFill}); } catch (error) {
      place.append(elementOf('p', 'salviz-failed', `This part could not be shown (${error.message}).`));
      return null;
    }
  });
}

if (document.querySelector('.salviz-course')) {
  watchTheme(theme => { document.documentElement.dataset.theme = theme; });
  window.salvizCourse = {book: courseBook(), mounted: mountCourse(document), mountCourse};
}
