// The menu 'Export view': an image of the view, the Python line that recreates it and, on a standalone page, its link.
import {entryTitle} from '../state/derive.js';
import {linkOf, pythonLine} from '../state/link.js';
import {whatIfWords} from './whatifgroup.js';
import {buttonOf, elementOf, setText} from '../lib/controls.js';
import {inksOf} from '../lib/canvas.js';
import {visibleText} from '../lib/words.js';

const exportMargin = 12, exportLine = 18;

// The what-if settings that change overlays of the map of a head, and the rows below any map.
const ofHeads = ['p', 'q', 'region', 'protect', 'pattern', 'boundary', 'multiple'], ofRows = ['topShare', 'binarised'];

// What-if settings change the overlays of the map and the maps of the what-if panel.
function whatIfCaption({state}, drawn) {
  const all = whatIfWords(state.whatIf), drawnHere = state.entry.kind === 'head' ? [...ofHeads, ...ofRows] : ofRows;
  if (drawn.closest('.sv-whatif')) return `Recomputed in the browser${all && ` with ${all}`}; not recorded.`;
  const settings = whatIfWords(Object.fromEntries(Object.entries(state.whatIf ?? {})
    .filter(([name]) => drawnHere.includes(name))));
  if (!settings || !drawn.closest('.sv-map')) return '';
  return `Overlays drawn with what-if settings (${settings}); not recorded.`;
}

// The caption of the exported image.
function exportCaption(ctx, drawn) {
  const {store, state} = ctx, run = store.run(state.run), probe = store.probe(state.run, state.probe);
  const text = (probe?.texts ?? []).join(' | ').slice(0, 160), group = drawn.closest('.sv-group');
  const what = group ? `what-if map (${group.querySelector('summary').textContent})` : state.what;
  const maps = store.frameOf(state)?.get('attention') ? `, ${what} of ${entryTitle(state.entry)}` : '';
  const about = [text && visibleText(text), whatIfCaption(ctx, drawn)].filter(Boolean).join(' ');
  return [`${run?.title ?? ''}, step ${store.stepOf(state)}${maps}`, about].filter(Boolean);
}

// The largest canvas of the side panel, else of all visible panels.
function largestCanvas(root) {
  const of = place => [...root.querySelectorAll(`${place} .sv-panel:not([hidden]) canvas:not(.sv-over)`)];
  const drawn = all => all.filter(canvas => canvas.clientWidth && canvas.width * canvas.height > 1);
  const canvases = [drawn(of('.sv-side:not([hidden])')), drawn(of('.sv-body'))].find(all => all.length) ?? [];
  const largest = canvases.reduce((most, c) => !most || c.width * c.height > most.width * most.height ? c : most, null);
  // Of a recorded and a what-if map of equal size, the second is the what-if map.
  return [...largest?.closest('.sv-pair')?.querySelectorAll('.sv-pair-map') ?? []].at(-1) ?? largest;
}

// Wraps text to lines that fit the given width on `context`.
function wrappedWords(context, words, width) {
  const lines = [''];
  for (const word of words.split(' ')) {
    const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
    if (lines.at(-1) && context.measureText(longer).width > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

// The canvas below its caption, on the page's background colour.
export function viewPicture(ctx, root) {
  const drawn = largestCanvas(root);
  if (!drawn) return null;
  const inks = inksOf(root, ctx.state.theme), ratio = drawn.width / drawn.clientWidth;
  const picture = document.createElement('canvas'), context = picture.getContext('2d');
  const fonts = [inks.bold, inks.font], lines = [];
  exportCaption(ctx, drawn).forEach((words, i) => {
    context.font = fonts[i];
    for (const text of wrappedWords(context, words, drawn.clientWidth)) lines.push({text, font: fonts[i]});
  });
  const top = exportMargin + exportLine * lines.length;
  picture.width = drawn.width + 2 * exportMargin * ratio;
  picture.height = drawn.height + (top + exportMargin) * ratio;
  context.fillStyle = inks.raised;
  context.fillRect(0, 0, picture.width, picture.height);
  context.drawImage(drawn, exportMargin * ratio, top * ratio);
  context.scale(ratio, ratio);
  Object.assign(context, {fillStyle: inks.fg, textBaseline: 'middle'});
  lines.forEach(({text, font}, i) => {
    context.font = font;
    context.fillText(text, exportMargin, exportMargin + exportLine * (i + .5));
  });
  return picture;
}

// A text field to select and copy from; the clipboard may be unavailable to a page that was opened from disk.
function copyField(label, about, report) {
  const box = elementOf('textarea', 'sv-keep-text'), note = elementOf('p', 'sv-note', about);
  Object.assign(box, {readOnly: true, rows: 2, spellcheck: false});
  box.setAttribute('aria-label', label);
  box.addEventListener('focus', () => box.select());
  const copy = buttonOf('Copy', `copy: ${label}`, async () => {
    box.select();
    try { await navigator.clipboard.writeText(box.value); } catch { document.execCommand('copy'); }
    report(`Copied: ${label}.`);
  });
  const el = elementOf('div', 'sv-keep-field', elementOf('div', 'sv-head', elementOf('strong', '', label), copy),
    box, note);
  return {el, show: text => { if (box.value !== text) box.value = text; }};
}

export function exportMenu(ctx) {
  const {store, state} = ctx, el = elementOf('details', 'sv-keep');
  const status = elementOf('output', 'sv-note'), report = text => { setText(status, text); };
  const line = copyField('Python line',
    'In this line, replace “run” with the run, folder or name that you passed to this explorer.', report);
  const link = copyField('Link', 'This link opens the page with the same view.', report);
  const save = buttonOf('Save image (PNG)', 'save the map in the side panel as an image', () => {
    const picture = viewPicture(ctx, el.closest('.salviz'));
    if (!picture) return report('No map is shown.');
    const anchor = elementOf('a');
    Object.assign(anchor, {href: picture.toDataURL('image/png'),
      download: `salviz-probe-${state.probe}-step-${store.stepOf(state)}.png`});
    anchor.click();
    return report(`Saved as ${anchor.download}.`);
  });
  const body = elementOf('div', 'sv-keep-body', save, line.el, status);
  if (ctx.isPage) line.el.after(link.el);
  el.append(elementOf('summary', '', 'Export view'), body);
  const update = () => {
    if (!el.open) return;
    line.show(pythonLine(store, state));
    link.show(`${location.href.split('#')[0]}${linkOf(store, state)}`);
  };
  el.addEventListener('toggle', () => { report(''); update(); });
  el.addEventListener('keydown', e => {
    if (e.key !== 'Escape' || !el.open) return;
    el.open = false;
    el.querySelector('summary').focus();
    e.stopPropagation();
  });
  return {el, update};
}
