"""Exercises: correct functions of any form pass, wrong ones fail with an explanation, and a learner's function cannot
harm the notebook."""
import html
import math
import re
import time
import warnings

import numpy as np
import pytest

from browser import browser, page # noqa: F401
from salviz.course import checking, exercises, solutions
from salviz.course.checking import Case, judge
from salviz.course.exercises import check, hint

names = list(exercises._exercises)

@pytest.fixture(autouse=True)
def fresh(): # no exercise has been tried yet
    exercises._progress.clear()

# The same functions in another form: with loops, or with other steps.

def word_attention(snapshot):
    A = np.asarray(snapshot.at('attention'), float)
    row = sum(A[h][snapshot.info['pooled_row']] for h in range(len(A)))
    of = [sum(row[i] for i, w in enumerate(snapshot.word_ids) if w == k) for k in range(len(snapshot.words))]
    return [x/sum(of) for x in of]

def occlusion(predict, words):
    whole, gone = predict(words), []
    best = list(whole).index(max(whole))
    for i in range(len(words)):
        rest = list(words)
        del rest[i]
        gone.append(whole[best] - predict(rest)[best])
    return gone

def token_f1(chosen, marked):
    precision = (chosen & marked).sum()/max(1, chosen.sum())
    recall = (chosen & marked).sum()/max(1, marked.sum())
    return 0 if precision + recall == 0 else 2*precision*recall/(precision + recall)

def disagreements(values):
    kinds = np.unique(values[~np.isnan(values)])
    n_uc = np.array([(values == k).sum(0) for k in kinds]).T.astype(float)
    n_uc = n_uc[n_uc.sum(1) > 1]
    m, n = n_uc.sum(1), n_uc.sum()
    observed = ((m**2 - (n_uc**2).sum(1))/(m - 1)).sum()/n
    return [observed, (n**2 - (n_uc.sum(0)**2).sum())/(n*(n - 1))]

def saliency_target(saliency, is_special, top_share):
    ordinary = [i for i in range(len(saliency)) if not is_special[i]]
    k = max(1, math.ceil(round(top_share*len(ordinary), 9)))
    best = sorted(ordinary, key=lambda i: (-saliency[i], i))[:k]
    return [1/k if i in best else 0 for i in range(len(saliency))]

def attention_loss(attention, target, is_special):
    a, t = np.where(is_special, 0, attention), np.where(is_special, 0, target)
    a, t = a/a.sum(), t/t.sum()
    return sum(y*(math.log(y) - math.log(x)) for x, y in zip(a, t) if y > 0)

def marks_target(votes, word_ids):
    votes = votes[~np.isnan(votes).any(1)]
    if not len(votes): return [math.nan]*len(word_ids)
    return [0 if w < 0 else votes[:, w].mean() for w in word_ids]

def lowest_words(saliency, word_ids, share):
    sums = {}
    for s, w in zip(saliency.astype(float), word_ids): sums[w] = sums.get(w, 0) + s
    words = sorted((w for w in sums if w >= 0), key=lambda w: (sums[w], w))
    low = words[:int(share*len(words) + 1e-6)]
    return [int(w in low) for w in sorted(words)]

def replacement(words, low):
    last, replaced = next(w for w, is_low in zip(words, low) if not is_low), []
    for w, is_low in zip(words, low):
        last = last if is_low else w
        replaced.append(last)
    return replaced

def consistency(p, q): return sum(a*(math.log(a) - math.log(b)) for a, b in zip(p, q) if a)

def region(attribution, p):
    candidates = np.zeros(attribution.shape, bool)
    for i, row in enumerate(attribution):
        stored = int(np.floor(len(row)*(1 - p) + 1e-6))
        candidates[i] = [sum(other <= x for other in row) > stored for x in row]
    return candidates

def pattern_target(name, n):
    def cell(i, j):
        if name == 'first': return float(j == 0)
        neighbour = i + (1 if name == 'next' else -1)
        return float(j == neighbour) if 0 <= neighbour < n else 1/n
    return [[cell(i, j) for j in range(n)] for i in range(n)]

