"Charts and their interactive versions: legible at any width, true to the frame, distinct without colours, safe"
import copy
import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

import invented
from overlap import check_legible
from salviz.views.base import masked_sentence
from salviz.views.curves import (_gradient_histogram, accuracy_drop_curves, gradient_boxes, head_map, loss_curves,
                                 metric_table, perturbation_curves, sensitivity_grid)
from salviz.figures.drawing import rendered
from salviz.figures.sheet import draw_figure
from salviz.figures.interactive import _safe
from salviz.figures.kinds import figure as of_kind
from salviz.metrics.statistics import result_table
from test_curves import run

hostile = '<a href="javascript:alert(1)">x</a> <b>&amp;</b> $x^2$ %{y}'

def drops(methods=('integrated gradients', 'gradient', 'random'), seeds=3, measure='accuracy'):
    rng = np.random.default_rng(0)
    return pd.DataFrame([{'method': m, 'share': s, 'seed': k, measure: .9*np.exp(-(3 - i)*s) + .02*rng.normal()}
                         for i, m in enumerate(methods) for s in (.01, .05, .1, .2, .5) for k in range(seeds)])

def settings(columns=5, rows=4, seeds=3, gap=True):
    rng = np.random.default_rng(1)
    return pd.DataFrame([dict(p=(i + 1)/10, q=(j + 1)/10, seed=s, accuracy=.7 + .02*i - .01*j + .01*rng.normal())
                         for i in range(columns) for j in range(rows) for s in range(seeds) if not gap
                         or (i, j) != (0, 0)])

def heads(layers=12, count=12, signed=True):
    rng = np.random.default_rng(2)
    return pd.DataFrame([dict(layer=l, head=h, agreement=rng.normal(0, .4) if signed else rng.random())
                         for l in range(layers) for h in range(count)])

def gradients(names=('plain', 'AD-DROP')):
    rng = np.random.default_rng(3)
    return pd.DataFrame([dict(method=n, gradient=x) for i, n in enumerate(names)
                         for x in rng.lognormal(-4 + i, 1.5, 60)])

def results(methods=('plain', 'AD-DROP', 'saliency guided training'), measures=('accuracy', 'macro_f1', 'train_loss')):
    rng = np.random.default_rng(4)
    return pd.DataFrame([dict(method=m, seed=s, **{k: .6 + .1*i + .01*rng.normal() for k in measures})
                         for i, m in enumerate(methods) for s in range(8)])

@pytest.fixture(scope='module')
def losses(tmp_path_factory):
    "Return three runs of 80 steps for each of two methods, one of them with a spike"
    folder, rng = tmp_path_factory.mktemp('losses'), np.random.default_rng(5)
    return [run(folder/f'{m}{s}',
                (2/(1 + np.arange(80)/20) + rng.normal(0, .2, 80) + (6*(np.arange(80) == 40) if s else 0)).tolist(), s,
                m) for m in ('FineTuning', 'AttentionGuidance') for s in range(3)]

def many(losses): # of every kind, with difficult content
    long = ['a method with quite a long name and its setting p=0.3', 'gradient', 'random',
            *(f'variant {i}' for i in range(9))]
    yield from (loss_curves(losses), loss_curves(losses[0], smooth=1), accuracy_drop_curves(drops()),
                perturbation_curves(drops(measure='sufficiency'), 'sufficiency'), accuracy_drop_curves(drops(long)))
    yield from (sensitivity_grid(settings()), sensitivity_grid(settings(14, 3)),
                sensitivity_grid(settings(1, 1, 1, gap=False)), sensitivity_grid(settings().assign(accuracy=.5)),
                sensitivity_grid(settings().assign(loss=lambda f: 2000*f.accuracy), value='loss'))
    yield from (head_map(heads(), 'agreement', best='highest'), head_map(heads(2, 4, False), 'agreement'),
                head_map(heads(24, 16), 'agreement'), head_map(heads(1, 1), 'agreement'))
    yield from (gradient_boxes(gradients()),
                gradient_boxes(gradients(long), label='size of the gradient of a parameter (L2 norm)'),
                gradient_boxes(gradients().assign(gradient=1.)), _gradient_histogram(gradients()))
    yield from (metric_table(result_table(results(), compare_to='plain')),
                metric_table(results(long[:3], [f'comprehensiveness {k} %' for k in (1, 5, 10, 20, 50)])),
                metric_table(results(('a',))))
    yield from (accuracy_drop_curves(drops((hostile, '中文', 'a\nb'))),
                head_map(heads(2, 3).replace({'layer': {0: hostile}}), 'agreement'),
                gradient_boxes(gradients((hostile, 'b'))), metric_table(results((hostile, 'b'))))

