// Converts numbers to colours that colour-blind people can distinguish, and numbers to text: tables, scales with ticks.

// Zero is close to the page background, so that large values stand out; lightness changes monotonically.
const colourStops = {
  cividis: {
    light: [[0, 'fdfcf7'], [.2, 'f8f0c4'], [.4, 'e2cd79'], [.58, 'aea06a'], [.75, '717376'], [.88, '3c4b6e'],
      [1, '00204d']],
    dark: [[0, '15181c'], [.14, '132c55'], [.34, '434e6c'], [.55, '7d7c78'], [.78, 'c0b069'], [1, 'fee838']],
  },
  viridis: {
    light: [[0, 'fdfdf4'], [.2, 'eaf3b4'], [.38, '8fd45c'], [.56, '2aa983'], [.73, '2b748e'], [.87, '414487'],
      [1, '440154']],
    dark: [[0, '15181c'], [.14, '3a1c60'], [.32, '3d4d8a'], [.52, '26828e'], [.72, '35b779'], [.88, 'aadc32'],
      [1, 'fde725']],
  },
  grey: {
    light: [[0, 'ffffff'], [1, '0d0d0d']],
    dark: [[0, '15181c'], [1, 'ffffff']],
  },
  signed: {
    light: [[0, '08407f'], [.2, '3f8fc5'], [.38, 'b3d3e8'], [.5, 'fdfdfb'], [.62, 'fdc692'], [.8, 'e0701a'],
      [1, '7a2704']],
    dark: [[0, 'a8dcff'], [.25, '3b8bcd'], [.42, '1d3b57'], [.5, '15181c'], [.58, '533018'], [.75, 'd07026'],
      [1, 'ffd0a0']],
  },
};
const colourBlank = {light: 'd7dfe8', dark: '2c3748'};

export const palettes = ['cividis', 'viridis', 'grey'];

function hexParts(hex) { return [0, 2, 4].map(i => parseInt(hex.slice(i, i + 2), 16)); }

// ImageData stores red, green, blue, alpha; as a little-endian 32-bit number, the order is reversed.
function packParts([r, g, b]) { return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0; }

function tableFromStops(stops) {
  const table = new Uint32Array(256);
  for (let i = 0, k = 0; i < 256; i++) {
    while (k < stops.length - 2 && i / 255 > stops[k + 1][0]) k++;
    const [[from, a], [to, b]] = [stops[k], stops[k + 1]], [x, y] = [hexParts(a), hexParts(b)],
      t = (i / 255 - from) / (to - from);
    table[i] = packParts(x.map((v, c) => Math.round(v + (y[c] - v) * t)));
  }
  return table;
}

const colourTables = new Map();

// 256 packed colours; `palette` is one of `palettes`, or 'signed', where entry 127.5 is zero.
export function colourTable(palette, theme = 'light') {
  const key = `${palette} ${theme}`;
  if (!colourTables.has(key))
    colourTables.set(key, tableFromStops((colourStops[palette] ?? colourStops.cividis)[theme === 'dark' ? 'dark'
    : 'light']));
  return colourTables.get(key);
}

// Values without a colour on the scale: masked positions, non-finite values, values below the threshold.
export function blankColour(theme = 'light') {
  return packParts(hexParts(colourBlank[theme === 'dark' ? 'dark' : 'light'])); }

export function cssColour(packed) { return `rgb(${packed & 255}, ${(packed >> 8) & 255}, ${(packed >> 16) & 255})`; }

// A scale from values to table entries. Most attention weights are small, so positions follow the square root of the
// value; tick labels show the values. A `linear` scale is for numbers for which small values may not matter.
export function colourScaleOf({limit, signed = false, linear = false, palette = 'cividis', theme = 'light'}) {
  const top = limit > 0 && Number.isFinite(limit) ? limit : 1;
  return {limit: top, signed, linear, table: colourTable(signed ? 'signed' : palette, theme), blank: blankColour(theme),
    theme};
}

export function scalePlace(scale, value) {
  const fraction = Math.min(1, Math.abs(value) / scale.limit), part = scale.linear ? fraction : Math.sqrt(fraction);
  if (!scale.signed) return value > 0 ? part : 0;
  return value < 0 ? .5 - part / 2 : .5 + part / 2;
}

export function scaleColour(scale, value) {
  return Number.isFinite(value) ? scale.table[Math.round(255 * scalePlace(scale, value))] : scale.blank;
}

// The same for many values at once, without a function call for each: head grids have a hundred thousand pixels.
export function paintScale(scale, values, out) {
  const {table, blank, limit, linear} = scale, over = 1 / limit,
    [zero, reach] = scale.signed ? [127.5, 127.5] : [0, 255];
  for (let k = 0; k < out.length; k++) {
    const v = values[k], size = v < 0 ? -v : v, fraction = size < limit ? size * over : 1,
      part = reach * (linear ? fraction : Math.sqrt(fraction));
    if (v - v !== 0) out[k] = blank;
    else if (v < 0) out[k] = scale.signed ? table[(zero - part + .5) | 0] : table[0];
    else out[k] = table[(zero + part + .5) | 0];
  }
  return out;
}

