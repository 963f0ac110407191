"""bertviz's two views of a snapshot in a real browser: drawn offline at the first run, isolated, readable in both
themes, and safe."""
import http.server
import io
import json
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from browser import new_page
import salviz
from salviz.explorer.bertviz import bertviz_view
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.explorer.widget import Explorer

hostile = ['[CLS]', '</script><script>document.title="hacked"</script>', '<img src=x onerror="document.title=1">',
           '"\'&amp;\\u003c', 'שלום', '👩‍🔬', 'zero\u200bwidth',
           'PYTHON_PARAMS', 'x'*10_000, '[SEP]']


def snapshot(tokens=('[CLS]', 'a', 'charming', 'film', '[SEP]'), layers=(0, 2, 5), heads=4, pair=False):
    rng, n = np.random.default_rng(1), len(tokens)
    attention = rng.random((len(layers), heads, n, n)).astype(np.float32)**3
    attention /= attention.sum(-1, keepdims=True)
    special = [t in ('[CLS]', '[SEP]') for t in tokens]
    return Snapshot(step=7, epoch=1., probe=0, arrays=dict(attention=attention), layers=dict(attention=list(layers)),
                    tokens=list(tokens),
                    texts=('a', 'b') if pair else (' '.join(tokens),),
                    word_ids=np.where(special, -1, np.cumsum(~np.array(special)) - 1))


def shown(page, view, lab_theme=None):
    "Return the view's frame in `page` after it was drawn"
    about = ('' if lab_theme is None
             else f'data-jp-theme-light="{str(lab_theme == "light").lower()}" style="background: '
             f'{"#fff" if lab_theme == "light" else "#111"}"')
    page.set_content(f'<!doctype html><html><body {about}>{view._repr_html_()}</body></html>')
    page.frame_locator('iframe.salviz-bertviz').locator('svg line').first.wait_for(state='attached')
    return page.frames[1]


def opacities(frame):
    return frame.evaluate("() => [...document.querySelectorAll('#attention line')].map(l => "
                          "+l.getAttribute('stroke-opacity'))")


def test_the_head_view_draws_a_line_for_every_weight_of_the_chosen_layer(page):
    s = snapshot()
    frame = shown(page, bertviz_view(s))
    np.testing.assert_allclose(opacities(frame), s.arrays['attention'][0].ravel()/4, atol=2e-5)
    assert frame.evaluate("() => [...document.querySelectorAll('#layer option')].map(o => o.textContent)") == [
        '0', '2', '5']
    assert frame.evaluate("() => [...document.querySelectorAll('#left text')].map(o => o.textContent)") == s.tokens
    frame.select_option('#layer', '5')
    np.testing.assert_allclose(opacities(frame), s.arrays['attention'][2].ravel()/4, atol=2e-5)
    frame.hover('#left text >> nth=2')
    assert frame.evaluate("() => document.querySelectorAll('#attention line[visibility=visible]').length") == 4*5


def test_the_model_view_draws_every_head_of_every_layer_and_opens_the_one_that_is_clicked(page):
    s = snapshot()
    frame = shown(page, bertviz_view(s, kind='model'))
    assert frame.evaluate("() => document.querySelectorAll('svg line').length") == s.arrays['attention'].size
    drawn = frame.evaluate("() => [...document.querySelectorAll('svg line')].map(l => "
                           "+l.getAttribute('stroke-opacity'))")
    np.testing.assert_allclose(drawn, s.arrays['attention'].ravel(), atol=6e-5)
    frame.evaluate("() => document.querySelector('#attn_background_1_3').parentNode.lastChild.dispatchEvent(new "
                   "MouseEvent('click'))")
    assert 'Layer 2, Head 3' in frame.evaluate("() => [...document.querySelectorAll('text.detail')].map(o => "
                                               "o.textContent)")
    assert frame.evaluate("() => [...document.querySelectorAll('.token')].map(o => o.textContent)") == s.tokens*2


