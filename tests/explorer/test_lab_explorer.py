"""The explorer in a real JupyterLab in a real Chromium: first run, live, controls, restart, theme, and the same
pixels in a file."""
import base64
import hashlib
import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from salviz.core.runs import Run

setup = '''from salviz import *
data = subset(load_text('movie-sentences'), 40, validation_size=10, test_size=10)
names = data['train'].features['label'].names
model, tokenizer = load_classifier('minilm', num_labels=5, labels=names, seed=0)
probes = ['a gorgeous , witty , seductive movie .', 'unforgettable <b>cinematography</b> notwithstanding .']'''
start = '''training = start_training(model, tokenizer, data, method=ADDrop(p=.3, q=.3, cross_tuning=False),
    probes=probes, epochs={epochs},
                          snapshots=60, batch_size=4, learning_rate=1e-4, run_dir='{run}')
explorer = Explorer(training)
explorer'''

def notebook(path, *sources):
    "Write a notebook of code cells"
    cells = [dict(cell_type='code', id=f'cell{i}', metadata={}, source=s, outputs=[], execution_count=None)
             for i, s in enumerate(sources)]
    kernel = dict(display_name='Python 3 (ipykernel)', language='python', name='python3')
    path.write_text(json.dumps(dict(nbformat=4, nbformat_minor=5, metadata=dict(kernelspec=kernel), cells=cells)))

@pytest.fixture(scope='module')
def server(jupyter):
    "Create a folder of the JupyterLab server with a run, trained on real sentences with the packaged encoder"
    root = jupyter.folder('explorer')
    from salviz import ADDrop, load_classifier, load_text, subset, train
    data = subset(load_text('movie-sentences'), 24, validation_size=8, test_size=8)
    model, tokenizer = load_classifier('minilm', num_labels=5, seed=0)
    run = train(model, tokenizer, data, method=ADDrop(p=.3, q=.3, cross_tuning=False), run_dir=root/'run', epochs=1,
                batch_size=4, snapshots=4, learning_rate=1e-4, progress=False,
                probes=['a gorgeous , witty , seductive movie .', 'the film is not bad , but it never surprises .'])
    return jupyter, root, run

class Tab:
    "One notebook in one page"
    def __init__(self, server, name, height=1400):
        self.jupyter, self.root, self.run = server
        self.url, self.page = self.jupyter.url, self.jupyter.new_page(height=height)
        self.name = (self.root/name).relative_to(self.jupyter.root).as_posix()
        self.errors, self.outside = [], []
        # On a busy machine, JupyterLab sometimes drops a message of the kernel that it cannot read; the tests wait for
        # its effect.
        self.page.on('pageerror', lambda e: None if str(e).startswith('Kernel message validation error')
                     else self.errors.append(str(e)))
        inside = self.url, self.url.replace('http', 'ws'), 'data:', 'blob:'
        self.page.on('request', lambda r: None if r.url.startswith(inside) else self.outside.append(r.url))

    def open(self):
        self.page.goto(f'{self.url}/doc/tree/{self.name}?reset')
        self.page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle$/', timeout=90000)
        return self

    def menu(self, *path):
        self.page.click(f'.lm-MenuBar-itemLabel:text-is("{path[0]}")')
        for name in path[1:-1]: self.page.locator(f'.lm-Menu-itemLabel:text-is("{name}")').last.hover()
        self.page.locator(f'.lm-Menu-itemLabel:text-is("{path[-1]}")').last.click()

    def run_all(self): self.menu('Run', 'Run All Cells')

    def shut_down(self):
        "Shut the kernel down, and wait until its session is gone"
        self.menu('Kernel', 'Shut Down Kernel')
        def is_known():
            sessions = self.page.request.get(f'{self.url}/api/sessions').json()
            return any(s['path'] == self.name for s in sessions)
        until = time.monotonic() + 60
        while is_known():
            assert time.monotonic() < until
            self.page.wait_for_timeout(100)

    def drawn(self, panel='heads'):
        "Wait until the canvas of `panel` shows a picture"
        self.page.wait_for_function("""panel => { const c = document.querySelector(`.sv-${panel} canvas`);
            return c && c.width > 50 && new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width,
                c.height).data.buffer)).size > 20; }""", arg=panel, timeout=120000)

    def ended(self):
        "Wait until no cell is running or waiting"
        self.page.wait_for_function(
            """() =>
            document.querySelector('.jp-Notebook-ExecutionIndicator')?.getAttribute('data-status') === 'idle' &&
            ![...document.querySelectorAll('.jp-InputPrompt')].some(o => o.textContent.includes('*'))""",
            timeout=300000)

    def picture(self, panel):
        "Return a hash of the canvas of `panel`"
        self.page.evaluate('() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')
        return hashlib.sha256(self.page.eval_on_selector(f'.sv-{panel} canvas',
                                                         'c => c.toDataURL()').encode()).hexdigest()

    def step(self): return int(re.search(r'step (\d+)', self.page.inner_text('.sv-where'))[1])

    def scrub(self, key):
        self.page.focus('.sv-time-range')
        self.page.keyboard.press(key)

    def close(self):
        errors, outside = self.errors, self.outside
        self.page.close()
        assert errors == [] and outside == []

    def end(self):
        "Close the page and shut its kernel down"
        self.jupyter.end_kernels(self.name)
        self.close()

