"Figures: legible, faithful to the view, and the same bytes every time"
import os, re, subprocess, sys, warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text

from salviz.figures import blue, faint, figure, save_figure, signed
from salviz.views import attention_beside_saliency, discard_map, guided_heads, masked_sentence
from test_views import invent

makers = dict(SalLM=attention_beside_saliency, SaliencyGuided=masked_sentence, ADDrop=discard_map, AttentionGuidance=guided_heads)
hostile = ['[CLS]', '<img onerror=alert(1)>', '$x^2$', '中文', 'مرحبا', '😀', '👩\u200d👩\u200d👧', '\u202eabc', '-->', r'$\frac{', '\t',
           'unbelievably'*4, 'a\nb', '[SEP]']


def view_of(method, n=12, **kwargs): return makers[method](invent(n, layers=2, heads=6, method=method, **kwargs))


def texts_of(fig):
    "All texts of `fig` that a reader can see"
    return [o for o in fig.findobj(Text) if o.get_visible() and o.get_text().strip() and (o.axes is None or o.axes.axison or o in o.axes.texts)]


def check_legible(fig):
    "No text leaves the figure, none overlaps another"
    fig.set_dpi(288)
    renderer = fig.canvas.get_renderer()
    fig.draw_without_rendering()
    seen = texts_of(fig)
    b, texts = np.array([o.get_window_extent(renderer).extents for o in seen])/4, [o.get_text() for o in seen] # points: left, bottom, right, top
    width, height = fig.get_size_inches()*72
    out = (b[:, 0] < -.1) | (b[:, 1] < -.1) | (b[:, 2] > width + .1) | (b[:, 3] > height + .1)
    assert not out.any(), [t for t, o in zip(texts, out) if o]
    across = np.minimum(b[:, None, 2], b[None, :, 2]) - np.maximum(b[:, None, 0], b[None, :, 0])
    along = np.minimum(b[:, None, 3], b[None, :, 3]) - np.maximum(b[:, None, 1], b[None, :, 1])
    pairs = np.argwhere(np.triu((across > .25) & (along > .25), 1))
    assert not len(pairs), [(texts[i], texts[j]) for i, j in pairs]


@pytest.mark.parametrize('method', makers)
@pytest.mark.parametrize('n, width', [(3, 6.75), (12, 6.75), (60, 6.75), (128, 6.75), (40, 3.25)])
def test_no_text_overlaps_another_or_leaves_the_figure(method, n, width):
    fig = figure(view_of(method, n), width)
    assert fig.get_figwidth() == width
    check_legible(fig)


