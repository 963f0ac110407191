"""Figures in the author's figure, style, words and colours: nothing else changes, and nothing looks like a finding"""
import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

import every_kind
import salviz
from salviz.figures import captions
from salviz.figures.captions import sentences_of, short_caption
from salviz.figures.drawing import figure_kinds, save_figure
from salviz.figures.kinds import figure
from salviz.figures.remaking import remake
from salviz.metrics.statistics import result_table

kinds = figure_kinds()


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "Return the source of each kind, and its options"
    return every_kind.everything(tmp_path_factory.mktemp('runs'))


@pytest.fixture
def drops(made): return made['accuracy_drop'][0]


def own_figure(width=9, height=4, **kw):
    "Return a figure without pyplot"
    fig = Figure(figsize=(width, height), **kw)
    FigureCanvasAgg(fig)
    return fig


def half_finished(parts):
    "Return a figure of an author with `parts` free Axes and one that is finished, and the state of the latter"
    fig = own_figure(3*parts + 3, 3, layout='constrained')
    *free, theirs = fig.subplots(1, parts + 1)
    theirs.plot([1, 2], [3, 4], label='mine')
    theirs.set(title='mine $x^2$', xlabel='theirs')
    return fig, free, theirs


def state(fig, ax):
    "Return what must not change: the settings, the size of the figure, and everything in `ax`"
    texts = [text.get_text() for text in (ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts)]
    return dict(matplotlib.rcParams), fig.get_size_inches().tolist(), len(ax.get_children()), texts, ax.axis()


@pytest.mark.sample(8)
@pytest.mark.parametrize('kind', kinds)
def test_every_kind_stands_in_the_authors_figure_and_changes_nothing_else(kind, made):
    source, options = made[kind]
    if kinds[kind].in_axes:
        parts = dict(triptych=3, compared=3, pattern_residual=3, evolution=3).get(kind, 1)
        fig, free, theirs = half_finished(parts)
        before = state(fig, theirs)
        more = dict(most=3) if kind == 'evolution' else {}
        drawn = figure(source, kind, ax=free if parts > 1 else free[0], **options, **more)
        assert drawn.axes == tuple(free) and all(ax.has_data() for ax in free)
    else:
        fig = own_figure()
        left, right = fig.subfigures(1, 2, width_ratios=(2, 1))
        theirs = right.subplots()
        theirs.plot([1, 2], [3, 4])
        before = state(fig, theirs)
        drawn = figure(source, kind, ax=left, **options)
        assert left.findobj(Text) and len(fig.subfigs) == 2 and right.axes == [theirs]
        with pytest.raises(ValueError, match='needs a SubFigure as ax .* kinds that are drawn in Axes: attention_map'):
            figure(source, kind, ax=theirs, **options)
    assert state(fig, theirs) == before
    assert drawn.caption and drawn.facts[-1].startswith('Drawn with: salviz')
    fig.canvas.draw()
    fig.savefig('/dev/null', format='pdf')


@pytest.mark.parametrize('fill', [lambda fig: fig.subfigures(1, 2)[0], lambda fig: fig.subfigures(2, 1)[1]])
def test_kinds_for_axes_divide_a_subfigure(fill, made):
    fig = own_figure(layout='constrained')
    part = fill(fig)
    drawn = figure(made['triptych'][0], 'triptych', ax=part)
    assert len(drawn.axes) == 3 and {ax.get_title() for ax in drawn.axes} == {
        'attention', 'attribution', 'difference of ranks'}
    assert drawn.handles[1] and set(drawn.handles[1]) <= {'candidate discard region', 'discarded', 'clearly negative',
                                                          'tied: no ranks'}


def test_panels_go_to_the_axes_of_their_names(made):
    fig, free, _ = half_finished(3)
    names = 'attention', 'attribution', 'difference of ranks'
    run = made['triptych'][0]
    figure(run, 'triptych', layer=1, head=0, ax=dict(zip(names, free[::-1])))
    assert [ax.get_title() for ax in free] == list(names[::-1])
    assert np.array_equal(np.asarray(free[-1].images[0].get_array()), run.snapshot().at('attention', 1)[0])
    for wrong, message in ((dict(a=free[0]), "must have the keys 'attention', 'attribution'"),
                           (free[:2], 'one Axes for each of the 3 panels, got 2'),
                           ('a', 'ax must be Axes of matplotlib')):
        with pytest.raises(ValueError, match=message): figure(run, 'triptych', ax=wrong)
    with pytest.raises(ValueError, match='columns= applies to a whole page; omit it if you pass ax='):
        figure(run, 'triptych', ax=free, columns=1)


