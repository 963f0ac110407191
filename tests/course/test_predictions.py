"""Predictions in Python: scores, stored answers, changes by a page or another person, and the truth, which stays in the
kernel until an answer is committed."""
import contextlib
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kendalltau

from salviz.core.text import find_words
from salviz.course import predictions, session
from salviz.course.kinds import (Query, answer_of, checked_value, choice, head, number, order, score, slope, truth_of,
                                 truth_text, value_text, words)
from salviz.course.predictions import Answers, Predict, Reveal, _page_parts, answers
from salviz.course.session import (answer_code, answers_file, answers_of_code, checked_entry, class_answers, commit,
                                   discuss, new_entry, read_answers, record, reveal, write_answers)

film = 'the film is not bad , but it never surprises .'
cases = json.loads((Path(__file__).parent/'score_cases.json').read_text(encoding='utf-8'))
every_kind = dict(words=words(film), head=head(6, 12), choice=choice('up', 'down'), order=order('a', 'b', 'c'),
                  number=number(0, 1), slope=slope(.2))
some_answer = dict(words=[4, 8], head=[1, 8], choice=1, order=[2, 0, 1], number=.3, slope=.5)
some_truth = dict(words=[1, 8], head=(0, 2), choice=0, order=['a', 'b', 'c'], number=.5, slope=(.4, .6))

@pytest.fixture(autouse=True)
def fresh():
    "Start with a session without predictions"
    def clear():
        session.entries.clear()
        predictions._session.predictions.clear()
        predictions._listeners.clear()
        predictions._session.__dict__.update(on_file={}, classmates={}, writing=None)
    clear()
    yield
    clear()

# --- scores

@pytest.mark.parametrize('case', cases, ids=lambda case: f'{case["asked"]["kind"]} {case["value"]} {case["truth"]}')
def test_the_table_of_cases_is_right(case):
    query = Query(**case['asked'])
    assert checked_value(query, case['value']) == case['value']
    given = score(query, case['value'], case['truth'])
    assert given is None if case['score'] is None else given == pytest.approx(case['score'], abs=1e-12)
    if case['text']: assert value_text(query, case['value']) == case['text']
    if case['true']: assert truth_text(query, case['truth']) == case['true']

def test_an_order_without_ties_scores_kendalls_tau():
    rng = np.random.default_rng(0)
    for n in (2, 3, 7):
        query = order(*(f'item {i}' for i in range(n)))
        for _ in range(20):
            values = rng.permutation(n) + rng.uniform(-.4, .4, n)
            mine = [int(i) for i in rng.permutation(n)]
            places = np.empty(n)
            places[mine] = np.arange(n, 0, -1)
            truth = truth_of(query, dict(zip(query.options['items'], values)))
            assert score(query, mine, truth) == pytest.approx(kendalltau(places, values).statistic)

def test_with_ties_exactly_the_distinguished_pairs_count():
    rng, query = np.random.default_rng(1), order(*'abcdef')
    for _ in range(50):
        middle, half = rng.uniform(0, 1, 6), rng.uniform(0, .3, 6)
        truth = truth_of(query, {item: (m - h, m + h) for item, m, h in zip('abcdef', middle, half)})
        mine = [int(i) for i in rng.permutation(6)]
        right = wrong = 0
        for before, after in combinations(mine, 2):
            if middle[before] - half[before] > middle[after] + half[after]: right += 1
            if middle[before] + half[before] < middle[after] - half[after]: wrong += 1
        expected = (right - wrong)/(right + wrong) if right + wrong else None
        assert score(query, mine, truth) == (expected if expected is None else pytest.approx(expected))

def test_words_are_those_of_find_words():
    for text in (film, "don't (stop) !", '日本の映画', 'a 1,000.50 🙂 end', 'x'*300):
        spans = find_words(text)
        assert words(text, most=1).options['words'] == [text[start:end] for start, end in spans]

