"""The map of a long text: tiles equal eager attention, requests are checked, and the page works in a browser"""

import json
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import expect
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM, BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel, MistralConfig,
    PreTrainedTokenizerFast)

from browser import browser, page  # noqa: F401, fixtures
from long_text_times import cell, choice, open_live, play, settled_tiles
from salviz import explore_long
from salviz.analysis.long_texts import LongText, cell_bounds, explained_text, long_attention, word_bounds
from salviz.core.snapshots import Snapshot
from salviz.explorer.assets import bundle
from salviz.explorer.long_text_view import LongTextView, sentence_spans
from salviz.models.attention import observe
from salviz.views.head_statistics import _head_numbers

small = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
makers = dict(llama=lambda: LlamaModel(LlamaConfig(**small, num_key_value_heads=2)),
              bert=lambda: BertModel(BertConfig(**small)),
              gpt2=lambda: GPT2Model(GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4)))

def readout(page): return page.locator('.sv-tiles-readout') # noqa: F811
def strongest_links(page): return page.locator('.sv-tiles-list') # noqa: F811

def words(limit=10**6):
    "Return a fast tokenizer with the words w0 to w57 and a full stop"
    inner = Tokenizer(models.WordLevel({'[UNK]': 0, '.': 1, **{f'w{i}': i + 2 for i in range(58)}}, '[UNK]'))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token='[UNK]', model_max_length=limit)

def text(count):
    return ' '.join('.' if i % 12 == 11 else f'w{i*i % 58}' for i in range(count))

def computed(kind, n=75, dtype=torch.double, scale=1.):
    torch.manual_seed(0)
    model = makers[kind]().to(dtype).eval()
    for parameter in model.parameters(): parameter.data *= scale
    inputs = dict(input_ids=torch.randint(0, 60, (1, n)))
    is_special = np.arange(n) % 20 == 0
    with torch.no_grad(), observe(model) as maps:
        model(**inputs)
        whole = maps.stacked()[0]
        whole = (whole if dtype == torch.double else whole.float()).numpy()
    return long_attention(model, inputs, is_special), whole, is_special

rounding = dict(llama=1e-6, bert=1e-12, gpt2=1e-12) # Llama computes the softmax in float32

@pytest.mark.parametrize('kind', makers)
def test_rows_tiles_and_overviews_equal_whole_maps(kind, monkeypatch):
    monkeypatch.setattr('salviz.analysis.long_texts._chunk_bytes', 4*4*75*20)
    attention, whole, _ = computed(kind)
    for layer in (0, 1):
        for head in (0, 3):
            for row in range(3):
                for column in range(3):
                    part = whole[layer, head, row*32:(row + 1)*32, column*32:(column + 1)*32]
                    np.testing.assert_allclose(attention.tile(layer, head, row, column, side=32), part, atol=1e-6)
            rows = attention.rows(layer, 40, 60, [head])[0].numpy()
            np.testing.assert_allclose(rows, whole[layer, head, 40:60, :rows.shape[1]], atol=rounding[kind])
        overview = attention.overview(layer, side=20)
        assert overview.cells[0] == 4
        for cell, largest, means in zip(*overview[:3]):
            for i in range(len(largest[0])):
                for j in range(len(largest[0])):
                    part = whole[layer, :, i*cell:(i + 1)*cell, j*cell:(j + 1)*cell]
                    np.testing.assert_allclose(largest[:, i, j], part.max((1, 2)), atol=1e-6)
                    np.testing.assert_allclose(means[:, i, j], part.mean((1, 2)), atol=1e-6)
        tile = attention.tile(layer, 1, 0, 0, cell=2, side=16, pool='mean')
        np.testing.assert_allclose(tile, whole[layer, 1, :32, :32].reshape(16, 2, 16, 2).mean((1, 3)), atol=1e-6)

@pytest.mark.parametrize('kind', makers)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_tiles_of_models_in_half_precision_equal_eager_attention(kind, dtype, monkeypatch):
    monkeypatch.setattr('salviz.analysis.long_texts._chunk_bytes', 4*75*20)
    attention, whole, _ = computed(kind, dtype=dtype, scale=3.)
    part = whole[0, 3, 32:64, :32]
    for _ in range(2): # the first tile computes whole rows, the second one only its keys
        error = np.abs(attention.tile(0, 3, 1, 0, side=32)/part - 1)
        assert error.mean() < .05*torch.finfo(dtype).eps

