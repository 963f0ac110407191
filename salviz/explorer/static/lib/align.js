// Aligns two sentences word by word.

// Lengths of the longest common subsequence of a[i:] and b[j:], for all i and j.
function commonLengths(a, b) {
  const length = Array.from({length: a.length + 1}, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  return length;
}

// [{first, second, same}]: the words of `a` and `b` in order, with the words of their longest common subsequence
// aligned and marked `same`. Words between these are paired in order; where one side has no more words, it is null.
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

// The words and punctuation marks of a text with their positions: [{text, from, to}].
export function textPieces(text) {
  return [...new Intl.Segmenter(undefined, {granularity: 'word'}).segment(text)]
    .filter(({segment}) => segment.trim())
    .map(({segment, index}) => ({text: segment, from: index, to: index + segment.length}));
}

// Removes one piece from `text`, together with the space that would be left over.
export function withoutPiece(text, {from, to}) {
  const before = text.slice(0, from), after = text.slice(to);
  const blank = (!before || /\s$/u.test(before)) && /^\s/u.test(after);
  return (before + (blank ? after.slice(1) : after)).trimEnd();
}
