"""A class of thirty: broken files are named, duplicates count once, agreement is Krippendorff's alpha, the page without
Python merges in the same way, and a model attends to the marked words."""
import json
import random
import subprocess
import sys
from pathlib import Path

import krippendorff
import numpy as np
import pytest

from browser import evaluate_json, new_page, settled
from helpers import full_disk
from test_marks import hostile, invented, load_course
from salviz.course.classroom import (_alpha_of_counts, _drawn, _fraction_on, _marks_teacher, _taught_data, class_marks,
                                     class_page, lesson_questions, run_class, teach)
from salviz.course.marks import _file_name, _sheet_json, checked_sheet, mark_set, sheet_code
from salviz.data.rationales import load_rationales

rows = [dict(text=f'{a} {b} {c} film with a plot that {d} its {e} .', label=i % 2) for i, (a, b, c, d, e) in enumerate(
    (random.Random(i).choice(['a', 'one', 'this']), random.Random(i + 50).choice(['fine', 'dull', 'warm', 'cold']),
     f'odd{i}', random.Random(i + 90).choice(['moves', 'bores']), random.Random(i + 7).choice(['fans', 'critics']))
    for i in range(20))]
of = mark_set(rows)

def careful(nickname, rng, done=20):
    "Return the marks of a student who mostly marks what the class marks"
    marks = []
    for i, words in enumerate(of.words):
        at = {w for w in (1, 2, 8, 10) if rng.random() < (.85 if w in (1, 8) else .2)}
        marks.append([int(w in at) for w in range(len(words))] if i < done else None)
    return checked_sheet(of, nickname, marks)

def handed_in(folder):
    "Write thirty files of a class: three broken ones, one duplicate, two unfinished ones, one from a vandal"
    rng, folder = random.Random(0), Path(folder)
    sheets = [careful(f'student {i}', rng, done=20 if i > 1 else 7*(i + 1)) for i in range(25)]
    stops = [[int(i in (4, 5, 7, 9)) for i in range(len(words))] for words in of.words] # with, a, that, its
    vandal = checked_sheet(of, 'vandal', stops)
    for sheet in (*sheets, vandal):
        (folder/_file_name(sheet.nickname)).write_text(_sheet_json(of, sheet), encoding='utf-8')
    whole = json.loads(_sheet_json(of, sheets[5]))
    (folder/'marks-cut.json').write_text(json.dumps(whole)[:-40])
    (folder/'marks-other.json').write_text(json.dumps(dict(whole, set='000000', nickname='other')))
    many = dict(whole, nickname='many', marks=[[1]*len(of.words[0]), *whole['marks'][1:]])
    (folder/'marks-too-many.json').write_text(json.dumps(many))
    (folder/'marks-student-3 (1).json').write_text('\ufeff' + _sheet_json(of, sheets[3]).replace('\n', '\r\n'),
                                                   encoding='utf-8')
    return sheets, vandal

def test_thirty_files_are_merged_and_what_is_wrong_is_named(tmp_path):
    sheets, vandal = handed_in(tmp_path)
    assert len(list(tmp_path.iterdir())) == 30
    marks = class_marks(tmp_path, of)
    assert sorted(s.nickname for s in marks.sheets) == sorted(s.nickname for s in (*sheets, vandal))
    assert dict(marks.broken) == {
        'marks-cut.json': 'is not JSON', 'marks-other.json': 'belongs to another set of sentences ("000000" '
        f'instead of "{of.id}")', 'marks-too-many.json': 'sentence 1 has 12 marks; at most 4 are allowed'}
    (better, other, reason), = marks.doubled
    assert reason == 'two sheets have the nickname student 3 and the same marks' and better.marks == sheets[3].marks
    assert [name for name, _ in marks.outliers] == ['vandal']
    assert marks.respondents == [26]*7 + [25]*7 + [24]*6 and marks.students['done']['student 0'] == 7
    assert marks.alpha.low < marks.alpha.value < marks.alpha.high
    report = marks.report()
    for word in ('26 students', '24 of them', 'student 0 (7), student 1 (14)', 'marks-cut.json', 'vandal: F1 .0'):
        assert word in report
    without = class_marks(tmp_path, of, without='Vandal')
    assert len(without) == 25 and without.alpha.value > marks.alpha.value and 'excluded by the teacher' in repr(without)

