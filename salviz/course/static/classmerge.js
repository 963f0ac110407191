// Merge the marks of a class as `salviz.course.classroom` does; a test compares both.
import {marksCodesIn, marksDone, marksFolded, marksReadCode, marksReadFile} from './markscode.js';
import {courseOfCode} from './file.js';
import {courseAnswersFile, courseParsed, coursePrintable} from './untrusted.js';
import {votesCodesIn} from './votes.js';

const classMostCodes = 500;   // in one file or message

// Read the text of a file or message: {sheets, answers, broken: [{source, reason}]}.
export function classRead(set, text, source) {
  const out = {sheets: [], answers: [], broken: []};
  const isFile = /^[\ufeff \t\r\n]*\{/.test(text);
  const codes = isFile ? [] : marksCodesIn(text), votes = isFile ? [] : votesCodesIn(text);
  const count = codes.length + votes.length;
  const broken = (from, reason) => {
    out.broken.push({source: coursePrintable(from), reason: coursePrintable(reason)});
  };
  const read = (from, act) => { try { act(); } catch (error) { broken(from, error.message); } };
  const take = (from, contents) => {
    const {damaged, ...answers} = courseAnswersFile(contents);
    out.answers.push(answers);
    if (damaged) broken(from, `left out ${damaged} damaged entr${damaged === 1 ? 'y' : 'ies'}`);
  };
  if (count > classMostCodes) {
    broken(source, `has ${count} codes; at most ${classMostCodes} are allowed`);
    return out;
  }
  const named = code => `${source ? `${source}: ` : ''}code ${[...code].slice(0, 24).join('')}…`;
  for (const code of codes) read(named(code), () => out.sheets.push(marksReadCode(set, code, named(code))));
  for (const code of votes) read(named(code), () => take(named(code), courseOfCode(code)));
  const answers = count ? null : classAnswers(text);
  if (answers) read(source, () => take(source, answers));
  else if (!count) read(source, () => out.sheets.push(marksReadFile(set, text, source)));
  return out;
}

// Return the contents of an answer file, or null.
function classAnswers(text) {
  try {
    const contents = courseParsed(text);
    return contents.salviz === 'answers' ? contents : null;
  } catch { return null; }
}

// For each nickname, the sheet with more finished sentences counts, or the later one of equal length. If two nicknames
// have equal marks, the first counts.
export function classTwins(sheets, set) {
  const unique = new Map(), doubled = [], first = new Map();
  for (const sheet of sheets) {
    const name = marksFolded(sheet.nickname), before = unique.get(name);
    if (!before) { unique.set(name, sheet); continue; }
    const [better, other] = marksDone(sheet) >= marksDone(before) ? [sheet, before] : [before, sheet];
    const same = JSON.stringify(sheet.marks) === JSON.stringify(before.marks) ? ' and the same marks' : '';
    doubled.push({better, other, reason: `two sheets have the nickname ${sheet.nickname}${same}`});
    unique.set(name, better);
  }
  for (const [name, sheet] of [...unique]) {
    if (marksDone(sheet) < Math.min(5, set.spans.length)) continue;
    const marks = JSON.stringify(sheet.marks), before = first.get(marks);
    if (!before) { first.set(marks, sheet); continue; }
    const reason = `${before.nickname} and ${sheet.nickname} marked exactly the same words`;
    doubled.push({better: before, other: sheet, reason});
    unique.delete(name);
  }
  return {unique: [...unique.values()], doubled};
}

// Krippendorff's alpha for nominal values; counts[unit][value] is the number of annotators. null if undefined.
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

// Rows of random numbers below n from the Park-Miller generator with seed 1.
export function classDrawn(n, times) {
  let x = 1;
  return Array.from({length: times}, () => Array.from({length: n}, () => {
    x = x * 48271 % 2147483647;
    return x % n;
  }));
}

function classPercentiles(values, fraction = .95) {
  const ordered = [...values].sort((a, b) => a - b), cut = Math.trunc((1 - fraction) / 2 * ordered.length);
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
  const defined = values.filter(x => x !== null);
  return defined.length ? defined.reduce((a, b) => a + b, 0) / defined.length : null;
}

function classMedian(values) {
  const ordered = [...values].sort((a, b) => a - b), half = ordered.length >> 1;
  return ordered.length % 2 ? ordered[half] : (ordered[half - 1] + ordered[half]) / 2;
}

// Words that more than half of the respondents marked; a tie is not marked.
export function classMajority(votes, respondents) {
  return respondents ? votes.map(v => 2 * v > respondents ? 1 : 0) : null;
}

function classVotes(set, sheets) {
  const done = set.spans.map((_, i) => sheets.filter(sheet => sheet.marks[i] !== null));
  return {respondents: done.map(finished => finished.length),
    votes: set.spans.map((words, i) => words.map((_, w) => done[i].reduce((sum, s) => sum + s.marks[i][w], 0)))};
}

function classWithout({marks}, {respondents, votes}) {
  return {respondents: respondents.map((n, i) => n - (marks[i] === null ? 0 : 1)),
    votes: votes.map((words, i) => words.map((v, w) => v - (marks[i]?.[w] ?? 0)))};
}

function classCounts({respondents, votes}) { return votes.map((words, i) => words.map(v => [v, respondents[i] - v])); }

function classF1(a, b) {
  const both = a.filter((x, i) => x && b[i]).length, total = a.filter(Boolean).length + b.filter(Boolean).length;
  return total ? 2 * both / total : 0;
}

// Agreement of a student with the majority vote of the others, per sentence; null if there is nothing to compare.
function classWithOthers(sheet, {respondents, votes}) {
  return sheet.marks.map((mine, i) => {
    if (mine === null) return null;
    const others = classMajority(votes[i].map((v, w) => v - mine[w]), respondents[i] - 1);
    return others !== null && others.some(Boolean) ? classF1(mine, others) : null;
  });
}

function classStudents(set, sheets, all) {
  return sheets.map(sheet => ({nickname: sheet.nickname, done: marksDone(sheet),
    words: classMean(sheet.marks.map(flags => flags === null ? null : flags.reduce((a, b) => a + b, 0))),
    f1: classMean(classWithOthers(sheet, all)),
    alpha_without: classAlphaOf(classCounts(classWithout(sheet, all)).flat())}));
}

// Two decimals without the leading 0, as in the report of Python.
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
    const reason = `F1 ${classPoint(f1)} against the majority vote of the other students, less than half the median `
      + classPoint(median);
    return [{nickname, reason}];
  });
}

// Merge everything; `without` are folded nicknames that do not count.
export function classMerge(set, sheets, without = []) {
  const {unique, doubled} = classTwins(sheets, set);
  const counting = unique.filter(sheet => !without.includes(marksFolded(sheet.nickname)));
  const all = classVotes(set, counting), students = classStudents(set, counting, all);
  return {unique, sheets: counting, doubled, ...all, students, alpha: classAlpha(classCounts(all)),
    majority: all.votes.map((votes, i) => classMajority(votes, all.respondents[i])),
    outliers: classOutliers(counting, students)};
}

// One line of JSON per sentence with marks, as in `ClassMarks.write`.
export function classLines(set, merged) {
  const lines = set.texts.flatMap((text, i) => {
    const votes = merged.votes[i], respondents = merged.respondents[i];
    if (!respondents) return [];
    const rationale = votes.map(v => Number((v / respondents).toFixed(6)));
    return [JSON.stringify({text, label: set.labels[i], rationale, majority: merged.majority[i], votes,
      asked: respondents})];
  });
  return lines.map(line => `${line}\n`).join('');
}
