"""The page of a run: opened from disk, it shows what the widget shows, makes no network requests, and no token can
break it."""
import base64
import json
import re

import pytest

import accessible
import invented
from browser import browser, chromium, mount, new_page, page, settled # noqa: F401 (fixtures)
from salviz.explorer.widget import Explorer
from salviz.explorer.page import page_of, write_page
from salviz.explorer.page import page as page_text
from salviz.explorer.run_metadata import HeadRows, meta, rows_with_heads, run_meta
from salviz.explorer.page_compression import _unpack_page
from salviz.explorer.payload import pack_frame
from salviz.core.runs import Run
from salviz.views.maps import telling_entry

def opened(browser, path, **kw):
    "Open the file at `path` in a separate page"
    p = new_page(browser, **kw)
    p.outside.clear()
    p.goto(path.absolute().as_uri())
    p.wait_for_function('() => window.salviz || document.querySelector(".salviz-failed")')
    if p.evaluate('() => Boolean(window.salviz)'): p.evaluate('() => salviz.whole().catch(() => {})')
    settled(p)
    return p

def closed(p, path):
    "Check that there were no errors in `p` and that only the file itself was requested"
    errors, outside = p.errors, [o for o in p.outside if o != path.absolute().as_uri()]
    p.close()
    assert errors == [] and outside == []

def canvases(p):
    return p.eval_on_selector_all('.sv-panel:not([hidden]) canvas',
                                  'all => all.map(c => [c.closest(".sv-panel").className, c.width, c.height, '
                                  'c.toDataURL()])')

@pytest.mark.sample(1)
@pytest.mark.parametrize('method', invented.methods)
def test_the_page_shows_the_pixels_that_the_widget_shows(browser, page, tmp_path, method):
    run = invented.run(tmp_path/method, method)
    state = dict(probe=1, step=20, entry=dict(kind='head', layer=0, head=1), tab='map')
    path = write_page(page_of(run, state=state), tmp_path/'run.html')
    p = opened(browser, path)
    described, statistics = meta([run_meta(run)]), HeadRows(run, [0, 1])
    statistics.more()
    frames = [pack_frame(run.snapshot(s, q), full=[(1, 0)]) for s, q in run.recorded]
    page.add_style_tag(content='body { margin: 0 }')
    mount(page, described, frames, state=state, rows={0: rows_with_heads(run, statistics)})
    settled(page)
    here, others = canvases(page), canvases(p)
    assert len(here) >= 3 and [c[:3] for c in here] == [c[:3] for c in others]
    assert [c[0] for c, d in zip(here, others) if c != d] == []
    closed(p, path)

@pytest.mark.slow
def test_two_runs_on_one_page_are_compared(browser, tmp_path):
    runs = [invented.run(tmp_path/'one'), invented.run(tmp_path/'two', 'SalLM')]
    path = write_page(page_of(runs, state=dict(tab='compare')), tmp_path/'two.html')
    p = opened(browser, path)
    other, step = (p.locator('.sv-compare label', has_text=name).locator('select')
                   for name in ('Compare with', 'At step'))
    assert (other.input_value(), step.input_value()) == ('1', '')
    p.evaluate('() => salviz.state.set({run: 1})'); settled(p)
    assert other.input_value() == '0' and 'nothing' not in other.text_content()
    step.select_option('10'); settled(p)
    assert p.evaluate('() => salviz.state.compare') == dict(run=0, step=10)
    assert p.locator('.sv-compare:not([hidden]) canvas').count() >= 1
    assert p.evaluate('() => [0, 1].map(r => salviz.store.shipped(r, 0).length)') == [4, 4]
    closed(p, path)

@pytest.mark.slow
def test_a_sentence_is_unpacked_when_it_is_shown(browser, tmp_path):
    path = write_page(page_of(invented.run(tmp_path/'run')), tmp_path/'run.html')
    p = opened(browser, path)
    assert p.evaluate('() => salviz.store.shipped(0, 1)') == [] and p.locator('#salviz-frames-0-1').count() == 1
    p.evaluate('() => { salviz.state.set({probe: 1}); }'); settled(p)
    p.evaluate('() => salviz.whole()'); settled(p)
    assert p.evaluate('() => salviz.store.shipped(0, 1)') == [0, 10, 20, 30]
    assert p.locator('#salviz-frames-0-1').count() == 0
    closed(p, path)