@pytest.mark.parametrize('kind', makers)
@pytest.mark.parametrize('chunk', [5, 30])
def test_words_and_sentences_are_pooled_from_whole_maps(kind, chunk, monkeypatch):
    monkeypatch.setattr('salviz.analysis.long_texts._chunk_bytes', 4*75*chunk)
    attention, whole, _ = computed(kind)
    bounds = word_bounds(np.array([-1, *np.repeat(range(20), [3, 1, 2, 5, 1, 4]*3 + [8, 17]), -1]))
    assert bounds[-1] == 75 and len(bounds) == 23
    def expected(A, rows, keys, how):
        return [[getattr(A[a:b, c:d], how)() for c, d in zip(keys, keys[1:])] for a, b in zip(rows, rows[1:])]
    for is_warm in (False, True): # the first tile computes whole rows, the second one only its keys
        for pool, how in dict(maximum='max', mean='mean').items():
            for cell, row, column in ((1, 2, 0), (1, 1, 1), (2, 1, 0), (4, 0, 0)):
                cells = cell_bounds(bounds, cell)
                rows, keys = (cells[k*8:(k + 1)*8 + 1] for k in (row, column))
                tile = attention.tile(1, 2, row, column, cell, 8, pool, bounds)
                np.testing.assert_allclose(tile, expected(whole[1, 2], rows, keys, how), atol=1e-6)
            np.testing.assert_allclose(attention.row(1, 3, 7, bounds, pool),
                                       expected(whole[1, 3], bounds[7:9], bounds, how)[0], atol=1e-6)
        tokens, words = attention.overviews(1, [2], 16, (None, bounds))
        assert tokens.cells[0] == 8 and words.cells == (2,)
        cells = cell_bounds(bounds, 2)
        np.testing.assert_allclose(words.maxima[0][0], expected(whole[1, 2], cells, cells, 'max'), atol=1e-6)
        np.testing.assert_allclose(words.means[0][0], expected(whole[1, 2], cells, cells, 'mean'), atol=1e-6)

def computed_with(model, ids, layer):
    "Return the whole map of `layer` [heads, tokens, tokens] for the tokens `ids`"
    with torch.no_grad(), observe(model, layer) as maps:
        model(input_ids=torch.tensor([ids]))
        return maps[layer][0].float().numpy()

def causal(kind):
    "Return a causal language model"
    torch.manual_seed(1)
    config = dict(llama=lambda: LlamaConfig(**small, num_key_value_heads=2, eos_token_id=None, bos_token_id=None),
                  gpt2=lambda: GPT2Config(vocab_size=60, n_embd=32, n_layer=2, n_head=4, eos_token_id=None,
                                          bos_token_id=None),
                  # a window that is shorter than the text, and one that only the continuation exceeds
                  mistral=lambda: MistralConfig(**small, num_key_value_heads=2, sliding_window=9, eos_token_id=None,
                                                bos_token_id=None),
                  late=lambda: MistralConfig(**small, num_key_value_heads=2, sliding_window=44, eos_token_id=None,
                                             bos_token_id=None))[kind]()
    return AutoModelForCausalLM.from_config(config).eval()

@pytest.mark.parametrize('kind', ['llama', 'gpt2', 'mistral', 'late'])
def test_the_attention_of_generated_tokens_equals_that_of_the_whole_text(kind):
    model, tokenizer = causal(kind), words()
    first, growing = explained_text(model, tokenizer, text(40), generate=6)
    assert (first.attention.size, first.start, first.awaited) == (40, 40, 6)
    first.attention.overview(1, side=16) # stores the normalisers of the prompt
    grown = list(growing)
    assert [x.attention.size for x in grown] == [*range(41, 47)] and [x.awaited for x in grown] == [5, 4, 3, 2, 1, 0]
    ids = tokenizer(text(40))['input_ids']
    with torch.no_grad():
        for _ in range(6): ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    assert grown[-1].labels == tokenizer.convert_ids_to_tokens(ids) and len(grown[-1].words) == 47
    for layer in (0, 1):
        whole = computed_with(model, ids, layer)
        np.testing.assert_allclose(grown[-1].attention.tile(layer, 3, 0, 0), whole[3], atol=1e-5)
        np.testing.assert_allclose(grown[-1].attention.tile(layer, 3, 2, 0, side=16), whole[3, 32:, :16], atol=1e-5)
    assert not grown[-1].attention.calls[0].query.requires_grad

