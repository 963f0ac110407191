"""The panel of an answer about an image: it shows the numbers that `explain_answer` computes, says that a random model
is random, and shows hostile tokens as text."""
import numpy as np
import pytest

from browser import browser, load, page, send, settled  # noqa: F401, fixtures
from every_kind import answered
from salviz.core.image_layout import Crop, ImageLayout, pixel_map
from salviz.explorer.page import page as page_text
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
        panel.locator('select').select_option(str(method))
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
    assert chips.nth(1).get_attribute('aria-selected') == 'true'
    panel.locator('canvas').nth(1).focus()
    page.keyboard.press('ArrowRight')
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