def guidance_loss(attention, patterns):
    total = 0
    for A in attention:
        for heads, P in patterns: total += np.mean([np.mean((A[h] - P)**2) for h in heads])
    return total

others = {name: globals()[name] for name in names}
wrong = {name: list(exercises._exercises[name].mistakes.items()) for name in names}
pairs = [pytest.param(name, i, id=f'{name}-{i}') for name in names for i in range(len(wrong[name]))]

@pytest.mark.sample(9)
@pytest.mark.parametrize('name', names)
def test_the_solution_and_another_right_form_pass(name):
    for answer in (getattr(solutions, name), others[name]):
        verdict = check(name, answer)
        assert verdict.passed and verdict.sentence.startswith('All '), verdict
        assert not verdict.mistake and not verdict.note

def as_type(x, kind):
    "Return `x` with its floating-point numbers in the precision `kind`"
    if isinstance(x, np.ndarray) and x.dtype.kind == 'f': return x.astype(kind)
    if isinstance(x, (list, tuple)): return type(x)(as_type(y, kind) for y in x)
    return x

@pytest.mark.parametrize('kind', [np.float32, np.float64])
@pytest.mark.parametrize('name', names)
def test_single_and_double_precision_are_both_right(name, kind):
    def answer(*args):
        value = getattr(solutions, name)(*(as_type(x, kind) for x in args))
        is_number = not isinstance(value, list) and np.asarray(value).dtype != bool
        return np.asarray(value, kind) if is_number else value
    assert check(name, answer).passed

@pytest.mark.parametrize('name', names)
def test_each_has_a_small_case_and_cases_of_several_sentences(name):
    exercise = exercises._exercise_named(name)
    hand, run = exercise.by_hand(), exercise.from_run()
    assert all(c.whose == 'example' and np.size(c.truth) <= 25 for c in hand)
    assert len({c.place for c in run}) > 1 and all(c.whose != 'example' for c in run)
    assert 1 <= exercise.difficulty <= 3 and exercise.minutes <= 15 and len(exercise.hints) == 2
    assert len(wrong[name]) >= 3

@pytest.mark.parametrize('name', names)
def test_a_stub_none_and_zeros_fail(name):
    def stub(*args): raise NotImplementedError
    def zeros(*args):
        truth = getattr(solutions, name)(*args)
        return [''] * len(truth) if isinstance(truth, list) else np.zeros(np.shape(truth))
    verdicts = [check(name, answer) for answer in (stub, None, lambda *args: None, zeros)]
    assert not any(v.passed for v in verdicts)
    assert verdicts[0].sentence == f'`{name}` is not written yet.'
    assert 'without brackets; got None' in verdicts[1].sentence
    assert 'returns None' in verdicts[2].sentence
    assert f'<code>{name}</code> is not written yet.' in verdicts[0]._repr_html_()
    if name != 'replacement': assert verdicts[3].mistake or verdicts[3].sentence

@pytest.mark.parametrize('name,i', pairs)
def test_a_known_mistake_fails_and_is_named(name, i):
    sentence, answer = wrong[name][i]
    verdict = check(name, answer)
    assert not verdict.passed and verdict.mistake == sentence, verdict
    assert verdict.case.whose == 'example' # which a student can follow on paper

def test_an_omitted_special_token_is_not_reported_as_a_wrong_sign():
    def forgets(votes, word_ids):
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return np.where(word_ids < 0, 0, np.nanmean(votes, 0)[word_ids])
    verdict = check('marks_target', forgets)
    assert verdict.case.place == 'nobody has seen the sentence'
    assert verdict.mistake.startswith('Nobody has seen this sentence, but its special tokens are 0')

@pytest.mark.parametrize('value,truth,message', [
    ([0., np.nan], [np.nan, np.nan], 'There is a number instead of NaN.'), ([0., 0.], [0., 0.], ''),
    ([0., np.nan], [0., np.nan], ''), ([1., np.nan], [-1., np.nan], 'The sign is wrong.'),
    ([.5, 1.], [.5, np.nan], 'There is a number instead of NaN.')])