def test_an_overview_is_extended_by_the_rows_of_generated_tokens(monkeypatch):
    first, growing = explained_text(causal('llama'), words(), text(66), generate=9)
    before, chunks = first.attention.overview(1, [2], 32), []
    last = list(growing)[-1]
    weights = type(last.attention)._weights
    def counted(self, layer, head, start, stop, *keys):
        chunks.append((start, stop))
        return weights(self, layer, head, start, stop, *keys)
    monkeypatch.setattr(type(last.attention), '_weights', counted)
    fresh = last.attention.overview(1, [2], 32)
    other = before._replace(cells=(2,), bounds=np.arange(0, 68, 2))
    for earlier, expected in ((before, 64), (other, 0)): # another size of cells: starts from 0
        chunks.clear()
        extended, = last.attention.overviews(1, [2], 32, (None,), (earlier,))
        assert extended.cells == fresh.cells and min(start for start, _ in chunks) == expected
        for name in ('maxima', 'means'):
            for x, y in zip(getattr(extended, name), getattr(fresh, name)): np.testing.assert_allclose(x, y, atol=1e-6)
    grown = last.attention.overviews(1, [2], 64, (None,), (first.attention.overview(1, [2], 64),))[0]
    np.testing.assert_allclose(grown.maxima[0], last.attention.overview(1, [2], 64).maxima[0], atol=1e-6)

def test_a_continuation_that_is_not_possible_is_reported():
    model = causal('llama')
    with pytest.raises(ValueError, match='BertModel cannot generate text; use a causal language model'):
        explained_text(makers['bert']().eval(), words(), text(30), generate=2)
    limited = r'so at most 5 can be generated \(limit: 45 in total\); .* a larger max_length'
    for tokenizer, most in ((words(45), None), (words(), 45)):
        with pytest.raises(ValueError, match=limited):
            explained_text(model, tokenizer, text(40), max_length=most, generate=6)
    for bad in (True, 2., '2', np.int64(0)):
        with pytest.raises(ValueError, match='generate must be a positive integer'):
            explained_text(model, words(), text(40), generate=bad)
    with pytest.raises(ValueError, match='generate'): explore_long(model, words(), text(40), generate=0)