@pytest.mark.slow
def test_the_page_follows_the_readers_theme(browser, tmp_path):
    path = write_page(page_of(invented.run(tmp_path/'run'), panels=['heads']), tmp_path/'run.html')
    for scheme in ('light', 'dark'):
        p = opened(browser, path, color_scheme=scheme)
        assert p.eval_on_selector('.salviz',
                                  'o => o.dataset.theme') == scheme == p.evaluate(
            '() => document.documentElement.dataset.theme')
        closed(p, path)

@pytest.mark.sample(1)
@pytest.mark.parametrize('scheme,width', [('light', 1280), ('dark', 360)])
def test_the_page_has_no_violation_of_axe(browser, tmp_path, scheme, width):
    runs = [invented.run(tmp_path/'one'), invented.run(tmp_path/'two', 'SalLM')]
    path = write_page(page_of(runs), tmp_path/'run.html')
    p = opened(browser, path, color_scheme=scheme, viewport=dict(width=width, height=800))
    assert p.locator('.sv-panel:not([hidden]) canvas').count() >= 3 and accessible.faults(p) == []
    closed(p, path)

hostile = ['[CLS]', '</script><script>window.hit = 1</script>', '<img src=x onerror="window.hit = 2">', '<!--',
           "');window.hit=3;//", '&lt;b&gt;', '\u202eabc', '\u2028', '🙂', '\u200b', 'x'*10_000, '[SEP]']

@pytest.mark.slow
@pytest.mark.parametrize('method', ['ADDrop', 'SaliencyGuided', 'AttentionGuidance'])
def test_no_token_can_break_the_page(browser, tmp_path, method):
    run = invented.run(tmp_path/'bad', method, probes=(0,), steps=(0, 10), tokens={0: hostile})
    path = write_page(page_of(run), tmp_path/'bad.html')
    text = path.read_text()
    assert text.lower().count('</script>') == text.lower().count('<script ')
    assert re.search(r'id="salviz-meta">(.*?)</script>', text, re.S)[1].isascii()
    p = opened(browser, path)
    for tab in ('map', 'triptych', 'compare', 'whatif'):
        p.evaluate('tab => { salviz.state.set({tab}); }', tab); settled(p)
    assert p.evaluate('() => window.hit') is None
    assert p.locator('img').count() == 0
    assert p.locator('.sv-failed').count() == 0
    assert p.evaluate('() => salviz.store.probe(0, 0).tokens') == hostile
    closed(p, path)

@pytest.mark.slow
def test_names_from_outside_are_text(browser, tmp_path):
    run = invented.run(tmp_path/'<b>&run', probes=(0,), steps=(0,))
    path = write_page(page_of(run, panels=['heads']), tmp_path/'name.html')
    p = opened(browser, path)
    assert '<b>&run' in p.title() and p.locator('main b').count() == 0
    closed(p, path)

@pytest.mark.slow
def test_the_page_forbids_all_network(browser, tmp_path):
    path = write_page(page_of(invented.run(tmp_path/'run'), panels=['heads']), tmp_path/'run.html')
    p = opened(browser, path)
    assert p.evaluate('() => fetch("https://example.com/").then(() => "sent", () => "refused")') == 'refused'
    assert p.evaluate('() => new Promise(done => { const i = new Image(); i.onload = () => done("sent"); i.onerror = '
                      '() '
                      '=> done("refused"); i.src = "https://example.com/a.png"; })') == 'refused'
    p.close()

