"""The panel of an answer about an image: it shows the numbers that `explain_answer` computes, states that a random
model is random, and shows hostile tokens as text."""
import json

import numpy as np
import pytest
import traitlets

from accessible import faults
from browser import browser, load, new_page, page, send, settled, spoken  # noqa: F401, fixtures
from every_kind import answered
from salviz.core.image_layout import Crop, ImageLayout, pixel_map
from salviz.explorer.page import page as page_text
from salviz.explorer.widget import Explorer
from salviz.metrics.localisation import energy_inside, pointing_game, rationale_mask
from salviz.model_explorer import explore
from salviz.models.small_vision_language import small_vision_language
from salviz.views.answers import answer_heat_map

image = np.random.default_rng(0).integers(0, 255, (30, 50, 3)).astype(np.uint8)
prompt = 'user : <image> what colour is the square ? assistant :'

def test_the_density_of_pixels_equals_that_of_python(page):
    crops = [[-1.5, .25, 7.5, 6., 2, 3], [0., 0., 5., 7., 1, 2]]
    layout = ImageLayout(5, 7, tuple(Crop(*crop) for crop in crops))
    weights = np.random.default_rng(1).random(8)
    load(page, 'answerimage.js')
    send(page, layout=dict(height=5, width=7, crops=crops), weights=weights.tolist())
    found = page.evaluate('Array.from(sv.pixelDensity(layout, weights, 5, 7))')
    assert np.allclose(np.reshape(found, (5, 7)), pixel_map(layout, weights)*35, atol=1e-5)
    assert page.evaluate('sv.tokensAt(layout, 5, 7, 3, 1)') == [3, 6]

def shown(page, snapshot):
    page.set_content(page_text([snapshot], panels=['answer']))
    settled(page)
    return page.locator('.sv-imageanswer')

def density(page):
    canvas = 'document.querySelectorAll(".sv-imageanswer canvas")[1]'
    return np.array(page.evaluate(f'Array.from({canvas}.salviz.density)'))

@pytest.mark.parametrize('family', ['internvl', 'qwen2_vl'])
def test_choosing_a_token_a_method_and_the_tower_shows_their_map(page, family):
    explorer = explore(*small_vision_language(family), image=image, prompt=prompt, generate=3)
    s = explorer.selected().snapshot
    panel = shown(page, s)
    assert 'all weights that are shown are random' in panel.inner_text()
    for token, method, tower in ((0, 0, False), (2, 1, False), (1, 2, True)):
        panel.locator('.sv-line').first.locator('.sv-chip').nth(token).click()
        panel.locator('select').first.select_option(str(method))
        panel.locator('input[type=checkbox]').first.set_checked(tower)
        view = answer_heat_map(s, [token], s.info['answer']['methods'][method], tower)
        # patches are stored in one byte: an error of up to 1/127 of the largest weight
        assert np.allclose(density(page), view.maps[0].ravel(), atol=.02*view.maps.max() if tower else 1e-4)
        fraction = round(100*float(s.arrays['answer_weights'][method, token, s.info['answer']['image_tokens']].sum()))
        assert f'{fraction} %' in panel.inner_text() or f'{fraction}%' in panel.inner_text()
        words = panel.locator('.sv-line').nth(1).locator('.sv-chip')
        assert words.count() == len(view.words)

def test_arrow_keys_choose_tokens_and_read_the_map(page):
    panel = shown(page, answered(['what', 'is', 'it', '?', 'a', 'cat']))
    chips = panel.locator('.sv-line').first.locator('.sv-chip')
    chips.first.click()
    page.keyboard.press('ArrowRight')
    settled(page)
    assert chips.nth(1).get_attribute('aria-selected') == 'true'
    panel.locator('canvas').nth(1).focus()
    page.keyboard.press('ArrowRight')
    settled(page)
    assert 'image token 0, weight' in panel.inner_text()

def test_hostile_tokens_are_shown_as_text(page):
    panel = shown(page, answered(['<b>x</b>', '<img src=x onerror=alert(1)>', 'is', '<i>y</i>', 'it']))
    hostile = ', '.join(f'.sv-imageanswer {tag}' for tag in ('b', 'i', 'img'))
    assert page.evaluate(f'document.querySelectorAll("{hostile}").length') == 0
    assert '<b>x</b>' in panel.inner_text()

