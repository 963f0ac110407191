"""Faithfulness equals loops from the papers' equations that remove tokens, pixels and cells one example at a
time"""
import math, warnings

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from transformers import GPT2Config, GPT2ForSequenceClassification

from helpers import same, state
from salviz.data.texts import Collator, encode, encode_texts, load_text, model_inputs
from salviz.attribution.explanations import explain
from salviz.analysis import faithfulness as faithfulness_module
from salviz.analysis.faithfulness import (_compacted, _fraction_counts, _mean_embedding, _perturbed, _replacements,
                                          _unit_ranks, accuracy_drop, aup_aur, background_of, decision_flip,
                                          faithfulness, faithfulness_data, faithfulness_table, informative_table,
                                          perturbation_frame, replace_top, weighted_precision_recall)
from salviz.models.nets import small_net
from salviz.data.signals import SignalCollator, encode_signals, load_images, synthetic_series

shares = (.01, .05, .1, .2, .5)
texts = ['the film is fine and warm .', 'dull .',
         'a clumsy plot of this silly story and its empty music with the actor', 'lovely']
pairs = ['a plot', 'the story of one actor is warm', 'cold', 'and this film']


def loud(model, seed=0):
    "Return a random model whose probabilities change when a token is removed"
    with torch.no_grad():
        g = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            if p.dim() > 1: p.copy_(torch.randn(p.shape, generator=g)*.35)
    return model.eval()


def batch_of(tokenizer, texts, pairs=None):
    batch = Collator(tokenizer)(encode_texts(texts, tokenizer, pairs=pairs).to_list())
    types = tokenizer(texts, pairs, padding=True, return_token_type_ids=True)['token_type_ids'] if pairs else None
    return batch | (dict(token_type_ids=torch.tensor(types)) if pairs else {})


def row(batch, i):
    "Return example `i` as plain lists, without its padding"
    n = int(batch['attention_mask'][i].sum())
    return {k: batch[k][i, :n].tolist() for k in ('input_ids', 'token_type_ids', 'is_special', 'word_ids')
            if k in batch}


def slow_probabilities(model, one, keep, how, mask_id=None, mean=None):
    "Return the probabilities of one example at the positions `keep`: one row, without padding"
    ids, types = one['input_ids'], one.get('token_type_ids')
    if how == 'removal':
        ids, types = ([x for i, x in enumerate(ids) if i in keep],
                      types and [x for i, x in enumerate(types) if i in keep])
    if how == 'mask': ids = [x if i in keep else mask_id for i, x in enumerate(ids)]
    extra = dict(token_type_ids=torch.tensor([types])) if types else {}
    with torch.no_grad():
        if how == 'mean_embedding':
            table = model.get_input_embeddings().weight
            e = torch.stack([table[x] if i in keep else mean for i, x in enumerate(ids)])
            return model(inputs_embeds=e[None], **extra).logits[0].double().softmax(-1).tolist()
        return model(input_ids=torch.tensor([ids]), **extra).logits[0].double().softmax(-1).tolist()


def slow_order(one, values, unit):
    "Return lists of positions, most salient unit first; the earlier one for equal values"
    units = {}
    for i, special in enumerate(one['is_special']):
        if special: continue
        units.setdefault(one['word_ids'][i] if unit == 'word' else i, []).append(i)
    scored = [(-sum(values[i] for i in positions), min(positions), positions) for positions in units.values()]
    return [positions for _, _, positions in sorted(scored)]


def slow_faithfulness(model, one, values, unit, how, target=None, aopc='bins', **kw):
    order = slow_order(one, values, unit)
    everywhere = set(range(len(one['input_ids'])))
    special = {i for i in everywhere if one['is_special'][i]}
    def p(keep): return slow_probabilities(model, one, keep, how, **kw)
    whole = p(everywhere)
    y = whole.index(max(whole)) if target is None else target
    comp, suff, flipped = [], [], []
    for share in shares:
        k = max(1, math.ceil(round(share*len(order), 9)))
        top = {i for positions in order[:k] for i in positions}
        without, only = p(everywhere - top), p(special | top)
        comp.append(whole[y] - without[y]); suff.append(whole[y] - only[y])
        flipped.append(float(without.index(max(without)) != whole.index(max(whole))))
    if aopc == 'bins': areas = sum(comp)/len(comp), sum(suff)/len(suff)
    else: areas = sum(comp)/(len(comp) + 1), (sum(suff) + whole[y] - p(special)[y])/(len(suff) + 1)
    return dict(comprehensiveness=comp, sufficiency=suff, flipped=flipped, aopc_comprehensiveness=areas[0],
                aopc_sufficiency=areas[1], probability=whole[y], target=y)


def slow_flip(model, one, values, unit, how, **kw):
    order = slow_order(one, values, unit)
    def decision(keep):
        p = slow_probabilities(model, one, keep, how, **kw)
        return p.index(max(p))
    keep = set(range(len(one['input_ids'])))
    before = decision(keep)
    for k, positions in enumerate(order, 1):
        keep = keep - set(positions)
        if not keep: break
        if decision(keep) != before: return k/len(order), True
    return 1., False