class NotebookTab(Tab):
    "A notebook in Jupyter Notebook, on the same server"
    def open(self):
        self.page.goto(f'{self.url}/notebooks/{self.name}')
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status=idle]', timeout=90000)
        self.page.get_by_text('Python 3 (ipykernel)').first.wait_for(timeout=30000)
        self.page.wait_for_load_state('networkidle')
        self.errors.clear() # errors of Notebook while it loads its settings are not errors of salviz
        return self

@pytest.fixture
def tab(server):
    "Return a function that opens a new notebook of the given cells; at the end, check for errors and network requests"
    opened = []
    def make(name, *sources, kind=Tab, **kw):
        notebook(server[1]/name, *sources)
        opened.append(kind(server, name, **kw).open())
        return opened[-1]
    yield make
    for t in opened: t.end()

@pytest.fixture(scope='module')
def shared(server):
    "Return a function that returns a tab of the given cells, which are run at the first call; other tests reuse it"
    opened = {}
    def at(name, *sources):
        if name not in opened:
            notebook(server[1]/name, *sources)
            opened[name] = Tab(server, name).open()
            opened[name].run_all()
        opened[name].drawn(); opened[name].drawn('map')
        return opened[name]
    yield at
    for t in opened.values(): t.end()

plain = 'plain.ipynb', "from salviz import Explorer\nExplorer('run')" # the restart of its kernel comes last

@pytest.mark.slow
def test_it_draws_at_the_first_run_and_again_in_a_fresh_page(tab, server):
    first = tab('first.ipynb', "from salviz import Explorer\nExplorer('run')")
    first.run_all(); first.drawn(); first.drawn('map')
    assert first.step() == first.run.steps[-1]
    first.page.keyboard.press('Control+s')
    again = Tab(server, 'first.ipynb').open()
    again.run_all(); again.ended(); again.drawn(); again.drawn('map')
    assert again.picture('heads') == first.picture('heads')
    again.close()

@pytest.mark.slow
def test_it_is_in_sight_after_all_cells_were_run_and_keeps_its_keys(tab):
    words = ['for i in range(12): print(i)']*6
    t = tab('sight.ipynb', *words, "from salviz import Explorer\nExplorer('run')", *words, height=800)
    t.run_all(); t.drawn(); t.ended()
    # Lab scrolls to the last cell, and only then the explorer is scrolled back into view
    t.page.wait_for_function("""() => { const top = document.querySelector('.salviz').getBoundingClientRect().top;
        return 0 < top && top < 400; }""", timeout=30000)
    count = t.page.locator('.jp-Cell').count()
    t.page.focus('.sv-heads canvas')
    for key in ('a', 'b', 'd', 'd', 'ArrowDown', '?'): t.page.keyboard.press(key)
    t.page.wait_for_selector('[aria-label="keyboard shortcuts"].sv-help')
    assert t.page.locator('.jp-Cell').count() == count and t.page.locator('.jp-Cell.jp-mod-active').count() == 1