@pytest.mark.parametrize('width', [360, 1280])
def test_nothing_is_wider_than_the_page(page, width):
    page.set_viewport_size(dict(width=width, height=900))
    shown(page, answered(['what', 'is', 'it', '?', 'a', 'cat']))
    assert page.evaluate('document.documentElement.scrollWidth') <= width

def test_arguments_of_other_inputs_are_rejected_and_missing_ones_are_named():
    model, processor = small_vision_language()
    with pytest.raises(ValueError, match='explore: texts, labels cannot be combined with image= and prompt='):
        explore(model, processor, 'a film', image=image, prompt=prompt, labels=[0])
    with pytest.raises(ValueError, match='missing: prompt'): explore(model, processor, image=image)
    with pytest.raises(ValueError, match='missing: model, tokenizer, image'): explore(prompt='what ?')

def test_measures_equal_those_of_python(page):
    g = np.random.default_rng(2)
    marks = [[2, 3, 9, 8], [4., 1., 11.5, 3.25, 6., 14.2, 1., 7.], *g.uniform(0, 12, (3, 10)).tolist()]
    heat = g.random((12, 15))
    heat[3:5, 3:6] = heat.max()
    load(page, 'answermarks.js')
    send(page, marks=marks, heat=heat.ravel().tolist())
    for k in range(1, len(marks) + 1):
        mask = rationale_mask(marks[:k], 12, 15)
        found = page.evaluate(f'Array.from(sv.markedPixels(marks.slice(0, {k}), 12, 15))')
        assert np.array_equal(np.reshape(found, (12, 15)), mask)
        measures = page.evaluate(f'sv.measuresInside(heat, sv.markedPixels(marks.slice(0, {k}), 12, 15))')
        assert measures == pytest.approx(dict(pointing=pointing_game(heat, mask), energy=energy_inside(heat, mask),
                                              area=mask.mean(), total=heat.sum()), rel=1e-6)
    words = page.evaluate('sv.measureWords([marks[0]], sv.measuresInside(Array(180).fill(0), Array(180).fill(1)))')
    assert words == 'The map is 0 everywhere in the image, so nothing can be measured.'

def marks_of(page):
    return page.evaluate("[...document.querySelectorAll('.sv-mark')].map(x => x.getAttribute('points'))")

def test_a_box_is_drawn_with_the_mouse_and_measured(page):
    snapshot = answered(['what', 'is', 'it', '?', 'a', 'cat'])
    panel = shown(page, snapshot)
    assert 'Draw boxes or outlines' in panel.inner_text()
    panel.locator('.sv-marks-bar select').select_option('box')
    box = panel.locator('.sv-marks').bounding_box()
    def at(y, x): return box['x'] + x/30*box['width'], box['y'] + y/20*box['height']
    page.mouse.move(*at(10, 20))
    page.mouse.down()
    page.mouse.move(*at(4, 6), steps=3)
    page.mouse.up()
    settled(page)
    assert marks_of(page) == ['6,4 20,4 20,10 6,10']
    spoken(page, 'Mark added. Inside 1 mark: energy')
    heat, mask = answer_heat_map(snapshot, [0]).maps[0], rationale_mask([[4, 6, 10, 20]], 20, 30)
    assert f'energy {energy_inside(heat, mask):.0%}'.replace('%', ' %') in panel.inner_text()
    assert 'A uniform map scores 14 % on both metrics' in panel.inner_text()

def test_an_outline_is_drawn_with_a_finger(browser):
    page = new_page(browser, has_touch=True)
    panel = shown(page, answered(['what', 'is', 'it', '?', 'a', 'cat']))
    panel.locator('.sv-marks-bar select').select_option('outline')
    box = panel.locator('.sv-marks').bounding_box()
    touch = page.context.new_cdp_session(page)
    # the first line has only two different points
    moves = (('touchStart', [(2, 2)]), ('touchMove', [(5, 9)]), ('touchMove', [(2, 2)]), ('touchEnd', []),
             ('touchStart', [(2, 2)]), ('touchMove', [(18, 2)]), ('touchMove', [(18, 28)]), ('touchEnd', []))
    for kind, places in moves:
        points = [dict(x=box['x'] + x/30*box['width'], y=box['y'] + y/20*box['height']) for y, x in places]
        touch.send('Input.dispatchTouchEvent', dict(type=kind, touchPoints=points))
    settled(page)
    assert marks_of(page) == ['2,2 2,18 28,18'] and page.errors == []
    page.close()

