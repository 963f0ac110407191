"The current view can be exported: as a figure, as arrays, as an image, as a line of Python, as an address."
import json

import numpy as np
import pytest

import invented
from every_kind import an_image
from browser import browser, load, mount, new_page, page, settled # noqa: F401 (fixtures)
from salviz.explorer.bertviz import bertviz_view
from salviz.explorer.run_metadata import meta, run_meta
from salviz.explorer.page import page_of, write_page
from salviz.explorer.payload import pack_frame
from salviz.explorer.widget import Explorer, _state_names
from salviz.figures.kinds import figure
from salviz.views.maps import attention_map, compared, triptych

@pytest.fixture(scope='module')
def run(tmp_path_factory): return invented.run(tmp_path_factory.mktemp('keep')/'run', 'ADDrop')

chosen = dict(probe=1, step=20, entry=dict(kind='head', layer=1, head=2))

def opened(browser, path, fragment=''):
    p = new_page(browser)
    p.outside.clear()
    p.goto(path.absolute().as_uri() + fragment)
    p.wait_for_function('() => window.salviz')
    p.evaluate('() => salviz.whole()')
    settled(p)
    return p

def test_the_arrays_are_those_that_were_recorded(run):
    stored, s = Explorer(run, state=chosen).snapshot(), run.snapshot(20, 1)
    at = {k: v.index(1) for k, v in s.layers.items() if 1 in v}
    assert stored.tokens == tuple(s.labels) and (stored.layer, stored.head, stored.step, stored.probe) == (1, 2, 20, 1)
    for name, evidence in (('attention', 'attention'), ('attribution', 'attention_attribution'),
                           ('candidates', 'discard_candidates'), ('discarded', 'discarded')):
        assert np.array_equal(getattr(stored, name), s.arrays[evidence][at[evidence], 2]), name
    mean = Explorer(run, state={**chosen, 'entry': dict(kind='all')}).snapshot()
    assert np.allclose(mean.attention, s.arrays['attention'].mean((0, 1))) and mean.candidates is None

@pytest.mark.slow
@pytest.mark.parametrize('tab, create', [('map', attention_map), ('triptych', triptych), ('whatif', attention_map)])
def test_the_figure_is_of_the_panel_in_view(run, tab, create):
    fig = Explorer(run, state={**chosen, 'tab': tab}).figure(width='acl')
    view = create(run.snapshot(20, 1), layer=1, head=2)
    assert view.caption.split('. ')[0] in fig.caption
    assert fig.get_figwidth() == pytest.approx(7.7/2.54) and any('Step 20' in fact for fact in fig.facts)
    assert fig.facts == figure(Explorer(run, state={**chosen, 'tab': tab})).facts

@pytest.mark.slow
def test_of_a_comparison_b_is_the_later_step(run):
    for here, b_step in ((20, 0), (0, 20)):
        explorer = Explorer(run, state={**chosen, 'step': here, 'tab': 'compare', 'compare': dict(run=0, step=b_step)})
        view = compared(run.snapshot(0, 1), run.snapshot(20, 1), layer=1, head=2)
        assert '(b) B is step 20' in explorer.figure().caption and view.names[1] == 'B: step 20'

def test_another_kind_uses_the_head_in_view_and_rejects_a_step(run):
    explorer = Explorer(run, state=chosen)
    assert 'layer 1, head 2' in explorer.figure('evolution').caption.lower()
    assert explorer.figure('loss_curves').caption
    with pytest.raises(ValueError, match='omit step=, or pass its run'): figure(explorer, step=0)
    with pytest.raises(ValueError, match="unknown kind 'heat'"): explorer.figure('heat')

def test_an_image_has_a_figure_but_no_arrays_of_tokens():
    explorer = Explorer([an_image('short')])
    assert explorer.figure().caption
    with pytest.raises(ValueError, match='an image or a series, which has no tokens'): explorer.snapshot()

def test_a_figure_of_patches_is_not_of_cls_where_another_token_is_in_view():
    image = invented.image(0, height=4, width=6)
    image.info['patches'], image.layers['attention'] = dict(rows=2, columns=3, first=2), [0]
    image.arrays['attention'] = np.full((1, 2, 8, 8), 1/8)
    def patch(row, **options):
        return Explorer([image], state=dict(row=row)).as_figure('patch_attention', options)['options']['patch']
    assert [patch(row) for row in (None, 0, 2, 7, 8)] == [None, None, (0, 0), (1, 2), None]
    with pytest.raises(ValueError, match='extra token 1 is selected; choose another token'): patch(1)
    assert patch(1, patch=(1, 1)) == (1, 1)

