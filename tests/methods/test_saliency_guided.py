"Saliency guided training against loops written from Algorithm 1 and equations 2 to 4 of the paper"
import copy
import math
import random
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification,
                          LlamaConfig,
                          LlamaForSequenceClassification)
from transformers.modeling_outputs import SequenceClassifierOutput

from helpers import same, state
from salviz.attribution.reading import scores
from salviz.data.texts import subset
from salviz.methods import saliency_guided
from salviz.methods.base import Progress
from salviz.methods.saliency_guided import (
    SaliencyGuided, SaliencyGuidedVariant, consistency_loss, fill_values, mask_cells, mask_words)
from salviz.models.nets import nets, small_net
from salviz.models.random import keyed_uniform
from salviz.training.step import _run_passes
from salviz.data.signals import load_images
from salviz.training.trainer import train

PAD, CLS, SEP, MASK = 0, 1, 2, 3


def tiny(kind='bert', dropout=0.):
    common = dict(vocab_size=100, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
                  num_labels=3, pad_token_id=PAD,
                  initializer_range=.4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        if kind == 'llama': return LlamaForSequenceClassification(LlamaConfig(**common)).double().eval()
        if kind == 'gpt2':
            return GPT2ForSequenceClassification(GPT2Config(vocab_size=100, n_embd=24, n_layer=2, n_head=4,
                                                            num_labels=3, pad_token_id=PAD, bos_token_id=CLS,
                                                            eos_token_id=SEP,
                                                            initializer_range=.4)).double().eval()
        return BertForSequenceClassification(BertConfig(hidden_dropout_prob=dropout,
                                                        attention_probs_dropout_prob=dropout, **common)).double().eval()


def random_rows(seed, count=6, pairs=True):
    "Return sentences or pairs of words with one to three pieces, between special tokens"
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
    return dict(input_ids=padded(column('ids'), PAD), attention_mask=padded([[1]*len(x) for x in column('ids')], 0),
                word_ids=word_ids,
                is_special=word_ids < 0, segments=padded(column('segments'), -1),
                example_id=torch.tensor(column('example_id')),
                labels=torch.tensor(column('label')))


def trainer_of(model, batch, tokenizer=None):
    "Return a stand-in with the attributes of a trainer that `prepare` uses"
    run_state = {}
    return SimpleNamespace(model=model, tokenizer=tokenizer, first_batch=lambda: batch,
                           run=SimpleNamespace(set_state=run_state.update, state=run_state))


def reference_mask(ids, saliency, word_ids, segments, share, first, ranking):
    "Mask one sentence (or pair) with loops: find the low words, then the replacement of each"
    words = [] # (positions, segment)
    for i, w in enumerate(word_ids):
        if w < 0: continue
        if words and word_ids[words[-1][0][-1]] == w and words[-1][1] == segments[i] and words[-1][0][-1] == i - 1:
            words[-1][0].append(i)
        else: words.append(([i], segments[i]))
    scores = [sum(saliency[i] for i in at) for at, _ in words]
    if ranking == 'magnitude': scores = [abs(s) for s in scores]
    k = int(len(words)*Fraction(str(share)))
    low = set(sorted(range(len(words)), key=lambda w: (scores[w], w))[:k])
    out, is_masked = list(ids), [False]*len(ids)
    for w in low:
        at, segment = words[w]
        def separated(a, b): return any(segments[i] != segment for i in range(min(a, b), max(a, b) + 1))
        def is_source(v): return v not in low and not separated(words[v][0][0], at[0])
        before = [v for v in range(w - 1, -1, -1) if is_source(v)]
        after = [v for v in range(w + 1, len(words)) if is_source(v)]
        if before: pieces = [ids[i] for i in words[before[0]][0]]
        elif first == 'next' and after: pieces = [ids[i] for i in words[after[0]][0]]
        elif first == 'mask': pieces = [MASK]
        else: continue
        for j, i in enumerate(at): out[i], is_masked[i] = pieces[j % len(pieces)], True
    return out, is_masked


@pytest.mark.sample(25)
@pytest.mark.parametrize('first', ['next', 'keep', 'mask'])
@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
@pytest.mark.parametrize('share', [.1, .3, .5, .7, .95])
@pytest.mark.parametrize('side', ['right', 'left'])
def test_masked_copy_equals_a_loop_over_words(share, ranking, first, side):
    for seed in range(10):
        rows = random_rows(seed)
        batch = collate(rows, side)
        # many ties
        saliency = torch.randint(-3, 4, batch['input_ids'].shape,
                                 generator=torch.Generator().manual_seed(seed)).double()
        ids, is_masked = mask_words(batch['input_ids'], saliency, batch['word_ids'], batch['segments'], share, first,
                                    ranking, MASK)
        for i, r in enumerate(rows):
            at = batch['attention_mask'][i].nonzero().squeeze(1)
            expected, masked = reference_mask(r['ids'], saliency[i, at].tolist(), r['word_ids'], r['segments'], share,
                                              first, ranking)
            assert ids[i, at].tolist() == expected and is_masked[i, at].tolist() == masked
        assert not is_masked[batch['is_special']].any()
        assert torch.equal(ids[batch['is_special']], batch['input_ids'][batch['is_special']])


def test_replacements_stay_in_their_sentence_without_a_separator():
    ids, words, segments = torch.tensor([[11, 12, 13, 14]]), torch.tensor([[0, 1, 2, 3]]), torch.tensor([[0, 0, 1, 1]])
    masked, _ = mask_words(ids, torch.tensor([[5., 6., 1., 7.]]), words, segments, .25)
    assert masked.tolist() == [[11, 12, 14, 14]]
    restarted = torch.tensor([[0, 1, 1, 2]]) # the same word id on both sides of the border is two words
    assert mask_words(ids, torch.tensor([[5., 6., 1., 7.]]), restarted, segments, .25)[0].tolist() == [[11, 12, 14, 14]]


def test_replacements_do_not_cross_a_separator_inside_a_segment():
    ids, words, segments = torch.tensor([[11, SEP, 13, 14]]), torch.tensor([[0, -1, 1, 2]]), torch.tensor(
        [[0, -1, 0, 0]])
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
def test_number_of_masked_words_is_the_exact_fraction_rounded_down(share):
    for n in range(1, 120):
        words = torch.arange(n)[None]
        _, masked = mask_words(words + 10, torch.randn(1, n), words, torch.zeros_like(words), share, 'mask',
                               mask_token_id=MASK)
        assert masked.sum().item() == int(n*Fraction(str(share)))


def test_texts_with_at_most_one_word_do_not_change():
    batch = collate([dict(ids=[CLS, SEP], word_ids=[-1, -1], segments=[-1, -1], example_id=0, label=0),
                     dict(ids=[CLS, 11, SEP], word_ids=[-1, 0, -1], segments=[-1, 0, -1], example_id=1, label=0)])
    for first in ('next', 'keep', 'mask'):
        ids, masked = mask_words(batch['input_ids'], torch.zeros(2, 3), batch['word_ids'], batch['segments'], .9, first,
                                 mask_token_id=MASK)
        assert torch.equal(ids, batch['input_ids']) and not masked.any()


def reference_kl(a, b):
    "Compute eq. 2 for one sample's logits, in loops"
    p, q = [[math.exp(x)/sum(math.exp(y) for y in row) for x in row] for row in (a, b)]
    return sum(x*math.log(x/y) for x, y in zip(p, q))


def test_consistency_term_is_equation_two_for_each_example():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 4, generator=g).double(), torch.randn(5, 4, generator=g).double()
    expected = [reference_kl(x, y) for x, y in zip(a.tolist(), b.tolist())]
    np.testing.assert_allclose(consistency_loss(a, b).numpy(), expected, rtol=1e-12)
    assert (consistency_loss(a, a) == 0).all()
    assert consistency_loss(a.bfloat16(), b.bfloat16()).dtype == torch.float32
    assert consistency_loss(100*a, -100*a).isfinite().all()