@pytest.mark.slow
def test_scrubbing_and_choosing_a_head_change_the_pixels(shared):
    t = shared(*plain)
    heads, whole = t.picture('heads'), t.picture('map')
    t.scrub('ArrowLeft')
    t.page.wait_for_function("() => document.querySelector('.sv-where').textContent.includes('step "
                             f"{t.run.steps[-2]}')")
    assert t.picture('heads') != heads and t.picture('map') != whole
    t.scrub('End')
    assert t.picture('heads') == heads and t.picture('map') == whole
    box = t.page.locator('.sv-heads canvas').first.bounding_box()
    t.page.mouse.click(box['x'] + box['width']*.3, box['y'] + box['height']*.3)
    assert t.picture('map') != whole

broken = """class Broken(FineTuning):
    def terms(self, outputs, maps, plan, batch, progress):
        if progress.step == 3: raise RuntimeError('the <b>method</b> broke')
        return {}
model, tokenizer = load_classifier('minilm', num_labels=5, labels=names, seed=0)
training = start_training(model, tokenizer, data, method=Broken(), probes=probes, epochs=2, snapshots=2, batch_size=4,
    run_dir='fails')
explorer = Explorer(training)
explorer"""

@pytest.mark.slow
def test_training_is_watched_paused_and_stopped_with_all_cells_queued_and_the_failure_of_the_next_is_shown(tab, server):
    t = tab('live.ipynb', setup, start.format(epochs=30, run='live'),
            'run = await training\nprint("over", run.finished)', broken)
    t.run_all()
    t.drawn(); seen = t.step()
    t.page.wait_for_function(f"() => !document.querySelector('.sv-where').textContent.includes('step {seen},')",
                             timeout=120000)
    t.page.click('.jp-OutputArea button:text-is("Pause")')
    t.page.wait_for_selector('.jp-OutputArea >> text=/paused/i')
    run = Run(server[1]/'live')
    at = run.last_step
    t.page.wait_for_timeout(1500)
    assert run.last_step == at
    t.page.click('.jp-OutputArea button:text-is("Resume")')
    until = time.monotonic() + 120
    while run.last_step == at and time.monotonic() < until: t.page.wait_for_timeout(100)
    t.page.click('.jp-OutputArea button:text-is("Stop")')
    t.ended()
    assert 'over False' in t.page.inner_text('.jp-Notebook') and at < run.last_step < 300 and not run.finished
    # next to the second training, which began after the end of the first one
    t.page.wait_for_selector('.jp-OutputArea >> text=/the <b>method<.b> broke/', timeout=120000)
    assert t.page.locator('.salviz').count() == 2

selecting = """import ipywidgets as W
label, button = W.Label('nothing yet'), W.Button(description='choose')
explorer.observe(lambda change: setattr(label, 'value', f'selected {dict(change.new)}'), names='selection')
button.on_click(lambda _: setattr(explorer, 'selection', dict(step=explorer.runs[0].steps[0], layer=1, head=2)))
W.VBox([label, button])"""

@pytest.mark.slow
def test_other_cells_observe_and_set_the_selection(tab):
    t = tab('selection.ipynb', "from salviz import Explorer\nexplorer = Explorer('run')\nexplorer", selecting)
    t.run_all(); t.drawn(); t.drawn('map'); t.ended()
    box = t.page.locator('.sv-heads canvas').first.bounding_box()
    t.page.mouse.click(box['x'] + box['width']*.3, box['y'] + box['height']*.3)
    t.page.wait_for_selector("text=/selected {'sentence': 0, 'step': \\d+, 'layer': \\d+, 'head': \\d+/", timeout=30000)
    t.page.click('.jp-OutputArea button:text-is("choose")')
    t.page.wait_for_selector('.sv-map >> text=/layer 1, head 2/', timeout=30000)
    assert t.step() == t.run.steps[0]
    t.page.wait_for_selector(f"text=/selected .*'step': {t.run.steps[0]}, 'layer': 1, 'head': 2/", timeout=30000)
    t.scrub('End')
    t.page.wait_for_selector(f"text=/selected .*'step': {t.run.steps[-1]}, 'layer': 1, 'head': 2/", timeout=30000)