def test_the_state_restores_the_view(run):
    explorer = Explorer(run, state={**chosen, 'palette': 'grey', 'theme': 'dark'})
    state = json.loads(json.dumps(explorer.state))
    assert state['palette'] == 'grey' and 'theme' not in state
    again = Explorer(run, state=state)
    assert again.state == state and np.array_equal(again.snapshot().attention, explorer.snapshot().attention)
    explorer.state = dict(step=0)
    assert explorer.snapshot().step == 0 and explorer.state['probe'] == 0
    for wrong, message in ((dict(layer=1), 'unknown keys in state: layer; allowed: run, probe'),
                        ([1], 'state must be a dict')):
        with pytest.raises(ValueError, match=message): explorer.state = wrong
        with pytest.raises(ValueError, match=message): Explorer(run, state=wrong)

def test_the_names_of_the_state_are_those_of_the_browser(page):
    load(page, 'state.js')
    assert page.evaluate('() => Object.keys(sv.firstState)') == _state_names()

def test_bertviz_shows_what_is_in_view(run):
    assert 'probe 1 at step 20' in bertviz_view(Explorer(run, state=chosen)).title

def kept_page(page, run, **state):
    frames = [pack_frame(run.snapshot(s, q), full=[(1, 0)]) for s, q in run.recorded]
    mount(page, meta([run_meta(run)]), frames, state={**chosen, **state}, rows={0: run.metrics})

def kept_text(page, which=0):
    "Return the text of a field in the open menu, which an event of the page fills"
    field = page.locator('.sv-keep-text').nth(which)
    page.wait_for_function('field => field.value', arg=field.element_handle())
    return field.input_value()

@pytest.mark.slow
def test_the_python_line_restores_the_view(page, run):
    kept_page(page, run, hideSpecial=True, whatIf=None, tokens=[1, 2])
    page.locator('.sv-keep summary').click()
    line = kept_text(page)
    assert page.locator('.sv-keep-text').count() == 1 # only pages have a link
    again = eval(line, dict(Explorer=Explorer, run=run)) # noqa: S307, what a person would do with it
    assert again.state == {**chosen, 'hideSpecial': True, 'tokens': [1, 2], 'run': 0}
    page.evaluate('() => app.state.set({step: 0})'); settled(page)
    assert '"step": 0' in page.locator('.sv-keep-text').first.input_value()
    page.keyboard.press('Escape')
    assert not page.locator('.sv-keep-body').is_visible()

@pytest.mark.slow
def test_the_picture_contains_the_map_and_its_text(page, run):
    kept_page(page, run)
    page.locator('.sv-keep summary').click()
    with page.expect_download() as download: page.get_by_role('button', name='save the map in the side panel').click()
    assert download.value.suggested_filename == 'salviz-probe-1-step-20.png'
    from PIL import Image
    image = np.asarray(Image.open(download.value.path()).convert('RGB'))
    width, height = page.eval_on_selector('.sv-map canvas', 'c => [c.width, c.height]')
    assert image.shape[1] == width + 24 and height + 24 < image.shape[0] < height + 120
    drawn = np.asarray(page.eval_on_selector('.sv-map canvas', '''c => {
        const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height); return [...data]; }'''),
        dtype=np.uint8).reshape(height, width, 4)
    here, solid = image[-height - 12:-12, 12:-12], drawn[..., 3] == 255
    assert solid.mean() > .2 and np.array_equal(here[solid], drawn[..., :3][solid])
    assert (image[12:-height - 12] < 100).any() # words above the map