def test_gradients_of_the_consistency_term_into_both_sides_equal_finite_differences():
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


def reference_saliency(model, ids, c, method='gradient_norm'):
    "Return per token of one sentence the norm of the gradient of the class score, or the sum of gradient times input"
    x = model.get_input_embeddings().weight.detach()[torch.tensor(ids)].requires_grad_()
    score = model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).logits[0, c]
    g = torch.autograd.grad(score, x)[0]
    return ((g*x).sum(-1) if method == 'input_x_gradient' else g.square().sum(-1).sqrt()).tolist()


@pytest.mark.sample(8)
@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'right')])
@pytest.mark.parametrize('target', ['gold', 'predicted'])
@pytest.mark.parametrize('named', [None, 'gradient_norm', 'input_x_gradient'])
def test_plan_follows_the_equations_for_each_sentence(kind, side, target, named):
    model, rows = tiny(kind), random_rows(3)
    batch = collate(rows, side)
    plan = SaliencyGuided(mask_fraction=.5, target=target, saliency=named).plan(model, batch, Progress())
    for i, r in enumerate(rows):
        n = len(r['ids'])
        c = r['label'] if target == 'gold' else model(input_ids=torch.tensor([r['ids']])).logits.argmax().item()
        saliency = reference_saliency(model, r['ids'], c, named or 'gradient_norm')
        np.testing.assert_allclose(plan.evidence['saliency'][i, :n].numpy(), saliency, rtol=1e-8, atol=1e-11)
        expected, masked = reference_mask(r['ids'], saliency, r['word_ids'], r['segments'], .5, 'next', 'signed')
        assert plan.evidence['masked_input'][i, :n].tolist() == expected
        assert plan.evidence['is_masked'][i, :n].tolist() == masked
    assert plan.inputs['masked']['input_ids'] is plan.evidence['masked_input']
    assert plan.inputs['masked'].keys() == {'input_ids', 'attention_mask'}
    assert torch.equal(plan.inputs['masked']['attention_mask'], batch['attention_mask'])
    assert plan.evidence['is_masked'].any()


@pytest.mark.parametrize('kind, side', [('bert', 'right'), ('llama', 'left')])
@pytest.mark.parametrize('saliency', ['input_x_gradient', 'gradient_norm'])
def test_plan_of_an_example_does_not_depend_on_batch_or_padding(kind, side, saliency):
    model, rows, method = tiny(kind), random_rows(4), SaliencyGuided(mask_fraction=.5, saliency=saliency)
    def own(plan, batch):
        return [ids[mask.bool()].tolist() for ids, mask in zip(plan.evidence['masked_input'], batch['attention_mask'])]
    batch = collate(rows, side)
    whole = own(method.plan(model, batch, Progress()), batch)
    for order, length in (((2,), None), ((4, 1), 40), ((5, 3, 0, 2), 33)):
        batch = collate([rows[i] for i in order], side, length)
        assert own(method.plan(model, batch, Progress(step=9)), batch) == [whole[i] for i in order]


def test_unlabelled_example_is_explained_for_its_predicted_class():
    model, batch = tiny(), collate(random_rows(5))
    unlabelled = {k: v for k, v in batch.items() if k != 'labels'}
    look = lambda target, b: SaliencyGuided(target=target).plan(model, b, Progress()).evidence['saliency']
    assert torch.equal(look('gold', unlabelled), look('predicted', batch))
    assert not torch.equal(look('gold', batch), look('predicted', batch))


@pytest.mark.parametrize('saliency', ['input_x_gradient', 'integrated_gradients'])
def test_plan_runs_in_eval_mode_and_does_not_change_the_model(saliency):
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


def test_step_has_the_gradient_of_equation_four():
    model, rows, weight = tiny(), random_rows(7), .7
    batch, method = collate(rows), SaliencyGuided(mask_fraction=.5, weight=weight)
    plan = method.plan(model, batch, Progress())
    outputs = dict(main=model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']),
                   masked=model(**plan.inputs['masked']))
    terms = method.terms(outputs, None, plan, batch, Progress())
    assert list(terms) == ['consistency']
    assert terms['consistency'].weight == weight
    assert terms['consistency'].loss.shape == (len(rows),)
    task = torch.nn.functional.cross_entropy(outputs['main'].logits, batch['labels'])
    ours = torch.autograd.grad(task + weight*terms['consistency'].loss.mean(), list(model.parameters()),
                               allow_unused=True)
    total = 0. # sentence by sentence, without padding
    for i, r in enumerate(rows):
        masked = plan.evidence['masked_input'][i, :len(r['ids'])].tolist()
        p, q = (model(input_ids=torch.tensor([ids])).logits[0].softmax(-1) for ids in (r['ids'], masked))
        total = total + (-p[r['label']].log() + weight*sum(p[c]*(p[c]/q[c]).log() for c in range(3))) / len(rows)
    for a, b in zip(ours, torch.autograd.grad(total, list(model.parameters()), allow_unused=True)):
        if a is not None: torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)


def test_check_raises_for_zero_saliency_and_missing_mask_token():
    data, with_mask = dict(train=[dict(input_ids=[1, 11, 12, 2])]), SimpleNamespace(mask_token_id=MASK)
    for kind in ('bert', 'llama'): SaliencyGuided().check(tiny(kind), with_mask, data, 1)
    SaliencyGuided(saliency='gradient').check(tiny('llama'), with_mask, data, 1)
    with pytest.raises(ValueError, match="SaliencyGuided: .*identically zero for BertForSequenceClassification"):
        SaliencyGuided(saliency='gradient').check(tiny(), with_mask, data, 1)
    with pytest.raises(ValueError,
                       match="SaliencyGuided: first='mask' requires a mask token, which SimpleNamespace does not have; "
                       "use 'next' or 'keep'"):
        SaliencyGuided(variant=SaliencyGuidedVariant(first='mask')).check(tiny(), SimpleNamespace(mask_token_id=None),
                                                                          data, 1)


def test_mask_token_comes_from_the_tokenizer_of_the_trainer():
    model, batch, method = tiny(), collate(random_rows(8)), SaliencyGuided(mask_fraction=.9,
                                                                           variant=SaliencyGuidedVariant(first='mask'))
    with pytest.raises(ValueError, match="first='mask' requires mask_token_id"): method.plan(model, batch, Progress())
    method.prepare(trainer_of(model, batch, SimpleNamespace(mask_token_id=MASK)))
    plan = method.plan(model, batch, Progress())
    assert (plan.evidence['masked_input'] == MASK).any() and 'mask_token_id' not in method.args()


@pytest.mark.parametrize('kwargs, message', [
    (dict(mask_fraction=0), 'mask_fraction must be between 0 and 1, both excluded'),
    (dict(mask_fraction=1.), 'mask_fraction must be'),
    (dict(mask_fraction=float('nan')), 'got nan'),
    (dict(weight=-1), 'weight must be a finite non-negative number, got -1'),
    (dict(weight=float('inf')), 'weight must be'), (dict(saliency='lime'), 'saliency must be one of'),
    (dict(fill='noise'), "fill must be 'uniform', 'mean', or the background as a finite number or tensor, got 'noise'"),
    (dict(fill=float('nan')), 'fill must be'), (dict(fill=torch.tensor([0., math.inf])), 'fill must be'),
    (dict(fill=True), 'fill must be'),
    (dict(fill_range='batch'), "fill_range must be one of 'feature', 'sample', got 'batch'"),
    (dict(passes='train'), "passes must be one of 'eval', 'reuse', got 'train'"),
    (dict(passes='reuse', saliency='integrated_gradients'), "passes='reuse' only provides the gradient at the input"),
    (dict(ranking='abs'), 'ranking must be one of'),
    (dict(first='drop'), "first must be one of 'next', 'keep', 'mask', got 'drop'"),
    (dict(target='pseudo'), "target must be one of 'gold', 'predicted'"),
    (dict(score='probability'), "score must be one of 'logit', 'log_probability', got 'probability'"),
    (dict(score=None), 'score must be one of')])