@pytest.mark.parametrize('kind', makers)
def test_statistics_by_chunks_equal_those_of_whole_maps(kind, monkeypatch):
    monkeypatch.setattr('salviz.analysis.long_texts._chunk_bytes', 4*4*75*7)
    attention, whole, is_special = computed(kind)
    labels = ['a']*75
    snapshot = Snapshot(step=0, epoch=0., probe=0, tokens=labels, is_special=is_special, arrays=dict(attention=whole),
                        layers=dict(attention=[0, 1]))
    numbers = _head_numbers(snapshot)
    assert np.isnan(numbers.pop('largest_logit')).all() # whole maps contain no logits
    for name, expected in numbers.items():
        np.testing.assert_allclose(attention.statistics()[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)

def test_requests_are_answered_or_ignored():
    attention, whole, _ = computed('bert')
    view = LongTextView(LongText(attention, ['a']*75, 'A text'), side=32)
    message, data = view.answer(dict(kind='tile', layer=1, head=2, row=1, column=0, cell=1, side=64, pool='mean'))
    assert (message['rows'], message['columns']) == (11, 64)
    got = np.frombuffer(data, np.float32).reshape(11, 64)
    np.testing.assert_allclose(got, whole[1, 2, 64:, :64], atol=1e-6)
    np.testing.assert_allclose(np.frombuffer(view.answer(dict(kind='row', layer=0, head=1, row=7))[1], np.float32),
                               whole[0, 1, 7], atol=1e-6)
    tile = dict(kind='tile', layer=1, head=2, row=1, column=0, cell=1, side=64, pool='mean')
    for wrong in (dict(layer=2), dict(head=4), dict(row=2), dict(side=10**9), dict(pool='sum'), dict(kind='file'),
                  dict(row=-1), dict(cell=0), dict(column='0'), dict(unit='words'), dict(unit=[])):
        assert view.answer({**tile, **wrong}) is None
    assert view.answer(None) is None

def test_sentences_cover_the_text():
    spans = sentence_spans(['One', 'day', '.', 'It', 'rained', '!', 'So'])
    assert [(s['start'], s['stop']) for s in spans] == [(0, 3), (3, 6), (6, 7)] and spans[1]['text'] == 'It rained !'

def test_a_cut_text_is_reported_with_the_way_to_avoid_it():
    model, tokenizer = makers['bert']().eval(), words()
    with pytest.warns(UserWarning, match='cut to 512 of 600 tokens; the model accepts at most 512'):
        shown, _ = explained_text(model, tokenizer, text(600))
    assert shown.attention.size == len(shown.labels) == 512
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        explained_text(model, tokenizer, text(300))
    with pytest.warns(UserWarning, match='pass max_length=300 to use all of them.$'):
        explained_text(model, tokenizer, text(300), max_length=200)

def test_hostile_tokens_stay_text(tmp_path):
    attention, _, _ = computed('bert')
    view = LongTextView(LongText(attention, ['</script><b>']*75, '<script>alert(1)</script>'), side=32)
    page = view.save(tmp_path/'page.html').read_text()
    assert '<b>' not in page and 'alert(1)</script>' not in page

def test_a_page_stays_below_its_limit(tmp_path):
    attention, _, _ = computed('bert')
    view = LongTextView(LongText(attention, ['a']*75, 'A text'), side=64)
    whole = view.save(tmp_path/'whole.html').stat().st_size
    assert view.save(tmp_path/'small.html', limit=whole - 1).stat().st_size < whole
    with pytest.raises(ValueError, match='pass a larger limit'): view.save(tmp_path/'none.html', limit=1e3)

def test_explore_long_shows_a_text(tmp_path):
    view = explore_long(makers['llama']().eval(), words(), text(200), side=64)
    assert view.attention.size == 200 and len(view.about['sentences']) == 17
    assert view.save(tmp_path/'page.html').stat().st_size < 1e6
    frame = view.head_frame()
    assert len(frame) == 8 and list(frame.columns[:3]) == ['layer', 'head', 'entropy']
    assert not frame.isna().any(axis=None)

def test_the_map_is_used_with_wheel_keyboard_search_and_sentences(page, tmp_path):  # noqa: F811
    view = explore_long(makers['llama']().eval(), words(), text(700), side=64)
    seconds = open_live(page, view)
    settled_tiles(page)
    assert cell(page) == 2
    play(page, tmp_path, 'w1')
    assert {kind for kind, _ in seconds} == {'overview', 'tile', 'row'}
    assert 'of' in page.locator('.sv-tiles-found').text_content()
    assert strongest_links(page).locator('button').count() == 8
    page.locator('.sv-tiles-map').focus()
    for _ in range(12): page.keyboard.press('+')
    page.wait_for_selector('.sv-tiles[data-cell="1"][data-missing="0"]')
    assert 'one weight per cell' in readout(page).text_content()
    page.keyboard.press('0')
    page.wait_for_selector('.sv-tiles[data-cell="2"][data-missing="0"]')
    def is_described(x):
        page.mouse.move(x, 400)
        return ' to ' in readout(page).text_content()
    assert any(map(is_described, range(500, 600))) # a tile that arrives late clears the description
    page.keyboard.press('Escape')
    expect(strongest_links(page)).to_be_hidden()

def test_generated_tokens_appear_one_by_one(page, tmp_path):  # noqa: F811
    shown, growing = explained_text(causal('llama'), words(), text(90), generate=5)
    view = LongTextView(LongText(shown.attention, shown.labels, shown.title, shown.words, shown.start), side=32)
    open_live(page, view)
    settled_tiles(page)
    sent, view.send = [], lambda message, buffers=None: sent.append(message)
    view._grow(growing)
    assert [m['size'] for m in sent] == [91, 92, 93, 94, 95] and view.about['awaited'] == 0
    page.evaluate('m => window.receive(m)', sent[0])
    expect(readout(page)).to_contain_text('generating, at most 4 tokens left')
    page.evaluate('m => window.receive(m)', sent[2]) # one message was lost: the text is requested
    expect(readout(page)).not_to_contain_text('generating')
    page.evaluate('text => window.finish(text)', view.meta)
    settled_tiles(page)
    assert 'generating' not in readout(page).text_content()
    page.locator('input[type=search]').fill(shown.labels[0])
    page.keyboard.press('Shift+Enter') # the last one
    page.get_by_label('Follow generated tokens').check()
    expect(strongest_links(page)).to_contain_text(f'Strongest links of token 94 “{view.about["tokens"][94]}”')
    settled_tiles(page)
    with open(view.save(tmp_path/'page.html')) as saved: page.set_content(saved.read())
    page.wait_for_selector('.sv-tiles[data-cell]')
    page.outside.clear()

def test_words_that_change_during_generation_are_shown(page):  # noqa: F811
    shown, growing = explained_text(causal('llama'), words(), text(510), generate=2)
    # 256 words of 2 tokens, which fill one tile; the last word is completed by the last token
    grown = (replace(x, words=cell_bounds(np.arange(x.attention.size + 1), 2)) for x in growing)
    view = LongTextView(LongText(shown.attention, shown.labels, shown.title, None, shown.start), side=64)
    open_live(page, view)
    sent, view.send = [], lambda message, buffers=None: sent.append(message)
    view._grow(grown)
    units = choice(page, 'Units')
    assert 'words' not in units.locator('option').all_text_contents()
    page.evaluate('m => window.receive(m)', sent[0])
    units.select_option('words')
    expect(readout(page)).to_contain_text('maximum over a pair of words')
    settled_tiles(page)
    page.evaluate("""() => {
        const answer = window.kernelAnswer;
        window.requested = [];
        window.kernelAnswer = content => { requested.push(content.kind); return answer(content); };
    }""")
    page.evaluate('m => window.receive(m)', sent[1])
    page.wait_for_function("requested.includes('tile')", timeout=20_000)
    assert units.input_value() == 'words'

two_displays = """async ({program, meta}) => {
    const {default: widget} = await import(URL.createObjectURL(new Blob([program], {type: 'text/javascript'})));
    const listeners = [], sent = [], on = (name, f) => { if (name === 'msg:custom') listeners.push(f); };
    const model = {get: () => meta, on, send: content => sent.push(content)};
    for (const k of [0, 1]) widget.render({model, el: document.body.appendChild(document.createElement('div'))});
    const answer = {kind: 'overview', cells: [8], size: 8, id: sent[1].id}, bytes = new DataView(new ArrayBuffer(2));
    for (const f of listeners) f(answer, [bytes]);
}"""

def test_displays_of_a_widget_receive_only_the_answers_to_their_requests(page):  # noqa: F811
    meta = dict(tokens=['a']*8, sentences=[], units={}, layers=[0], heads=1, size=8, start=None, awaited=0)
    page.evaluate(two_displays, dict(program=bundle('tilewidget.js'), meta=json.dumps(meta)))
    first, second = readout(page).all()
    expect(second).to_contain_text('one weight per cell')
    assert first.text_content() == 'Computing the overview of layer 0, head 0 …'

def test_a_continuation_is_generated_in_the_background(tmp_path):
    view = explore_long(causal('llama'), words(), text(60), generate=np.int64(3))
    view.settle(60)
    assert view.attention.size == 63 and view.about['awaited'] == 0 and len(view.about['tokens']) == 63
    assert view.about['start'] == 60 and '"awaited":0' in view.meta.replace(' ', '')
    view.close()

def test_the_error_of_a_continuation_is_reported():
    def failing():
        yield first
        raise RuntimeError('out of memory')
    first, _ = explained_text(causal('llama'), words(), text(60), generate=3)
    view = LongTextView(first, failing())
    with pytest.raises(RuntimeError, match='out of memory'): view.settle(60)
    assert view.about['problem'] == 'RuntimeError: out of memory' and view.answer(dict(kind='text'))[1]

def test_an_error_of_an_observer_does_not_block_the_end_of_a_continuation():
    def ready():
        is_observed.wait()
        yield from growing
    def failing(change): raise RuntimeError('the observer failed')
    is_observed = threading.Event()
    first, growing = explained_text(causal('llama'), words(), text(20), generate=1)
    view = LongTextView(first, ready())
    view.observe(failing, 'meta')
    is_observed.set()
    try:
        with pytest.raises(RuntimeError, match='the observer failed'): view.settle(20)
    finally: view._left.set() # the exit waits for it
    assert view.attention.size == 21 and not view.about['awaited']

def test_a_saved_page_works_without_a_kernel(page, tmp_path):  # noqa: F811
    view = explore_long(makers['llama']().eval(), words(), text(700), side=64)
    page.goto(view.save(tmp_path/'page.html').as_uri())
    page.outside.clear()
    page.wait_for_selector('.sv-tiles[data-cell]')
    page.locator('.sv-tiles-map').focus()
    for _ in range(6): page.keyboard.press('+')
    expect(readout(page)).to_contain_text('this page has no finer level')
    assert cell(page) == 16
    page.locator('.sv-tiles-map').click(position=dict(x=400, y=300))
    expect(strongest_links(page)).to_contain_text('(maximum of each cell)')
    choice(page, 'Units').select_option('sentences')
    expect(readout(page)).to_contain_text('maximum over a pair of sentences')

@pytest.mark.slow
def test_the_map_of_8192_tokens_is_used_within_its_limits(tmp_path):
    """Zooming, searching and jumping in Chromium; times are those of the processor, which do not depend on the load"""
    file = Path(__file__).parents[1]/'long_text_times.py'
    done = subprocess.run([sys.executable, file, tmp_path], capture_output=True, text=True, timeout=1800)
    assert not done.returncode, done.stderr[-2000:]
    print(done.stdout)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found['tokens'] in (8191, 8192) and found['first_view'][1] < 5 and found['tile'][1] < .3
    assert found['gib_above_model']*2**30 < 1.5e9 and (tmp_path/'page.html').stat().st_size < 10e6
