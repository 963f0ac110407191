"""A figure by the name of its kind: every kind is legible and correct, in any width, size and font; unavailable
selections raise an error that lists the available ones"""
import ast
import inspect
import io
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from functools import cache

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.font_manager import fontManager
from matplotlib.text import Text
from PIL import Image

import every_kind
import invented
import salviz
import salviz.figures.drawing as drawing
import salviz.methods
from every_kind import a_run, own_map
from overlap import boxes, check_legible
from salviz.cli import main
from salviz.figures.drawing import (Body, Math, _forget_kind, blue, drawable, figure_kind, figure_kinds, figure_style,
                                    ink, orange, rendered, save_figure, sequential, signed, text_width, vermilion)
from salviz.core.words import latex_text, letter
from salviz.core.names import method_titles
from salviz.methods.base import method_classes
from salviz.core.bibliography import cited
from salviz.core.bibliography import bibtex, papers
from salviz.figures.kinds import _width_of, figure, venues
from salviz.core.runs import Run
from salviz.views.base import View, discard_region
from invented import invent


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    "Return the source of each kind, and its options"
    of = every_kind.everything(tmp_path_factory.mktemp('runs'))
    del of['series']
    assert set(of) == set(figure_kinds())
    return of


def draw(made, kind, **kw): return figure(made[kind][0], kind, **made[kind][1], **kw)


@pytest.mark.sample(3)
@pytest.mark.parametrize('kind', figure_kinds())
def test_every_kind_is_legible_in_a_column_and_on_the_page_and_cites_and_says_how_it_was_made(kind, made):
    for width in ('acl',
                  *(['acl-two-column'] if kind in ('discard_region', 'triptych', 'coloured_sentences', 'loss_curves')
                    else [])):
        fig = draw(made, kind, width=width)
        assert fig.get_figwidth() == pytest.approx(_width_of(width)[0])
        check_legible(fig)
    assert fig.caption and fig.facts[-1].startswith('Drawn with: salviz')
    if isinstance(made[kind][0], Run):
        assert any(o.startswith('Model: tiny (2 layers, 3 heads)') for o in fig.facts)
        assert any('seed 0' in o for o in fig.facts)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['triptych', 'attention_beside_saliency', 'discard_region', 'loss_curves',
                                  'sensitivity_grid'])
def test_another_font_size_enlarges_the_figure_of_a_narrower_page(kind, made):
    s = 1.4
    plain, large = draw(made, kind, width=3.25), draw(made, kind, width=3.25*s, font_size=7*s)
    assert large.get_figheight() == pytest.approx(s*plain.get_figheight())
    one, two = (np.asarray(Image.open(io.BytesIO(rendered(f, 'png', dpi=d))).convert('L'), float)
                for f, d in ((plain, 210), (large, 150)))
    h = min(len(one), len(two))
    # letters shift by a pixel, lines and marks do not
    assert abs(len(one) - len(two)) <= 1 and (abs(one[:h] - two[:h]) > 60).mean() < .02
    (texts, a), (same, b) = boxes(plain), boxes(large)
    assert texts == same and (np.abs(b/s - a).max(1) < .8 + .02*(a[:, 2:] - a[:, :2]).max(1)).all()
    check_legible(large)


def test_figures_match_the_caption_size_of_a_venue(made):
    fig = draw(made, 'discard_region', width='aaai', font_size='caption', font='serif')
    sizes = {o.get_fontsize() for o in fig.texts}
    assert max(sizes) == pytest.approx(8*10/7) and {o.get_fontfamily()[0] for o in fig.findobj(Text)} == {'STIXGeneral'}
    check_legible(fig)
    pdf = rendered(fig, 'pdf')
    assert b'STIXGeneral' in pdf and b'/FontFile2' in pdf and b'/Type3' not in pdf


def test_widths_are_those_of_the_templates():
    "Computed manually from the style files: cm and mm to inches, 72.27 TeX points per inch"
    want = dict(acl=(3.0315, 6.2992), icml=(3.25, 6.75), neurips=(5.5, 5.5), aaai=((7 - .375)/2, 7),
                ieee=(252/72.27, 516/72.27),
                acm=((612*72.27/72 - 108 - 24)/2/72.27, (612*72.27/72 - 108)/72.27), lncs=(4.8031, 4.8031),
                nature=(3.5039, 7.2047))
    for name, (column, page) in want.items():
        assert (venues[name].column, venues[name].page) == pytest.approx((column, page), abs=2e-3), name


def test_numbers_in_a_figure_are_the_runs(made):
    run = made['discard_region'][0]
    s = run.snapshot()
    image = draw(made, 'discard_region').axes[0].images[0]
    assert np.array_equal(np.asarray(image.get_array()), s.at('attention_attribution', 1)[2])
    shown = [np.asarray(ax.images[0].get_array(), float)
             for ax in figure(run, 'attention_map', step=[0, 10, 20], layer=1, head=0, overlays=[]).axes if ax.images
             and ax.images[0].get_array().shape == (8, 8)]
    assert len(shown) == 3
    for step, values in zip((0, 10, 20), shown): assert np.allclose(values, run.snapshot(step).at('attention', 1)[0])
    lines = [l for ax in figure(run, 'loss_curves', smooth=1).axes for l in ax.lines
             if len(l.get_xdata()) == len(run.train_rows)]
    assert any(np.allclose(l.get_ydata(), [r['loss'] for r in run.train_rows])
               and np.allclose(l.get_xdata(), [r['step'] for r in run.train_rows]) for l in lines)
    frame, options = made['head_map']
    assert any(np.allclose(np.asarray(ax.images[0].get_array(), float),
                           frame.pivot(index='layer', columns='head', values='entropy').to_numpy())
               for ax in figure(frame, 'head_map', **options).axes if ax.images)


