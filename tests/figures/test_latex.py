"""LaTeX of a coloured sentence: literal text, the colours of the figure, and a document that compiles"""
import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

import salviz.figures.maps
from salviz.core.words import latex_text
from salviz.figures.drawing import _drawn, bodies, drawable_view, lightness, signed, signed_scale
from salviz.figures.sentences import _preamble, _token_latex, coloured_sentence_latex, sentence_latex
from salviz.views.maps import coloured_sentences
from salviz.metrics.statistics import result_table
from invented import invent

hostile = ['[CLS]', '<img src=x>', '$x^2$', '中文', '😀', '\u202eabc', '-->', r'$\frac{', '\t', 'unbelievably'*4, 'a\nb',
           '\\', '{', '}', '%', '&', '_', '#', '~', '^', '"', '`', "''",
           ',,', '<<', '|', '---', '##', '\x00', 'é', '−', '…', r'\end{document}', '[SEP]']
commands = set(
    '''documentclass ifdefined pdfoutput usepackage else fi DeclareUnicodeCharacter fbox phantom pagestyle begin end
begingroup endgroup setlength fboxsep parindent lineskip
lineskiplimit raggedright colorbox textcolor strut par smallskip footnotesize quad caption times textbackslash
textasciitilde textasciicircum textless textgreater textbar textquotesingle
ldots char ensuremath
textasciigrave textvisiblespace setmainfont underline tilde Umathchar fontencoding selectfont'''.split())


def check_structure(text):
    "Check that braces match, groups and environments end, and that there are no unexpected commands"
    bare = re.sub(r'\\[{}%&_#$]', '', re.sub(r'(?m)^%.*\n', '', text))
    depth = 0
    for c in bare:
        depth += (c == '{') - (c == '}')
        assert depth >= 0
    assert depth == 0
    assert bare.count('$') % 2 == 0
    assert not re.search(r'[%&#~^]', bare.replace('^{', '', bare.count('10^{')))
    assert set(re.findall(r'\\([A-Za-z]+)', bare)) <= commands
    assert re.findall(r'\\begin\{(\w+)\}', bare) == re.findall(r'\\end\{(\w+)\}', bare)[::-1]
    assert bare.count(r'\begingroup') == bare.count(r'\endgroup') == 1


def compiles(text, folder, engine='pdflatex'):
    "Return whether `text` compiles to a PDF; True without LaTeX"
    if not shutil.which(engine): return True
    (folder/'a.tex').write_text(text, encoding='utf-8')
    done = subprocess.run([engine, '-interaction=nonstopmode', '-halt-on-error', 'a.tex'], cwd=folder,
                          capture_output=True, text=True, errors='replace')
    return done.returncode == 0 and (folder/'a.pdf').read_bytes()[:4] == b'%PDF' or pytest.fail(done.stdout[-1500:])


def test_every_colour_is_that_of_the_figure():
    labels, values = [f'w{i}' for i in range(21)], np.linspace(-.03, .03, 21)
    text, view = coloured_sentence_latex(labels, values), coloured_sentences([(labels, values)])
    norm, cmap, ticks = signed_scale(.03)
    found = dict(re.findall(r'\\colorbox\[HTML\]\{(\w{6})\}\{\\strut '
                            r'(?:\\textcolor\{white\}\{)?(?:\\underline\{)?(w\d+)', text)[i][::-1] for i in range(21))
    assert found == {l: to_hex(cmap(norm(v)))[1:].upper() for l, v in zip(labels, values)}
    fig = _drawn(drawable_view(view), bodies[type(view)](view, 6.75), 6.75)
    ax = next(o for o in fig.axes if any(t.get_text() == 'w0' for t in o.texts))
    assert [to_hex(p.get_facecolor())[1:].upper() for p in ax.patches] == [found[l] for l in labels]
    dark = {l for l, v in zip(labels, values) if lightness(signed(norm(v))) < .5}
    assert set(re.findall(r'textcolor\{white\}\{(?:\\underline\{)?(w\d+)\}',
                          text)) == dark == {t.get_text() for t in ax.texts if t.get_color() == 'white'}
    assert 0 < len(dark) < 21


