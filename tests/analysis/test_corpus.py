"Head statistics of a corpus equal slow means over single sentences; sizes of gradients equal direct autograd"
import math

import datasets
import numpy as np
import pytest
import scipy.stats
import torch
from tokenizers.processors import ByteLevel
from transformers import (BartConfig, BartForConditionalGeneration, BertConfig, BertForMaskedLM,
                          BertForTokenClassification, GPT2Config, GPT2ForSequenceClassification)

from helpers import same, state, word_tokenizer
from salviz.attribution.saliency import input_saliency
from salviz.analysis.corpus import RunningMean, gradient_sizes, head_table, score_target
from salviz.data.texts import Collator, encode, encode_texts
from salviz.attribution.explanations import explain
from salviz.core.maths import pattern_matrix, pattern_fraction
from salviz.models.nets import small_net

kinds = ['to_special', 'to_previous', 'to_next', 'to_self', 'to_neighbours']
texts = ['the film and a plot', 'lovely', 'this story of one actor with its music', 'a clumsy film .', 'dull plot']


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()

def gpt2(tokenizer):
    return seeded(lambda: GPT2ForSequenceClassification(GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=2,
                                                                   n_head=4, n_positions=64, num_labels=3,
                                                                   pad_token_id=0, initializer_range=.3)))

def bart(tokenizer):
    return seeded(lambda: BartForConditionalGeneration(BartConfig(
        vocab_size=len(tokenizer), d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=0, decoder_start_token_id=3, bos_token_id=2,
        eos_token_id=3, init_std=.3)))

def eager_maps(model, ids):
    """Return attention [layers, heads, n, n] of one sentence without padding, from the model's eager code; for BART,
    that of the encoder"""
    before = model.config._attn_implementation
    model.set_attn_implementation('eager')
    try:
        with torch.no_grad(): out = model(input_ids=torch.tensor([ids]), output_attentions=True)
    finally: model.set_attn_implementation(before)
    found = getattr(out, 'encoder_attentions', None) or out.attentions
    return torch.stack(found)[:, 0].double().numpy()

def slow_example(A, special, rows, causal):
    "Return {column: number} of one map [n, n] by loops; NaN if no row has a value"
    n, seen = len(A), {k: [] for k in [*kinds, 'entropy', 'normalised_entropy']}
    for i in rows:
        keys = [j for j in range(n) if not causal or j <= i]
        ordinary = [j for j in keys if not special[j]]
        groups = dict(to_special=[j for j in keys if special[j]], to_previous=[j for j in ordinary if j == i - 1],
                      to_next=[j for j in ordinary if j == i + 1],
                      to_self=[i], to_neighbours=[j for j in ordinary if abs(j - i) == 1])
        for k, group in groups.items():
            if group: seen[k].append(sum(A[i, j] for j in group))
        wide = scipy.stats.entropy([A[i, j] for j in keys])
        seen['entropy'].append(wide)
        if len(keys) > 1: seen['normalised_entropy'].append(wide/math.log(len(keys)))
    return {k: sum(x)/len(x) if x else math.nan for k, x in seen.items()}

def slow_table(model, tokenizer, texts, rows='ordinary', causal=False, pooled=None):
    "Return [layers, heads, columns] by loops over sentences"
    per_text = []
    for row in encode_texts(texts, tokenizer):
        A, special = eager_maps(model, row['input_ids']), row['special_tokens_mask']
        n = len(special)
        at = [pooled % n] if rows == 'pooled' else [i for i in range(n) if rows == 'all' or not special[i]]
        per_text.append([[list(slow_example(head, special, at, causal).values()) for head in layer] for layer in A])
    x = np.array(per_text)
    out = np.full(x.shape[1:], math.nan)
    for place in np.ndindex(out.shape):
        there = [v[place] for v in x if not math.isnan(v[place])]
        if there: out[place] = sum(there)/len(there)
    return out


