"""The engine that runs a model in a page: its operations, whole models, tokens and answers, in Chromium, against torch
and the tokenizers of Python."""
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from browser import evaluate_json, load, send
from salviz.analysis.quantised_model import (
    _engine_config, _layouts, _named_weights, quantised_model, quantised_rows, quantised_twin)
from salviz.core.snapshots import Snapshot
from salviz.explorer.page_model import model_bytes

rng = np.random.default_rng(0)

def normal(*shape): return torch.tensor(rng.normal(size=shape), requires_grad=True)

def flat(x): return x.detach().numpy().ravel().tolist()

def close(got, expected, tolerance=2e-6):
    "Check that float32 results of the engine agree with float64 ones of torch, relative to the largest"
    expected = expected.detach().numpy().ravel()
    assert np.abs(np.array(got, dtype=float) - expected).max() <= tolerance*max(1, np.abs(expected).max())

@pytest.fixture
def engine(page):
    load(page, 'network.js', 'operations.js', 'selfattention.js', 'weights.js', 'intervene.js', 'interventions.js')
    return page

@pytest.mark.parametrize('n,inputs,outputs', [(1, 3, 2), (2, 8, 8), (5, 7, 13)])
def test_a_linear_layer_and_its_gradient_are_those_of_torch(engine, n, inputs, outputs):
    x, weight, bias, d = normal(n, inputs), normal(outputs, inputs), normal(outputs), normal(n, outputs)
    y = F.linear(x, weight, bias)
    y.backward(d)
    got = evaluate_json(engine, '''({x, weight, bias, d, n, inputs, outputs}) => {
        const of = {weight: Float32Array.from(weight), bias: Float32Array.from(bias), inputs, outputs};
        return [[...sv.linear(Float32Array.from(x), n, of)], [...sv.linearBack(Float32Array.from(d), n, of)]]; }''',
                        dict(x=flat(x), weight=flat(weight), bias=flat(bias), d=flat(d), n=n, inputs=inputs,
                             outputs=outputs))
    close(got[0], y)
    close(got[1], x.grad)

def test_layer_norm_and_its_gradient_are_those_of_torch(engine):
    x, weight, bias, d = normal(3, 16), normal(16), normal(16), normal(3, 16)
    y = F.layer_norm(x, (16,), weight, bias, 1e-5)
    y.backward(d)
    got = evaluate_json(engine, '''({x, weight, bias, d}) => {
        const of = {weight: Float32Array.from(weight), bias: Float32Array.from(bias), eps: 1e-5}, tape = {};
        return [[...sv.layerNorm(Float32Array.from(x), 3, of, tape)], [...sv.layerNorm(Float32Array.from(x), 3, of)],
            [...sv.layerNormBack(Float32Array.from(d), 3, of, tape)]]; }''',
                        dict(x=flat(x), weight=flat(weight), bias=flat(bias), d=flat(d)))
    close(got[0], y)
    close(got[1], y)
    close(got[2], x.grad)

@pytest.mark.parametrize('name', ['gelu', 'gelu_new', 'relu', 'tanh'])
def test_an_activation_and_its_slope_are_those_of_torch(engine, name):
    x = torch.linspace(-8, 8, 2001, dtype=torch.float64, requires_grad=True)
    y = dict(gelu=F.gelu, gelu_new=lambda x: F.gelu(x, approximate='tanh'), relu=F.relu, tanh=torch.tanh)[name](x)
    y.sum().backward()
    got = evaluate_json(engine, '''({x, name}) => { const {value, slope} = sv.activations[name];
        return [x.map(value), x.map(slope)]; }''', dict(x=flat(x), name=name))
    close(got[0], y, 1e-8)
    close(got[1], x.grad, 1e-8)

def test_the_error_function_is_exact_to_ten_digits(engine):
    x = torch.linspace(-7, 7, 3001, dtype=torch.float64)
    close(evaluate_json(engine, 'x => x.map(sv.erf)', flat(x)), torch.erf(x), 1e-10)

