// The map of a long text in a saved page: the overviews are in the page.
import {TileView} from './tileview.js';
import {Units} from './tileunits.js';

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function openPage() {
  const meta = JSON.parse(new TextDecoder().decode(await unpacked('salviz-tiles-meta')));
  const bytes = await unpacked('salviz-tiles-levels'), {cells, layers, heads} = meta;
  const parts = {}; // the first and the last byte of each unit in the bytes of a head
  let each = 0;
  for (const [unit, widths] of Object.entries(cells)) {
    const {size} = new Units(meta, unit), length = 2 * widths.reduce((sum, w) => sum + Math.ceil(size / w) ** 2, 0);
    parts[unit] = [each, each += length];
  }
  const overview = async (layer, head, unit) => {
    const at = (layers.indexOf(layer) * heads + head) * each, [first, last] = parts[unit];
    return {cells: cells[unit], bytes: bytes.subarray(at + first, at + last)};
  };
  window.salvizTiles = new TileView(document.getElementById('salviz-page'), meta, {overview});
}

openPage();
