"Figures: legible, faithful to the view, and the same bytes every time"
import base64
import io
import os, re, subprocess, sys, time, warnings
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

import invented
from helpers import full_disk
from overlap import check_legible, texts_of
from salviz.figures.drawing import blue, faint, fitted, rendered, save_figure, signed, text_width
from salviz.figures.sheet import draw_figure
from salviz.explorer.static_images import Selection, picture
from salviz.core.snapshots import Snapshot
from salviz.views.base import (attention_beside_saliency, discard_region, guided_heads, masked_sentence, pattern_shares,
                          saliency_distribution, scored_sentence, signal_view,
                          token_labels, translation, view_for)
from invented import invent

makers = dict(SalLM=attention_beside_saliency, SaliencyGuided=masked_sentence, ADDrop=discard_region,
              AttentionGuidance=guided_heads)
hostile = ['[CLS]', '<img onerror=alert(1)>', '$x^2$', '中文', 'مرحبا', '😀', '👩\u200d👩\u200d👧', '\u202eabc', '-->',
           r'$\frac{', '\t',
           'unbelievably'*4, 'a\nb', '[SEP]']


def view_of(method, n=12, **kwargs): return makers[method](invent(n, layers=2, heads=6, method=method, **kwargs))


@pytest.mark.sample(1)
@pytest.mark.parametrize('method', makers)
@pytest.mark.parametrize('n, width', [(3, 6.75), (12, 6.75), (60, 6.75), (128, 6.75), (40, 3.25)])
def test_no_text_overlaps_another_or_leaves_the_figure(method, n, width):
    fig = draw_figure(view_of(method, n), width)
    assert fig.get_figwidth() == width
    check_legible(fig)