def test_softmax_and_its_gradient_are_those_of_torch(engine):
    x, d = normal(5), normal(5)
    p = x.softmax(-1)
    p.backward(d)
    got = evaluate_json(engine, '''({x, d}) => { const p = sv.softmaxRow(Float32Array.from(x));
        return [[...p], [...sv.softmaxRowBack(p, Float32Array.from(d))],
            [...sv.softmaxRow(Float32Array.from([-Infinity, -Infinity]))]]; }''', dict(x=flat(x), d=flat(d)))
    close(got[0], p)
    close(got[1], x.grad)
    assert got[2] == [0, 0]

# --- whole models

def kinds():
    "Return functions that create a small random classifier of each supported kind"
    from transformers import (BertConfig, BertForSequenceClassification, DistilBertConfig,
                              DistilBertForSequenceClassification, ElectraConfig, ElectraForSequenceClassification,
                              GPT2Config, GPT2ForSequenceClassification, RobertaConfig,
                              RobertaForSequenceClassification)
    size = dict(vocab_size=80, num_labels=3)
    sizes = dict(size, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
                 max_position_embeddings=40)
    return dict(
        bert=lambda: BertForSequenceClassification(BertConfig(**sizes)),
        roberta=lambda: RobertaForSequenceClassification(RobertaConfig(**sizes, type_vocab_size=1, pad_token_id=1)),
        electra=lambda: ElectraForSequenceClassification(ElectraConfig(**sizes, embedding_size=12)),
        distilbert=lambda: DistilBertForSequenceClassification(DistilBertConfig(
            **size, dim=24, n_layers=2, n_heads=4, hidden_dim=40, max_position_embeddings=40)),
        gpt2=lambda: GPT2ForSequenceClassification(GPT2Config(
            **size, n_embd=24, n_layer=2, n_head=4, n_positions=40, pad_token_id=0, bos_token_id=1, eos_token_id=1)))

def spread(model):
    "Set larger random weights, so that attention and gradients are far from uniform"
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2: p.normal_(0, .25)
            elif 'bias' in name: p.normal_(0, .1)
    return model.eval()

run_model = '''async ({rows: plainRows, segments, target, change}) => {
    const {config, weights} = await sv.unpackWeights(packed), network = new sv.Network(config, weights);
    let rows = plainRows, hook;
    if (change) {
        const isSpecial = rows.map((_, i) => i === 0 || i === rows.length - 1);
        const read = {tokens: rows.map(String), isSpecial, wordIds: isSpecial.map((special, i) => special ? -1 : i)};
        const words = network.words(rows), {logits, tape} = network.forward(words, segments);
        const gradient = network.gradient(tape, logits.indexOf(Math.max(...logits)));
        const saliency = sv.reducedTo('input_x_gradient', gradient, words, rows.length);
        const one = new sv.EngineIntervention(change, network, {read, tape}, saliency), source = one.source();
        hook = one.hook();
        if (source) rows = [...source].map(at => plainRows[at]);
    }
    const words = network.words(rows);
    const {logits, maps, tape} = network.forward(words, segments, hook), gradient = network.gradient(tape, target);
    const baseline = network.words([config.pad]), n = rows.length;
    return {logits: [...logits], maps: maps.flat().flatMap(map => [...map]), gradient: [...gradient],
        norm: [...sv.reducedTo('gradient_norm', gradient, words, n)],
        product: [...sv.reducedTo('input_x_gradient', gradient, words, n)],
        path: [...await sv.integratedGradients(network, words, segments, target, baseline, {steps: 20, change: hook})]};
}'''

