"""What any host of anywidget needs, without a particular front end: the widgets' JavaScript in a plain page with a
model that has only the methods of the anywidget contract, outputs for front ends without widgets, and export to HTML"""
import json
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

import invented
from browser import browser, new_page, page, send, settled # noqa: F401 (fixtures)
from salviz import Explorer
from salviz.course.kinds import words
from salviz.course.marks import Marks
from salviz.course.predictions import Answers, CourseWidget, Predict
from salviz.explorer.view import ExplorerView

question = 'Which two words does it read most?'

def prediction(): return Predict('1.front', question, words('the film is not bad .'), lambda: ['not', 'bad'])

def marks(): return Marks('3.front', ['a warm film', 'a dull plot'], 2)

widgets = dict(explorer=lambda: Explorer('ad-drop').view, prediction=prediction, answers=lambda: Answers('alice'),
               marks=marks)

host = '''async ([js, css, model]) => {
    document.head.appendChild(document.createElement('style')).textContent = css;
    const asView = v => v instanceof Uint8Array ? new DataView(v.buffer, v.byteOffset, v.byteLength) : v;
    const state = Object.fromEntries(Object.entries(given).map(([k, v]) => [k, asView(v)]));
    window.model = new (eval(`(${model})`))(state);
    const before = new Set(Object.keys(window));
    const module = await import(URL.createObjectURL(new Blob([js], {type: 'text/javascript'})));
    const of = typeof module.default === 'function' ? await module.default() : module.default;
    const end = await of.initialize?.({model: window.model}), el = document.createElement('div');
    document.body.append(el);
    const close = await of.render({model: window.model, el});
    window.end = () => { close?.(); end?.(); };
    window.el = el;
    return Object.keys(window).filter(key => !before.has(key) && !['end', 'el'].includes(key)); }'''

def hosted(page, widget):
    "Render `widget` in `page` as a host of anywidget does; return the global names that it left in the page"
    hidden = ('layout', 'tabbable', 'tooltip')
    send(page, given={k: v for k, v in widget.get_state().items() if k not in hidden and not k.startswith('_')})
    return page.evaluate(host, [str(widget._esm), str(widget._css), invented.model_js])

@pytest.mark.parametrize('name', widgets)
def test_a_widget_is_drawn_in_a_plain_page_by_the_contract_of_anywidget(page, name):
    "The page fixture also checks that nothing failed and that nothing was requested from the network"
    left = hosted(page, widgets[name]())
    page.wait_for_function('() => el.querySelector("button") && el.getBoundingClientRect().height > 40')
    assert left == [] and page.evaluate('() => ["Jupyter", "jupyterapp", "require", "define", "google"].filter(x => '
                                        'x in window)') == []
    page.evaluate('() => end()')
    assert page.evaluate('() => Object.values(model.listeners).flat().length') == 0

def test_an_answer_reaches_the_model_in_a_plain_page(page):
    hosted(page, prediction())
    for word in (3, 4): page.locator('.cr-word').nth(word).click()
    page.locator('.cr-confidence input').first.check()
    page.get_by_role('button', name='Commit').click()
    page.wait_for_function('() => model.saved > 0 && model.get("answer").state === "committed"')
    assert page.evaluate('() => model.get("answer").first.value') == [3, 4]

@pytest.mark.parametrize('kind', [ExplorerView, CourseWidget])
def test_the_javascript_imports_nothing_and_uses_no_address(kind):
    source = str(kind._esm)
    assert not re.search(r'^\s*import\b[^(]', source, re.M) and not re.search(r'\bimport\(\s*[\'"`]', source)
    addresses = {a for a in re.findall(r'https?://[^\s\'"`)]+', source)}
    assert addresses <= {'http://www.w3.org/2000/svg'}, addresses
    assert not re.search(r'@import|url\(\s*[\'"]?http', str(kind._css))
    assert not re.search(r'\b(?:window|globalThis)\.(?:Jupyter|jupyterapp|jupyterlab|require|define|google)\b', source)

# --- outputs

@pytest.fixture(params=['VS Code', 'Colab'])
def elsewhere(request, monkeypatch):
    "Pretend that the process is a kernel of VS Code or of Colab"
    if request.param == 'VS Code': monkeypatch.setenv('VSCODE_PID', '1')
    else:
        output = ModuleType('google.colab.output')
        output.enable_custom_widget_manager = lambda: None
        output._widgets = SimpleNamespace(_installed_url=None)
        colab = ModuleType('google.colab')
        colab.output = output
        for name, module in {'google.colab': colab, 'google.colab.output': output}.items():
            monkeypatch.setitem(sys.modules, name, module)
    return request.param

def test_outputs_of_vs_code_and_colab_have_the_widget_an_image_and_text(elsewhere):
    explorer = Explorer('ad-drop')
    data = explorer._repr_mimebundle_()
    assert {*data} == {'application/vnd.jupyter.widget-view+json', 'image/png', 'text/plain'}
    assert data['text/plain'] == repr(explorer) != object.__repr__(explorer)
    data, _ = prediction()._repr_mimebundle_()
    assert {*data} == {'application/vnd.jupyter.widget-view+json', 'text/plain'}
    assert data['text/plain'] == "Predict('1.front', words, open)"

def test_other_outputs_have_a_copy_that_works_without_widgets():
    data = Explorer('ad-drop')._repr_mimebundle_()
    assert {*data} == {'text/html', 'image/png', 'text/plain'}
    assert 'Static image; trust this notebook or run the cell again' in data['text/html']
    assert '<img src="data:image/png' in data['text/html']

@pytest.mark.parametrize('template', ['lab', pytest.param('classic', marks=pytest.mark.slow)])
def test_a_notebook_with_the_state_of_its_widgets_opens_offline_as_html(browser, tmp_path, template):
    "The explorer is a copy in the page; the manager of widgets, which nbconvert loads from a CDN, is not needed"
    from ipywidgets import Widget
    from nbconvert import HTMLExporter
    from nbformat import v4
    explorer = Explorer('ad-drop')
    cell = v4.new_code_cell('explorer', outputs=[v4.new_output('display_data', explorer._repr_mimebundle_())])
    state = dict(state=Widget.get_manager_state([explorer.view])['state'], version_major=2, version_minor=0)
    notebook = v4.new_notebook(cells=[cell], metadata=dict(widgets={
        'application/vnd.jupyter.widget-state+json': json.loads(json.dumps(state, default=str))}))
    body, _ = HTMLExporter(template_name=template).from_notebook_node(notebook)
    (tmp_path/'notebook.html').write_text(body)
    page = browser.new_page(viewport=dict(width=1300, height=1000))
    page.context.set_offline(True)
    page.goto((tmp_path/'notebook.html').as_uri(), wait_until='commit')
    page.wait_for_selector('.sv-heads canvas', timeout=60000)
    page.wait_for_selector('.sv-map >> text=/layer \\d+, head \\d+/', timeout=60000)
    page.close()
