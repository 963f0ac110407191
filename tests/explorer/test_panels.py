"A panel is one file: everything that uses panels finds it there."
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from matplotlib.text import Text

import invented
import salviz
from browser import browser, evaluate_json, load, new_page, page  # noqa: F401, fixtures
from salviz.explorer.assets import _panel_of, panels, static_text
from salviz.explorer.static_images import Selection, _parts, picture
from salviz.figures.drawing import figure_kinds
from salviz.figures.sheet import draw_figure
from salviz.views.base import attention_beside_saliency

added = '''// Panel 'longest': the longest token of a sentence.
import {elementOf} from '../lib/controls.js';

class LongestToken {
  constructor(ctx) {
    this.ctx = ctx;
    this.el = elementOf('section', 'sv-panel sv-longest');
  }

  update() {
    const {store, state} = this.ctx, {labels} = store.probe(state.run, state.probe);
    this.el.textContent = `The longest token is ${labels.reduce((a, b) => b.length > a.length ? b : a)}.`;
  }
}

export const longestPanel = {
  name: 'longest', title: 'Longest token', order: 65, shows: 'text', image: 'attention_beside_saliency', page: 'below',
  view: LongestToken,
};
'''

# How a user uses the new panel.
used = '''
import json, sys
import invented
from matplotlib.text import Text
from salviz.explorer import Explorer
from salviz.explorer.page import page_of, write_page
run = invented.run(sys.argv[1] + '/run')
write_page(page_of(run), sys.argv[1] + '/whole.html', say=lambda said: None)
explorer = Explorer(run, panels=['longest', 'time'])
explorer.to_html(sys.argv[1] + '/chosen.html')
words = lambda figure: [o.get_text() for o in figure.findobj(Text)]
print(json.dumps(dict(options=explorer.view.options, program=explorer.view._esm,
                      image=words(explorer.picture('longest')), whole=words(explorer.picture()))))
'''

@pytest.fixture(scope='module')
def house(tmp_path_factory):
    "Create a copy of the library with an additional file, and return it with the output of `used`"
    folder = tmp_path_factory.mktemp('house')
    shutil.copytree(Path(salviz.__file__).parent, folder/'salviz', ignore=shutil.ignore_patterns('__pycache__'))
    (folder/'salviz'/'explorer'/'static'/'panels'/'longest.js').write_text(added)
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    done = subprocess.run([sys.executable, '-c', used, str(folder)], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])

@pytest.mark.slow
def test_a_panel_of_one_file_is_in_the_widgets_payload(house):
    _, options = house
    assert json.loads(options['options'])['panels'] == ['longest', 'time']
    assert 'const longestPanel' in options['program']
    assert 'signalPanel, patchesPanel, evidencePanel' in options['program']
    order = options['program'].split('explorerPanels = [')[1].split(']')[0].split(', ')
    assert order.index('sentencePanel') < order.index('longestPanel') == order.index('customSentencePanel') - 1

@pytest.mark.slow
@pytest.mark.parametrize('name', ['whole', 'chosen'])
def test_a_panel_of_one_file_is_shown_by_a_page_without_network(house, browser, name):
    p = new_page(browser)
    p.goto((house[0]/f'{name}.html').as_uri())
    p.wait_for_function('() => window.salviz')
    p.wait_for_selector('.sv-longest')
    assert p.inner_text('.sv-longest') == 'The longest token is unforget.'
    assert p.locator('.sv-failed').count() == 0 and p.errors == []
    assert p.locator('.sv-panel').count() == (18 if name == 'whole' else 2)
    p.close()

@pytest.mark.slow
def test_a_panel_in_one_file_has_a_static_image(house):
    _, options = house
    without = {o.get_text() for o in picture(Selection(invented.snapshot(30))).findobj(Text)}
    fig = draw_figure(attention_beside_saliency(invented.snapshot(30)))
    names = {o.get_text() for o in fig.findobj(Text)} - without
    assert names <= set(options['image']) and len(names & set(options['whole'])) > 1

@pytest.mark.slow
def test_python_and_javascript_read_the_same_in_a_panels_file(page):
    load(page, 'panels.js')
    theirs = evaluate_json(page, '() => sv.explorerPanels')
    ours = [asdict(panel) for panel in panels().values()]
    for mine in ours:
        export, file = mine.pop('export'), mine.pop('file')
        assert f'export const {export} = {{' in static_text(file)
    reference = ours[0].keys()
    assert [{k: v for k, v in o.items() if k in reference} for o in theirs] == [
        {k: v for k, v in o.items() if v not in (False, '')} for o in ours]

@pytest.mark.slow
def test_every_panel_has_a_view_and_a_static_image(page):
    load(page, 'panels.js')
    assert page.evaluate('() => sv.explorerPanels.every(panel => panel.view.prototype.update)')
    assert {o.image for o in panels().values()} <= {*_parts, 'whatif', *figure_kinds()}

@pytest.mark.parametrize('line', ["name: 'x', title: 'X', order: 1, shows: 'text', stil: 'map',", "view: X,",
                                  "name: 'x', title: 'X', order: 1, shows: 'words', image: 'map',",
                                  "name: 'x', title: title, order: 1, shows: 'text', image: 'map',"])
def test_an_invalid_panel_raises_an_error_with_an_example(line):
    with pytest.raises(ValueError, match="x.js: the line after .* must state name, title, order, shows, image"):
        _panel_of('x.js', f'export const xPanel = {{\n  {line}\n  view: X,\n}};')