def test_the_truth_of_an_array_of_heads_is_its_five_best_without_nan():
    values = np.full((2, 4), np.nan)
    values[0, 1], values[1, 3], values[1, 0] = .3, .9, .5
    assert truth_of(head(2, 4), values) == [[1, 3, .9], [1, 0, .5], [0, 1, .3]]
    assert len(truth_of(head(6, 12), np.random.default_rng(0).random((6, 12)))) == 5
    assert truth_of(head(6, 12), [(0, 2), (1, 8)]) == [[0, 2, None], [1, 8, None]]

# --- argument validation

@pytest.mark.parametrize('make, message', [
    (lambda: words(' '), 'sentence must be a string with at least one word'),
    (lambda: words('one two', most=0), 'most must be an integer from 1 to 2, got 0'),
    (lambda: head(0, 12), 'layers must be an integer'),
    (lambda: head(6, True), 'heads must be an integer'),
    (lambda: choice('one'), 'options must be at least 2 distinct non-empty texts'),
    (lambda: order('a', 3), 'items must be at least 2 distinct non-empty texts'),
    (lambda: number(1, 1), 'low must be below high'),
    (lambda: number(0, float('nan')), 'high must be a finite number'),
    (lambda: number(0, 1, step=2), 'step must be above 0'),
    (lambda: number(0, 1, unit=3), 'unit must be a string'),
    (lambda: slope(-1), 'start must be from 0 to 1'),
    (lambda: slope(.5, same=-1), 'near and same must not be negative'),
    (lambda: truth_of(number(0, 1), (.5, .2)), 'an interval needs low <= high'),
    (lambda: truth_of(words('so and so'), ['so']), 'occurs 2 times, at the indices 0, 2; pass one of them'),
    (lambda: Predict('1.x', 'Which?', 'words'), '`kind` must be created with words, head'),
    (lambda: Predict('', 'Which?', words(film)), '`name` must be a non-empty string'),
    (lambda: Predict('1.x', 'Which?', words(film), truth='best'), "'best' is not one of"),
    (lambda: Reveal('1.x'), '`content` is missing'),
    (lambda: Reveal(content='x'), 'Reveal: pass the names of predictions'),
    (lambda: answers('../x'), 'nickname must be 1 to 24 letters'),
    (lambda: _page_parts(object()), 'a page can show texts, figures')])
def test_invalid_arguments_raise_clear_errors(make, message):
    with pytest.raises(ValueError, match=message.replace('(', r'\(').replace('.', r'\.').replace("'", "'")): make()

@pytest.mark.parametrize('kind', every_kind)
@pytest.mark.parametrize('wrong', [None, 'x', [], [99], [-1], [1.5], [[1]], {}, True, 1e9, float('nan'),
                                   [0, 1, 2, 3, 4, 5], [0, 12], [2, 2, 2], '__proto__'])
def test_every_kind_rejects_invalid_answers(kind, wrong):
    with pytest.raises(ValueError, match='the answer must be'): checked_value(every_kind[kind], wrong)

# --- stored answers

def test_a_first_answer_stays_and_a_second_comes_after_it():
    one = Predict('1.words', 'Which?', words(film), ['never', 'film'])
    one.commit(['bad', 'never'], 'sure', 'strong')
    with pytest.raises(ValueError, match='its first answer cannot change'): one.commit(['film'])
    one.discuss(['film', 'never'])
    with pytest.raises(ValueError, match='a second answer must come after the first'): one.discuss(['film'])
    assert one.outcome is None and 'scores' not in session.entries['1.words']
    one.reveal()
    assert one.scores() == [.5, 1] == session.entries['1.words']['scores']
    assert one.answer['first']['why'] == 'strong' and one.answer['second']['value'] == [1, 8]

@pytest.mark.parametrize('change', [
    dict(first=None, state='open'), dict(state='open'), dict(state='won'), dict(kind='head'), {'first': 3},
    dict(first=dict(value=[0], confidence='sure', why='', time='')),
    dict(second=dict(value=[99], confidence='sure', why='', time=''), state='discussed'),
    dict(second=dict(value=[1], confidence='certain', why='', time=''), state='discussed')])
