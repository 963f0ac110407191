// The marks of a class, merged as in `salviz.course.classroom`; a test holds the two together.
import {marksCodesIn, marksDone, marksFolded, marksReadCode, marksReadFile} from './markscode.js';
import {courseParsed, coursePrintable} from './untrusted.js';

const classMostCodes = 500;   // in one file or message

// What stands in the text of a file, or of a message: {sheets, broken: [{source, reason}], answers: number of files}.
export function classRead(set, text, source) {
  const out = {sheets: [], broken: [], answers: 0};
  const codes = /^[\ufeff \t\r\n]*\{/.test(text) ? [] : marksCodesIn(text);
  const add = (read, from) => {
    try { out.sheets.push(read()); } catch (error) {
      out.broken.push({source: coursePrintable(from), reason: coursePrintable(error.message)});
    }
  };
  if (codes.length > classMostCodes) {
    out.broken.push({source, reason: `has ${codes.length} codes, more than ${classMostCodes}`});
    return out;
  }
  for (const code of codes) {
    const from = `${source ? `${source}: ` : ''}code ${[...code].slice(0, 24).join('')}…`;
    add(() => marksReadCode(set, code, from), from);
  }
  if (!codes.length && classIsAnswers(text)) out.answers = 1;
  else if (!codes.length) add(() => marksReadFile(set, text, source), source);
  return out;
}

function classIsAnswers(text) {
  try { return courseParsed(text).salviz === 'answers'; } catch { return false; }
}

// Of one nickname the sheet with more finished sentences counts, of equally long ones the later; of equal marks under
// two names the first.
export function classTwins(sheets, set) {
  const kept = new Map(), doubled = [], first = new Map();
  for (const sheet of sheets) {
    const name = marksFolded(sheet.nickname), before = kept.get(name);
    if (!before) { kept.set(name, sheet); continue; }
    const [better, other] = marksDone(sheet) >= marksDone(before) ? [sheet, before] : [before, sheet];
    const same = JSON.stringify(sheet.marks) === JSON.stringify(before.marks) ? ', with the same marks' : '';
    doubled.push({better, other, reason: `the nickname ${sheet.nickname} handed in twice${same}`});
    kept.set(name, better);
  }
  for (const [name, sheet] of [...kept]) {
    if (marksDone(sheet) < Math.min(5, set.spans.length)) continue;
    const marks = JSON.stringify(sheet.marks), before = first.get(marks);
    if (!before) { first.set(marks, sheet); continue; }
    const reason = `${before.nickname} and ${sheet.nickname} have the same marks in every word`;
    doubled.push({better: before, other: sheet, reason});
    kept.delete(name);
  }
  return {kept: [...kept.values()], doubled};
}

// Krippendorff's alpha for nominal values; counts: of each unit how many gave each value. null where nothing can
// disagree.
export function classAlphaOf(counts) {
  let n = 0, observed = 0;
  const totals = [];
  for (const unit of counts) {
    const m = unit.reduce((a, b) => a + b, 0);
    if (m < 2) continue;
    n += m;
    for (let v = 0; v < unit.length; v++) {
      totals[v] = (totals[v] ?? 0) + unit[v];
      observed += unit[v] * (m - unit[v]) / (m - 1);
    }
  }
  if (totals.filter(total => total > 0).length < 2) return null;
  const expected = totals.reduce((sum, total) => sum + total * (n - total), 0) / (n - 1);
  return 1 - observed / expected;
}

// Rows of numbers below n, by the generator of Park and Miller from seed 1.
export function classDrawn(n, times) {
  let x = 1;
  return Array.from({length: times}, () => Array.from({length: n}, () => {
    x = x * 48271 % 2147483647;
    return x % n;
  }));
}

function classPercentiles(values, share = .95) {
  const ordered = [...values].sort((a, b) => a - b), cut = Math.trunc((1 - share) / 2 * ordered.length);
  return ordered.length ? [ordered[cut], ordered[ordered.length - 1 - cut]] : [null, null];
}

export function classAlpha(counts, times = 1000) {
  const value = classAlphaOf(counts.flat()), used = counts.filter(words => words.some(([a, b]) => a + b >= 2));
  if (value === null || used.length < 2) return {value, low: null, high: null};
  const samples = classDrawn(used.length, times).map(row => classAlphaOf(row.flatMap(i => used[i])));
  const [low, high] = classPercentiles(samples.filter(x => x !== null));
  return {value, low, high};
}

function classMean(values) {
  const there = values.filter(x => x !== null);
  return there.length ? there.reduce((a, b) => a + b, 0) / there.length : null;
}

function classMedian(values) {
  const ordered = [...values].sort((a, b) => a - b), half = ordered.length >> 1;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
}

// What more than half of those asked marked: a tie is not marked.
export function classMajority(votes, asked) { return asked ? votes.map(v => 2 * v > asked ? 1 : 0) : null; }

function classVotes(set, sheets) {
  const done = set.spans.map((_, i) => sheets.filter(sheet => sheet.marks[i] !== null));
  return {asked: done.map(there => there.length),
    votes: set.spans.map((words, i) => words.map((_, w) => done[i].reduce((sum, s) => sum + s.marks[i][w], 0)))};
}

function classWithout({marks}, {asked, votes}) {
  return {asked: asked.map((n, i) => n - (marks[i] === null ? 0 : 1)),
    votes: votes.map((words, i) => words.map((v, w) => v - (marks[i]?.[w] ?? 0)))};
}

function classCounts({asked, votes}) { return votes.map((words, i) => words.map(v => [v, asked[i] - v])); }

function classF1(a, b) {
  const both = a.filter((x, i) => x && b[i]).length, total = a.filter(Boolean).length + b.filter(Boolean).length;
  return total ? 2 * both / total : 0;
}

// The agreement of a student with the majority of the others, of each sentence; null: nothing to compare.
function classWithOthers(sheet, {asked, votes}) {
  return sheet.marks.map((mine, i) => {
    if (mine === null) return null;
    const others = classMajority(votes[i].map((v, w) => v - mine[w]), asked[i] - 1);
    return others !== null && others.some(Boolean) ? classF1(mine, others) : null;
  });
}

function classStudents(set, sheets, all) {
  return sheets.map(sheet => ({nickname: sheet.nickname, done: marksDone(sheet),
    words: classMean(sheet.marks.map(flags => flags === null ? null : flags.reduce((a, b) => a + b, 0))),
    f1: classMean(classWithOthers(sheet, all)),
    alpha_without: classAlphaOf(classCounts(classWithout(sheet, all)).flat())}));
}

// Two places without the 0 before the point, as in the report of Python.
export function classPoint(x) {
  return x === null ? 'not defined' : (Math.round(x * 100) / 100).toFixed(2).replace('0.', '.');
}

function classOutliers(sheets, students) {
  const compared = students.map(row => row.f1).filter(x => x !== null);
  const median = compared.length >= 5 ? classMedian(compared) : null;
  return sheets.flatMap((sheet, i) => {
    const done = sheet.marks.filter(flags => flags !== null), words = done.flat(), {nickname, f1} = students[i];
    const marked = words.filter(Boolean).length;
    if (done.length >= 3 && !marked) return [{nickname, reason: `marked nothing in ${done.length} sentences`}];
    if (2 * marked > words.length)
      return [{nickname, reason: `marked ${marked} of ${words.length} words, more than half`}];
    if (!median || f1 === null || f1 >= median / 2) return [];
    const reason = `F1 ${classPoint(f1)} with the majority of the others, below half of the median `
      + classPoint(median);
    return [{nickname, reason}];
  });
}

// All of it; `without`: folded nicknames that do not count.
export function classMerge(set, sheets, without = []) {
  const {kept, doubled} = classTwins(sheets, set);
  const counting = kept.filter(sheet => !without.includes(marksFolded(sheet.nickname)));
  const all = classVotes(set, counting), students = classStudents(set, counting, all);
  return {kept, sheets: counting, doubled, ...all, students, alpha: classAlpha(classCounts(all)),
    majority: all.votes.map((votes, i) => classMajority(votes, all.asked[i])),
    outliers: classOutliers(counting, students)};
}

// A line of JSON for each sentence that anybody has done, as `ClassMarks.write` has them.
export function classLines(set, merged) {
  const lines = set.texts.flatMap((text, i) => {
    const votes = merged.votes[i], asked = merged.asked[i];
    if (!asked) return [];
    const rationale = votes.map(v => Number((v / asked).toFixed(6)));
    return [JSON.stringify({text, label: set.labels[i], rationale, majority: merged.majority[i], votes, asked})];
  });
  return lines.map(line => `${line}\n`).join('');
}
