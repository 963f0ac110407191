"The quickstart in a real JupyterLab in a real Chromium, run by a reader."
import json
import time
from pathlib import Path

import pytest

nbs = Path(__file__).resolve().parents[2]/'nbs'

def is_saved(path):
    "Return whether the notebook at `path` is completely written, including the output of its last code cell"
    text = path.read_text()
    if not text.strip().endswith('}'): return False
    return [c for c in json.loads(text)['cells'] if c['cell_type'] == 'code'][-1]['execution_count'] is not None

@pytest.fixture(scope='module')
def quickstart(jupyter):
    "Return the page after all cells of the quickstart were run, with its errors"
    root, url = jupyter.folder('quickstart'), jupyter.url
    nb = json.loads((nbs/'quickstart.ipynb').read_text())
    for c in nb['cells']:
        if c['cell_type'] == 'code':
            c.update(outputs=[], execution_count=None,
                     source=[l.replace('320', '24').replace('160', '16') for l in c['source']])
    (root/'quickstart.ipynb').write_text(json.dumps(nb))
    page = jupyter.new_page()
    page.errors, page.outside = [], []
    page.on('pageerror', lambda e: page.errors.append(str(e)))
    page.on('request', lambda r: page.outside.append(r.url)
            if not r.url.startswith((url, url.replace('http', 'ws'), 'data:', 'blob:')) else None)
    page.goto(f'{url}/doc/tree/quickstart/quickstart.ipynb?reset')
    page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle$/', timeout=60000)
    page.click('.lm-MenuBar-itemLabel:text-is("Run")')
    page.click('.lm-Menu-itemLabel:text-is("Run All Cells")')
    page.wait_for_selector('.jp-OutputArea-output .widget-hprogress, .jp-OutputArea-output [role=progressbar]',
                           timeout=180000)
    page.bars = page.locator('.jp-OutputArea-output .widget-hprogress, .jp-OutputArea-output '
                             '[role=progressbar]').count()
    page.wait_for_function(
        """() =>
        document.querySelector('.jp-Notebook-ExecutionIndicator')?.getAttribute('data-status') === 'idle' &&
        ![...document.querySelectorAll('.jp-InputPrompt')].some(o => o.textContent.includes('*'))""",
        timeout=400000)
    page.keyboard.press('Control+s')
    until = time.monotonic() + 60
    while not is_saved(root/'quickstart.ipynb') and time.monotonic() < until: page.wait_for_timeout(200)
    page.saved = json.loads((root/'quickstart.ipynb').read_text())
    yield page
    jupyter.end_kernels('quickstart/')
    page.close()

def outputs(page): return [o for c in page.saved['cells'] if c['cell_type'] == 'code' for o in c['outputs']]

def test_all_cells_run_without_an_error(quickstart):
    assert [o['evalue'] for o in outputs(quickstart) if o['output_type'] == 'error'] == []
    assert all(c['execution_count'] for c in quickstart.saved['cells'] if c['cell_type'] == 'code')

def test_training_shows_a_notebook_bar(quickstart): assert quickstart.bars >= 1

def test_the_discard_maps_are_pictures_on_the_page(quickstart):
    drawn = quickstart.locator('.jp-RenderedImage img')
    assert drawn.count() == 2
    for i in range(2): assert drawn.nth(i).evaluate('o => o.complete && o.naturalWidth > 800')
    assert sum('image/png' in o.get('data', {}) for o in outputs(quickstart)) == 4 # including those of two explorers

@pytest.mark.slow
def test_the_page_is_quiet(quickstart):
    assert quickstart.errors == [] and quickstart.outside == []