def test_invalid_arguments_raise(kwargs, message):
    with pytest.raises(ValueError, match='SaliencyGuided: .*' + message): SaliencyGuided.from_args(kwargs)


class Net(nn.Module):
    """A tiny classifier of images ('conv', or 'norm' with batch normalisation), series ('lstm') or words ('words', an
    LSTM without normalisation)"""
    def __init__(self, kind, dropout=0.):
        super().__init__()
        self.kind, self.config = kind, SimpleNamespace(_attn_implementation=None, pad_token_id=PAD)
        self.salviz_task = {'lstm': 'series_classification',
                            'words': 'classification'}.get(kind, 'image_classification')
        with torch.random.fork_rng():
            torch.manual_seed(2)
            if kind in ('conv', 'norm'):
                self.body = nn.Sequential(nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4) if kind == 'norm' else nn.Identity(),
                                          nn.ReLU(), nn.Flatten(), nn.Dropout(dropout))
                self.head = nn.Linear(48, 3)
            else:
                if kind == 'words': self.words = nn.Embedding(100, 5)
                self.body, self.drop, self.head = nn.LSTM(5, 6, batch_first=True,
                                                          bidirectional=kind == 'words'), nn.Dropout(
                    dropout), nn.Linear(12 if kind == 'words' else 6, 3)
        self.double().eval()

    def get_input_embeddings(self): return self.words

    def forward(self, pixel_values=None, values=None, input_ids=None, attention_mask=None):
        if self.kind == 'words':
            packed = nn.utils.rnn.pack_padded_sequence(self.words(input_ids), attention_mask.sum(1), batch_first=True,
                                                       enforce_sorted=False)
            x = self.drop(self.body(packed)[1][0].transpose(0, 1).flatten(1))
        elif self.kind == 'lstm': x = self.drop(self.body(values)[0][:, -1])
        else: x = self.body(pixel_values)
        return SequenceClassifierOutput(logits=self.head(x))


def signals(kind, count=5):
    """Return random images with three channels of 4 x 5 pixels, or series with 7 times of 5 features

    Each channel or feature has a different range."""
    rng = np.random.default_rng(count)
    shape = (count, 7, 5) if kind == 'lstm' else (count, 3, 4, 5)
    scale = rng.uniform(.5, 9, (count, 1, 5) if kind == 'lstm' else (count, 3, 1, 1))
    x = torch.tensor(rng.normal(size=shape)*scale + 3*scale)
    return {'values' if kind == 'lstm' else 'pixel_values': x, 'labels': torch.arange(count) % 3,
            'example_id': torch.arange(count)*7 + 3}


def name_of(batch): return 'values' if 'values' in batch else 'pixel_values'


def reference_low(saliency, share, ranking):
    "Return the indices (as tuples) of the floor(share · n) lowest values of one sample; ties go to the earlier value"
    at = list(np.ndindex(*saliency.shape))
    score = {i: abs(saliency[i].item()) if ranking == 'magnitude' else saliency[i].item() for i in at}
    return set(sorted(at, key=lambda i: (score[i], at.index(i)))[:int(len(at)*Fraction(str(share)))])


def own_values(x, i, fill_range):
    "Return the values of the sample `x` that define the fill range at index `i`"
    if fill_range == 'sample': return x.flatten().tolist()
    return (x[i[0]] if x.dim() == 3 and len(i) == 3 and x.shape[0] == 3 else x[:, i[-1]]).flatten().tolist()


@pytest.mark.sample(24)
@pytest.mark.parametrize('kind', ['conv', 'lstm'])
@pytest.mark.parametrize('fill_range', ['feature', 'sample'])
@pytest.mark.parametrize('fill', ['uniform', 'mean', -2.5, 'background'])
@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
def test_masked_images_and_series_equal_a_loop(kind, ranking, fill, fill_range):
    batch = signals(kind)
    x = batch[name_of(batch)]
    series, g = kind == 'lstm', torch.Generator().manual_seed(5)
    background = torch.randn(x.shape[1:], generator=g).double()
    saliency = torch.randint(-2, 3, x.shape if series else (len(x), 4, 5), generator=g).double() # many ties
    for share in (.01, .1, .29, .5, .93):
        filled = fill_values(x, background if fill == 'background' else fill, fill_range, batch['example_id'], seed=1,
                             step=2)
        masked, is_masked = mask_cells(x, saliency, filled, share, ranking)
        assert masked.shape == x.shape and is_masked.shape == saliency.shape and is_masked.dtype == torch.bool
        for b in range(len(x)):
            low = reference_low(saliency[b], share, ranking)
            assert {i for i in np.ndindex(*saliency[b].shape) if is_masked[b][i]} == low
            for i in np.ndindex(*x[b].shape):
                new, old, among = masked[b][i].item(), x[b][i].item(), own_values(x[b], i, fill_range)
                if (i if series else i[1:]) not in low: assert new == old
                elif fill == 'uniform': assert min(among) <= new <= max(among) and new != old
                elif fill == 'mean': assert abs(new - sum(among)/len(among)) < 1e-12
                else: assert new == (background[i].item() if fill == 'background' else fill)


@pytest.mark.parametrize('shape', [(3, 40, 30), (200, 10)])
def test_uniform_fills_cover_the_range_of_each_feature_evenly(shape):
    x = torch.rand(4, *shape,
                   generator=torch.Generator().manual_seed(1)).double()*torch.tensor([1., 2., 4., 8.]).view(
        4, *[1]*len(shape)) - 1
    for fill_range in ('feature', 'sample'):
        u = fill_values(x, 'uniform', fill_range, torch.arange(4))
        for b in range(4):
            features = range(shape[0]) if len(shape) == 3 else range(shape[1])
            for f in features:
                mine, own = (u[b, f], x[b, f]) if len(shape) == 3 else (u[b, :, f], x[b, :, f])
                if fill_range == 'sample': own = x[b]
                position = (mine - own.min()) / (own.max() - own.min())
                assert 0 <= position.min() < .12 and .88 < position.max() <= 1 and abs(position.mean() - .5) < .16
        assert u.unique().numel() > .99*u.numel()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_uniform_fills_stay_in_range_in_every_precision(dtype):
    x = (torch.rand(8, 3, 30, 30, generator=torch.Generator().manual_seed(1))*1e-3 + 1).to(dtype)
    u = fill_values(x, example_id=torch.arange(8))
    assert u.dtype == dtype and (u >= x.amin((2, 3), keepdim=True)).all() and (u <= x.amax((2, 3), keepdim=True)).all()


@pytest.mark.parametrize('kind', ['conv', 'lstm'])
def test_fill_depends_only_on_seed_step_and_example(kind):
    model, batch, method = Net(kind), signals(kind), SaliencyGuided(mask_fraction=.5)
    random_before = torch.get_rng_state()
    look = lambda b, **at: method.plan(model, b, Progress(**at)).evidence['masked_map']
    whole = look(batch, seed=1, step=4)
    for order in ([2], [4, 0], [3, 1, 2, 4, 0]):
        assert torch.equal(look({k: v[order] for k, v in batch.items()}, seed=1, step=4), whole[order])
    for other in (dict(seed=2, step=4), dict(seed=1, step=5)): assert not torch.equal(look(batch, **other), whole)
    assert not torch.equal(look({**batch, 'example_id': batch['example_id'] + 1}, seed=1, step=4), whole)
    assert torch.equal(look(batch, seed=1, step=4, epoch=3, total_steps=9), whole)
    assert torch.equal(torch.get_rng_state(), random_before)