@pytest.mark.slow
def test_two_processes_make_the_same_bytes_by_name(made, tmp_path):
    code = '''
import sys; from salviz.figures.kinds import figure; from salviz.figures.drawing import save_figure
run, out = sys.argv[1:]
for kind, options in dict(discard_region=dict(layer=[0, 1], head=0), loss_curves={}).items():
    fig = figure(run, kind, width='acl-two-column', font_size=8, font='serif', **options)
    for end in ('pdf', 'svg', 'png'): save_figure(fig, f'{out}/{kind}.{end}', caption=end == 'pdf')
print([m for m in ('torch', 'transformers', 'matplotlib.pyplot') if m in sys.modules])
'''
    for seed in '12':
        (tmp_path/seed).mkdir()
        done = subprocess.run([sys.executable, '-c', code, made['discard_region'][0].path, tmp_path/seed],
                              env={**os.environ, 'PYTHONHASHSEED': seed}, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == '[]'
    files = sorted(p.name for p in (tmp_path/'1').iterdir())
    assert len(files) == 2*6   # pictures, caption (two files), citations
    for name in files: assert (tmp_path/'1'/name).read_bytes() == (tmp_path/'2'/name).read_bytes(), name


# Panels

def test_panels_are_lettered_across_rows_as_wide_as_the_page(made):
    run = made['discard_region'][0]
    fig = figure([discard_region(run.snapshot(0), layer=0, head=0)]*10, width=10, columns=5, heading='none')
    letters = [o.get_text() for o in fig.texts if o.get_weight() == 'bold']
    assert letters == [f'({o})' for o in 'abcdefghij']
    x, y = np.array([o.get_position() for o in fig.texts if o.get_weight() == 'bold']).T
    assert np.allclose(x[:5] - x[0], np.arange(5)/5)
    assert np.allclose(x[5:10], x[:5])
    assert np.allclose(y[:5], y[0])
    assert y[5] < y[0]
    assert '(j) Attention attribution' in fig.caption and letter(27) == 'ab'


@pytest.mark.slow
def test_a_row_has_as_many_panels_as_are_legible(made):
    run = made['discard_region'][0]
    for width, rows in (('acl-two-column', 1), ('neurips', 2), (9, 1)):   # three stay together where each is legible
        fig = figure(run, 'discard_region', layer=0, head=[0, 1, 2], width=width)
        tops = {round(o.get_position()[1], 3) for o in fig.texts if o.get_weight() == 'bold'
                and o.get_text().startswith('(')}
        assert len(tops) == rows
        check_legible(fig)


@pytest.mark.slow
def test_panels_share_a_scale_on_request(made):
    run = made['discard_region'][0]
    def limits(**kw):
        return [ax.images[0].get_clim()[1] for ax in figure(run, 'discard_region', layer=0, head=[0, 1, 2], **kw).axes
                if ax.images and ax.images[0].get_array().shape == (8, 8)]
    own = limits()
    assert len(set(own)) == 3 and limits(share=True) == [max(own)]*3
    with pytest.raises(ValueError,
                       match='share=True needs views of one kind with a colour scale, got '
                       'AttentionBesideSaliency'):
        figure(made['attention_beside_saliency'][0], 'attention_beside_saliency', probe=[0, 1], share=True)


def test_panels_of_several_runs_have_the_names_of_the_runs(made):
    fig = figure([made['discard_region'][0].path, made['compared'][0][1].path], 'discard_region', layer=0, head=0)
    assert {'(a) drop: AD-DROP,', '(b) other: AD-DROP,'} <= {' '.join(o.get_text().split()[:3]) for o in fig.texts}
    assert [o for o in fig.facts if o.startswith('Run: ')] == ['Run: drop, seed 0', 'Run: other, seed 1']


def test_headings_can_move_to_the_caption_and_only_math_is_parsed(made):
    bare = draw(made, 'attention_beside_saliency', heading='none')
    assert not any('AD-DROP' in o.get_text() or 'Spearman' in o.get_text() for o in bare.texts)
    assert bare.get_figheight() < draw(made, 'attention_beside_saliency').get_figheight()
    meant = draw(made, 'discard_region', heading='title', titles=Math('$p = 0.3$'))
    plain = draw(made, 'discard_region', heading='title', titles='$p = 0.3$')
    assert [[o.get_parse_math() for o in f.texts if '$' in o.get_text()] for f in (meant, plain)] == [[True], [False]]
    with pytest.raises(ValueError, match='titles must have one entry per view \\(1\\), got 2'):
        draw(made, 'discard_region', titles=['a', 'b'])
    with pytest.raises(ValueError, match="heading must be 'full', 'title' or 'none'"):
        draw(made, 'discard_region', heading='no')


# Fonts

def small_font(path, family, text, postscript=False):
    "Write a font with a square for each character of `text`"
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.t2CharStringPen import T2CharStringPen
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    names, fb = ['.notdef', *(f'uni{ord(c):04X}' for c in text)], FontBuilder(1000, isTTF=not postscript)
    fb.setupGlyphOrder(names)
    fb.setupCharacterMap({ord(c): f'uni{ord(c):04X}' for c in text})
    def glyph():
        pen = T2CharStringPen(1000, None) if postscript else TTGlyphPen(None)
        pen.moveTo((100, 0)); pen.lineTo((100, 700)); pen.lineTo((900, 700)); pen.lineTo((900, 0)); pen.closePath()
        return pen.getCharString() if postscript else pen.glyph()
    drawn = {n: glyph() for n in names}
    if postscript: fb.setupCFF(family.replace(' ', ''), {}, drawn, {})
    else: fb.setupGlyf(drawn)
    fb.setupHorizontalMetrics({n: (1000, 100) for n in names})
    fb.setupHorizontalHeader(ascent=800, descent=-200)
    fb.setupNameTable(dict(familyName=family, styleName='Regular', fullName=family, psName=family.replace(' ', '')))
    fb.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200)
    fb.setupPost()
    fb.save(path)


