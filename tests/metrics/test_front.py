"Fronts equal loops from the definitions: pairwise dominance, area by rectangles, knee by distances to a line."
import numpy as np
import pandas as pd
import pytest

from salviz.metrics.front import (_between, _front_rows, _overlapping, _scaled, dominated_area, even_values, front_of,
                                  knee_row, next_value)

pytestmark = pytest.mark.numeric


def beats(a, b): return all(x <= y for x, y in zip(a, b)) and any(x < y for x, y in zip(a, b))


def undominated(costs): return [i for i, c in enumerate(costs) if not any(beats(other, c) for other in costs)]


def rectangles(costs, reference):
    "Compute the area that `costs` dominate on the grid of their coordinates"
    xs, ys = (sorted({*(c[k] for c in costs if c[k] < reference[k]), reference[k]}) for k in range(2))
    area = 0.
    for x, x_next in zip(xs, xs[1:]):
        for y, y_next in zip(ys, ys[1:]):
            if any(c[0] <= x and c[1] <= y for c in costs): area += (x_next - x)*(y_next - y)
    return area


def farthest_beyond(costs):
    "Return the row farthest beyond the line through both ends, in costs scaled to [0, 1]; None if there is none"
    low, high = np.min(costs, 0), np.max(costs, 0)
    at = [(np.array(c) - low)/(high - low) for c in costs]
    a, b = np.array([0., 1.]), np.array([1., 0.])
    # twice the area of the triangle with both ends, over the length of its base
    beyond = [((b[0] - a[0])*(a[1] - p[1]) - (a[0] - p[0])*(b[1] - a[1]))/np.hypot(*(b - a)) for p in at]
    return int(np.argmax(beyond)) if max(beyond) > 1e-9 else None


@pytest.mark.parametrize('seed', range(8))
def test_front_area_and_knee_match_their_definitions(seed):
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 12, size=(14, 2)).astype(float) if seed % 2 else rng.random((14, 2)) # integers have ties
    rows = _front_rows(costs)
    assert sorted(rows.tolist()) == undominated(costs.tolist())
    assert (np.diff(costs[rows][:, 0]) >= 0).all()
    reference = [.8*costs[:, 0].max(), 1.1*costs[:, 1].max()] # some points are beyond it
    expected = rectangles(costs.tolist(), reference)
    assert dominated_area(costs, reference) == pytest.approx(expected, abs=1e-12)
    front = costs[rows]
    if seed % 2 == 0 and len(front) >= 3: assert knee_row(front) == farthest_beyond(front) # without ties


def test_bent_front_has_the_knee_of_its_definition():
    costs = np.array([(x, (1 - x**.4)**2.5) for x in np.linspace(0, 1, 9)])
    assert knee_row(costs) == farthest_beyond(costs) is not None
    assert knee_row(100*costs + 7) == knee_row(costs)


def table(points, seeds=3, noise=0., x='validation_accuracy', y='validation_token_f1'):
    rng = np.random.default_rng(0)
    return pd.DataFrame([{'method': 'guided', 'weight': w, 'seed': s, 'run': f'runs/{w}.{s}',
                          x: a + noise*rng.normal(), y: f + noise*rng.normal()}
                         for w, a, f in points for s in range(seeds)])


def by_definition(frame):
    "Return {weight: standing}, by loops over pairs of means and of ends of intervals"
    rows = frame.to_dict('records')
    costs = [(-r['validation_accuracy'], -r['validation_token_f1']) for r in rows]
    front, out = undominated(costs), {}
    for i, r in enumerate(rows):
        sure = any(all(rows[k][f'{m}_low'] >= r[f'{m}_high'] for m in ('validation_accuracy', 'validation_token_f1'))
                   for k in front)
        out[r['weight']] = 'front' if i in front else 'dominated' if sure else 'not distinguished'
    return out


@pytest.mark.parametrize('noise', [.001, .02, .1])
def test_overlapping_intervals_are_not_dominated(noise):
    points = [(w, .9 - .05*i - .1*(i % 3 == 1), .3 + .05*i) for i, w in enumerate((0, .01, .1, .3, 1, 3, 10))]
    front = front_of(table(points, seeds=4, noise=noise), y='validation_token_f1')
    assert dict(zip(front.frame.weight, front.frame.standing)) == by_definition(front.frame)


def test_single_or_identical_seeds_have_no_interval():
    points = [(0, .9, .3), (1, .8, .6), (3, .2, .1)]
    for seeds in (1, 3):
        front = front_of(table(points, seeds=seeds), y='validation_token_f1')
        assert front.frame.standing.tolist() == ['front', 'front', 'not distinguished']
        assert front.frame.validation_accuracy_low.isna().all()
        assert _overlapping(front.frame, front.measures, front.better, 0).tolist() == [False, True, True]
    assert 'no values can be distinguished' in ' '.join(front_of(table(points, 1), y='validation_token_f1').sentences)


def test_equal_values_share_the_front_and_have_no_knee():
    front = front_of(table([(0, .9, .3), (.1, .8, .5), (1, .8, .5), (10, .7, .6)]), y='validation_token_f1')
    assert set(front.frame.standing) == {'front'}
    assert front.hypervolume == pytest.approx(rectangles([(-.9, -.3), (-.8, -.5), (-.7, -.6)], (0, 0)))
    assert front.knee is None