def reference_map(model, name, x, c):
    "Return the gradient of the logit of class `c` for one sample; for an image, the mean over the channels, in a loop"
    x = x[None].clone().requires_grad_()
    gradient, = torch.autograd.grad(model(**{name: x}).logits[0, c], x)
    if name == 'values': return gradient[0]
    return torch.tensor([[sum(gradient[0, k, i, j].item() for k in range(3))/3 for j in range(5)] for i in range(4)],
                        dtype=torch.float64)


@pytest.mark.parametrize('kind', ['conv', 'norm', 'lstm'])
@pytest.mark.parametrize('target', ['gold', 'predicted'])
@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
def test_plan_for_signals_follows_the_equations_for_each_sample(kind, target, ranking):
    model, batch = Net(kind), signals(kind)
    name = name_of(batch)
    plan = SaliencyGuided(mask_fraction=.29, target=target, ranking=ranking, fill=0).plan(model, batch, Progress())
    assert set(plan.evidence) == {'saliency_map', 'masked_map', 'is_masked_map'}
    assert set(plan.inputs) == {'masked'}
    assert not plan.later
    assert plan.inputs['masked'].keys() == {name} and plan.inputs['masked'][name] is plan.evidence['masked_map']
    chosen = []
    for b, x in enumerate(batch[name]):
        c = batch['labels'][b].item() if target == 'gold' else model(**{name: x[None]}).logits.argmax().item()
        chosen.append(c)
        saliency = reference_map(model, name, x, c)
        np.testing.assert_allclose(plan.evidence['saliency_map'][b].numpy(), saliency.numpy(), rtol=1e-9, atol=1e-13)
        low = reference_low(plan.evidence['saliency_map'][b], .29, ranking)
        assert {i for i in np.ndindex(*saliency.shape) if plan.evidence['is_masked_map'][b][i]} == low
        for i in np.ndindex(*x.shape):
            assert plan.evidence['masked_map'][b][i] == (0 if (i if kind == 'lstm' else i[1:]) in low else x[i])
    assert (chosen == batch['labels'].tolist()) == (target == 'gold') # so the two targets differ


@pytest.mark.parametrize('kind', ['conv', 'norm', 'lstm'])
def test_plan_for_signals_runs_in_eval_mode_and_does_not_change_the_model(kind):
    model, batch = Net(kind, dropout=.4), signals(kind)
    in_eval = SaliencyGuided().plan(model, batch, Progress()).evidence['saliency_map']
    model.train()
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before, buffers, inputs = state(model), [b.clone()
                                             for b in model.buffers()], {k: v.clone() for k, v in batch.items()}
    plan = SaliencyGuided().plan(model, batch, Progress())
    assert same(before, state(model))
    assert same(buffers, list(model.buffers()))
    assert all(torch.equal(v, batch[k]) for k, v in inputs.items())
    # frozen parameters change the order of sums in an LSTM
    torch.testing.assert_close(plan.evidence['saliency_map'], in_eval, rtol=1e-12, atol=1e-16)
    assert not any(v.requires_grad for v in plan.evidence.values())
    assert kind != 'norm' or len(buffers) == 3


@pytest.mark.parametrize('kind', ['conv', 'lstm'])
def test_step_on_signals_has_the_gradient_of_equation_four(kind):
    model, batch, weight = Net(kind), signals(kind), .7
    name, method = name_of(batch), SaliencyGuided(mask_fraction=.5, weight=weight)
    plan = method.plan(model, batch, Progress())
    outputs = dict(main=model(**{name: batch[name]}), masked=model(**plan.inputs['masked']))
    task = torch.nn.functional.cross_entropy(outputs['main'].logits, batch['labels'])
    term = method.terms(outputs, None, plan, batch, Progress())['consistency']
    ours = torch.autograd.grad(task + term.weight*term.loss.mean(), list(model.parameters()))
    total = 0.
    for x, masked, c in zip(batch[name], plan.evidence['masked_map'], batch['labels']):
        p, q = (model(**{name: o[None]}).logits[0].softmax(-1) for o in (x, masked))
        total = total + (-p[c].log() + weight*sum(p[j]*(p[j]/q[j]).log() for j in range(3))) / len(batch['labels'])
    for a, b in zip(ours, torch.autograd.grad(total, list(model.parameters()))):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-11)


def test_lstm_masks_words_by_the_summed_gradient_of_the_paper():
    model, rows = Net('words'), random_rows(11)
    batch = collate(rows)
    plan = SaliencyGuided(mask_fraction=.5).plan(model, batch, Progress())
    for i, r in enumerate(rows):
        n, x = len(r['ids']), model.words.weight.detach()[torch.tensor(r['ids'])].requires_grad_()
        state = model.body(x[None])[1][0].transpose(0, 1).flatten(1)
        gradient, = torch.autograd.grad(model.head(state)[0, r['label']], x)
        saliency = [sum(gradient[t].tolist()) for t in range(n)]
        np.testing.assert_allclose(plan.evidence['saliency'][i, :n].numpy(), saliency, rtol=1e-8, atol=1e-12)
        expected, masked = reference_mask(r['ids'], plan.evidence['saliency'][i, :n].tolist(), r['word_ids'],
                                          r['segments'], .5, 'next', 'signed')
        assert plan.evidence['masked_input'][i, :n].tolist() == expected
        assert plan.evidence['is_masked'][i, :n].tolist() == masked
        assert not plan.evidence['saliency'][i, n:].any() and not plan.evidence['is_masked'][i, n:].any()
    assert plan.evidence['is_masked'].any()


def log_p(logits, c):
    "Return the log-probability of class `c`, computed from the logits of one sample"
    return logits[c] - sum(z.exp() for z in logits).log()


def reference_of_log_p(model, batch, i):
    "Return the saliency of log p of the gold class for sample `i` (text: its tokens without padding)"
    c = batch['labels'][i].item()
    if 'input_ids' not in batch:
        name = name_of(batch)
        x = batch[name][i:i+1].clone().requires_grad_()
        gradient, = torch.autograd.grad(log_p(model(**{name: x}).logits[0], c), x)
        return gradient[0] if name == 'values' else gradient[0].mean(0)
    ids = batch['input_ids'][i][batch['attention_mask'][i].bool()]
    x = model.get_input_embeddings().weight.detach()[ids].requires_grad_()
    if isinstance(model, Net):
        logits = model.head(model.body(x[None])[1][0].transpose(0, 1).flatten(1))[0]
        return torch.autograd.grad(log_p(logits, c), x)[0].sum(-1)
    logits = model(inputs_embeds=x[None], attention_mask=torch.ones(1, len(ids), dtype=torch.int64)).logits[0]
    return torch.autograd.grad(log_p(logits, c), x)[0].norm(dim=-1)


@pytest.mark.parametrize('kind', ['bert', 'llama', 'words', 'conv', 'norm', 'lstm'])
@pytest.mark.parametrize('passes', ['eval', 'reuse'])
def test_log_probability_score_masks_by_its_own_saliency(kind, passes):
    model, batch = case(kind)
    model.eval() # no dropout and no statistics of the batch, so both passes have the same saliency
    methods = {score: SaliencyGuided(mask_fraction=.5,
                                     variant=SaliencyGuidedVariant(passes=passes, score=score)) for score in scores}
    plans = {score: method.plan(model, batch, Progress()) for score, method in methods.items()}
    if passes == 'reuse':
        for plan in plans.values(): _run_passes(model, model, batch, plan)
    found, of_logit = plans['log_probability'].evidence, plans['logit'].evidence
    text = 'input_ids' in batch
    for i in range(len(batch['labels'])):
        expected = reference_of_log_p(model, batch, i)
        ours = found['saliency'][i][batch['attention_mask'][i].bool()] if text else found['saliency_map'][i]
        close = dict(rtol=1e-3, atol=1e-5) if kind == 'llama' else dict(rtol=1e-8, atol=1e-12) # float32 softmax
        torch.testing.assert_close(ours, expected, **close)
        if text: continue
        masked = {j for j in np.ndindex(*ours.shape) if found['is_masked_map'][i][j]}
        assert masked == reference_low(ours, .5, 'signed')
    where = 'is_masked' if text else 'is_masked_map'
    assert not torch.equal(found[where], of_logit[where])