@pytest.fixture
def installed():
    "Return a function that installs a font until the test ends"
    before = list(fontManager.ttflist)
    yield lambda path: fontManager.addfont(str(path))
    fontManager.ttflist[:] = before
    for cached in (drawing._helper, drawing._codes, drawing._file_of, drawing._is_postscript, drawing._width):
        cached.cache_clear()
    fontManager._findfont_cached.cache_clear()


def quiet(make):
    "Return the result of `make` and its warnings"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        return make(), [str(o.message) for o in caught]


other_script = ['[CLS]', '中文', 'good', '文字', '[SEP]']


@pytest.mark.slow
def test_a_token_in_another_script_gets_an_installed_font_that_has_its_characters(installed, tmp_path):
    view = discard_region(invent(tokens=other_script, layers=1, heads=6))
    _, said = quiet(lambda: figure(view))
    assert len(said) == 1 and 'U+4E2D' in said[0] and 'no other installed font has one: □ is drawn instead' in said[0]
    small_font(tmp_path/'later.ttf', 'Zzz Last', '中文字')
    installed(tmp_path/'later.ttf')
    small_font(tmp_path/'a.ttf', 'Noto Sans Try', '中文字')
    installed(tmp_path/'a.ttf')
    fig, said = quiet(lambda: figure(view))
    assert not said and fig.families == ('DejaVu Sans', 'Noto Sans Try')   # Noto before others
    assert {'中文', '文字'} <= {o.get_text() for o in fig.findobj(Text)}
    pdf, said = quiet(lambda: rendered(fig, 'pdf'))
    assert not said and b'NotoSansTry' in pdf and pdf.count(b'/FontFile2') == 3 and b'/Type3' not in pdf
    check_legible(fig)
    with figure_style():
        drawable('中文', set())
        assert text_width('中文', 10) == pytest.approx(1.04*20)   # two squares of a full em
    assert quiet(lambda: rendered(figure(view), 'pdf'))[0] == pdf


@pytest.mark.slow
def test_a_postscript_font_is_drawn_as_outlines_and_rejected_as_the_font_of_a_figure(
    installed, tmp_path):
    small_font(tmp_path/'a.otf', 'Noto Post', '中文字', postscript=True)
    installed(tmp_path/'a.otf')
    fig, said = quiet(lambda: figure(discard_region(invent(tokens=other_script, layers=1, heads=6))))
    assert not said and fig.families == ('DejaVu Sans', 'Noto Post')
    pdf = rendered(fig, 'pdf')
    assert b'NotoPost' not in pdf
    assert b'/FontFile2' in pdf
    assert b'/Type3' not in pdf
    assert not any(o.get_path_effects() for o in fig.findobj(Text))
    assert rendered(fig, 'pdf') == pdf
    page = np.asarray(Image.open(io.BytesIO(rendered(fig, 'png'))).convert('L'))
    label = next(o for o in fig.axes[0].get_yticklabels()
                 if o.get_text() == '中文').get_window_extent(fig.canvas.get_renderer()).extents*300/fig.dpi
    left, bottom, right, top = label.astype(int)
    # squares of ink where the characters are
    assert (page[len(page) - top:len(page) - bottom, left:right] < 100).mean() > .3
    with pytest.raises(ValueError, match='font: Noto Post has PostScript outlines'):
        figure(invented.snapshot(), font='Noto Post')


@pytest.mark.slow
def test_a_named_font_comes_first_and_can_be_a_file(installed, tmp_path):
    installed   # takes the font of the file out again
    small_font(tmp_path/'mine.ttf', 'My Own', 'abc中')
    fig = figure(discard_region(invent(tokens=['abc', '中', '[SEP]'], layers=1, heads=6)), font=str(tmp_path/'mine.ttf'))
    assert fig.families == ('My Own', 'DejaVu Sans') and b'MyOwn' in rendered(fig, 'pdf')
    with pytest.raises(ValueError,
                       match=r"font: 'Helvetica Now' is not installed; use 'sans' \(DejaVu Sans\), 'serif' "
                       r"\(STIXGeneral\), a .ttf file or one of the \d+ installed"):
        figure(invented.snapshot(), font='Helvetica Now')


@pytest.mark.slow
def test_arabic_letters_join_and_marks_and_joiners_are_drawn_as_spelling_needs():
    joined, apart = 'مرحبا', 'م ر ح ب ا'
    fig, said = quiet(lambda: figure(discard_region(invent(tokens=['[CLS]', joined, 'שלום', 'می\u200cخواهم', '\u0301',
                                                                'cafe\u0301', '[SEP]'], layers=1, heads=6))))
    assert not said
    rendered(fig, 'pdf')
    texts = {o.get_text() for o in fig.findobj(Text)}
    assert {joined, 'می\u200cخواهم', '◌\u0301', 'cafe\u0301'} <= texts
    with figure_style():
        assert text_width(joined, 10) < .8*(text_width(apart, 10) - 4*text_width(' ', 10))
        assert text_width('cafe\u0301', 10) == pytest.approx(text_width('cafe', 10), rel=.02)


# Files

