"""The documentation site works offline, has no broken links, lists every public name, and its explorer works. `make
test` checks the sources for Sphinx, `make slow` the built site."""
import json
import re
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import numpy as np
import pytest
from PIL import Image

import accessible
import forked
import salviz

sys.path.insert(0, str(Path(__file__).resolve().parents[2]/'docs'))
import build # noqa: E402, in the folder of the site

root = Path(__file__).resolve().parents[2]

class Tags(HTMLParser):
    "The resources, links and anchors of a page"
    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if 'id' in attrs: self.ids.add(attrs['id'])
        if tag in ('script', 'img', 'iframe', 'source', 'video', 'audio', 'embed') and attrs.get('src'):
            self.loads.append(attrs['src'])
        loaded = {'stylesheet', 'icon', 'preload', 'prefetch', 'preconnect', 'dns-prefetch', 'manifest'}
        if tag == 'link' and loaded & set((attrs.get('rel') or '').split()): self.loads.append(attrs['href'])
        if tag == 'object' and attrs.get('data'): self.loads.append(attrs['data'])
        if tag == 'a' and attrs.get('href'): self.links.append(attrs['href'])

@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "Return the folder of a site that was built from scratch"
    folder = tmp_path_factory.mktemp('docs')
    code = 'import sys; from pathlib import Path; import build; build.build(Path(sys.argv[1]), Path(sys.argv[2]))'
    done = forked.run(code, folder/'site', folder/'source')
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder/'site'

@pytest.fixture(scope='module')
def three_pages(tmp_path_factory):
    "Return the folder of a small site: text, a notebook and an API page"
    folder, module = tmp_path_factory.mktemp('pages'), 'salviz.core.untrusted'
    source = folder/'source'
    notebook = build.notebook_at(root/'nbs'/'01_core'/'19_untrusted.ipynb')
    build.write(source/'untrusted.ipynb', build.page_of('untrusted', notebook))
    build.write(source/'api.md', f'# Reference\n\n```{{eval-rst}}\n.. automodule:: {module}\n```\n')
    build.write(source/'index.md', f'# Pages\n\n`code`\n\n{build.toctree("All", ["untrusted", "api"])}\n')
    code = 'import sys; from sphinx.cmd.build import build_main; assert build_main(sys.argv[1:]) == 0'
    done = forked.run(code, '-q', '-c', root/'docs', '-d', folder/'read', source, folder/'site')
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return folder/'site'

@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.slow
def test_pages_have_no_violation_of_axe(browser, three_pages, scheme):
    page = browser.new_page(viewport=dict(width=1280, height=800), color_scheme=scheme)
    for name in ('index', 'untrusted', 'api'):
        page.goto((three_pages/f'{name}.html').as_uri(), wait_until='load')
        assert accessible.faults(page) == [], name
    page.close()

@pytest.fixture(scope='module')
def pages(site):
    "Return {path in the site: its `Tags`}"
    return {file.relative_to(site).as_posix(): Tags(file.read_text()) for file in sorted(site.rglob('*.html'))
            if '_static' not in file.parts}

