// One feature of a series over time: its line, the line of the masked copy, and its saliency as background colour.
import {cssColour, scaleColour, shortNumber} from '../lib/colour.js';
import {timeTicks} from '../state/signaldata.js';

const featureBottom = 32, featureTop = 8;

function featureLine(values, at) {
  const path = new Path2D();
  let pen = false;
  values.forEach((v, t) => {
    if (!Number.isFinite(v)) pen = false;
    else if (pen) path.lineTo(...at(t, v));
    else path.moveTo(...at(t, v));
    pen = Number.isFinite(v);
  });
  return path;
}

function featureAxes(context, {x, y, width, height}, [low, high], columns, inks) {
  Object.assign(context, {font: inks.small, fillStyle: inks.muted, strokeStyle: inks.line, lineWidth: 1,
    textAlign: 'right', textBaseline: 'middle'});
  for (const [value, at] of [[high, y], [(low + high) / 2, y + height / 2], [low, y + height]])
    context.fillText(shortNumber(value), x - 5, at);
  context.strokeRect(x - .5, y - .5, width + 1, height + 1);
  Object.assign(context, {textAlign: 'center', textBaseline: 'top'});
  for (const t of timeTicks(columns, width)) context.fillText(t, x + (t + .5) * width / columns, y + height + 5);
  context.fillText('time step', x + width / 2, y + height + 17);
}

export function drawFeature(sharp, shown, row, {left, scale, copied, inks}) {
  const {context} = sharp, width = parseFloat(sharp.el.style.width), height = parseFloat(sharp.el.style.height),
    {columns} = shown;
  const x = Math.max(left, 52), place = {x, y: featureTop, width: Math.max(20, width - x - 4),
    height: height - featureTop - featureBottom};
  const part = map => map.values.subarray(row * columns, (row + 1) * columns), [low, high] = shown.rowEnds(row),
    span = high - low || 1;
  const at = (t, v) => [place.x + (t + .5) * place.width / columns, place.y + place.height * (1 - (v - low) / span)];
  if (scale) {
    part(shown.saliency).forEach((v, t) => {
      context.fillStyle = cssColour(scaleColour(scale, v));
      context.fillRect(place.x + t * place.width / columns, place.y, place.width / columns + .5, place.height);
    });
  }
  featureAxes(context, place, [low, high], columns, inks);
  const lines = [[copied ? shown.masked : null, [3, 3], 1.2],
    [shown.input, [], columns > place.width ? 1 : 1.8]].filter(([map]) => map);
  for (const [map, dash, thick] of lines) {
    context.save();
    Object.assign(context, {lineJoin: 'round', lineWidth: thick + 2.5, strokeStyle: inks.raised});
    if (!dash.length) context.stroke(featureLine(part(map), at));
    context.setLineDash(dash);
    Object.assign(context, {lineWidth: thick, strokeStyle: inks.fg});
    context.stroke(featureLine(part(map), at));
    context.restore();
  }
  sharp.el.salviz = {place, ends: [low, high]};
}