@pytest.mark.slow
def test_caption_and_bibtex_are_saved_next_to_the_figure(made, tmp_path):
    fig = figure(made['discard_region'][0], 'discard_region', step=10, probe=1, layer=0, head=1)
    save_figure(fig, tmp_path/'a.pdf', caption=True)
    said, bib = (tmp_path/'a.txt').read_text(), (tmp_path/'a.bib').read_text()
    for words in ('Attention attribution of layer 0, head 1', 'Model: tiny (2 layers, 3 heads)', 'Data: invented',
                  'Method: AD-DROP (q = 0.4)',
                  'Run: drop, seed 0', 'Step 10 (epoch 1.00), probe 1: “', 'Trained with: python ',
                  f'matplotlib {matplotlib.__version__}'):
        assert words in said, words
    assert re.findall(r'@\w+\{([^,]+),', bib) == ['yang2022addrop']
    lone = figure(made['discard_region'][0].snapshot(), 'attention_map', head='rollout')
    assert [re.match(r'@\w+\{([^,]+)', o)[1] for o in lone.citations] == ['yang2022addrop', 'abnar2020quantifying']
    assert 'Seed: 0' in lone.facts
    save_figure(draw(made, 'head_map'), tmp_path/'b.pdf', caption=True)
    assert not (tmp_path/'b.bib').exists()   # nothing to cite
    save_figure(fig, tmp_path/'c.pdf')
    assert not (tmp_path/'c.txt').exists()


def test_every_method_cites_an_existing_key():
    methods = method_classes()
    assert methods.keys() == method_titles.keys() and len(methods) == 18
    assert [name for name, method in methods.items() if method.cite is None] == ['FineTuning']
    for name, method in methods.items():
        if method.cite is None: continue
        key = re.match(r'@\w+\{([^,]+),', bibtex(name))[1]
        keys = [method.cite] if isinstance(method.cite, str) else method.cite # its own paper first
        assert keys[0] == key == papers[name][1], name
        assert list(cited(keys)) == keys


@pytest.mark.slow
def test_the_caption_is_ready_for_latex_and_an_old_bibliography_is_removed(made, tmp_path):
    fig = draw(made, 'masked_sentence')
    save_figure(fig, tmp_path/'a.pdf', caption=True)
    said = (tmp_path/'a-caption.tex').read_text()
    assert said.startswith(r'\caption{The sentence X')
    assert r'$\tilde{X}$' in said
    assert said.endswith('}\n')
    assert '\u0303' not in said
    assert (tmp_path/'a.bib').exists()
    (tmp_path/'mine.bib').write_text('@misc{mine}')
    for name in ('a', 'mine'): save_figure(draw(made, 'head_map'), tmp_path/f'{name}.pdf', caption=True)
    assert not (tmp_path/'a.bib').exists() and (tmp_path/'mine.bib').exists()   # only that of an earlier figure
    if shutil.which('pdflatex'):
        (tmp_path/'b.tex').write_text(r'\documentclass{article}\usepackage[T1]{fontenc}\begin{document}\begin{figure}'
                                      + said + r'\end{figure}\end{document}')
        assert subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'b.tex'], cwd=tmp_path,
                              capture_output=True).returncode == 0


def test_every_entry_is_valid_bibtex():
    keys = [o[1] for o in papers.values()]
    assert len(set(keys)) == len(keys)
    for name in papers:
        entry = bibtex(name)
        assert entry.count('{') == entry.count('}')
        assert {'author', 'title', 'year'} <= set(re.findall(r'^  (\w+) = \{', entry, re.M))
        assert entry.isascii()


def test_the_letters_of_an_svg_are_paths_or_text(made, tmp_path):
    fig = draw(made, 'discard_region')
    paths, text = (re.sub('<!--.*?-->', '', save_figure(fig, tmp_path/'a.svg', text=o).read_text())
                   for o in ('paths', 'text'))
    assert 'candidate discard region' not in paths and 'candidate discard region' in text and '<text' not in paths
    with pytest.raises(ValueError, match="text must be 'paths' or 'text', got 'outlines'"):
        save_figure(fig, tmp_path/'a.svg', text='outlines')


special = r'\input{/etc/passwd} 50% a_b^c #1 & {x} $y$ ~'


def test_tokens_reach_latex_as_text(tmp_path):
    said = latex_text(special)
    # nothing is left that LaTeX would read as a command
    assert re.sub(r'\\(textbackslash|textasciicircum|textasciitilde|char37)\{\}|\\[{}$&#_]|[\w/ ]', '', said) == ''


@pytest.mark.slow
def test_a_pgf_file_is_written_with_latex_or_raises_an_error(tmp_path, monkeypatch):
    fig = figure(discard_region(invent(tokens=['[CLS]', '50%', 'a_b', r'\x', '$y$', '[SEP]'], layers=1, heads=6)),
                 width=3.25)
    if shutil.which('pdflatex'):
        one, two = (save_figure(fig, tmp_path/'a.pgf').read_bytes() for _ in range(2))
        assert one == two
        assert rb'\textbackslash{}x' in one
        assert b'50\\char37{}' in one
        assert sorted(o.name for o in tmp_path.iterdir()) == ['a-img0.png', 'a-img1.png', 'a.pgf']
    monkeypatch.setattr(shutil, 'which', lambda name: None)
    with pytest.raises(RuntimeError,
                       match='none of pdflatex, xelatex, lualatex is installed; install TeX Live with its pgf package, '
                       'or write .pdf'):
        save_figure(fig, tmp_path/'b.pgf')
    with pytest.raises(RuntimeError, match='none of xelatex, lualatex is installed .one of them is needed for the '
                       'characters'):
        save_figure(figure(discard_region(invent(tokens=['שלום', 'a', '[SEP]'], layers=1, heads=6))), tmp_path/'b.pgf')
    assert not (tmp_path/'b.pgf').exists()