def test_a_sign_is_blamed_only_where_a_number_has_one(value, truth, message):
    assert checking._common_mistake(np.array(value), np.array(truth)) == message

def test_where_there_are_ties_a_wrong_tie_rule_is_among_the_mistakes():
    for name in ('region', 'saliency_target', 'lowest_words'):
        assert any(sentence.startswith('Wrong rule for ties') for sentence, _ in wrong[name])

def by_hand_only(name, answer):
    "Return an answer that is right on the examples, as if memorised, and wrong on the run"
    reference = [(c.args, c.truth) for c in exercises._exercise_named(name).by_hand()]
    def learnt(*args):
        truth = next((t for a, t in reference if repr(a) == repr(args)), None)
        return answer(*args) if truth is None else truth
    return learnt

def test_an_answer_right_only_on_small_cases_fails_with_the_first_cell_named():
    verdict = check('region', by_hand_only('region', lambda A, p: A >= np.sort(A, -1)[:, -1:]))
    assert not verdict.passed and verdict.case.whose == 'the run'
    pattern = (r"In the run, layer 0, head 0, step \d+ of \".*\": \d+ of \d+ differ; the first is query '.*', "
               r"key '.*': yours is False, the run's is True\.")
    assert re.search(pattern, verdict.sentence), verdict
    verdict = check('consistency', by_hand_only('consistency', lambda p, q: 7.))
    assert re.search(r"Yours is 7, the run's is \d\.\d+", verdict.sentence)

def test_the_reference_is_the_recorded_value_whatever_the_method_name():
    for name, array in (('region', 'discard_candidates'), ('saliency_target', 'saliency_target')):
        cases = exercises._exercise_named(name).from_run()
        looks = exercises._snapshots(dict(region='ad-drop', saliency_target='sallm')[name])
        assert len(cases) and sum(np.size(c.truth) for c in cases) == sum(s.arrays[array].size for s in looks
                                                                         if array in s.arrays)
    for name in ('lowest_words', 'replacement', 'consistency', 'attention_loss', 'guidance_loss', 'pattern_target'):
        assert all(not checking.differs(answered(name, c), c.truth, c.tolerance)
                   for c in exercises._exercise_named(name).from_run())

def answered(name, case): return checking._answer_of(getattr(solutions, name)(*case.args), case.truth, name)

def test_alpha_of_krippendorffs_example_is_that_of_his_package():
    krippendorff = pytest.importorskip('krippendorff')
    for case in exercises._disagreement_hand() + exercises._disagreement_run():
        observed, expected = disagreements(*case.args)
        assert 1 - observed/expected == pytest.approx(krippendorff.alpha(case.args[0], level_of_measurement='nominal'))
    published = exercises._table(exercises._krippendorff)
    assert round(krippendorff.alpha(published, level_of_measurement='nominal'), 3) == .743

def test_stored_predictions_are_those_of_the_packaged_classifier():
    import torch
    from salviz.models.loading import load_classifier
    model, tokenizer = load_classifier('movie-minilm')
    model.eval()
    for sentence in exercises._measured:
        predict, words = exercises._predict_of(sentence), sentence.split()
        for rest in [words, *(words[:i] + words[i + 1:] for i in range(len(words)))]:
            with torch.no_grad(): logits = model(**tokenizer(' '.join(rest), return_tensors='pt')).logits[0].double()
            assert predict(rest) == pytest.approx(logits.softmax(-1).numpy(), abs=2e-3)

# Functions of a learner with errors, endless loops and side effects.

def ends_never(*args):
    while True: pass