class Ending(nn.Module):
    "`net` with a log_softmax as its last layer, as in the released network for digits"
    def __init__(self, net):
        super().__init__()
        self.net, self.config, self.salviz_task = net, net.config, net.salviz_task
    def get_input_embeddings(self): return self.net.get_input_embeddings()
    def forward(self, **inputs): return SequenceClassifierOutput(logits=self.net(**inputs).logits.log_softmax(-1))


@pytest.mark.sample(5)
@pytest.mark.parametrize('kind', ['words', 'conv', 'lstm'])
@pytest.mark.parametrize('passes', ['eval', 'reuse'])
@pytest.mark.parametrize('target', ['gold', 'predicted'])
def test_net_ending_in_log_softmax_takes_the_same_steps_with_either_score(kind, passes, target):
    model, batch = case(kind)
    model.train()
    how = dict(mask_fraction=.5, passes=passes, target=target)
    def look(net, score): return step(SaliencyGuided.from_args(dict(**how, score=score)), net, batch)
    plain, of_logit = look(model, 'log_probability'), look(model, 'logit')
    mask = 'is_masked' if kind == 'words' else 'is_masked_map'
    assert not torch.equal(plain[0].evidence[mask], of_logit[0].evidence[mask])
    for score in scores: # log_softmax does not change log-probabilities
        ending = look(Ending(model), score)
        for k, v in plain[0].evidence.items():
            if v.is_floating_point(): torch.testing.assert_close(ending[0].evidence[k], v, rtol=1e-9, atol=1e-13)
            else: assert torch.equal(ending[0].evidence[k], v)
        torch.testing.assert_close(ending[2], plain[2], rtol=1e-12, atol=1e-14)
        for a, b in zip(ending[3], plain[3]):
            assert (a is None) == (b is None)
            if a is not None: torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-12)


def released_colour_copy(image, gradient, share, fill, u, by_size=False):
    """Return the masked copy of one image [channels, height, width] from the colour branch of the released loop, in
    loops

    It masks the fraction `share` of the pixels with the lowest channel mean of `gradient`, in all channels. Each
    channel is filled with its own mean, or with noise in its own range from the uniform numbers `u`."""
    channels, height, width = image.shape
    score = {(i, j): sum(gradient[c, i, j].item() for c in range(channels))/channels
             for i in range(height) for j in range(width)}
    if by_size: score = {at: abs(s) for at, s in score.items()}
    low = sorted(score, key=score.get)[:max(1, int(height*width*share))]
    copy = image.clone()
    for c in range(channels):
        values = [image[c, i, j].item() for i in range(height) for j in range(width)]
        smallest, largest, mean = min(values), max(values), sum(values)/len(values)
        for i, j in low:
            copy[c, i, j] = mean if fill == 'mean' else smallest + (largest - smallest)*u[c, i, j].item()
    return copy


@pytest.mark.parametrize('fill', ['uniform', 'mean'])
@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
@pytest.mark.parametrize('share', [.1, .5, .9])
def test_step_on_colour_images_is_that_of_the_colour_branch_of_the_released_loop(share, ranking, fill):
    rng, height, width = np.random.default_rng(8), 7, 7
    net = Net('conv') # ends in a linear layer, as the released ResNet does
    net.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten()) # without zero gradients, so without ties
    net.head = nn.Linear(100, 3)
    net = net.double().train()
    scale = torch.tensor([1., 4., 9.])[None, :, None, None].double() # a different range for each channel
    x = torch.tensor(rng.normal(size=(5, 3, height, width)))*scale + scale
    y, example_id = torch.arange(5) % 3, torch.arange(5) + 20
    batch = dict(pixel_values=x, labels=y, example_id=example_id)
    method = SaliencyGuided(mask_fraction=share, ranking=ranking, fill=fill)
    ours = step(method, net, batch)
    u = keyed_uniform(example_id, x.shape[1:], 1, 3, saliency_guided._fill_stream) # seed and step of `step`
    net.eval()
    copies = []
    for i in range(5):
        image = x[i:i+1].clone().requires_grad_()
        gradient, = torch.autograd.grad(net(pixel_values=image).logits[0, y[i]], image)
        copies.append(released_colour_copy(x[i], gradient[0], share, fill, u[i].double(), ranking == 'magnitude'))
    net.train()
    masked = torch.stack(copies)
    torch.testing.assert_close(ours[0].evidence['masked_map'], masked, rtol=1e-14, atol=1e-14)
    assert torch.equal(ours[0].evidence['is_masked_map'], (masked != x).all(1))
    assert ours[0].evidence['is_masked_map'].flatten(1).sum(1).tolist() == [int(height*width*share)]*5
    main, other = net(pixel_values=x).logits, net(pixel_values=masked).logits
    loss = nn.CrossEntropyLoss()(main, y)
    loss = loss + nn.KLDivLoss(reduction='batchmean')(other.log_softmax(1), main.softmax(1))
    torch.testing.assert_close(ours[2], loss.detach(), rtol=1e-12, atol=1e-14)
    for a, b in zip(ours[3], torch.autograd.grad(loss, list(net.parameters()))):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


def test_preset_of_the_colour_branch_has_the_default_options():
    assert SaliencyGuided(variant='released_colour').variant == SaliencyGuided().variant
    assert SaliencyGuided(variant='released').variant != SaliencyGuided().variant


def test_step_on_digits_is_the_released_one_if_the_net_ends_in_log_softmax():
    from captum.attr import Saliency # the released code computes its gradient with it
    share, rng = .5, np.random.default_rng(4)
    net = Net('conv')
    net.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten()) # no gradient is exactly zero: no ties
    net.head = nn.Linear(320, 3)
    net, ending = net.double(), Ending(net)
    x, y = torch.tensor(rng.normal(size=(6, 1, 12, 10))), torch.arange(6) % 3
    method, batch = SaliencyGuided(mask_fraction=share, fill=-.42), dict(pixel_values=x, labels=y)
    ours = step(method, ending.train(), batch)
    ending.eval()
    look = Saliency(lambda x: ending(pixel_values=x).logits)
    gradient = look.attribute(x.clone().requires_grad_(), y, abs=False).mean(1)
    masked = x.clone()
    for i in range(6):
        low = gradient[i].flatten().topk(int(share*120), largest=False).indices
        masked[i].view(-1)[low] = -.42
    ending.train()
    assert torch.equal(ours[0].evidence['masked_map'], masked)
    output, other = ending(pixel_values=x).logits, ending(pixel_values=masked).logits
    loss = nn.CrossEntropyLoss()(output, y) + nn.KLDivLoss(reduction='batchmean', log_target=True)(other, output)
    torch.testing.assert_close(ours[2], loss.detach(), rtol=1e-12, atol=1e-14)
    for a, b in zip(ours[3], torch.autograd.grad(loss, list(ending.parameters()))):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)
    by_logit = method.plan(net.eval(), batch, Progress()).evidence['masked_map'] # the net without its last layer
    assert not torch.equal(by_logit, masked)