@pytest.mark.slow
def test_chosen_layers_and_heads_keep_their_numbers(page):
    s = snapshot()
    frame = shown(page, bertviz_view(s, kind='model', layers=[-1, 2], heads=[1, 3]))
    drawn = frame.evaluate("() => [...document.querySelectorAll('svg line')].map(l => "
                           "+l.getAttribute('stroke-opacity'))")
    np.testing.assert_allclose(drawn, s.arrays['attention'][1:][:, [1, 3]].ravel(), atol=6e-5)
    assert frame.evaluate("() => [...document.querySelectorAll('svg > text')].map(o => o.textContent)") == [
        'Heads', '1', '3', 'Layers', '2', '5']
    frame = shown(page, bertviz_view(s, layers=2, heads=[1, 3]))
    np.testing.assert_allclose(opacities(frame), s.arrays['attention'][1][[1, 3]].ravel()/2, atol=3e-5)


@pytest.mark.slow
def test_a_pair_can_be_seen_within_and_between_its_sentences(page):
    s = snapshot(['[CLS]', 'where', 'is', '[SEP]', 'here', 'it', 'is', '[SEP]'], pair=True)
    frame = shown(page, bertviz_view(s))
    frame.select_option('#filter', label='Sentence A -> Sentence B')
    np.testing.assert_allclose(opacities(frame), s.arrays['attention'][0][:, :4, 4:].ravel()/4, atol=2e-5)
    assert frame.evaluate("() => [...document.querySelectorAll('#right text')].map(o => o.textContent)") == [
        'here', 'it', 'is', '[SEP]']


@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', ['head', 'model'])
def test_hostile_tokens_are_text(page, kind):
    page.on('dialog', lambda d: page.errors.append('dialog'))
    view = bertviz_view(snapshot(hostile), kind=kind)
    frame = shown(page, view)
    if kind == 'model':
        frame.evaluate("() => document.querySelector('#attn_background_0_0').parentNode.lastChild.dispatchEvent(new "
                       "MouseEvent('click'))")
    texts = frame.evaluate("() => [...document.querySelectorAll('#left text, .token')].map(o => o.textContent)")
    assert texts[:len(hostile)] == [t if len(t) <= 24 else t[:23] + '…' for t in hostile]
    assert frame.evaluate("() => [document.querySelectorAll('img').length, document.scripts.length, "
                          "document.title]") == [0, 4, view.title]
    assert page.title() == '' and page.evaluate("() => document.querySelectorAll('img, script').length") == 0


def test_a_view_is_isolated_from_the_page_and_the_page_from_it(page):
    frame = shown(page, bertviz_view(snapshot()))
    assert page.evaluate("() => [typeof require, typeof requirejs, typeof jQuery, typeof $, typeof d3, typeof "
                         "define]") == ['undefined']*6
    assert frame.evaluate("() => { try { return String(parent.document); } catch (e) { return e.name; } "
                          "}") == 'SecurityError'
    assert frame.evaluate("() => origin") == 'null'


def test_nothing_can_be_loaded_from_inside_of_a_view(browser):
    calls = []
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self): calls.append(self.path)
    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page, url = new_page(browser), f'http://127.0.0.1:{server.server_port}'
    frame = shown(page, bertviz_view(snapshot()))
    for load in ("fetch(url).then(() => done('loaded'), () => done('refused'))",
                 "Object.assign(new Image(), {onload: () => done('loaded'), onerror: () => done('refused')}).src = url",
                 "document.head.append(Object.assign(document.createElement('script'), {onload: () => done('loaded'), "
                 "onerror: () => done('refused'), src: url + '/x.js'}))"):
        assert frame.evaluate(f"url => new Promise(done => {{ {load}; }})", url) == 'refused'
    assert any('Content Security Policy' in e for e in page.errors) and calls == []
    page.close(); server.shutdown(); server.server_close()


