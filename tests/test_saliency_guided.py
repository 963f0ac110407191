"Saliency guided training against loops written from Algorithm 1 and equations 2 to 4 of the paper"
import math
import random
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

from helpers import same, state
from salviz.methods.base import Progress
from salviz.methods.saliency_guided import SaliencyGuided, consistency_loss, mask_words

PAD, CLS, SEP, MASK = 0, 1, 2, 3


def tiny(kind='bert', dropout=0.):
    common = dict(vocab_size=100, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, num_labels=3, pad_token_id=PAD,
                  initializer_range=.4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == 'llama': return LlamaForSequenceClassification(LlamaConfig(**common)).double().eval()
        return BertForSequenceClassification(BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **common)).double().eval()


def random_rows(seed, count=6, pairs=True):
    "Sentences or pairs of words with one to three pieces, between special tokens"
    rng, rows = random.Random(seed), []
    for i in range(count):
        ids, word_ids, segments, word = [CLS], [-1], [-1], 0
        for s in range(rng.choice([1, 2]) if pairs else 1):
            for _ in range(rng.randint(1, 6)):
                pieces = rng.randint(1, 3)
                ids += [rng.randint(10, 99) for _ in range(pieces)]
                word_ids, segments, word = word_ids + [word]*pieces, segments + [s]*pieces, word + 1
            ids, word_ids, segments = ids + [SEP], word_ids + [-1], segments + [-1]
        rows.append(dict(ids=ids, word_ids=word_ids, segments=segments, example_id=i, label=i % 3))
    return rows


def collate(rows, side='right', length=None):
    n = length or max(len(r['ids']) for r in rows)
    def padded(columns, fill):
        pads = [[fill]*(n - len(x)) for x in columns]
        return torch.tensor([x + pad if side == 'right' else pad + x for x, pad in zip(columns, pads)])
    def column(name): return [r[name] for r in rows]
    word_ids = padded(column('word_ids'), -1)
    return dict(input_ids=padded(column('ids'), PAD), attention_mask=padded([[1]*len(x) for x in column('ids')], 0), word_ids=word_ids,
                is_special=word_ids < 0, segments=padded(column('segments'), -1), example_id=torch.tensor(column('example_id')),
                labels=torch.tensor(column('label')))


def reference_mask(ids, saliency, word_ids, segments, share, first, ranking):
    "One sentence (or pair) by loops: which words are low, what each is replaced by"
    words = [] # (positions, segment)
    for i, w in enumerate(word_ids):
        if w < 0: continue
        if words and word_ids[words[-1][0][-1]] == w and words[-1][1] == segments[i] and words[-1][0][-1] == i - 1: words[-1][0].append(i)
        else: words.append(([i], segments[i]))
    scores = [sum(saliency[i] for i in at) for at, _ in words]
    if ranking == 'magnitude': scores = [abs(s) for s in scores]
    k = int(len(words)*Fraction(str(share)))
    low = set(sorted(range(len(words)), key=lambda w: (scores[w], w))[:k])
    out, is_masked = list(ids), [False]*len(ids)
    for w in low:
        at, segment = words[w]
        def separated(a, b): return any(segments[i] != segment for i in range(min(a, b), max(a, b) + 1))
        def kept(v): return v not in low and not separated(words[v][0][0], at[0])
        before = [v for v in range(w - 1, -1, -1) if kept(v)]
        after = [v for v in range(w + 1, len(words)) if kept(v)]
        if before: pieces = [ids[i] for i in words[before[0]][0]]
        elif first == 'next' and after: pieces = [ids[i] for i in words[after[0]][0]]
        elif first == 'mask': pieces = [MASK]
        else: continue
        for j, i in enumerate(at): out[i], is_masked[i] = pieces[j % len(pieces)], True
    return out, is_masked