@pytest.mark.sample(4)
@pytest.mark.parametrize('unit', ['token', 'word'])
@pytest.mark.parametrize('how', _replacements)
@pytest.mark.parametrize('paired', [False, True])
def test_faithfulness_equals_a_loop_over_single_rows_without_padding(
    tiny_bert, tiny_tokenizer, how, unit, paired):
    model = loud(tiny_bert(num_labels=3))
    batch = batch_of(tiny_tokenizer, texts, pairs if paired else None)
    # with ties
    values = torch.randn(batch['input_ids'].shape,
                         generator=torch.Generator().manual_seed(1)).round(decimals=1).double()
    fill = dict(mask_token_id=4) if how == 'mask' else {}
    got = faithfulness(model, batch, values, replacement=how, unit=unit, batch_size=3, **fill)
    flip = decision_flip(model, batch, values, how, unit, batch_size=3, **fill)
    mean = model.get_input_embeddings().weight.detach().mean(0)
    for i in range(len(texts)):
        one, v = row(batch, i), values[i].tolist()
        want = slow_faithfulness(model, one, v, unit, how, mask_id=4, mean=mean)
        for name, x in want.items(): assert got[name][i] == pytest.approx(x, abs=2e-5), (name, i)
        assert (flip['flip_fraction'][i], flip['flipped'][i]) == slow_flip(model, one, v, unit, how, mask_id=4,
                                                                           mean=mean)
    assert np.abs(got['comprehensiveness']).max() > .05 and flip['flipped'].any()
    np.testing.assert_array_equal(got['removed'], _fraction_counts(flip['units'], shares))


def test_the_papers_area_includes_an_empty_bin_and_any_class_can_be_measured(tiny_bert, tiny_tokenizer):
    model = loud(tiny_bert(num_labels=3))
    batch = batch_of(tiny_tokenizer, texts) | dict(labels=torch.tensor([2, 0, 1, 1]))
    values = torch.randn(batch['input_ids'].shape, generator=torch.Generator().manual_seed(2)).double()
    for target, classes in (('gold', [2, 0, 1, 1]), (1, [1]*4), (torch.tensor([0, 1, 2, 0]), [0, 1, 2, 0])):
        got = faithfulness(model, batch, values, target, aopc='paper')
        for i, y in enumerate(classes):
            want = slow_faithfulness(model, row(batch, i), values[i].tolist(), 'token', 'removal', y, 'paper')
            for name, x in want.items(): assert got[name][i] == pytest.approx(x, abs=2e-5), (name, i)


def test_an_example_does_not_depend_on_its_batch(tiny_bert, tiny_tokenizer):
    model = loud(tiny_bert())
    batch = batch_of(tiny_tokenizer, texts)
    values = [np.random.default_rng(i).normal(size=int(n)) for i, n in enumerate(batch['attention_mask'].sum(1))]
    together = faithfulness(model, batch, values)
    for i, text in enumerate(texts):
        alone = faithfulness(model, [text], values[i:i + 1], tokenizer=tiny_tokenizer)
        for name in ('comprehensiveness', 'sufficiency', 'aopc_sufficiency'):
            np.testing.assert_allclose(together[name][i], alone[name][0], atol=2e-5)


def decoder(tiny_tokenizer):
    config = GPT2Config(vocab_size=len(tiny_tokenizer), n_embd=32, n_layer=1, n_head=4, n_positions=64, num_labels=2,
                        pad_token_id=0, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(0)
    return loud(GPT2ForSequenceClassification(config))


def test_a_decoder_without_special_tokens_keeps_its_last_unit_in_a_flip(tiny_tokenizer):
    model = decoder(tiny_tokenizer)
    ids = [[10, 22, 37, 41], [30, 12]]
    batch = dict(input_ids=torch.tensor([ids[0], [*ids[1], 0, 0]]), attention_mask=torch.tensor([[1]*4, [1, 1, 0, 0]]),
                 is_special=torch.tensor([[False]*4, [False]*2 + [True]*2]),
                 word_ids=torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]]))
    values = [[.1, .4, .3, .2], [1., 2., 0., 0.]]
    got, flip = faithfulness(model, batch, values), decision_flip(model, batch, values)
    for i in range(2):
        one = dict(input_ids=ids[i], is_special=[False]*len(ids[i]), word_ids=[*range(len(ids[i]))])
        want = slow_faithfulness(model, one, values[i], 'token', 'removal')
        for name in ('comprehensiveness', 'sufficiency'): assert got[name][i] == pytest.approx(want[name], abs=2e-5)
        assert (flip['flip_fraction'][i], flip['flipped'][i]) == slow_flip(model, one, values[i], 'token', 'removal')