def luminance(page, where='iframe.salviz-bertviz'):
    """Return the relative luminance of the background and of the pixel that differs most from it, and the largest
    colourfulness of a pixel, in a screenshot of the view"""
    x = np.asarray(Image.open(io.BytesIO(page.locator(where).first.screenshot())).convert('RGB'))/255
    linear = np.where(x <= .04045, x/12.92, ((x + .055)/1.055)**2.4) @ [.2126, .7152, .0722]
    background = np.median(linear)
    return background, linear.flat[np.abs(linear - background).argmax()], (x.max(-1) - x.min(-1)).max()


def settled(page, where):
    "Return `luminance` when two screenshots in a row agree, because JupyterLab fades from one theme to the other"
    last, now = None, luminance(page, where)
    while now != last:
        page.wait_for_timeout(300)
        last, now = now, luminance(page, where)
    return now


def contrast(a, b): return (max(a, b) + .05)/(min(a, b) + .05)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['head', 'model'])
def test_both_views_are_readable_in_both_themes_and_follow_a_change(page, kind):
    view = bertviz_view(snapshot(), kind=kind)
    shown(page, view, 'light')
    background, ink, colour = luminance(page)
    assert background > .95 and contrast(background, ink) > 12 and colour > .3
    page.evaluate("() => document.body.setAttribute('data-jp-theme-light', 'false')")
    background, ink, colour = luminance(page)
    assert background < .02 and contrast(background, ink) > 12 and colour > .3


@pytest.mark.slow
def test_an_explicit_theme_overrides_that_of_the_page(page):
    for theme, chosen_theme in (('light', 'dark'), ('dark', 'light')):
        shown(page, bertviz_view(snapshot(), theme=chosen_theme), theme)
        assert (luminance(page)[0] < .02) == (chosen_theme == 'dark')


@pytest.mark.slow
def test_the_frame_is_as_high_as_the_drawing(page):
    tall = snapshot(['[CLS]', *(f'word{i}' for i in range(60)), '[SEP]'])
    for s, kind in ((snapshot(), 'head'), (snapshot(heads=12), 'model')):
        frame = shown(page, bertviz_view(s, kind=kind))
        inner, outer = frame.evaluate("() => [document.documentElement.scrollHeight, innerHeight]")
        assert inner == outer
        assert outer - frame.evaluate("() => document.querySelector('svg').getBoundingClientRect().bottom") < 60
    frame = shown(page, bertviz_view(tall))
    assert frame.evaluate("() => innerHeight") == 900
    assert frame.evaluate("() => document.documentElement.scrollHeight") > 1300
    assert shown(page, bertviz_view(tall, height=333)).evaluate("() => innerHeight") == 333


@pytest.mark.slow
def test_a_saved_view_is_one_file_that_draws_from_disk_and_follows_the_readers_system(browser, tmp_path):
    path = bertviz_view(snapshot(), kind='model').save(tmp_path/'view.html')
    for scheme in ('light', 'dark'):
        page = new_page(browser, color_scheme=scheme)
        page.goto(path.as_uri())
        page.wait_for_selector('svg line', state='attached')
        assert (luminance(page, 'html')[0] < .02) == (scheme == 'dark')
        assert page.errors == [] and page.outside == [path.as_uri()]
        page.close()
    with pytest.raises(FileExistsError, match='view.html already exists; choose another path, or pass force=True'):
        bertviz_view(snapshot()).save(path)
    bertviz_view(snapshot()).save(path, force=True)


@pytest.mark.slow
def test_a_notebook_exported_to_html_shows_the_view(browser, tmp_path):
    from nbconvert import HTMLExporter
    from nbformat import v4
    cell = v4.new_code_cell('view',
                            outputs=[v4.new_output('execute_result',
                                                   {'text/html': bertviz_view(snapshot())._repr_html_()})])
    for template, theme in (('lab', 'dark'), ('classic', 'light')):
        body, _ = HTMLExporter(template_name=template,
                               **(dict(theme='dark') if theme == 'dark'
                                  else {})).from_notebook_node(v4.new_notebook(cells=[cell]))
        (tmp_path/'notebook.html').write_text(body)
        page = browser.new_page()
        page.route('http*://**', lambda route: route.abort()) # nbconvert's own scripts come from a CDN
        page.goto((tmp_path/'notebook.html').as_uri())
        page.frame_locator('iframe.salviz-bertviz').locator('svg line').first.wait_for(state='attached')
        assert (luminance(page)[0] < .02) == (theme == 'dark')
        page.close()