custom = ('own.ipynb', "from salviz import *\nexplorer = Explorer('run')\nexplorer",
       'import time\nfor _ in range(60): time.sleep(.1)')

@pytest.mark.slow
def test_a_custom_sentence_waits_while_a_cell_runs(shared):
    t = shared(*custom)
    t.page.fill('.sv-own-field', 'a slow movie .')
    t.page.keyboard.press('Enter')
    assert t.page.is_hidden('.sv-own-answer')
    t.ended()
    t.page.wait_for_selector('.sv-own-map:nth-child(2) canvas', timeout=60000)

@pytest.mark.slow
def test_custom_sentences_are_answered_with_their_maps(shared):
    t = shared(*custom)
    t.ended()
    def ask(text):
        "Wait for a map whose words are those of `text`"
        t.page.fill('.sv-own-field', text)
        t.page.keyboard.press('Enter')
        t.page.wait_for_function("""word => {
            const map = document.querySelector('.sv-own-map:nth-child(2) canvas');
            return map?.salviz?.units.some(u => u.label === word); }""", arg=text.split()[1], timeout=90000)
    for word in ('dull', 'boring', 'famous'): ask(f'a {word} , witty , seductive movie .')
    t.page.wait_for_function("() => !document.querySelector('.sv-own').hasAttribute('aria-busy')", timeout=30000)
    assert 'by checkpoint of step' in t.page.inner_text('.sv-own-answer')
    before, until = (t.root/'own.ipynb').stat().st_mtime_ns, time.monotonic() + 60
    t.page.keyboard.press('Control+s')
    while (t.root/'own.ipynb').stat().st_mtime_ns == before and time.monotonic() < until: t.page.wait_for_timeout(100)
    t.page.wait_for_function("() => !document.querySelector('.jp-mod-dirty')")
    assert (t.root/'own.ipynb').stat().st_mtime_ns > before and 'famous' not in (t.root/'own.ipynb').read_text()

@pytest.mark.slow
def test_the_dark_theme_of_jupyterlab_is_followed_and_readable(shared):
    t = shared(*plain)
    light = t.picture('map')
    heads = t.picture('heads')
    t.menu('Settings', 'Theme', 'JupyterLab Dark')
    t.page.wait_for_selector('.salviz[data-theme=dark]')
    # the panels have no width for a moment, and are drawn when they have one again
    until = time.monotonic() + 10
    while (t.picture('map') == light or t.picture('heads') == heads) and time.monotonic() < until: time.sleep(.2)
    assert t.picture('map') != light and t.picture('heads') != heads
    def luminance(colour):
        c = np.array([int(x) for x in re.findall(r'\d+', colour)[:3]])/255
        return np.where(c <= .04045, c/12.92, ((c + .055)/1.055)**2.4) @ [.2126, .7152, .0722]
    pairs = t.page.eval_on_selector_all('.salviz button, .salviz label, .salviz .sv-note, .salviz .sv-where',
                                        """els => els.filter(e => e.offsetParent && e.textContent.trim()).map(e => {
        let at = e; while (at && getComputedStyle(at).backgroundColor === 'rgba(0, 0, 0, 0)') at = at.parentElement;
        return [getComputedStyle(e).color, getComputedStyle(at).backgroundColor, e.textContent]; })""")
    assert len(pairs) > 5
    for text, back, what in pairs:
        a, b = sorted([luminance(text), luminance(back)])
        assert (b + .05)/(a + .05) >= 4.5, what
    t.menu('Settings', 'Theme', 'JupyterLab Light') # the server stores the choice for later tests
    t.page.wait_for_selector('.salviz:not([data-theme=dark])')
    t.drawn('map')

