// The positions of the tokens to which a pattern of attention guidance attends: delimiters are the tokenizer's special
// tokens, full stops are found by their spelling. null for patterns that do not depend on tokens.
export function patternPlaces(name, {tokens, is_special: special}) {
  if (name === 'delim') return special.map(Number);
  if (name === 'period') return tokens.map(t => Number(t.replace(/^##|^[Ġ▁]+/, '') === '.'));
  return null;
}
