"""Statements of figures are correct: ties have no ranks, sides have distinct names, scales fit the numbers, captions
name model and data."""
import io
import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Patch
from PIL import Image

import invented
from every_kind import a_run
from salviz.views.curves import _gradient_histogram, gradient_boxes, head_map, sensitivity_grid
from salviz.data.texts import load_text
from salviz.core.names import runs_words
from salviz.core.runs import Run
from salviz.figures.drawing import rendered, small_png
from salviz.figures.kinds import figure
from salviz.views.maps import attention_map, coloured_sentences, triptych
from salviz.metrics.statistics import _table_inches, result_table
from salviz.views.base import discard_region, saliency_distribution, tied_candidates
from invented import invent


def test_ties_in_an_unused_row_are_no_difference_of_ranks():
    snap = invent(10, layers=3, heads=4, p=.3)
    view = triptych(snap, 2, 1)
    assert view.tied.tolist() == [False] + [True]*9
    assert np.isnan(view.values[2][1:]).all() and np.isfinite(view.values[2][0]).all()
    assert ('in 9 of 10 rows, all attributions are 0 (the prediction does not depend on these rows)'
            in view.notes[0])
    assert view.notes[0] in view.caption
    usual = triptych(snap, 0, 1)
    assert not usual.tied.any() and not usual.notes and np.isfinite(usual.values[2]).all()
    snap.arrays['attention'][0, 1, 3] = 1/10   # a head with uniform attention has no ranks either
    assert triptych(snap, 0, 1).tied.tolist() == [i == 3 for i in range(10)]
    snap.arrays['attention_attribution'][0, 1, 4, :5] = 0   # some ties share their mean rank
    assert not triptych(snap, 0, 1).tied[4]


@pytest.mark.slow
def test_a_region_states_its_fraction_of_ties():
    snap = invent(10, layers=3, heads=4, p=.3)
    for view in (discard_region(snap, 2, 1), attention_map(snap, 2, 1)):
        assert view.notes[0] == ('Ties: in 9 of 10 rows, attributions tie at the threshold; '
                                 'all tied positions are candidates.')
        assert view.notes[0] in view.caption
        ties = np.asarray(view.ties).reshape(10, 10)
        assert not ties[0].any() and (ties[1:] == snap.arrays['discard_candidates'][2, 1][1:]).all()
    for kind, at in (('discard_region', dict(layer=2, head=1)), ('attention_map', dict(layer=2, head=1)),
                     ('triptych', dict(layer=2, head=1))):
        hatched, plain = ([p for p in figure(snap, kind, **{**at, 'layer': layer}).findobj(Patch) if p.get_hatch()]
                          for layer in (2, 0))
        assert len(hatched) == 9 + 1 and not plain, 'nine tied rows and a sample of them in the legend'
    assert discard_region(snap, 2, 1).subtitle.startswith('93 of 100 positions are candidates (90 in rows with ties), ')
    assert not discard_region(snap, 0, 1).notes and not attention_map(snap, 0, 1).notes
    region, may = np.array([[1, 1, 1, 0]]) > 0, np.ones((1, 4), bool)
    half = np.array([[.5, .2, .2, 0]])   # two candidates were requested, the third is equal to the second
    assert tied_candidates(region, may, half, .5).all()
    assert not tied_candidates(region, may, half, .75).any()
    assert not tied_candidates(region, may, half).any()