@pytest.mark.slow
def test_run_records_the_saliency_that_it_masks_by_and_its_score(tmp_path):
    from salviz.attribution.explanations import explain
    from salviz.training.trainer import train
    digits = subset(load_images('digits'), 24, validation_size=8, test_size=8)
    rng = np.random.default_rng(0) # noise breaks ties: on a constant background rounding would decide a maximum
    def grained(row): return dict(pixel_values=np.float32(row['pixel_values'] + rng.normal(0, .2, (1, 28, 28))))
    digits = digits.map(grained, features=digits['train'].features)
    net = small_net('digit-cnn', digits, filters=(2, 3), hidden_size=6)
    before, shown = copy.deepcopy(net), {}
    settings = dict(epochs=1, batch_size=8, probes=3, snapshots=2, progress=False, learning_rate=1e-3)
    for score in scores:
        method = SaliencyGuided(mask_fraction=.5, variant=SaliencyGuidedVariant(score=score))
        run = train(copy.deepcopy(net), None, digits, method, tmp_path/score, **settings)
        assert run.config['method']['args']['score'] == score
        shown[score] = [run.snapshot(0, i) for i in range(3)]
    for i in range(3):
        shot = shown['log_probability'][i]
        assert shot.info['methods']['SaliencyGuided']['score'] == 'log_probability'
        x = torch.tensor(shot.arrays['input'].astype(np.float32))[None]
        def score(outputs, rows): return outputs.logits.log_softmax(-1)[:, shot.label]
        expected = explain(before, dict(pixel_values=x), method='gradient', target=score).values[0].numpy()
        ours = shot.arrays['method_saliency_map']
        close = dict(rtol=1e-2, atol=2e-3*np.abs(expected).max()) # stored in half precision
        np.testing.assert_allclose(ours, expected, **close)
        low = {tuple(at) for at in np.argwhere(shot.arrays['is_masked_map'])}
        threshold = max(expected[at] for at in low)
        assert len(low) == 392 and sum(expected[at] > threshold for at in np.ndindex(28, 28)) <= 392
        assert not np.allclose(ours, shown['logit'][i].arrays['method_saliency_map'], rtol=1e-2, atol=0)
    with pytest.raises(ValueError, match='cannot resume .*different values for method; pass the arguments'):
        other = SaliencyGuided(mask_fraction=.5)
        train(copy.deepcopy(net), None, digits, other, tmp_path/'log_probability', resume=True, **settings)


def case(kind, dropout=0.):
    "Return a model and a batch that fits it"
    if kind in ('bert', 'llama'): return tiny(kind, dropout), collate(random_rows(12))
    return Net(kind, dropout), collate(random_rows(12)) if kind == 'words' else signals(kind)


def step(method, model, batch, seed=0):
    """Run one training step without the optimiser

    Return plan, outputs, loss, gradients of the parameters, and how many examples passed in each mode (a pass may group
    examples of similar length)."""
    passes = Counter()
    method.saliency_for(model, batch) # as `check` does before training
    handle = model.register_forward_hook(lambda *a: passes.update([model.training]*len(a[2].logits)))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        plan = method.plan(model, batch, Progress(step=3, seed=1))
        outputs, maps = _run_passes(model, model, batch, plan)
        loss = nn.functional.cross_entropy(outputs['main'].logits,
                                           batch['labels']) + sum(t.weight*t.loss.mean()
                                                                  for t in method.terms(
            outputs, maps, plan, batch, Progress()).values())
        assert all(p.grad is None for p in model.parameters())
        gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    handle.remove()
    return plan, outputs, loss.detach(), gradients, passes


@pytest.mark.sample(7)
@pytest.mark.parametrize('kind', ['bert', 'llama', 'words', 'conv', 'lstm'])
@pytest.mark.parametrize('target', ['gold', 'predicted'])
def test_without_dropout_reusing_the_training_pass_saves_a_pass_and_changes_nothing(kind, target):
    model, batch = case(kind)
    model.train()
    (a, _, loss, gradients, passes), (b, _, again, others, fewer) = (
        step(SaliencyGuided(mask_fraction=.5, target=target,
                            variant=SaliencyGuidedVariant(passes=p)), model, batch) for p in ('eval', 'reuse'))
    examples = len(batch['labels'])
    assert passes == {False: examples, True: 2*examples} and fewer == {True: 2*examples}
    assert a.evidence.keys() == b.evidence.keys()
    for k, v in a.evidence.items():
        if k.startswith('saliency'): torch.testing.assert_close(v, b.evidence[k], rtol=1e-9, atol=1e-13)
        else: assert torch.equal(v, b.evidence[k])
    torch.testing.assert_close(loss, again, rtol=1e-12, atol=0)
    for x, y in zip(gradients, others):
        assert (x is None) == (y is None)
        if x is not None: torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize('kind', ['bert', 'words', 'conv', 'norm', 'lstm'])
@pytest.mark.parametrize('saliency', ['input_x_gradient', None])
def test_reused_pass_has_its_own_saliency_and_leaves_the_gradients_unchanged(kind, saliency):
    model, batch = case(kind, dropout=.4)
    model.train()
    plan, outputs, loss, gradients, _ = step(SaliencyGuided(mask_fraction=.5, saliency=saliency,
                                                            variant=SaliencyGuidedVariant(passes='reuse')), model,
                                             batch, seed=4)
    assert not any(v.requires_grad for v in plan.evidence.values())
    name = 'input_ids' if 'input_ids' in batch else name_of(batch)
    found = plan.evidence['saliency' if name == 'input_ids' else 'saliency_map']
    with torch.random.fork_rng(): # the two passes again, with a masked copy from before
        torch.manual_seed(4)
        x = (model.get_input_embeddings()(batch['input_ids']) if name == 'input_ids'
             else batch[name]).detach().requires_grad_()
        inputs = ({k: batch[k] for k in ('input_ids', 'attention_mask') if k in batch} if name == 'input_ids'
                  else {name: x})
        hook = model.get_input_embeddings().register_forward_hook(lambda *a: x) if name == 'input_ids' else None
        score = model(**inputs).logits[torch.arange(len(x)), batch['labels']].sum()
        if hook: hook.remove()
        gradient, = torch.autograd.grad(score, x)
        gradient = gradient*x.detach() if saliency else gradient
        of_token = gradient.norm(dim=-1) if kind == 'bert' and not saliency else gradient.sum(-1)
        expected = (of_token*batch['attention_mask'] if name == 'input_ids' else gradient.mean(1)
                    if name == 'pixel_values' else gradient)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)
        torch.manual_seed(4)
        main, masked = model(**{k: batch[k] for k in inputs}), model(**{**{k: batch[k] for k in inputs},
                                                                        name: plan.evidence[
            'masked_input' if name == 'input_ids' else 'masked_map']})
        assert torch.equal(main.logits, outputs['main'].logits) and torch.equal(masked.logits, outputs['masked'].logits)
        p, q = main.logits.log_softmax(-1), masked.logits.log_softmax(-1)
        alone = nn.functional.nll_loss(p, batch['labels']) + (p.exp()*(p - q)).sum(-1).mean()
        for a, b in zip(gradients, torch.autograd.grad(alone, list(model.parameters()), allow_unused=True)):
            assert (a is None) == (b is None)
            if a is not None: torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)
    assert torch.equal(loss, alone.detach()) or abs(loss - alone) < 1e-14


