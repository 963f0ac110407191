// The labels of a map, the minimap, and the marks of the chosen unit and of the first generated token.

export const margin = {left: 96, top: 72};
const labelSize = 11;

// A dashed line above the first generated token, and a frame around the row of the chosen unit.
export function drawMarks(view, context, w) {
  const {start} = view.meta, first = start === null ? NaN : (view.unit.at(start) - view.y) * view.scale;
  if (start < view.meta.size && first >= 0) {
    context.strokeStyle = view.isDark() ? '#aaa' : '#666';
    context.setLineDash([4, 4]);
    context.strokeRect(-1, first - .5, w + 2, 0);
    context.setLineDash([]);
  }
  if (view.token === null) return;
  context.strokeStyle = view.isDark() ? '#7fd4ff' : '#d6530e';
  context.lineWidth = 1;
  context.strokeRect(-1, (view.token - view.y) * view.scale - .5, w + 2, Math.max(2, view.scale) + 1);
}

// The least of 1, 2, 5, 10, 20, 50 … that is not below `least`.
function roundStep(least) {
  const unit = 10 ** Math.floor(Math.log10(least));
  return unit * [1, 2, 5, 10].find(x => x * unit >= least);
}

export function drawLabels(view, context, w, h) {
  const {unit} = view, {size} = unit, step = Math.ceil(labelSize * 1.2 / view.scale);
  context.fillStyle = view.isDark() ? '#ddd' : '#222';
  context.font = `${labelSize}px system-ui, sans-serif`;
  context.textBaseline = 'middle';
  const label = i => step > 1 ? String(i) : unit.label(i).slice(0, 13), every = step > 1 ? roundStep(step * 3) : 1;
  const first = v => Math.ceil(v / every) * every;
  for (let i = first(view.y); i < Math.min(size, view.y + h / view.scale); i += every) {
    context.textAlign = 'right';
    context.fillText(label(i), margin.left - 6, margin.top + (i + .5 - view.y) * view.scale);
  }
  for (let i = first(view.x); i < Math.min(size, view.x + w / view.scale); i += every) {
    context.save();
    context.translate(margin.left + (i + .5 - view.x) * view.scale, margin.top - 6);
    context.rotate(-Math.PI / 2);
    context.textAlign = 'left';
    context.fillText(label(i), 0, 0);
    context.restore();
  }
}

export function drawMinimap(view, w, h) {
  const context = view.minimap.getContext('2d'), ratio = devicePixelRatio || 1, {size} = view.unit;
  const side = view.minimap.clientWidth, levels = view.levels();
  const level = levels.find(one => one.maximum.columns <= side) ?? levels.at(-1);
  const cells = level.maximum.columns, at = v => v / size * side;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.drawImage(level[view.pool].canvas(view.look()), 0, 0, cells * at(level.cell), cells * at(level.cell));
  context.strokeStyle = view.isDark() ? '#7fd4ff' : '#d6530e';
  context.lineWidth = 2;
  context.strokeRect(at(view.x), at(view.y), Math.max(4, at(w / view.scale)), Math.max(4, at(h / view.scale)));
}