def test_hostile_tokens_are_literal_text(tmp_path):
    values = np.r_[np.nan, np.linspace(-1, 1, len(hostile) - 2), np.nan]
    for several in (False, True):
        text = coloured_sentence_latex([hostile]*2 if several else hostile, [values]*2 if several else values,
                                       caption='50 % & more_{x}', unit='a_b')
        check_structure(text)
        assert text.count(r'\end{document}') == 1 and text.endswith('\\end{document}\n') and 'xelatex' in text
        assert text.count(r'\colorbox') == (1 + several)*(len(hostile) - 2) + 5
        assert r'\$\textbackslash{}frac\{' in text
        assert r'-{}-{}-' in text
        assert compiles(text, tmp_path)


def test_sentences_of_snapshots_are_one_document_on_one_scale(tmp_path):
    snaps = [invent(n, seed=n) for n in (9, 30)]
    text, view = sentence_latex(snaps, caption='Two sentences.'), coloured_sentences(snaps)
    check_structure(text)
    boxes = re.findall(r'\\colorbox\[HTML\]\{(\w{6})\}', text)[:-5]
    norm, cmap, _ = signed_scale(view.limit)
    assert boxes == [to_hex(cmap(norm(v)))[1:].upper() for v, s in zip(view.values, view.is_special) if not s]
    assert text.count('unforgettable') == view.labels.count('unforgettable')
    assert compiles(text, tmp_path)
    assert compiles(text, tmp_path, 'xelatex')
    assert text == sentence_latex(snaps, caption='Two sentences.')


def test_pieces_of_a_word_follow_without_a_space():
    snap = invent(12)
    text = sentence_latex(snap, words=False)
    assert len(re.findall(r'\{\\strut un\}\\colorbox\[HTML\]\{\w+\}\{\\strut '
                          r'forget\}\\colorbox\[HTML\]\{\w+\}\{\\strut '
                          r'table\}\n', re.sub(r'\\underline\{(\w+)\}', r'\1', text))) == snap.tokens.count('un') > 0
    assert re.search(r'strut un\}\\colorbox\[HTML\]\{\w+\}\{\\strut seen\}',
                     coloured_sentence_latex(['un', '##seen'], [.1, .2], limit=1))
    assert r'\strut \#\#x' in coloured_sentence_latex(['##x'], [.1], limit=1)  # nothing that it could continue


def test_a_fragment_lists_its_packages_and_compiles_with_them(tmp_path):
    fragment = coloured_sentence_latex(['fine', 'é', '中'], [1., -.4, .2], standalone=False)
    needs = [o[2:] for o in fragment.splitlines() if o.startswith('% ') and 'requires in the preamble' not in o]
    assert 'documentclass' not in fragment and r'\usepackage{xcolor}' in needs and needs == _preamble('fineé中')
    assert compiles('\n'.join([r'\documentclass{article}', *needs, r'\begin{document}', 'Before. \\input{part} After.',
                               r'\end{document}'])
                    .replace(r'\input{part}', fragment), tmp_path)


def test_the_scale_has_its_numbers_and_its_unit():
    text = coloured_sentence_latex(['a'], [-.0042], unit='integrated gradients')
    legend = text[text.index('\\footnotesize'):]
    assert re.findall(r'\$(-?[\d.]+)\$', legend) == ['-4.2', '-2.1', '0', '2.1', '4.2']
    assert r'integrated gradients ($\times 10^{-3}$)' in legend
    assert [o for o in coloured_sentence_latex(['a'], [.3], limit=1.).splitlines()
            if 'footnotesize' in o][0].count('$1$') == 1


@pytest.mark.parametrize('labels, values, said',
                         [(['a', 'b'], [1.], 'one number for each of 2 labels'),
                                                  ([], [], 'at least one token per sentence'),
                                                  ([['a'], []], [[1.], []], 'at least one token'),
                                                  ([['a'], ['b']], [[1.]], 'one list for each of the 2 sentences')])