@pytest.mark.slow
def test_it_works_on_after_the_kernel_was_restarted(shared):
    t = shared(*plain)
    before = t.picture('map')
    t.menu('Kernel', 'Restart Kernel…')
    t.page.click('.jp-Dialog button.jp-mod-accept')
    t.page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle$/', timeout=90000)
    t.scrub('Home')
    t.page.wait_for_function("() => document.querySelector('.sv-where').textContent.includes('step 0')")
    assert t.picture('map') != before
    t.scrub('End')
    assert t.picture('map') == before

colours = """() => { const hash = text => [...text].reduce((sum, letter) => (sum*31 + letter.charCodeAt(0)) | 0, 0);
    const name = e => String(e.className.baseVal ?? e.className).replace(/trace[0-9a-f]{6}/, 'trace');
    return [...document.querySelectorAll('.sv-panel')].filter(p => p.offsetParent).map(p => [p.className,
        [...p.querySelectorAll('canvas')].filter(c => c.offsetParent && c.width).map(c => hash(c.toDataURL())),
        [...p.querySelectorAll('*')].map(e => { const s = getComputedStyle(e);
            return [e.tagName, name(e), s.color, s.backgroundColor, s.fill, s.stroke].join(' '); })]); }"""

def coloured(t):
    "Return the look of every panel, tab by tab: its canvases, and the colours of its elements"
    result = {}
    for title in t.page.locator('.sv-tab:visible').all_inner_texts():
        t.page.click(f'.sv-tab:text-is("{title}")')
        before, until = None, time.monotonic() + 20
        while (now := t.page.evaluate(colours)) != before and time.monotonic() < until:
            before = now
            t.page.wait_for_timeout(700)
        result[title] = {name: (pictures, elements) for name, pictures, elements in now}
    return result

@pytest.mark.slow
@pytest.mark.parametrize('name', ['ad-drop', pytest.param('sallm', marks=pytest.mark.slow)])
def test_a_theme_chosen_in_the_menu_recolours_all_panels_as_if_they_were_opened_in_it(tab, name):
    def opened(file):
        t = tab(file, f"from salviz import Explorer\nExplorer('{name}', compare='plain')", height=2200)
        t.page.goto(f'{t.url}/lab/tree/{t.name}?reset')
        t.page.wait_for_selector('#jp-main-statusbar >> text=/\\| Idle$/', timeout=90000)
        t.run_all(); t.drawn(); t.drawn('map'); t.page.wait_for_selector('.sv-time .main-svg')
        return t
    t = opened(f'theme-{name}.ipynb')
    light = coloured(t)
    t.menu('Settings', 'Theme', 'JupyterLab Dark')
    t.page.wait_for_selector('.salviz[data-theme=dark]')
    dark, fresh = coloured(t), coloured(opened(f'dark-{name}.ipynb'))
    t.menu('File', 'New', 'Text File')
    t.page.wait_for_selector('.salviz', state='hidden')
    t.menu('Settings', 'Theme', 'JupyterLab Light')
    t.page.wait_for_selector('body[data-jp-theme-light=true]', state='attached')
    t.page.click(f'.lm-DockPanel-tabBar .lm-TabBar-tabLabel:text-is("theme-{name}.ipynb")')
    t.page.wait_for_selector('.salviz:not([data-theme=dark])')
    again = coloured(t)
    assert len(dark) >= 3 and {len(shown) for shown in dark.values()} == {5}
    for title in light:
        for panel, (pictures, elements) in light[title].items():
            assert dark[title][panel] == fresh[title][panel], (title, panel)
            assert again[title][panel] == (pictures, elements), (title, panel)
            assert dark[title][panel][1] != elements, (title, panel)
        assert dark[title]['sv-panel sv-heads'][0] != light[title]['sv-panel sv-heads'][0], title