@pytest.mark.parametrize('method', makers)
def test_hostile_tokens_are_drawn_literally_with_one_warning(method, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        fig = figure(view_of(method, tokens=hostile))
        svg = save_figure(fig, tmp_path/'a.svg').read_text()
        save_figure(fig, tmp_path/'a.pdf')
        check_legible(fig)
    assert [str(o.message)[:34] for o in caught] == ['DejaVu Sans has no glyph for 6 of ']
    assert '<img' not in svg and '<script' not in svg
    texts = ' '.join(o.get_text() for o in fig.findobj(Text))
    for token in ('$x^2$', '□□', r'$\frac{', '<img on', 'a⏎b', '…'): assert token in texts


@pytest.mark.parametrize('text', ['$x^2$', 'a_{b}$'])
def test_classes_and_labels_are_no_formulas(text):
    snap = invent(12, method='SaliencyGuided'); snap.classes[3] = text
    texts = [o for o in texts_of(figure(masked_sentence(snap))) if text in o.get_text()]
    assert len(texts) == 2 and not any(o.get_parse_math() for o in texts)


@pytest.mark.parametrize('width', [3.25, 6.75])
def test_the_drawn_map_holds_the_snapshots_numbers(width):
    snap = invent(20); view = discard_map(snap)
    image = figure(view, width).axes[0].images[0]
    assert np.array_equal(np.asarray(image.get_array()), snap.arrays['attention_attribution'][view.layer, view.head])
    assert image.get_interpolation() == 'nearest' and image.get_clim() == (-view.limit, view.limit)
    view = guided_heads(snap)
    images = [ax.images[0] for ax in figure(view, width).axes if ax.images]
    shown = [np.asarray(im.get_array()) for im in images]
    assert np.array_equal(shown[::2], view.attention) and np.array_equal(shown[1::2], view.target)
    assert {im.get_clim() for im in images} == {(0, view.limit)}


def test_a_pixel_of_a_written_map_has_the_colour_of_its_number(tmp_path):
    from PIL import Image
    view = view_of('ADDrop'); fig = figure(view)
    pixels = np.asarray(Image.open(save_figure(fig, tmp_path/'a.png')).convert('RGB'))
    ax = fig.axes[0]
    marked = view.discarded | (view.values < -view.limit/8)
    for q, k in np.argwhere(~marked)[::7]:
        x, y = ax.transAxes.transform(((k + .5)/12, 1 - (q + .5)/12)) * 300/fig.dpi
        expected = np.array(signed((view.values[q, k] + view.limit)/(2*view.limit))[:3])*255
        assert np.abs(pixels[len(pixels) - int(y), int(x)] - expected).max() < 3


def test_every_discarded_position_and_only_those_carries_a_cross():
    for n in (12, 60, 128):
        view = view_of('ADDrop', n)
        crosses = figure(view).axes[0].collections[-1] # drawn last: nothing may hide them
        points = {tuple(map(int, xy)) for xy in crosses.get_offsets()}
        assert points == {(k, q) for q, k in np.argwhere(view.discarded)}


def test_long_sentences_keep_every_bar_and_say_which_labels_are_left_out():
    view = view_of('SalLM', 128); fig = figure(view)
    heights = [p.get_height() for ax in fig.axes for p in ax.patches if p.get_facecolor()[:3] == matplotlib.colors.to_rgb(blue)]
    assert np.allclose(heights, np.nan_to_num(view.attention))
    below = [t.get_text() for ax in fig.axes for t in ax.get_xticklabels()]
    assert tuple(below) == view.labels
    note = [t.get_text() for t in figure(view_of('ADDrop', 128)).findobj(Text) if 'labelled' in t.get_text()]
    assert note == ['For want of room, every third token is labelled (128 tokens).']


@pytest.mark.parametrize('n', [1, 2])
def test_the_smallest_sentences_are_legible(n):
    tokens = ['fine', '[SEP]'][:n]
    for make in makers.values(): check_legible(figure(make(invent(tokens=tokens, layers=1, heads=6)), 3.25))


@pytest.mark.parametrize('sign', [-1, 0, 1])
def test_saliency_of_one_sign_only_and_no_saliency_are_legible(sign):
    snap = invent(12); snap.arrays['saliency'] = sign*np.abs(snap.arrays['saliency'])
    check_legible(figure(attention_beside_saliency(snap)))


def test_special_tokens_are_greyed():
    for method in makers:
        colours = {o.get_text(): o.get_color() for o in texts_of(figure(view_of(method)))}
        assert colours['[CLS]'] == colours['[SEP]'] != colours['still']


@pytest.mark.parametrize('method', ['SaliencyGuided', 'ADDrop', 'AttentionGuidance'])
def test_colour_bars_have_a_label_and_numbers(method):
    bars = [ax for ax in figure(view_of(method)).axes if getattr(ax, '_colorbar', None)]
    assert len(bars) == 1
    axis = bars[0].xaxis if method == 'SaliencyGuided' else bars[0].yaxis
    assert axis.get_label().get_text() and len([t for t in axis.get_ticklabels() if t.get_text()]) >= 4


def test_the_agreement_and_the_residuals_are_printed():
    view = view_of('SalLM')
    assert any(f'{view.agreement:.2f}'.replace('-', '−') in o.get_text() for o in figure(view).findobj(Text))
    view = view_of('AttentionGuidance')
    assert any(all(f'{r:.4f}' in o.get_text() for r in view.residuals) for o in figure(view).findobj(Text))


def test_values_that_are_not_finite_are_noted_below_the_figure():
    snap = invent(12); snap.arrays['attention_attribution'][:, :, 2, 2] = np.nan; snap.arrays['probabilities'][:] = np.nan
    snap.arrays['saliency'][4] = np.nan
    for make in makers.values():
        fig = figure(make(snap)); check_legible(fig)
        if make is not guided_heads: assert any('not finite' in o.get_text() for o in fig.findobj(Text))


def test_pictures_without_target_teacher_or_probabilities_are_drawn():
    drop = ('saliency_target', 'method_saliency', 'probabilities', 'masked_probabilities')
    for make in makers.values(): check_legible(figure(make(invent(12, drop=drop))))


def test_with_many_classes_the_likeliest_and_the_label_are_shown():
    snap = invent(12, method='SaliencyGuided')
    snap.classes = [f'class number {i}' for i in range(30)]; snap.label = 29
    p = np.linspace(1, 2, 30)[::-1]; p[29] = .001
    snap.arrays.update(probabilities=p/p.sum(), masked_probabilities=p[::-1]/p.sum())
    fig = figure(masked_sentence(snap)); check_legible(fig)
    texts = [o.get_text() for o in fig.findobj(Text)]
    assert 'class number 29 (label)' in texts and '8 of 30 classes are shown.' in texts


def test_a_target_that_is_not_binarised_is_drawn_without_shaded_columns():
    snap = invent(12); target = np.abs(snap.arrays['method_saliency']); snap.arrays['saliency_target'] = target/target.sum()
    for binarised, target in ((False, target/target.sum()), (True, invent(12).arrays['saliency_target'])):
        snap.arrays['saliency_target'] = target
        drawn = [p.get_facecolor()[:3] for ax in figure(attention_beside_saliency(snap)).axes for p in ax.patches]
        shades = [o for o in drawn if o == matplotlib.colors.to_rgb(faint)]
        assert bool(shades) == binarised


def test_a_users_style_neither_changes_a_figure_nor_is_changed(tmp_path):
    view = view_of('AttentionGuidance')
    plain = save_figure(figure(view), tmp_path/'a.svg').read_bytes()
    theirs = {'font.size': 20, 'axes.facecolor': 'black', 'axes.grid': True, 'image.interpolation': 'bilinear', 'text.color': 'red'}
    with matplotlib.rc_context(theirs):
        assert save_figure(figure(view), tmp_path/'b.svg').read_bytes() == plain
        assert matplotlib.rcParams['font.size'] == 20


def test_two_processes_write_the_same_bytes(tmp_path):
    code = '''
import sys; sys.path.insert(0, sys.argv[2])
from test_views import invent; from salviz.figures import *; from salviz.views import *
for make in (attention_beside_saliency, masked_sentence, discard_map, guided_heads):
    for kind in ('pdf', 'svg', 'png'): save_figure(figure(make(invent(9, 2, 6))), f'{sys.argv[1]}/{make.__name__}.{kind}')
print([m for m in ('torch', 'transformers', 'matplotlib.pyplot') if m in sys.modules])
'''
    for seed in '12':
        (tmp_path/seed).mkdir()
        done = subprocess.run([sys.executable, '-c', code, tmp_path/seed, os.path.dirname(__file__)], env={**os.environ, 'PYTHONHASHSEED': seed},
                              capture_output=True, text=True, check=True)
        assert done.stdout.strip() == '[]'
    files = sorted(p.name for p in (tmp_path/'1').iterdir())
    assert len(files) == 12
    for name in files: assert (tmp_path/'1'/name).read_bytes() == (tmp_path/'2'/name).read_bytes(), name


def test_fonts_are_embedded_as_type_42_and_text_stays_text(tmp_path):
    pdf = save_figure(figure(view_of('SaliencyGuided')), tmp_path/'a.pdf').read_bytes()
    assert b'/FontFile2' in pdf and b'/Type3' not in pdf and b'/Type1' not in pdf
    assert set(re.findall(rb'/BaseFont /(?:\w+\+)?([\w-]+)', pdf)) == {b'DejaVuSans', b'DejaVuSans-Bold'}
    assert b'CreationDate' not in pdf


@pytest.mark.parametrize('path', ['a.jpg', 'a', 'a.pgf'])
def test_other_file_kinds_are_refused_by_name(path):
    with pytest.raises(ValueError, match=r'must end in .pdf, .svg or .png'): save_figure(figure(view_of('SalLM')), path)


def test_a_notebook_can_show_a_figure_without_pyplot():
    data, size = figure(view_of('SalLM'))._repr_png_()
    assert data[:4] == b'\x89PNG' and size['width'] == 675
