// The static copy of an explorer in a saved notebook, which works without a kernel: the parts of a page in an output.
import {openPage} from './page.js';

function copyWithoutPlotly() {
  const message = 'a saved notebook does not include it; run the cell again or export a page with to_html';
  return Promise.reject(new Error(message));
}

export default async (place, styles, parts) => {
  const source = document.createElement('div'), box = document.createElement('div'),
    style = document.createElement('style');
  source.innerHTML = parts;
  style.textContent = styles;
  if ('live' in place.dataset) return;
  place.replaceChildren(style, box);
  const app = await openPage(box, {source, plotly: copyWithoutPlotly});
  if ('live' in place.dataset) app.destroy();
  else place.salvizCopy = app;
};