def test_default_saliency_is_that_of_the_paper_unless_tokens_are_normalised():
    row = dict(input_ids=[CLS, 11, 12, 13, SEP])
    expected = dict(bert='gradient_norm', gpt2='gradient_norm', llama='gradient_norm', words='gradient',
                    conv='gradient', norm='gradient', lstm='gradient')
    for kind, saliency in expected.items():
        model = tiny(kind) if kind in ('bert', 'gpt2', 'llama') else Net(kind)
        batch = (collate(random_rows(1)) if hasattr(model, 'get_input_embeddings')
                 and kind not in ('conv', 'norm', 'lstm') else signals(kind))
        data = dict(train=[row if 'input_ids' in batch else {k: v[0].tolist() for k, v in batch.items()}])
        method = SaliencyGuided()
        method.check(model, None, data, 1)
        assert method.chosen == {type(model): saliency}, kind
        trainer = trainer_of(model, None)
        method.prepare(trainer)
        assert trainer.run.state == dict(saliency_method=saliency) and method.args()['saliency'] is None
        default, named = (m.plan(model, batch, Progress()).evidence
                          for m in (method, SaliencyGuided(saliency=saliency)))
        assert all(torch.equal(v, named[k]) for k, v in default.items())
    # so the default of Llama is a choice, not forced
    for kind, is_rejected in dict(bert=True, gpt2=True, llama=False).items():
        try: SaliencyGuided(saliency='gradient').check(tiny(kind), None, dict(train=[row]), 1)
        except ValueError as e: assert is_rejected and 'identically zero' in str(e)
        else: assert not is_rejected


def test_default_saliency_is_determined_once_for_each_class_of_model(monkeypatch):
    calls, real = [], saliency_guided.default_saliency
    monkeypatch.setattr(saliency_guided, 'default_saliency',
                        lambda model, batch: calls.append(type(model)) or real(model, batch))
    method, words, bert, batch = SaliencyGuided(), Net('words'), tiny(), collate(random_rows(1))
    for i in range(3):
        method.plan(words, batch, Progress(step=i)); method.plan(bert, batch, Progress(step=i))
    assert calls == [Net, BertForSequenceClassification]
    SaliencyGuided(saliency='gradient').plan(words, batch, Progress())
    fresh = SaliencyGuided()
    fresh.prepare(trainer_of(words, batch))
    assert calls == [Net, BertForSequenceClassification, Net] and fresh.chosen == {Net: 'gradient'}


class Breaks(SaliencyGuided):
    "Saliency guided training that raises before a step, once"
    def __init__(self, saliency=None):
        super().__init__(mask_fraction=.4, saliency=saliency)
        self.at = None
    def plan(self, model, batch, progress):
        if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
        return super().plan(model, batch, progress)
    def args(self): return dict(saliency=self.saliency)


@pytest.mark.slow
def test_resumed_run_keeps_the_default_saliency_it_was_started_with(tmp_path, tiny_bert, tiny_tokenizer, tiny_data,
                                                                    monkeypatch):
    def trained(name, method, model=None, **kwargs):
        settings = dict(epochs=2, batch_size=8, learning_rate=1e-3, probes=1, snapshots=2, progress=False)
        return train(model or tiny_bert(), tiny_tokenizer, tiny_data, method, tmp_path/name, **settings, **kwargs)
    now = saliency_guided.default_saliency
    monkeypatch.setattr(saliency_guided, 'default_saliency', lambda model, batch: 'input_x_gradient') # as it was
    whole, method = trained('whole', Breaks()), Breaks()
    method.at = 8
    with pytest.raises(KeyboardInterrupt): trained('run', method)
    monkeypatch.setattr(saliency_guided, 'default_saliency', now)
    again = Breaks()
    run = trained('run', again, tiny_bert(seed=9), resume=True)
    assert run.finished and run.state['saliency_method'] == whole.state['saliency_method'] == 'input_x_gradient'
    assert [(r['step'], r['loss']) for r in run.train_rows] == [(r['step'], r['loss']) for r in whole.train_rows]
    for s in whole.snapshots():
        for k, x in s.arrays.items(): assert np.array_equal(x, run.snapshot(s.step, s.probe).arrays[k]), (s.step, k)
    # a new run of the same method object uses the current default; a named saliency is another method
    assert trained('new', again).state['saliency_method'] == 'gradient_norm'
    broken = Breaks()
    broken.at = 8
    with pytest.raises(KeyboardInterrupt): trained('other', broken)
    with pytest.raises(ValueError, match='cannot resume .*different values for method; pass the arguments'):
        trained('other', Breaks('input_x_gradient'), resume=True)


@pytest.mark.parametrize('kind, kwargs, message', [
    ('words', dict(fill='mean'),
     'fill and fill_range only apply to images and series; in text, words with low saliency are replaced by'),
    ('words', dict(fill=0), 'fill and fill_range only apply to images and series'),
    ('words', dict(fill_range='sample'), 'fill and fill_range only apply to images'),
    ('words', dict(fill=torch.zeros(2)), 'fill and fill_range only apply to images'),
    ('conv', dict(first='mask'),
     "first='mask' only applies to text; for images and series, use fill to choose the replacement"),
    ('lstm', dict(saliency='gradient_abs'),
     "saliency='gradient_abs' only applies to text; for images and series, use 'gradient' .with ranking='magnitude'"),
    ('conv', dict(saliency='gradient_norm'), "saliency='gradient_norm' only applies to text"),
    ('conv', dict(fill=torch.zeros(3)),
     r'fill has shape \[3\], which is not broadcastable to the shape of an example, \[3, 4, 5\]'),
    ('lstm', dict(fill=torch.zeros(1, 7, 5)),
     r'fill has shape \[1, 7, 5\], which is not broadcastable to the shape of an example, \[7, 5\]')])
def test_check_raises_for_options_that_do_not_fit_the_data(kind, kwargs, message):
    row = (dict(input_ids=[CLS, 11, 12, SEP]) if kind == 'words'
           else {k: v[0].tolist() for k, v in signals(kind).items()})
    with pytest.raises(ValueError, match='SaliencyGuided: ' + message):
        SaliencyGuided.from_args(kwargs).check(Net(kind), None, dict(train=[row]), 1)


@pytest.mark.parametrize('kind, fill',
                         [('conv', torch.ones(3, 4, 5)), ('conv', torch.ones(3, 1, 1)), ('conv', torch.ones(5)),
                          ('lstm', torch.ones(5)), ('lstm', 1), ('lstm', torch.tensor(1.))])
def test_fill_accepts_every_shape_that_expands_to_a_sample(kind, fill):
    batch = signals(kind)
    method, row = SaliencyGuided(mask_fraction=.5, fill=fill), {k: v[0].tolist() for k, v in batch.items()}
    method.check(Net(kind), None, dict(train=[row]), 1)
    plan = method.plan(Net(kind), batch, Progress())
    where = plan.evidence['is_masked_map']
    assert (plan.evidence['masked_map'].movedim(1, -1)[where] if kind == 'conv'
            else plan.evidence['masked_map'][where]).eq(1).all()
    assert where.any()


@pytest.mark.parametrize('saliency', ['input_x_gradient', 'integrated_gradients'])
def test_other_saliencies_rank_signals(saliency):
    model, batch = Net('lstm'), signals('lstm')
    plan = SaliencyGuided(mask_fraction=.5, saliency=saliency).plan(model, batch, Progress())
    x, m, total = batch['values'][1], 20, torch.zeros(7, 5).double()
    for i in range(m if saliency == 'integrated_gradients' else 1): # midpoints of the path from zeros
        at = (i + .5)/m if saliency == 'integrated_gradients' else 1.
        total += reference_map(model, 'values', x*at, batch['labels'][1].item())
    expected = x*total/(m if saliency == 'integrated_gradients' else 1)
    np.testing.assert_allclose(plan.evidence['saliency_map'][1].numpy(), expected.numpy(), rtol=1e-8, atol=1e-12)
    assert {i for i in np.ndindex(7, 5)
            if plan.evidence['is_masked_map'][1][i]} == reference_low(plan.evidence['saliency_map'][1], .5, 'signed')