def packed_model(model, n):
    "Return the weights of `model` as a page reads them, without a tokenizer; `n`: tokens of the recorded answer"
    layout = _layouts[model.config.model_type]
    weights = {k: quantised_rows(x) if x.ndim == 2 else x for k, x in _named_weights(model, layout).items()}
    n_heads = model.config.num_attention_heads
    answer = Snapshot(step=0, epoch=0., probe=0, tokens=['a']*n, labels=['a']*n, words=['a'], word_ids=np.zeros(n, int),
                      is_special=np.zeros(n, bool), texts=('a',), label=None, classes=['a', 'b', 'c'], info={},
                      layers={}, arrays=dict(attention=np.full((2, n_heads, n, n), 1/n)))
    return model_bytes(SimpleNamespace(weights=weights, header=dict(config=_engine_config(model, layout)),
                                       answer=answer), 'it')

def in_page(engine, model, ids, segments, target, change=None):
    "Return maps, logits, gradients and saliency of the engine"
    send(engine, packed=packed_model(model, len(ids)))
    return evaluate_json(engine, run_model, dict(rows=ids, segments=segments, target=target, change=change))

def in_torch(model, ids, segments, target):
    "Return the same from torch in float64, with the weights of the engine"
    twin = quantised_twin(model).double()
    twin.set_attn_implementation('eager')
    for p in twin.parameters(): p.requires_grad_(False)
    embed, more = twin.get_input_embeddings(), {}
    if model.config.model_type in ('bert', 'electra'): more = dict(token_type_ids=torch.tensor([segments]))
    start = embed(torch.tensor([[model.config.pad_token_id]*len(ids)]))
    if model.config.model_type == 'gpt2': twin.config.pad_token_id = None # embeddings have no ids to look for pads in
    x = embed(torch.tensor([ids])).clone()
    def run(x):
        x = x.detach().requires_grad_()
        out = twin(inputs_embeds=x, output_attentions=True, **more)
        return out, torch.autograd.grad(out.logits[0, target], x)[0]
    out, gradient = run(x)
    path = sum(run(torch.lerp(start, x, (k + .5)/20))[1] for k in range(20))/20*(x - start)
    return dict(logits=out.logits, maps=torch.stack([a[0] for a in out.attentions]), gradient=gradient,
                norm=gradient.norm(dim=-1), product=(gradient*x).sum(-1), path=path.sum(-1))

@pytest.mark.parametrize('kind', ['bert', 'roberta', 'electra', 'distilbert', 'gpt2'])
def test_maps_logits_and_gradients_are_those_of_torch(engine, kind):
    torch.manual_seed(0)
    model = spread(kinds()[kind]())
    ids, segments = [2, 17, 5, 60, 5, 31, 44, 3, 12, 9, 3], [0]*8 + [1]*3
    if kind == 'roberta': segments = [0]*11
    got, expected = in_page(engine, model, ids, segments, 1), in_torch(model, ids, segments, 1)
    assert expected['maps'].std() > .05
    for name, value in expected.items(): close(got[name], value, 1e-4)

changes = [dict(positions=[2, 7]), dict(rows=[0, 4]), dict(heads=[[0, 1], [1, 3]]), dict(layers=[0]),
           dict(maps=[[0, 0, 'prev'], [0, 2, 'first'], [1, 0, 'saliency'], [1, 1, 'delim']], top_fraction=.3),
           dict(region='high', p=.5, q=.5, seed=3), dict(region='low', p=.4, q=.9, seed=1),
           dict(region='random', p=.4, q=.8, seed=2), dict(mask_fraction=.4),
           dict(positions=[3], rows=[5], heads=[[1, 2]], maps=[[0, 3, 'first']], mask_fraction=.3, region='low',
                seed=9)]