def test_files_codes_chats_and_widgets_are_one_class(tmp_path):
    rng = random.Random(1)
    a, b, c, d = (careful(name, rng) for name in ('amy', 'bob', 'cat', 'dan'))
    (tmp_path/'marks-amy.json').write_text(_sheet_json(of, a))
    (tmp_path/'chat.txt').write_text(f'[10:01] bob: {sheet_code(of, b)}\r\n[10:02] cat: mine {sheet_code(of, c)[:-1]}')
    marks = class_marks([tmp_path/'*.json', str(tmp_path/'chat.txt'), sheet_code(of, d), json.loads(_sheet_json(of, a)),
                         tmp_path/'none.json', 'hello\nthere'], of)
    assert [s.nickname for s in marks.sheets] == ['amy', 'bob', 'dan'] and len(marks.doubled) == 1
    reasons = ['does not match its checksum', 'does not exist', 'is not a code; a code starts with marks1']
    assert all(reason.startswith(start) for (_, reason), start in zip(marks.broken, reasons, strict=True))
    assert marks.broken[0][0].startswith('chat.txt: code marks1:cat:')
    with pytest.raises(ValueError, match='`handed` must contain files, folders, codes or Marks'): class_marks([3], of)
    with pytest.raises(ValueError, match="contains 'eve'"): class_marks(sheet_code(of, d), of, without=['eve'])

@pytest.mark.parametrize('content,reason', [
    (b'', 'is empty'), (b'\xff\xfe{\x00}\x00', 'UTF-16'), (b'{"salviz": "\xe9"}', 'not valid UTF-8'),
    (b'{}', 'not a marks file'), (b'[' * 50000, 'is nested too deeply'), (b' ' * 1_100_000, 'is larger than 1 MB'),
    (b'PK\x03\x04\0\0', 'zero byte')])
def test_files_that_are_none_are_named_without_a_path(tmp_path, content, reason):
    (tmp_path/'marks-x.json').write_bytes(content)
    (source, why), = class_marks(tmp_path, of).broken
    assert source == 'marks-x.json' and reason in why and str(tmp_path) not in why

def test_answers_that_lie_beside_marks_are_not_broken(tmp_path):
    (tmp_path/'answers-amy.json').write_text(json.dumps(dict(salviz='answers', version=1, nickname='amy', entries={})))
    marks = class_marks(tmp_path, of)
    assert marks.broken == [] and [source for source, _ in marks.answered] == ['answers-amy.json']

def test_predictions_that_lie_beside_marks_are_counted(tmp_path):
    rng, question = random.Random(0), lesson_questions()['1.class']
    def entry(value): return dict(id=question.id, kind='choice', state='committed', second=None, revealed=None,
                                  first=dict(value=value, confidence='sure', why='', time=''), skipped=False)
    for name, value in (('amy', 1), ('bob', 1), ('cat', 0)):
        (tmp_path/f'answers-{name}.json').write_text(json.dumps(dict(
            salviz='answers', version=1, nickname=name, entries={'1.class': entry(value)})))
    (tmp_path/'answers-old.json').write_text(json.dumps(dict(salviz='answers', version=0)))
    (tmp_path/'marks-amy.json').write_text(_sheet_json(of, careful('amy', rng)))
    report = run_class([tmp_path], tmp_path/'out', of)
    assert '3 answers: positive × 2, negative × 1' in report and 'answers-old.json has version 0' in report

def test_an_empty_class_and_a_class_of_one_are_reported(tmp_path):
    empty = class_marks(tmp_path, of)
    assert len(empty) == 0 and 'not defined' in empty.report() and empty.outliers == []
    with pytest.raises(ValueError, match='nobody has marked'): empty.write(tmp_path/'m.jsonl')
    for given, reason in ((tmp_path, 'no .json or .txt file in'), (tmp_path/'zz*.json', r'zz\*.json: matches no file')):
        with pytest.raises(ValueError, match=reason): run_class([given], tmp_path, of)
    assert not (tmp_path/'marks.jsonl').exists()
    one = class_marks(sheet_code(of, careful('amy', random.Random(0))), of)
    assert one.alpha.value is None and one.students['f1']['amy'] is None and len(one.rows()) == 20