def test_a_text_that_would_become_empty_is_nan_and_does_not_stop_the_others(tiny_tokenizer):
    model = decoder(tiny_tokenizer)
    rows = [dict(input_ids=x, attention_mask=[1]*len(x), special_tokens_mask=[0]*len(x), word_ids=[*range(len(x))])
            for x in ([10, 22, 37, 41], [30], [7, 9, 30])]
    batch, values = Collator(tiny_tokenizer)(rows), [[.1, .4, .3, .2], [1.], [2., 1., 3.]]
    got = faithfulness(model, batch, values, fractions=(.5, 1.))
    assert np.isnan(got['comprehensiveness']).tolist() == np.isnan(got['flipped']).tolist() == [
        [False, True], [True, True], [False, True]]
    assert np.isnan(got['aopc_comprehensiveness']).all() and np.isfinite(got['sufficiency']).all()
    for i in (0, 2):
        one = dict(input_ids=rows[i]['input_ids'], is_special=[False]*len(values[i]), word_ids=rows[i]['word_ids'])
        assert got['comprehensiveness'][i,
                                        0] == pytest.approx(
            slow_faithfulness(model, one, values[i], 'token', 'removal')['comprehensiveness'][-1], abs=2e-5)
    assert np.isnan(decision_flip(model, batch, values)['flip_fraction']).tolist() == [False, True, False]
    data = Dataset.from_list(rows)
    with pytest.warns(UserWarning, match=r'1 of 3 examples is excluded from the means .* \(row 1\)'):
        table = faithfulness_table(model, data, dict(mine=values), tiny_tokenizer, batch_size=2)
    each = [faithfulness(model, Collator(tiny_tokenizer)([rows[i]]), [values[i]]) for i in (0, 2)]
    assert table.loc['mine',
                     'comprehensiveness'] == pytest.approx(np.mean([e['aopc_comprehensiveness'][0] for e in each]),
                                                           abs=2e-5)
    assert not table.isna().any().any()
    found = faithfulness_data(model, data, dict(mine=values), tiny_tokenizer)
    with pytest.warns(UserWarning, match='excluded'): frame = perturbation_frame(found)
    assert frame['comprehensiveness'][4] == pytest.approx(np.mean([e['comprehensiveness'][0, 4] for e in each]),
                                                          abs=2e-5)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        whole = faithfulness_table(model, data, dict(mine=values), tiny_tokenizer, replacement='mean_embedding')
    assert not whole.isna().any().any()


def test_magnitude_ranks_by_absolute_values_of_units(tiny_bert, tiny_tokenizer):
    model, batch = loud(tiny_bert(num_labels=3)), batch_of(tiny_tokenizer, texts)
    values = torch.randn(batch['input_ids'].shape, generator=torch.Generator().manual_seed(5)).double()
    for unit in ('token', 'word'):
        got, flip = faithfulness(model, batch, values, unit=unit,
                                 ranking='magnitude'), decision_flip(model, batch, values, unit=unit,
                                                                     ranking='magnitude')
        for i in range(len(texts)):
            one = row(batch, i)
            size = [0.]*len(one['input_ids'])
            for positions in slow_order(one, [0.]*len(size), unit):
                size[positions[0]] = abs(sum(values[i, j].item() for j in positions)) # words by magnitude of the sum
            want = slow_faithfulness(model, one, size, unit, 'removal')
            assert got['comprehensiveness'][i] == pytest.approx(want['comprehensiveness'], abs=2e-5)
            assert flip['flip_fraction'][i] == slow_flip(model, one, size, unit, 'removal')[0]
    assert (_unit_ranks(batch, values)[0] != _unit_ranks(batch, values, ranking='magnitude')[0]).any()


def test_values_may_be_per_token_or_per_position_with_any_padding(tiny_bert, tiny_tokenizer):
    model, batch = loud(tiny_bert()), batch_of(tiny_tokenizer, texts)
    lengths = batch['attention_mask'].sum(1).tolist()
    order = [[*range(n, len(x)), *range(n)] for n, x in zip(lengths, batch['input_ids'])]
    left = {k: v.gather(1, torch.tensor(order)) for k, v in batch.items() if v.dim() == 2}
    values = [np.random.default_rng(i).normal(size=n) for i, n in enumerate(lengths)]
    # values at padding do not count
    wide = np.stack([np.concatenate([np.full(len(o) - len(v), np.nan), v]) for o, v in zip(order, values)])
    for unit in ('token', 'word'):
        want = [[r for r in x if r >= 0] for x in _unit_ranks(batch, values, unit)[0].tolist()]
        for given in (values, wide):
            assert [[r for r in x if r >= 0] for x in _unit_ranks(left, given, unit)[0].tolist()] == want
    got, there = faithfulness(model, left, values, 1), faithfulness(model, batch, values, 1)
    # the remaining tokens move up and are padded on the right, so the text is the same
    for k in ('comprehensiveness', 'sufficiency'):
        np.testing.assert_allclose(got['probability'][:, None] - got[k], there['probability'][:, None] - there[k],
                                   atol=2e-5)
    told = explain(model, batch, 'input_x_gradient')
    for unit in ('token', 'word'):
        assert torch.equal(_unit_ranks(batch, told, unit)[0], _unit_ranks(batch, told.values, unit)[0])
    for n in (lengths[0] - 1, lengths[0] + 1, batch['input_ids'].shape[1] + 1):
        with pytest.raises(ValueError,
                           match=f'one number for each of its {lengths[0]} tokens .including special tokens., or one '
                           f'for each of the {len(order[0])} positions'):
            _unit_ranks(batch, [np.zeros(n), *values[1:]])
    with pytest.raises(ValueError, match="must explain one class per example, got an explanation with target='each'"):
        _unit_ranks(batch, explain(model, batch, 'input_x_gradient', 'each'))