def test_several_steps_are_told_apart_by_their_titles(made):
    fig, free, _ = half_finished(2)
    drawn = figure(made['attention_map'][0], 'attention_map', step=[0, 20], layer=0, head=0, ax=free)
    assert [ax.get_title() for ax in free] == ['step 0', 'step 20']
    assert 'step 0: ' in drawn.caption and 'step 20: ' in drawn.caption
    figure(made['attention_map'][0], 'attention_map', step=0, layer=0, head=0, ax=free[0], titles='mine')
    assert free[0].get_title() == 'step 0'   # what the Axes have stays


def test_a_plot_of_the_author_keeps_its_limits_and_labels(drops):
    fig, (ax,), _ = half_finished(1)
    ax.plot([0, 1], [-5, 5], label='mine')
    ax.set(xlabel='x', xlim=(0, 1))
    figure(drops, 'accuracy_drop', ax=ax)
    assert ax.get_xlim() == (0, 1) and ax.get_xlabel() == 'x' and ax.get_ylim()[0] < -4
    assert 'mine' in [text.get_text() for text in ax.get_legend().get_texts()]


def test_tokens_with_dollars_are_texts_and_sizes_are_the_authors(made):
    fig, (ax,), theirs = half_finished(1)
    with matplotlib.rc_context({'xtick.labelsize': 12, 'ytick.labelsize': 12, 'font.size': 14}):
        figure(made['attention_map'][0], 'attention_map', layer=0, head=0, ax=ax)
    labels = [label for label in ax.get_yticklabels() if label.get_text()]
    assert not any(label.get_parse_math() for label in labels) and min(label.get_fontsize() for label in labels) >= 10
    assert theirs.title.get_parse_math()


# Style

def test_figures_follow_the_users_style_outside_a_venue(drops, tmp_path):
    theirs = {'axes.prop_cycle': "cycler('color', ['#123456', '#abcdef'])", 'lines.linewidth': 3, 'font.size': 9,
              'font.family': 'DejaVu Serif'}
    plain, venue = figure(drops, 'accuracy_drop'), figure(drops, 'accuracy_drop', width='acl')
    with matplotlib.rc_context(theirs):
        followed, also_venue = figure(drops, 'accuracy_drop'), figure(drops, 'accuracy_drop', width='acl')
        file = save_figure(followed, tmp_path/'a.pdf')
    def lines(fig): return [(to_rgb(o.get_color()), o.get_linewidth()) for o in fig.axes[0].lines]
    assert lines(followed)[0] == (to_rgb('#123456'), pytest.approx(3*9/7)) and lines(venue) == lines(also_venue)
    assert followed.families[0] == 'DejaVu Serif' and followed.scale == pytest.approx(9/7) and plain.scale == 1
    assert remake(file).same   # without these settings, because the file records them


def test_a_style_sheet_replaces_the_current_settings(drops):
    with matplotlib.rc_context({'lines.linewidth': 5}):
        fig = figure(drops, 'accuracy_drop', style='ggplot')
    assert to_rgb(fig.axes[0].lines[0].get_color()) == to_rgb('#e24a33')
    assert fig.axes[0].lines[0].get_linewidth() < 2 and fig.get_facecolor()[:3] == (1, 1, 1)
    with pytest.raises(ValueError, match='style must be a style sheet of matplotlib.* available: ggplot'):
        figure(drops, 'accuracy_drop', style='ggplott')
    pale = figure(drops, 'accuracy_drop', style='dark_background')   # on a white page
    assert all(to_rgb(text.get_color())[0] < .6 for text in pale.findobj(Text) if text.get_text())


# Words, order, colours and limits