def test_what_a_page_may_not_send_changes_nothing(change):
    one = Predict('1.words', 'Which?', words(film), ['never'])
    one.commit(['bad'], 'sure')
    before = dict(one.answer)
    one.answer = before | change
    assert one.answer == before == session.entries['1.words']

def test_after_the_reveal_nothing_is_answered_any_more():
    one = Predict('1.words', 'Which?', words(film), ['never'])
    one.reveal()
    assert one.answer['skipped']
    late = dict(value=[8], confidence='sure', why='', time='2026-01-01T00:00:00Z')
    one.answer = one.answer | dict(first=late, skipped=False)
    assert one.answer['first'] is None and one.answer['skipped']

def test_a_rerun_cell_restores_its_answer_and_another_question_starts_open():
    Predict('1.words', 'Which?', words(film)).commit(['bad'])
    assert Predict('1.words', 'Which?', words(film)).answer['first']['value'] == [4]
    assert Predict('1.words', 'Which two?', words(film)).answer['state'] == 'open'

# --- the truth

@pytest.mark.parametrize('kind', every_kind)
def test_the_truth_is_in_nothing_that_reaches_the_browser_before_it_is_revealed(kind):
    one = Predict('1.x', 'What?', every_kind[kind], some_truth[kind])
    printed = []
    one.observe(lambda change: printed.append(change['new']), 'outcome')
    one.commit(some_answer[kind])
    sent = {name: x for name, x in one.get_state().items() if not name.startswith('_')}
    assert sent['outcome'] is None and printed == [] and 'truth' not in json.dumps(sent, default=str)
    one.reveal()
    assert printed[0]['truth'] == truth_of(every_kind[kind], some_truth[kind])

def test_a_truth_that_is_computed_is_computed_once_and_only_when_it_is_shown():
    calls = []
    one = Predict('1.x', 'Which?', words(film), lambda: calls.append(1) or ['never'])
    one.commit(['bad'])
    assert calls == []
    one.reveal()
    one.page_html()
    assert calls == [1] and one.scores() == [0, None]

def test_a_failing_truth_is_reported_and_the_answer_stays_recorded():
    one = Predict('1.x', 'Which?', words(film), lambda: 1/0)
    one.commit(['bad'])
    one.reveal()
    assert 'division by zero' in one.outcome['error'] and one.scores() == [None, None]
    assert session.entries['1.x']['state'] == 'revealed'

def test_content_is_computed_after_the_predictions_are_committed():
    result = []
    one, two = (Predict(f'1.{name}', 'Which?', words(film), ['never']) for name in 'ab')
    seen = Reveal('1.a', '1.b', lambda: result.append(1) or ['a text', 'another'])
    assert seen.gate.state['waiting'] == ['1.a', '1.b'] and len(seen.children) == 1
    one.commit(['bad'])
    seen._wished(dict(wish='open'))
    assert result == [] and seen.gate.state['waiting'] == ['1.b']
    two.commit(['bad'])
    seen._wished(dict(wish='open'))
    assert result == [1] and len(seen.children) == 3 and one.outcome['truth'] == [8]
    seen._wished(dict(wish='anyway'))
    assert result == [1]

def test_showing_anyway_records_unanswered_predictions_as_skipped():
    one, two = (Predict(f'1.{name}', 'Which?', words(film), ['never']) for name in 'ab')
    one.commit(['bad'])
    Reveal('1.a', '1.b', content='It.')._wished(dict(wish='anyway'))
    assert [p.answer['skipped'] for p in (one, two)] == [False, True]

def test_a_failing_reveal_shows_its_error():
    Predict('1.a', 'Which?', words(film)).commit(['bad'])
    seen = Reveal('1.a', lambda: 1/0)
    seen.show()
    assert 'division by zero' in seen.gate.state['error']

def test_text_in_a_reveal_is_text():
    Predict('1.a', 'Which?', words(film)).commit(['bad'])
    seen = Reveal('1.a', content='<img src=x onerror=alert(1)>')
    seen.show()
    assert '<img' not in json.dumps(seen.children[1].outputs)