def test_loss_is_minimised_and_requires_a_reference():
    points = [(0, .2, .3), (1, .4, .6), (3, .5, .5)]
    losses = table(points, noise=.001, x='validation_loss')
    with pytest.raises(ValueError, match='pass the reference point'):
        front_of(losses, x='validation_loss', y='validation_token_f1')
    front = front_of(losses, x='validation_loss', y='validation_token_f1', reference=(1, 0))
    assert front.frame.standing.tolist() == ['front', 'front', 'dominated']
    means = [(a, -f) for a, f in zip(front.frame.validation_loss, front.frame.validation_token_f1)]
    assert front.hypervolume == pytest.approx(rectangles(means, (1, 0)))


def test_test_split_numbers_are_reported_and_select_nothing():
    frame = table([(0, .9, .3), (1, .8, .6), (3, .7, .5)])
    backwards = frame.assign(test_accuracy=1 - frame.validation_accuracy, test_token_f1=1 - frame.validation_token_f1)
    front, alone = (front_of(f, y='validation_token_f1') for f in (backwards, frame))
    assert front.frame.standing.tolist() == alone.frame.standing.tolist()
    assert front.reported_hypervolume == pytest.approx(rectangles([(-.1, -.7), (-.2, -.4)], (0, 0)))
    assert np.isnan(alone.reported_hypervolume)


def test_value_without_a_finite_number_is_reported():
    frame = table([(0, .9, .3), (1, .8, .6), (3, np.nan, .5)])
    front = front_of(frame, y='validation_token_f1')
    assert front.values == [0, 1] and front.left_out == (3,)
    assert 'weight = 3' in ' '.join(front.sentences)


def test_missing_test_numbers_do_not_change_the_front():
    frame = table([(0, .9, .3), (1, .8, .6), (3, .7, .2)], noise=.001).assign(test_accuracy=.5, test_token_f1=.5)
    whole = front_of(frame, y='validation_token_f1')
    frame.loc[frame.seed > 0, 'test_token_f1'] = np.nan
    frame.loc[frame.weight == 1, 'test_token_f1'] = np.nan
    front = front_of(frame, y='validation_token_f1')
    assert front.frame.seeds.tolist() == [3, 3, 3] and front.sentences[:-1] == whole.sentences[:-1]
    assert 'the hypervolume is undefined' in front.sentences[-1] and 'nan' not in ' '.join(front.sentences)


@pytest.mark.parametrize('kw, match', [
    (dict(setting='p'), "no setting 'p'; available: weight"),
    (dict(x='bleu'), "unknown metric 'bleu'"),
    (dict(y='validation_accuracy'), 'pass two metrics'),
    (dict(method='other'), "no run of method 'other' has weight; available: guided"),
    (dict(reference=(0, 'a')), 'reference must be a point'),
    (dict(confidence=2), 'confidence must be between 0 and 1'),
])
def test_invalid_front_arguments_raise(kw, match):
    with pytest.raises(ValueError, match=match):
        front_of(table([(0, .9, .3), (1, .8, .6)]), **{'y': 'validation_token_f1', **kw})


def test_next_value_halves_the_thinnest_interval():
    points = [(0, .9, .3), (.1, .89, .31), (1, .6, .7), (10, .59, .71)]
    front = front_of(table(points), y='validation_token_f1')
    steps = np.linalg.norm(np.diff(_scaled(-front.frame[list(front.measures)].to_numpy()), axis=0), axis=1)
    assert steps.argmax() == 1 and next_value(front) == _between(.1, 1) == .316
    assert next_value(front, 'linear') == .55
    near = front_of(table([(1, .9, .3), (1.001, .5, .6)]), y='validation_token_f1')
    assert next_value(near) is None # three digits are not enough for a value between
    same = front_of(table([(0, .5, .5), (.1, .5, .5), (10, .5, .5)]), y='validation_token_f1')
    assert next_value(same) == 1


def test_next_values_do_not_accumulate_at_zero():
    "Dominated values lie between 0 and 10: the stretches between them are halved before the one next to 0"
    ends, values = {0: (.9, .3), 10: (.8, .6)}, [0, .1, 1, 10]
    for _ in range(3):
        front = front_of(table([(w, *ends.get(w, (.5, .2))) for w in values]), y='validation_token_f1')
        values.append(next_value(front))
    assert sorted(values) == [0, .1, .316, .562, 1, 3.16, 10]
    beside = front_of(table([(0, .9, .3), (.1, .8, .6), (10, .79, .61)]), y='validation_token_f1')
    assert next_value(beside) == .01 # there is no other interval between 0 and .1


def test_even_values_keep_their_ends_and_are_log_spaced():
    values = even_values(.003, 30, 5)
    assert (values[0], values[-1]) == (.003, 30)
    assert np.diff(np.log10(values)) == pytest.approx([1]*4, abs=2e-3)
    for bad, match in ((dict(low=0, high=1, count=3), 'low must be above 0'),
                       (dict(low=1, high=1, count=3), 'above low'), (dict(low=1, high=2, count=1), 'at least 2')):
        with pytest.raises(ValueError, match=match): even_values(**bad)


def test_missing_pymoo_error_names_the_package(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'pymoo.indicators.hv', None)
    with pytest.raises(ImportError, match="pymoo, which is not installed: pip install 'salviz"):
        _front_rows([[0, 1], [1, 0]])