def test_a_class_without_readable_files_raises_an_error(tmp_path):
    (tmp_path/'marks-amy.json').write_text('{')
    with pytest.raises(ValueError, match='cannot read any file .*marks-amy.json'):
        run_class([tmp_path], tmp_path, of)

def test_alpha_is_that_of_the_package_on_marks_with_gaps():
    rng = np.random.default_rng(0)
    for _ in range(50):
        table = rng.integers(0, rng.integers(2, 5), (rng.integers(2, 8), rng.integers(2, 40))).astype(float)
        table[rng.random(table.shape) < .4] = np.nan
        values = np.unique(table[~np.isnan(table)])
        counts = np.array([[np.sum(unit == v) for v in values] for unit in table.T])
        ours = _alpha_of_counts(counts)
        if ours is None: continue
        paired = table[:, (counts.sum(1) >= 2)]
        assert ours == pytest.approx(krippendorff.alpha(paired, level_of_measurement='nominal'), abs=1e-12)

@pytest.mark.slow
def test_alpha_in_javascript_is_that_of_python(page):
    load_course(page, 'classmerge.js')
    rng, tables = np.random.default_rng(1), []
    for i in range(300):
        n, v, m = rng.integers(1, 40), rng.integers(2, 5), rng.integers(1, 30)
        counts = rng.multinomial(m, rng.dirichlet(np.ones(v)*.5), n)*(rng.random((n, 1)) < .8)
        tables.append((counts//(1 + i % 3)).tolist())
    in_page = evaluate_json(page, 'tables => tables.map(sv.classAlphaOf)', tables)
    here = [_alpha_of_counts(x) for x in tables]
    assert [x is None for x in here] == [x is None for x in in_page] and sum(x is None for x in here) < 100
    assert all(a == pytest.approx(b, abs=1e-9) for a, b in zip(here, in_page) if a is not None)
    assert evaluate_json(page, '() => sv.classDrawn(20, 50)') == _drawn(20, 50).tolist()

def merged_by_javascript(page, some, texts, without=()):
    return evaluate_json(page, '''([set, texts, without]) => {
        const read = texts.map(([source, text]) => sv.classRead(set, text, source));
        const m = sv.classMerge(set, read.flatMap(x => x.sheets), without);
        return {...m, broken: read.flatMap(x => x.broken), lines: sv.classLines(set, m)}; }''',
                         [some.described(), texts, list(without)])

def like(here, in_page):
    "Check that JavaScript merges like Python"
    assert [s['nickname'] for s in in_page['sheets']] == [s.nickname for s in here.sheets]
    assert [(x['source'], x['reason']) for x in in_page['broken']] == here.broken
    assert [x['reason'] for x in in_page['doubled']] == [reason for *_, reason in here.doubled]
    assert [(x['nickname'], x['reason']) for x in in_page['outliers']] == here.outliers
    assert in_page['votes'] == [v.tolist() for v in here.votes] and in_page['respondents'] == here.respondents
    assert in_page['majority'] == [None if f is None else f.tolist() for f in here.majority]
    close = lambda a, b: a is b is None or a == pytest.approx(b, abs=1e-9)
    assert all(close(in_page['alpha'][k], getattr(here.alpha, k)) for k in ('value', 'low', 'high'))
    for mine, (name, row) in zip(in_page['students'], here.students.iterrows()):
        assert mine['nickname'] == name
        assert all(close(mine[k], row[k]) for k in ('done', 'words', 'f1', 'alpha_without'))
    assert [json.loads(line) for line in in_page['lines'].splitlines()] == here.rows()

def test_the_page_merges_as_python_does(page, tmp_path):
    load_course(page, 'classmerge.js')
    handed_in(tmp_path)
    texts = [[p.name, p.read_text(encoding='utf-8', errors='replace')] for p in sorted(tmp_path.iterdir())]
    like(class_marks(tmp_path, of), merged_by_javascript(page, of, texts))
    like(class_marks(tmp_path, of, without='vandal'), merged_by_javascript(page, of, texts, ['vandal']))
    rng = random.Random(4)
    for case in range(25):
        some = mark_set([' '.join('abcde'[:rng.randint(1, 5)]*2) for _ in range(rng.randint(1, 8))], rng.randint(1, 4))
        names = [rng.choice(['amy', 'Bob', 'BOB', 'cat', '<b>', 'Zoë', 'dan', 'eve', 'fay']) for _ in range(12)]
        sheets = [invented(some, name, rng, rng.choice([0, .3, .9])) for name in names]
        folder = tmp_path/str(case)
        folder.mkdir()
        for i, s in enumerate(sheets): (folder/f'{i:02}.txt').write_text(sheet_code(some, s), encoding='utf-8')
        texts = [[p.name, p.read_text(encoding='utf-8')] for p in sorted(folder.iterdir())]
        like(class_marks(folder, some), merged_by_javascript(page, some, texts))

def test_merged_marks_are_rationales(tmp_path):
    handed_in(tmp_path)
    marks = class_marks(tmp_path, of)
    (tmp_path/'marks.jsonl').write_text('old')
    with full_disk(), pytest.raises(OSError): marks.write(tmp_path/'marks.jsonl')
    assert (tmp_path/'marks.jsonl').read_text() == 'old'
    path = str(marks.write(tmp_path/'marks.jsonl'))
    def read(**how):
        data = load_rationales(path, labels=[0, 1], **how)
        assert sum(len(part) for part in data.values()) == 20
        return {row['text']: row['rationale'] for part in data.values() for row in part}
    from salviz.data.rationales import _rationale_spans
    for i, text in enumerate(of.texts):
        assert np.allclose(read(annotators='share')[text], marks.fractions[i], atol=1e-6)
        assert read(annotators='any')[text] == _rationale_spans([text], (marks.votes[i] > 0).astype(int).tolist())
        ties_count = (2*marks.votes[i] >= marks.respondents[i]).astype(int).tolist()
        assert read(annotators='majority')[text] == _rationale_spans([text], ties_count)
        assert read(rationale='majority')[text] == _rationale_spans([text], marks.majority[i].tolist())
        if i == 2: break

def test_a_tie_is_not_marked():
    two = [checked_sheet(of, name, [[int(w == at) for w in range(len(words))] for words in of.words])
           for name, at in (('amy', 1), ('bob', 2))]
    assert not np.any(class_marks(two, of).majority)

def test_the_same_marks_under_two_names_count_once():
    sheet = careful('amy', random.Random(0))
    marks = class_marks([sheet, checked_sheet(of, 'bob', sheet.marks)], of)
    assert len(marks) == 1 and 'amy and bob marked exactly the same words' in marks.report()
    short = careful('amy', random.Random(0), done=4)
    assert len(class_marks([short, checked_sheet(of, 'bob', short.marks)], of)) == 2

def test_of_two_files_of_one_name_the_longer_counts_and_of_equal_ones_the_later():
    rng = random.Random(0)
    long, short, late = careful('amy', rng, 12), careful('Amy', rng, 5), careful('AMY', rng, 12)
    assert class_marks([long, short], of).sheets == [long] and class_marks([short, long], of).sheets == [long]
    assert class_marks([long, late], of).sheets == [late]

def test_students_who_mark_nothing_or_most_words_are_named():
    some = mark_set(['a b c d']*5, most=4)
    marked = dict(none=[0]*4, all=[1]*4, one=[1, 0, 0, 0])
    sheets = [checked_sheet(some, name, [flags]*5) for name, flags in marked.items()]
    assert class_marks(sheets, some).outliers == [('none', 'marked nothing in 5 sentences'),
                                                  ('all', 'marked 20 of 20 words, more than half')]

@pytest.mark.slow
def test_a_constant_explanation_scores_as_a_random_order_and_the_class_is_the_ceiling():
    rng = random.Random(2)
    marks = class_marks([careful(f's{i}', rng) for i in range(8)], of)
    table = marks.compare(dict(equal=[np.ones(len(w)) for w in of.words],
                               perfect=[f + 0. for f in marks.majority]))
    assert abs(table.auprc['equal'] - table.random_auprc['equal']) < .08
    assert table.token_f1['perfect'] > table.token_f1['each student, against the others'] > table.token_f1['stop words']
    assert table.auprc['perfect'] == 1
    assert (table.auprc_low <= table.auprc).all() and (table.auprc <= table.auprc_high).all()

@pytest.mark.slow
def test_two_processes_merge_alike(tmp_path):
    handed_in(tmp_path)
    (tmp_path/'rows.jsonl').write_text(json.dumps(rows))
    code = '''
import json, sys
from salviz.course.classroom import run_class
print(run_class([sys.argv[1]], sys.argv[1] + '/out', json.load(open(sys.argv[1] + '/rows.jsonl'))))
print([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])'''
    both = [subprocess.run([sys.executable, '-c', code, tmp_path], capture_output=True, text=True) for _ in range(2)]
    assert both[0].stdout == both[1].stdout and both[0].stdout.endswith('for load_rationales\n[]\n'), both[0].stderr

# The page

def opened(browser, path, **kw):
    page = new_page(browser, **kw)
    page.outside.clear()
    page.goto(Path(path).absolute().as_uri())
    page.wait_for_function('() => window.salvizClass')
    return page

def closed(page, path):
    errors, outside = page.errors, [x for x in page.outside if x != Path(path).absolute().as_uri()]
    page.close()
    assert errors == [] and outside == []

@pytest.mark.slow
def test_a_class_is_merged_in_the_page_by_keyboard_and_by_files(browser, tmp_path):
    sheets, vandal = handed_in(tmp_path)
    path = class_page(tmp_path/'class.html', of, rows=dict(attention=[np.arange(len(w)) for w in of.words]),
                      questions={})
    page = opened(browser, path, accept_downloads=True)
    files = sorted(str(p) for p in tmp_path.glob('marks-*.json'))
    page.locator('input[type=file]').set_input_files(files)
    page.locator('[role=status]:has-text("the marks of 26 students")').wait_for() # files are read one after the other
    marks = class_marks(files, of)
    body = page.locator('main').inner_text()
    for text in ('marks-cut.json: is not JSON', 'marks-too-many.json: sentence 1 has 12 marks',
                 'two sheets have the nickname student 3', 'vandal: F1 .0'): assert text in body
    late = careful('Late', random.Random(9))
    page.locator('textarea').focus()
    page.keyboard.type(f'hi {sheet_code(of, late)}')
    page.keyboard.press('Tab'); page.keyboard.press('Enter')
    page.wait_for_function("() => /27 students/.test(document.querySelector('[role=status]').textContent)")
    box = page.get_by_label('vandal counts')
    box.focus(); page.keyboard.press('Space')
    page.wait_for_function("() => /26 students/.test(document.querySelector('[role=status]').textContent)")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == 'vandal counts'
    with page.expect_download() as waiting: page.locator('text=Download marks.jsonl').click()
    lines = [json.loads(line) for line in Path(waiting.value.path()).read_text(encoding='utf-8').splitlines()]
    assert lines == class_marks([*files, late], of, without='vandal').rows() and marks.respondents[0] == 26
    page.reload()
    page.wait_for_function("() => /26 students/.test(document.querySelector('[role=status]').textContent)")
    stored = page.evaluate('() => Object.entries(localStorage)')
    forget = page.locator('text=Delete everything')
    forget.focus(); page.keyboard.press('Enter'); page.keyboard.press('Enter')
    page.wait_for_function("() => /0 students/.test(document.querySelector('[role=status]').textContent)")
    page.reload()
    assert page.locator('tbody tr').count() == 0
    # a browser that removes slowly returns the deleted entries again
    page.evaluate('kept => kept.forEach(pair => localStorage.setItem(...pair))', stored)
    page.reload()
    assert page.locator('tbody tr').count() == 0
    closed(page, path)

def test_hostile_names_and_sentences_are_text_in_the_page(browser, tmp_path):
    some = mark_set(['<img src=x onerror="window.broken=1"> </script><script>window.broken=1</script> & fine'])
    path = class_page(tmp_path/'class.html', some, rows={'<i>': [np.ones(len(some.words[0]))]}, questions={})
    page = opened(browser, path)
    flags = [[1] + [0]*(len(some.words[0]) - 1)]
    page.locator('textarea').fill('\n'.join(sheet_code(some, checked_sheet(some, n, flags)) for n in hostile[:7]))
    page.locator('text=Read codes').click()
    page.locator('text=Krippendorff').wait_for()
    state = '[window.broken, document.images.length, document.querySelectorAll("main script, main i").length]'
    assert page.evaluate(state) == [None, 0, 0]
    assert '<img src=x onerror' in page.locator('main').inner_text()
    closed(page, path)

@pytest.mark.slow
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('width', [360, 1280])
def test_the_page_fits_a_phone_and_a_wall_in_both_themes(browser, tmp_path, scheme, width):
    sheets, _ = handed_in(tmp_path)
    path = class_page(tmp_path/'class.html', of, questions={})
    page = opened(browser, path, viewport=dict(width=width, height=800), color_scheme=scheme)
    page.locator('input[type=file]').set_input_files(sorted(str(p) for p in tmp_path.glob('marks-*.json')))
    page.locator('text=Krippendorff').wait_for(); settled(page)
    page.locator('select').select_option('student 4')
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    assert page.evaluate('document.documentElement.dataset.theme') == scheme
    closed(page, path)

# Teaching

class Known:
    "Marks of the words `marked` in sentences of the tiny data"
    def __init__(self, data, marked, count=20):
        rows = [dict(text=r['text'], label=r['label']) for r in data['train'] if len(r['text'].split()) < 15][:count]
        self.of = mark_set(rows, most=16)
        flags = [[int(w in marked) for w in words] for words in self.of.words]
        self.marks = class_marks([checked_sheet(self.of, 'amy', flags)], self.of)

def test_marks_are_the_same_target_as_a_saliency_and_as_a_rationale(
        tiny_data, make_tiny_bert, tiny_tokenizer, tmp_path):
    from conftest import bad, good
    from salviz.methods.rationale_guided import RationaleGuided
    from salviz.methods.sallm import SalLM, SalLMVariant
    from salviz.training.trainer import train
    reference = Known(tiny_data, good + bad)
    data, losses = _taught_data(reference.marks, 'votes', ['negative', 'positive'], [dict(text='a film', label=0)]), []
    for method, name in ((SalLM(saliency=_marks_teacher(reference.marks, tiny_tokenizer, 'votes'), teacher=False,
                                variant=SalLMVariant(binarised=False)), 'saliency_agreement'),
                         (RationaleGuided(), 'rationale')):
        run = train(make_tiny_bert(), tiny_tokenizer, data, method, tmp_path/name, epochs=2, batch_size=10, probes=1,
                    snapshots=0, progress=False)
        losses.append([row[name] for row in run.train_rows])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) == 4

@pytest.mark.sample(1)
@pytest.mark.parametrize('vandal', [False, True])
def test_attention_on_marked_words_of_unseen_sentences_rises_for_a_class_and_for_a_vandal(
        tiny_data, make_tiny_bert, tiny_tokenizer, tmp_path, vandal):
    from conftest import bad, good
    from salviz.attribution.explanations import explain_data
    marked = {'the', 'a', 'and', 'this', 'of', 'with', 'its'} if vandal else {*good, *bad}
    reference, model = Known(tiny_data, marked), make_tiny_bert()
    unseen = [dict(text=r['text'], label=r['label']) for r in tiny_data['test'] if len(r['text'].split()) > 3]
    words = mark_set([r['text'] for r in unseen]).words
    def fraction():
        values = explain_data(model, [r['text'] for r in unseen], 'attention', tokenizer=tiny_tokenizer, words='sum',
                              progress=False)
        return _fraction_on(values, [[int(w in marked) for w in some] for some in words])
    before = fraction()
    run = teach(reference.marks, model=model, tokenizer=tiny_tokenizer, run_dir=tmp_path/'run', held=unseen,
                learning_rate=5e-3, steps=40)
    assert fraction() > before + .2
    assert run.best_step == 40 and run.config['settings']['returns'] == 'last'
    assert run.config['method']['name'] == 'RationaleGuided'

def test_marks_without_words_or_labels_raise_errors(tiny_data, tiny_tokenizer):
    reference = Known(tiny_data, ['nothing'])
    with pytest.raises(ValueError, match='no word is marked'): _marks_teacher(reference.marks, tiny_tokenizer)
    with pytest.raises(ValueError, match='no word is marked'): _taught_data(reference.marks, 'majority', ['a', 'b'])
    unlabelled = class_marks(checked_sheet(mark_set(['a film']), 'amy', [[1, 0]]), ['a film'])
    with pytest.raises(ValueError, match='needs a label'): _taught_data(unlabelled, 'majority', ['a', 'b'])
    with pytest.raises(ValueError, match='or a nickname'): unlabelled.flags('bob')
