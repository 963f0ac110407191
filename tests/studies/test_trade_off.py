"Trained fronts: continued after a kill, argument validation, and plausibility measured by human marks."
import runpy
import shutil
import textwrap
import types

import numpy as np
import pytest
from datasets import DatasetDict

import forked
from salviz.attribution.explanations import explain_data
from salviz.core.text import find_words
from salviz.data.texts import subset
from salviz.metrics.front import _between, front_of
from salviz.metrics.plausibility import plausibility
from salviz.methods import RationaleGuided
from salviz.models.corruption import small_model, train_tokenizer
from salviz.core.leases import Lease
from salviz.studies.study import Study, StudyOptions
from salviz.studies.trade_off import RationalePlausibility, _marked_words, pareto

sizes = dict(layers=1, heads=2, hidden=16, num_labels=2, initializer_range=.2)

# Read by this process and by one that will be killed; the measures differ even without training.
design = textwrap.dedent("""
    import datasets
    from salviz.methods import RationaleGuided
    from salviz.models.corruption import small_model, train_tokenizer
    from salviz.studies.study import Study, StudyOptions
    from salviz.studies.trade_off import pareto
    data = datasets.load_from_disk(home)
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    def bert(seed):
        model = small_model('classification', tokenizer, seed=seed, layers=1, heads=2, hidden=16, num_labels=2)
        return model, tokenizer
    def right(run): return .9 - .02*run.config['method']['args']['weight']**.7
    def plausible(run):
        weight = run.config['method']['args']['weight']
        return .2 + .5*weight/(1 + weight)
    def study(folder, weight=(0, .1, 10), better=dict(right='higher', plausible='higher'), extend=False, **kw):
        usual = dict(model=bert, data=data, methods=dict(guided=RationaleGuided), seeds=(0,), epochs=1,
                     measures=[right, plausible],
                     options=StudyOptions(better=better, extend=extend), settings=dict(weight=list(weight)),
                     batch_size=8, learning_rate=1e-3, snapshots=0, probes=1, progress=False)
        return Study(folder, **{**usual, **kw})
    def front(folder, **kw): return pareto(study(folder), 'right', 'plausible', **{**dict(start=3, budget=6), **kw})
    """)


@pytest.fixture(scope='module')
def data(tiny_data):
    small = subset(tiny_data, 8, validation_size=6, test_size=6)
    def marks(row, i):
        words = len(find_words(row['text']))
        return dict(rationale=None if i % 3 == 2 else [int(k % 2) for k in range(words)])
    return DatasetDict({split: part.map(marks, with_indices=True) for split, part in small.items()})


@pytest.fixture(scope='module')
def home(tmp_path_factory, data):
    home = tmp_path_factory.mktemp('front')
    data.save_to_disk(home/'data')
    return home


@pytest.fixture(scope='module')
def made(home):
    (home/'design.py').write_text(f'home = {str(home/"data")!r}\n{design}') # where the source of its measures is read
    return runpy.run_path(str(home/'design.py'))


@pytest.fixture(scope='module')
def whole(home, made): return made['front'](home/'whole')


@pytest.mark.slow
def test_values_are_even_first_and_then_fill_gaps_of_the_front(whole):
    assert whole.values[0] == 0 and {.1, 1, 10} <= set(whole.values) and len(whole.values) == 6
    right, plausible = (lambda w: .9 - .02*w**.7), (lambda w: .2 + .5*w/(1 + w))
    values = [0, .1, 1, 10]
    for _ in range(2): # manually: the pair farthest apart, both measures from 0 to 1 over the front
        at = np.array([[right(w), plausible(w)] for w in values])
        at = (at - at.min(0))/np.ptp(at, axis=0)
        k = int(np.argmax(np.hypot(*np.diff(at, axis=0).T)))
        values = sorted([*values, _between(values[k], values[k + 1])])
    assert whole.values == values


