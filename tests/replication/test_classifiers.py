"Studies of classifiers: every condition of every budget exists and trains, and pairs share their rows."
import datasets
import numpy as np
import pytest

from salviz.replication import classifiers
from salviz.replication.plans import plans
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.nets import small_net

names = 'AD', 'AD64', 'PRIOR', 'GRID', 'SALLM', 'TEXT', 'DIGITS', 'CIFAR'
budgets = [(name, budget) for name in names for budget in plans[name].sizes]
texts = [f'the {a} film was {b} and {c}' for a in ('old', 'new') for b in ('good', 'bad', 'long')
         for c in ('loud', 'dull')]
shared = {'test_score', 'test_accuracy', 'validation_score', 'majority', 'confidence', 'seconds', 'steps'}
areas = [f'drop_{way}_{what}' for way in ('gradient', 'IG', 'SmoothGrad', 'DeepLIFT', 'GradientSHAP')
         for what in ('area', 'below', 'at_5', 'at_50')]
faithful = [f'faithfulness_{way}_{what}{end}' for way, end in (('gradient', ''), ('IG', ''), ('random', ''),
            ('gradient', '_above'), ('IG', '_above')) for what in ('comprehensiveness', 'sufficiency')]
columns = dict(AD={'last_validation_loss', 'best_validation_loss', 'train_loss', 'ood_mean'},
               AD64={'last_validation_loss', 'train_loss'}, GRID={'p', 'q'}, SALLM={'attention_kl'},
               PRIOR={'last_validation_loss', 'best_validation_loss', 'train_loss', 'train_curve_2',
                      'validation_curve_2'},
               TEXT={*faithful}, DIGITS={'small_gradients', 'drop_random_area', *areas},
               CIFAR={'small_gradients', 'drop_random_area', *areas})

def sentences(task, n=12):
    "Return a few labelled sentences; those of sts-b have a score"
    label = datasets.Value('float64') if task == 'sts-b' else datasets.ClassLabel(names=['bad', 'good'])
    kinds = datasets.Features(text=datasets.Value('string'), label=label)
    def part(k):
        classes = [float(i) if task == 'sts-b' else i % 2 for i in range(n)]
        rows = dict(text=[f'{t} {k}' for t in texts[:n]], label=classes)
        return datasets.Dataset.from_dict(rows, info=datasets.DatasetInfo(features=kinds, dataset_name=task))
    return datasets.DatasetDict({k: part(k) for k in ('train', 'validation', 'test')})

def images(n=12):
    from salviz.data.signals import load_images
    x, y = np.random.default_rng(0).random((3*n, 1, 10, 10)).astype('float32'), [i % 2 for i in range(3*n)]
    return load_images((x, y), splits=(1/3, 1/3, 1/3))

@pytest.fixture(scope='module')
def tokenizer(): return train_tokenizer([*texts, 'train validation test'], 200, max_length=512)

@pytest.fixture
def tiny(tokenizer):
    "Return a function that returns the arguments of a tiny plan: {data, model, rows, epochs, …} for its `tasks`"
    def transformer(seed, task, base='tiny'):
        kind = dict(task='regression') if task == 'sts-b' else dict(task='classification', labels=['bad', 'good'])
        return small_model(tokenizer=tokenizer, layers=1, heads=2, hidden=16, seed=seed, **kind), tokenizer
    def lstm(seed, task):
        return small_net('text-lstm', tokenizer=tokenizer, embedding_size=8, hidden_size=4, seed=seed), tokenizer
    def net(seed, task): return small_net('digit-cnn', images(), filters=(2, 3), hidden_size=8, seed=seed)
    def arguments(name, tasks, **more):
        of_images = name in ('DIGITS', 'CIFAR')
        data = {task: images() if of_images else sentences(task) for task in tasks}
        model = net if of_images else lstm if name == 'TEXT' else transformer
        return dict(dict(data=data, model=model, tasks=tasks, rows=(4, 4, 6), epochs=2, batch_size=4), **more)
    return arguments

def settings_of(name, budget): return plans[name].sizes[budget]

@pytest.mark.sample(14)
@pytest.mark.parametrize('name, budget', budgets)
def test_each_budget_creates_its_study_with_all_conditions_seeds_and_settings(name, budget, tiny, tmp_path):
    given = settings_of(name, budget)
    study = plans[name].study(tmp_path, budget, **tiny(name, given['tasks']))
    assert list(study.seeds) == list(given['seeds'])
    assert study.settings['task'] == list(given['tasks'])
    assert list(study.methods) == list(given.get('arms') or study.methods)
    assert set(study.methods) & {'FT', 'none', 'CT'}
    assert study.train['learning_rate'] == given['learning_rate'] and study.train['snapshots'] == 0
    if name == 'GRID': assert study.settings['p'] == study.settings['q'] == list(given['shares'])

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', [name for name in names if 'small' in plans[name].sizes])
def test_the_small_budget_draws_rows_of_every_task_that_differ_between_seeds(name, tmp_path):
    study = plans[name].study(tmp_path, 'small')
    for task in study.settings['task']:
        cells = [c for c in study.cells if dict(c.settings)['task'] == task]
        one, other = (study._data(next(c for c in cells if c.seed == seed))['train'] for seed in list(study.seeds)[:2])
        def rows(part):
            if 'text' in part.column_names: return sorted(part['text'])
            return sorted(np.asarray(part['pixel_values'], dtype=np.float64).reshape(len(part), -1).sum(1))
        assert len(one) and len(one) == len(other) and rows(one) != rows(other)