# Colours

def seen_by_a_deuteranope(colours):
    """Return colours [n, 3] in sRGB as a reader without green cones sees them (Machado, Oliveira and Fernandes 2009,
    severity 1)"""
    linear = np.where(colours <= .04045, colours/12.92, ((colours + .055)/1.055)**2.4)
    linear = np.clip(linear @ np.array([[.367322, .860646, -.227968], [.280085, .672501, .047413],
                                        [-.011820, .042940, .968881]]).T, 0, 1)
    return linear


def lab(linear):
    "Return CIE L*a*b* of linear sRGB [n, 3] under D65"
    xyz = linear @ np.array([[.4124, .3576, .1805], [.2126, .7152, .0722],
                             [.0193, .1192, .9505]]).T / [.95047, 1, 1.08883]
    f = np.where(xyz > (6/29)**3, np.cbrt(xyz), xyz/(3*(6/29)**2) + 4/29)
    return np.stack([116*f[:, 1] - 16, 500*(f[:, 0] - f[:, 1]), 200*(f[:, 1] - f[:, 2])], 1)


def test_colours_differ_without_green_cones_and_shades_differ_in_greyscale():
    named = np.array([matplotlib.colors.to_rgb(o) for o in (blue, vermilion, orange, ink)])
    d = np.linalg.norm((p := lab(seen_by_a_deuteranope(named)))[:, None] - p[None], axis=-1)[np.triu_indices(4, 1)]
    assert d.min() > 15   # the nearest are vermilion and orange; 2.3 is just visible
    at = np.linspace(.05, .5, 40)
    below, above = (lab(seen_by_a_deuteranope(np.array([signed(x)[:3] for x in .5 + s*at]))) for s in (-1, 1))
    assert (np.linalg.norm(below - above, axis=1)[4:] > 20).all()
    assert (np.diff(below[:, 0]) < 0).all()
    assert (np.diff(above[:, 0]) < 0).all()
    ramp = lab(seen_by_a_deuteranope(sequential(np.linspace(0, 1, 60))[:, :3]))
    assert (np.diff(ramp[:, 0]) < 0).all() and ramp[0, 0] - ramp[-1, 0] > 70


def keys(fig): return [re.match(r'@\w+\{([^,]+)', o)[1] for o in fig.citations]


@pytest.mark.slow
def test_the_caption_identifies_panels_without_headings(made):
    drop, other = made['compared'][0]
    guided = made['pattern_target'][0]
    fig = figure(drop, 'attention_map', step=[0, 10], layer=1, head=0, heading='none')
    assert fig.caption.startswith('(a) Step 0: Attention of layer 1, head 0.')
    assert '(b) Step 10: Attention' in fig.caption
    assert {'(a) step 0', '(b) step 10'} <= set(fig.facts)
    assert 'Steps 0 (epoch 0.00), 10 (epoch 1.00), probe 0: “still , this is unforget ##table”' in fig.facts
    fig = figure([drop, guided], 'attention_map', layer=1, head=[0], heading='none')
    assert '(a) AD-DROP: Attention' in fig.caption and '(b) Attention guidance: Attention' in fig.caption
    fig = figure([drop, other], 'attention_map', probe=[0, 1], layer=1, head=0, heading='none')   # seeds of one method
    for mark, words in zip('abcd', ('AD-DROP, seed 0, probe 0', 'AD-DROP, seed 0, probe 1', 'AD-DROP, seed 1, probe 0',
                                    'AD-DROP, seed 1, probe 1')):
        assert f'({mark}) {words}: Attention' in fig.caption and f'({mark}) {words}' in fig.facts
    fig = figure([drop, guided], 'attention_map', layer=1, head=0, titles=['Ours', 'Theirs'])
    assert '(a) Ours: Attention' in fig.caption and '(b) Theirs, Attention guidance' in fig.facts
    assert figure(drop, 'attention_map', step=10, layer=1, head=0).caption.startswith('Attention of layer 1')
    # its maps have letters already
    assert figure(drop, 'triptych', probe=[0, 1]).caption.startswith('(i) Probe 0: (a) ')


def test_facts_name_the_runs_of_methods_and_snapshots(made):
    drop, other = made['compared'][0]
    facts = figure([made['pattern_target'][0], drop, other], 'attention_map', layer=1, head=0).facts
    assert sum(o.startswith('Model:') for o in facts) == 1 and not any(o.startswith('Method:') for o in facts)
    runs = [o for o in facts if o.startswith('Run:')]
    assert len(runs) == 3
    assert runs[0].startswith('Run: guided, seed 0; method: Attention guidance')
    assert runs[2].startswith('Run: other, seed 1; method: AD-DROP (q = 0.4)')
    assert [o.split(':')[0] for o in facts if o.startswith('Step')] == [f'Step 30 (epoch 3.00), probe 0 of {k}'
                                                                        for k in ('guided', 'drop', 'other')]


def test_facts_name_the_steps_of_an_evolution_and_the_folders_of_others(made, tmp_path):
    fig = figure(made['evolution'][0], 'evolution', probe=1)
    assert any(o.startswith('Steps 0 (epoch 0.00), 10 (epoch 1.00), 20') and 'probe 1: “still' in o for o in fig.facts)
    assert 'robe 1' in fig.caption
    run = a_run(tmp_path, 'private')
    config = run.config
    config['method']['args']['teacher'] = config['model']['name'] = '/home/somebody/secret/best'
    invented.reconfigured(run, **config)
    said = '\n'.join(figure(run.path, 'attention_map').facts)
    assert 'teacher = best' in said and 'Model: best' in said and 'secret' not in said