@pytest.mark.parametrize('kind', ['bert', 'roberta', 'electra', 'distilbert', 'gpt2'])
def test_interventions_give_the_maps_logits_and_gradients_of_the_library(engine, kind):
    from salviz.attribution.applied_interventions import apply_intervention
    from salviz.core.interventions import Intervention
    from salviz.models.attention import observe
    torch.manual_seed(0)
    model, ids = spread(kinds()[kind]()), [2, 17, 5, 60, 5, 31, 44, 3, 12, 9, 3]
    twin, n = quantised_twin(model).double(), len(ids)
    special = torch.tensor([[i in (0, n - 1) for i in range(n)]])
    batch = dict(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, n, dtype=torch.int64), is_special=special,
                 word_ids=torch.where(special, -1, torch.arange(n)))
    plain, moved = in_page(engine, model, ids, [0]*n, 1)['logits'], 0
    for change in changes:
        applied = apply_intervention(twin, batch, Intervention.from_dict(change))
        embed = twin.get_input_embeddings()
        with applied.on(twin) as inputs, observe(twin) as maps:
            held = {}
            hook = embed.register_forward_hook(lambda module, args, x: held.setdefault('x', x.detach()
                                                                                       .requires_grad_()))
            logits = twin(**inputs).logits
            hook.remove()
            gradient, = torch.autograd.grad(logits[0, 1], held['x'])
        got = in_page(engine, model, ids, [0]*n, 1, change)
        close(got['logits'], logits, 1e-4)
        close(got['maps'], maps.stacked(), 1e-4)
        close(got['gradient'], gradient, 1e-4)
        moved += not np.allclose(got['logits'], plain, atol=1e-3)
    assert moved == len(changes)

def test_an_intervention_that_does_not_fit_is_reported_by_the_page(engine):
    torch.manual_seed(0)
    model, ids, n = spread(kinds()['gpt2']()), [2, 17, 5, 60, 3], 5
    for change, message in [(dict(heads=[[0, 4]]), 'Head 4 of layer 0 does not exist'),
                            (dict(layers=[0, 1]), 'All heads of all layers are crossed out'),
                            (dict(positions=[5]), 'Token 5 does not exist'),
                            (dict(mask_fraction=1), 'no word is left to replace the masked words'),
                            (dict(maps=[[0, 0, 'next']]), 'which a causal model cannot do'),
                            (dict(maps=[[0, 0, 'period']]), 'has no token in this text')]:
        with pytest.raises(Exception, match=message): in_page(engine, model, ids, [0]*n, 0, change)

def test_an_intervention_is_described_as_in_python(engine):
    from salviz.core.interventions import Intervention
    for change in changes:
        labels = ['[CLS]', 'a', 'fine', 'film']
        got = evaluate_json(engine, '([one, labels]) => sv.interventionChanges(one, labels)', [change, labels])
        plain = [text.translate(str.maketrans('‘’', "''")) for text in got]
        assert plain == Intervention.from_dict(change).changes(labels)

# --- tokens

hostile = ['<script>alert(1)</script> & <!-- -->', 'x'*10_000, 'good '*2_000, 'אבג \u202eabc\u202c مرحبا',
           '🙂👩‍👩‍👧🏽 nice 🇩🇪',
           'naïve café Ångström e\u0301', "don't 1,000.50 mother-in-law", '', ' ', '[MASK] film [SEP] film [UNK]',
           '电影很好 かなカナー 안녕 ไทย', 'a\u200bb\u00adc\ufeffd\u2028e\tf', '\u0301 ΣΑΣ ß İ',
           '#hash ##hash _under_ … — “q”', '\ufffd\x00\x07']

@pytest.fixture(scope='session')
def sentences():
    from salviz.core.assets import asset
    lines = (asset('movie-sentences')/'movieReviewSnippets_GroundTruth.txt').read_text('utf-8', 'replace').splitlines()
    return [line.split('\t')[2] for line in lines]