@pytest.mark.filterwarnings("ignore:.*longer than 64 tokens")
def test_long_texts_are_truncated_as_in_explain_and_a_list_is_words(tiny_bert, tiny_tokenizer):
    model = loud(tiny_bert())
    long = ['the film is fine and warm . '*40]
    told = explain(model, long, 'input_x_gradient', tokenizer=tiny_tokenizer)
    got = faithfulness(model, long, told, tokenizer=tiny_tokenizer)
    assert got['removed'][0, -1] == math.ceil((len(told.examples()[0]) - 2)/2)
    table = faithfulness_table(model, long, ['input_x_gradient'], tiny_tokenizer, flips=False)
    assert table.loc['input_x_gradient',
                     'comprehensiveness'] == pytest.approx(got['aopc_comprehensiveness'][0], abs=2e-5)
    pair, words = ('the film', 'is warm'), ['the', 'film']
    for x in (pair, words):
        told = explain(model, [x], 'input_x_gradient', tokenizer=tiny_tokenizer)
        assert decision_flip(model, [x], told,
                             tokenizer=tiny_tokenizer)['units'][0] == len(told.examples()[0]) - (3 if x is pair else 2)


def test_passes_respect_batch_size_and_the_model_is_restored(tiny_bert, tiny_tokenizer):
    model = loud(tiny_bert()).train()
    rows = []
    handle = model.register_forward_pre_hook(lambda m, args, kw: rows.append(len(kw['input_ids'])), with_kwargs=True)
    batch = batch_of(tiny_tokenizer, texts)
    values, before = torch.rand(batch['input_ids'].shape), state(model)
    first = faithfulness(model, batch, values, batch_size=2)
    assert max(rows) == 2
    decision_flip(model, batch, values, batch_size=2)
    assert max(rows) == 2 and same(before, state(model))
    handle.remove()
    np.testing.assert_allclose(faithfulness(model, batch, values, batch_size=50)['sufficiency'], first['sufficiency'],
                               atol=2e-5)


def test_an_example_that_has_flipped_is_not_run_again(tiny_bert, tiny_tokenizer):
    model, batch = loud(tiny_bert(num_labels=3)), batch_of(tiny_tokenizer, texts)
    values, rows = torch.rand(batch['input_ids'].shape, generator=torch.Generator().manual_seed(3)), []
    handle = model.register_forward_pre_hook(lambda m, args, kw: rows.append(len(kw['input_ids'])), with_kwargs=True)
    flip = decision_flip(model, batch, values)
    handle.remove()
    assert flip['flipped'].any() and sum(rows) == len(texts) + flip['removed'].sum()


def test_words_are_ranked_by_the_sum_of_their_tokens_or_by_their_values(tiny_tokenizer):
    batch = batch_of(tiny_tokenizer, ['lovely film', 'the clumsy plot'])
    values = torch.rand(batch['input_ids'].shape, generator=torch.Generator().manual_seed(0)).double()
    words = [[sum(values[i, j].item() for j in range(values.shape[1]) if batch['word_ids'][i, j] == w)
              for w in range(int(batch['word_ids'][i].max()) + 1)] for i in range(2)]
    by_token, by_word = _unit_ranks(batch, values, 'word'), _unit_ranks(batch, words, 'word')
    assert torch.equal(by_token[0], by_word[0]) and by_token[1].tolist() == [2, 3]
    assert (by_token[0][batch['is_special']] == -1).all()
    ragged = [values[i, :int(batch['attention_mask'][i].sum())].numpy() for i in range(2)]
    assert torch.equal(_unit_ranks(batch, ragged)[0], _unit_ranks(batch, values)[0])
    assert _unit_ranks(batch, np.zeros(values.shape))[0][0].tolist() == [-1,
                                                                        *range(int((~batch['is_special'][0]).sum())),
                                                                        *[-1]*int(batch['is_special'][0, 1:].sum())]


def test_removal_moves_tokens_and_types_up_and_pads_on_the_right():
    inputs = dict(input_ids=torch.tensor([[0, 0, 2, 5, 6, 3]]), attention_mask=torch.tensor([[0, 0, 1, 1, 1, 1]]),
                  token_type_ids=torch.tensor([[0, 0, 0, 1, 1, 1]]))
    small = _compacted({k: v.repeat(2, 1) for k, v in inputs.items()},
                      torch.tensor([[0, 0, 1, 0, 1, 1], [0, 0, 1, 0, 0, 1]]).bool(), 9)
    assert small['input_ids'].tolist() == [[2, 6, 3], [2, 3, 9]]
    assert small['token_type_ids'].tolist() == [[0, 1, 1], [0, 1, 0]]
    assert small['attention_mask'].tolist() == [[1, 1, 1], [1, 1, 0]] and small['attention_mask'].dtype == torch.int64


def test_the_mean_embedding_is_that_of_the_table_or_of_a_corpus(tiny_bert, tiny_tokenizer):
    model, corpus = tiny_bert(), encode_texts(texts, tiny_tokenizer)
    table = model.get_input_embeddings().weight.detach().double()
    assert torch.allclose(_mean_embedding(model).double(), sum(table)/len(table), atol=1e-6)
    ids = [i for x in corpus['input_ids'] for i in x]
    mean = _mean_embedding(model, corpus)
    assert torch.allclose(mean.double(), sum(table[i] for i in ids)/len(ids), atol=1e-6)
    batch = batch_of(tiny_tokenizer, texts)
    values = torch.rand(batch['input_ids'].shape).double()
    got = faithfulness(loud(model), batch, values, replacement='mean_embedding', mean=mean)
    want = slow_faithfulness(model, row(batch, 2), values[2].tolist(), 'token', 'mean_embedding', mean=mean)
    assert got['comprehensiveness'][2] == pytest.approx(want['comprehensiveness'], abs=2e-5)


