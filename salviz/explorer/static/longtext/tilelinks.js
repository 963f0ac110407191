// The strongest links of a token: arcs over the text, and a list.
import {elementOf} from '../lib/controls.js';

const most = 8;

// `weights`: of the keys or of cells of `cell` keys; null: no token is chosen.
export function drawLinks(view, weights, cell) {
  const {links, list, meta, token} = view, context = links.getContext('2d'), ratio = devicePixelRatio || 1;
  const width = links.clientWidth, base = links.clientHeight - 14, at = i => (i + .5) / meta.size * width;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, links.clientHeight);
  list.replaceChildren();
  links.hidden = list.hidden = !weights;
  if (!weights) return;
  const ink = view.isDark() ? '#7fd4ff' : '#d6530e';
  const strongest = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, most)
    .filter(k => weights[k] > 0);
  Object.assign(context, {strokeStyle: view.isDark() ? '#888' : '#999', lineWidth: 1});
  context.strokeRect(0, base, width, 0);
  context.strokeStyle = ink;
  for (const k of strongest) {
    const key = Math.min(meta.size - 1, k * cell + (cell - 1) / 2), [a, b] = [at(token), at(key)];
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
    const first = k * cell, last = Math.min(meta.size, first + cell) - 1;
    const name = cell === 1 ? `${first} “${meta.tokens[first]}”` : `one of ${first} to ${last}`;
    const button = elementOf('button', '', `${name}: ${cell === 1 ? '' : 'at most '}${weights[k].toPrecision(3)}`);
    button.type = 'button';
    button.addEventListener('click', () => view.centre(first, token));
    list.append(elementOf('li', '', button));
  }
  list.setAttribute('aria-label', `Strongest links of ${token} “${meta.tokens[token]}”`);
}