@pytest.mark.parametrize('first', ['next', 'keep', 'mask'])
@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
@pytest.mark.parametrize('share', [.1, .3, .5, .7, .95])
@pytest.mark.parametrize('side', ['right', 'left'])
def test_the_masked_copy_is_that_of_a_loop_over_words(share, ranking, first, side):
    for seed in range(10):
        rows = random_rows(seed)
        batch = collate(rows, side)
        saliency = torch.randint(-3, 4, batch['input_ids'].shape, generator=torch.Generator().manual_seed(seed)).double() # many ties
        ids, is_masked = mask_words(batch['input_ids'], saliency, batch['word_ids'], batch['segments'], share, first, ranking, MASK)
        for i, r in enumerate(rows):
            at = batch['attention_mask'][i].nonzero().squeeze(1)
            expected, masked = reference_mask(r['ids'], saliency[i, at].tolist(), r['word_ids'], r['segments'], share, first, ranking)
            assert ids[i, at].tolist() == expected and is_masked[i, at].tolist() == masked
        assert not is_masked[batch['is_special']].any()
        assert torch.equal(ids[batch['is_special']], batch['input_ids'][batch['is_special']])


def test_words_of_a_pair_without_a_separator_between_them_stay_in_their_sentence():
    ids, words, segments = torch.tensor([[11, 12, 13, 14]]), torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 0, 1, 1]])
    masked, _ = mask_words(ids, torch.tensor([[5., 6., 1., 7.]]), words, segments, .25)
    assert masked.tolist() == [[11, 12, 14, 14]]
    restarted = torch.tensor([[0, 1, 1, 2]]) # the same word id on both sides of the border is two words
    assert mask_words(ids, torch.tensor([[5., 6., 1., 7.]]), restarted, segments, .25)[0].tolist() == [[11, 12, 14, 14]]


def test_a_separator_inside_one_segment_separates_too():
    ids, words, segments = torch.tensor([[11, SEP, 13, 14]]), torch.tensor([[0, -1, 1, 2]]), torch.tensor([[0, -1, 0, 0]])
    assert mask_words(ids, torch.tensor([[5., 0., 1., 7.]]), words, segments, .34)[0].tolist() == [[11, SEP, 14, 14]]


def test_pieces_are_repeated_or_cut_to_fill_the_slot():
    words, segments = torch.tensor([[0, 0, 0, 1, 2, 2, 2, 2]]), torch.zeros(1, 8, dtype=torch.int64)
    ids = torch.tensor([[11, 12, 13, 21, 31, 32, 33, 34]])
    low = lambda w: torch.where(words == w, -1., 1.).double()
    assert mask_words(ids, low(2), words, segments, .34)[0].tolist() == [[11, 12, 13, 21, 21, 21, 21, 21]]
    assert mask_words(ids, low(1), words, segments, .34)[0].tolist() == [[11, 12, 13, 11, 31, 32, 33, 34]]
    assert mask_words(ids, low(0), words, segments, .34)[0].tolist() == [[21, 21, 21, 21, 31, 32, 33, 34]]
    ids, words = ids[:, [0, 1, 2, 4, 5, 6, 7]], words[:, [0, 1, 2, 4, 5, 6, 7]]
    assert mask_words(ids, low(2), words, segments[:, :7], .5)[0].tolist() == [[11, 12, 13, 11, 12, 13, 11]]


@pytest.mark.parametrize('share', [.1, .29, .3, .5, .57, .9])
def test_the_number_of_masked_words_is_the_exact_share_rounded_down(share):
    for n in range(1, 120):
        words = torch.arange(n)[None]
        _, masked = mask_words(words + 10, torch.randn(1, n), words, torch.zeros_like(words), share, 'mask', mask_token_id=MASK)
        assert masked.sum().item() == int(n*Fraction(str(share)))


def test_texts_with_one_word_or_none_stay_as_they_are():
    batch = collate([dict(ids=[CLS, SEP], word_ids=[-1, -1], segments=[-1, -1], example_id=0, label=0),
                     dict(ids=[CLS, 11, SEP], word_ids=[-1, 0, -1], segments=[-1, 0, -1], example_id=1, label=0)])
    for first in ('next', 'keep', 'mask'):
        ids, masked = mask_words(batch['input_ids'], torch.zeros(2, 3), batch['word_ids'], batch['segments'], .9, first, mask_token_id=MASK)
        assert torch.equal(ids, batch['input_ids']) and not masked.any()


def reference_kl(a, b):
    "Eq. 2 for one sample's logits, in loops"
    p, q = [[math.exp(x)/sum(math.exp(y) for y in row) for x in row] for row in (a, b)]
    return sum(x*math.log(x/y) for x, y in zip(p, q))