@pytest.mark.slow
def test_killed_front_continues_and_trains_nothing_twice(home, made, whole, tmp_path):
    code = textwrap.dedent(f"""
        import os, runpy, signal
        from salviz.studies.study import Study
        grow, times = Study.grow, []
        def growing(self, **more):
            grow(self, **more)
            times.append(0)
            if len(times) == 2: os.kill(os.getpid(), signal.SIGKILL) # a value is laid and not trained
        Study.grow = growing
        runpy.run_path({str(home/'design.py')!r})['front']({str(tmp_path/'killed')!r})""")
    forked.run(code)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob('killed/runs/*/summary.json')}
    assert len(before) == 4
    again = made['front'](tmp_path/'killed')
    assert again.values == whole.values and again.hypervolume == whole.hypervolume
    assert all(p.stat().st_mtime_ns == t for p, t in before.items())


@pytest.mark.slow
def test_next_value_waits_for_all_trials(made, tmp_path, monkeypatch):
    def fails_at(weight, layers=(0,)):
        if weight == 1: raise ValueError('no such luck')
        return RationaleGuided(weight=weight)
    study = made['study'](tmp_path/'failing', methods=dict(guided=fails_at))
    with pytest.warns(UserWarning, match='1 of 4 trials failed'), \
            pytest.raises(RuntimeError, match='missing for 1 of 4 runs; .* guided.weight=1.0?.seed=0 .*luck'):
        pareto(study, 'right', 'plausible', start=3, budget=5)
    assert len(study.settings['weight']) == 4


@pytest.mark.slow
def test_next_value_waits_for_measures_of_another_process(home, made, whole, tmp_path):
    shutil.copytree(home/'whole', tmp_path/'busy')
    study = made['study'](tmp_path/'busy')
    cell = study.cells[-1]
    (tmp_path/'busy/cells'/f'{cell.name}.json').unlink() # trained, but not measured
    with Lease(tmp_path/"busy/locks"/cell.name), pytest.warns(UserWarning, match='another process'), \
            pytest.raises(RuntimeError, match='missing for 1 of 6 runs; the first is .* .not measured'):
        pareto(study, 'right', 'plausible', start=3, budget=7)
    assert len(study.settings['weight']) == 6


def test_study_does_not_overwrite_an_extension_by_another_process(made, tmp_path):
    first = made['study'](tmp_path/'study')
    first.grow(weight=[1.])
    made['study'](tmp_path/'study', seeds=(0, 1), extend=True).grow(weight=[3.])
    with pytest.raises(ValueError, match='design in .* has changed since .*: seeds changed from .0. to .0, 1.'):
        first.grow(weight=[5.])
    again = made['study'](tmp_path/'study', seeds=(0, 1))
    assert again.settings['weight'] == [0, .1, 10, 1., 3.] and len(again.cells) == 10
    made['study'](tmp_path/'study', seeds=(0, 1), weight=(0, .1, 10, 30), extend=True)
    with pytest.raises(ValueError, match='has changed since'): again.grow(weight=[7.])


def test_values_without_a_finished_run_are_named(home, made, whole, tmp_path):
    shutil.copytree(home/'whole', tmp_path/'failed')
    study = made['study'](tmp_path/'failed')
    shutil.rmtree(next(tmp_path.glob('failed/runs/*weight=10.seed=0')))
    for opened in (study, Study.open(tmp_path/'failed')):
        front = front_of(opened, 'right', 'plausible')
        assert front.left_out == (10,) and 'weight = 10.' in ' '.join(front.sentences)


def test_plausibility_truncates_texts_like_the_run(data):
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    model = small_model('classification', tokenizer, seed=0, **sizes)
    measure, seen = RationalePlausibility('input_x_gradient', splits=['test']), []
    for length in (None, 5):
        encoded, flags = _marked_words(model, tokenizer, data['test'], length)
        assert (max(encoded['length']) == 5) == (length == 5)
        run = types.SimpleNamespace(config=dict(settings=dict(max_length=length)))
        seen.append(measure(model, tokenizer, data, run))
    assert seen[0] == measure(model, tokenizer, data) != seen[1]


def test_plausibility_of_constant_attributions_is_nan(data):
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    model = small_model('classification', tokenizer, seed=0, **sizes)
    model.classifier.weight.data.zero_() # its prediction does not depend on the input
    scores = RationalePlausibility('input_x_gradient', splits=['test'])(model, tokenizer, data)
    assert list(scores) == ['test_token_f1', 'test_auprc'] and np.isnan(list(scores.values())).all()