def test_one_sentence_of_five_runs_is_one_sentence(tmp_path):
    runs = [a_run(tmp_path, f'run{i}', seed=i) for i in range(5)]
    fig = figure(runs, 'coloured_sentences')
    texts = [o.get_text() for o in fig.texts]
    assert fig.caption.startswith('One sentence') and not any('5 sentences' in o for o in [fig.caption, *texts])
    assert [sum(o.startswith(f'AD-DROP, seed {i}') for o in texts) for i in range(5)] == [1]*5
    pair = [runs[0].snapshot(0, 0), runs[0].snapshot(0, 1), runs[1].snapshot(0, 0), runs[1].snapshot(0, 1)]
    assert coloured_sentences(pair).caption.startswith('2 sentences, 4 times')
    assert coloured_sentences(pair[:2]).caption.startswith('2 sentences,')
    for i, s in enumerate(pair): s.info['seed'] = i//2
    view = coloured_sentences(pair)
    assert view.caption.startswith('2 sentences of 2 models')
    assert view.names[0].startswith('seed 0, probe 0')
    assert view.names[3].startswith('seed 1, probe 1')


def test_two_runs_at_one_step_have_distinct_names(tmp_path):
    a, b = invented.image(32), invented.image(32, seed=1)
    b.info['seed'] = 1
    view = saliency_distribution(a, b)
    assert view.names == ('seed 0', 'seed 1') and 'step 32 and step 32' not in view.caption + view.title
    b.info['seed'], b.info['method'] = 0, 'FineTuning'
    assert saliency_distribution(a, b).names == ('Saliency guided training', 'Fine-tuning')
    assert saliency_distribution(a, invented.image(40)).names == ('step 32', 'step 40')
    assert saliency_distribution(a, a).names == ('first', 'second')
    assert saliency_distribution(a, b, names=['x', 'y']).names == ('x', 'y')
    with pytest.raises(ValueError, match='names must be a list of two names, one per side'):
        saliency_distribution(a, b, names=['x'])
    runs = [a_run(tmp_path, o, seed=i) for i, o in enumerate(('one', 'two'))]
    assert 'A: AD-DROP, seed 0' in [o.get_text().removeprefix('(a) ') for o in figure(runs, 'compared').texts]


def test_gradients_have_the_right_names():
    frame = pd.DataFrame(dict(method=['a']*5 + ['b']*5, gradient=np.linspace(.1, 1, 10)))
    frame.attrs['labels'] = dict(gradient='|gradient|, over the largest of its example')
    for view in (gradient_boxes(frame), _gradient_histogram(frame)):
        assert '|gradient|, over the largest of its example' in view.title
        assert '|gradient|, over the largest of its example' in view.caption
    assert gradient_boxes(frame).y_label == '|gradient|, over the largest of its example'
    assert gradient_boxes(frame, label='g').y_label == 'g'


def settings(values):
    return pd.DataFrame([dict(p=p, q=q, accuracy=v) for (p, q), v in zip([(.1, .1), (.1, .2), (.3, .1), (.3, .2)],
                                                                         values)])


def test_a_grid_of_ties_has_no_frame_and_signed_values_have_a_signed_scale():
    tied = sensitivity_grid(settings([.5]*4))
    assert not tied.best.any()
    assert tied.subtitle.startswith('all 0.5')
    assert 'All means are equal (0.5).' in tied.caption
    assert 'framed' not in tied.caption
    assert not head_map(pd.DataFrame(dict(layer=[0, 0], head=[0, 1], x=[1., 1.])), 'x', best='highest').best.any()
    signed = sensitivity_grid(settings([.5, -.2, .1, .3]))
    assert signed.is_signed and signed.limits == (-.5, .5) and 'Colours diverge from zero.' in signed.caption
    plain = sensitivity_grid(settings([.5, .2, .1, .3]))
    assert not plain.is_signed and plain.limits == (.1, .5) and plain.best.sum() == 1


def test_a_nested_grid_has_no_column_without_a_name():
    rows = [dict(method='AD-DROP', p=p, q=q, seed=z, run=f'a{p}{q}{z}', accuracy=p*q + z/10) for p in (.1, .3)
            for q in (.2, .4) for z in (0, 1)]
    nested = pd.DataFrame([*rows, *(dict(method='Fine-tuning', p=None, q=None, seed=z, run=f'f{z}', accuracy=.5)
                                    for z in (0, 1))])
    view = sensitivity_grid(nested)
    assert view.columns == ('0.1', '0.3')
    assert view.rows == ('0.4', '0.2')
    assert view.notes == ('2 rows without p or q left out (Fine-tuning).',)
    table = result_table(nested[nested.p.fillna(.1) == .1], rows='method', columns='q', measure='accuracy')
    assert table.heads()[1] == ['q = 0.2', 'q = 0.4', 'without q']