def test_the_consistency_term_is_equation_two_for_each_example():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 4, generator=g).double(), torch.randn(5, 4, generator=g).double()
    expected = [reference_kl(x, y) for x, y in zip(a.tolist(), b.tolist())]
    np.testing.assert_allclose(consistency_loss(a, b).numpy(), expected, rtol=1e-12)
    assert (consistency_loss(a, a) == 0).all()
    assert consistency_loss(a.bfloat16(), b.bfloat16()).dtype == torch.float32
    assert consistency_loss(100*a, -100*a).isfinite().all()


def test_the_gradient_of_the_consistency_term_goes_into_both_sides_as_finite_differences_say():
    g = torch.Generator().manual_seed(2)
    a, b = (torch.randn(1, 4, generator=g).double().requires_grad_() for _ in range(2))
    consistency_loss(a, b).sum().backward()
    h = 1e-6
    for side, x in enumerate((a, b)):
        for c in range(4):
            rows = [a.detach()[0].tolist(), b.detach()[0].tolist()]
            up, down = [list(r) for r in rows], [list(r) for r in rows]
            up[side][c] += h; down[side][c] -= h
            assert abs(x.grad[0, c].item() - (reference_kl(*up) - reference_kl(*down))/(2*h)) < 1e-8
        assert x.grad.abs().max() > 1e-3


def reference_saliency(model, ids, c):
    "Gradient times input of the class score for one sentence alone, summed over the embedding dimension"
    x = model.get_input_embeddings().weight.detach()[torch.tensor(ids)].requires_grad_()
    score = model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).logits[0, c]
    return (torch.autograd.grad(score, x)[0]*x).sum(-1).tolist()


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'right')])
@pytest.mark.parametrize('target', ['gold', 'predicted'])
def test_the_plan_is_the_equations_applied_to_each_sentence_alone(kind, side, target):
    model, rows = tiny(kind), random_rows(3)
    batch = collate(rows, side)
    plan = SaliencyGuided(masked_share=.5, target=target).plan(model, batch, Progress())
    for i, r in enumerate(rows):
        n = len(r['ids'])
        c = r['label'] if target == 'gold' else model(input_ids=torch.tensor([r['ids']])).logits.argmax().item()
        saliency = reference_saliency(model, r['ids'], c)
        np.testing.assert_allclose(plan.evidence['saliency'][i, :n].numpy(), saliency, rtol=1e-8, atol=1e-11)
        expected, masked = reference_mask(r['ids'], saliency, r['word_ids'], r['segments'], .5, 'next', 'signed')
        assert plan.evidence['masked_input'][i, :n].tolist() == expected and plan.evidence['is_masked'][i, :n].tolist() == masked
    assert plan.inputs['masked']['input_ids'] is plan.evidence['masked_input']
    assert plan.inputs['masked'].keys() == {'input_ids', 'attention_mask'}
    assert torch.equal(plan.inputs['masked']['attention_mask'], batch['attention_mask'])
    assert plan.evidence['is_masked'].any()


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('saliency', ['input_x_gradient', 'gradient_norm'])
def test_an_example_has_the_same_plan_in_any_batch_under_any_padding(kind, side, saliency):
    model, rows, method = tiny(kind), random_rows(4), SaliencyGuided(masked_share=.5, saliency=saliency)
    def own(plan, batch): return [ids[mask.bool()].tolist() for ids, mask in zip(plan.evidence['masked_input'], batch['attention_mask'])]
    batch = collate(rows, side)
    whole = own(method.plan(model, batch, Progress()), batch)
    for order, length in (((2,), None), ((4, 1), 40), ((5, 3, 0, 2), 33)):
        batch = collate([rows[i] for i in order], side, length)
        assert own(method.plan(model, batch, Progress(step=9)), batch) == [whole[i] for i in order]


def test_an_unlabelled_example_is_explained_for_its_predicted_class():
    model, batch = tiny(), collate(random_rows(5))
    unlabelled = {k: v for k, v in batch.items() if k != 'labels'}
    look = lambda target, b: SaliencyGuided(target=target).plan(model, b, Progress()).evidence['saliency']
    assert torch.equal(look('gold', unlabelled), look('predicted', batch)) and not torch.equal(look('gold', batch), look('predicted', batch))