def byte_level(sentences):
    "Return a byte-level tokenizer like RoBERTa's, trained on a few sentences"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ['<s>', '<pad>', '</s>', '<unk>', '<mask>']
    tok.train_from_iterator(sentences, trainers.BpeTrainer(
        vocab_size=1200, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    tok.post_processor = processors.RobertaProcessing(('</s>', 2), ('<s>', 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token='<s>', cls_token='<s>', pad_token='<pad>',
                                   eos_token='</s>', sep_token='</s>', unk_token='<unk>', mask_token='<mask>')

@pytest.fixture
def reader(page):
    "Return a function that reads texts with the tokenizer of the page"
    import json
    from salviz.explorer.assets import static_text
    load(page, 'textreader.js')
    page.evaluate('''async source => { const blob = new Blob([source], {type: 'text/javascript'});
        window.Tokenizer = (await import(URL.createObjectURL(blob))).Tokenizer; }''',
                  static_text('tokenizers.min.mjs'))
    def read(tokenizer, texts, pieces=None):
        send(page, file=json.loads(tokenizer.backend_tokenizer.to_str()))
        return evaluate_json(page, '''({texts, pieces}) => {
            const reader = new sv.TextReader(Tokenizer, file, {pieces, longest: 512});
            return texts.map(parts => reader.read(parts)); }''', dict(texts=texts, pieces=pieces))
    return read

def check_tokens(reader, tokenizer, texts, also_words=True):
    "Return the differences between page and Python, with the text and the name of each"
    from salviz.core.text import align_batch
    pairs, wrong = [[text] for text in texts], []
    for text, got, expected in zip(texts, reader(tokenizer, pairs), align_batch(tokenizer, texts)):
        names = dict(tokens=expected.tokens, ids=expected.input_ids.tolist(), isSpecial=expected.is_special.tolist())
        if also_words: names |= dict(labels=expected.labels, words=expected.words, wordIds=expected.word_ids.tolist())
        wrong += [(text[:60], name, got[name][:30], value[:30]) for name, value in names.items() if got[name] != value]
    return wrong

def minilm():
    from salviz.models.loading import load_classifier
    return load_classifier('movie-minilm')

def test_tokens_and_words_are_those_of_python(reader, sentences):
    tokenizer = minilm()[1]
    assert check_tokens(reader, tokenizer, sentences[:300]) == []
    assert check_tokens(reader, byte_level(sentences[:500]), sentences[:300]) == []

@pytest.mark.slow
def test_tokens_of_10000_sentences_are_those_of_python(reader, sentences):
    tokenizer, texts = minilm()[1], sentences[:10_000]
    assert len(texts) == 10_000 and check_tokens(reader, tokenizer, texts) == []
    assert check_tokens(reader, byte_level(sentences[:500]), texts) == []

def test_hostile_texts_have_the_tokens_of_python(reader, sentences):
    assert check_tokens(reader, minilm()[1], hostile) == []
    assert check_tokens(reader, byte_level(sentences[:500]), hostile) == []

def test_pieces_without_embedding_are_split_into_smaller_ones(reader):
    tokenizer = minilm()[1]
    pieces = sorted(tokenizer.convert_tokens_to_ids(
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', 'a', 'dull', 'ch', '##arm', '##i', '##ng', 'z']))
    got, = reader(tokenizer, [['a dull charming zebra']], pieces)
    assert got['tokens'] == ['[CLS]', 'a', 'dull', 'ch', '##arm', '##i', '##ng', '[UNK]', '[SEP]']
    assert got['left'] == ['charming', 'zebra'] and got['wordIds'] == [-1, 0, 1, 2, 2, 2, 2, 3, -1]
    assert [pieces[row] for row in got['rows']] == got['ids'] == tokenizer.convert_tokens_to_ids(got['tokens'])

def test_a_text_pair_has_the_segments_of_python(reader):
    tokenizer = minilm()[1]
    got, = reader(tokenizer, [['the film', 'a fine actor']])
    expected = tokenizer('the film', 'a fine actor')
    assert got['ids'] == expected['input_ids'] and got['segments'] == expected['token_type_ids']

# --- the page