@pytest.mark.slow
def test_an_address_opens_the_same_view(browser, run, tmp_path):
    path = write_page(page_of(run), tmp_path/'run.html')
    p = opened(browser, path)
    p.evaluate('() => { salviz.state.set({probe: 1, step: 10, tab: "triptych", entry: {kind: "head", layer: 0, '
               'head: 1}}); }')
    settled(p)
    p.locator('.sv-keep summary').click()
    link = kept_text(p, 1)
    assert link.startswith(path.absolute().as_uri() + '#view=')
    first = p.evaluate('() => salviz.state.get()')
    p.close()
    again = opened(browser, path, link[link.index('#'):])
    assert again.evaluate('() => salviz.state.get()') == first and again.locator('.sv-triptych canvas').count()
    again.evaluate('link => { location.hash = link; }', '#view=' + '%7B%22probe%22%3A0%7D')
    again.wait_for_function('() => salviz.state.probe === 0')
    assert again.evaluate('() => salviz.state.tab') == 'map' and again.errors == []
    again.close()

@pytest.mark.slow
@pytest.mark.parametrize('wanted', ['%7B', '%7B%22hit%22%3A1%7D', '%7B%22entry%22%3A3%7D', '7', '%E0%A4%A'])
def test_an_invalid_address_shows_a_message_and_the_page_opens(browser, run, tmp_path, wanted):
    path = write_page(page_of(run, panels=['map']), tmp_path/'run.html')
    p = opened(browser, path, f'#view={wanted}')
    assert 'Could not read the view in this page’s address' in p.locator('.salviz-failed').inner_text()
    assert p.locator('.sv-map canvas').count() and p.errors == []
    p.close()

# ---- the first selection and its note

def with_attribution(run, step, attributed):
    s = run.snapshot(step, 0)
    if attributed is None:
        s.arrays = {'attention': s.arrays['attention']}
        s.layers = {'attention': s.layers['attention']}
        s.info = {'pooled_row': 0}
    else:
        values = np.zeros_like(s.arrays['attention_attribution'])
        values[:, :, 0] = 5.         # one bright row, as in a last layer
        values[attributed] = 1.
        s.arrays['attention_attribution'] = values
    return s

def test_a_live_run_moves_to_a_head_that_has_something_to_show(page, run):
    first, later = (with_attribution(run, step, at) for step, at in ((0, None), (10, (0, 1))))
    mount(page, meta([run_meta(run)]), [pack_frame(first)], panels=['heads', 'map'])
    entry = lambda: page.evaluate('() => app.state.entry')
    assert entry() == dict(kind='head', layer=1, head=0)
    page.evaluate('bytes => { store.addFrame(Uint8Array.from(bytes)); }', list(pack_frame(later))); settled(page)
    assert entry() == dict(kind='head', layer=0, head=1)
    page.evaluate('() => app.state.set({entry: {kind: "head", layer: 1, head: 2}, step: 0})'); settled(page)
    page.evaluate('() => app.state.set({step: 10})'); settled(page)
    assert entry() == dict(kind='head', layer=1, head=2) # the reader's choice is preserved

def test_a_head_whose_rows_are_ties_is_not_the_first(page, run):
    s = with_attribution(run, 0, None)
    s.arrays['attention'] = s.arrays['attention'].copy()
    s.arrays['attention'][1, :2] = 1/len(s.tokens)
    mount(page, meta([run_meta(run)]), [pack_frame(s)], panels=['map'])
    assert page.evaluate('() => app.state.entry') == dict(kind='head', layer=1, head=2)

@pytest.mark.slow
@pytest.mark.parametrize('panel, steps', [('map', 'step 20'), ('triptych', 'step 20'),
                                          ('compare', 'A step 0, B step 20')])
def test_a_reading_names_its_place_and_goes_with_it(page, run, panel, steps):
    kept_page(page, run, tab=panel, compare=dict(run=0, step=0))
    tip, canvas = (lambda: page.text_content(f'.sv-{panel} .sv-tip')), f'.sv-{panel} .sv-stage canvas >> nth=0'
    x, y = page.evaluate('''panel => { const {grid, grids} = document.querySelector(`.sv-${panel} canvas`).salviz;
                            return (grid ?? grids[2]).middle(1, 2); }''', panel)
    for change in (dict(step=10), dict(entry=dict(kind='head', layer=0, head=1)), dict(probe=0)):
        page.evaluate('state => app.state.set(state)', chosen); settled(page)
        page.mouse.move(0, 0)
        page.hover(canvas, position=dict(x=x, y=y))
        assert tip().startswith(f'layer 1, head 2, {steps}, “'), tip()
        page.evaluate('state => app.state.set(state)', change); settled(page)
        assert tip() == '', change