@pytest.mark.parametrize('saliency', ['input_x_gradient', 'integrated_gradients'])
def test_a_plan_leaves_no_trace_and_looks_in_eval_mode(saliency):
    model, batch = tiny(dropout=.3), collate(random_rows(6))
    in_eval = SaliencyGuided(saliency=saliency).plan(model, batch, Progress()).evidence['saliency']
    model.train()
    model.bert.encoder.layer[1].eval()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before, inputs = state(model), {k: v.clone() for k, v in batch.items()}
    plan = SaliencyGuided(saliency=saliency).plan(model, batch, Progress())
    assert same(before, state(model)) and all(torch.equal(v, batch[k]) for k, v in inputs.items())
    assert torch.equal(plan.evidence['saliency'], in_eval) and not plan.evidence['saliency'].requires_grad


def test_a_step_has_the_gradient_of_equation_four():
    model, rows, weight = tiny(), random_rows(7), .7
    batch, method = collate(rows), SaliencyGuided(masked_share=.5, weight=weight)
    plan = method.plan(model, batch, Progress())
    outputs = dict(main=model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']), masked=model(**plan.inputs['masked']))
    terms = method.terms(outputs, None, plan, batch, Progress())
    assert list(terms) == ['consistency'] and terms['consistency'].weight == weight and terms['consistency'].loss.shape == (len(rows),)
    task = torch.nn.functional.cross_entropy(outputs['main'].logits, batch['labels'])
    ours = torch.autograd.grad(task + weight*terms['consistency'].loss.mean(), list(model.parameters()), allow_unused=True)
    total = 0. # sentence by sentence, without padding
    for i, r in enumerate(rows):
        masked = plan.evidence['masked_input'][i, :len(r['ids'])].tolist()
        p, q = (model(input_ids=torch.tensor([ids])).logits[0].softmax(-1) for ids in (r['ids'], masked))
        total = total + (-p[r['label']].log() + weight*sum(p[c]*(p[c]/q[c]).log() for c in range(3))) / len(rows)
    for a, b in zip(ours, torch.autograd.grad(total, list(model.parameters()), allow_unused=True)):
        if a is not None: torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_what_cannot_work_is_refused_before_training():
    data, with_mask = dict(train=[dict(input_ids=[1, 11, 12, 2])]), SimpleNamespace(mask_token_id=MASK)
    for kind in ('bert', 'llama'): SaliencyGuided().check(tiny(kind), with_mask, data, 1)
    SaliencyGuided(saliency='gradient').check(tiny('llama'), with_mask, data, 1)
    with pytest.raises(ValueError, match="SaliencyGuided: .*identically zero for BertForSequenceClassification"):
        SaliencyGuided(saliency='gradient').check(tiny(), with_mask, data, 1)
    with pytest.raises(ValueError, match="SaliencyGuided: first='mask' needs a mask token, which SimpleNamespace has not; use 'next' or 'keep'"):
        SaliencyGuided(first='mask').check(tiny(), SimpleNamespace(mask_token_id=None), data, 1)


def test_the_mask_token_comes_from_the_trainers_tokenizer():
    model, batch, method = tiny(), collate(random_rows(8)), SaliencyGuided(masked_share=.9, first='mask')
    with pytest.raises(ValueError, match="first='mask' needs mask_token_id"): method.plan(model, batch, Progress())
    method.prepare(SimpleNamespace(tokenizer=SimpleNamespace(mask_token_id=MASK)))
    plan = method.plan(model, batch, Progress())
    assert (plan.evidence['masked_input'] == MASK).any() and 'mask_token_id' not in method.args()


@pytest.mark.parametrize('kwargs, message', [
    (dict(masked_share=0), 'masked_share must be between 0 and 1, both excluded'), (dict(masked_share=1.), 'masked_share must be'),
    (dict(masked_share=float('nan')), 'got nan'), (dict(weight=-1), 'weight must be a finite number of at least 0, got -1'),
    (dict(weight=float('inf')), 'weight must be'), (dict(saliency='lime'), 'saliency must be one of'),
    (dict(ranking='abs'), 'ranking must be one of'), (dict(first='drop'), "first must be one of 'next', 'keep', 'mask', got 'drop'"),
    (dict(target='pseudo'), "target must be one of 'gold', 'predicted'")])
def test_arguments_out_of_range_are_refused(kwargs, message):
    with pytest.raises(ValueError, match='SaliencyGuided: .*' + message): SaliencyGuided(**kwargs)