def test_names_order_and_colours_in_figure_legend_and_caption(drops):
    fig = figure(drops, 'accuracy_drop', names={'integrated_gradients': 'ours'}, order=['random'],
                 colours={'integrated_gradients': '#00ff00'}, caption='long')
    texts = [text.get_text() for text in fig.findobj(Text)]
    assert 'ours' in texts and 'integrated gradients' not in texts and texts.index('random') < texts.index('ours')
    assert to_rgb('#00ff00') in {to_rgb(line.get_color()) for line in fig.axes[0].lines}
    with pytest.raises(ValueError, match="names has 'SalLM', which the figure does not show; available: integrated"):
        figure(drops, 'accuracy_drop', names=dict(SalLM='theirs'))
    with pytest.raises(ValueError, match='must be a colour'): figure(drops, 'accuracy_drop', colours=dict(random='rot'))


def test_a_choice_that_a_kind_does_not_support_is_rejected_with_those_that_it_supports(made):
    source, options = made['head_map']
    message = 'Grid does not support order=; it supports names, cmap, limits, ax, caption, style'
    with pytest.raises(ValueError, match=message):
        figure(source, 'head_map', order=['0'], **options)
    with pytest.raises(ValueError, match='accuracy_drop has no option p; available: '):
        figure(made['accuracy_drop'][0], 'accuracy_drop', p=1)


@pytest.mark.parametrize('kind', ['accuracy_drop', 'gradient_boxes', 'pairs', 'pareto'])
def test_values_beyond_the_limits_are_counted_in_figure_and_caption(kind, made):
    source, options = made[kind]
    plain = figure(source, kind, **options).axes[0]
    axis = 'y' if kind in ('accuracy_drop', 'pareto') else 'x'
    low, high = getattr(plain, f'get_{axis}lim')()
    ends = (low, (low + high)/2)
    fig = figure(source, kind, limits=ends, **options)
    assert getattr(fig.axes[0], f'get_{axis}lim')() == pytest.approx(ends)
    assert any('values lie beyond the' in text.get_text() for text in fig.texts)
    bare = figure(source, kind, limits=ends, heading='none', **options)
    assert 'lie beyond the' in bare.caption
    own, (ax,), _ = half_finished(1)
    assert 'lie beyond the' in figure(source, kind, limits=ends, ax=ax, **options).caption


def test_bars_begin_at_zero_and_signed_scales_are_symmetric(made):
    with pytest.raises(ValueError, match='limits of bars must include 0'):
        figure(made['bars'][0], 'bars', limits=(1, 2))
    source, options = made['difference_grid']
    with pytest.raises(ValueError, match='must be symmetric'):
        figure(source, 'difference_grid', limits=(0, 1), **options)
    fig = figure(source, 'difference_grid', limits=(-.01, .01), **options)
    assert fig.axes[0].images[0].get_clim() == (-.01, .01)
    assert any('cells lie beyond the colour scale' in text.get_text() for text in fig.texts)


def test_a_colour_map_must_suit_the_values_and_the_caption_names_no_other_colours(made):
    run = made['discard_region'][0]
    fig = figure(run, 'discard_region', cmap='RdBu')
    assert fig.axes[0].images[0].get_cmap().name == 'RdBu'
    with pytest.raises(ValueError, match="'viridis' is for fractions, which the figure does not show"):
        figure(run, 'discard_region', cmap='viridis')
    with pytest.raises(ValueError, match='neither sequential nor diverging'):
        figure(run, 'discard_region', cmap='jet')
    three = figure(run, 'triptych', cmap=['viridis', 'PuOr'], caption='long')
    assert 'orange' not in three.caption and 'the upper end of the scale' in three.caption
    assert 'orange' in figure(run, 'triptych', caption='long').caption


@pytest.mark.parametrize('band, words', [('sd', 'mean ± standard deviation'), ('ci', '95 % interval'),
                                         (None, 'without a band')])
def test_bands_have_short_names(band, words, drops):
    fig = figure(drops, 'accuracy_drop', band=band)
    assert words in fig.caption and bool(fig.axes[0].collections) == (band is not None)


# Captions

@pytest.mark.sample(6)
@pytest.mark.parametrize('kind', kinds)
def test_a_short_caption_and_its_notes_are_the_whole_caption(kind, made):
    source, options = made[kind]
    short, long = (figure(source, kind, caption=length, **options) for length in ('short', 'long'))
    assert sorted([*sentences_of(short.caption), *short.notes]) == sorted(set(sentences_of(long.caption)))
    assert not long.notes and figure(source, kind, caption='Mine.', **options).caption == 'Mine.'