def test_a_box_is_added_moved_and_removed_with_the_keyboard(page):
    panel = shown(page, answered(['what', 'is', 'it', '?', 'a', 'cat']))
    panel.locator('button', has_text='Add box').press('Enter')
    settled(page)
    assert marks_of(page) == ['11,7 19,7 19,12 11,12']
    for key in ('ArrowRight', 'ArrowDown', 'Shift+ArrowRight', 'Shift+ArrowUp'):
        page.keyboard.press(key)
        settled(page)
    assert marks_of(page) == ['12,8 21,8 21,12 12,12']
    spoken(page, 'Box 1: rows 8 to 12, columns 12 to 21')
    for _ in range(15): page.keyboard.press('ArrowLeft')
    settled(page)
    assert marks_of(page)[0].startswith('0,8 ')
    page.keyboard.press('Shift+ArrowRight')
    for _ in range(9): page.keyboard.press('ArrowDown')
    settled(page)
    assert marks_of(page)[0].endswith(' 0,20') # moved only as far as the border
    page.keyboard.press('Delete')
    settled(page)
    assert marks_of(page) == [] and page.evaluate('document.activeElement.textContent') == 'Add box'

def test_moves_end_at_the_border_and_the_number_of_marks_is_limited(page):
    state = dict(marks={'0': [[1, 2, 8.5, 9.5]]*200})
    page.set_content(page_text([answered(['what', 'is', 'it', '?', 'a', 'cat'])], panels=['answer'], state=state))
    settled(page)
    page.locator('.sv-mark').first.focus()
    whole = 'document.querySelectorAll(".sv-imageanswer canvas")[1].salviz.whole'
    page.evaluate(f'window.before = {whole}')
    for _ in range(40): page.keyboard.press('ArrowDown')
    for _ in range(40): page.keyboard.press('Shift+ArrowRight')
    settled(page)
    assert marks_of(page)[0] == '2,12.5 30,12.5 30,20 2,20'
    assert page.evaluate(f'before.length === 600 && before === {whole}') # the map is not recomputed at each move
    page.locator('.sv-line').first.locator('.sv-chip').nth(1).click()
    settled(page)
    assert page.evaluate(f'before !== {whole}')
    page.locator('button', has_text='Add box').click()
    spoken(page, 'There are 200 marks already. Remove one to add another.')
    assert len(marks_of(page)) == 200

def test_marks_of_a_saved_view_are_checked(page):
    state = dict(marks={'0': [[1, 2, 3, 4], [3, 2, 1, 4], ['<b>', 1, 2, 3], [1, 2, 3, 4, 5], 'x', None]})
    page.set_content(page_text([answered(['what', 'is', 'it', '?', 'a', 'cat'])], panels=['answer'], state=state))
    settled(page)
    assert marks_of(page) == ['2,1 4,1 4,3 2,3']

def test_audio_is_read_in_seconds(page):
    snapshot = answered(['<s>', 'a', 'red', 'cat'])
    snapshot.info['answer']['seconds'] = .01
    panel = shown(page, snapshot)
    assert 'of this token’s weight is on the audio' in panel.inner_text()
    words = panel.locator('.sv-imageanswer-times').first.inner_text().split()
    assert words == ['0', '0.075', '0.15', '0.225', '0.3', 's']
    panel.locator('canvas').nth(1).focus()
    for _ in range(2): page.keyboard.press('ArrowRight')
    settled(page)
    assert '0.1 to 0.2 s, weight' in panel.inner_text()

def percent(x): return f'{100*x:.{int(x < .0995)}f} %'