def test_a_view_of_evidence_is_drawn_like_its_snapshot():
    from salviz.core.runs import Run
    from salviz.views.base import evidence_view
    snapshot = Run.example('saliency-guided').snapshot(step=-1, probe=0)
    assert figure(evidence_view(snapshot, 'method_saliency')).axes

def test_missing_evidence_raises_an_error_with_the_steps_that_have_it(made, tmp_path):
    import dataclasses
    run = a_run(tmp_path, 'late')
    last = run.snapshot(30)
    run.save(dataclasses.replace(last, step=40, info={**last.info, 'phase': 'fine-tuning'},
                                 layers={'attention': last.layers['attention']},
                                 arrays={k: last.arrays[k] for k in ('attention', 'saliency')}))
    with pytest.raises(ValueError,
                       match='has no discard_candidates, discarded; available: attention, saliency; recorded steps '
                       'with this evidence: 0, 10, 20, 30$'):
        figure(Run(run.path), 'discard_region', step=40)
    with pytest.raises(ValueError, match='no recorded step of probe 0 in late has it$'):
        figure(Run(run.path), 'masked_sentence', step=40)


def test_tables_describe_their_content_and_cite_the_papers_that_they_name(made):
    frame = pd.DataFrame([dict(method=m, share=x, accuracy=1 - x)
                          for m in ('integrated_gradients', 'gradient abs', 'AD-DROP', 'random') for x in (.1, .2)])
    fig = figure(frame, 'accuracy_drop', about='Model: tiny. Data: invented.')
    assert fig.caption.endswith('Model: tiny. Data: invented.') and 'About: Model: tiny. Data: invented.' in fig.facts
    assert keys(fig) == ['ismail2021saliency', 'sundararajan2017axiomatic', 'simonyan2013deep', 'yang2022addrop']
    frame.attrs = dict(about='Model: other.', names=['minilm'])
    fig = figure(frame, 'accuracy_drop')
    assert fig.caption.endswith('Model: other.') and keys(fig)[-1] == 'wang2020minilm'
    assert keys(figure(made['metric_table'][0], 'metric_table')) == ['yang2022addrop']
    with pytest.raises(ValueError, match='accuracy_drop does not take step= or probe='):
        figure(frame, 'accuracy_drop', step=0, probe=1)


@pytest.mark.slow
def test_a_study_is_a_source(made):
    from salviz.metrics.statistics import result_table
    class Invented:
        about = 'Data: invented.'
        def runs(self): return dict(mine=made['compared'][0], theirs=[made['pattern_target'][0]])
        def results(self): return made['metric_table'][0]
        def table(self, rows=None, columns=None, **options):
            return result_table(self.results(), rows or 'method', columns, about=self.about, **options)
    assert figure(Invented(), 'loss_curves').caption == figure(Invented().runs(), 'loss_curves').caption
    fig = figure(Invented(), 'metric_table', measures=['accuracy'], compare_to='FineTuning', title='Ours')
    assert fig.caption.startswith('Ours. ')
    assert fig.caption.count('Data: invented.') == 1
    assert 'macro' not in ' '.join(o.get_text() for o in fig.findobj(Text)).lower()
    assert keys(fig) == ['yang2022addrop']
    assert sum(o.startswith('Run:') for o in figure(Invented(), 'attention_map', layer=0, head=0).facts) == 3


@pytest.mark.slow
def test_caption_sizes_are_used_if_there_is_space_and_no_figure_is_higher_than_a_page(made):
    fig, said = quiet(lambda: draw(made, 'pattern_target', width='acl', font_size='caption', heading='none'))
    assert any("does not fit on a page 3.03 inches wide at the font size of the captions (10 points); "
               "its text is drawn at 7.5" in o for o in said)
    check_legible(fig)
    assert draw(made, 'pattern_residual', width='neurips', font_size='caption', heading='none').get_figheight() <= 9
    fig, said = quiet(lambda: figure(made['discard_region'][0], 'discard_region', layer=0, head=[0, 1, 2], columns=1,
                                     width=9))
    assert fig.get_figheight() > 9 and any('inches high, more than the text area of a page (9)' in o for o in said)


@pytest.mark.slow
def test_notes_for_the_author_are_not_in_a_figure_without_heading():
    view = discard_region(invent(60, layers=1, heads=6))
    note = 'To save space, only every '
    fig, said = quiet(lambda: figure(view, width=3.25, heading='none'))
    assert not any(note in o.get_text() for o in fig.findobj(Text))
    assert any(note in o for o in said)
    assert any(o.startswith(f'Note: {note}') for o in fig.facts)
    assert note not in fig.caption
    two = figure([view, view], width=6.75)
    assert sum(note in o.get_text() for o in two.findobj(Text)) == 1


# Unavailable selections