def test_plausibility_of_a_run_equals_that_of_its_explanations(data):
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    model = small_model('classification', tokenizer, seed=0, **sizes)
    scores = RationalePlausibility('input_x_gradient', splits=['test'])(model, tokenizer, data)
    kept = [i for i, r in enumerate(data['test']['rationale']) if r is not None]
    part = data['test'].select(kept)
    values = explain_data(model, part, 'input_x_gradient', tokenizer=tokenizer, words='sum', progress=False)
    expected = plausibility(values, part['rationale'])
    assert scores == dict(test_token_f1=expected['token_f1'], test_auprc=expected['auprc'])
    encoded, flags = _marked_words(model, tokenizer, data['test'])
    assert [f.astype(int).tolist() for f in flags] == part['rationale'] and len(encoded) == len(kept)


def test_fractions_of_annotators_and_spans_mark_the_words_of_the_majority(data):
    tokenizer = train_tokenizer(data['train']['text'], vocab_size=90)
    model = small_model('classification', tokenizer, seed=0, **sizes)
    text = data['test']['text'][0]
    first, second = find_words(text)[:2]
    one = data['test'].select([0]).remove_columns('rationale')
    shares = [.75, .25, *[0.]*(len(find_words(text)) - 2)]
    for rationale in (shares, [[first[0], first[1]]]):
        (flags,) = _marked_words(model, tokenizer, one.add_column('rationale', [rationale]))[1]
        assert flags.tolist() == [True, *[False]*(len(flags) - 1)]


@pytest.mark.parametrize('kw, match', [
    (dict(setting='p'), "has no setting 'p'; available: .*create it with settings=dict"),
    (dict(x='accuracy'), "does not measure 'accuracy'; it measures right, plausible"),
    (dict(budget=3), 'budget=3 is less than the 4 values'),
    (dict(budget=True), 'budget must be an integer of at least 3'),
    (dict(start=1), 'start must be an integer of at least 2'),
    (dict(scale='square'), 'scale must be'),
    (dict(colour='red'), 'no option colour; available: reference, confidence, better'),
    (dict(y='right'), 'pass two metrics'),
    (dict(better=dict(right='lower')), 'pass the reference point of the hypervolume'),
    (dict(reference=(0, 'a')), 'reference must be a point'),
    (dict(confidence=95), 'confidence must be between 0 and 1'),
    (dict(measures=dict(right='test_accuracy', test_right='test_accuracy'), y='test_right'),
     'selected on the validation split'),
    (dict(measures=dict(right='test_accuracy', plausible='gap'), better={}), 'whether a higher or lower right is'),
])
def test_invalid_arguments_of_pareto_raise_before_training(made, tmp_path, kw, match):
    of_study = {k: kw[k] for k in ('measures', 'better') if 'measures' in kw and k in kw}
    study = made['study'](tmp_path/'study', **({'better': {}, **of_study} if of_study else {}))
    kw = {k: x for k, x in kw.items() if k not in of_study}
    with pytest.raises(ValueError, match=match):
        pareto(study, **{**dict(x='right', y='plausible', start=3, budget=6), **kw})
    assert not list(tmp_path.glob('study/runs/*'))


@pytest.mark.parametrize('kw, match', [
    (dict(weight=[1]), 'must contain two different values above 0'),
    (dict(weight=[0, 1]), 'must contain two different values above 0'),
    (dict(settings=dict(weight=[0, 1, 2], per_head=[True, False])), 'the study also varies per_head'),
    (dict(methods=dict(a=RationaleGuided, b=RationaleGuided(layers=(0,)))), 'several methods take weight .a, b.'),
])
def test_study_without_a_front_raises_before_training(made, tmp_path, kw, match):
    study = made['study'](tmp_path/'study', **kw)
    with pytest.raises(ValueError, match=match): pareto(study, 'right', 'plausible', start=3, budget=6)
    assert not list(tmp_path.glob('study/runs/*'))


def test_opened_study_has_a_front_but_is_not_trained(home, whole):
    opened = Study.open(home/'whole')
    assert front_of(opened, 'right', 'plausible').values == whole.values
    with pytest.raises(ValueError, match='for a study from Study.open, use front_of'):
        pareto(opened, 'right', 'plausible')