def test_errors_timeouts_and_wrong_types_are_explained_in_one_sentence(monkeypatch):
    monkeypatch.setattr(checking, '_seconds_allowed', .3)
    class Odd:
        def __array__(self, *args, **kw): raise RuntimeError('no array')
        def __len__(self): raise RuntimeError('no length')
    def leaves(*args): raise SystemExit(3)
    def deep(*args): return deep(*args)
    cases = {ends_never: 'took longer than', leaves: 'raised SystemExit', deep: 'raised RecursionError',
             (lambda a: a): 'raised TypeError', (lambda a, p: a.foo): "has no attribute 'foo'",
             (lambda a, p: 1/0): 'raised ZeroDivisionError in its line', (lambda a, p: 'text'): 'returns a str of 4',
             (lambda a, p: [[1], [1, 2]]): 'must return numbers', (lambda a, p: Odd()): 'returns a Odd',
             (lambda a, p: {}): 'returns a dict', (lambda a, p: a[0]): 'returns [4]; it must return [4, 4]',
             (lambda a, p: 1j*a): 'must return numbers', (lambda a, p: region): 'a function, not its result',
             (lambda a, p: a > np.inf): 'Everything is False.',
             (lambda a, p: np.full((4, 4, 4), 1)): 'returns [4, 4, 4]'}
    for answer, part in cases.items():
        verdict = check('region', answer)
        assert not verdict.passed and part in repr(verdict), (part, verdict)
        assert '\n' not in repr(verdict) and verdict._repr_html_().startswith('<div')
    for value in (None, 3, 'region', np.zeros((4, 4)), [True]):
        assert 'Pass the function itself' in check('region', value).sentence

def test_a_loop_that_never_ends_is_ended_and_leaves_no_thread(monkeypatch):
    import threading
    monkeypatch.setattr(checking, '_seconds_allowed', .2)
    before = threading.active_count()
    check('region', ends_never)
    for _ in range(100):
        if threading.active_count() == before: break
        time.sleep(.05)
    assert threading.active_count() == before

def test_a_function_that_modifies_its_arguments_gets_a_note():
    def sorts(attribution, p):
        right = solutions.region(attribution, p)
        attribution.sort(-1)
        return right
    verdict = check('region', sorts)
    assert verdict.passed and verdict.note.startswith('It changes its arguments')
    assert check('region', solutions.region).note == ''
    def empties(snapshot):
        right = solutions.word_attention(snapshot)
        snapshot.arrays['attention'][:] = 0
        return right
    assert check('word_attention', empties).note and check('word_attention', solutions.word_attention).passed

def test_tensors_and_lists_are_answers_too():
    torch = pytest.importorskip('torch')
    def tensor(attribution, p): return torch.tensor(solutions.region(attribution, p))
    assert check('region', tensor).passed
    assert check('region', lambda a, p: solutions.region(a, p).astype(int).tolist()).passed
    def graph(p, q): return torch.tensor(solutions.consistency(p, q), requires_grad=True)
    assert check('consistency', graph).passed

# Hints.

def test_two_hints_then_the_solution_but_not_before_two_failed_checks():
    first, second, third = (hint('region') for _ in range(3))
    assert 'hint 1 of 2' in first.title and 'hint 2 of 2' in second.title and first.text != second.text
    assert not third.code and 'after two failed checks (0 so far)' in third.text
    check('region', lambda a, p: None)
    assert '(1 so far)' in hint('region').text
    check('region', lambda a, p: None)
    assert 'threshold = np.sort(attribution, -1)' in hint('region').code
    assert not hint('consistency').code

def test_the_solution_is_shown_after_passing():
    check('consistency', consistency)
    assert [bool(hint('consistency').code) for _ in range(3)] == [False, False, True]

@pytest.mark.parametrize('name', names)
def test_no_hint_is_the_solution_and_the_solution_as_shown_passes(name):
    exercise = exercises._exercise_named(name)
    for _ in range(2): check(name, None)
    code = [hint(name) for _ in range(3)][-1].code
    lines = [line.strip() for line in code.splitlines()[2:]]
    assert not {*lines} & {part for text in exercise.hints for part in re.split('[:;] ', text)}
    scope = dict(np=np, math=math)
    exec(code, scope)
    assert judge(exercise, scope[name]).passed