@pytest.mark.slow
def test_what_is_read_under_the_pointer_is_what_was_recorded(tab):
    t = tab('hover.ipynb', "from salviz import Explorer\nExplorer('run', panels=['map'])", height=1000)
    t.run_all(); t.drawn('map')
    snapshot = t.run.snapshot()
    box, n = t.page.locator('.sv-map canvas').first.bounding_box(), len(snapshot.tokens)
    message = set()
    for x in np.linspace(.3, .9, 6):
        for y in np.linspace(.3, .9, 6):
            t.page.mouse.move(box['x'] + box['width']*x, box['y'] + box['height']*y)
            message.add(t.page.locator('.sv-map [aria-live]').first.inner_text())
    found = [re.search(r"layer (\d+),? head (\d+).*?: ([\d.e−-]+) ± ([\d.e−-]+)", s, re.S) for s in message]
    found = [m for m in found if m]
    assert len(found) > 5
    for m in found:
        layer, head = int(m[1]), int(m[2])
        value, half = (float(m[i].replace('−', '-')) for i in (3, 4))
        assert np.abs(snapshot.at('attention', layer)[head] - value).min() <= half*1.01 + 1e-6

def bytes_of(page, selector):
    """Return width and height of a canvas and the RGBA numbers of all its pixels, which are sent as text, because a
    long list takes long to arrive"""
    width, height, text = page.eval_on_selector(selector, """c => {
        const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
        let text = '';
        for (let i = 0; i < data.length; i += 8192) text += String.fromCharCode(...data.subarray(i, i + 8192));
        return [c.width, c.height, btoa(text)]; }""")
    return np.array([width, height, *base64.b64decode(text)])

@pytest.mark.slow
def test_the_file_opened_from_disk_shows_the_same_pixels(tab, browser, server, tmp_path):
    t = tab('file.ipynb',
            "from salviz import Explorer\nexplorer = Explorer('run')\nexplorer.to_html('run.html', "
            "force=True)\nexplorer")
    t.run_all(); t.drawn(); t.drawn('map')
    width = t.page.locator('.salviz').bounding_box()['width']
    page = browser.new_page(viewport=dict(width=1300, height=1400))
    query = []
    page.on('request', lambda r: query.append(r.url))
    page.goto((server[1]/'run.html').as_uri())
    page.wait_for_selector('.sv-heads canvas')
    page.evaluate("w => Object.assign(document.querySelector('.salviz').style, {width: `${w}px`, maxWidth: 'none'})",
                  width)
    def are_alike(panel):
        theirs, ours = (bytes_of(p, f'.sv-{panel} canvas') for p in (page, t.page))
        # The corners of the scale's frame are rasterised differently in a canvas that was never read back.
        return theirs.shape == ours.shape and (theirs != ours).sum() <= 16
    for panel in ('heads', 'map'):
        until = time.monotonic() + 20
        while not are_alike(panel) and time.monotonic() < until: page.wait_for_timeout(200)
        assert are_alike(panel), panel
    assert [u for u in query if not u.startswith(('file:', 'data:', 'blob:'))] == []
    page.close()

def to_the_start(page):
    "Go to the first step, once the frames of a copy are unpacked"
    page.focus('.sv-time-range')
    until = time.monotonic() + 20
    while 'step 0' not in page.inner_text('.sv-where') and time.monotonic() < until:
        page.keyboard.press('Home')
        page.wait_for_timeout(200)
    assert 'step 0' in page.inner_text('.sv-where')

def outputs(path):
    "Return the outputs of the saved notebook; none while JupyterLab is writing the file, which it empties first"
    text = path.read_text()
    return [o for cell in json.loads(text)['cells'] for o in cell['outputs']] if text.strip().endswith('}') else []