@pytest.mark.slow
@pytest.mark.parametrize('width', [3.25, 6.75])
def test_no_text_of_a_chart_overlaps_another_or_leaves_it(losses, width):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore') # another test checks the warning about a missing glyph
        for view in many(losses):
            fig = draw_figure(view, width)
            assert fig.get_figwidth() == width
            check_legible(fig)

@pytest.mark.slow
def test_a_chart_has_the_same_bytes_every_time(losses):
    for view in (loss_curves(losses), sensitivity_grid(settings(3, 2)), gradient_boxes(gradients())):
        for kind in ('pdf', 'svg'): assert rendered(draw_figure(view, 3.25), kind) == rendered(draw_figure(view, 3.25),
                                                                                               kind)

def test_lines_and_bands_are_the_numbers_of_the_frame(losses):
    for view in (loss_curves(losses), accuracy_drop_curves(drops())):
        ax = draw_figure(view).axes[0]
        drawn = [np.array(o.get_data()).T for o in ax.lines]
        bands = [o.get_paths()[0].vertices for o in ax.collections if isinstance(o, PolyCollection)]
        assert len(bands) == len(view.names)
        for band, (name, part) in zip(bands, view.frame.groupby('name', sort=False)):
            assert any(o.shape == (len(part), 2) and np.array_equal(o, part[[view.x, 'value']]) for o in drawn), name
            corners = np.r_[part[[view.x, 'low']].to_numpy(), part[[view.x, 'high']].to_numpy()]
            assert all((np.isclose(band, c).all(1)).any() for c in corners)
        if view.raw is not None:
            for _, one in view.raw.groupby(['name', 'run'], sort=False):
                assert any(np.array_equal(o, one[[view.x, 'value']]) for o in drawn)

def test_lines_differ_without_their_colours_and_random_is_grey():
    ax = draw_figure(accuracy_drop_curves(drops([f'm{i}' for i in range(11)] + ['random']))).axes[0]
    looks = [(o._unscaled_dash_pattern, o.get_marker()) for o in ax.lines]
    assert len(set(map(str, looks))) == 12 and to_hex(ax.lines[-1].get_color()) == '#707070'

def test_a_legend_names_every_line_below_the_data(losses):
    fig = draw_figure(loss_curves(losses), 3.25)
    ax = fig.axes[0].get_tightbbox(fig.canvas.get_renderer())
    for name in ('Fine-tuning', 'Attention guidance'):
        entry = next(o for o in fig.texts if o.get_text() == name)
        assert entry.get_window_extent().y1 < ax.y0

def test_everything_measured_lies_within_the_axes(losses):
    for view in (loss_curves(losses), _gradient_histogram(gradients()), gradient_boxes(gradients())):
        ax = draw_figure(view).axes[0]
        (left, right), (bottom, top) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        points = np.concatenate([np.array(o.get_data()).T for o in ax.lines])
        assert (points[:, 0] >= left).all()
        assert (points[:, 0] <= right).all()
        assert (points[:, 1] >= bottom).all()
        assert (points[:, 1] <= top).all()

def test_cells_contain_their_numbers_and_the_best_is_bold():
    view = sensitivity_grid(settings())
    texts = draw_figure(view).axes[0].texts
    at = {(round(o.get_position()[0]), round(o.get_position()[1]), o.get_text()): o for o in texts}
    for (i, j), v in np.ndenumerate(view.values):
        if np.isnan(v): assert (j, i, '–') in at
        else:
            assert (j, i, f'±{view.deviations[i, j]:.3f}') in at
            assert (at[j, i, f'{v:.3f}'].get_weight() == 'bold') == view.best[i, j]
    np.testing.assert_array_equal(np.ma.filled(draw_figure(view).axes[0].images[0].get_array(), np.nan), view.values)

def test_small_numbers_in_cells_have_the_unit_of_the_colour_bar():
    heads = pd.DataFrame(dict(layer=0, head=[0, 1, 2], effect=[1.2e-4, 3e-4, 0]))
    fig = draw_figure(head_map(heads, 'effect'), 3.25)
    assert [o.get_text() for o in fig.axes[0].texts] == ['1.20', '3.00', '0.00']
    assert any(o.get_text() == 'Numbers in cells: ×10⁻⁴, as on the colour bar.' for o in fig.texts)

def test_a_grid_too_small_for_its_numbers_has_a_note():
    fig = draw_figure(sensitivity_grid(settings(20, 2, 1, gap=False)), 3.25)
    assert any('too small for their numbers' in o.get_text() for o in fig.texts) and not fig.axes[0].texts

