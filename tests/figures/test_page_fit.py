"""No figure is cut off at the edge of its page or higher than the text area of its venue, in any width and size;
otherwise there is a warning."""
import io
import warnings
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.transforms import Bbox
from PIL import Image

import every_kind
import invented
from salviz.figures.drawing import beyond_page, figure_kinds, figure_style
from salviz.figures.sheet import draw_figure as drawn_figure
from salviz.figures.kinds import figure, venues
from salviz.views.base import discard_region, signal_view
from invented import invent

widths, sizes = ('acl', 'neurips'), (None, 'caption')


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
    "Return the sources of each kind by shape, which are created on first use"
    made = {}
    def of(shape):
        if shape not in made: made[shape] = every_kind.everything(tmp_path_factory.mktemp(shape), shape)
        return made[shape]
    return of


def ink_outside(fig):
    "Return the numbers of pixel rows or columns with ink beyond the left, right, top and bottom edge"
    buffer, (width, height) = io.BytesIO(), fig.get_size_inches()
    with figure_style(fig.families, fig.scale):
        fig.savefig(buffer, format='png', dpi=144, bbox_inches=Bbox([[-.5, -.5], [width + .5, height + .5]]))
    dark = np.asarray(Image.open(buffer).convert('L')) < 200
    left, top = dark[:, :70], dark[:70]
    right, bottom = dark[:, -70:], dark[-70:]
    return [int(o.any(axis).sum()) for o, axis in ((left, 0), (right, 0), (top, 1), (bottom, 1))]


def drawn(source, kind, **kw):
    "Return the figure and the warnings"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        fig = figure(source, kind, **kw)
    return fig, [said for o in caught if 'points' not in (said := str(o.message)) and ' shortened to fit' not in said]


def check_fits(source, kind, width, size, options):
    "Check that nothing is cut off, and that a figure that is too high gives a warning"
    fig, said = drawn(source, kind, width=width, font_size=size, **options)
    assert ink_outside(fig) == [0]*4 and not beyond_page(fig)
    too_high = fig.get_figheight() > venues[width].height + .01
    assert len(said) == too_high and all('inches high' in o and 'choose ' in o for o in said)
    return fig, said


names = [*figure_kinds(), 'series']
narrow = [('triptych', 'short'), ('evolution', 'long'), ('series', 'sixty'), ('series', 'three'),
          ('discard_region', 'long'), ('attention_map', 'short')]
fast = [(kind, 'long', 'acl', None) for kind in names] + [(*o, 'acl', 'caption') for o in narrow]
fast += [('signal', 'short', 'neurips', None), ('masked_sentence', 'short', 'acl', None),
         ('attention_beside_saliency', 'sixty', 'acl', None)]
every = [(kind, shape, width, size) for shape in every_kind.shapes for kind in names for width in widths
         for size in sizes
         if (kind, shape) != ('number_over_steps', 'three')] # one ordinary token has no rank correlation


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind, shape, width, size', fast)
def test_no_figure_is_cut_or_higher_than_its_page(kind, shape, width, size, sources):
    source, options = sources(shape)[kind]
    check_fits(source, options.get('kind', kind), width, size, {k: v for k, v in options.items() if k != 'kind'})


@pytest.mark.slow
@pytest.mark.parametrize('kind, shape, width, size', [o for o in every if o not in fast])
def test_no_figure_of_any_kind_is_cut_in_any_width_and_size(kind, shape, width, size, sources):
    source, options = sources(shape)[kind]
    check_fits(source, options.get('kind', kind), width, size, {k: v for k, v in options.items() if k != 'kind'})


@pytest.mark.slow
@pytest.mark.parametrize('width', widths)
@pytest.mark.parametrize('of', ['images', 'series'])
def test_three_signals_fit_on_one_page(of, width):
    if of == 'series': probes = [invented.series(0, p) for p in range(3)]
    else:
        probes = [every_kind.an_image('long', 10 + p) for p in range(3)]
        for o in probes: o.classes = [str(i) for i in range(10)]
    fig, said = check_fits(probes, 'signal', width, None, {})
    assert not said and len([ax for ax in fig.axes if ax.images]) >= 9


def test_ink_beyond_the_page_is_named_with_a_remedy():
    fig = drawn_figure(signal_view(invented.image(10)), 5.5)
    fig.text(.99, .5, 'a word at the edge')
    (far, what), = beyond_page(fig)
    assert what == "'a word at the edge'" and far > 20
    assert ink_outside(fig)[1] > 0


@pytest.mark.slow
def test_a_figure_that_is_too_high_gives_a_warning_with_a_remedy(sources):
    source, _ = sources('sixty')['token_labels']
    fig, (said,) = drawn(source, 'token_labels', width='acl')
    assert f'{fig.get_figheight():.1f} inches high, more than the text area of a page (9.72)' in said
    assert 'a larger width' in said
    _, (said,) = drawn(source, 'token_labels', width=6.75, font_size=14)
    assert 'choose a smaller font_size' in said
    run, _ = sources('short')['discard_region']
    _, (said,) = drawn(run, 'discard_region', layer=0, head=[0, 1, 2], probe=[0, 1, 2], width='neurips', columns=1)
    assert 'columns=2' in said and 'fewer panels' in said
    with pytest.raises(ValueError, match='page_height must be between 2 and 40 inches, got 0'):
        figure(run, 'discard_region', page_height=0)
    assert not drawn(source, 'token_labels', width='acl', page_height=30)[1]


def test_letters_as_large_as_the_captions_shrink_until_the_figure_fits_its_page(sources):
    source, options = sources('sixty')['coloured_sentences']
    with pytest.warns(UserWarning, match=r"does not fit on a page .* at the font size of the captions \(10 points\)"):
        fig = figure(source, 'coloured_sentences', width='acl', font_size='caption')
    assert fig.get_figheight() <= venues['acl'].height + .01 and 7 <= 7*fig.scale < 10


@pytest.mark.slow
def test_marks_of_a_region_are_inside_its_cells_and_keep_the_colours():
    "Compared with the same map without a region, only lines differ"
    view = discard_region(invent(50, layers=3, heads=4), 1, 1)
    bare = replace(view, candidates=np.zeros_like(view.candidates), discarded=np.zeros_like(view.discarded))
    only = replace(view, discarded=np.zeros_like(view.discarded))
    def pixels(v):
        fig = drawn_figure(v, 6.75)
        ax = next(o for o in fig.axes if o.images)
        assert len(ax.images) == 1
        buffer = io.BytesIO()
        with figure_style(fig.families): fig.savefig(buffer, format='png', dpi=432)
        image, n = np.asarray(Image.open(buffer).convert('RGB'), int), len(v.labels)
        box = ax.get_position()
        high, wide = image.shape[:2]
        middles = (np.arange(n) + .5)/n
        rows = ((1 - box.y1 + middles*box.height)*high).round().astype(int)
        columns = ((box.x0 + middles*box.width)*wide).round().astype(int)
        return image[np.ix_(rows, columns)]
    assert np.array_equal(pixels(only), pixels(bare))