@pytest.mark.slow
def test_a_damaged_page_shows_a_message(browser, tmp_path):
    path = write_page(page_of(invented.run(tmp_path/'run'), panels=['heads']), tmp_path/'run.html')
    text = path.read_text()
    packed = re.search(r'id="salviz-frames-0-0">(.*?)</script>', text)[1]
    for name, broken in (('half', text.replace(packed, packed[:len(packed)//2//4*4])),
                         ('none', re.sub(r'(id="salviz-meta">).*?(</script>)', r'\1{\2', text))):
        file = tmp_path/f'{name}.html'
        file.write_text(broken)
        p = opened(browser, file)
        p.wait_for_selector('.salviz-failed')
        assert 'could not be' in p.text_content('.salviz-failed')
        p.close()

# --- sizes and errors

def test_the_size_is_printed_after_the_page_is_written(tmp_path):
    run, message = invented.run(tmp_path/'run'), []
    path, built = tmp_path/'run.html', page_of(run)
    write_page(built, path, say=lambda text: message.append((text, path.exists())))
    size = built.sizes()
    assert message == [(built.sentence('run.html'), True)] and '2 sentences x 4 steps' in message[0][0]
    assert abs(path.stat().st_size - size['code'] - size['data']) < 5000

@pytest.mark.sample(3)
@pytest.mark.parametrize('method', invented.methods)
@pytest.mark.parametrize('n', [40, 130])
def test_a_weight_costs_at_most_two_bytes(tmp_path, method, n):
    "Noise, which compresses worst; with full maps of chosen heads beyond 128 tokens"
    run = invented.run(tmp_path/'run', method, probes=(0,), steps=(0, 10, 20),
                       tokens={0: ['[CLS]', *(f'w{i}' for i in range(n - 2)), '[SEP]']}, layers=3, heads=4)
    built = page_of(run)
    assert float(re.search(r'([\d.]+) bytes per weight', built.sentence())[1]) <= 2

@pytest.mark.sample(2)
@pytest.mark.parametrize('make,message', [(invented.image, '2 images x 1 step,'),
                                          (invented.series, '2 series x 1 step,'),
                                          (invented.scored, '2 sentences x 1 step,')])
def test_the_size_counts_images_and_series_as_such(make, message):
    assert message in page_of([make(0, p) for p in (0, 1)]).sentence()
    mixed = page_of([invented.image(0, 0), invented.scored(0, 1)])
    assert '2 examples x 1 step' in mixed.sentence()

@pytest.mark.slow
def test_sentences_steps_and_layers_can_be_chosen_and_the_page_lists_omissions(browser, tmp_path):
    run = invented.run(tmp_path/'run', 'ADDrop', layers=3)
    whole, part = (page_of(run, **subset).sizes() for subset in ({}, dict(probes=[1], steps=[0, -1], layers=[2])))
    assert part['data'] < whole['data']/2
    path = write_page(page_of(run, probes=[1], steps=[0, -1], layers=[2]), tmp_path/'part.html')
    p = opened(browser, path)
    assert p.evaluate('() => salviz.store.steps(0, 1)') == [0, 30]
    assert p.evaluate('() => salviz.store.frame(0, 1, 0).layers("attention")') == [2]
    assert 'layers other than 2' in p.evaluate('() => salviz.store.meta.shipped')
    assert '6 recorded frames of run' in p.evaluate('() => salviz.store.meta.shipped')
    assert p.locator('.sv-failed').count() == 0
    closed(p, path)

def test_full_maps_of_long_inputs_are_chosen_by_heads(tmp_path):
    run = invented.run(tmp_path/'run', probes=(0,), steps=(0,),
                       tokens={0: ['[CLS]', *(f'w{i}' for i in range(140)), '[SEP]']})
    def names(**kw):
        text = next(t for _, name, t in page_of(run, **kw).parts if name.startswith('salviz-frames'))
        return {a for a in json.loads(re.search(rb'\{.*\}',
                                                _unpack_page(base64.b64decode(text))[0][:20000])[0].split(b'    ')[0])[
            'arrays'] if '/' in a}
    assert names() == {'attention/{layer}.{head}'.format(**telling_entry(run.snapshot(0, 0)))}
    assert names(heads=[(0, 1), (1, 2)]) == {'attention/0.1', 'attention/1.2'}
    assert names(heads='all') == {f'attention/{l}.{h}' for l in (0, 1) for h in range(3)}
    assert names(heads='all', layers=[0]) == {f'attention/0.{h}' for h in range(3)}

@pytest.mark.slow
def test_full_maps_of_long_inputs_can_be_included(browser, tmp_path, capsys):
    run = invented.run(tmp_path/'run', 'ADDrop', probes=(0,), steps=(0,),
                       tokens={0: ['[CLS]', *(f'w{i}' for i in range(140)), '[SEP]']})
    one, every = page_of(run), page_of(run, heads='all')
    assert every.sizes()['data'] > 2*one.sizes()['data'] and every.frames == 1
    with pytest.raises(ValueError, match=r'about [\d.]+ MB, more than limit=.*full maps \(heads=\)'):
        page_of(run, heads='all', limit=1e6)
    path = write_page(every, tmp_path/'run.html')
    assert f'{every.sizes()["data"]/1e6:.1f} MB of data' in capsys.readouterr().out
    p = opened(browser, path)
    kind = p.evaluate("""() => { const frame = salviz.store.frame(0, 0, 0);
        return [0, 1].map(l => [0, 1, 2].map(h => frame.get(`attention/${l}.${h}`)?.shape)); }""")
    assert kind == [[[142, 142]]*3]*2
    closed(p, path)

@pytest.mark.slow
def test_the_explorer_writes_what_it_shows(browser, tmp_path, capsys):
    explorer = Explorer(invented.run(tmp_path/'run', 'ADDrop'), probes=[1], panels=['heads', 'map'])
    explorer.view.ui = json.dumps(dict(probe=1, step=10, what='attribution'))
    path = explorer.to_html(tmp_path/'run.html')
    assert '1 sentence x 4 steps' in capsys.readouterr().out and path.read_text().count('salviz-plotly"') == 0
    p = opened(browser, path)
    assert p.evaluate('() => [salviz.state.probe, salviz.state.step, salviz.state.what]') == [1, 10, 'attribution']
    assert p.locator('.sv-panel').count() == 2
    closed(p, path)
    with pytest.raises(FileExistsError, match='force=True'): explorer.to_html(path)
    assert explorer.to_html(path, force=True) == path

@pytest.mark.slow
def test_invalid_pages_raise_clear_errors(tmp_path):
    run, empty = invented.run(tmp_path/'run'), invented.run(tmp_path/'empty', steps=())
    cases = {'choose fewer examples (probes=), steps (steps=), layers (layers=)': lambda: page_of(run, limit=1e5),
               'has no snapshots to show': lambda: page_of(empty),
               'probes [5] were not recorded': lambda: page_of(run, probes=[5]),
               'layers [5] were not recorded; available: [0, 1]': lambda: page_of(run, layers=[5]),
               'the list of layers must not be empty': lambda: page_of(run, layers=[]),
               'a list of (layer, head) pairs': lambda: page_of(run, heads=[3]), 'got 3': lambda: page_of([run]*3),
               'must end in .html': lambda: write_page(page_of(run), tmp_path/'run.pdf')}
    for message, call in cases.items():
        with pytest.raises(ValueError) as e: call()
        assert message in str(e.value) and '\n' not in str(e.value), message
    assert page_of(run, limit=None).frames == 8

@pytest.mark.slow
def test_a_damaged_run_raises_an_error_and_its_intact_part_can_be_chosen(tmp_path):
    run = invented.run(tmp_path/'run')
    file = run.path/'snapshots'/'step-00000010.probe-000.safetensors'
    file.write_bytes(file.read_bytes()[:-8] + bytes(8*[7]))
    with pytest.raises(ValueError, match='checksum'): page_of(Run(run.path))
    assert page_of(Run(run.path), steps=[0, 20, 30]).frames == 6
    reference = Run(run.path)
    for _ in range(2): # also when the damage is already known
        with pytest.raises(ValueError, match='checksum'): page_of(reference, probes=[0])
        assert page_of(reference, steps=[0, 20, 30]).frames == 6
        assert page_of(reference, probes=[1]).frames == 4
    (run.path/'config.json').write_text('{')
    with pytest.raises(ValueError, match='not JSON'): page_text(run.path)

@pytest.mark.slow
def test_a_page_of_series_and_one_of_images_open_at_every_step(browser, tmp_path):
    for make, message in ((lambda s, p: invented.series(s, p, names=[hostile[1], *'abcde']), 'Series'),
                       (invented.image, 'Image')):
        path = write_page(page_of([make(s, p) for s in (0, 10, 20) for p in (0, 1)],
                                  panels=['signal', 'heads', 'sentence']), tmp_path/f'{message}.html')
        p = opened(browser, path)
        before = canvases(p)
        assert p.inner_text('.sv-signal .sv-title') == message
        assert [c[0] for c in before] == ['sv-panel sv-signal']*len(before)
        assert p.locator('.sv-heads').is_hidden()
        p.evaluate('() => { salviz.state.set({step: 0, probe: 1}); }'); settled(p)
        p.evaluate('() => salviz.whole()'); settled(p)
        assert p.evaluate('() => salviz.store.shipped(0, 1)') == [0, 10, 20]
        assert canvases(p)[0] != before[0]
        assert p.evaluate('() => window.hit') is None
        closed(p, path)