def test_boxes_are_drawn_from_the_quartiles_of_the_frame():
    view = gradient_boxes(gradients())
    ax = draw_figure(view).axes[0]
    for patch, (_, row) in zip(ax.patches, view.frame.iterrows()):
        np.testing.assert_allclose([patch.get_x(), patch.get_x() + patch.get_width()], [row.q1, row.q3])
    drawn = {float(x) for o in ax.lines for x in o.get_xdata()}
    assert {x for c in ('lowest', 'low', 'median', 'mean', 'high', 'highest') for x in view.frame[c]} <= drawn
    assert ax.get_xscale() == 'log'

def test_every_cell_of_a_table_is_printed_with_deviation_mark_and_weight():
    view = metric_table(result_table(results(), compare_to='plain'))
    assert any(s for row in view.stars for s in row)
    fig = draw_figure(view, 3.25) # too narrow for all columns: the names occur twice
    texts = [(o.get_text(), o.get_weight()) for o in fig.texts]
    for means, deviations, stars, best in zip(view.means, view.deviations, view.stars, view.best):
        for mean, deviation, star, b in zip(means, deviations, stars, best):
            assert (mean, 'bold' if b else 'normal') in texts
            assert (f'± {deviation}' + (f' {star}' if star else ''), 'normal') in texts
    assert [t for t, _ in texts].count('AD-DROP') > 1 and "Holm's correction" in ' '.join(t for t, _ in texts)

def test_a_name_is_drawn_literally():
    for view in (accuracy_drop_curves(drops((hostile[:30], 'b'))), metric_table(results((hostile[:30], 'b')))):
        assert hostile[:30] in [o.get_text() for o in draw_figure(view).texts]

# ---- plotly

def test_a_plotly_curve_has_the_numbers_and_signs_of_the_printed_one(losses):
    for view in (loss_curves(losses), accuracy_drop_curves(drops())):
        fig = of_kind(view, interactive=True)
        lines = [o for o in fig.data if o.showlegend is not False]
        assert [o.name for o in lines] == list(view.names)
        assert len({(o.line.dash, o.marker.symbol, o.mode) for o in lines}) == len(lines)
        bands = [o for o in fig.data if o.fill == 'toself']
        for line, band, (_, part) in zip(lines, bands, view.frame.groupby('name', sort=False)):
            np.testing.assert_array_equal(line.y, part.value)
            np.testing.assert_allclose(line.x, part[view.x]*(100 if view.x == 'share' else 1))
            np.testing.assert_array_equal(band.y, [*part.high, *part.low[::-1]])
            assert all(f'n = {n}' in said and f'{d:.6g}' in said
                       for said, n, d in zip(line.customdata, part.n, part.deviation))

def test_plotly_grids_boxes_and_tables_have_the_numbers_of_their_views():
    grid = sensitivity_grid(settings())
    z = np.array([[np.nan if v is None else v for v in row] for row in of_kind(grid, interactive=True).data[0].z])
    np.testing.assert_array_equal(z, grid.values)
    boxes = gradient_boxes(gradients())
    made = of_kind(boxes, interactive=True).data[0]
    for ours, theirs in dict(q1='q1', median='median', q3='q3', low='lowerfence', high='upperfence').items():
        np.testing.assert_array_equal(getattr(made, theirs), boxes.frame[ours])
    table = metric_table(results())
    cells = of_kind(table, interactive=True).data[0].cells.values
    assert list(cells[0]) == [n for n, in table.names]
    assert [c.replace('<b>', '').replace('</b>', '')
            for c in cells[1]] == [f'{m[0]} ± {d[0]}' for m, d in zip(table.means, table.deviations)]
    assert [c.startswith('<b>') for c in cells[1]] == table.best[:, 0].tolist()

def test_a_plotly_figure_is_shown_as_small_data_with_an_image_and_no_code(losses):
    fig = of_kind(loss_curves(losses), interactive=True)
    bundle = fig._repr_mimebundle_()
    shown = bundle['application/vnd.plotly.v1+json']
    assert bundle['image/png'].startswith('iVBOR') and 'text/html' not in bundle and len(json.dumps(bundle)) < 150_000
    assert shown['config']['showSendToCloud'] is False and shown['layout']['paper_bgcolor'] == 'rgba(0,0,0,0)'
    page = fig.to_html(include_plotlyjs=False)
    assert 'cdn' not in page and '<script src' not in fig.to_html()
    assert type(copy.deepcopy(fig)) is type(fig) and copy.deepcopy(fig).to_json() == fig.to_json()

