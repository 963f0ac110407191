"""Helpers for tests of the explorer's JavaScript in a real Chromium, without Jupyter: a page, the modules of
salviz/explorer/static in it, and the whole app with given frames"""
import base64
import functools
import json
import os
import shutil

import pytest
from playwright.sync_api import sync_playwright

from salviz.explorer.quantisation import json_text
from salviz.explorer.assets import _exported, bundle, styles

flags = ('--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking '
         '--disable-component-update --disable-sync').split()
no_browser = ('NO BROWSER: install Chromium (as root: apt-get install chromium) or set CHROMIUM, so that what people '
              'will see is looked at')

def chromium():
    "Return the path of a Chromium or Chrome, None if there is none"
    return (os.environ.get('CHROMIUM')
            or next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None))

_running = {}   # the single Chromium, whichever test files import the fixture

@pytest.fixture(scope='session')
def browser():
    "Start one Chromium for all tests of this process"
    if not chromium(): pytest.skip(no_browser)
    if not _running:
        pw = sync_playwright().start()
        _running.update(pw=pw, browser=pw.chromium.launch(executable_path=chromium(), args=flags), users=0)
    _running['users'] += 1
    yield _running['browser']
    _running['users'] -= 1
    if not _running['users']:
        _running['browser'].close()
        _running['pw'].stop()
        _running.clear()

# Mark the tour as seen before the page's own scripts run, if the page has a storage.
knows_the_tour = "try { localStorage.setItem('salviz-tour', 'seen'); } catch { /* it has none */ }"

def new_page(browser, first_use=False, **kw):
    """Return an empty page that lists its errors in `errors` and its network requests in `outside`. With `first_use`,
    the tour has not been seen"""
    page = browser.new_page(**{'viewport': dict(width=1300, height=900), **kw})
    if not first_use: page.add_init_script(knows_the_tour)
    page.errors, page.outside = [], []
    page.on('pageerror', lambda e: page.errors.append(str(e)))
    page.on('console', lambda m: page.errors.append(m.text) if m.type == 'error' else None)
    page.on('request', lambda r: page.outside.append(r.url) if not r.url.startswith(('about:', 'data:', 'blob:'))
            else None)
    page.set_content('<!doctype html><html lang="en"><meta charset="utf-8"><title>salviz</title><body></body></html>')
    return page

@pytest.fixture
def page(browser):
    "Open a separate page for a test; at its end, check that there were no errors and no network requests"
    p = new_page(browser)
    yield p
    errors, outside = p.errors, p.outside
    p.close()
    assert errors == [] and outside == []

@functools.cache
def joined(*modules):
    """Return `modules` of salviz/explorer/static and their imports as one module that puts the exports of `modules`
    into `window.sv`"""
    return f'{bundle(*modules)}\nwindow.sv = {{{", ".join(_exported(*modules))}}};\n'

def load(page, *modules):
    "Load `modules` of salviz/explorer/static and their imports into `page`; their exports are in `window.sv`"
    page.evaluate("source => import(URL.createObjectURL(new Blob([source], {type: 'text/javascript'})))",
                  joined(*modules))

def send(page, /, **values):
    """Set each of `values` as a global variable of `page`: JSON as it is, bytes as Uint8Array, lists of bytes as lists
    of those"""
    def plain(x):
        if isinstance(x, (bytes, bytearray)): return {'$bytes': base64.b64encode(x).decode()}
        if isinstance(x, dict): return {k: plain(v) for k, v in x.items()}
        return [plain(o) for o in x] if isinstance(x, (list, tuple)) else x
    page.evaluate('''text => {
        const bytes = (k, v) => v && v.$bytes !== undefined ? Uint8Array.from(atob(v.$bytes), c => c.charCodeAt(0)) : v;
        Object.assign(window, JSON.parse(text, bytes)); }''', json_text(plain(values)))

def mount(page, meta, frames, state=None, panels=None, theme='light', rows=None, plotly=False):
    """Mount the whole app with `frames` (bytes) in `page`. `window.app` is the return value of mountApp, `window.store`
    its data, `window.asked` its requests.
    `rows`: {run: metric rows}; `panels`: names, None for all; `plotly`: provide plotly.js for the curves"""
    page.evaluate('css => { document.head.appendChild(document.createElement("style")).textContent = css; '
                  'document.body.innerHTML = "<div id=el></div>"; }', styles())
    if plotly:
        from plotly.offline import get_plotlyjs
        page.add_script_tag(content=get_plotlyjs())
    load(page, 'app.js', 'state.js', 'store.js')
    send(page, given=dict(meta=meta, frames=list(frames), rows={str(k): v for k, v in (rows or {}).items()},
                          state={**(state or {}), 'theme': theme}, panels=panels))
    page.evaluate('''() => {
        const {meta, frames, rows, state, panels} = window.given;
        window.store = new sv.Store();
        window.asked = [];
        store.load(meta);
        for (const frame of frames) store.addFrame(frame);
        for (const [run, some] of Object.entries(rows)) store.setRows(Number(run), some);
        const options = {state: new sv.State(state), plotly: async () => window.Plotly ?? null,
            request: what => asked.push(what), ...(panels ? {panels} : {})};
        window.app = sv.mountApp(document.getElementById('el'), store, options); }''')
    settled(page)

def settled(page):
    "Wait for two animation frames, after which the app has drawn its latest changes"
    page.evaluate('() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))')

def spoken(page, text):
    "Wait until a screen-reader announcement contains `text`; of several at once, only the last one appears"
    page.wait_for_function("text => document.querySelector('.sv-said').textContent.includes(text)", arg=text)

def pixels(page, selector, x=0, y=0, width=1, height=1):
    "Return the RGBA numbers of a rectangle of the canvas `selector`, in canvas pixels, as a flat list"
    return page.eval_on_selector(selector, '(c, [x, y, w, h]) => [...c.getContext("2d").getImageData(x, y, w, h).data]',
                                 [x, y, width, height])

def evaluate_json(page, script, value=None):
    "Return the result of `script` (a JavaScript function) for `value`, with NaN and infinities as None"
    return json.loads(page.evaluate(f'async value => JSON.stringify(await ({script})(value))', value))
