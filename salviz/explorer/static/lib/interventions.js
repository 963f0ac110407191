// Interventions as JSON: defaults, what they change in words, and what is wrong with them for a model and a text. The
// fields are those of `Intervention` in salviz.core.interventions, which also computes the same descriptions.

export const noIntervention = {positions: [], rows: [], heads: [], layers: [], maps: [], region: null, p: .3, q: .3,
  seed: 0, mask_fraction: 0, top_fraction: .1, saliency: 'input_x_gradient'};

export const mapPatterns = ['next', 'prev', 'first', 'delim', 'period', 'saliency'];
export const dropRegions = ['high', 'low', 'low_released', 'random'];

const isPlace = x => Number.isInteger(x) && x >= 0, isFraction = x => Number.isFinite(x) && x >= 0 && x <= 1;
const areAll = (list, test) => Array.isArray(list) && list.every(test);
const isHeadPair = x => areAll(x, isPlace) && x.length === 2;
const interventionChecks = {positions: x => areAll(x, isPlace), rows: x => areAll(x, isPlace),
  layers: x => areAll(x, isPlace), heads: x => areAll(x, isHeadPair),
  maps: x => areAll(x, one => Array.isArray(one) && isHeadPair(one.slice(0, 2)) && mapPatterns.includes(one[2])),
  region: x => x === null || dropRegions.includes(x), p: isFraction, q: isFraction, seed: isPlace,
  mask_fraction: isFraction, top_fraction: x => isFraction(x) && x > 0, saliency: x => typeof x === 'string'};

// Whether `value`, which may come from a link, is an intervention.
export function isIntervention(value) {
  return Boolean(value) && typeof value === 'object' && !Array.isArray(value)
    && Object.entries(value).every(([key, x]) => interventionChecks[key]?.(x));
}

export function completed(intervention) { return {...noIntervention, ...intervention}; }

const tokenNames = (places, labels) => `token${places.length > 1 ? 's' : ''} `
  + places.map(i => labels[i] === undefined ? `${i}` : `${i} (‘${labels[i]}’)`).join(', ');

// One description per change; `labels`: the tokens of the text.
export function interventionChanges(intervention, labels = []) {
  const {positions, rows, heads, layers, maps, region, p, q, seed, mask_fraction: masked, top_fraction: top,
    saliency} = completed(intervention);
  const out = [], percentage = `${Math.round(100 * masked)}%`;
  if (masked) out.push(`the ${percentage} of the words with the lowest saliency (${saliency}) are masked`);
  if (positions.length) out.push(`no token attends to ${tokenNames(positions, labels)}`);
  if (rows.length) out.push(`the attention of ${tokenNames(rows, labels)} is set to 0`);
  if (layers.length)
    out.push(`the attention of layer${layers.length > 1 ? 's' : ''} ${layers.join(', ')} is crossed out`);
  for (const [layer, head] of heads) out.push(`head ${head} of layer ${layer} is crossed out`);
  for (const [layer, head, name] of maps) {
    const what = name === 'saliency' ? `SalLM’s target (top fraction ${top}, ${saliency})` : `the pattern ‘${name}’`;
    out.push(`the map of head ${head} of layer ${layer} is replaced by ${what}`);
  }
  if (region) {
    const what = region === 'random' ? 'random positions are' : `AD-DROP’s region ‘${region}’ is`;
    out.push(`${what} dropped in all layers (p ${p}, q ${q}, seed ${seed})`);
  }
  return out;
}

// The changes that differ from the defaults; null if there are none.
export function withoutDefaults(intervention) {
  const isDefault = (key, value) => JSON.stringify(value) === JSON.stringify(noIntervention[key]);
  const set = Object.fromEntries(Object.entries(intervention).filter(([key, value]) => !isDefault(key, value)));
  return interventionChanges(set).length ? set : null;
}

// Why an intervention does not fit a model {layers, heads} and a text of n tokens; '' if it fits.
export function modelFault(intervention, {layers: depth, heads: width}, n) {
  const {positions, rows, heads, layers, maps, mask_fraction: masked} = intervention;
  const pairs = [...heads, ...maps], layer = [...layers, ...pairs.map(([l]) => l)].find(l => l >= depth),
    pair = pairs.find(([, head]) => head >= width), place = [...positions, ...rows].find(i => i >= n);
  if (layer !== undefined) return `Layer ${layer} does not exist; the model has the layers 0 to ${depth - 1}.`;
  if (pair) return `Head ${pair[1]} of layer ${pair[0]} does not exist; a layer has the heads 0 to ${width - 1}.`;
  const isOff = l => layers.includes(l) || new Set(heads.filter(([at]) => at === l).map(([, h]) => h)).size === width;
  if (Array.from({length: depth}, (_, l) => l).every(isOff))
    return 'All heads of all layers are crossed out; keep at least one.';
  if (place !== undefined) return `Token ${place} does not exist; the text has the tokens 0 to ${n - 1}.`;
  if ([positions, rows].some(places => places.length === n)) return 'All tokens are crossed out; keep at least one.';
  if (masked === 1)
    return 'At a mask fraction of 1, no word is left to replace the masked words; choose a smaller fraction.';
  return '';
}
