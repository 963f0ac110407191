"A front in the explorer: its points open their runs, by mouse and by keys, live and in a saved page."
from dataclasses import replace

import pandas as pd
import pytest

import invented
from browser import browser, load, new_page, page  # noqa: F401, fixtures
from salviz.core.runs import Run
from salviz.explorer import Explorer
from salviz.explorer.run_metadata import front_meta, runs_of_front
from salviz.metrics.front import front_of

hostile = '<img src=x onerror="document.title=1">'
numbers = [(0, .90, .30), (.1, .89, .45), (1, .88, .62), (3, .70, .40), (10, .80, .66)]


@pytest.fixture(scope='module')
def front(tmp_path_factory):
    "Return a front of five values with two seeds; the runs of 3, and those of the second seed, recorded nothing"
    folder, rows = tmp_path_factory.mktemp('front'), []
    for w, a, f in numbers:
        for s in range(2):
            name = f'runs/guided.weight={w}.seed={s}'
            if w != 3 and s == 0: invented.run(folder/name, 'RationaleGuided', seed=s)
            else: Run.create(folder/name, dict(method=dict(name='RationaleGuided'))).finish()
            rows.append(dict(method='guided', weight=w, seed=s, run=name, validation_accuracy=a + .001*s,
                             validation_token_f1=f - .001*s))
    return replace(front_of(pd.DataFrame(rows), y='validation_token_f1'), folder=folder)


@pytest.mark.slow
def test_the_panel_receives_the_data_of_the_front(front):
    runs = runs_of_front(front)
    described = front_meta(front, runs)
    assert [p['run'] for p in described['points']] == [0, 1, 2, None, 3]
    assert [p['standing'] for p in described['points']] == front.frame.standing.tolist()
    assert (described['x'], len(described['stairs'])) == ('validation accuracy (higher is better)', 7)
    assert Explorer(front)._state()['run'] == 2 # at the knee
    assert [r.path.name for r in Explorer(front).runs] == [f'guided.weight={w}.seed=0' for w in (0, .1, 1, 10)]


@pytest.mark.slow
def test_points_open_their_runs_by_keys_and_by_mouse_in_a_saved_page(browser, front, tmp_path):
    Explorer(front).to_html(tmp_path/'front.html')
    shown = new_page(browser)
    shown.goto((tmp_path/'front.html').as_uri())
    points = shown.locator('.sv-trade-point')
    points.first.wait_for()
    run = lambda: shown.locator('.sv-toolbar select').first.evaluate('select => select.selectedOptions[0].text')
    here = lambda: shown.locator('.sv-trade-point[aria-current]').get_attribute('data-value')
    assert (points.count(), here()) == (5, '1')
    assert shown.locator('.sv-trade-point[tabindex="0"]').count() == 1
    shown.locator('.sv-trade-point[tabindex="0"]').focus()
    shown.keyboard.press('ArrowRight')
    focused = shown.evaluate('() => document.activeElement.getAttribute("aria-label")')
    assert focused.startswith('weight 0.1; validation accuracy (higher is better): 0.89')
    assert 'on the front; opens' in focused
    shown.keyboard.press('Enter')
    shown.wait_for_function('() => document.activeElement.getAttribute("aria-current") === "true"')
    assert 'weight=0.1.' in run()
    shown.locator('.sv-trade-point[data-value="10"]').click()
    shown.wait_for_function('() => document.querySelector(".sv-trade-point[aria-current]").dataset.value === "10"')
    assert 'weight=10.' in run()
    shown.locator('.sv-trade-point[data-value="3"]').click(force=True)
    shown.wait_for_timeout(100)
    assert here() == '10' and 'no recordings' in shown.locator('.sv-trade-point[data-value="3"]').get_attribute(
        'aria-label')
    assert shown.errors == []
    shown.close()


def test_names_keep_apart_and_ticks_are_round(page):
    load(page, 'tradeoff.js')
    assert page.evaluate('() => sv.roundTicks(.01, 1.02)') == [.2, .4, .6, .8, 1]
    places = page.evaluate('''() => sv.namePlaces([{x: 50, y: 50}, {x: 52, y: 50}, {x: 54, y: 51}], ['0.1', '1', '3'],
        {width: 200, height: 100})''')
    boxes = [p for p in places if p]
    assert len(boxes) >= 2
    for i, a in enumerate(boxes):
        assert 0 < a['x0'] and a['x1'] < 200
        for b in boxes[i + 1:]:
            assert a['x1'] <= b['x0'] or b['x1'] <= a['x0'] or a['y1'] <= b['y0'] or b['y1'] <= a['y0']


@pytest.mark.slow
def test_a_setting_with_a_hostile_name_stays_text(browser, front, tmp_path):
    named = replace(front, setting=hostile, frame=front.frame.rename(columns=dict(weight=hostile)))
    Explorer(named, panels=['tradeoff']).to_html(tmp_path/'hostile.html')
    shown = new_page(browser)
    shown.goto((tmp_path/'hostile.html').as_uri())
    shown.locator('.sv-trade-point').first.wait_for()
    assert shown.locator('.sv-tradeoff img').count() == 0
    assert 'onerror' in shown.locator('.sv-tradeoff h3').text_content()
    shown.close()


@pytest.mark.slow
def test_only_a_front_has_a_static_trade_off(front, tmp_path):
    explorer = Explorer(front)
    texts = [t.get_text() for ax in explorer.picture('tradeoff').axes for t in ax.texts]
    assert {'0', '0.1', '1', '3', '10'} <= set(texts)
    plain = Explorer(invented.run(tmp_path/'plain'))
    with pytest.raises(ValueError, match='this explorer has no Pareto front'): plain.picture('tradeoff')
    assert len(explorer.picture().axes) > 3


def test_invalid_fronts_raise_errors(front, tmp_path):
    with pytest.raises(ValueError, match='compare= cannot be combined with a front'): Explorer(front, compare='plain')
    with pytest.raises(ValueError, match='has no run folder'): Explorer(replace(front, folder=None))
    for name in ('a', 'b'): Run.create(tmp_path/name, dict(method=dict(name='RationaleGuided'))).finish()
    silent = replace(front, folder=tmp_path, runs=(('a',), ('b',), (), (), ()))
    with pytest.raises(ValueError, match='no run of this front has snapshots; train the study with'):
        Explorer(silent)