@pytest.mark.parametrize('rows', ['ordinary', 'all', 'pooled'])
def test_head_statistics_equal_loops_over_single_sentences(tiny_bert, tiny_tokenizer, rows):
    model = tiny_bert(initializer_range=.4).eval()
    table = head_table(model, texts, tiny_tokenizer, saliency=None, rows=rows, batch_size=3)
    assert table[['layer', 'head']].to_numpy().tolist() == [[l, h] for l in range(2) for h in range(4)]
    want = slow_table(model, tiny_tokenizer, texts, rows, pooled=0).reshape(8, -1)
    assert table[[*kinds, 'entropy',
                  'normalised_entropy']].to_numpy() == pytest.approx(want, rel=1e-5, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize('rows', ['ordinary', 'all', 'pooled'])
def test_a_decoder_attends_to_no_later_tokens(tiny_tokenizer, rows):
    model = gpt2(tiny_tokenizer)
    table = head_table(model, texts, tiny_tokenizer, saliency=None, rows=rows, batch_size=2)
    want = slow_table(model, tiny_tokenizer, texts, rows, causal=True, pooled=-1).reshape(8, -1)
    assert table[[*kinds, 'entropy',
                  'normalised_entropy']].to_numpy() == pytest.approx(want, rel=1e-5, abs=1e-6, nan_ok=True)
    assert table.to_next.isna().all() and table.to_previous.notna().all()


def test_the_encoder_of_an_encoder_decoder_is_used(tiny_tokenizer):
    model = bart(tiny_tokenizer)
    table = head_table(model, texts, tiny_tokenizer, saliency=None, batch_size=2)
    want = slow_table(model, tiny_tokenizer, texts).reshape(8, -1)
    assert table[[*kinds, 'entropy', 'normalised_entropy']].to_numpy() == pytest.approx(want, rel=1e-5, abs=1e-6)
    with pytest.raises(ValueError, match="target='predicted' for seq2seq needs labels"):
        head_table(model, texts, tiny_tokenizer)
    pairs = datasets.Dataset.from_dict(dict(text=texts, target_text=[t[::-1] for t in texts]))
    assert head_table(model, pairs, tiny_tokenizer).agreement.notna().all()


def test_without_special_tokens_the_weight_on_them_is_undefined():
    tokenizer = word_tokenizer(texts, longest=64)
    tokenizer.backend_tokenizer.post_processor = ByteLevel() # does not count
    table = head_table(gpt2(tokenizer), ['the film and a plot', 'dull plot'], tokenizer, saliency=None)
    assert table.to_special.isna().all() and table.to_previous.between(0, 1).all()


def slow_agreement(A, saliency, special, rows):
    kept = [j for j in range(len(special)) if not special[j]]
    if len(kept) < 3: return math.nan
    return scipy.stats.spearmanr([abs(saliency[j]) for j in kept], [sum(A[r, j] for r in rows) for j in kept])[0]

@pytest.mark.parametrize('kind', ['pooled', 'decoder', 'rows'])
def test_agreement_equals_scipy_on_single_sentences(tiny_bert, tiny_tokenizer, kind):
    model = gpt2(tiny_tokenizer) if kind == 'decoder' else tiny_bert(initializer_range=.4).eval()
    if kind == 'rows': # a tagger reads every row
        model = seeded(lambda: BertForTokenClassification(BertConfig(vocab_size=len(tiny_tokenizer), hidden_size=32,
                                                                     num_hidden_layers=2, num_attention_heads=4,
                                                                     intermediate_size=48, num_labels=3,
                                                                     initializer_range=.4)))
    table, found = head_table(model, texts, tiny_tokenizer, batch_size=2), []
    for row in encode_texts(texts, tiny_tokenizer):
        batch, special = Collator(tiny_tokenizer)([row]), row['special_tokens_mask']
        saliency = input_saliency(model, batch, 'input_x_gradient', score_target(model, batch))[0].tolist()
        at = [i for i in range(len(special)) if not special[i]] if kind == 'rows' else [-1 if kind == 'decoder' else 0]
        found.append([[slow_agreement(head, saliency, special, at) for head in layer]
                      for layer in eager_maps(model, row['input_ids'])])
    assert np.isnan(found).any()
    assert table.agreement.to_numpy() == pytest.approx(np.nanmean(found, 0).ravel(), rel=1e-5, abs=1e-6)
    assert table.agreement_top.between(0, 1).all() and (table.agreement_kl > 0).all()


def test_pattern_fractions_equal_those_of_single_maps(tiny_bert):
    tokenizer = word_tokenizer(texts, longest=64)
    model = tiny_bert(initializer_range=.4).eval()
    def second(tokens): return np.eye(len(tokens))[[1]*len(tokens)] if len(tokens) > 4 else None
    own = np.tril(np.ones((64, 64)))/64
    patterns = dict(next='next', prev='prev', first='first', delim='delim', period='period', second=second, own=own)
    table = head_table(model, texts, tokenizer, saliency=None, patterns=patterns, rows='all', batch_size=2)
    for name in patterns:
        found = []
        for row in encode_texts(texts, tokenizer):
            tokens, n = tokenizer.convert_ids_to_tokens(row['input_ids']), len(row['input_ids'])
            occurs = dict(delim=np.array(row['special_tokens_mask'], bool),
                          period=np.array([t == '.' for t in tokens])).get(name)
            P = (second(tokens) if name == 'second' else own[:n, :n] if name == 'own'
                 else pattern_matrix(name, np.ones(n, bool), occurs))
            if P is not None: found.append(pattern_fraction(eager_maps(model, row['input_ids']), P))
        assert table[f'pattern_{name}'].to_numpy() == pytest.approx(np.mean(found, 0).ravel(), rel=1e-5, abs=1e-6), name
    assert list(head_table(model, texts[:1], tokenizer, saliency=None, patterns=[second]))[-1] == 'pattern_second'
    assert head_table(model, ['lovely'], tokenizer, saliency=None, patterns=['period']).pattern_period.isna().all()


@pytest.mark.slow
def test_neither_batches_nor_order_nor_form_of_the_data_change_the_table(tiny_bert, tiny_tokenizer, tiny_data):
    model, split = tiny_bert(initializer_range=.4).double().eval(), tiny_data['test']
    want = head_table(model, split, tiny_tokenizer, target='gold').to_numpy()
    backwards = split.select(range(len(split))[::-1])
    for data, size in ((split, 1), (split, 5), (backwards, 7), (encode(split, tiny_tokenizer), 16)):
        assert head_table(model, data, tiny_tokenizer, target='gold',
                          batch_size=size).to_numpy() == pytest.approx(want, abs=1e-5, nan_ok=True)
    said = dict(examples=16, rows='ordinary', saliency='input_x_gradient',
                about='BertForSequenceClassification, 16 examples.')
    assert head_table(model, split['text'][:], tiny_tokenizer).attrs == said


def test_pairs_of_texts_and_chosen_layers(tiny_bert, tiny_tokenizer):
    model = tiny_bert(initializer_range=.4).eval()
    pair = [('the film', 'a dull plot')]
    table = head_table(model, pair, tiny_tokenizer, saliency=None, layers=-1)
    row = encode_texts(['the film'], tiny_tokenizer, ['a dull plot'])[0]
    batch = Collator(tiny_tokenizer)([row])
    model.set_attn_implementation('eager')
    with torch.no_grad():
        A = model(**{k: batch[k] for k in ('input_ids', 'attention_mask')}, token_type_ids=batch.get('token_type_ids'),
                  output_attentions=True).attentions[1][0]
    rows = [i for i, s in enumerate(row['special_tokens_mask']) if not s]
    assert table.layer.tolist() == [1]*4
    want = [[slow_example(h.double().numpy(), row['special_tokens_mask'], rows, False)[k] for k in kinds] for h in A]
    assert table[kinds].to_numpy() == pytest.approx(np.array(want), rel=1e-5, abs=1e-6)


def test_saliency_may_be_a_function_and_targets_a_class_the_gold_one_or_a_function(
    tiny_bert, tiny_tokenizer, tiny_data):
    model, split = tiny_bert(initializer_range=.4).eval(), tiny_data['test'].select(range(5))
    by_name = {t: head_table(model, split, tiny_tokenizer, target=t).agreement for t in ('predicted', 'gold', 0, 1)}
    def logit_1(outputs, rows): return outputs.logits[:, 1]
    assert by_name[1].tolist() == pytest.approx(head_table(model, split, tiny_tokenizer,
                                                           target=logit_1).agreement.tolist())
    assert by_name[0].tolist() != pytest.approx(by_name[1].tolist()) and len({tuple(x) for x in by_name.values()}) > 2
    def places(model, batch): return torch.arange(batch['input_ids'].shape[1]).expand(batch['input_ids'].shape)
    table = head_table(model, ['the film and a plot'], tiny_tokenizer, saliency=places)
    A, n = eager_maps(model, encode_texts(['the film and a plot'], tiny_tokenizer)[0]['input_ids']), 7
    want = [[scipy.stats.spearmanr(range(1, n - 1), head[0, 1:n - 1])[0] for head in layer] for layer in A]
    assert table.agreement.tolist() == pytest.approx(np.ravel(want).tolist(), rel=1e-5, abs=1e-6)
    assert table.attrs['saliency'] == 'places'
    with pytest.raises(ValueError, match='one number per token'):
        head_table(model, ['dull'], tiny_tokenizer, saliency=lambda m, b: torch.ones(2))


def test_a_language_model_and_a_regression_are_explained_for_their_predictions(tiny_bert, tiny_tokenizer, tiny_data):
    mlm = seeded(lambda: BertForMaskedLM(BertConfig(vocab_size=len(tiny_tokenizer), hidden_size=32, num_hidden_layers=1,
                                                    num_attention_heads=2, intermediate_size=48)))
    assert head_table(mlm, tiny_data['test'].select(range(4)), tiny_tokenizer).agreement.notna().all()
    score = tiny_bert(num_labels=1, initializer_range=.4).eval()
    got = head_table(score, texts, tiny_tokenizer).agreement
    assert got.tolist() == pytest.approx(head_table(score, texts, tiny_tokenizer,
                                                    target=lambda o, rows: o.logits[:, 0]).agreement.tolist())


def test_saliency_may_be_any_explanation_by_name(tiny_bert, tiny_tokenizer):
    model = tiny_bert(initializer_range=.4).eval()
    for name, options in (('occlusion', {}), ('attention_integrated_gradients', dict(steps=4))):
        by_name = head_table(model, texts, tiny_tokenizer, saliency=name, target=1, steps=4)
        given = head_table(model, texts, tiny_tokenizer, saliency=lambda m, b: explain(m, b, name, 1, **options).values)
        assert by_name.agreement.tolist() == pytest.approx(given.agreement.tolist(), nan_ok=True)
        assert by_name.agreement.nunique() > 2
        assert by_name.attrs['saliency'] == name


def test_a_list_of_two_is_two_words_and_a_tuple_a_pair(tiny_bert, tiny_tokenizer):
    model = tiny_bert(initializer_range=.4).eval()
    def ends(data): return head_table(model, data, tiny_tokenizer, saliency=None).to_special.tolist()
    assert ends([['dull', 'plot']]) == pytest.approx(ends(['dull plot'])) != pytest.approx(ends([('dull', 'plot')]))


def test_model_and_generators_are_restored_and_no_progress_bar_is_left(tiny_bert, tiny_tokenizer, capsys):
    model = tiny_bert().train()
    before = state(model)
    head_table(model, texts, tiny_tokenizer, patterns=['next'])
    gradient_sizes(model, texts, tiny_tokenizer)
    assert same(state(model), before) and not any(capsys.readouterr())


@pytest.mark.parametrize('options, said', [
    (dict(saliency='lime'), "saliency must be one of 'gradient'"),
    (dict(rows='first'), "rows must be 'ordinary', 'all' or 'pooled'"),
    (dict(target='gold'), "target='gold' for classification needs labels"), (dict(target=2), 'a class from 0 to 1'),
    (dict(target=True), 'a class from 0 to 1'),
    (dict(batch_size=0), 'batch_size must be a positive integer'),
    (dict(layers=[5]), 'has the layers 0 to 1'), (dict(patterns='next'), 'got a string'),
    (dict(patterns=['sideways']), "pattern 'sideways' is unknown"),
    (dict(patterns=[np.eye(9)]), 'pass patterns as {name: matrix}'),
    (dict(data=dict(test=texts)), 'data must be one split, got a dictionary of test'), (dict(data='dull'), 'got str'),
    (dict(data=[]), 'data is empty'),
    (dict(data=datasets.Dataset.from_dict(dict(text=[]))), 'data is empty'),
    (dict(tokenizer=None), 'texts need their tokenizer')])
def test_invalid_arguments_are_rejected(tiny_bert, tiny_tokenizer, options, said):
    with pytest.raises(ValueError, match=said):
        head_table(tiny_bert(), **{**dict(data=texts, tokenizer=tiny_tokenizer), **options})


def test_models_without_attention_or_head_raise_errors(tiny_bert, tiny_tokenizer):
    with pytest.raises(ValueError, match='attention'):
        head_table(small_net('text-lstm', tokenizer=tiny_tokenizer), texts, tiny_tokenizer)
    with pytest.raises(ValueError, match='pass saliency=None'):
        head_table(tiny_bert().base_model, texts, tiny_tokenizer)
    assert 'agreement' not in head_table(tiny_bert().base_model, texts, tiny_tokenizer, saliency=None)


def test_running_means_equal_means_over_everything_without_nan():
    x = np.random.default_rng(0).random((20, 3))
    x[x < .3] = np.nan
    x[:, 2] = np.nan
    r = RunningMean()
    for part in np.split(x, [3, 4, 11]): r.add(part)
    assert r.mean[:2] == pytest.approx(np.nanmean(x[:, :2], 0)) and math.isnan(r.mean[2])


def signals(kind, n=5):
    rng = np.random.default_rng(0)
    name, shape = dict(image=('pixel_values', (1, 28, 28)), series=('values', (6, 3)))[kind]
    features = datasets.Features({name: (datasets.Array3D if kind == 'image' else datasets.Array2D)(shape, 'float32'),
                                  'label': datasets.ClassLabel(names=['a', 'b'])})
    return datasets.Dataset.from_dict({name: rng.normal(size=(n, *shape)).astype('float32'),
                                       'label': [i % 2 for i in range(n)]}, features=features), name, shape

@pytest.mark.parametrize('kind', ['image', 'series'])
@pytest.mark.parametrize('scaled', [False, True])
def test_sizes_of_gradients_equal_autograd_one_example_at_a_time(kind, scaled):
    data, name, shape = signals(kind)
    net = small_net(dict(image='digit-cnn', series='lstm')[kind], shape=shape, num_labels=2)
    for size in ('magnitude', 'signed'):
        frame, want = gradient_sizes(dict(mine=net), data, target='gold', size=size, scaled=scaled, batch_size=2), []
        for row in data.with_format('torch'):
            x = row[name][None].clone().requires_grad_()
            g = torch.autograd.grad(net(**{name: x}).logits[0, int(row['label'])], x)[0][0].double()
            g = g.mean(0) if kind == 'image' else g
            g = g.abs() if size == 'magnitude' else g
            want.append((g/g.abs().max() if scaled else g).flatten().tolist())
        assert list(frame) == ['method', 'example', 'gradient'] and set(frame.method) == {'mine'}
        for i, g in enumerate(want):
            assert frame.gradient[frame.example == i].tolist() == pytest.approx(g, rel=1e-5, abs=5e-6)


def test_gradient_sizes_of_a_text_are_norms_of_ordinary_tokens(tiny_bert, tiny_tokenizer):
    model = tiny_bert(initializer_range=.4).eval()
    frame = gradient_sizes(model, texts, tiny_tokenizer, target=1, scaled=False, batch_size=2)
    assert frame.method.unique().tolist() == ['BertForSequenceClassification']
    for i, row in enumerate(encode_texts(texts, tiny_tokenizer)):
        x = model.get_input_embeddings()(torch.tensor([row['input_ids']])).detach().requires_grad_()
        g = torch.autograd.grad(model(inputs_embeds=x).logits[0, 1], x)[0][0].norm(dim=-1)
        kept = [float(v) for v, s in zip(g, row['special_tokens_mask']) if not s]
        assert frame.gradient[frame.example == i].tolist() == pytest.approx(kept, rel=1e-4)
    with pytest.raises(ValueError, match="size='signed' is for images and series"):
        gradient_sizes(model, texts, tiny_tokenizer, size='signed')
    with pytest.raises(ValueError, match="size must be 'magnitude' or 'signed'"):
        gradient_sizes(model, texts, tiny_tokenizer, size='abs')


def test_an_example_without_gradient_is_nan_and_two_models_are_compared():
    data, name, shape = signals('series', 2)
    net, dead = (small_net('lstm', shape=shape, num_labels=2) for _ in range(2))
    for p in dead.parameters(): p.data.zero_()
    frame = gradient_sizes(dict(live=net, dead=dead), data)
    assert frame.gradient[frame.method == 'dead'].isna().all() and frame.gradient[frame.method == 'live'].notna().all()
    assert (gradient_sizes(dict(dead=dead), data, scaled=False).gradient == 0).all()
    assert frame.groupby(['method', 'example'], sort=False).size().tolist() == [18] * 4