refused = [('heat_map', {}, ValueError, "unknown kind 'heat_map'; available: attention_map, triptych, "),
           ('discard_region', dict(step=7), KeyError, 'no step 7 of probe 0 in drop; available: 0, 10, 20, 30'),
           ('discard_region', dict(probe=9), KeyError, r'no probe 9 in drop; available: 0, 1'),
           ('discard_region', dict(layer=8), ValueError, 'layer=8 was not recorded .*; available: 0, 1'),
           ('discard_region', dict(head=8), ValueError, 'head=8 does not exist; available: 0 to 2'),
           ('discard_region', dict(heads=8), ValueError, 'discard_region has no option heads; available: layer, head'),
           ('masked_sentence', {}, ValueError, 'has no is_masked.*; available: attention, attention_attribution'),
           ('pattern_residual', {}, ValueError, 'has no pattern_target.*available:'),
           ('discard_region', dict(width='vldb'), ValueError, r'must be a number of inches or a venue \(acl, emnlp'),
           ('discard_region', dict(font_size='caption'), ValueError, "font_size='caption' needs a venue"),
           ('discard_region', dict(width='acl', font_size=11), ValueError,
            'too narrow for DiscardRegion at 11 points; choose at most 10.6 points'),
           ('discard_region', dict(font_size=40), ValueError, 'between 4 and 20 points'),
           ('head_map', {}, ValueError, r'head_map needs a table \(columns layer, head'),
           ('saliency_distribution', {}, ValueError,
            'saliency_distribution needs two snapshots of a probe, got 1; pass two runs, or one run and two steps'),
           ('compared', dict(probe=[0, 1]), ValueError, 'compared needs two snapshots of a probe, got 1'),
           ('loss_curves', dict(probe=1), ValueError,
            'loss_curves does not take probe=; it needs rows of metrics of all steps'),
           ('number_over_steps', dict(step=10), ValueError, 'number_over_steps does not take step=')]


@pytest.mark.parametrize('kind, options, error, said', refused)
def test_unavailable_selections_raise_an_error_that_lists_the_available_ones(kind, options, error, said, made):
    with pytest.raises(error, match=said): figure(made['discard_region'][0], kind, **options)


def test_other_sources_raise_an_error(made):
    with pytest.raises(ValueError,
                       match='source must be a snapshot, a run, the folder of a run, or a list of these, got ndarray'):
        figure(np.ones(3), 'triptych')
    with pytest.raises(ValueError, match='kind must be one of attention_map, '): figure(made['head_map'][0])
    with pytest.raises(ValueError, match='loss_curves needs runs'):
        figure(made['discard_region'][0].snapshot(), 'loss_curves')
    with pytest.raises(ValueError, match='step= selects from a run, but the source is a snapshot'):
        figure(made['discard_region'][0].snapshot(), 'triptych', step=0)
    with pytest.raises(ValueError, match='a view has no options; pass layer to'):
        figure(discard_region(made['discard_region'][0].snapshot()), layer=0)


# The command line

def test_figures_are_made_from_the_command_line(made, tmp_path, capsys):
    run, other, out = made['discard_region'][0].path, made['compared'][0][1].path, tmp_path/'a.pdf'
    assert main(['figure', str(run), '--kind', 'discard_region', '--layer', '0', '--head', '0,1', '--width',
                 'acl-two-column', '--font-size', '8', '--share', '--out', str(out)]) == 0
    want = save_figure(figure(run, 'discard_region', layer=0, head=[0, 1], width='acl-two-column', font_size=8,
                              share=True), tmp_path/'b.pdf')
    assert out.read_bytes() == want.read_bytes() and (tmp_path/'a.txt').exists() and (tmp_path/'a.bib').exists()
    # the same words
    assert main(['figure', str(run), '--kind', 'discard_region', '--layer', '0', '--head', '0,1', '--width',
                 'acl-two-column', '--font-size', '8', '--share', '--out', str(tmp_path/'a.svg')]) == 0
    assert main(['figure', str(run), '--kind', 'attention_map', '--out', str(tmp_path/'a.png')]) == 2
    assert 'a.txt already exists with different text' in capsys.readouterr().err
    assert main(['figure', str(run), '--out', str(tmp_path/'nowhere'/'a.png')]) == 2
    assert 'figure: no folder' in capsys.readouterr().err
    assert main(['figure', str(run), '--kind', 'loss_curves', '--probe', '1', '--out', str(tmp_path/'l.png')]) == 2
    assert 'loss_curves does not take probe=' in capsys.readouterr().err
    assert main(['figure', str(run), '--out', str(out)]) == 2
    assert 'a.pdf already exists; use --force' in capsys.readouterr().err
    assert main(['figure', str(run), str(other), '--kind', 'loss_curves', '--set', 'x=epoch', '--no-caption', '--out',
                 str(tmp_path/'c.svg')]) == 0
    assert not (tmp_path/'c.txt').exists()
    made['head_map'][0].to_csv(tmp_path/'heads.csv', index=False)
    assert main(['figure', str(tmp_path/'heads.csv'), '--kind', 'head_map', '--set', 'value=entropy', '--out',
                 str(tmp_path/'d.png')]) == 0
    assert main(['figure', str(run), '--kind', 'attention_map', '--step', '15', '--out', str(tmp_path/'e.pdf')]) == 2
    assert 'available: 0, 10, 20, 30' in capsys.readouterr().err


def test_the_help_lists_the_kinds_with_one_line_each(capsys):
    with pytest.raises(SystemExit): main(['figure', '--help'])
    said = capsys.readouterr().out.splitlines()
    for name, kind in figure_kinds().items():
        assert any(re.fullmatch(f'{name} +{re.escape(kind.about)}', line) for line in said), name


@cache
def public_kinds(): return salviz.figure_kinds()

@pytest.mark.parametrize('name', figure_kinds())
def test_every_kind_prints_its_options_with_default_and_meaning_and_a_call_that_fits(name):
    kind = public_kinds()[name]
    parameters, text = inspect.signature(kind.make).parameters, repr(kind)
    lines = text.splitlines()
    assert lines[0] == f'{name}: {kind.about}' and lines[2].strip() == kind.call and max(map(len, lines)) <= 110
    for option in kind.option_facts:
        line, = [line for line in lines[3:] if re.match(rf'    {option.name}(=| )', line)]
        assert option.about and option.about.split()[0] in line
        if option.name in parameters and option.default: assert repr(parameters[option.name].default) in line
        assert ('(required)' in text) == any(not o.default for o in kind.option_facts)
    call = ast.parse(kind.call, mode='eval').body
    given = {keyword.arg for keyword in call.keywords}
    assert ast.literal_eval(call.args[1]) == name and given <= {*kind.options, 'step', 'probe'}
    assert {option.name for option in kind.option_facts if not option.default} <= given


