"""The map of a text of 8,192 tokens in a Llama with four layers of eight heads: `python tests/long_text_times.py
FOLDER` prints times and sizes, uses the map in Chromium as a reader would, and writes screenshots to FOLDER."""
import base64
import json
import resource
import sys
import time
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from browser import chromium, flags
from salviz.explorer.assets import bundle, static_text
from salviz.model_explorer import explore_long

# The model of anywidget with a kernel that answers through a function of the page.
shim = '''async ({program, css, meta}) => {
    document.head.append(Object.assign(document.createElement('style'), {textContent: css}));
    const {default: widget} = await import(URL.createObjectURL(new Blob([program], {type: 'text/javascript'})));
    let listen;
    const model = {get: () => meta, on: (_, f) => { listen = f; }, send: async content => {
        const [message, data] = await kernelAnswer(content);
        const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
        listen({...message, id: content.id}, [new DataView(bytes.buffer)]);
    }};
    widget.render({model, el: document.body});
}'''

def small_words(count):
    "Return a fast tokenizer, and a text of `count` words in sentences of 24"
    vocabulary = {'[UNK]': 0, '.': 1, **{f'word{i}': i + 2 for i in range(998)}}
    inner = Tokenizer(models.WordLevel(vocabulary, '[UNK]'))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    text = ' '.join('.' if i % 24 == 23 else f'word{i*i % 997}' for i in range(count))
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token='[UNK]', model_max_length=count), text

def open_live(page, view):
    "Open `view` in `page`; its requests are answered by `view.answer`. Return the list of answer times"
    seconds = []
    def answer(content):
        start = time.perf_counter()
        message, data = view.answer(content)
        seconds.append((content['kind'], time.perf_counter() - start))
        return [message, base64.b64encode(data).decode()]
    page.expose_function('kernelAnswer', answer)
    page.evaluate(shim, dict(program=bundle('tilewidget.js'), css=static_text('tiles.css'), meta=view.meta))
    page.wait_for_selector('.sv-tiles[data-cell]')
    return seconds

def cell(page) -> int: return int(page.locator('.sv-tiles').get_attribute('data-cell'))

def settled_tiles(page):
    "Wait until all tiles in view are loaded"
    page.wait_for_selector('.sv-tiles[data-missing="0"]', timeout=120_000)

def peak() -> float: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20 # GiB

def play(page, folder, word='word13'):
    "Zoom with the wheel, search for `word`, jump to a sentence, and use the keyboard"
    def shots(name): page.screenshot(path=str(folder/f'{name}.png'))
    shots('1-overview')
    page.mouse.move(500, 400)
    for _ in range(6): page.mouse.wheel(0, -400)
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('2-zoomed')
    page.locator('input[type=search]').fill(word)
    page.keyboard.press('Enter')
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('3-found')
    page.locator('.sv-tiles-bar select').last.select_option('5')
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('4-sentence')
    page.locator('.sv-tiles-map').focus()
    for key in ('-', '-', 'ArrowDown', 'ArrowLeft'): page.keyboard.press(key)
    page.wait_for_timeout(500)
    settled_tiles(page)
    shots('5-keyboard')

def main(folder, tokens=8192):
    torch.manual_seed(0)
    model = LlamaModel(LlamaConfig(
        vocab_size=1000, hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4,
        intermediate_size=1024, max_position_embeddings=tokens)).eval()
    tokenizer, text = small_words(tokens)
    before, start = peak(), time.perf_counter()
    view = explore_long(model, tokenizer, text)
    after = time.perf_counter()
    view.answer(dict(kind='overview', layer=0, head=0))
    first = time.perf_counter()
    view.answer(dict(kind='tile', layer=3, head=7, row=20, column=10, cell=1, side=256, pool='maximum'))
    tile = time.perf_counter()
    print(json.dumps(dict(pass_s=round(after - start, 2), first_view_s=round(first - after, 2),
                          tile_ms=round(1e3*(tile - first)), peak_gib=round(peak() - before, 2))), flush=True)
    with sync_playwright() as pw:
        browser = pw.chromium.launch(executable_path=chromium(), args=flags)
        page = browser.new_page(viewport=dict(width=1000, height=900))
        seconds = open_live(page, view)
        play(page, folder)
        print({kind: round(max(s for k, s in seconds if k == kind), 3) for kind in dict(seconds)}, flush=True)
        start = time.perf_counter()
        path = view.save(folder/'page.html', force=True)
        print(f'page: {path.stat().st_size/1e6:.1f} MB in {time.perf_counter() - start:.1f} s; peak '
              f'{peak() - before:.2f} GiB above the model', flush=True)
        page.goto(path.resolve().as_uri())
        page.wait_for_selector('.sv-tiles[data-cell]')
        page.screenshot(path=str(folder/'6-page.png'))
        browser.close()

if __name__ == '__main__':
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    main(target, *map(int, sys.argv[2:]))