@pytest.mark.slow
def test_views_in_a_fresh_jupyterlab_are_there_at_the_first_run_in_both_themes(jupyter):
    root, url = jupyter.folder('bertviz'), jupyter.url
    run = Run.create(root/'run', dict(method=dict(name='ADDrop')))
    run.save(snapshot())
    sources = ["from salviz import bertviz_view\nbertviz_view('run')",
               "bertviz_view('run', step=7, probe=0, kind='model')"]
    cells = [dict(cell_type='code', id=f'cell{i}', metadata={}, source=s, outputs=[], execution_count=None)
             for i, s in enumerate(sources)]
    kernel = dict(display_name='Python 3 (ipykernel)', language='python', name='python3')
    (root/'views.ipynb').write_text(json.dumps(dict(nbformat=4, nbformat_minor=5, metadata=dict(kernelspec=kernel),
                                                    cells=cells)))
    page, errors, outside = jupyter.new_page(height=1200), [], []
    page.on('pageerror', lambda e: errors.append(str(e)))
    page.on('request', lambda r: None
            if r.url.startswith((url, url.replace('http', 'ws'), 'data:', 'blob:', 'about:'))
            else outside.append(r.url))
    page.goto(f'{url}/doc/tree/bertviz/views.ipynb?reset')
    page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle$/', timeout=90000)
    def menu(*path):
        page.click(f'.lm-MenuBar-itemLabel:text-is("{path[0]}")')
        for item in path[1:]: page.locator(f'.lm-Menu-itemLabel:text-is("{item}")').last.click()
    menu('Run', 'Run All Cells')
    views = [page.frame_locator('iframe.salviz-bertviz >> nth=0'),
             page.frame_locator('iframe.salviz-bertviz >> nth=1')]
    for view, lines in zip(views, (4*25, 3*4*25)):
        view.locator('svg line').first.wait_for(state='attached', timeout=60000)
        assert view.locator('svg line').count() == lines
    for theme in ('light', 'dark'):
        if theme == 'dark':
            menu('Settings', 'Theme', 'JupyterLab Dark')
            page.wait_for_selector('body[data-jp-theme-light=false]', state='attached')
        for where in ('iframe.salviz-bertviz >> nth=0', 'iframe.salviz-bertviz >> nth=1'):
            background, ink, colour = settled(page, where)
            assert (background < .02) == (theme == 'dark') and contrast(background, ink) > 12 and colour > .3
    menu('Settings', 'Theme', 'JupyterLab Light') # the server keeps the choice for the tests that follow
    page.wait_for_selector('body[data-jp-theme-light=true]', state='attached')
    jupyter.end_kernels('bertviz/')
    page.close()
    assert errors == [] and outside == []


def test_a_run_and_its_path_are_shown_at_the_step_and_probe(tmp_path):
    run = Run.create(tmp_path/'run', dict(method=dict(name='ADDrop')))
    for step in (0, 7): run.save(Snapshot(**{**snapshot().__dict__, 'step': step}))
    for source in (run, tmp_path/'run', str(tmp_path/'run')):
        assert 'at step 7' in bertviz_view(source).title and 'at step 0' in bertviz_view(source, step=0).title
    with pytest.raises(KeyError, match='3'): bertviz_view(run, step=3)