def test_the_help_of_figure_refers_to_the_kinds():
    assert '`figure_kinds()` lists all kinds' in inspect.getdoc(salviz.figure)
    text = repr(salviz.figure_kinds())
    assert all(f'{name}: {kind.about}' in text for name, kind in figure_kinds().items())


def test_a_studys_table_is_printed_and_drawn(monkeypatch, made, tmp_path, capsys):
    import salviz.studies.study
    from salviz.metrics.statistics import result_table
    table = result_table(made['metric_table'][0], 'method')
    class Opened:
        def table(self, **options):
            return table if not options else result_table(made['metric_table'][0], 'method', **options)
        def results(self): return made['metric_table'][0]
        def runs(self): return dict(one=made['loss_curves'][0][:1])
    monkeypatch.setattr(salviz.studies.study.Study, 'open', classmethod(lambda cls, folder: Opened()))
    assert main(['study', 'x']) == 0 and capsys.readouterr().out == f'{table}\n'
    assert main(['study', 'x', '--latex', '--set', 'digits=1']) == 0 and r'\toprule' in capsys.readouterr().out
    assert main(['figure', 'x', '--kind', 'metric_table', '--out', str(tmp_path/'t.pdf')]) == 0
    assert (tmp_path/'t.pdf').exists()


# ---- a custom kind

@pytest.fixture
def longest_token():
    "Register a minimal kind: one function that creates a view, one that draws it"
    @dataclass(frozen=True, eq=False, kw_only=True)
    class LongestToken(View):
        "Return a view of the longest token of a sentence"

    def longest(snapshot, least:int=1) -> LongestToken:
        "Return a view of the longest token with at least `least` letters"
        word = max(snapshot.tokens, key=len)
        return LongestToken(title='Longest token', subtitle=f'at least {least} letters', labels=(word,),
                            caption=f'The longest token is “{word}”.', is_special=np.zeros(1, bool))

    @figure_kind('longest_token', longest, 'the longest token of a sentence', 'tokens', cites=['eraser', own_paper])
    def draw(view, width): return Body(20, lambda sheet: sheet.text(10, 10, view.labels[0], fontsize=9))

    yield longest
    if 'longest_token' in figure_kinds(): _forget_kind('longest_token')


own_paper = '@misc{me2026,\n  title = {Long tokens}\n}'


def test_a_custom_kind_is_drawn_listed_cited_and_validated_like_built_in_kinds(longest_token, made, tmp_path, capsys):
    run = made['discard_region'][0]
    fig = figure(run, 'longest_token', least=3, width='acl')
    check_legible(fig)
    word = max(run.snapshot().tokens, key=len)
    assert word in {o.get_text() for o in fig.texts} and f'“{word}”' in fig.caption
    assert own_paper in fig.citations and any('deyoung' in o.lower() for o in fig.citations)
    out = [tmp_path/f'a.{end}' for end in ('pdf', 'svg', 'png', *['pgf']*bool(shutil.which('pdflatex')))]
    for file in out: assert main(['figure', str(run.path), '--kind', 'longest_token', '--out', str(file)]) == 0
    assert all(file.stat().st_size > 500 for file in out) and word in (tmp_path/'a-caption.tex').read_text()
    assert own_paper in (tmp_path/'a.bib').read_text()
    capsys.readouterr()
    with pytest.raises(SystemExit): main(['figure', '--help'])
    assert re.search('(?m)^longest_token +the longest token of a sentence$', capsys.readouterr().out)
    assert re.search(r"figure\(run, 'longest_token'\)\n    least=1", repr(figure_kinds()['longest_token']))
    with pytest.raises(ValueError, match='longest_token has no option most; available: least'):
        figure(run, 'longest_token', most=3)
    with pytest.raises(ValueError, match='longest: least must be an integer, got 1.5'):
        figure(run, 'longest_token', least=1.5)
    with pytest.raises(ValueError, match='available: attention_map, .*saliency_grid, answer_heat_map, longest_token$'):
        figure(run, 'heat_map')
    with pytest.raises(ValueError, match="the kind 'longest_token' is already registered"):
        figure_kind('longest_token', discard_region, '', '')
    _forget_kind('longest_token')
    assert 'longest_token' not in figure_kinds()
    with pytest.raises(ValueError, match="unknown kind 'longest_token'"): figure(run, 'longest_token')
    with pytest.raises(ValueError, match='view must be one of .*, got LongestToken'):
        figure(longest_token(run.snapshot()))


@pytest.mark.parametrize('name, make, more, said', [
    ('my kind', discard_region, {}, "name must be an identifier such as head_map, got 'my kind'"),
    ('mine', len, {}, 'the return annotation of make must be a View'),
    ('mine', discard_region, dict(takes='text'), 'takes must be one of snapshot, snapshots, pair, run, runs, frame, '),
    ('mine', discard_region, dict(asks='steps'), 'asks must be None or one of names, headings, span'),
    ('mine', discard_region, dict(cites=['nobody2020']), "got 'nobody2020', which is not a known key")])
def test_invalid_kinds_raise_an_error(name, make, more, said):
    with pytest.raises(ValueError, match=said): figure_kind(name, make, '', '', **more)
    assert name not in figure_kinds()