@pytest.mark.slow
@pytest.mark.parametrize('name', names)
def test_every_condition_of_the_full_budget_trains_on_tiny_data_and_has_all_columns(name, tiny, tmp_path):
    more = dict(GRID=dict(shares=(.5,)), AD=dict(bases=('tiny',)), AD64=dict(bases=('tiny',)), SALLM=dict(epochs=3))
    more = more.get(name, {})
    task = settings_of(name, 'full')['tasks'][0]
    study = plans[name].study(tmp_path, 'full', **tiny(name, (task,), seeds=(0,), **more))
    results = study.run()
    assert not study.status().error.any()
    assert set(results.method) == set(study.methods)
    assert shared | columns[name] <= set(results.columns)
    # a task of the Hub has no other packaged domain
    known = results[[*(shared | columns[name] - {'ood_mean'})]]
    assert known.notna().all(axis=None)
    assert not list(tmp_path.glob('*/runs/*/checkpoints/*/*.safetensors')) # no weights stay

def test_scores_of_pairs_of_sentences_are_correlations(tiny, tmp_path):
    study = plans['AD64'].study(tmp_path, 'full', **tiny('AD64', ('sts-b',), seeds=(0,), bases=('tiny',)))
    results = study.run()
    assert not study.status().error.any()
    assert (results.majority == 0).all() and results.test_accuracy.isna().all() and results.test_score.abs().max() <= 1

def test_the_score_of_cola_is_matthews_correlation(tiny, tmp_path):
    study = plans['AD64'].study(tmp_path, 'full', **tiny('AD64', ('cola',), seeds=(0,), bases=('tiny',)))
    row = study.run().iloc[0]
    kept = next(iter(study.runs().values()))[0].load_arrays('test_predictions')
    y, p = kept['labels'].astype(float), kept['predictions'].astype(float)
    varies = y.std() * p.std()
    assert row.test_score == pytest.approx(0 if varies == 0 else ((y - y.mean())*(p - p.mean())).mean()/varies)
    assert row.majority == 0

def test_pairs_share_rows_and_head_and_seeds_differ(tiny, tmp_path):
    study = plans['AD'].study(tmp_path, 'full', **tiny('AD', ('mrpc',), seeds=(0, 1), bases=('tiny',)))
    def made(seed): return study.data(seed, 'mrpc'), study.model(seed, 'mrpc')[0].classifier.weight
    (rows, head), (again, same), (others, another) = made(0), made(0), made(1)
    assert rows['train']['text'][:] == again['train']['text'][:] and head.equal(same)
    assert set(rows['train']['text']) != set(others['train']['text']) and not head.equal(another)

@pytest.mark.sample(3)
@pytest.mark.parametrize('task', ['movie', 'amazon', 'tweets', 'movie5'])
def test_pools_of_sentences_share_no_text_and_two_classes_have_equal_size(task):
    pools = classifiers._sentence_pools(task)
    parts = [{t.casefold() for t in part['text']} for part in pools.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == sum(map(len, pools.values()))
    if task != 'movie5': assert abs(np.mean(pools['test']['label']) - .5) < .01

@pytest.mark.parametrize('name', ['AD', 'PRIOR', 'GRID', 'SALLM', 'TEXT', 'DIGITS'])
def test_pools_of_the_small_budget_are_larger_than_their_draws(name):
    sizes = settings_of(name, 'small')
    load = dict(TEXT=classifiers._larger_pools, DIGITS=classifiers._digit_pools).get(name, classifiers._sentence_pools)
    for part, size in zip(load(sizes['tasks'][0]).values(), sizes['rows']): assert size == 'full' or size < len(part)

@pytest.mark.slow
def test_all_students_have_the_fine_tuned_run_of_their_seed_as_their_teacher(tiny, tmp_path):
    study = plans['SALLM'].study(tmp_path, 'full', **tiny('SALLM', ('movie',), seeds=(0, 1), arms=('FT', 'FineTuned')))
    study.run()
    for run in study.runs()['FineTuned']:
        teacher = run.config['method']['args']['teacher']
        assert teacher.endswith(f'runs/FT.task=movie.seed={run.config["seed"]}')

def test_a_trial_of_sallm_starts_from_its_teacher_and_the_teacher_from_scratch():
    assert plans['SALLM'].starts('FT', dict(task='movie5'), 3) is None
    assert plans['SALLM'].starts('SalLM', dict(task='movie5'), 3) == ('SALLM', 'FT', dict(task='movie5'), 3)

def test_missing_data_and_unknown_conditions_raise_an_error(tmp_path, monkeypatch):
    def nothing(task): raise ConnectionError('the Hub is switched off')
    with pytest.raises(FileNotFoundError, match="rte is not on this machine.*data={'rte'"):
        plans['GRID'].study(tmp_path, 'full', load=nothing)
    with pytest.raises(ValueError, match='unknown condition'): plans['AD'].study(tmp_path, 'small', arms=('AD',))
