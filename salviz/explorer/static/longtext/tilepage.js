// The map of a long text in a saved page: the overviews are in the page.
import {TileView} from './tileview.js';

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function openPage() {
  const meta = JSON.parse(new TextDecoder().decode(await unpacked('salviz-tiles-meta')));
  const bytes = await unpacked('salviz-tiles-levels'), {cells, size, layers, heads} = meta;
  const each = 2 * cells.reduce((sum, cell) => sum + Math.ceil(size / cell) ** 2, 0);
  const overview = async (layer, head) => {
    const at = (layers.indexOf(layer) * heads + head) * each;
    return {cells, bytes: bytes.subarray(at, at + each)};
  };
  window.salvizTiles = new TileView(document.getElementById('salviz-page'), meta, {overview});
}

openPage();
