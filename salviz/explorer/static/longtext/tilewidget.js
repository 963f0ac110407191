// The map of a long text in a notebook: overviews, tiles and rows come from the kernel.
import {TileView} from './tileview.js';

function kernelSource(model) {
  const waiting = new Map();
  let count = 0;
  model.on('msg:custom', (message, buffers) => {
    const bytes = buffers[0] && new Uint8Array(buffers[0].buffer ?? buffers[0], buffers[0].byteOffset ?? 0,
      buffers[0].byteLength).slice();
    waiting.get(message.id)?.({...message, bytes: message.kind === 'overview' ? bytes : bytes?.buffer});
    waiting.delete(message.id);
  });
  const query = content => new Promise(resolve => {
    waiting.set(++count, resolve);
    model.send({...content, id: count});
  });
  return {overview: (layer, head) => query({kind: 'overview', layer, head}),
    tile: which => query({kind: 'tile', ...which}), row: which => query({kind: 'row', ...which})};
}

function render({model, el}) {
  const root = document.createElement('div');
  root.className = 'sv-tiles';
  el.append(root);
  new TileView(root, JSON.parse(model.get('meta')), kernelSource(model));
}

export default {render};