def test_an_unknown_exercise_raises_an_error_that_lists_all():
    for call in (lambda: check('regoin', region), lambda: hint('regoin'), lambda: check(None, region)):
        with pytest.raises(ValueError, match='unknown exercise .*; exercises: word_attention'): call()

# The picture.

hostile = ['<img src=x onerror=alert(1)>', '"quoted"', "a&b</svg><script>boom()</script>", '[SEP]']

def drawn_cases():
    flags = np.arange(16).reshape(4, 4) % 3 == 0
    axes = (('query', hostile), ('key', hostile))
    yield Case((), flags, 'x', axes), ~flags
    yield Case((), np.linspace(-1, 1, 16).reshape(4, 4), 'x', axes, 'example'), np.full((4, 4), np.nan)
    yield Case((), np.arange(4.), 'x', axes[:1]), np.arange(4.)[::-1]
    yield Case((), hostile, 'x', axes[:1]), hostile[::-1]
    yield Case((), 1.5, '<b>x</b>'), np.array(np.inf)
    forty = np.arange(40.)
    yield Case((), forty, 'x', (('word', [f'w{i}' for i in range(40)]),)), forty + (forty > 30)

def test_tokens_are_text_and_the_picture_has_a_text_alternative():
    for case, value in drawn_cases():
        picture = checking._drawn(case, value)
        assert not re.search('<(img|script|style|b>)|onerror="', picture.replace('&lt;', ''))
        if np.ndim(case.truth) == 2: assert len(re.findall('<svg role="img" aria-label="[^"]+"', picture)) == 3

def test_a_long_row_is_cut_to_what_surrounds_the_first_difference():
    *_, (case, value) = drawn_cases()
    picture = checking._drawn(case, value)
    assert picture.count('<tr') == 1 + checking._most_rows and '26 more rows.' in picture
    assert '>w31<' in picture and '>w0<' not in picture

shades = dict(light=('#fff', '#111'), dark=('#111', '#ddd'))

@pytest.mark.slow
@pytest.mark.parametrize('theme', shades)
@pytest.mark.parametrize('width', [360, 1280])
def test_checks_fit_a_narrow_and_a_wide_page_in_both_themes(page, theme, width, tmp_path): # noqa: F811
    ground, ink = shades[theme]
    parts = [v._repr_html_() for name in names for v in (check(name, wrong[name][0][1]), check(name, others[name]))]
    parts += [checking.framed('x', False, ['y'], checking._drawn(*pair)) for pair in drawn_cases()]
    parts += [hint('region')._repr_html_()]
    page.set_viewport_size(dict(width=width, height=800))
    page.set_content(f'<!doctype html><html lang="en"><title>checks</title><body style="margin:8px;background:{ground};'
                     f'color:{ink};font-family:sans-serif">{"".join(parts)}</body></html>')
    assert page.evaluate('document.documentElement.scrollWidth') <= width
    assert page.evaluate('''() => [...document.querySelectorAll('svg text, td, th, div')].every(
        el => getComputedStyle(el).color === getComputedStyle(document.body).color)''')
    assert page.locator('svg[role=img]').count() >= 12 and page.get_by_text('differ').count() > 5

def test_the_sentence_is_the_same_in_the_page_and_in_the_terminal():
    verdict = check('region', wrong['region'][0][1])
    text = html.unescape(re.sub('<svg.*?</svg>|<[^>]+>', ' ', verdict._repr_html_()))
    assert verdict.sentence in text and verdict.mistake in text

@pytest.mark.slow
def test_checks_are_recorded_among_the_answers():
    from salviz.course.session import entries
    check('region', wrong['region'][0][1])
    hint('region')
    check('region', region)
    entry = entries['7.region']
    assert entry['kind'] == 'check' and entry['passed']
    assert (entry['tries'], entry['failed'], entry['hints']) == (2, 1, 1)
    assert entry['mistakes'] == [wrong['region'][0][0]]