def test_an_unchanged_nickname_gives_a_warning(tmp_path):
    assert 'Replace your-nickname with a nickname' in answers('your-nickname', tmp_path).note
    assert 'Replace your-nickname' not in answers('alice', tmp_path).note

def test_prose_of_a_reveal_is_markdown_of_a_notebook():
    seen = Reveal('1.a', content='One.\n\n*Two*, where 1 < 2.')
    seen.show(anyway=True)
    assert seen.children[1].outputs[0]['data']['text/markdown'] == 'One.\n\n*Two*, where 1 < 2.'

# --- files and codes

def test_answers_stay_in_their_folder_when_a_cell_goes_to_another(tmp_path):
    one = Predict('1.words', 'Which?', words(film), ['never'])
    (tmp_path/'elsewhere').mkdir()
    with contextlib.chdir(tmp_path):
        answers('alice')
        with contextlib.chdir('elsewhere'): one.commit(['bad'])
    stored = json.loads((tmp_path/'answers-alice.json').read_text())
    assert '1.words' in stored['entries'] and not list((tmp_path/'elsewhere').iterdir())

def test_answers_are_read_back_after_the_end_of_a_kernel(tmp_path):
    Predict('1.words', 'Which?', words(film), ['never']).commit(['bad'], 'guess', 'why not')
    answers('alice', tmp_path)
    record('1.region', 'check', dict(passed=True))
    session.entries.clear()
    predictions._session.__dict__.update(predictions={}, on_file={}, writing=None)
    one = Predict('1.words', 'Which?', words(film), ['never'])
    shown = answers('alice', tmp_path)
    assert one.answer['first']['why'] == 'why not' and 'Restored: 1.words' in shown.note
    later = Predict('1.other', 'Which?', words(film), ['never'])
    later.commit(['film'])
    assert set(read_answers(tmp_path/'answers-alice.json')['entries']) == {'1.words', '1.region', '1.other'}

def test_a_prediction_created_after_answers_restores_the_file(tmp_path):
    Predict('1.words', 'Which?', words(film), ['never']).commit(['bad'])
    answers('alice', tmp_path)
    session.entries.clear()
    predictions._session.__dict__.update(predictions={}, on_file={}, writing=None)
    answers('alice', tmp_path)
    assert Predict('1.words', 'Which?', words(film), ['never']).answer['state'] == 'committed'

def test_the_file_of_another_person_is_not_overwritten_and_reported(tmp_path):
    theirs = commit(new_entry(words(film), 'aa'), [1])
    theirs['first']['time'] = '2026-01-01T00:00:00Z'
    path = write_answers('alice', tmp_path, {'1.words': theirs})
    before = path.read_bytes()
    Predict('1.words', 'Which?', words(film)).commit(['bad'])
    shown = answers('alice', tmp_path)
    assert path.read_bytes() == before and (tmp_path/'answers-alice-2.json').exists()
    assert "answers-alice.json contains another person's answers and was not changed" in shown.note

@pytest.mark.parametrize('content', ['', '{', '[]', '{"salviz": "marks"}', '{"salviz": "answers", "version": 2}',
                                     '{"salviz": "answers", "version": 1, "nickname": "a b", "entries": {}}',
                                     '{"salviz": "answers", "version": 1, "nickname": "a", "entries": [1]}'])
def test_a_file_that_is_none_of_ours_is_named_and_never_overwritten(tmp_path, content):
    path = tmp_path/'answers-alice.json'
    path.write_text(content)
    with pytest.raises(ValueError, match='answers-alice.json'): read_answers(path)
    assert write_answers('alice', tmp_path, {}).name == 'answers-alice-2.json' and path.read_text() == content

