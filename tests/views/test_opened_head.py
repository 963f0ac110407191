"""The head that is opened first: it is informative about words, and it is the same in figures, static images and the
explorer."""
from itertools import product

import numpy as np
import pytest

import invented
from salviz.core.runs import Run
from salviz.explorer.payload import pack_frame, split_frame
from salviz.explorer.static_images import Selection
from salviz.views.base import discard_region, word_fractions
from salviz.views.maps import attention_map, telling_entry, triptych

bundled = 'plain', 'sallm', 'saliency-guided', 'ad-drop', 'attention-guidance'


def on_words(snapshot, layer, head):
    "Return the fraction of the attention of words on words, in loops"
    A = np.asarray(snapshot.arrays['attention'], dtype=float)[snapshot.layers['attention'].index(layer), head]
    words = [i for i, special in enumerate(snapshot.is_special) if not special]
    return sum(A[q, k] for q, k in product(words, words))/sum(A[q].sum() for q in words)


@pytest.mark.parametrize('name', bundled)
def test_the_opened_head_of_a_bundled_run_attends_to_words(name):
    run = Run.example(name)
    for step, probe in run.recorded:
        snapshot = run.snapshot(step, probe)
        opened = telling_entry(snapshot)
        fraction, guided = on_words(snapshot, **opened), snapshot.arrays.get('guided')
        others = np.ones((6, 12), bool) if guided is None else guided
        assert others[opened['layer'], opened['head']]
        if fraction < 2/3: assert fraction >= word_fractions(snapshot, range(6))[others].max() - 1e-9


def test_word_fractions_equal_sums_over_pairs_of_words():
    "1 in a layer whose attention was not recorded"
    snapshot = Run.example('plain').snapshot()
    fractions = word_fractions(snapshot, [*range(6), 9])
    expected = [[on_words(snapshot, layer, head) for head in range(12)] for layer in range(6)]
    np.testing.assert_allclose(fractions[:6], expected, rtol=1e-9)
    assert (fractions[6] == 1).all() and np.ptp(fractions[:6]) > .3


def test_a_head_that_attends_to_special_tokens_is_not_opened_for_its_attribution():
    s = invented.invent(9, layers=2, heads=4, drop=('guided', 'pattern_target'))
    s.layers['attention_attribution'] = s.layers['attention'] = [4, 5]
    sizes = np.abs(s.arrays['attention_attribution'])
    sizes[1, 2, 1:-1, 1:-1] += 10*sizes.max()      # the most attribution between words
    s.arrays['attention_attribution'] = sizes
    s.arrays['attention'][:, :3] = np.tile(np.r_[0, np.ones(7), 0]/7, (2, 3, 9, 1))
    assert telling_entry(s) == dict(layer=5, head=2)
    s.arrays['attention'][1, 2] = 0
    s.arrays['attention'][1, 2, :, 0] = 1.         # all of its attention is on [CLS]
    expected = {(layer, head): np.median([sum(sizes[i, head, q, k] for k in range(1, 8)) for q in range(1, 8)])
                for (i, layer), head in product(enumerate((4, 5)), range(4)) if on_words(s, layer, head) >= 2/3}
    assert expected and tuple(telling_entry(s).values()) == max(expected, key=expected.get)
    assert telling_entry(s, [5])['layer'] == 5 and telling_entry(s, [5])['head'] != 2


def test_special_cells_count_for_nothing():
    s = invented.invent(9, layers=2, heads=4, drop=('guided', 'pattern_target'))
    before = telling_entry(s)
    other = [head for head in range(4) if head != before['head']][0]
    s.arrays['attention_attribution'][before['layer'], other, :, 0] = 1e3   # every row, the column of [CLS]
    assert telling_entry(s) == before


def test_where_no_head_attends_to_words_the_one_that_does_so_most_is_opened():
    s = invented.invent(9, layers=2, heads=4, drop=('guided', 'pattern_target'))
    A = np.full((2, 4, 9, 9), .01)
    A[..., 0] = 1 - A[..., 1:].sum(-1)
    A[0, 3, :, 2], A[0, 3, :, 0] = .3, A[0, 3, :, 0] - .29
    s.arrays['attention'] = A
    assert telling_entry(s) == dict(layer=0, head=3)


def test_a_guided_head_is_opened_by_its_pattern_between_words():
    s = invented.invent(9, layers=2, heads=4)
    s.arrays['guided'] = np.ones((2, 4), bool)
    s.arrays['pattern_target'] = np.zeros((2, 4, 9, 9))
    s.arrays['pattern_target'][..., 0] = 1                            # all are guided to [CLS]
    s.arrays['pattern_target'][0, 1] = s.arrays['pattern_target'][1, 3] = np.eye(9, k=1)
    A = s.arrays['attention'] = np.full((2, 4, 9, 9), 1/9)
    A[1, 0], A[0, 1], A[1, 3] = np.eye(9)[[0]], .5/9 + .5*np.eye(9, k=1), .8/9 + .2*np.eye(9, k=1)
    assert telling_entry(s) == dict(layer=0, head=1)
    s.arrays['guided'][0, 1] = False
    assert telling_entry(s) == dict(layer=1, head=3)


def test_without_attribution_it_is_a_head_of_the_last_layer_that_tells_words_apart():
    s = invented.invent(9, layers=3, heads=4, drop=('guided', 'pattern_target', 'attention_attribution'))
    A = s.arrays['attention'] = np.full((3, 4, 9, 9), 1/9)
    A[0, 1] = np.eye(9)
    A[1, 2] = .5/9 + .5*np.eye(9, k=1)
    A[1, 3] = np.eye(9)[[8]]                                          # all attend to [SEP]
    assert telling_entry(s) == dict(layer=1, head=2)


def test_one_rule_chooses_the_head_of_figures_stills_and_frames():
    for drop in ((), ('guided', 'pattern_target'), ('guided', 'pattern_target', 'attention_attribution')):
        s = invented.invent(9, layers=3, heads=4, drop=drop)
        layer, head = telling_entry(s).values()
        assert f'layer {layer}, head {head}' in attention_map(s).title
        assert f'layer {layer}, head {head}' in triptych(s).title
        assert (Selection(s).entry['layer'], Selection(s).entry['head']) == (layer, head)
        assert split_frame(pack_frame(s))[0]['info']['opened'] == [layer, head]
        some = telling_entry(s, [0, 1])
        assert split_frame(pack_frame(s, layers=[0, 1]))[0]['info']['opened'] == list(some.values())
        if drop[-1:] == ('pattern_target',):
            view = discard_region(s)
            assert (view.layer, view.head) == (layer, head) and 'between words' in view.caption


def test_a_still_of_a_plain_epoch_opens_the_head_of_the_last_step_at_which_the_method_was_at_work(tmp_path):
    run = invented.run(tmp_path/'run', 'ADDrop', steps=(0, 10))
    run.save(invented.snapshot(20, 0, method='FineTuning'))
    last = run.snapshot(20, 0)
    assert 'attention_attribution' not in last.arrays
    entry = Selection(last, run=run).entry
    assert (entry['layer'], entry['head']) == tuple(telling_entry(run.snapshot(10, 0)).values())
