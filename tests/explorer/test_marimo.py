"""The widgets in marimo in a real Chromium: a run, a live training with its buttons, the selection as a trait, a
sentence that is typed, and a prediction"""
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from browser import knows_the_tour
from salviz.core.runs import Run
from salviz.course.session import read_answers

app = '''import marimo
app = marimo.App()
@app.cell
def _():
    import marimo as mo
    from salviz import ADDrop, Explorer, load_classifier, load_text, start_training, subset
    {setup}
    explorer = {source}
    get, put = mo.state(None)
    explorer.observe(lambda change: put(dict(change.new)), names='selection')
    explorer
    return explorer, get, mo, training
@app.cell
def _(get, mo):
    mo.md(f'selected: {{get()}}')
    return
@app.cell
def _(explorer, mo):
    choose = mo.ui.button(label='choose', on_click=lambda _: setattr(explorer, 'selection', dict(layer=1, head=2)))
    choose
    return
@app.cell
def _(mo):
    tick = mo.ui.refresh(default_interval='1s')
    tick
    return tick,
@app.cell
def _(mo, tick, training):
    tick
    mo.md(f'state: {{getattr(training, "state", "none")}}')
    return
if __name__ == '__main__':
    app.run()
'''
training = '''data = subset(load_text('movie-sentences'), 40, validation_size=10, test_size=10)
    names = data['train'].features['label'].names
    model, tokenizer = load_classifier('minilm', num_labels=5, labels=names, seed=0)
    training = start_training(model, tokenizer, data, method=ADDrop(p=.3, q=.3, cross_tuning=False),
        probes=['a gorgeous , witty , seductive movie .'], epochs=20, snapshots=60, batch_size=4, run_dir='run')'''
with_model = '''from salviz import explore
    training = None
    model, tokenizer = load_classifier('movie-minilm')'''
predictions = '''import marimo
app = marimo.App()
@app.cell
def _():
    import marimo as mo
    from salviz import Explorer
    from salviz.course import Predict, Reveal, answers, words
    sentence = 'the film is not bad , but it never surprises .'
    card = Predict('1.words', 'Which two words does it read most?', words(sentence), ['never', 'film'])
    card
    return Explorer, Reveal, answers, card, mo
@app.cell
def _(answers, card):
    card
    answers('alice')
    return
@app.cell
def _(mo):
    again = mo.ui.button(label='run again')
    again
    return again,
@app.cell
def _(Explorer, Reveal, again, card):
    again, card
    Reveal('1.words', ['It reads **never**.', Explorer('ad-drop')])
    return
if __name__ == '__main__':
    app.run()
'''

@contextmanager
def marimo_app(folder, source):
    "Serve the notebook `source` from `folder`, and yield its address"
    import marimo # noqa: F401, from the extra of this name
    (folder/'app.py').write_text(source)
    with socket.socket() as s: s.bind(('127.0.0.1', 0)); port = s.getsockname()[1]
    with open(folder/'log.txt', 'w') as log:
        command = [sys.executable, '-m', 'marimo', 'run', 'app.py', '--headless', '--no-token', f'--port={port}']
        settings = {**os.environ, 'XDG_CONFIG_HOME': str(folder)}
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=settings)
    try:
        until = time.monotonic() + 90
        while True:
            try: urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=2); break
            except OSError:
                assert server.poll() is None and time.monotonic() < until, (folder/'log.txt').read_text()
                time.sleep(.2)
        yield f'http://127.0.0.1:{port}'
    finally: server.terminate(); server.wait(20)

@contextmanager
def opened(browser, url, drawn='.sv-map >> text=/layer \\d+, head \\d+/'):
    "Open a page of the app and wait for `drawn`; at the end, check that there were no errors"
    page, errors = browser.new_page(viewport=dict(width=1280, height=1000)), []
    page.add_init_script(knows_the_tour)
    page.on('pageerror', lambda e: errors.append(str(e)))
    page.goto(url)
    page.wait_for_selector(drawn, timeout=240000)
    yield page
    page.close()
    assert errors == []

