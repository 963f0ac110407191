"Queries and keys of a head: the answers of the kernel, and what the page computes and writes from them."
import json
import re

import numpy as np
import pytest
import torch

import invented
from browser import browser, load, new_page, page, send, settled, spoken # noqa: F401 (fixtures)
from salviz.core.runs import Run
from salviz.analysis.model_source import ModelSource
from salviz.explorer.custom_sentences import vector_replies
from salviz.explorer.page import page_of, write_page
from salviz.explorer.payload import frame_bytes, unpack_frame
from salviz.explorer.quantisation import encode_array
from salviz.explorer.view import ExplorerView
from salviz.explorer.widget import Explorer
from salviz.models.attention import observe, query_key
from test_explorer import push, widget
from test_own import Kernel, ask as ask_own, kept_run

text, tab = 'the film was great', 'Query × key'

def query(**changes):
    return dict(kind='vectors', id='x', run=0, texts=[text], choice='now', layer=1, head=0, length=7) | changes

def answered(source, **changes):
    (content, frames), = vector_replies([source], query(**changes))
    assert 'error' not in content, content
    return content, unpack_frame(frames[0])

# --- in the kernel

def test_the_vectors_reproduce_the_attention_of_the_model(tiny_bert, tiny_tokenizer):
    model = tiny_bert().eval()
    content, decoded = answered(ModelSource(model=(model, tiny_tokenizer)))
    inputs = tiny_tokenizer(text, return_tensors='pt')
    with torch.no_grad(), observe(model) as maps: model(**inputs)
    x = decoded['arrays']
    scores = x['query'].astype(float) @ x['key'].T.astype(float)*decoded['info']['scaling']
    weights = np.exp(scores)/np.exp(scores).sum(-1, keepdims=True)
    assert np.abs(weights - maps[1][0, 0].numpy()).max() < 1e-6 and np.abs(weights - x['attention']).max() < 1e-6
    assert content['tokens'] == tiny_tokenizer.convert_ids_to_tokens(inputs['input_ids'][0])
    assert content['of'] == 'the model in the kernel (current state)' and x['allowed'].all() and 'bias' not in x

def test_a_sentence_that_was_recorded_cut_is_cut_in_the_same_way(tiny_bert, tiny_tokenizer):
    with pytest.warns(UserWarning, match='longer than 4 tokens'):
        content, decoded = answered(ModelSource(model=(tiny_bert(), tiny_tokenizer)), length=4)
    assert len(content['tokens']) == 4 == len(decoded['arrays']['query'])

def test_a_sentence_of_one_word_is_not_too_short(tiny_bert, tiny_tokenizer):
    content, decoded = answered(ModelSource(model=(tiny_bert(), tiny_tokenizer)), texts=['film'], length=3)
    assert content['tokens'] == ['[CLS]', 'film', '[SEP]'] and decoded['arrays']['attention'].shape == (3, 3)