@pytest.mark.slow
@pytest.mark.parametrize('panel', ['map', 'triptych', 'compare'])
def test_the_cursor_is_reset_in_a_shorter_sentence(page, run, panel):
    kept_page(page, run, tab=panel, compare=dict(run=0, step=0))
    page.focus(f'.sv-{panel} .sv-stage canvas >> nth=0')
    for key in ['ArrowDown']*10 + ['ArrowRight']*10: page.keyboard.press(key)
    n = len(run.snapshot(20, 0).tokens)
    assert '“[SEP]” → “[SEP]”' in page.text_content(f'.sv-{panel} .sv-tip') and n < len(run.snapshot(20, 1).tokens)
    page.keyboard.press('{'); settled(page)
    assert page.evaluate('() => app.state.probe') == 0 and page.text_content(f'.sv-{panel} .sv-tip') == ''
    assert page.text_content(f'.sv-{panel}').count('could not be drawn') == 0

@pytest.mark.slow
def test_a_banner_names_the_what_if_settings(page, run):
    kept_page(page, run, whatIf=dict(p=.5, q=.2))
    banner = page.locator('.sv-banner')
    assert banner.is_visible()
    assert 'What-if settings: p = 0.5, q = 0.2. The result is recomputed, not recorded.' in banner.inner_text()
    drawn = page.evaluate('() => document.querySelector(".sv-map canvas").toDataURL()')
    banner.get_by_role('button').click(); settled(page)
    assert not banner.is_visible() and page.evaluate('() => app.state.whatIf') is None
    assert page.evaluate('() => document.querySelector(".sv-map canvas").toDataURL()') != drawn

# ---- a mean over chosen heads

pairs = [[0, 1], [1, 0], [1, 2]]
subset = dict(kind='mean', layer=0, head=1, heads=pairs)

@pytest.mark.slow
def test_heads_are_added_to_a_mean_by_a_click_with_shift(page, run):
    kept_page(page, run, entry=dict(kind='head', layer=0, head=1))
    def click(layer, head, *keys):
        x, y = page.evaluate('''([layer, head]) => {
            const t = document.querySelector('.sv-heads canvas').salviz.tiles.find(({entry}) => entry.kind === 'head'
                && entry.layer === layer && entry.head === head); return [t.x + 5, t.y + 5]; }''', [layer, head])
        page.click('.sv-heads canvas', position=dict(x=x, y=y), modifiers=list(keys)); settled(page)
    click(1, 2, 'Shift'); click(1, 0, 'Control')
    entry = page.evaluate('() => app.state.entry')
    assert entry['kind'] == 'mean' and sorted(entry['heads']) == pairs
    title = 'mean over layer 0 head 1; layer 1 heads 0, 2'
    assert page.text_content('.sv-map h3') == title == page.text_content('.sv-heads .sv-tip')
    exact = run.snapshot(20, 1).arrays['attention'][[0, 1, 1], [1, 0, 2]].astype(float).mean(0)
    load(page, 'derive.js')
    drawn = page.evaluate('() => [...sv.mapOf(store.frameOf(app.state), app.state.entry, "attention").values]')
    assert np.abs(np.reshape(drawn, exact.shape) - exact).max() < .01 # the precision of the codes
    click(1, 2, 'Shift'); click(0, 1, 'Shift')
    assert page.evaluate('() => app.state.entry') == dict(kind='head', layer=1, head=0)

@pytest.mark.slow
def test_a_mean_over_chosen_heads_is_saved_like_any_view(run):
    explorer = Explorer(run, state={**chosen, 'entry': subset})
    exact = run.snapshot(20, 1).arrays['attention'][[0, 1, 1], [1, 0, 2]].mean(0)
    assert np.allclose(explorer.snapshot().attention, exact, atol=1e-6)
    for tab in ('map', 'triptych', 'compare'):
        fig = Explorer(run, state={**chosen, 'entry': subset, 'tab': tab}).figure()
        assert 'mean over layer 0 head 1; layer 1 heads 0, 2' in fig.caption, tab
    for panel in ('map', 'triptych', 'compare', 'sentence', 'heads', None): assert explorer.picture(panel)
    assert Explorer(run, state=explorer.state).state == explorer.state
