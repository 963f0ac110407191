"Predictions in a real JupyterLab in a real Chromium: the truth stays in the kernel, and no key reaches the notebook."
import json

import pytest

from salviz.course.session import read_answers
from test_lab_explorer import Tab, notebook

cells = ['''from salviz.course import Predict, Reveal, answers, words
sentence = 'the film is not bad , but it never surprises .'
one = Predict('1.words', 'Which two words does it read most?', words(sentence), lambda: ['never', 'film'])
one''', '''seen = Reveal('1.words', lambda: made.append(1) or 'the secret of the run', title='What it reads')
made = []
seen''', "answers('alice')"]

@pytest.fixture(scope='module')
def tab(jupyter):
    "Open a notebook of three cells, and run them"
    root = jupyter.folder('course')
    notebook(root/'lesson.ipynb', *cells)
    tab = Tab((jupyter, root, None), 'lesson.ipynb').open()
    tab.run_all()
    tab.page.wait_for_selector('.course-answers', timeout=120000)
    tab.ended()
    yield tab
    tab.end()

@pytest.mark.slow
def test_a_prediction_is_answered_by_keyboard_and_its_answer_survives_reload_and_restart(tab):
    page, path = tab.page, tab.root/'answers-alice.json'
    assert 'secret' not in page.inner_text('.jp-Notebook').replace("'the secret of the run'", '')
    assert page.locator('.cr-true').count() == 0
    count = page.locator('.jp-Cell').count()
    page.locator('.course-predict .cr-word').first.focus()
    # 'dd' deletes a cell, 'b' adds one, 'x' cuts one, 'm' makes it Markdown, if they reach the notebook
    for key in ['d', 'd', 'b', 'x', 'm', *['ArrowRight']*4, ' ', *['ArrowRight']*4, 'Enter', 'Tab', ' ', 'Tab']:
        page.keyboard.press(key)
    page.keyboard.type('bdd x')
    page.keyboard.press('Enter') # JupyterLab does not pass it to the form
    page.wait_for_selector('.course-predict[data-state=committed]')
    page.wait_for_selector('.course-reveal[data-state=ready]')
    assert page.locator('.jp-Cell').count() == count
    page.wait_for_function('() => document.querySelector(".course-answers").textContent.includes("1 of 1 answered")')
    stored = read_answers(path)['entries']['1.words']
    assert (stored['first']['value'], stored['first']['why'], stored['state']) == ([4, 8], 'bdd x', 'committed')
    page.click('.course-reveal >> button:text-is("Show")')
    page.wait_for_selector('.course-predict .cr-true')
    page.wait_for_selector('.jp-OutputArea-output p:text-is("the secret of the run")')
    assert read_answers(path)['entries']['1.words']['scores'] == [.5, None]
    # the page is reloaded while its kernel keeps running; keys with Ctrl belong to the notebook
    page.locator('.course-answers button:text-is("Download")').focus()
    page.keyboard.press('Control+s')
    page.wait_for_function('''() => !document.querySelector('.jp-mod-dirty')''')
    tab.open()
    page.wait_for_selector('.course-predict[data-state=revealed]', timeout=60000)
    # the kernel is restarted: the file restores the answer
    tab.menu('Kernel', 'Restart Kernel and Run All Cells…')
    page.click('.jp-Dialog button.jp-mod-accept')
    page.wait_for_function('''() => document.querySelector('.course-answers')?.textContent.includes('Read back')''',
                           timeout=120000)
    page.wait_for_selector('.course-predict[data-state=revealed]')
    assert json.loads(path.read_text())['entries']['1.words']['first'] == stored['first']