@pytest.mark.slow
def test_a_run_and_its_selection_work_in_marimo(browser, tmp_path):
    source = app.format(setup='training = None', source="Explorer('ad-drop')")
    with marimo_app(tmp_path, source) as url, opened(browser, url) as page:
        page.get_by_role('button', name='choose', exact=True).click()
        page.wait_for_selector('.sv-map >> text=/layer 1, head 2/', timeout=60000)
        page.wait_for_selector("text=/selected: .*'layer': 1, 'head': 2/", timeout=60000)
        page.locator('.sv-heads canvas').first.click(position=dict(x=200, y=100))
        page.wait_for_function("""() => { const text = document.body.innerText.match(/selected: .*/)?.[0];
            return text && !text.includes("'layer': 1, 'head': 2"); }""", timeout=60000)

@pytest.mark.slow
def test_a_training_is_followed_and_paused_in_marimo(browser, tmp_path):
    source = app.format(setup=training, source='Explorer(training)')
    with marimo_app(tmp_path, source) as url, opened(browser, url) as page:
        step = page.locator('.sv-where')
        expect(step).not_to_have_text(step.inner_text(), timeout=120000)
        page.get_by_role('button', name='Pause or resume').click()
        page.wait_for_selector('text=/state: paused/', timeout=120000)
        last = Run(tmp_path/'run').steps[-1]
        page.get_by_role('button', name='Pause or resume').click()
        page.wait_for_selector('text=/state: running/', timeout=120000)
        expect(step).not_to_have_text(step.inner_text(), timeout=120000)
        assert Run(tmp_path/'run').steps[-1] >= last
        page.get_by_role('button', name='Stop').click()
        page.wait_for_selector('text=/state: stopped/', timeout=120000)

@pytest.mark.slow
def test_a_typed_sentence_is_answered_in_marimo(browser, tmp_path):
    source = app.format(setup=with_model, source="explore(model, tokenizer, ['the film was great'], attribution=False)")
    with marimo_app(tmp_path, source) as url, opened(browser, url) as page:
        assert page.input_value('.sv-own-field') == 'the film was great'
        page.fill('.sv-own-field', 'the film was awful')
        page.keyboard.press('Enter')
        page.wait_for_selector('.sv-own-answer', timeout=120000)
        rows = page.eval_on_selector_all('.sv-own-column:not(.sv-own-names)',
                                         'all => all.map(o => [...o.children].map(c => c.textContent))')
        assert [row[:2] for row in rows if row[0] != row[1]] == [['great', 'awful']]
        expect(page.locator('.sv-own-map:visible')).to_have_count(3, timeout=60000)

@pytest.mark.slow
def test_a_prediction_is_answered_and_recorded_in_marimo(browser, tmp_path):
    with marimo_app(tmp_path, predictions) as url, opened(browser, url, '.course-predict .cr-word') as page:
        page.wait_for_selector('.course-answers', timeout=60000)
        for word in (4, 8): page.locator('.course-predict .cr-word').nth(word).click()
        page.locator('.course-predict .cr-confidence input').first.check()
        page.locator('.course-predict').get_by_role('button', name='Commit').click()
        page.wait_for_selector('.course-predict[data-state=committed]')
        page.wait_for_selector('.course-answers >> text=/1 of 1 answered/', timeout=60000)
        assert page.locator('.cr-true').count() == 0
        page.get_by_role('button', name='Show the answer').click()
        page.wait_for_selector('.course-predict .cr-true', timeout=60000)
        stored = read_answers(tmp_path/'answers-alice.json')['entries']['1.words']
        assert (stored['first']['value'], stored['state'], stored['scores']) == ([4, 8], 'revealed', [.5, None])

@pytest.mark.slow
def test_a_reveal_names_what_is_missing_in_marimo_and_shows_its_content_in_the_next_run(browser, tmp_path):
    with marimo_app(tmp_path, predictions) as url, opened(browser, url, '.course-predict .cr-word') as page:
        page.wait_for_selector('text=/Commit 1.words, then run this cell again/', timeout=60000)
        for word in (4, 8): page.locator('.course-predict .cr-word').nth(word).click()
        page.locator('.course-predict .cr-confidence input').first.check()
        page.locator('.course-predict').get_by_role('button', name='Commit').click()
        page.wait_for_selector('.course-predict[data-state=committed]')
        page.get_by_role('button', name='run again').click()
        page.wait_for_selector('strong:text("never")', timeout=60000)
        page.wait_for_selector('.course-predict .cr-true', timeout=60000)
        page.wait_for_selector('.sv-heads canvas', timeout=60000)