small = {'digit-cnn': dict(shape=(1, 12, 10), filters=(2, 3), hidden_size=6),
         'resnet18': dict(shape=(3, 8, 8), filters=(8, 8, 12, 12)),
         'lstm': dict(shape=(6, 5)), 'input-cell-lstm': dict(shape=(6, 5)), 'tcn': dict(shape=(12, 4)),
         'transformer': dict(shape=(6, 5)),
         'text-lstm': dict(vocab_size=100, embedding_size=6, hidden_size=5)}


@pytest.mark.parametrize('passes', ['eval', 'reuse'])
@pytest.mark.parametrize('name', nets)
def test_every_small_net_is_supported_and_not_changed(name, passes):
    model = small_net(name, num_labels=3, **small[name]).double()
    rng = np.random.default_rng(3)
    if name == 'text-lstm': batch = collate(random_rows(13))
    else:
        batch = {model.main_input_name: torch.tensor(rng.normal(size=(5, *model.config.shape))),
                 'labels': torch.arange(5) % 3, 'example_id': torch.arange(5)}
    what, row = model.main_input_name, {k: v[0].tolist() for k, v in batch.items()}
    method = SaliencyGuided(mask_fraction=.5, variant=SaliencyGuidedVariant(passes=passes))
    method.check(model, SimpleNamespace(mask_token_id=MASK), dict(train=[row]), 1)
    assert method.chosen == {type(model): 'gradient'}
    for b in model.buffers(): # running statistics that differ from those of a new net
        if b.is_floating_point(): b.add_(torch.tensor(rng.uniform(-.1, .1, b.shape)))
    model.train()
    before, buffers = state(model), [b.clone() for b in model.buffers()]
    plan = method.plan(model, batch, Progress())
    assert same(before, state(model)) and same(buffers, list(model.buffers()))
    assert name != 'resnet18' or len(buffers) > 40
    if passes == 'reuse': # as the recorder does: the same pass, in eval mode
        model.eval()
        _run_passes(model, model, batch, plan)
        model.train()
    found = plan.evidence['saliency' if what == 'input_ids' else 'saliency_map']
    model.eval()
    for i in range(5):
        n = int(batch['attention_mask'][i].sum()) if what == 'input_ids' else None
        x = (model.get_input_embeddings()(batch['input_ids'][i, :n]) if n
             else batch[what][i]).detach()[None].requires_grad_()
        gradient, = torch.autograd.grad(model(**{'inputs_embeds' if n else what: x}).logits[0, batch['labels'][i]], x)
        expected = gradient[0].sum(-1) if n else gradient[0].mean(0) if what == 'pixel_values' else gradient[0]
        assert expected.abs().max() > 0
        torch.testing.assert_close(found[i, :n] if n else found[i], expected, rtol=1e-8, atol=1e-12)


def test_batch_normalisation_has_other_statistics_in_a_reused_pass():
    model, batch = Net('norm'), signals('norm')
    model.train()
    (own, *_), (reused, *_) = (step(SaliencyGuided(mask_fraction=.5,
                                                   variant=SaliencyGuidedVariant(passes=p)), model, batch)
                               for p in ('eval', 'reuse'))
    assert (own.evidence['saliency_map'] - reused.evidence['saliency_map']).abs().max() > 1e-3


@pytest.mark.parametrize('reentrant', [True, False])
def test_reused_pass_raises_with_gradient_checkpointing(reentrant):
    model, row = tiny(), dict(input_ids=[CLS, 11, 12, 13, SEP])
    model.gradient_checkpointing_enable(dict(use_reentrant=reentrant))
    with pytest.raises(ValueError,
                       match="SaliencyGuided: passes='reuse'.*gradient checkpointing.*use passes='eval', or call "
                       "model.gradient_checkpointing_disable") as e:
        SaliencyGuided(variant=SaliencyGuidedVariant(passes='reuse')).check(model, None, dict(train=[row]), 1)
    assert '\n' not in str(e.value)
    method, batch = SaliencyGuided(mask_fraction=.5), collate(random_rows(14))
    method.check(model, None, dict(train=[row]), 1)
    found = []
    for checkpointed in (True, False): # a separate pass works with and without
        if not checkpointed: model.gradient_checkpointing_disable()
        model.train().zero_grad()
        plan = method.plan(model, batch, Progress())
        outputs, maps = _run_passes(model, model, batch, plan)
        method.terms(outputs, maps, plan, batch, Progress())['consistency'].loss.sum().backward()
        found.append((plan.evidence, [p.grad.clone() for p in model.parameters()]))
    (with_it, gradients), (without, others) = found
    assert with_it['is_masked'].any() and all(torch.equal(v, without[k]) for k, v in with_it.items())
    assert any(g.any() for g in gradients)
    for a, b in zip(gradients, others): torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)
    SaliencyGuided(variant=SaliencyGuidedVariant(passes='reuse')).check(model, None, dict(train=[row]), 1)


@pytest.mark.parametrize('shape', [(2, 5, 3), (2, 1, 4, 4)])
def test_noise_requires_example_ids(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError,
                       match="fill='uniform' requires example_id to draw random numbers, got None; pass") as e:
        fill_values(x)
    assert '\n' not in str(e.value)
    batch = dict({'values' if len(shape) == 3 else 'pixel_values': x.double(), 'labels': torch.tensor([0, 1])})
    if len(shape) == 3: model = small_net('lstm', shape=shape[1:], num_labels=3, hidden_size=4).double()
    else: model = small_net('digit-cnn', shape=(1, 12, 10), num_labels=3, filters=(2, 3), hidden_size=4).double()
    if len(shape) == 4: batch['pixel_values'] = torch.randn(2, 1, 12, 10).double()
    with pytest.raises(ValueError, match='requires example_id'):
        SaliencyGuided(mask_fraction=.5).plan(model, batch, Progress())
    for fill in ('mean', 2., torch.tensor(1.)): assert fill_values(x, fill).shape == x.shape


@pytest.mark.parametrize('steps', [1, 3, 7, 20])
def test_integrated_gradients_use_the_requested_number_of_nodes(steps):
    model, batch = Net('lstm'), signals('lstm')
    method = SaliencyGuided(mask_fraction=.5, saliency='integrated_gradients',
                            variant=SaliencyGuidedVariant(steps=steps))
    assert method.args()['steps'] == steps
    plan = method.plan(model, batch, Progress())
    for i, x in enumerate(batch['values']):
        total = sum(reference_map(model, 'values', x*(j + .5)/steps, batch['labels'][i].item()) for j in range(steps))
        np.testing.assert_allclose(plan.evidence['saliency_map'][i].numpy(), (x*total/steps).numpy(), rtol=1e-8,
                                   atol=1e-12)


@pytest.mark.parametrize('steps', [0, -3, 2.5, True, None, '20'])
def test_steps_must_be_a_positive_integer(steps):
    with pytest.raises(ValueError, match='SaliencyGuided: steps must be a positive integer, got'):
        SaliencyGuided(saliency='integrated_gradients', variant=SaliencyGuidedVariant(steps=steps))


@pytest.mark.parametrize('saliency', [None, 'gradient', 'input_x_gradient', 'gradient_norm', 'gradient_abs'])
def test_steps_raise_for_saliencies_without_a_path(saliency):
    twenty = SaliencyGuided(saliency=saliency, variant=SaliencyGuidedVariant(steps=20))
    assert SaliencyGuided(saliency=saliency).args()['steps'] == twenty.steps == 20
    with pytest.raises(ValueError,
                       match="SaliencyGuided: steps=21 only applies to saliency='integrated_gradients'") as e:
        SaliencyGuided(saliency=saliency, variant=SaliencyGuidedVariant(steps=21))
    assert '\n' not in str(e.value)
