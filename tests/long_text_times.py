"""The map of a text of 8,192 tokens in a Llama with four layers of eight heads: `python tests/long_text_times.py
FOLDER` prints times and sizes, uses the map in Chromium as a reader would, and writes screenshots to FOLDER. Each time
is a pair: elapsed seconds, and seconds of processor time, which do not depend on the load of the machine."""
import base64
import json
import os
import re
import resource
import sys
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from browser import chromium, flags
from salviz.explorer.assets import bundle, static_text
from salviz.model_explorer import explore_long

# A substitute for the anywidget model, with a kernel that answers through a function of the page.
shim = '''async ({program, css, meta}) => {
    document.head.append(Object.assign(document.createElement('style'), {textContent: css}));
    const {default: widget} = await import(URL.createObjectURL(new Blob([program], {type: 'text/javascript'})));
    const listeners = {}, model = {get: () => meta, on: (name, f) => { listeners[name] = f; }, send: async content => {
        const [message, data] = await kernelAnswer(content);
        const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        listeners['msg:custom']({...message, id: content.id}, [new DataView(bytes.buffer)]);
    }};
    window.receive = message => listeners['msg:custom'](message, []);
    window.finish = text => { meta = text; listeners['change:meta'](); };
    widget.render({model, el: document.body});
}'''

def small_words(count):
    """Return a fast tokenizer, and a text of about `count` tokens in sentences of 24 words; words with an odd number
    have two tokens"""
    vocabulary = ['[UNK]', '.', 'word', *[f'{"##" if i % 2 else "word"}{i}' for i in range(997)]]
    inner = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token='[UNK]'))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    words, tokens = [], 0
    while tokens < count - 1:
        number = len(words)**2 % 997
        words.append('.' if len(words) % 24 == 23 else f'word{number}')
        tokens += 1 + (words[-1] != '.' and number % 2)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token='[UNK]', model_max_length=10**6), ' '.join(words)

def open_live(page, view):
    "Open `view` in `page`; its requests are answered by `view.answer`. Return a list of (kind, times)"
    seconds = []
    def answer(content):
        start = now()
        message, data = view.answer(content)
        seconds.append((content['kind'], since(start)))
        return [message, base64.b64encode(data).decode()]
    page.expose_function('kernelAnswer', answer)
    page.evaluate(shim, dict(program=bundle('tilewidget.js'), css=static_text('tiles.css'), meta=view.meta))
    page.wait_for_selector('.sv-tiles[data-cell]')
    return seconds

def now() -> tuple: return time.perf_counter(), time.process_time()
def since(start) -> tuple: return tuple(round(b - a, 3) for a, b in zip(start, now()))

def cell(page) -> int: return int(page.locator('.sv-tiles').get_attribute('data-cell'))

def choice(page, label):
    "Return the list with the label `label`"
    return page.locator('.sv-field').filter(has_text=re.compile(f'^{label}')).locator('select')

def settled_tiles(page):
    "Wait until all tiles in view are loaded"
    page.wait_for_selector('.sv-tiles[data-missing="0"]', timeout=120_000)

def peak() -> float: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20 # GiB

def play(page, folder, word='word13'):
    "Zoom with the wheel, search for `word`, jump to a sentence, use the keyboard, and show words and sentences"
    def shots(name): page.screenshot(path=str(folder/f'{name}.png'))
    def choose(label, name):
        choice(page, label).select_option(name)
        page.wait_for_timeout(500)
        settled_tiles(page)
    shots('1-overview')
    page.mouse.move(300, 400) # below the diagonal
    for _ in range(6): page.mouse.wheel(0, -400)
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('2-zoomed')
    page.locator('input[type=search]').fill(word)
    page.keyboard.press('Enter')
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('3-found')
    choose('Sentence', '5')
    shots('4-sentence')
    page.locator('.sv-tiles-map').focus()
    for key in ('-', '-', 'ArrowDown', 'ArrowLeft'): page.keyboard.press(key)
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('5-keyboard')
    if 'words' not in choice(page, 'Units').locator('option').all_text_contents(): return
    choose('Units', 'words')
    shots('6-words')
    choose('Units', 'sentences')
    page.keyboard.press('0')
    shots('7-sentences')
    for _ in range(4): page.keyboard.press('+')
    choose('Cells show the', 'mean')
    shots('8-sentence-means')
    choose('Units', 'tokens')
    page.locator('.sv-tiles-map').focus()
    page.keyboard.press('0')
    for _ in range(3): # every cell width from coarse to fine
        page.keyboard.press('+')
        page.wait_for_timeout(300)
        settled_tiles(page)

def long_model(tokens):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=1000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1024, max_position_embeddings=tokens + 64, eos_token_id=None)).eval()

def use(view, pw, folder) -> dict: # {kind of request: longest time}
    "Use `view` in Chromium: light and dark, wide and narrow, with a kernel and as a page"
    browser = pw.chromium.launch(executable_path=chromium(), args=flags)
    page = browser.new_page(viewport=dict(width=1000, height=900))
    errors = []
    page.on('pageerror', lambda e: errors.append(str(e)))
    seconds = open_live(page, view)
    play(page, folder)
    saved = now()
    path = view.save(folder/'page.html', force=True)
    print(f'page: {path.stat().st_size/1e6:.1f} MB in {since(saved)} s', flush=True)
    for name, width, scheme in (('page', 1000, 'light'), ('page-360', 360, 'light'), ('page-dark', 1000, 'dark')):
        page = browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme)
        page.on('pageerror', lambda e: errors.append(str(e)))
        page.goto(path.resolve().as_uri())
        page.wait_for_selector('.sv-tiles[data-cell]')
        page.screenshot(path=str(folder/f'{name}.png'))
        page.locator('input[type=search]').fill('word13')
        page.keyboard.press('Enter')
        page.wait_for_timeout(300)
        page.screenshot(path=str(folder/f'{name}-found.png'))
        wide = page.evaluate('document.documentElement.scrollWidth')
        if wide > width: errors.append(f'{name} is {wide} wide')
    browser.close()
    assert not errors, errors
    return {kind: max((t for k, t in seconds if k == kind), key=lambda t: t[1]) for kind in dict(seconds)}

def main(folder, tokens=8192) -> dict:
    "Measure and use the map of `tokens` tokens, and return the measurements"
    model, (tokenizer, text) = long_model(tokens), small_words(tokens)
    before, start = peak(), now()
    view = explore_long(model, tokenizer, text)
    found = dict(tokens=view.attention.size, passed=since(start))
    start = now()
    view.answer(dict(kind='overview', layer=0, head=0))
    found |= dict(first_view=since(start))
    print(json.dumps(found), flush=True)
    with sync_playwright() as pw: found |= use(view, pw, folder)
    return found | dict(gib_above_model=round(peak() - before, 2), load=os.getloadavg())

if __name__ == '__main__':
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    print(json.dumps(main(target, *map(int, sys.argv[2:]))))
