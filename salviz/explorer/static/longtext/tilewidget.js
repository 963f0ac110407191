// The map of a long text in a notebook: overviews, tiles and rows come from the kernel.
import {TileView} from './tileview.js';

function kernelSource(model, onGrowth) {
  // All displays of a widget receive the kernel's answers, so each display names its requests.
  const waiting = new Map(), name = Math.random().toString(36).slice(2);
  let count = 0;
  model.on('msg:custom', (message, buffers) => {
    if (message.kind === 'grown') return onGrowth(message);
    const bytes = buffers[0] && new Uint8Array(buffers[0].buffer ?? buffers[0], buffers[0].byteOffset ?? 0,
      buffers[0].byteLength).slice();
    const isText = message.kind === 'overview' || message.kind === 'text';
    waiting.get(message.id)?.({...message, bytes: isText ? bytes : bytes?.buffer});
    waiting.delete(message.id);
  });
  const query = content => new Promise(resolve => {
    const id = `${name} ${count += 1}`;
    waiting.set(id, resolve);
    model.send({...content, id});
  });
  return {overview: (layer, head, unit) => query({kind: 'overview', layer, head, unit}),
    tile: which => query({kind: 'tile', ...which}), row: which => query({kind: 'row', ...which}),
    text: () => query({kind: 'text'})};
}

function render({model, el}) {
  const root = document.createElement('div');
  root.className = 'sv-tiles';
  el.append(root);
  let isLoading = false;
  const source = kernelSource(model, async change => {
    if (isLoading || view.grow(change)) return;
    isLoading = true;
    const {bytes} = await source.text();
    isLoading = false;
    view.replaceText(JSON.parse(new TextDecoder().decode(bytes)));
  });
  const view = new TileView(root, JSON.parse(model.get('meta')), source);
  model.on('change:meta', () => view.replaceText(JSON.parse(model.get('meta'))));
}

export default {render};