@pytest.mark.parametrize('warning', [
    'The model barely learned.', 'Attention (square-root scale).', 'Tied rows have no ranks.', 'One seed (0): chance.',
    'A logarithmic axis.', '3 of 9 values lie beyond the y axis, which is limited to 0 to 1.', 'Invented numbers.',
    'Our own small-scale replication: study AD, 9 runs.', 'The framed value is the maximum and so a biased estimate.',
    'Ties (hatched): in 3 rows, ranks cannot be compared.', '1 non-finite values of saliency are left out.',
    'No mark does not mean that there is no difference.', 'Training is not finished.'])
def test_a_warning_stays_in_a_short_caption(warning):
    text = f'A title. One. Two. Three. Four. {warning} Model: m.'
    assert short_caption(text) == (f'A title. One. Two. {warning}', ('Three.', 'Four.', 'Model: m.'))


def test_each_phrase_that_marks_a_warning_occurs_in_the_library():
    texts = ' '.join(file.read_text() for file in Path(salviz.__file__).parent.rglob('*.py') if file.stem != 'captions')
    texts = re.sub(r"'\s*\n\s*f?'", '', texts) # join texts that continue on the next line
    phrases = captions._warnings.pattern.split('|')
    assert [phrase for phrase in phrases if not re.search(phrase, texts, re.I)] == []


def test_the_files_of_a_figure_have_the_notes(made, tmp_path):
    fig = figure(made['triptych'][0], 'triptych')
    assert fig.notes
    save_figure(fig, tmp_path/'a.pdf', caption=True)
    save_figure(fig, tmp_path/'b.pdf', caption='long')
    last = fig.notes[-1].split()[0]
    a, b = ((tmp_path/f'{name}.txt').read_text() for name in 'ab')
    assert f'Notes: {fig.notes[0]}' in a and 'Notes: ' not in b
    short, long = ((tmp_path/f'{name}-caption.tex').read_text() for name in 'ab')
    assert len(short) < len(long) and last in long


# Tables of the papers

def test_a_table_has_heads_of_two_levels_in_every_form():
    frame = pd.DataFrame([dict(task=t, explanation=e, training=r, seed=z, comprehensiveness=.1*z + (r == 'guided'))
                          for t in 'ab' for e in ('gradient', 'IG') for r in ('plain', 'guided') for z in range(3)])
    table = result_table(frame, rows=['task', 'measure'], columns=['explanation', 'training'],
                         measure=['comprehensiveness'])
    assert table.groups() == [('gradient', 2), ('IG', 2)]
    assert table._repr_html_().count('colspan="2"') == 2 and 'gradient, guided' in table.text
    fig = figure(frame, 'metric_table', by=['task', 'measure'], columns=['explanation', 'training'],
                 measure=['comprehensiveness'])
    texts = [text.get_text() for text in fig.findobj(Text)]
    assert texts.count('gradient') == 1 and texts.count('guided') == 2 and 'comprehensiveness ↑' in texts
    bold = {text.get_text() for text in fig.texts if text.get_weight() == 'bold'}
    assert '1.100' in bold and '0.100' not in bold
    with pytest.raises(ValueError, match='columns takes one setting, or two'):
        result_table(frame, rows='seed', columns=['task', 'explanation', 'training'], measure='comprehensiveness')


# Errors

@pytest.mark.parametrize('options, message', [
    (dict(font_size='a long text'), "font_size must be a positive number, 'caption', a list of numbers or None"),
    (dict(titles={1: None}), 'titles must be a string, a list of strings or None'),
    (dict(head=np.array([])), r'head=\[\] is empty; pass numbers or None')])
def test_wrong_arguments_are_rejected_in_a_sentence(options, message, made):
    with pytest.raises(ValueError, match=message): figure(made['attention_map'][0], 'attention_map', **options)


def test_the_gallery_has_every_kind_with_its_call():
    page = Path(__file__).parents[2]/'nbs/00_learn/figure_gallery.ipynb'
    cells = json.loads(page.read_text())['cells']
    code = '\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code')
    assert [kind for kind in kinds if f"'{kind}'" not in code] == []