def test_scores_of_sts_b_range_to_five(tmp_path):
    run = a_run(tmp_path, 'scores')
    run.save(invented.scored(10))
    invented.reconfigured(run, data=dict(name='sts-b'))
    ticks = [t.get_text() for ax in figure(run.path, 'scored_sentence', step=10).axes for t in ax.get_xticklabels()]
    assert {'0', '5'} <= set(ticks)
    own = [t.get_text() for ax in figure(run.path, 'scored_sentence', step=10, span=(1, 4)).axes
           for t in ax.get_xticklabels()]
    assert '5' not in own and '4' in own


def test_captions_name_model_data_and_seeds_once_in_words(tmp_path):
    runs = [a_run(tmp_path, f'run{i}', method, seed=i % 2)
            for i, method in enumerate(('ADDrop', 'ADDrop', 'SalLM', 'SalLM'))]
    said = dict(model=dict(name='minilm-b9a0018dff09', layers=6, heads=12),
                data=dict(name='movie-sentences', sizes=dict(train=160)))
    runs = [invented.reconfigured(r, **said) for r in runs]
    assert runs_words({'AD-DROP': runs[:2], 'SalLM': runs[2:]}) == 'MiniLM-L6, movie sentences; seeds 0, 1.'
    assert figure(runs, 'loss_curves', caption='long').caption.endswith('MiniLM-L6, movie sentences; seeds 0, 1.')
    single = figure(runs[0], 'discard_region', caption='long')
    assert single.caption.endswith(' MiniLM-L6, movie sentences; seed 0.')
    assert 'Model: MiniLM-L6 (6 layers, 12 heads)' in single.facts


def test_a_data_frame_gets_its_custom_name():
    frame = pd.DataFrame(dict(text=[f'a film {i}' for i in range(20)], label=['good', 'bad']*10))
    assert load_text(frame, name='film reviews')['train'].info.dataset_name == 'film reviews'
    assert load_text(frame)['train'].info.dataset_name == 'DataFrame'
    with pytest.raises(ValueError, match='name must be a name for the data, used in captions'): load_text(frame, name=3)


def test_a_table_that_is_too_wide_gives_a_warning_with_a_remedy():
    rng = np.random.default_rng(0)
    names = ('accuracy', 'macro_f1', 'average_loss', 'sufficiency')
    frame = pd.DataFrame([dict(method=m, seed=z, **{k: rng.random() for k in names})
                          for m in ('Fine-tuning', 'Attention guidance') for z in range(4)])
    table = result_table(frame)
    with pytest.warns(UserWarning,
                      match=r'table is about \d\.\d inches wide, but only 3\.0 are available; use wide=True or fewer '
                      r'columns'):
        table.latex(small='footnotesize')
    two = result_table(frame, columns=['accuracy', 'macro_f1'])
    with pytest.warns(UserWarning, match="use small='small' or wide=True or fewer columns"): two.latex()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        two.latex(small='footnotesize')
        table.latex(small='footnotesize', wide=True); table.latex(standalone=True); table.latex(max_width=7.)
    assert _table_inches(two, 'scriptsize') < _table_inches(two,
                                                            'footnotesize') < _table_inches(two) < _table_inches(table)


def test_a_small_png_keeps_the_colours_of_a_signed_scale():
    png = rendered(figure(Run.example('ad-drop'), 'triptych', step=-1, probe=1), 'png', 100)
    pixels = [np.asarray(Image.open(io.BytesIO(data)).convert('RGB')).astype(int) for data in (small_png(png), png)]
    assert np.abs(pixels[0] - pixels[1]).max() <= 10