@pytest.mark.slow
def test_a_saved_notebook_works_without_kernel_and_hook_and_as_a_static_page(tab, browser, server, tmp_path):
    t = tab('saved.ipynb', "from salviz import Explorer\nExplorer('run')")
    path = server[1]/'saved.ipynb'
    t.run_all(); t.drawn(); t.drawn('map'); t.ended()
    assert t.page.locator('[data-live] .salviz').count() == t.page.locator('.salviz').count() == 1
    live = t.picture('map')
    t.menu('File', 'Save Notebook')
    until = time.monotonic() + 60
    while not outputs(path) and time.monotonic() < until: t.page.wait_for_timeout(200)
    assert set(outputs(path)[0]['data']) == {'text/html', 'image/png', 'text/plain'}
    assert path.stat().st_size < 600_000 and 'widgets' not in json.loads(path.read_text())['metadata']
    again = Tab(server, 'saved.ipynb').open() # while the kernel is alive, the view is live
    again.page.wait_for_selector('[data-live] .salviz', timeout=60000)
    again.close()
    t.shut_down()
    t.page.wait_for_selector('#jp-main-statusbar >> text=/\\| Unknown$/', timeout=30000)
    dead = Tab(server, 'saved.ipynb')
    dead.page.goto(f'{dead.url}/doc/tree/{dead.name}?reset')
    dead.drawn(); dead.drawn('map')
    assert dead.page.locator('[data-live]').count() == 0 and 'Error displaying' not in dead.page.inner_text('body')
    assert dead.picture('map') == live and dead.step() == dead.run.steps[-1]
    to_the_start(dead.page)
    assert dead.picture('map') != live
    dead.close()
    notebook_ = json.loads(path.read_text()) # a notebook of somebody else is not trusted: its scripts do not run
    notebook_['cells'][0]['outputs'][0]['data']['text/plain'] = ['from elsewhere']
    (server[1]/'foreign.ipynb').write_text(json.dumps(notebook_))
    foreign = Tab(server, 'foreign.ipynb')
    foreign.page.goto(f'{foreign.url}/doc/tree/{foreign.name}?reset')
    foreign.page.wait_for_function("() => document.querySelector('.jp-OutputArea-output img')?.naturalWidth > 300")
    foreign.page.wait_for_timeout(3000)
    assert foreign.page.locator('.salviz').count() == 0
    assert 'trust this notebook or run the cell again' in foreign.page.inner_text('.jp-OutputArea-output')
    foreign.close()
    subprocess.run([sys.executable, '-m', 'jupyter', 'nbconvert', '--to', 'html', '--output-dir', tmp_path, path],
                   check=True, capture_output=True)
    static = browser.new_page(viewport=dict(width=1300, height=1400))
    static.context.set_offline(True)
    static.goto((tmp_path/'saved.html').as_uri(), wait_until='commit')
    static.wait_for_selector('.sv-heads canvas', timeout=60000)
    to_the_start(static)
    static.close()

@pytest.mark.slow
def test_in_jupyter_notebook_it_is_live_and_its_saved_copy_works_without_kernel(tab, server):
    t = tab('notebook7.ipynb', "from salviz import Explorer\nExplorer('ad-drop')", kind=NotebookTab)
    path = server[1]/'notebook7.ipynb'
    t.run_all(); t.drawn(); t.drawn('map'); t.ended()
    assert t.page.locator('[data-live] .salviz').count() == t.page.locator('.salviz').count() == 1
    live, step = t.picture('map'), t.step()
    t.menu('File', 'Save Notebook')
    until = time.monotonic() + 60
    while not outputs(path) and time.monotonic() < until: t.page.wait_for_timeout(200)
    assert set(outputs(path)[0]['data']) == {'text/html', 'image/png', 'text/plain'}
    t.shut_down()
    again = NotebookTab(server, 'notebook7.ipynb').open()
    again.drawn(); again.drawn('map')
    assert again.page.locator('[data-live]').count() == 0 and 'Error displaying' not in again.page.inner_text('body')
    assert again.picture('map') == live and again.step() == step
    to_the_start(again.page)
    assert again.picture('map') != live
    again.close()