def test_invalid_sentences_raise_an_error(labels, values, said):
    with pytest.raises(ValueError, match=said): coloured_sentence_latex(labels, values)


def test_special_tokens_and_missing_numbers_have_no_box():
    text = coloured_sentence_latex(['[CLS]', 'film'], [np.nan, .5])
    assert r'\textcolor[HTML]{707070}{[CLS]}' in text and text.count(r'\colorbox') == 1 + 5
    assert _token_latex('') == '' and _token_latex('a b') == 'a b'


def test_a_value_and_its_negative_differ_without_colours():
    text = coloured_sentence_latex(['up', 'down', 'dim', 'none'], [.5, -.5, -.01, np.nan])
    said = dict(re.findall(r'\\colorbox\[HTML\]\{\w+\}\{\\strut (.*?(up|down|dim)\}*)', text)[i][::-1]
                for i in range(3))
    assert r'\underline{down}' in said['down']
    assert not any('underline' in said[o] for o in ('up', 'dim'))
    assert 'underlined: negative' in text
    assert 'underlined' not in coloured_sentence_latex(['up'], [.5])


def test_accents_and_signs_compile_with_pdflatex_and_are_not_boxes(tmp_path):
    assert _token_latex('KL(f(X) ‖ f(X̃))') == r'KL(f(X) \ensuremath{\|} f($\tilde{X}$))'
    assert (_token_latex('e\u0303'), _token_latex('e\u0301'), _token_latex('ǖ'),
            _token_latex('q̈')) == (r'\~{e}', 'é', r'\={\"{u}}', r'\"{q}')
    text = coloured_sentence_latex(['X̃', 'ẽ', 'α', '→', '≤', '10⁻³', 'p₁', 'ǖ', 'ő'], np.linspace(-1, 1, 9),
                                   caption='f(X̃) ‖ f(X) × 3')
    assert 'DeclareUnicodeCharacter' not in text and compiles(text, tmp_path)


strange = ['😀', '👩\u200d👩\u200d👧', 'مرحبا بك', 'שלום', '中文', 'Привет', 'a\u2028b', 'a\u2029b', 'a\n\nb', 'a\rb',
           'a\x0cb', *map(chr, range(32)), '\x7f', '\x85', '\ud800',
           '\u202eabc', 'a\u200bb', '\ufeff', 'q\u0308', 'a\u0488', '\u0301', 'ẞ ŧ ħ ĸ «ą» ð þ', '∀ ∃ ⊕ 𝔘', 'Α Ω ά υ',
           '₹ ※ № ™', '\ue000', '\uffff', '❤\ufe0f', '\\input{x} 50% $']


def test_tables_captions_and_sentences_of_any_characters_compile_with_pdflatex(tmp_path):
    "In a document without preparations; captions occur a second time in a list"
    said = ' '.join(f'{i}: {o}.' for i, o in enumerate(strange))
    names = [f'{i} {o}' for i, o in enumerate(strange) if o != '\ud800'] # which pandas has no column for
    frame = pd.DataFrame([dict(method=o, seed=seed, accuracy=.5 + seed/10) for o in names for seed in range(2)])
    table = result_table(frame).latex()
    caption = latex_text(said, prose=True)
    label = latex_text(said)
    sentence = _token_latex(said)
    figures = [rf'\begin{{figure}}x\caption{{{o}}}\end{{figure}}'
               for o in (caption, label.replace('\n', ' '))]
    document = [r'\documentclass{article}\usepackage{booktabs}\begin{document}\listoffigures\listoftables', *figures,
                r'\clearpage', table, '{\\fontencoding{T1}\\selectfont', sentence, '}', r'\end{document}']
    assert compiles('\n'.join(document), tmp_path) and compiles('\n'.join(document), tmp_path)
    assert compiles(coloured_sentence_latex(strange, np.linspace(-1, 1, len(strange)), caption=said), tmp_path)
    # XeLaTeX still finds the letters themselves
    assert all('مرحبا' in o and '中文' in o for o in (caption, table, sentence))