// Formats a number: short, with a real minus sign, and never 0 for a non-zero value.
export function shortNumber(x) {
  if (!Number.isFinite(x)) return 'undefined';
  const size = Math.abs(x);
  const text = size !== 0 && (size < .00095 || size >= 9999.5) ? x.toExponential(1).replace('.0e', 'e')
    : String(Number(x.toPrecision(size >= 100 ? 4 : 2)));
  return text.replace('e+', 'e').replaceAll('-', '−');
}

// `value ± step`, both rounded to the digit that the step allows. The step includes the rounding of the printed value
// and is never rounded down.
export function valueWithStep(value, half) {
  if (!Number.isFinite(value)) return 'not finite';
  if (!(half > 0)) return shortNumberExact(value);
  const steps = e => Math.ceil(half / 10 ** e + .5 - 1e-9);
  let exponent = Math.floor(Math.log10(half));
  if (steps(exponent) >= 10) exponent += 1;
  const count = steps(exponent), unit = 10 ** exponent, units = Math.round(value / unit);
  const places = Math.max(0, -exponent), size = units ? Math.floor(Math.log10(Math.abs(units))) : 0;
  const text = exponent >= -5 ? `${(units * unit).toFixed(places)} ± ${(count * unit).toFixed(places)}`
    : `${units ? `${(units / 10 ** size).toFixed(size)}e${exponent + size}` : '0'} ± ${count}e${exponent}`;
  return text.replaceAll('-', '−');
}

function shortNumberExact(value) { return String(Number(value.toPrecision(4))).replaceAll('-', '−'); }

export function ordinal(k) {
  const tail = k % 100 > 10 && k % 100 < 14 ? 'th' : ['th', 'st', 'nd', 'rd'][k % 10] ?? 'th';
  return `${k}${tail}`;
}

export function percent(fraction) {
  return fraction > 0 && fraction < .0005 ? '< 0.1 %' : `${(100 * fraction).toFixed(fraction < .0995 ? 1 : 0)} %`; }

// Evenly spread attention over `tokens` must not look strong: the colour scale ends at no less than four times the
// uniform weight.
export function attentionLimit(limit, tokens) { return Math.max(limit, Math.min(1, 4 / tokens)); }

// Ticks of a scale: both ends, and round numbers between them at least `gap` (a fraction of the bar) apart. The labels
// of the ends are drawn within the bar, so they take more of it than half of their width; a 0 is short.
export function scaleTicks(scale, gap = .18) {
  const ends = scale.signed ? [-scale.limit, 0, scale.limit] : [0, scale.limit],
    ticks = ends.map(v => [v, scalePlace(scale, v)]);
  const zero = scalePlace(scale, 0),
    gapAt = place => place === zero ? .75 * gap : place === 0 || place === 1 ? 1.6 * gap : gap;
  for (let power = Math.floor(Math.log10(scale.limit)); power > Math.log10(scale.limit) - 3; power--) {
    for (const digit of [5, 2, 1]) {
      for (const value of scale.signed ? [digit * 10 ** power, -digit * 10 ** power] : [digit * 10 ** power]) {
        const place = scalePlace(scale, value);
        if (Math.abs(value) < scale.limit && ticks.every(([, other]) => Math.abs(other - place) >= gapAt(other)))
          ticks.push([value, place]);
      }
    }
  }
  return ticks.sort((a, b) => a[1] - b[1]);
}

// Draws the scale as a horizontal bar with numbers below: `inks` from canvas.js, height about 26 px.
export function colourScale(context, scale, {x, y, width, bar = 9, title = '', ticks = null, inks}) {
  const cells = Math.max(2, Math.round(width));
  for (let i = 0; i < cells; i++) {
    context.fillStyle = cssColour(scale.table[Math.round(255 * i / (cells - 1))]);
    context.fillRect(x + i * width / cells, y, width / cells + .5, bar);
  }
  context.strokeStyle = inks.line;
  context.lineWidth = 1;
  context.strokeRect(x - .5, y - .5, width + 1, bar + 1);
  context.font = inks.small;
  context.fillStyle = inks.muted;
  context.strokeStyle = inks.muted;
  context.textBaseline = 'top';
  const gap = Math.max(.12, 38 / width);
  for (const [text, place] of ticks ?? scaleTicks(scale, gap).map(([value, at]) => [shortNumber(value), at])) {
    const at = Math.round(x + place * width) + (place === 1 ? -.5 : .5);
    context.textAlign = place < .04 ? 'left' : place > .96 ? 'right' : 'center';
    context.beginPath();
    context.moveTo(at, y + bar);
    context.lineTo(at, y + bar + 3);
    context.stroke();
    context.fillText(text, place < .04 ? x : place > .96 ? x + width : at, y + bar + 4);
  }
  if (!title) return;
  context.textAlign = 'left';
  context.textBaseline = 'bottom';
  const short = title.replace('square-root scale', '√ scale'), isWide = context.measureText(title).width > width;
  context.fillText(isWide ? short : title, x, y - 3, width); // another caption may follow
}
