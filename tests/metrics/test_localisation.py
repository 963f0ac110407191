"Heat maps against boxes: the metrics equal loops over pixels, and a uniform map scores the area of the box."
import numpy as np
import pytest
from PIL import Image

from salviz.metrics.localisation import box_mask, energy_inside, localisation, pointing_game, rationale_mask

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
    (lambda: energy_inside(np.ones((2, 2)), np.zeros((2, 2))), 'mask must mark at least one pixel'),
    (lambda: energy_inside(np.full((2, 2), np.nan), np.ones((2, 2))), 'not finite'),
    (lambda: localisation([np.ones((2, 2))], []), 'must have the same length'),
    (lambda: localisation([np.ones((2, 2))], [None]), 'the mask of at least one image')])
def test_wrong_arguments_are_rejected(call, message):
    with pytest.raises(ValueError, match=message): call()

def half(value=1):
    mask = np.zeros((14, 28), np.uint8)
    mask[:7, 9:17] = value
    return mask

@pytest.mark.parametrize('rationale', [
    half(), half(255), half(255).tolist(), half().tolist(), half().astype(bool), half().astype(float).tolist(),
    np.ones((14, 28)).tolist(), np.ones((56, 28), np.uint8), Image.fromarray(half(255)),
    (np.arange(28)[:, None] < np.arange(56)).T.astype(int).tolist()])
def test_a_mask_of_another_size_than_the_image_is_rejected(rationale):
    with pytest.raises(ValueError, match='28 × 56 pixels, the size of the image, got (14|56) rows of 28 values'):
        rationale_mask(rationale, 28, 56)

@pytest.mark.parametrize('rationale', [[[0, 0, np.nan, 9, 9, 9]], [[0, 0, np.inf, 9]],
                                       [[2, 2, 9, 9, 2, 2]], np.full((28, 56), np.nan),
                                       np.ones((28, 56, 3))])
def test_marks_that_are_not_finite_have_channels_or_two_points_are_rejected(rationale):
    with pytest.raises(ValueError, match='rationale_mask: a (rationale must be boxes|mask must have the shape)'):
        rationale_mask(rationale, 28, 56)

def test_masks_boxes_and_outlines_mark_the_same_pixels():
    expected = box_mask((4, 6, 12, 16), 28, 56)
    outline = [4, 6, 4, 16, 12, 16, 12, 6]
    for rationale in ([[4, 6, 12, 16]], np.array([[4, 6, 12, 16]], np.uint8), [outline], [outline + outline[:2]*2],
                      expected, expected.tolist(), Image.fromarray(expected)):
        assert np.array_equal(rationale_mask(rationale, 28, 56), expected)
    assert not rationale_mask([], 28, 56).any()
