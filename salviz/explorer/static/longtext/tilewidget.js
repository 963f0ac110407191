// The map of a long text in a notebook: overviews, tiles and rows come from the kernel.
import {TileView} from './tileview.js';

function kernelSource(model, onGrowth) {
  const waiting = new Map();
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
    waiting.set(++count, resolve);
    model.send({...content, id: count});
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