@pytest.mark.slow
@pytest.mark.parametrize('method', makers)
def test_hostile_tokens_are_drawn_literally_with_one_warning_of_each_kind(method, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        fig = draw_figure(view_of(method, tokens=hostile))
        svg = save_figure(fig, tmp_path/'a.svg').read_text()
        save_figure(fig, tmp_path/'a.pdf')
        check_legible(fig)
    assert [str(o.message)[:34] for o in caught] == ['DejaVu Sans has no glyph for 6 of ',
                                                     'figure: 2 labels were shortened to']
    assert '<img' not in svg and '<script' not in svg
    texts = ' '.join(o.get_text() for o in fig.findobj(Text))
    for token in ('$x^2$', '□□', r'$\frac{', '<img on', 'a⏎b', '…'): assert token in texts


@pytest.mark.parametrize('text', ['$x^2$', 'a_{b}$'])
def test_classes_and_labels_are_not_parsed_as_formulas(text):
    snap = invent(12, method='SaliencyGuided'); snap.classes[3] = text
    texts = [o for o in texts_of(draw_figure(masked_sentence(snap))) if text in o.get_text().replace(r'\$', '$')]
    assert len(texts) == 2
    for o in texts: # the only formula is our own X̃; a dollar sign in the data is escaped
        rest = o.get_text().replace(r'$\tilde{\mathrm{X}}$', '').replace(r'\$', '')
        assert not o.get_parse_math() or '$' not in rest


@pytest.mark.sample(1)
@pytest.mark.parametrize('width', [3.25, 6.75])
def test_the_drawn_map_has_the_numbers_of_the_snapshot(width):
    snap = invent(20); view = discard_region(snap)
    image = draw_figure(view, width).axes[0].images[0]
    assert np.array_equal(np.asarray(image.get_array()), snap.arrays['attention_attribution'][view.layer, view.head])
    assert image.get_interpolation() == 'nearest' and image.get_clim() == (-view.limit, view.limit)
    view = guided_heads(snap)
    images = [ax.images[0] for ax in draw_figure(view, width).axes if ax.images]
    shown = [np.asarray(im.get_array()) for im in images]
    assert np.array_equal(shown[::2], view.attention) and np.array_equal(shown[1::2], view.target)
    assert {im.get_clim() for im in images} == {(0, view.limit)}


def test_a_pixel_of_a_written_map_has_the_colour_of_its_number(tmp_path):
    from PIL import Image
    view = view_of('ADDrop'); fig = draw_figure(view)
    pixels = np.asarray(Image.open(save_figure(fig, tmp_path/'a.png')).convert('RGB'))
    ax = fig.axes[0]
    marked = view.discarded | (view.values < -view.limit/8)
    for q, k in np.argwhere(~marked)[::7]:
        x, y = ax.transAxes.transform(((k + .5)/12, 1 - (q + .5)/12)) * 300/fig.dpi
        expected = np.array(signed((view.values[q, k] + view.limit)/(2*view.limit))[:3])*255
        assert np.abs(pixels[len(pixels) - int(y), int(x)] - expected).max() < 3


@pytest.mark.slow
def test_every_discarded_position_and_only_those_carries_a_cross():
    for n in (12, 60, 128):
        view = view_of('ADDrop', n)
        crosses = draw_figure(view).axes[0].collections[-1] # drawn last: nothing may hide them
        points = {tuple(map(int, xy)) for xy in crosses.get_offsets()}
        assert points == {(k, q) for q, k in np.argwhere(view.discarded)}


@pytest.mark.slow
def test_long_sentences_keep_every_bar_and_note_omitted_labels():
    view = view_of('SalLM', 128); fig = draw_figure(view)
    heights = [p.get_height() for ax in fig.axes for p in ax.patches
               if p.get_facecolor()[:3] == matplotlib.colors.to_rgb(blue)]
    assert np.allclose(heights, np.nan_to_num(view.attention))
    below = [t.get_text() for ax in fig.axes for t in ax.get_xticklabels()]
    assert tuple(below) == view.labels
    note = [t.get_text() for t in draw_figure(view_of('ADDrop', 128)).findobj(Text) if 'labelled' in t.get_text()]
    assert note == ['To save space, only every third of the 128 tokens is labelled.']


@pytest.mark.sample(1)
@pytest.mark.parametrize('n, width', [(8, 6.75), (30, 3.25)])
def test_a_discard_map_and_its_negative_differ_in_grey_by_marks(n, width):
    snap = invent(n)
    for sign in (1, -1):
        snap.arrays['attention_attribution'] = sign*np.random.default_rng(0).choice(
            [-1., 1.], snap.arrays['attention_attribution'].shape).astype(np.float32)
        view = discard_region(snap)
        fig = draw_figure(view, width)
        at = [set(map(tuple, np.round(o.get_offsets()).astype(int))) for o in fig.axes[0].collections
              if len(o.get_offsets()) and o.get_paths()[0].vertices.shape == (2, 2)]
        assert {(int(x), int(y)) for y, x in np.argwhere(view.values < 0)} in at
        assert 'clearly negative' in [o.get_text() for o in fig.texts]

def test_cells_too_small_for_marks_are_not_marked_and_noted():
    view = discard_region(invent(64, layers=1, heads=6))
    fig = draw_figure(view, 3.03)
    said = ' '.join(o.get_text() for o in fig.findobj(Text))
    assert 'too small to draw the regions' in said
    assert 'candidate discard region' not in said
    assert not fig.axes[0].collections
    crosses = ' '.join(' '.join(o.get_text() for o in draw_figure(discard_region(invent(30, layers=1, heads=6)),
                                                             3.03).findobj(Text)).split())
    assert 'Crosses without circles' in crosses and 'candidate discard region' in crosses


@pytest.mark.parametrize('width', [2.6, 3.03, 3.49])
def test_a_legend_in_several_lines_stays_above_its_histogram(width):
    check_legible(draw_figure(saliency_distribution(invented.image(0), invented.image(20)), width))


@pytest.mark.parametrize('font', ['sans', 'serif'])
def test_the_tilde_is_a_formula_above_its_letter(font):
    fig = draw_figure(view_of('SaliencyGuided'), font=font)
    marked = [o for o in fig.findobj(Text) if 'tilde' in o.get_text()]
    assert len(marked) >= 3
    assert all(o.get_parse_math() for o in marked)
    assert not any('X\u0303' in o.get_text() for o in fig.findobj(Text))
    check_legible(fig)


def test_the_first_box_of_a_line_has_its_left_border():
    fig = draw_figure(view_of('SaliencyGuided'))
    boxes = [p for ax in fig.axes if not ax.axison for p in ax.patches if p.get_linewidth() == pytest.approx(.4)]
    assert boxes and not any(p.get_clip_on() for p in boxes)


@pytest.mark.sample(1)
@pytest.mark.parametrize('n', [1, 2])
def test_the_smallest_sentences_are_legible(n):
    tokens = ['fine', '[SEP]'][:n]
    for make in makers.values(): check_legible(draw_figure(make(invent(tokens=tokens, layers=1, heads=6)), 3.25))


@pytest.mark.parametrize('sign', [-1, 0, 1])
def test_saliency_of_one_sign_only_and_no_saliency_are_legible(sign):
    snap = invent(12); snap.arrays['saliency'] = sign*np.abs(snap.arrays['saliency'])
    check_legible(draw_figure(attention_beside_saliency(snap)))


def test_special_tokens_are_greyed():
    for method in makers:
        colours = {o.get_text(): o.get_color() for o in texts_of(draw_figure(view_of(method)))}
        assert colours['[CLS]'] == colours['[SEP]'] != colours['still']


@pytest.mark.parametrize('method', ['SaliencyGuided', 'ADDrop', 'AttentionGuidance'])
def test_colour_bars_have_a_label_and_numbers(method):
    bars = [ax for ax in draw_figure(view_of(method)).axes if getattr(ax, '_colorbar', None)]
    assert len(bars) == 1
    axis = bars[0].xaxis if method == 'SaliencyGuided' else bars[0].yaxis
    assert axis.get_label().get_text() and len([t for t in axis.get_ticklabels() if t.get_text()]) >= 4


def test_the_agreement_and_the_residuals_are_printed():
    view = view_of('SalLM')
    assert any(f'{view.agreement:.2f}'.replace('-', '−') in o.get_text() for o in draw_figure(view).findobj(Text))
    view = view_of('AttentionGuidance')
    assert any(all(f'{r:.4f}' in o.get_text() for r in view.residuals) for o in draw_figure(view).findobj(Text))


@pytest.mark.slow
def test_values_that_are_not_finite_are_noted_below_the_figure():
    snap = invent(12)
    snap.arrays['attention_attribution'][:, :, 2, 2] = np.nan; snap.arrays['probabilities'][:] = np.nan
    snap.arrays['saliency'][4] = np.nan
    for make in makers.values():
        fig = draw_figure(make(snap)); check_legible(fig)
        if make is not guided_heads: assert any('non-finite' in o.get_text() for o in fig.findobj(Text))


@pytest.mark.slow
def test_figures_without_target_teacher_or_probabilities_are_drawn():
    drop = ('saliency_target', 'method_saliency', 'probabilities', 'masked_probabilities')
    for make in makers.values(): check_legible(draw_figure(make(invent(12, drop=drop))))


def test_with_many_classes_the_most_probable_and_the_label_are_shown():
    snap = invent(12, method='SaliencyGuided')
    snap.classes = [f'class number {i}' for i in range(30)]; snap.label = 29
    p = np.linspace(1, 2, 30)[::-1]; p[29] = .001
    snap.arrays.update(probabilities=p/p.sum(), masked_probabilities=p[::-1]/p.sum())
    fig = draw_figure(masked_sentence(snap)); check_legible(fig)
    texts = [o.get_text() for o in fig.findobj(Text)]
    assert 'class number 29 (label)' in texts and '8 of 30 classes are shown.' in texts


def test_a_target_that_is_not_binarised_is_drawn_without_shaded_columns():
    snap = invent(12)
    target = np.abs(snap.arrays['method_saliency']); snap.arrays['saliency_target'] = target/target.sum()
    for binarised, target in ((False, target/target.sum()), (True, invent(12).arrays['saliency_target'])):
        snap.arrays['saliency_target'] = target
        drawn = [p.get_facecolor()[:3] for ax in draw_figure(attention_beside_saliency(snap)).axes for p in ax.patches]
        shades = [o for o in drawn if o == matplotlib.colors.to_rgb(faint)]
        assert bool(shades) == binarised


@pytest.mark.slow
def test_a_users_style_neither_changes_a_figure_nor_is_changed(tmp_path):
    view = view_of('AttentionGuidance')
    plain = save_figure(draw_figure(view), tmp_path/'a.svg').read_bytes()
    theirs = {'font.size': 20, 'axes.facecolor': 'black', 'axes.grid': True, 'image.interpolation': 'bilinear',
              'text.color': 'red'}
    with matplotlib.rc_context(theirs):
        assert save_figure(draw_figure(view), tmp_path/'b.svg').read_bytes() == plain
        assert matplotlib.rcParams['font.size'] == 20


@pytest.mark.slow
def test_two_processes_write_the_same_bytes(tmp_path):
    code = '''
import sys; sys.path.insert(0, sys.argv[2])
from invented import invent; from salviz.figures.drawing import *
from salviz.figures.sheet import *; from salviz.views.base import *
for make in (attention_beside_saliency, masked_sentence, discard_region, guided_heads):
    for kind in ('pdf', 'svg', 'png'):
        save_figure(draw_figure(make(invent(9, 2, 6))), f'{sys.argv[1]}/{make.__name__}.{kind}')
print([m for m in ('torch', 'transformers', 'matplotlib.pyplot') if m in sys.modules])
'''
    for seed in '12':
        (tmp_path/seed).mkdir()
        done = subprocess.run([sys.executable, '-c', code, tmp_path/seed, os.path.dirname(invented.__file__)],
                              env={**os.environ, 'PYTHONHASHSEED': seed},
                              capture_output=True, text=True, check=True)
        assert done.stdout.strip() == '[]'
    files = sorted(p.name for p in (tmp_path/'1').iterdir())
    assert len(files) == 12
    for name in files: assert (tmp_path/'1'/name).read_bytes() == (tmp_path/'2'/name).read_bytes(), name


def test_fonts_are_embedded_as_type_42_and_text_stays_text(tmp_path):
    pdf = save_figure(draw_figure(view_of('SaliencyGuided')), tmp_path/'a.pdf').read_bytes()
    assert b'/FontFile2' in pdf and b'/Type3' not in pdf and b'/Type1' not in pdf
    assert set(re.findall(rb'/BaseFont /(?:\w+\+)?([\w-]+)', pdf)) == {b'DejaVuSans', b'DejaVuSans-Bold'}
    assert b'CreationDate' not in pdf


@pytest.mark.parametrize('path', ['a.jpg', 'a', 'a.eps'])
def test_other_file_types_raise_an_error(path):
    with pytest.raises(ValueError, match=r'must end in .pdf, .svg, .png or .pgf'):
        save_figure(draw_figure(view_of('SalLM')), path)


@pytest.mark.parametrize('kind', ['pdf', 'svg', 'png'])
def test_a_full_disk_leaves_the_old_files(kind, tmp_path):
    fig = draw_figure(view_of('SalLM'))
    for name in (f'a.{kind}', 'a.txt'): (tmp_path/name).write_text('old')
    with full_disk(), pytest.raises(OSError): save_figure(fig, tmp_path/f'a.{kind}', caption=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {f'a.{kind}': 'old', 'a.txt': 'old'}
    with pytest.raises(FileNotFoundError, match='save_figure: the folder .*none does not exist'):
        save_figure(fig, tmp_path/'none'/f'a.{kind}')


def test_a_notebook_can_show_a_figure_without_pyplot():
    data, size = draw_figure(view_of('SalLM'))._repr_png_()
    assert data[:4] == b'\x89PNG' and size['width'] == 675


@pytest.mark.slow
def test_the_image_in_a_notebook_is_small_and_looks_like_the_figure(monkeypatch):
    import IPython.display
    from PIL import Image
    fig = draw_figure(view_of('ADDrop'))
    (data, size), whole = fig._repr_png_(), io.BytesIO()
    with matplotlib.rc_context({'font.family': 'DejaVu Sans'}): fig.savefig(whole, dpi=200)
    assert len(data) < len(whole.getvalue()) / 2
    a, b = (np.asarray(Image.open(o).convert('RGB'), float) for o in (io.BytesIO(data), whole))
    assert a.shape == b.shape and np.abs(a - b).mean() < 1 and np.abs(a - b).max() < 64
    shown = []
    monkeypatch.setattr(IPython.display, 'display', lambda bundle, metadata, raw: shown.append((bundle, metadata)))
    fig._ipython_display_()
    assert base64.b64decode(shown[0][0]['image/png']) == data and shown[0][1]['image/png'] == size


# Other tasks and other kinds of input

def long_tagged(n):
    "Return a tagged sentence of `n` tokens with every third prediction wrong"
    tokens = invent(n).tokens
    gold = [None if o in ('[CLS]', '[SEP]') or o.startswith('##') else ('B-ORGANISATION', 'O', 'I-PER')[i % 3]
            for i, o in enumerate(tokens)]
    return invented.tagged(tokens=tokens, gold=gold,
                           said=[o and ('O' if i % 3 == 0 else o) for i, o in enumerate(gold)])


def long_translated(n):
    "Return a translation of a sentence of `n` tokens"
    snap, target = invent(n, layers=2, heads=3), [f'wort{i % 7}' for i in range(n)]
    snap.info.update(target_tokens=target, predicted_tokens=[o if i % 4 else 'other' for i, o in enumerate(target)])
    snap.arrays['target_probability'] = np.linspace(0, 1, n)
    return snap


seen = dict(digit=lambda: signal_view(invented.image(step=10)),
            colour=lambda: signal_view(invented.image(step=10, channels=3, height=32, width=32)),
            tall=lambda: signal_view(invented.image(step=10, height=40, width=10)),
            plain=lambda: signal_view(invented.image(masked=False)),
            long_series=lambda: signal_view(invented.series(time=150, features=12)),
            named=lambda: signal_view(invented.series(names=['acceleration along x', 'y', 'z', '$v^2$', 'w', ''])),
            square=lambda: signal_view(invented.series(time=50, features=50)),
            single=lambda: signal_view(invented.series(time=24, features=1, box=False)),
            distribution=lambda: saliency_distribution(invented.image(0), invented.image(30)),
            tagged=lambda: token_labels(invented.tagged()), long_tagged=lambda: token_labels(long_tagged(60)),
            masked=lambda: token_labels(invented.masked_words()), translated=lambda: translation(invented.translated()),
            long_translated=lambda: translation(long_translated(40)),
            scored=lambda: scored_sentence(invented.scored(), span=(0, 5)),
            far=lambda: scored_sentence(invented.scored(label=-3., said=12.)),
            shares=lambda: pattern_shares(invented.both()),
            large_shares=lambda: pattern_shares(invented.both(layers=12, heads=12)),
            together=lambda: view_for(invented.both()))


@pytest.mark.sample(2)
@pytest.mark.parametrize('name, width',
                         [*((o, 6.75) for o in seen),
                          *((o, 3.25) for o in ('digit', 'tall', 'long_series', 'named', 'distribution', 'long_tagged',
                                                'translated', 'far', 'shares'))])
def test_figures_of_other_tasks_and_inputs_are_legible_at_both_widths(name, width):
    fig = draw_figure(seen[name](), width)
    assert fig.get_figwidth() == width
    check_legible(fig)


def test_drawn_signals_have_the_numbers_of_the_view_on_common_scales():
    view = signal_view(invented.image(step=10, channels=3))
    shown = [ax.images[0] for ax in draw_figure(view).axes if ax.images]
    for im, want in zip(shown, (view.input, view.saliency, view.method_saliency, view.masked)):
        assert np.array_equal(im.get_array(), want) and im.get_interpolation() == 'nearest'
    assert shown[1].get_clim() == (-view.limit, view.limit)
    view = signal_view(invented.series())
    shown = [ax.images[0] for ax in draw_figure(view).axes if ax.images]
    for im, want in zip(shown, (view.input, view.saliency, view.masked)): assert np.array_equal(im.get_array(), want.T)
    assert shown[0].get_clim() == shown[2].get_clim() == view.span


def test_informative_cells_are_framed_in_every_panel():
    for view in (signal_view(invented.series()), signal_view(invented.series(time=20, features=20))):
        for ax in draw_figure(view).axes:
            if not ax.images or not len(ax.images[0].get_array()) > 1: continue
            ends = np.concatenate([s for s in ax.collections[-1].get_segments()])
            rows, columns = np.nonzero(view.informative.T)
            assert ends.min(0).tolist() == [columns.min() - .5, rows.min() - .5]
            assert ends.max(0).tolist() == [columns.max() + .5, rows.max() + .5]


def test_masked_cells_are_marked_and_only_those():
    for view in (signal_view(invented.series()), signal_view(invented.image(step=10))):
        is_masked = view.is_masked if view.modality == 'image' else view.is_masked.T
        ax = [ax for ax in draw_figure(view).axes if ax.images][2 + (view.method_saliency is not None)]
        dots = next(c for c in ax.collections if len(c.get_offsets()) == is_masked.sum())
        assert {(int(y), int(x)) for x, y in dots.get_offsets()} == {tuple(map(int, o)) for o in np.argwhere(is_masked)}
    small = signal_view(invented.image(height=60, width=60))   # no space for dots: pixels that are not masked fade
    fading = [ax for ax in draw_figure(small).axes if ax.images][3].images[1].get_array()
    assert np.array_equal(fading[..., 3] == 0, small.is_masked)


@pytest.mark.slow
def test_all_ten_digits_are_shown_and_ticks_keep_apart():
    s = invented.image()
    s.classes, s.arrays['probabilities'], s.arrays['masked_probabilities'] = [f'no. {i}' for i in range(10)], np.full(
        10, .1), np.full(10, .1)
    fig = draw_figure(signal_view(s)); check_legible(fig)
    texts = [o.get_text() for o in texts_of(fig)]
    assert {f'no. {i}' for i in range(10) if i != 1} | {'no. 1 (label)'} <= set(texts)
    assert not any('classes are shown' in o for o in texts)
    far = invented.series(time=20, features=20)
    far.arrays['input'] = np.linspace(-.15, 1.1, 400).reshape(20, 20)   # 0 lies close to the lower end
    check_legible(draw_figure(signal_view(far)))


def test_colours_below_and_above_zero_are_equally_far_from_white():
    for x in (.1, .25, .5): assert abs(sum(signed(.5 - x)[:3]) - sum(signed(.5 + x)[:3])) < .45
    assert abs(np.dot(signed(0.)[:3], [.299, .587, .114]) - np.dot(signed(1.)[:3], [.299, .587, .114])) < .1


def test_a_pattern_of_all_positions_has_an_undefined_fraction():
    view = pattern_shares(invented.both(), dict(half=np.eye(8)*.5 + .05, mine=np.eye(8)))
    assert np.isnan(view.fractions[0]).all()
    assert view.notes == ()
    assert 'Undefined for half, which covers every position.' in view.caption
    texts = [o.get_text() for o in texts_of(draw_figure(view))]
    assert 'half: undefined' in texts
    assert 'half: every position belongs to it, so the fraction is undefined.' in texts
    assert 'mine' in texts


def test_drawn_histograms_and_tables_have_the_numbers_of_the_view():
    view = saliency_distribution(invented.series(0), invented.series(30))
    before, after = [p for p in draw_figure(view).axes[-1].patches if type(p).__name__ == 'StepPatch']
    assert np.array_equal(before.get_data().values, view.fractions[0])
    assert np.array_equal(after.get_data().values, view.fractions[1])
    view = pattern_shares(invented.both(layers=4, heads=6))
    tables = [ax for ax in draw_figure(view).axes if ax.images and ax.images[0].get_array().shape == (4, 6)]
    for ax, values, guided in zip(tables, view.fractions, view.guided):
        assert np.array_equal(ax.images[0].get_array(), values)
        assert [o.get_text() for o in ax.texts] == [f'{100*x:.0f}' for x in values.ravel()]
        framed = {(round(p.get_y() + .44), round(p.get_x() + .44)) for p in ax.patches}
        assert framed == {tuple(o) for o in np.argwhere(guided)}
    assert len(tables) == 2


def test_wrong_predictions_are_visible_in_greyscale_and_unlabelled_tokens_have_no_prediction():
    view = token_labels(invented.tagged())
    texts = texts_of(draw_figure(view))
    assert [o.get_text() for o in texts if o.get_weight() == 'bold' and o.get_text() != view.title] == ['O']
    assert sorted(o.get_text() for o in texts if o.get_text() in ('O', 'B-PER', 'I-PER',
                                                                  'B-LOC')) == sorted(
        ['B-PER', 'I-PER', 'O', 'O', 'B-LOC', 'B-PER', 'O', 'O', 'O', 'O', 'B-LOC'])
    assert not any('␣' in o.get_text() for o in texts)
    view = translation(invented.translated())
    assert {o.get_text() for o in texts_of(draw_figure(view))
            if o.get_weight() == 'bold'} == {view.title, 'war', 'encoder, layer 1, mean over heads'}


@pytest.mark.slow
def test_hostile_labels_answers_targets_and_feature_names_are_drawn_literally():
    bad = ['<img onerror=1>', '$x^2$', '中文', '\u202eabc', '', 'a'*90, '\t', r'$\frac{']
    tagged = invented.tagged(gold=[None, *bad[:6], None], said=[None, *bad[1:7], None])
    pair = invented.translated(target=bad, said=bad[::-1])
    views = [token_labels(tagged), translation(pair), signal_view(invented.series(names=bad[:6])),
             pattern_shares(invented.both(), {o: np.eye(8) for o in bad[:3]})]
    for view in views:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            fig = draw_figure(view)
            check_legible(fig)
        texts = [o.get_text() for o in fig.findobj(Text)]
        assert sum('no glyph' in str(o.message) for o in caught) == 1 and '$x^2$' in texts and '□□' in texts


def test_values_that_are_not_finite_are_noted_below_figures_of_other_tasks():
    image, pair, score, both = invented.image(5), invented.translated(), invented.scored(), invented.both()
    image.arrays['saliency_map'][1, 1] = np.nan
    image.arrays['input'][0, 0, 0] = np.inf
    pair.arrays['attention'][:, :, 0, 0] = np.nan
    score.arrays['saliency'][2] = np.nan
    both.arrays['attention'][0, 0] = np.nan
    for view in (signal_view(image), translation(pair), scored_sentence(score), pattern_shares(both)):
        fig = draw_figure(view)
        check_legible(fig)
        assert any('non-finite' in o.get_text() for o in fig.texts), type(view)


@pytest.mark.slow
def test_several_views_are_one_figure_with_lettered_headings(tmp_path):
    views = view_for(invented.both())
    fig = draw_figure(views)
    assert fig.get_figheight() <= 9.1   # what fits on a page
    assert sum(draw_figure(o).get_figheight() for o in views) > 11
    assert draw_figure(views[1:]).get_figheight() == pytest.approx(sum(draw_figure(o).get_figheight()
                                                                       for o in views[1:]))
    check_legible(fig)
    assert [o.get_text()[:3] for o in fig.texts if o.get_weight() == 'bold'
            and o.get_text().startswith('(')] == ['(a)', '(b)', '(c)']
    assert save_figure(fig, tmp_path/'a.pdf').read_bytes() == save_figure(draw_figure(views),
                                                                          tmp_path/'b.pdf').read_bytes()
    with pytest.raises(ValueError, match='got list; create one with view_for'): draw_figure([])
    with pytest.raises(ValueError, match='got str; create one with view_for'): draw_figure([views[0], 'map'])


@pytest.mark.slow
@pytest.mark.parametrize('name', ['digit', 'named', 'translated', 'scored'])
def test_figures_of_other_tasks_are_the_same_bytes_every_time(name, tmp_path):
    for kind in ('pdf', 'svg', 'png'):
        one, two = (save_figure(draw_figure(seen[name]()), tmp_path/f'{i}.{kind}').read_bytes() for i in range(2))
        assert one == two


rows = [dict(kind='train', step=i, loss=2/(1 + i), task=1/(1 + i))
        for i in range(1, 9)] + [dict(kind='eval', step=8, spearman=-.2, mse=1., loss=1.)]
made = dict(image=invented.image, series=invented.series, tagged=invented.tagged, masked=invented.masked_words,
            translated=invented.translated, scored=invented.scored, both=invented.both)


@pytest.mark.slow
@pytest.mark.parametrize('kind', made)
def test_the_page_of_each_kind_of_snapshot_is_legible_and_shows_its_own_panel(kind):
    check_legible(picture(Selection(made[kind](20), other=made[kind](0))))
    fig = picture(Selection(made[kind](20), other=made[kind](0), rows=rows))
    texts = ' '.join(o.get_text() for o in fig.findobj(Text))
    own = dict(image=r'masked copy $\tilde{\mathrm{X}}$', series='time step', tagged='answer', masked='answer',
               translated='target', scored='predicted', both='sentence, coloured by saliency')[kind]
    assert own in texts
    assert 'Spearman' in texts
    assert ('attention of all heads' in texts) == (kind not in ('image', 'series'))
    assert ('saliency / largest magnitude' in texts) == (kind in ('image', 'series'))


@pytest.mark.slow
def test_missing_panels_of_a_signal_or_a_text_raise_an_error_with_the_reason():
    image, text = Selection(invented.image(20)), Selection(invented.tagged())
    for panel in ('heads', 'map', 'triptych'):
        with pytest.raises(ValueError, match='has no attention'): picture(image, panel)
    with pytest.raises(ValueError, match='nothing to compare with'): picture(image, 'compare')
    with pytest.raises(ValueError, match='contains a text, not an image or series'): picture(text, 'signal')
    for panel in ('signal', 'sentence', 'whatif'):
        assert any('masked copy' in o.get_text() for o in picture(image, panel).findobj(Text))
    for panel in ('heads', 'map', 'sentence', 'whatif'): check_legible(picture(text, panel))


def test_the_notes_of_a_signal_are_below_its_page():
    snap = invented.image(20)
    snap.arrays['saliency_map'][0, 0] = np.nan
    for panel in (None, 'signal'):
        assert any('non-finite' in o.get_text() for o in picture(Selection(snap, rows=rows), panel).texts)


def test_a_map_without_a_pooled_row_and_without_saliency_colours_the_sentence_by_the_mean_row():
    snap = invented.both()
    del snap.arrays['saliency'], snap.info['pooled_row']
    assert any('coloured by attention, mean over rows' in o.get_text()
               for o in picture(Selection(snap), 'sentence').texts)


def test_a_head_with_uniform_attention_is_not_a_dark_block():
    s = invented.snapshot()
    s.arrays['attention'] = np.full((2, 3, 8, 8), 1/8)
    at = picture(Selection(s), 'map').axes[0].images[0]
    # four times what uniform attention has, on a square-root scale
    assert at.norm.vmax == pytest.approx(.5) and float(at.norm(1/8)) == pytest.approx(.5)
    tiles = picture(Selection(s), 'heads').axes[0].images[0].get_array()
    assert np.ma.filled(tiles, np.nan)[np.isfinite(np.ma.filled(tiles, np.nan))] == pytest.approx(.25)
    s.arrays['attention'] = np.tile(np.eye(8), (2, 3, 1, 1))
    assert picture(Selection(s), 'map').axes[0].images[0].norm.vmax == 1


@pytest.mark.slow
def test_24_threads_write_the_figures_of_one_and_keep_the_settings():
    "matplotlib's settings are global: a figure drawn with the settings of another thread was different, or failed"
    views = [view_of(name, 4) for name in ('SaliencyGuided', 'SalLM')]
    jobs = [(views[i % 2], ('png', 'svg', 'svg')[i % 3]) for i in range(24)]
    alone = [rendered(draw_figure(view), kind, dpi=40) for view, kind in jobs[:6]]
    before = dict(matplotlib.rcParams)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-3)  # threads take turns as often as on a machine with many processors
    try:
        with ThreadPoolExecutor(24) as threads:
            written = list(threads.map(lambda job: rendered(draw_figure(job[0]), job[1], dpi=40), jobs))
    finally: sys.setswitchinterval(interval)
    assert written == alone*4
    assert dict(matplotlib.rcParams) == before


def test_half_of_a_surrogate_pair_is_a_box_in_the_figure_and_its_caption(tmp_path):
    "It raised an error after the figure was written, which left a figure without its caption"
    snap = invent(tokens=['[CLS]', 'a\ud83db', 'film', '[SEP]'], layers=2, heads=6, method='SalLM')
    snap.texts = ('a\ud83db film',)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)
        fig = draw_figure(attention_beside_saliency(snap))
    fig.caption = 'About a\ud83db film.'
    save_figure(fig, tmp_path/'a.png', caption=True)
    assert (tmp_path/'a.txt').read_text(encoding='utf-8').startswith('About a□b film.')
    assert (tmp_path/'a-caption.tex').read_text(encoding='utf-8').isascii()


def test_nothing_is_written_if_one_of_the_files_cannot_be(tmp_path):
    fig = draw_figure(view_of('SalLM'))
    fig.caption, fig.citations = 'A caption.', [17] # no text
    with pytest.raises(TypeError): save_figure(fig, tmp_path/'a.png', caption=True)
    assert not list(tmp_path.iterdir())


def test_a_text_of_100000_characters_is_shortened_fast(tmp_path):
    "Very long texts are not measured as a whole, because matplotlib's time grows with the square of the length"
    long = 'x'*100_000
    snap = invent(tokens=['[CLS]', long, 'film', '[SEP]'], layers=2, heads=6, method='SalLM')
    began = time.process_time()
    fig = draw_figure(attention_beside_saliency(snap), titles=[long])
    fig.caption = long
    save_figure(fig, tmp_path/'a.png', caption=True)
    assert time.process_time() - began < 10
    cut = fitted(long, 60, 7)
    assert text_width(cut, 7) <= 60 < text_width('x' + cut, 7)
