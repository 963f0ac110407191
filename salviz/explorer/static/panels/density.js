// The distribution of saliency over the cells of an input: histograms at the first recorded step and at the step in
// view, with the same bins.
import {percent, shortNumber} from '../lib/colour.js';

export const densityCount = 41;
const densityNear = .1, densityLeft = 58, densityBottom = 32, densityTop = 8;

// As in views.saliency_distribution, each side is scaled by its own largest magnitude; otherwise gradients that only
// shrink would look sparser. Returns {edges, sides: [{name, fractions (of the cells in each bin), small (fraction near
// 0), largest (before scaling)}]}.
export function densityBins(sides) {
  const edges = Array.from({length: densityCount + 1}, (_, i) => 2 * i / densityCount - 1);
  const binned = sides.map(({values, name}) => {
    const counts = new Float64Array(densityCount), finite = values.filter(Number.isFinite), size = finite.length || 1;
    const largest = finite.reduce((most, v) => Math.max(most, Math.abs(v)), 0),
      scaled = Array.from(finite, v => v / (largest || 1));
    for (const v of scaled) counts[Math.min(densityCount - 1, Math.floor((v + 1) / 2 * densityCount))]++;
    return {name, fractions: [...counts].map(c => c / size),
      small: scaled.filter(v => Math.abs(v) <= densityNear).length / size, largest};
  });
  return {edges, sides: binned};
}

function densityPath(fractions, {x, y, width, height}, most) {
  const path = new Path2D(), pitch = width / fractions.length;
  fractions.forEach((fraction, i) => {
    const top = y + height * (1 - fraction / most);
    if (i) path.lineTo(x + i * pitch, top);
    else path.moveTo(x, top);
    path.lineTo(x + (i + 1) * pitch, top);
  });
  return path;
}

function densityAxes(context, place, most, inks) {
  const {x, y, width, height} = place;
  Object.assign(context, {font: inks.small, fillStyle: inks.muted, strokeStyle: inks.line, lineWidth: 1,
    textAlign: 'right', textBaseline: 'middle'});
  for (const part of [0, .5, 1]) {
    const at = Math.round(y + height * (1 - part)) + .5;
    context.beginPath();
    context.moveTo(x, at);
    context.lineTo(x + width, at);
    context.stroke();
    context.fillText(part ? percent(part * most) : '0', x - 5, at);
  }
  context.textBaseline = 'top';
  for (const value of [-1, -.5, 0, .5, 1]) {
    context.textAlign = value < -.9 ? 'left' : value > .9 ? 'right' : 'center';
    context.fillText(shortNumber(value), x + (value + 1) / 2 * width, y + height + 4);
  }
  context.textAlign = 'center';
  context.fillText('saliency / largest magnitude', x + width / 2, y + height + 17);
  context.save();
  context.translate(3, y + height / 2);
  context.rotate(-Math.PI / 2);
  context.fillText('fraction of cells', 0, 0);
  context.restore();
}

// The earlier step is a dashed line, the step in view a filled one; each is labelled.
export function drawDensity(sharp, bins, inks) {
  const {context} = sharp, width = parseFloat(sharp.el.style.width), height = parseFloat(sharp.el.style.height);
  const place = {x: densityLeft, y: densityTop, width: Math.max(20, width - densityLeft - 8),
    height: height - densityTop - densityBottom};
  const most = Math.max(...bins.sides.flatMap(side => side.fractions), 1e-9);
  densityAxes(context, place, most, inks);
  bins.sides.forEach(({fractions}, i) => {
    const now = i === bins.sides.length - 1, path = densityPath(fractions, place, most);
    context.save();
    if (now) {
      const filled = new Path2D(path);
      filled.lineTo(place.x + place.width, place.y + place.height);
      filled.lineTo(place.x, place.y + place.height);
      context.globalAlpha = .18;
      context.fillStyle = inks.accent;
      context.fill(filled);
      context.globalAlpha = 1;
    }
    context.setLineDash(now ? [] : [4, 3]);
    context.lineWidth = now ? 2 : 1.5;
    context.strokeStyle = now ? inks.accent : inks.fg;
    context.stroke(path);
    context.restore();
  });
  densityNames(context, bins, place, inks);
  return place;
}

function densityNames(context, {sides}, place, inks) {
  sides.forEach(({name}, i) => {
    const now = i === sides.length - 1, x = place.x + 8, y = place.y + 8 + 14 * i;
    context.save();
    Object.assign(context, {strokeStyle: now ? inks.accent : inks.fg, lineWidth: now ? 2 : 1.5});
    Object.assign(context, {font: inks.small, fillStyle: inks.fg, textAlign: 'left', textBaseline: 'middle'});
    context.setLineDash(now ? [] : [4, 3]);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 20, y);
    context.stroke();
    context.fillText(name, x + 25, y);
    context.restore();
  });
}

// Describes the bin at a point, or both histograms as a whole.
export function densityText({edges, sides}, place = null, [x] = []) {
  const i = place ? Math.floor((x - place.x) / place.width * densityCount) : -1;
  const listed = sides.map(s => `${percent(s.fractions[i])} of the cells at ${s.name}`).join(', ');
  if (i >= 0 && i < densityCount)
    return `from ${shortNumber(edges[i])} to ${shortNumber(edges[i + 1])}: ${listed}`;
  const near = ({name, small, largest}) => `${percent(small)} at ${name} (largest magnitude ${shortNumber(largest)})`;
  return `Cells within ±${densityNear} of zero: ${sides.map(near).join(', ')}.`;
}