def test_bins_are_fractions_rounded_up():
    for n in range(1, 60):
        expected = [max(1, -(-n*int(s*100)//100)) for s in (.01, .05, .1, .2, .5)]
        assert _fraction_counts([n], shares)[0].tolist() == expected
    for bad in ((), (0,), (1.1,), (.1, -.2)):
        with pytest.raises(ValueError, match='fractions must be above 0'): _fraction_counts([5], bad)


def test_invalid_arguments_are_rejected_by_name(tiny_bert, tiny_tokenizer):
    model, batch = tiny_bert(), batch_of(tiny_tokenizer, texts)
    values = torch.rand(batch['input_ids'].shape)
    cases = [
        (lambda: faithfulness(model, batch, values[:2]), 'must contain one array for each of the 4 examples, got 2'),
        (lambda: faithfulness(model, batch, [[1.]]*4), 'values of example 0 must contain one number for each of its'),
        (lambda: faithfulness(model, batch, values/0), 'values of example 0 must be finite, got inf'),
        (lambda: faithfulness(model, batch, values, 'loudest'),
         "target must be 'predicted', 'gold', a class, or an int64 tensor with one class per example, got 'loudest'"),
        (lambda: faithfulness(model, batch, values, 2), 'target must be a class of this model, from 0 to 1, got 2'),
        (lambda: faithfulness(model, batch, values, 'gold'), "target='gold' needs one class per example"),
        (lambda: faithfulness(model, batch, values, 'each'), 'measures the probability of one class for each example'),
        (lambda: faithfulness(model, batch, values, mean=torch.zeros(32)),
         "mean applies only to replacement='mean_embedding', got replacement='removal'"),
        (lambda: decision_flip(model, batch, values, 'mean_embedding', mask_token_id=4),
         "mask_token_id applies only to replacement='mask', got replacement='mean_embedding'"),
        (lambda: faithfulness(model, batch, values, replacement='mask', mask_token_id=10**6),
         'mask_token_id must be one of the'),
        (lambda: decision_flip(model, batch, values, 'mask', mask_token_id=-1), 'mask_token_id must be one of the'),
        (lambda: faithfulness(model, batch, values, replacement='mean_embedding', mean=torch.zeros(3)),
         'mean must be one embedding of'),
        (lambda: decision_flip(model, batch, values, ranking='abs'),
         "ranking must be 'signed' or 'magnitude', got 'abs'"),
        (lambda: _unit_ranks(dict(pixel_values=torch.zeros(1, 1, 4, 4)), values[:1]),
         'use accuracy_drop for images and series'),
        (lambda: faithfulness_table(model, texts, ['gradient_norm'], tiny_tokenizer, target='each'),
         'measures the probability of one class for each example'),
        (lambda: faithfulness_table(model, texts, ['gradient_norm'], tiny_tokenizer,
                                    target=lambda outputs, rows: outputs.logits[:, 0]), 'one class for each example'),
        (lambda: faithfulness_table(model, [], ['gradient_norm'], tiny_tokenizer), 'data is empty'),
        (lambda: faithfulness(model, batch, values, replacement='mask'), "replacement='mask' needs a mask token"),
        (lambda: faithfulness(model, batch, values, replacement='noise'),
         "replacement must be 'removal', 'mask' or 'mean_embedding', got 'noise'"),
        (lambda: faithfulness(model, batch, values, unit='letter'), "unit must be 'token' or 'word', got 'letter'"),
        (lambda: faithfulness(model, batch, values, aopc='area'), "aopc must be 'bins' or 'paper', got 'area'"),
        (lambda: faithfulness(model, {k: v for k, v in batch.items() if k != 'is_special'}, values),
         'the batch has no is_special'),
        (lambda: faithfulness(model, batch, values, batch_size=0), 'batch_size must be a positive integer'),
        (lambda: faithfulness(model, texts, values), 'texts need their tokenizer'),
        (lambda: faithfulness(tiny_bert(num_labels=1), batch, values), 'has logits of shape [4, 1]'),
        (lambda: _unit_ranks(batch | dict(is_special=torch.ones_like(batch['is_special'])), values),
         'example 0 has no token to remove')]
    for call, said in cases:
        with pytest.raises(ValueError) as e: call()
        assert said in str(e.value)


def test_a_table_uses_the_given_class_of_each_example_across_batches(tiny_bert, tiny_tokenizer, tiny_data):
    data = tiny_data['test']
    y = torch.arange(len(data)) % 3
    found = faithfulness_data(loud(tiny_bert(num_labels=3)), data, ['gradient_norm'], tiny_tokenizer, target=y,
                              flips=False, batch_size=4)
    assert found['random']['target'].tolist() == y.tolist() and len(data) > 4


def test_the_table_is_the_mean_over_all_examples_with_a_random_row(tiny_bert, tiny_tokenizer, tiny_data):
    model, data = loud(tiny_bert()), tiny_data['test']
    encoded = encode(data, tiny_tokenizer)
    rng = np.random.default_rng(0)
    mine = [rng.normal(size=n) for n in encoded['length']]
    table = faithfulness_table(model, data,
                               {'mine': mine, 'gradient': 'gradient_norm', 'abs': dict(method='gradient_abs')},
                               tiny_tokenizer, unit='word', batch_size=5, seed=3)
    assert table.index.tolist() == ['mine', 'gradient', 'abs', 'random'] and table.index.name == 'method'
    assert table.columns.tolist() == ['comprehensiveness', 'sufficiency', 'decision_flip']
    assert not table.isna().any().any()
    batch = Collator(tiny_tokenizer)(encoded.to_list())
    whole, flip = faithfulness(model, batch, mine, unit='word'), decision_flip(model, batch, mine, unit='word')
    np.testing.assert_allclose(table.loc['mine'],
                               [whole['aopc_comprehensiveness'].mean(), whole['aopc_sufficiency'].mean(),
                                flip['flip_fraction'].mean()], atol=2e-5)
    found = faithfulness_data(model, encoded, {'mine': mine}, tiny_tokenizer, unit='word', batch_size=5, seed=3,
                              flips=False, fractions=(.2, .6))
    again = faithfulness_data(model, data, {'mine': mine}, tiny_tokenizer, unit='word', batch_size=5, seed=3,
                              flips=False, fractions=(.2, .6))
    assert [*found] == ['mine', 'random'] and 'flip_fraction' not in found['mine']
    # the same seed
    np.testing.assert_array_equal(found['random']['comprehensiveness'], again['random']['comprehensiveness'])
    frame = perturbation_frame(found)
    assert frame[['method', 'share']].values.tolist() == [['mine', .2], ['mine', .6], ['random', .2], ['random', .6]]
    np.testing.assert_allclose(frame['sufficiency'][1], found['mine']['sufficiency'][:, 1].mean())
    np.testing.assert_allclose(frame['flipped'][2], found['random']['flipped'][:, 0].mean())
    with pytest.raises(ValueError, match='data must be one split'):
        faithfulness_table(model, tiny_data, ['random'], tiny_tokenizer)


@pytest.mark.slow
def test_an_interrupted_table_resumes_from_its_folder(tiny_bert, tiny_tokenizer, tiny_data, tmp_path, monkeypatch):
    model, data, explained = loud(tiny_bert()), tiny_data['test'], []
    mine = [np.arange(n, dtype=float) for n in encode(data, tiny_tokenizer)['length']]
    methods = {'mine': mine, 'ig': dict(method='integrated_gradients', steps=3)}
    def table(folder=None, model=model, methods=methods, **kw):
        return faithfulness_table(model, data, methods, tiny_tokenizer, batch_size=4, folder=folder, **kw)
    whole, explain_data, per_method = table(), faithfulness_module.explain_data, -(-len(data)//4)
    def counted(*args, **kw):
        explained.append(kw['method'])
        if len(explained) == 2: raise KeyboardInterrupt
        return explain_data(*args, **kw)
    monkeypatch.setattr(faithfulness_module, 'explain_data', counted)
    with pytest.raises(KeyboardInterrupt): table(tmp_path/'kept')
    pd.testing.assert_frame_equal(table(tmp_path/'kept'), whole)
    assert explained.count('integrated_gradients') == per_method + 1 and explained.count('random') == per_method
    explained[:] = [None]*2
    pd.testing.assert_frame_equal(table(tmp_path/'kept'), whole)
    assert explained == [None]*2, 'nothing is explained twice'
    more = table(tmp_path/'kept', methods={**methods, 'gradient_norm': 'gradient_norm'})
    assert explained[2:] == ['gradient_norm']*per_method
    pd.testing.assert_frame_equal(more.drop('gradient_norm'), whole)
    for what, other in dict(weights=dict(model=loud(tiny_bert(), seed=1)), settings=dict(unit='word'),
                            target=dict(target='gold'), flips=dict(flips=False), seed=dict(seed=1)).items():
        with pytest.raises(ValueError, match=f'has results for different values of {what}; pass another folder'):
            table(tmp_path/'kept', **other)


# images

def slow_replaced(image, saliency, share, background):
    c, h, w = image.shape
    cells = sorted((-saliency[i][j], i*w + j) for i in range(h) for j in range(w))
    out = image.copy()
    for _, at in cells[:math.ceil(round(share*h*w, 9))]: out[:, at//w, at % w] = background
    return out


def test_the_most_salient_pixels_are_replaced_in_all_channels():
    rng = np.random.default_rng(0)
    x, s = rng.normal(size=(3, 2, 4, 5)).astype(np.float32), rng.normal(size=(3, 4, 5)).round(1)
    for share in (0, .05, .1, .33, 1):
        want = np.stack([slow_replaced(a, b, share, np.float32(-.4)) for a, b in zip(x, s)])
        np.testing.assert_array_equal(replace_top(torch.tensor(x), s, share, -.4).numpy(), want)
    cells, values = rng.normal(size=(2, 3, 4)).astype(np.float32), rng.normal(size=(2, 3, 4))
    want = np.stack([slow_replaced(a[None], b, .5, np.float32(0))[0] for a, b in zip(cells, values)])
    np.testing.assert_array_equal(replace_top(torch.tensor(cells), values, .5).numpy(), want)
    with pytest.raises(ValueError, match='fraction must be between 0 and 1'): replace_top(torch.tensor(x), s, 1.5)


def images(n=30):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 8, 8)).astype(np.uint8)
    return load_images(dict(train=(x, np.arange(n) % 3), test=(x[:11], np.arange(11) % 3)), normalise='z-score')


def test_the_accuracy_drop_equals_a_loop_over_images():
    data = images()
    net = loud(small_net('digit-cnn', data, filters=(3, 4), hidden_size=8))
    values = [np.random.default_rng(i).normal(size=(8, 8)) for i in range(11)]
    some = (0, .1, .5, 1.)
    black = background_of(data['test'])
    x = SignalCollator()([r for r in encode_signals(data['test'])])
    restored = black*np.asarray(1.) # black: no source value is below it
    assert restored.reshape(-1)[0] <= float(x['pixel_values'].min())
    for ranking in ('signed', 'magnitude'):
        got = accuracy_drop(net, data['test'], dict(mine=values, gradient='gradient'), some, ranking=ranking,
                            batch_size=4, seed=5)
        assert got[['method', 'share']].values.tolist() == [[m, s] for m in ('mine', 'gradient', 'random')
                                                            for s in some]
        for share in some:
            right = 0
            for i in range(11):
                s = values[i] if ranking == 'signed' else np.abs(values[i])
                image = slow_replaced(x['pixel_values'][i].numpy(), s, share, black.reshape(-1)[0])
                with torch.no_grad():
                    right += int(net(pixel_values=torch.tensor(image)[None]).logits.argmax()) == int(x['labels'][i])
            assert got.set_index(['method', 'share'])['accuracy']['mine', share] == pytest.approx(right/11)
        whole, nothing = (got[got['share'] == s]['accuracy'] for s in (0, 1.))
        assert whole.nunique() == nothing.nunique() == 1
    grey = accuracy_drop(net, encode_signals(data['test']), dict(mine=values), (1.,), background=0.)
    with torch.no_grad(): said = int(net(pixel_values=torch.zeros(1, 1, 8, 8)).logits.argmax())
    assert grey['accuracy'][0] == pytest.approx(sum(int(y) == said for y in x['labels'])/11)
    with pytest.raises(ValueError, match="ranking must be 'signed' or 'magnitude'"):
        accuracy_drop(net, data['test'], [], ranking='abs')
    with pytest.raises(ValueError, match='accuracy_drop needs labels'):
        accuracy_drop(net, data['test'].remove_columns('label'), [])
    with pytest.raises(ValueError, match='data is empty'): accuracy_drop(net, data['test'].select([]), ['gradient'])
    with pytest.raises(ValueError, match="target='each' gives one attribution per class"):
        accuracy_drop(net, data['test'], ['gradient'], target='each')
    with pytest.raises(ValueError, match='data must be images or series'):
        accuracy_drop(net, encode_texts, ['gradient'])
    for bad in ([], [2], [.1, -.1]):
        with pytest.raises(ValueError, match='fractions must be between 0 and 1'):
            accuracy_drop(net, data['test'], ['gradient'], bad)
    single = accuracy_drop(net, data['test'], dict(mine=values), some)
    with pytest.warns(DeprecationWarning, match='fractions='):
        assert accuracy_drop(net, data['test'], dict(mine=values), shares=some).equals(single)
    assert accuracy_drop(net.double(), data['test'], dict(mine=values), some).equals(single)


def test_black_is_the_zero_of_the_source_and_zero_where_the_source_is_unknown(tiny_data):
    x = np.full((20, 4, 4), 10, np.uint8)*np.arange(20, dtype=np.uint8)[:, None, None]  # one of the images is all black
    for normalise in ('z-score', 'min-max', 'none'):
        data = load_images(dict(train=(x, np.arange(20) % 2)), normalise=normalise)
        black = min(float(SignalCollator()([r for r in part])['pixel_values'].min())
                    for part in encode_signals(data).values())
        np.testing.assert_allclose(background_of(data['test']), black, atol=1e-6)
    assert background_of(tiny_data['test']) == 0


# series

def slow_weighted(saliency, informative, shares, positives):
    "Return precision and recall, computed for one sample and one fraction at a time"
    precision, recall = [], []
    for d in shares:
        ps, rs = [], []
        for s, truth in zip(saliency, informative):
            s, truth = [abs(v) for row in s for v in row], [t for row in truth for t in row]
            low, high = min(s), max(s)
            s = [(v - low)/(high - low) if high > low else 0. for v in s]
            order = sorted(range(len(s)), key=lambda i: (-s[i], i))
            if positives == 'cells': chosen = order[:math.ceil(round(d*len(s), 9))]
            else:
                chosen, total = [], 0.
                for i in order:
                    chosen.append(i); total += s[i]
                    if total >= d*sum(s) - 1e-12: break
            tp = sum(s[i] for i in chosen if truth[i])
            mass, box = sum(s[i] for i in chosen), sum(v for v, t in zip(s, truth) if t)
            if mass > 0: ps.append(tp/mass)
            if box > 0: rs.append(tp/box)
        precision.append(sum(ps)/len(ps)); recall.append(sum(rs)/len(rs))
    return precision, recall


@pytest.mark.parametrize('positives', ['cells', 'saliency'])
def test_weighted_precision_and_recall_equal_a_loop_over_samples_and_fractions(positives):
    rng = np.random.default_rng(0)
    saliency, box = rng.normal(size=(6, 5, 7)), rng.random((6, 5, 7)) < .3
    saliency[1] = saliency[1].round(0)   # ties
    saliency[2] = 3.                     # constant: no saliency, excluded
    box[3] = False                       # no informative cells
    some = (.1, .2, .45, .9)
    got, want = weighted_precision_recall(saliency, box, some,
                                          positives), slow_weighted(saliency.tolist(), box.tolist(), some, positives)
    np.testing.assert_allclose(got[0], want[0]); np.testing.assert_allclose(got[1], want[1])


def test_areas_use_the_trapezoid_rule_and_a_perfect_saliency_has_eight_tenths():
    rng = np.random.default_rng(1)
    box = np.zeros((4, 10, 10), bool); box[:, 2:4, 3:7] = True
    perfect = aup_aur(box.astype(float), box)
    # 8 of 100 cells are in the first 10 %
    assert perfect['aup'] == pytest.approx(.8) and perfect['aur'] == pytest.approx(.8)
    saliency = rng.random(box.shape)
    d = [i/10 for i in range(1, 10)]
    p, r = slow_weighted(saliency.tolist(), box.tolist(), d, 'cells')
    got = aup_aur(saliency, box, draws=400)
    assert got['aup'] == pytest.approx(sum(.1*(a + b)/2 for a, b in zip(p, p[1:])))
    assert got['aur'] == pytest.approx(sum(.1*(a + b)/2 for a, b in zip(r, r[1:])))
    assert got['aup_difference'] == pytest.approx(got['aup'] - got['aup_random'])
    assert got['aur_difference'] == pytest.approx(got['aur'] - got['aur_random'])
    assert got['aup_random'] == pytest.approx(.8*.08, abs=.004)  # the fraction of the box, at every d


def test_the_shuffled_baseline_permutes_the_values():
    rng = np.random.default_rng(2)
    box = rng.random((5, 8, 8)) < .25
    peaked = np.where(box, 1., 0.)
    shuffled, uniform = (aup_aur(peaked, box, baseline=b, draws=200) for b in ('shuffled', 'uniform'))
    assert shuffled['aup'] == uniform['aup'] and shuffled['aup_random'] == pytest.approx(.8*box.mean(), abs=.01)
    assert shuffled['aur_random'] > uniform['aur_random'] + .05  # a quarter of the cells has all the saliency
    assert aup_aur(peaked, box, seed=1) == aup_aur(peaked, box, seed=1) != aup_aur(peaked, box, seed=2)
    signed = aup_aur(np.where(box, -1., 0.), box), aup_aur(np.where(box, -1., 0.), box, absolute=False)
    assert signed[0]['aup'] == shuffled['aup'] and signed[1]['aup'] == 0.


def test_invalid_series_are_rejected():
    for call, said in ((lambda: aup_aur(np.zeros((2, 3)), np.zeros((2, 4))), 'of one shape'),
                       (lambda: aup_aur(np.full((2, 3), np.nan), np.zeros((2, 3))), 'must be finite'),
                       (lambda: aup_aur(np.zeros((2, 3)), np.full((2, 3), 2)), 'must be flags'),
                       (lambda: aup_aur(np.zeros((2, 3)), np.zeros((2, 3)), positives='mass'), "positives must be"),
                       (lambda: aup_aur(np.zeros((2, 3)), np.zeros((2, 3)), baseline='zero'), 'baseline must be'),
                       (lambda: aup_aur(np.zeros((2, 3)), np.zeros((2, 3)), draws=0), 'draws must be')):
        with pytest.raises(ValueError, match=said): call()


def test_the_table_of_series_reads_the_informative_cells_of_the_data():
    data = synthetic_series('small-middle', n_train=10, n_validation=2, n_test=6, seed=0)
    net = small_net('tcn', data, seed=1)
    box = np.array(data['test']['informative'])
    noise = np.random.default_rng(0).random(box.shape)
    table = informative_table(net, data['test'],
                              {'box': list(box.astype(float)), 'noise': list(noise), 'gradient': 'gradient'})
    assert table.index.tolist() == ['box', 'noise', 'gradient', 'random']
    assert table.loc['box', 'aup'] == pytest.approx(.8)
    want = aup_aur(noise, box, seed=1)
    assert table.loc['noise'].tolist() == [want[c]
                                           for c in table.columns] == [want[c]
                                                                       for c in (
        'aup', 'aur', 'aup_difference', 'aur_difference')]
    with pytest.raises(ValueError, match='informative_table needs data from synthetic_series'):
        informative_table(net, data['test'].remove_columns('informative'), [])
    with pytest.raises(ValueError, match='data must be one split'): informative_table(net, data, [])


def test_faithfulness_runs_on_a_real_split_of_the_packaged_sentences(tiny_bert, tiny_tokenizer):
    data = load_text('movie-sentences')['test'].select(range(5))
    found = faithfulness_data(loud(tiny_bert(num_labels=5)), data, ['random'], tiny_tokenizer, target='gold',
                              flips=False)
    assert found['random']['target'].tolist() == data['label']
    assert np.isfinite(found['random']['aopc_sufficiency']).all()
    run = _perturbed(tiny_bert(num_labels=5), Collator(tiny_tokenizer)(encode(data, tiny_tokenizer).to_list()))
    n = max(encode(data, tiny_tokenizer)['length'])
    assert run(torch.arange(5), torch.ones(5, n).bool()).sum(-1).tolist() == pytest.approx([1.]*5)
    assert set(model_inputs(Collator(tiny_tokenizer)(encode(data, tiny_tokenizer).to_list()))) >= {
        'input_ids', 'attention_mask'}