def test_of_an_explorer_the_run_the_step_and_the_sentence_in_view_are_shown(tmp_path):
    runs = [Run.create(tmp_path/name, dict(method=dict(name='ADDrop'))) for name in ('one', 'two')]
    for run, heads in zip(runs, (4, 3)):
        for step, probe in ((0, 0), (7, 0), (0, 1), (7, 1)):
            run.save(Snapshot(**{**snapshot(heads=heads).__dict__, 'step': step, 'probe': probe}))
    for state, title in ((dict(probe=1, step=0), 'probe 1 at step 0, 3 layers, 4 heads'),
                        (dict(run=1, probe=0, step=7), 'probe 0 at step 7, 3 layers, 3 heads')):
        explorer = Explorer(runs[0], compare=runs[1], state=state)
        assert title in bertviz_view(explorer).title and title in salviz.bertviz_view(explorer, kind='model').title
    explorer.view.ui = json.dumps(dict(run=0, probe=1, step=7)) # what the browser sends
    assert 'probe 1 at step 7, 3 layers, 4 heads' in bertviz_view(explorer).title
    with pytest.raises(ValueError, match='omit step= and probe=, or pass its run'): bertviz_view(explorer, step=0)


@pytest.mark.parametrize('kind', ['head', 'model'])
def test_the_code_of_the_page_is_that_of_bertviz(kind, monkeypatch):
    import bertviz
    plain_view, calls = getattr(bertviz, f'{kind}_view'), []
    def counted(**kwargs):
        calls.append(kwargs)
        return plain_view(**kwargs)
    monkeypatch.setattr(bertviz, f'{kind}_view', counted)
    page = bertviz_view(snapshot(), kind=kind)._build('light')
    assert len(calls) == 1 and calls[0]['include_layers'] == [0, 2, 5]
    # all of its code, but not its data, which are rounded, and its address
    for line in plain_view(**calls[0]).data.splitlines():
        if not any(x in line for x in ('script', 'const params', 'id="bertviz-')):
            assert line.strip() in page


def test_too_many_lines_raise_an_error_with_their_number_and_the_options():
    many = Snapshot(step=0, epoch=0., probe=0, arrays=dict(attention=np.zeros((12, 12, 128, 128), np.float32)),
                    tokens=['x']*128)
    with pytest.raises(ValueError,
                       match=r'the model view of 128 tokens, 12 layers and 12 heads draws 2,359,296 lines .a page '
                       r'of about 17 MB.*heads= or layers=.*force=True'):
        bertviz_view(many, kind='model')
    with pytest.raises(ValueError, match='the head view of 128 tokens, 12 layers and 12 heads draws 196,608 lines'):
        bertviz_view(many)
    assert bertviz_view(many, layers=[0], heads=range(6)).lines == 6*128*128
    forced = bertviz_view(many, layers=[0], force=True)
    assert forced.lines == 196_608 and forced.size < 7*196_608 + 600_000 and '196,608 lines' in repr(forced)


@pytest.mark.parametrize('kwargs, error, message', [
    (dict(kind='neuron'), ValueError, "kind must be 'head' or 'model', got 'neuron'"),
    (dict(theme='solarized'), ValueError, "theme must be 'light' or 'dark' or None, got 'solarized'"),
    (dict(layers=1), ValueError, r'layers \[1\] were not recorded; available: \[0, 2, 5\]'),
    (dict(heads=[4]), ValueError, r'heads \[4\] were not recorded; available: \[0, 1, 2, 3\]'),
    (dict(heads=[]), ValueError, 'the list of heads must not be empty')])
def test_wrong_arguments_raise_clear_errors(kwargs, error, message):
    with pytest.raises(error, match=message): bertviz_view(snapshot(), **kwargs)


def test_the_error_about_missing_attention_lists_the_arrays():
    with pytest.raises(KeyError, match='this snapshot has no attention; available: saliency'):
        bertviz_view(Snapshot(step=0, epoch=0., probe=0, arrays=dict(saliency=np.ones(2)), tokens=['a', 'b']))
    with pytest.raises(ValueError, match='run_or_snapshot must be a Run, a Snapshot, .* an Explorer or a path, got'):
        bertviz_view([snapshot()])


def test_a_missing_bertviz_raises_an_error_with_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, 'bertviz', None)
    with pytest.raises(ModuleNotFoundError, match=r"bertviz_view needs bertviz; .* run: pip install 'salviz\[lab\]'$"):
        bertviz_view(snapshot())
