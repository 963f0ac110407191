// The strongest links of a token, word or sentence: arcs over the part of the text that they span, and a list.
import {elementOf} from '../lib/controls.js';

const most = 8, least = .001; // links, and their smallest weight relative to the largest one

// `weights`: of the units or of cells of `cell` units; null: no unit is chosen.
export function drawLinks(view, weights, cell) {
  const {links, list, unit, pool, token} = view;
  links.hidden = list.hidden = !weights; // a hidden canvas has no size
  const context = links.getContext('2d'), ratio = devicePixelRatio || 1;
  const width = links.clientWidth, base = links.clientHeight - 18;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, links.clientHeight);
  list.replaceChildren();
  if (!weights) return;
  const ink = view.isDark() ? '#7fd4ff' : '#d6530e';
  const strongest = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, most)
    .filter((k, i, all) => weights[k] > least * weights[all[0]]);
  const keyOf = k => Math.min(unit.size - 1, k * cell + (cell - 1) / 2), ends = [token, ...strongest.map(keyOf)];
  const first = Math.floor(Math.min(...ends)), last = Math.max(Math.ceil(Math.max(...ends)), first + 16);
  const at = i => 24 + (i - first) / (last - first) * (width - 48), grey = view.isDark() ? '#aaa' : '#666';
  Object.assign(context, {strokeStyle: grey, fillStyle: grey, lineWidth: 1, font: '11px system-ui, sans-serif'});
  context.strokeRect(0, base, width, 0);
  for (const [i, align] of [[first, 'left'], [Math.min(last, unit.size - 1), 'right']]) {
    context.textAlign = align;
    context.fillText(String(i), align === 'left' ? 0 : width, base + 15);
  }
  context.strokeStyle = ink;
  for (const k of strongest) {
    const [a, b] = [at(token), at(keyOf(k))];
    context.globalAlpha = .35 + .65 * Math.cbrt(weights[k]);
    context.lineWidth = 1 + 3 * Math.cbrt(weights[k]);
    context.beginPath();
    context.ellipse((a + b) / 2, base, Math.max(1, Math.abs(b - a) / 2), Math.min(base - 4, 8 + Math.abs(b - a) / 3),
      0, Math.PI, 2 * Math.PI);
    context.stroke();
  }
  context.globalAlpha = 1;
  context.fillStyle = ink;
  context.fillRect(at(token) - 2, base - 2, 4, 8);
  for (const k of strongest) {
    const from = k * cell, to = Math.min(unit.size, from + cell) - 1;
    const name = cell === 1 ? `${from} “${unit.label(from)}”` : `${from} to ${to}`;
    const button = elementOf('button', '', `${name}: ${weights[k].toPrecision(3)}`);
    button.type = 'button';
    button.addEventListener('click', () => view.centre(from, token));
    list.append(elementOf('li', '', button));
  }
  const isSingle = cell === 1 && unit.name === 'tokens', of = cell === 1 ? `each ${unit.noun}` : 'each cell';
  const name = `Strongest links of ${unit.noun} ${token} “${unit.label(token)}”`
    + (isSingle ? '' : ` (${pool} of ${of})`);
  list.prepend(elementOf('li', '', `${name}:`));
  list.setAttribute('aria-label', name);
}
