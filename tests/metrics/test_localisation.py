"Heat maps against boxes: the measures equal loops over pixels, and an even map scores the area of the box"
import numpy as np
import pytest

from salviz.metrics.localisation import box_mask, energy_inside, localisation, pointing_game

def test_measures_equal_loops_over_pixels():
    g = np.random.default_rng(0)
    for _ in range(20):
        values, mask = g.integers(-3, 4, (6, 8)).astype(float), g.random((6, 8)) > .6
        largest = [(y, x) for y in range(6) for x in range(8) if values[y, x] == values.max()]
        marked = np.argwhere(mask)
        near = [any(abs(i - y) <= 1 and abs(j - x) <= 1 for i, j in marked) for y, x in largest]
        assert pointing_game(values, mask) == pytest.approx(np.mean([mask[place] for place in largest]))
        assert pointing_game(values, mask, tolerance=1) == pytest.approx(np.mean(near))
        inside = sum(values[y, x] for y in range(6) for x in range(8) if mask[y, x] and values[y, x] > 0)
        assert energy_inside(values, mask) == pytest.approx(inside/values[values > 0].sum())

def test_an_even_map_scores_the_area_in_both_measures():
    mask = box_mask([(0, 0, 2, 3), (1, 2, 4, 5)], 5, 7)
    found = localisation([np.ones((5, 7)), np.ones((5, 7))], [mask, None])
    assert found['pointing_game'] == found['energy'] == found['area'] == mask.mean() and found['images'] == 1

def test_a_map_without_positive_values_has_no_energy():
    assert np.isnan(energy_inside(np.zeros((2, 2)), np.ones((2, 2))))

@pytest.mark.parametrize('call, message', [
    (lambda: box_mask((0, 0, 0, 3), 4, 4), 'top < bottom and left < right'),
    (lambda: pointing_game(np.ones((2, 2)), np.ones((2, 3))), 'must have the same shape'),
    (lambda: energy_inside(np.ones((2, 2)), np.zeros((2, 2))), 'no pixel is marked'),
    (lambda: energy_inside(np.full((2, 2), np.nan), np.ones((2, 2))), 'not finite'),
    (lambda: localisation([np.ones((2, 2))], []), 'must have the same length'),
    (lambda: localisation([np.ones((2, 2))], [None]), 'no image has a mask')])
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message): call()
