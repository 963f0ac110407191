"Studies of series: every net has both conditions, series depend on seed and layout, boxes have their positions."
import numpy as np
import pytest

from salviz.replication import series
from salviz.replication.plans import plans

names = 'SERIES', 'SERIES_LSTM', 'SERIES_TRANSFORMER', 'VANISH'
tiny = dict(rows=(16, 8, 8), epochs=1)
columns = {'test_accuracy', 'majority', 'average_loss'} | {
    f'{m}_{k}{d}' for m in ('IG', 'gradient', 'GradientSHAP') for k in ('aup', 'aur') for d in ('', '_difference')}

@pytest.mark.slow
@pytest.mark.parametrize('name', names)
def test_every_budget_has_both_conditions_on_all_layouts_and_the_full_budget_trains(name, tmp_path):
    for budget in plans[name].sizes:
        study = plans[name].study(tmp_path/budget, budget, rows=(8, 4, 4))
        assert {c.method for c in study.cells} == {'FT', 'SGT'}
        assert min(study.seeds) == 0 if budget == 'quick' else min(study.seeds) >= 100
    tasks = study.settings['task']
    assert len(tasks) == (3 if name == 'VANISH' else 10) # the last budget is the papers'
    few = plans[name].study(tmp_path/'few', 'full', **tiny, seeds=[100], tasks=tasks[:1],
                            nets=study.settings['net'][:1])
    table = few.run()
    assert not few.status().error.any() and columns <= set(table.columns) and len(table) == 2

def test_a_pair_shares_its_series_and_seeds_and_layouts_differ():
    known = {}
    for seed in (100, 101):
        for task in (*series._ten_layouts, *series._starts):
            made = (series.placed_series if task in series._starts else series._benchmark_series)(
                seed, task, rows=(4, 2, 2), normalise='none')
            for split, part in made.items():
                known[seed, task, split] = part.with_format('numpy')['values'][0].ravel()[:9]
    heads = {tuple(np.round(x, 4)) for x in known.values()}
    assert len(heads) == len(known) == 2*13*3

def test_seeds_and_tasks_have_distinct_random_seeds():
    numbers = [100*seed + i for seed in range(300) for i in range(len(series._tasks))]
    assert len(set(numbers)) == len(numbers) and len(series._tasks) == 13

def test_a_box_has_the_same_size_everywhere_and_stays_within_the_series():
    for size in (dict(), dict(steps=50, features=50)):
        tests = [series.placed_series(0, task, (2, 2, 2), 'z-score', **size)['test'] for task in series._starts]
        boxes = [test.with_format('numpy')['informative'][0] for test in tests]
        at = [np.flatnonzero(box.any(1))[0] for box in boxes]
        assert {box.sum() for box in boxes} == {140} and at[0] == 0 < at[1] < at[2] == len(boxes[0]) - 7

def test_the_nets_of_a_pair_have_the_same_initial_weights(tmp_path):
    study = plans['VANISH'].study(tmp_path, 'small', **tiny, seeds=[100], tasks=['early'])
    first, second = (study._load(c)[0].state_dict() for c in study.cells)
    assert all(bool((first[k] == second[k]).all()) for k in first)
    forget = first['recurrence.lstm.bias_ih_l0'] + first['recurrence.lstm.bias_hh_l0']
    assert (forget[16:32] == 3).all()
