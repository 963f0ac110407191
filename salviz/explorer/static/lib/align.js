// Two sentences word by word: which words are the same, and what stands where they are not.

// Lengths of the longest list that is common to a[i:] and b[j:], for all i and j.
function commonLengths(a, b) {
  const length = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  return length;
}

// [[i, j]]: words of `a` and `b` in their order, those of the longest common list side by side and `same`. Between two
// of them the first word of one side stands beside the first of the other, and so on; where a side has none left, null.
export function alignWords(a, b) {
  const length = commonLengths(a, b), columns = [];
  let i = 0, j = 0, left = [], right = [];
  const flush = () => {
    for (let k = 0; k < Math.max(left.length, right.length); k++)
      columns.push({first: left[k] ?? null, second: right[k] ?? null, same: false});
    [left, right] = [[], []];
  };
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      flush();
      columns.push({first: i++, second: j++, same: true});
    } else if (j >= b.length || i < a.length && length[i + 1][j] >= length[i][j + 1]) left.push(i++);
    else right.push(j++);
  }
  flush();
  return columns;
}

// The words and signs of a text, with their places: [{text, from, to}].
export function textPieces(text) {
  return [...new Intl.Segmenter(undefined, {granularity: 'word'}).segment(text)]
    .filter(({segment}) => segment.trim())
    .map(({segment, index}) => ({text: segment, from: index, to: index + segment.length}));
}

// `text` without one of its pieces, and without the blank that would be left over.
export function withoutPiece(text, {from, to}) {
  const before = text.slice(0, from), after = text.slice(to);
  const blank = (!before || /\s$/u.test(before)) && /^\s/u.test(after);
  return (before + (blank ? after.slice(1) : after)).trimEnd();
}