@pytest.mark.slow
def test_every_saved_checkpoint_answers_with_its_vectors(tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    run = kept_run(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/'run')
    source = ModelSource(Run(run.path))
    first, last = (answered(source, choice=step)[1]['arrays']['query'] for step in (min(run.checkpoints),
                                                                                  max(run.checkpoints)))
    assert first.shape == last.shape and not np.allclose(first, last)

@pytest.mark.parametrize('wrong, words', [
    (dict(head=9), 'head: BertForSequenceClassification has the heads 0 to'),
    (dict(layer=7), 'layer: BertForSequenceClassification has the layers 0 to'),
    (dict(choice=5), 'unknown model 5; available: '),
    (dict(length=10**6), 'max_length must be None or an integer from 1 to')])
def test_unanswerable_queries_get_an_error_message(tiny_bert, tiny_tokenizer, wrong, words):
    (content, frames), = vector_replies([ModelSource(model=(tiny_bert(), tiny_tokenizer))], query(**wrong))
    assert words in content['error'] and not frames and not content['more']

@pytest.fixture
def view(tiny_bert, tiny_tokenizer):
    "Return the view of an explorer of a sentence and of the model that read it"
    from salviz.model_explorer import explore
    view = explore(tiny_bert(), tiny_tokenizer, [text, 'a fine scene'], saliency=None, attribution=False).view
    view.settle()
    return view

@pytest.mark.sample(6)
@pytest.mark.parametrize('wrong', [dict(texts='a film'), dict(texts=[]), dict(texts=[['a']]), dict(texts=['a']*3),
                                   dict(run=7), dict(layer=None), dict(head='1'), dict(length=2.5), dict(choice=None),
                                   dict(id=1)])
def test_malformed_queries_for_vectors_are_ignored(view, wrong):
    view._loop, sent = None, []
    view.send = lambda content, buffers: sent.append(content)
    for question in (query(**wrong), query()):
        view._handle_custom_msg(question, [])
        view._replier.flush()
    assert [content['kind'] for content in sent] == ['vectors'] and 'error' not in sent[0]

def test_a_question_of_one_kind_does_not_end_the_answer_to_another(view):
    view._loop, sent = None, []
    view.send = lambda content, buffers: sent.append((content['kind'], content['more']))
    view._wake = lambda: None
    view._handle_custom_msg(dict(kind='own', id='a', run=0, texts=[[text]], choice='now', head=None,
                                 attribution='input_x_gradient'), [])
    view._answer()
    view._handle_custom_msg(query(), [])
    for _ in range(3): view._answer()
    assert sorted(sent) == [('own', False), ('own', True), ('vectors', False)] and not view._replies

# --- in the page

def by_hand(n=5, size=6, seed=0, bias=False, causal=False):
    "Return invented vectors of one head, as arrays and as a frame"
    rng = np.random.default_rng(seed)
    x = {name: rng.normal(size=(n, size)).astype(np.float32) for name in ('query', 'key')}
    if bias: x['bias'] = rng.normal(size=(n, n)).astype(np.float32)
    allowed = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    scores = x['query'].astype(float) @ x['key'].T.astype(float)*.3 + x.get('bias', 0)
    weights = np.exp(scores)*allowed
    x['attention'] = (weights/weights.sum(-1, keepdims=True)).astype(np.float32)
    blocks = {name: encode_array(name, values, 'f32') for name, values in x.items()}
    blocks['allowed'] = encode_array('allowed', allowed, 'bits')
    return x, scores, allowed, frame_bytes(dict(run=0, probe=0, step=0, info=dict(scaling=.3)), blocks)

@pytest.mark.sample(2)
@pytest.mark.parametrize('bias, causal, size', [(False, False, 6), (True, False, 33), (False, True, 64),
                                                (True, True, 128)])
def test_products_sums_and_scores_of_the_page_are_those_of_numpy(page, bias, causal, size):
    x, scores, allowed, frame = by_hand(7, size, bias=bias, causal=causal)
    load(page, 'products.js', 'codec.js')
    send(page, frame=frame)
    page.evaluate('() => { window.head = new sv.HeadProducts(sv.decodeFrame(frame)); }')
    got = page.evaluate('''() => Array.from({length: 49}, (_, i) => [Math.floor(i/7), i % 7]).map(([q, k]) => ({
        products: [...head.products(q, k)], sum: head.sum(q, k), score: head.score(q, k), weight: head.weight(q, k),
        may: head.mayAttend(q, k), leading: head.leading(q, k)}))''')
    q, k = x['query'].astype(float), x['key'].astype(float)
    for (i, j), decoded in zip(np.ndindex(7, 7), got):
        products = q[i]*k[j]
        assert np.array_equal(decoded['products'], products)
        assert decoded['sum'] == pytest.approx(products.sum(), abs=1e-12)
        assert decoded['score'] == pytest.approx(scores[i, j], abs=1e-12)
        assert decoded['weight'] == x['attention'][i, j] and decoded['may'] == allowed[i, j]
        five = np.argsort(-abs(products))[:5]
        assert decoded['leading']['neurons'] == five.tolist()
        assert decoded['leading']['sum'] == pytest.approx(products[five].sum(), abs=1e-12)
    most = page.evaluate('() => head.most')
    assert most['product'] == np.abs(q[:, None]*k).max() and most['vector'] == max(abs(q).max(), abs(k).max())
    assert page.evaluate('() => [0, 1, 2].map(q => head.strongest(q))') == x['attention'].argmax(-1)[:3].tolist()

def test_products_that_are_zero_lead_nothing(page):
    zeros = {name: encode_array(name, np.zeros((2, 3)), 'f32') for name in ('query', 'key')}
    zeros |= dict(attention=encode_array('attention', np.full((2, 2), .5), 'f32'),
                  allowed=encode_array('allowed', np.ones((2, 2), bool), 'bits'))
    load(page, 'products.js', 'codec.js')
    send(page, frame=frame_bytes(dict(run=0, probe=0, step=0, info=dict(scaling=1.)), zeros))
    assert page.evaluate('() => new sv.HeadProducts(sv.decodeFrame(frame)).leading(0, 1)') == dict(neurons=[], sum=0)

def test_weights_of_another_model_are_distinguished_from_rounding(page):
    x, _, _, frame = by_hand(7, 6)
    load(page, 'products.js', 'codec.js')
    def unlike(recorded):
        send(page, frame=frame, recorded=recorded.ravel().tolist())
        return page.evaluate('''() => new sv.HeadProducts(sv.decodeFrame(frame))
            .unlike({values: recorded, halfStep: () => .002})''')
    assert unlike(x['attention'].astype(float)) is None and unlike(x['attention'] + .0019) is None
    other = x['attention'].astype(float).copy()
    other[3, 2] += .05; other[5, 1] += .02
    decoded = unlike(other)
    assert (decoded['query'], decoded['key']) == (3, 2) and decoded['recorded'] == pytest.approx(other[3, 2])

@pytest.fixture
def opened(page, view):
    "Open the page of `view` with the panel, and return it with its kernel"
    widget(page, view)
    page.click(f'.sv-tab:has-text("{tab}")')
    settled(page)
    return page, Kernel(page, view, 'vectors')

def answer(page, kernel):
    kernel.is_asked()
    contents = kernel.answer()
    settled(page)
    return contents

def head_of(page): return page.evaluate('() => document.querySelector(".sv-neurons canvas").salviz')

def choose(page, **state):
    page.evaluate('state => model.listeners["msg:custom"].forEach(tell => tell({kind: "state", state}, []))', state)
    settled(page)

@pytest.mark.slow
def test_vectors_are_requested_once_per_head_after_the_panel_is_opened(page, view):
    widget(page, view)
    kernel = Kernel(page, view, 'vectors')
    page.wait_for_timeout(400)
    assert kernel.asked() == []
    page.click(f'.sv-tab:has-text("{tab}")')
    first, = answer(page, kernel)
    assert page.is_visible('.sv-neurons canvas') and first['kind'] == 'vectors'
    page.select_option('.sv-neurons-pair select >> nth=0', '3'); settled(page)
    page.select_option('.sv-neurons-pair select >> nth=1', '2'); settled(page)
    page.wait_for_timeout(300)
    assert kernel.asked() == []

def test_the_pair_in_words_is_what_the_model_computes(opened, view, tiny_bert, tiny_tokenizer):
    page, kernel = opened
    answer(page, kernel)
    page.select_option('.sv-neurons-pair select >> nth=0', '3'); settled(page)
    page.select_option('.sv-neurons-pair select >> nth=1', '2'); settled(page)
    layer, head = map(int, re.findall(r'\d+', page.inner_text('.sv-neurons .sv-title')))
    vectors = query_key(tiny_bert().eval(), tiny_tokenizer(text, return_tensors='pt'), layer, head)
    products = (vectors.query[0, 3].double()*vectors.key[0, 2].double()).numpy()
    message = page.inner_text('.sv-neurons .sv-rowsum').replace('−', '-')
    sum_, scaling, score, weight = map(float, re.search(
        r'products sum to (\S+), × (\S+) = (\S+); weight (\S+)\. ', message).groups())
    assert f'query “wa” × key “film”: {len(products)} products' in message
    assert sum_ == pytest.approx(products.sum(), rel=1e-3) and scaling == pytest.approx(vectors.scaling, rel=1e-3)
    assert score == pytest.approx(products.sum()*vectors.scaling, rel=6e-3)
    assert weight == pytest.approx(vectors.attention[0, 3, 2].item(), rel=6e-3)
    five = np.argsort(-abs(products))[:5]
    listed = re.search(r'5 largest products \(neurons ([\d, ]+)\) sum to (\S+)\.', message)
    assert listed[1] == ', '.join(map(str, five)) and float(listed[2]) == pytest.approx(products[five].sum(), rel=1e-3)
    assert 'The weights match those recorded at step 0' in page.inner_text('.sv-neurons')

@pytest.mark.slow
def test_the_colours_are_the_products_on_a_linear_scale(opened):
    page, kernel = opened
    answer(page, kernel)
    reply = page.evaluate('''() => {
        const canvas = document.querySelector('.sv-neurons canvas'), {grid, scales, query, numbers} = canvas.salviz;
        const ratio = window.devicePixelRatio, context = canvas.getContext('2d'), out = [];
        for (let k = 0; k < numbers.keys; k++) for (let i = 0; i < numbers.size; i++) {
            const [x, y] = grid.middle(k, i), seen = context.getImageData(x*ratio, y*ratio, 1, 1).data;
            const table = scales.product.table, place = .5 + numbers.products(query, k)[i]/scales.product.limit/2;
            const wanted = table[Math.round(255*place)];
            out.push(Math.max(...[0, 8, 16].map((shift, c) => Math.abs(seen[c] - (wanted >> shift & 255)))));
        }
        return [out, scales.product.linear && scales.product.signed]; }''')
    assert max(reply[0]) <= 4 and reply[1]

@pytest.mark.slow
def test_weights_of_another_step_have_a_note(page, tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    run = kept_run(tiny_bert, tiny_tokenizer, tiny_data, tmp_path/'run')
    explorer = Explorer(run, state=dict(tab='neurons', entry=dict(kind='head', layer=1, head=0)))
    explorer.view.settle()
    widget(page, explorer.view)
    kernel, steps = Kernel(page, explorer.view, 'vectors'), sorted(run.checkpoints)
    content, = answer(page, kernel)
    recorded = max(step for step, _ in run.recorded)
    assert content['of'] == f'checkpoint of step {recorded}'
    assert f'those recorded at step {recorded}' in page.inner_text('.sv-neurons')
    page.select_option('.sv-neurons .sv-controls select >> nth=0', str(steps[0])); settled(page)
    answer(page, kernel)
    message = page.inner_text('.sv-neurons')
    assert f'by checkpoint of step {steps[0]}' in message and 'The weights differ from the recorded ones' in message
    assert f'at step {recorded}' in message

@pytest.mark.slow
def test_a_mean_over_heads_has_no_vectors(opened):
    page, kernel = opened
    answer(page, kernel)
    choose(page, tab='neurons', entry=dict(kind='heads', layer=1))
    assert 'choose one under Heads' in page.inner_text('.sv-neurons')
    assert not page.is_visible('.sv-neurons canvas >> nth=0')
    page.wait_for_timeout(300)
    assert kernel.asked() == []
    choose(page, tab='neurons', entry=dict(kind='head', layer=0, head=1))
    answer(page, kernel)
    assert page.is_visible('.sv-neurons canvas >> nth=0') and 'layer 0, head 1' in page.inner_text('.sv-neurons')

@pytest.mark.slow
def test_keys_are_walked_and_chosen_by_the_keyboard_and_heard(opened):
    page, kernel = opened
    answer(page, kernel)
    page.focus('.sv-neurons canvas >> nth=0')
    for key in ('ArrowDown', 'Home', 'ArrowUp', 'ArrowUp', 'ArrowUp', 'ArrowUp', 'ArrowUp', 'ArrowDown', 'ArrowRight'):
        page.keyboard.press(key)
    assert page.inner_text('.sv-neurons .sv-tip').startswith('neuron 1: query “[CLS]”')
    assert '× key “the”' in page.inner_text('.sv-neurons .sv-tip')
    spoken(page, 'key “the”')
    page.keyboard.press('Enter'); settled(page)
    assert '× key “the”:' in page.inner_text('.sv-neurons .sv-rowsum') and head_of(page)['key'] == 1
    spoken(page, 'products sum to')
    for key in ('ArrowDown', 'ArrowUp'): page.keyboard.press(key) # the same key as before
    spoken(page, 'key “the” ')
    page.keyboard.press('Enter')
    spoken(page, 'products sum to')

@pytest.mark.slow
def test_a_failed_computation_shows_an_error_and_can_be_repeated(opened, view):
    page, kernel = opened
    kernel.is_asked()
    question, = kernel.asked()
    kernel.tell(dict(kind='vectors', id=question['id'], more=False, error='A training is going on'), [])
    settled(page)
    assert page.inner_text('.sv-neurons .sv-note >> nth=0') == 'A training is going on'
    assert page.get_attribute('.sv-neurons', 'aria-busy') is None
    assert not page.is_visible('.sv-neurons canvas >> nth=0')
    page.click('.sv-neurons >> text=Recompute')
    answer(page, kernel)
    assert page.is_visible('.sv-neurons canvas >> nth=0') and 'training' not in page.inner_text('.sv-neurons')

@pytest.mark.slow
def test_a_model_that_reads_other_tokens_is_not_taken_for_the_one_in_view(opened):
    page, kernel = opened
    kernel.is_asked()
    question, = kernel.asked()
    *_, frame = by_hand(3)
    kernel.tell(dict(kind='vectors', id=question['id'], more=False, of='a model', tokens=['<s>', 'a', '</s>']),
                [frame])
    settled(page)
    assert 'splits this sentence into different tokens' in page.inner_text('.sv-neurons')
    assert not page.is_visible('.sv-neurons canvas >> nth=0')

@pytest.mark.slow
def test_a_pair_without_attention_is_shown_with_weight_0(opened, view):
    page, kernel = opened
    kernel.is_asked()
    question, = kernel.asked()
    *_, frame = by_hand(7, 16, causal=True, bias=True)
    tokens = list(view._runs[0].snapshot(0, 0).tokens)
    kernel.tell(dict(kind='vectors', id=question['id'], more=False, of='a model', tokens=tokens), [frame])
    choose(page, tab='neurons', row=2, tokens=[5])
    message = page.inner_text('.sv-neurons .sv-rowsum')
    assert '16 products sum to' in message and '× 0.3 + bias' in message
    assert 'this query cannot attend to this key, so its weight is 0.' in message
    assert 'The weights differ from the recorded ones' in page.inner_text('.sv-neurons')
    blank = page.evaluate('''() => {
        const canvas = document.querySelector('.sv-neurons canvas'), {grid, scales} = canvas.salviz;
        const [x, y] = grid.middle(6, 8), ratio = window.devicePixelRatio;
        const seen = canvas.getContext('2d').getImageData(x*ratio, y*ratio, 1, 1).data;
        return [0, 8, 16].every((shift, c) => seen[c] === (scales.product.blank >> shift & 255)); }''')
    assert blank

@pytest.mark.slow
def test_a_choice_beyond_the_sentence_is_no_choice(opened):
    page, kernel = opened
    answer(page, kernel)
    choose(page, tab='neurons', row=99, tokens=[77])
    assert head_of(page)['query'] == 0 and '“[CLS]” ×' in page.inner_text('.sv-neurons .sv-rowsum')

@pytest.mark.slow
def test_vectors_from_before_the_latest_step_have_a_note(opened, view):
    page, kernel = opened
    answer(page, kernel)
    assert 'Computed just now by the model' in page.inner_text('.sv-neurons')
    meta = json.loads(view.get_state('meta')['meta'])
    meta['runs'][0]['recorded'].append([0, 9])
    push(page, dict(meta=json.dumps(meta)))
    assert 'press Recompute to update' in page.inner_text('.sv-neurons')
    page.click('.sv-neurons >> text=Recompute')
    answer(page, kernel)
    assert 'Computed just now by the model' in page.inner_text('.sv-neurons')

@pytest.mark.slow
def test_a_custom_sentence_is_answered_while_vectors_are_requested(opened, view):
    page, kernel = opened
    ask_own(page, 'the film was awful')
    for kernel in (Kernel(page, view, kind) for kind in ('own', 'vectors')):
        kernel.is_asked()
        kernel.answer()
    assert page.is_visible('.sv-own-answer') and page.is_visible('.sv-neurons canvas >> nth=0')

@pytest.mark.slow
def test_a_missing_model_is_explained(page, browser, tmp_path):
    run = invented.run(tmp_path/'run')
    explorer = ExplorerView([run], sources=[ModelSource(run)])
    explorer.settle()
    widget(page, explorer)
    page.click(f'.sv-tab:has-text("{tab}")'); settled(page)
    assert 'This needs a model, and this run has no saved weights' in page.inner_text('.sv-neurons')
    path = write_page(page_of(run), tmp_path/'page.html', say=lambda message: None)
    p = new_page(browser)
    p.goto(path.as_uri())
    p.click(f'.sv-tab:has-text("{tab}")')
    p.wait_for_selector('.sv-neurons >> text=needs a model in a running kernel')
    assert p.errors == []
    p.close()