def test_views_without_an_interactive_figure_raise_an_error():
    view = masked_sentence(invented.invent(9, method='SaliencyGuided'))
    drawable = ('interactive=True supports only Curves, Grid, Boxes, MetricTable, got MaskedSentence; '
                'omit interactive=True')
    for source, more, said in ((view, {}, drawable),
                               ([metric_table(results())]*2, {}, 'draws one view, got 2; select one'),
                               (drops(), {}, 'kind must be one of'),
                               (metric_table(results()), dict(width='acl'), 'width= applies only to printed figures'),
                               (metric_table(results()), dict(heading='none'),
                                'heading= applies only to printed figures')):
        with pytest.raises(ValueError, match=said): of_kind(source, interactive=True, **more)

def test_an_interactive_figure_has_the_texts_of_the_printed_one():
    frame, options = drops(), dict(band='range')
    printed = of_kind(frame, 'accuracy_drop', **options)
    fig = of_kind(frame, 'accuracy_drop', interactive=True, **options)
    assert (fig.caption, fig.citations) == (printed.caption, printed.citations) and fig.citations
    assert fig.facts[:-1] == printed.facts[:-1] and re.fullmatch(r'Drawn with: salviz .+, plotly .+', fig.facts[-1])

@pytest.mark.slow
def test_plotly_shows_names_literally(page):
    "In a real browser, no element comes from a name, and the name is complete"
    from plotly.offline import get_plotlyjs
    page.add_script_tag(content=get_plotlyjs())
    assert _safe('%{y}') == '&#37;&#123;y}'
    views = [accuracy_drop_curves(drops((hostile, 'b'))),
             head_map(heads(2, 3).replace({'layer': {0: hostile}}), 'agreement'),
             gradient_boxes(gradients((hostile, 'b'))), metric_table(results((hostile, 'b')))]
    for view, pointed in zip(views, ('.scatterlayer .point >> nth=4', '.heatmaplayer image', '.scatterlayer .point',
                                     None)):
        made = json.loads(of_kind(view, interactive=True).to_json())
        seen = page.evaluate('''async ([data, layout]) => {
            document.body.replaceChildren();
            const div = document.body.appendChild(document.createElement('div'));
            await Plotly.newPlot(div, data, {...layout, width: 1200});
            const title = div.querySelector('.gtitle').getBoundingClientRect();
            return {text: div.textContent, above: title.top - div.getBoundingClientRect().top}; }''',
                                                                                                    [
            made['data'], made['layout']])
        # a table breaks its lines at spaces
        assert ''.join(hostile.split()) in ''.join(seen['text'].split()) and seen['above'] >= 0
        if pointed:
            at = page.locator(pointed).first.bounding_box()
            page.mouse.move(at['x'] + min(at['width'], 20)/2, at['y'] + min(at['height'], 20)/2)
            page.wait_for_selector('.hoverlayer text')
            assert hostile[:14] in page.locator('.hoverlayer').text_content().replace('\xa0', ' ')
        assert page.evaluate("() => [...document.querySelectorAll('a')].filter(o => "
                             "/javascript/.test(o.outerHTML)).length") == 0


def test_a_map_of_heads_without_numbers_marks_negative_cells():
    values = np.where(np.random.default_rng(0).random((12, 40)) < .5, -1., 1.)
    frame = pd.DataFrame([dict(layer=i, head=j, value=v) for (i, j), v in np.ndenumerate(values)])
    found = []
    for sign in (1, -1):
        view = head_map(frame.assign(value=sign*frame.value), 'value')
        fig = draw_figure(view, width=3.25)
        ax = next(o for o in fig.axes if o.images)
        found.append({tuple(map(int, p)) for o in ax.collections for p in o.get_offsets()})
        assert found[-1] == {(j, i) for i, j in np.argwhere(sign*values < 0)}
        assert any('Minus signs' in o.get_text() for o in fig.texts)
    assert not found[0] & found[1]


def test_a_table_of_three_measures_is_one_table_in_a_column():
    frame = pd.DataFrame([{'method': m, 'seed': s, 'test accuracy': .3 + s/10, 'average loss': 1.6 + s/100,
                           'gap': .1 + s/10} for m in ('Fine-tuning', 'AD-DROP', 'Attention guidance')
                          for s in range(3)])
    view = metric_table(frame)
    fig = draw_figure(view, width=3.03)
    assert [o.get_text() for o in fig.texts].count('Attention guidance') == 1
    check_legible(fig)


def test_a_long_label_beside_slopes_is_broken_into_lines():
    frame = pd.DataFrame([dict(method=m, task=t, validation_accuracy=x) for m, x in (('FineTuning', .5), ('ADDrop', .6))
                          for t in ('one', 'two')])
    label = 'area under the precision-recall curve of the informative cells of a series, mean over samples'
    fig = of_kind(frame, 'pairs', slopes=True, label=label, width='acl')
    beside, = [text.get_text() for text in fig.texts if text.get_rotation() == 90]
    assert '\n' in beside and '\\n' not in beside and beside.split() == label.split()