@pytest.fixture(scope='module')
def address(site):
    "Return the local address of a server of the site"
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args): pass
    server = ThreadingHTTPServer(('127.0.0.1', 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/'
    server.shutdown()

@pytest.fixture
def reader(browser, address):
    "Return a function that opens a page of the site and fails on any error or request to another machine"
    opened, wrong = [], []
    def open(path, width=1300, color_scheme='light'):
        page = browser.new_page(viewport=dict(width=width, height=900), color_scheme=color_scheme)
        page.set_default_timeout(90_000) # large pages on a busy machine
        page.route(re.compile('.*'), lambda route: route.continue_() if route.request.url.startswith(address)
                   else (wrong.append(route.request.url), route.abort()))
        page.on('pageerror', lambda e: wrong.append(str(e)))
        page.on('console', lambda m: wrong.append(m.text) if m.type == 'error' else None)
        page.on('requestfailed', lambda r: wrong.append(f'{r.url}: {r.failure}'))
        page.on('response', lambda r: wrong.append(f'{r.url}: {r.status}') if r.status >= 400 else None)
        page.goto(address + path, wait_until='load')
        opened.append(page)
        return page
    yield open
    for page in opened: page.close()
    assert wrong == []

def alive(page):
    "Return the frame of the explorer in `page` after it has been drawn"
    page.locator('iframe.salviz-live').scroll_into_view_if_needed()
    frame = page.locator('iframe.salviz-live').element_handle().content_frame()
    frame.wait_for_function('() => window.salviz')
    frame.evaluate('() => salviz.whole()')
    return frame

def colours(page):
    "Return the number of colours in a screenshot of `page`, and its mean brightness from 0 to 255"
    picture = np.asarray(Image.open(BytesIO(page.screenshot())).convert('RGB'))
    return len(np.unique(picture.reshape(-1, 3), axis=0)), picture.mean()

@pytest.fixture(scope='module')
def laid_out(tmp_path_factory):
    "Return the folder of the sources for Sphinx"
    folder = tmp_path_factory.mktemp('source')
    build.lay_out(folder)
    return folder

def texts_of(path):
    "Return the texts of the page at `path` that may contain links"
    if path.suffix == '.md': return [path.read_text()]
    return [''.join(c['source']) for c in json.loads(path.read_text())['cells'] if c['cell_type'] == 'markdown']

def test_every_relative_link_of_a_page_leads_to_a_file(laid_out):
    built, lost, count = {build.report, 'explorer.html', 'teach.html'}, [], 0
    for page in [*laid_out.rglob('*.ipynb'), *laid_out.rglob('*.md')]:
        links = [link for text in texts_of(page)
                 for link in re.findall(r'\]\(([^)\s]+)\)|(?:href|src)="([^"]+)"', re.sub(r'(?s)(`+).*?\1', '', text))]
        for link in filter(None, (a or b for a, b in links)):
            if re.match(r'(https?|mailto|data|attachment):|//|#', link): continue
            to, count = page.parent/unquote(urldefrag(link)[0]), count + 1
            if not to.exists() and to.name not in built: lost.append((page.name, link))
    assert lost == [] and count > 5

def test_every_notebook_is_in_the_contents_and_every_public_name_in_the_api(laid_out):
    names = {p.relative_to(laid_out).with_suffix('').as_posix() for p in laid_out.rglob('*.ipynb')}
    assert len(names) > 60
    index = '\n'.join(texts_of(laid_out/'index.ipynb'))
    assert '<a href="teach.html">Teach a model where to look</a>' in index
    assert re.findall(r'^:caption: (.+)$', index, re.M) == ['Start here', 'Course', 'Guide', 'API']
    guide = {page.stem: page.read_text() for page in (laid_out/'guide').glob('*.md')}
    assert [name for name in guide if f'\nguide/{name}\n' not in index] == []
    listed = index + '\n'.join(guide.values()).replace('\n/', '\n')
    assert [name for name in sorted(names - {'index'}) if f'\n{name}\n' not in listed] == []
    listed = (laid_out/'api'/'index.md').read_text()
    assert [name for name in salviz.__all__ if f'`{name} <' not in listed] == []
    assert '<iframe class="salviz-live"' in '\n'.join(texts_of(laid_out/'quickstart.ipynb'))

@pytest.mark.slow
def test_the_site_loads_nothing_from_the_network(site, pages):
    assert len(pages) > 60
    loads = [(page, url) for page, tags in pages.items() for url in tags.loads]
    outside = [(page, url) for page, url in loads if re.match(r'(https?:)?//', url)]
    sheets = [(file.name, url) for file in site.rglob('*.css')
              for url in re.findall(r'(?:url\(|@import)\s*["\']?((?:https?:)?//[^"\')]+)', file.read_text())]
    assert outside == [] and sheets == []
    lost = [(page, url) for page, url in loads if not url.startswith('data:')
            and not (site/page).parent.joinpath(unquote(url.split('?')[0].split('#')[0])).resolve().exists()]
    assert lost == []

@pytest.mark.slow
def test_every_link_within_the_site_has_a_target(site, pages):
    lost = []
    for page, tags in pages.items():
        for link in tags.links:
            if re.match(r'(https?|mailto|data):|//', link): continue
            to, anchor = urldefrag(urljoin(page, unquote(link)) if not link.startswith('#') else page + link)
            if not (site/to).is_file() or anchor and anchor not in pages[to].ids: lost.append((page, link))
    assert lost == []

@pytest.mark.slow
def test_every_notebook_has_a_page_and_a_link_in_the_sidebar(pages):
    names = {p.relative_to(root/'nbs').with_suffix('.html').as_posix() for p in (root/'nbs').rglob('*.ipynb')
             if '.ipynb_checkpoints' not in p.parts}
    assert names <= set(pages)
    places = [urljoin('index.html', link) for link in pages['index.html'].links]
    assert names - {'index.html'} <= set(places)
    learn, core, cli = (next(i for i, p in enumerate(places) if p.startswith(x)) for x in
                          ('00_learn/', '01_core/', '13_cli/'))
    assert places.index('quickstart.html') < learn < core < cli

@pytest.mark.slow
def test_the_api_documents_every_public_name_and_its_parameters(site, pages):
    ids = {id for tags in pages.values() for id in tags.ids}
    missing = [name for name in salviz.__all__ if not any(re.fullmatch(rf'salviz\.[\w.]+\.{name}', i) for i in ids)]
    assert missing == []
    assert {f'salviz.studies.study.Study.{name}' for name in ('run', 'grow', 'run_cell')} <= ids # of its base classes
    listed = (site/'api'/'index.html').read_text()
    assert [name for name in salviz.__all__ if f'>{name}<' not in listed] == []
    text = re.sub(r'<[^>]+>', '', (site/'api'/'training.html').read_text())
    assert 'peak rate of AdamW, decreasing linearly to 0' in text # a comment beside a parameter of `train`

@pytest.mark.slow
def test_hidden_cells_are_omitted_and_outputs_are_shown(site):
    text = (site/'quickstart.html').read_text()
    assert '<img' in text and 'bundled run: correct on' in re.sub(r'<[^>]+>', '', text)
    assert not [page for page in site.rglob('*.html') if '#| export' in re.sub(r'<[^>]+>', '', page.read_text())
                and page.stem != 'CONTRIBUTING']

@pytest.mark.parametrize('name', ['discard_region', 'Explorer'])
@pytest.mark.slow
def test_search_finds_a_public_name(reader, name):
    page = reader(f'search.html?q={name}')
    page.wait_for_selector('#search-results li a')
    links = page.eval_on_selector_all('#search-results li a', 'all => all.map(a => a.href)')
    assert any(re.search(rf'/api/\w+\.html.*#salviz\.[\w.]+\.{name}$', link) for link in links), links

@pytest.mark.slow
def test_a_name_in_prose_links_to_the_api(reader):
    page = reader('quickstart.html')
    alive(page) # the layout is stable now
    page.click('article a[href*="api/"]:has-text("start_training") >> nth=0')
    page.wait_for_url(re.compile(r'\.start_training$'))

@pytest.mark.parametrize('path', ['quickstart.html', '00_learn/gallery.html'])
@pytest.mark.slow
def test_the_explorer_in_a_page_responds_to_keys_and_clicks(reader, path):
    page = reader(path)
    frame = alive(page)
    shown = frame.evaluate('() => salviz.store.shipped(0, 0)')
    assert len(shown) == 10 and shown[0] == 0
    def picture(): return frame.eval_on_selector('.sv-heads canvas', 'c => c.toDataURL()')
    def of(what): return frame.evaluate(f'() => salviz.state.{what}')
    before, entry = picture(), of('entry')
    scrubber = frame.locator('.sv-time input[type=range]').first
    scrubber.focus()
    scrubber.press('Home')
    frame.wait_for_function('before => document.querySelector(".sv-heads canvas").toDataURL() !== before', arg=before)
    assert of('step') == 0
    heads = frame.locator('.sv-heads canvas').first # a click scrolls it into view
    size = heads.bounding_box()
    heads.click(position=dict(x=size['width']*.3, y=size['height']*.3))
    assert of('entry') != entry

@pytest.mark.parametrize('width, color_scheme', [(1300, 'light'), (700, 'dark'), (1300, 'dark'), (700, 'light')])
@pytest.mark.slow
def test_pages_are_legible_light_and_dark_wide_and_narrow(reader, width, color_scheme):
    page = reader('05_methods/02_ad_drop.html', width, color_scheme)
    page.wait_for_selector('mjx-container svg')
    assert page.evaluate('() => document.documentElement.scrollWidth <= innerWidth')
    count, brightness = colours(page)
    assert count > 50 and (brightness < 100 if color_scheme == 'dark' else brightness > 180)

# The number of code cells that scroll or have a wrapped line
unfit = '''() => [...document.querySelectorAll('.cell_input pre')].filter(pre => {
    const style = getComputedStyle(pre), lines = pre.textContent.trimEnd().split('\\n').length;
    const height = pre.clientHeight - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
    return pre.scrollWidth > pre.clientWidth || height > (lines + .5) * parseFloat(style.lineHeight);
}).length'''

@pytest.mark.parametrize('width', [1300, 1440, 1600])
@pytest.mark.slow
def test_code_fits_its_column(reader, width):
    for path in ('quickstart.html', '05_methods/02_ad_drop.html'): assert reader(path, width).evaluate(unfit) == 0

@pytest.mark.slow
def test_code_wraps_in_narrow_windows(reader):
    page = reader('05_methods/02_ad_drop.html', 700)
    scrolls = "() => [...document.querySelectorAll('.cell_input pre')].some(pre => pre.scrollWidth > pre.clientWidth)"
    assert page.evaluate(unfit) and not page.evaluate(scrolls)

fits = 'document.querySelector("#salviz-page").getBoundingClientRect().height <= innerHeight'

@pytest.mark.parametrize('width', [1300, 1600])
@pytest.mark.slow
def test_the_explorer_stays_within_the_page(reader, width):
    page = reader('quickstart.html', width)
    frame = alive(page) # the page adopts its height shortly after it is drawn
    frame.wait_for_function(f'() => {fits}')
    assert page.evaluate('() => document.documentElement.scrollWidth <= innerWidth')

@pytest.mark.slow
def test_an_explorer_that_loads_before_its_page_gets_its_height(browser, address):
    page, held = browser.new_page(viewport=dict(width=1300, height=900)), []
    page.route(re.compile(r'/live\.js'), lambda route: held.append(route)) # the network is slow
    page.goto(address + 'quickstart.html', wait_until='commit')
    frame = alive(page)
    frame.wait_for_load_state('load')
    assert not frame.evaluate(f'() => {fits}')
    held[0].continue_()
    frame.wait_for_function(f'() => {fits}')
    page.close()

@pytest.mark.slow
def test_the_explorer_follows_the_readers_choice_of_light_or_dark(reader):
    page = reader('quickstart.html')
    frame = alive(page)
    theme = lambda: frame.evaluate('() => document.documentElement.dataset.theme')
    assert theme() == 'light'
    page.evaluate('() => { document.body.dataset.theme = "dark"; }')
    frame.wait_for_function('() => document.documentElement.dataset.theme === "dark"')