def test_the_weight_on_padding_is_not_on_the_audio(page):
    snapshot = answered(['<s>', 'a', 'red', 'cat'])
    answer = snapshot.info['answer']
    answer |= dict(seconds=.01, layout=dict(height=20, width=30, crops=[[0, 0, 20, 90, 1, 6]])) # 2 of 6 are inside
    weights = snapshot.arrays['answer_weights']
    weights[..., 5] += 1
    weights /= weights.sum(-1, keepdims=True)
    panel = shown(page, snapshot)
    row, text = weights[0, 0], panel.inner_text()
    assert f'{percent(row[:2].sum())} of this token’s weight is on the audio' in text
    assert f'{percent(row[2:6].sum())} on the padding around it' in text
    label = panel.locator('canvas').nth(1).get_attribute('aria-label')
    assert f'Strongest position: {".15 to 0.3" if row[1] > row[0] else "0 to 0.15"} s'.replace(': .', ': 0.') in label
    panel.locator('canvas').nth(1).focus()
    for _ in range(4): page.keyboard.press('ArrowRight')
    settled(page)
    assert '0.15 to 0.3 s, weight' in panel.inner_text()

def test_the_output_for_the_whole_image_is_no_text(page):
    snapshot = answered(['what', 'is', 'it', '?', 'a', 'cat'])
    answer = snapshot.info['answer']
    answer |= dict(special=1, image_tokens=[1, 2, 3, 4, 5], patches=None,
                   layout=dict(height=20, width=30, crops=[[0, 0, 20, 30, 1, 5]]))
    snapshot.tokens[0] = '[whole image]'
    del snapshot.arrays['answer_patches']
    panel = shown(page, snapshot)
    whole = snapshot.arrays['answer_weights'][0, 0, 0]
    assert f'{percent(whole)} on the output of the encoder for the whole image' in panel.inner_text()
    assert panel.locator('.sv-line').nth(1).locator('.sv-chip').all_inner_texts() == ['what', 'is', 'it', '?']

def test_saved_marks_can_be_read_as_rationales(page):
    snapshot = answered(['what', 'is', 'it', '?', 'a', 'cat'])
    page.set_content(page_text([snapshot], panels=['answer'], state=dict(marks={'0': [[1, 2, 8, 9]]})))
    settled(page)
    with page.expect_download() as download: page.locator('button', has_text='Save marks').click()
    assert download.value.suggested_filename == 'salviz-marks-0.json'
    marks = json.loads(open(download.value.path()).read())
    assert rationale_mask(marks['0'], 20, 30).sum() == 49

def test_marks_are_accessible(page):
    snapshot = answered(['what', 'is', 'it', '?', 'a', 'cat'])
    page.set_content(page_text([snapshot], panels=['answer'], state=dict(marks={'0': [[1, 2, 8, 9]]})))
    settled(page)
    assert marks_of(page) and faults(page) == []

def test_marks_arrive_in_python_and_are_shown_from_there():
    explorer = Explorer([answered(['what', 'is', 'it', '?', 'a', 'cat'])], panels=['answer'])
    seen = []
    explorer.observe(lambda change: seen.append(change.new), 'marks')
    explorer.view.ui = json.dumps(explorer._state() | dict(marks={'0': [[1, 2, 3, 4]]}))
    assert explorer.marks == {0: [[1, 2, 3, 4]]} == seen[-1]
    explorer.marks = {0: [[1, 2, 3, 4], [0, 0, 9, 0, 9, 9]]}
    assert json.loads(explorer.view.ui)['marks'] == {'0': explorer.marks[0]}
    assert rationale_mask(explorer.marks[0], 20, 30).sum() == 4 + 36
    with pytest.raises(traitlets.TraitError, match='got a mark of 3 numbers'): explorer.marks = {0: [[1, 2, 3]]}
    for mark in ([3, 2, 1, 4], [1, 2, np.nan, 4], [0, 0, 9, 0, np.inf, 9]):
        with pytest.raises(traitlets.TraitError, match=r'only finite numbers .*, got .'): explorer.marks = {0: [mark]}
    assert json.loads(explorer.view.ui)['marks'] == {'0': explorer.marks[0]}
    saved = [[3, 2, 1, 4], 'box', [1, 2, 3], [1, 2, 3, None], [1, 2, 3, 4]] # only the last one is a box
    explorer.view.ui = json.dumps(explorer._state() | dict(marks={'0': saved, '1': 3}))
    assert explorer.marks == {0: [[1, 2, 3, 4]]}
