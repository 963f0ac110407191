// The page of a lesson: opens each explorer when its element appears, at the start or at a reveal. The data is in
// script elements identified by checksum, so that explorers share it.
import {openPage} from './page.js';
import {bytesOfText} from './lib/packedtext.js';
import {plotlyLoader} from './lib/plotly.js';
import {watchTheme} from './lib/theme.js';

function lessonText(part) { return document.querySelector(`script[data-part="${part}"]`)?.textContent ?? ''; }

// The source from which `openPage` reads the parts of a page.
function lessonSource(parts) {
  return {querySelector: selector => {
    const part = parts[selector.slice(1)];
    return part === undefined ? null : {textContent: lessonText(part), remove() {}};
  }};
}

async function lessonPlotlyBytes() {
  for (const place of document.querySelectorAll('.course-explorer')) {
    const part = JSON.parse(place.dataset.parts)['salviz-plotly'];
    if (part) return bytesOfText(lessonText(part));
  }
  return null;
}

const lessonPlotly = plotlyLoader(lessonPlotlyBytes);

function lessonFailed(place, error) {
  const note = document.createElement('p');
  note.className = 'salviz-failed';
  note.setAttribute('role', 'alert');
  note.textContent = `This explorer could not be opened (${error.message}). Try a recent browser.`;
  place.append(note);
}

// Open all explorers in the page that are not open yet.
export function openExplorers() {
  for (const place of document.querySelectorAll('.course-explorer:not([data-opened])')) {
    place.dataset.opened = '';
    openPage(place, {source: lessonSource(JSON.parse(place.dataset.parts)), plotly: lessonPlotly})
      .catch(error => lessonFailed(place, error));
  }
}

if (document.body.classList.contains('course-page')) {
  watchTheme(theme => { document.documentElement.dataset.theme = theme; });
  new MutationObserver(openExplorers).observe(document.body, {childList: true, subtree: true});
  openExplorers();
}