@pytest.mark.parametrize('kind', every_kind)
def test_an_answer_survives_its_file_and_its_code(tmp_path, kind):
    query = every_kind[kind]
    entry = reveal(discuss(commit(new_entry(query, 'abc'), some_answer[kind], 'guess', 'x'), some_answer[kind], 'sure'))
    path = write_answers('bo-b_1', tmp_path, {'1.ü': entry})
    stored = read_answers(path)
    assert checked_entry(query, stored['entries']['1.ü'], 'abc') == entry and stored['lesson'] == '1'
    back = answers_of_code(answer_code(stored))
    assert back['nickname'] == 'bo-b_1' and back['set'] == stored['set']
    for which in ('first', 'second'):
        assert back['entries']['1.ü'][which]['value'] == some_answer[kind]
        assert back['entries']['1.ü'][which]['confidence'] == entry[which]['confidence']

def test_a_code_with_a_wrong_character_raises_an_error():
    code = answer_code(answers_file('alice', {'1.a': commit(new_entry(words(film), 'aa'), [4])}))
    for i, c in enumerate(code):
        other = code[:i] + ('A' if c != 'A' else 'B') + code[i + 1:]
        with pytest.raises(ValueError, match='code'): answers_of_code(other)
    for wrong in ('', 'x', code[:-1], code + '0', code.replace('SVA1', 'SVA2'), 3):
        with pytest.raises(ValueError, match='code'): answers_of_code(wrong)
    assert answers_of_code(f' {code[:20]}\n{code[20:]} ')['nickname'] == 'alice'

def test_class_answers_are_shown_only_for_the_same_question(tmp_path):
    one = Predict('1.words', 'Which?', words(film), ['never'])
    pupils = [answers_file(f'p{i}', {'1.words': commit(new_entry(words(film), one.id), [i])}) for i in range(4)]
    pupils.append(answers_file('old', {'1.words': commit(new_entry(words(film), 'older'), [9])}))
    assert class_answers(pupils)['1.words']['first'] == [[0], [1], [2], [3]]
    answers('alice', tmp_path, classmates=pupils)
    one.reveal()
    assert one.outcome['classmates']['first'] == [[0], [1], [2], [3]]
    (tmp_path/'answers-broken.json').write_text('{"salviz')
    with pytest.warns(UserWarning, match='answers-broken.json is not JSON'): class_answers(tmp_path)
    note = answers('alice', tmp_path, [tmp_path, *pupils]).note
    assert 'Problems in the files of the class: answers-broken.json is not JSON' in note
    with pytest.raises(ValueError, match='broken.json is not JSON'): class_answers(tmp_path/'answers-broken.json')

def test_a_name_is_of_one_kind():
    Predict('1.words', 'Which?', words(film)).commit(['bad'])
    with pytest.raises(ValueError, match='is already an entry of kind'): record('1.words', 'check', {})

# --- pages

hostile = ['</script><script>window.hit=1</script>', '<img src=x onerror=hit=2>', '"\'&lt;', '\u202e\u2028', '<!--']

def test_no_name_or_text_can_break_a_fragment():
    for text in hostile:
        result = Predict(text, text, choice(text, 'b'), text).page_html() + Reveal(text, content=text).page_html()
        result += Answers().page_html()
        assert result.count('<script') == result.count('</script>') == 5
        assert '<img' not in result and '<!--' not in result and result.isascii()

def test_a_fragment_contains_neither_truth_nor_reveal_as_text():
    result = Predict('1.x', 'Which?', choice('one', 'two'), 'two').page_html()
    assert '"truth"' not in result
    result = Reveal('1.x', content='the secret of the lesson').page_html()
    assert 'secret' not in result and json.loads(result.split('>')[2].split('<')[0])['names'] == ['1.x']

@pytest.mark.slow
def test_the_widgets_open_without_torch():
    code = ("import sys; from salviz.course import Predict, Reveal, answers, words; p = Predict('1.a', 'Which?', "
            "words('a b')); p.commit('a'); p.page_html(); Reveal('1.a', content='x').page_html(); "
            "print([k for k in ('torch', 'transformers', 'datasets') if k in sys.modules])")
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.strip() == '[]', done.stderr[-2000:]
