"Examples and points packed into passes: each once, within the limits, with the same results as one by one"
import numpy as np
import pytest
import torch
from transformers import (BertConfig, BertForSequenceClassification, DistilBertConfig,
                          DistilBertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification,
                          GPT2LMHeadModel,
                          LlamaConfig, LlamaForSequenceClassification, T5Config, T5ForSequenceClassification, ViTConfig,
                          ViTForImageClassification)

from salviz.attribution import packing
from salviz.attribution.explanations import explain
from salviz.attribution.packing import _row_bytes, packed, rows_at_once
from salviz.attribution.saliency import input_saliency
from salviz.models.nets import small_net

sizes = dict(vocab_size=60, num_labels=3, pad_token_id=0, hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
             intermediate_size=32, initializer_range=.3)
kinds = dict(
    bert=lambda: BertForSequenceClassification(BertConfig(**sizes)),
    distilbert=lambda: DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=60, num_labels=3, pad_token_id=0, dim=24, n_layers=2, n_heads=4, hidden_dim=32)),
    gpt2=lambda: GPT2ForSequenceClassification(
        GPT2Config(vocab_size=60, num_labels=3, pad_token_id=0, n_embd=24, n_layer=2, n_head=4)),
    llama=lambda: LlamaForSequenceClassification(LlamaConfig(**sizes, num_key_value_heads=2)),
    t5=lambda: T5ForSequenceClassification(
        T5Config(vocab_size=60, num_labels=3, pad_token_id=0, eos_token_id=1, d_model=24, num_layers=2, num_heads=4,
                 d_kv=6, d_ff=32, decoder_start_token_id=0)))
in_float32 = 'gpt2', 'llama', 't5' # compute a softmax, a norm or rotary angles in float32


def made(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().double().eval()

def sentences(lengths, side='right'):
    draw, longest = torch.Generator().manual_seed(1), max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, n in enumerate(lengths):
        at = slice(0, n) if side == 'right' else slice(longest - n, longest)
        ids[i, at], mask[i, at] = torch.randint(2, 60, (n,), generator=draw), 1
        ids[i, at.stop - 1] = 1
    return dict(input_ids=ids, attention_mask=mask)

def path_by_hand(model, name, x, start, target, inputs, steps):
    "Return integrated gradients of one example, point by point"
    total = torch.zeros_like(x)
    for k in range(steps):
        at = (start + (k + .5) / steps * (x - start)).detach().requires_grad_()
        logits = model(**inputs, **{name: at}).logits
        total += torch.autograd.grad(logits[0, target], at)[0]
    return total / steps * (x - start)


@pytest.mark.sample(2)
@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('kind', ['bert', 'distilbert', 'gpt2', 'llama'])
def test_packed_integrated_gradients_equal_one_sentence_and_one_point_at_a_time(kind, side, monkeypatch):
    model, lengths, steps = made(kinds[kind]), (3, 60, 17, 17, 44, 5, 31, 16), 4
    batch = sentences(lengths, side)
    monkeypatch.setattr(packing, '_most_tokens', 150)
    target, embed = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), model.get_input_embeddings()
    values = input_saliency(model, batch, 'integrated_gradients', target, steps)
    close = dict(rtol=1e-3, atol=1e-5) if kind in in_float32 else dict(rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(explain(model, batch, target=target, steps=steps).values, values, rtol=0, atol=0)
    for i, n in enumerate(lengths):
        real = batch['attention_mask'][i].bool()
        # a decoder with left padding counts its positions, so it must read the same row as in the batch
        ids = batch['input_ids'][i:i + 1] if side == 'left' else batch['input_ids'][i:i + 1, real]
        mask = batch['attention_mask'][i:i + 1] if side == 'left' else torch.ones_like(ids)
        x = embed(ids).detach()
        start = embed(torch.zeros_like(ids)).detach()
        rest = dict(attention_mask=mask)
        if kind in ('gpt2', 'llama'): # these find the pooled token by ids, which are not available here
            by_hand = path_by_embedding(model, ids, mask, x, start, target[i], steps)
        else: by_hand = path_by_hand(model, 'inputs_embeds', x, start, target[i], rest, steps)
        mine = by_hand.sum(-1)[0]
        torch.testing.assert_close(values[i, real], mine[real] if side == 'left' else mine, **close)
        assert (values[i, ~real] == 0).all()

def path_by_embedding(model, ids, mask, x, start, target, steps):
    "Return the same for models that need ids; a hook replaces the embeddings"
    total, at = torch.zeros_like(x), None
    handle = model.get_input_embeddings().register_forward_hook(lambda module, args, out: at)
    for k in range(steps):
        at = (start + (k + .5) / steps * (x - start)).detach().requires_grad_()
        total += torch.autograd.grad(model(input_ids=ids, attention_mask=mask).logits[0, target], at)[0]
    handle.remove()
    return total / steps * (x - start)

def test_packed_integrated_gradients_of_images_equal_one_image_and_one_point_at_a_time(monkeypatch):
    config = ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=8,
                       patch_size=4, num_channels=1, num_labels=3, initializer_range=.3)
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    for model in (made(lambda: ViTForImageClassification(config)),
                  made(lambda: small_net('digit-cnn', shape=(1, 8, 8), num_labels=3, filters=(2, 3), hidden_size=6))):
        monkeypatch.setattr(packing, '_most_tokens', 12)
        target = torch.tensor([0, 1, 2, 0, 1])
        values = input_saliency(model, dict(pixel_values=images), 'integrated_gradients', target, 4)
        for i in range(5):
            start = torch.zeros(1, 1, 8, 8).double()
            one = path_by_hand(model, 'pixel_values', images[i:i + 1], start, target[i], {}, 4)
            torch.testing.assert_close(values[i], one[0].mean(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('copies', [1, 2, 20])
@pytest.mark.parametrize('seed', range(5))
def test_every_example_is_packed_once_and_only_single_ones_exceed_a_pass(copies, seed):
    lengths = np.random.default_rng(seed).integers(1, 600, 80)
    packs = packed(lengths, copies, lambda n: max(1, 1024 // n))
    assert sorted(np.concatenate(packs).tolist()) == list(range(80))
    for pack in packs:
        assert len(pack) == 1 or len(pack) * copies * lengths[pack].max() <= 1024
        assert copies * (lengths[pack].max() - lengths[pack]).sum() <= packing._pass_cost
    assert packed([], 1, None) == []

@pytest.mark.parametrize('copies', [3, 20])
def test_every_pair_of_sentence_and_point_is_read_once_within_the_tokens_of_a_pass(copies, monkeypatch):
    model, lengths, passes = made(kinds['bert']), (3, 60, 17, 17, 44, 5, 31, 16), []
    monkeypatch.setattr(packing, '_most_tokens', 150)
    target = torch.zeros(8, dtype=torch.long)
    model.register_forward_pre_hook(lambda m, args, kwargs: passes.append(kwargs['attention_mask']), with_kwargs=True)
    input_saliency(model, sentences(lengths), 'integrated_gradients', target, copies)
    read = [n for mask in passes for n in mask.sum(1).tolist()]
    assert sorted(read) == sorted(n for n in lengths for _ in range(copies))
    assert all(mask.numel() <= 150 for mask in passes)


@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
@pytest.mark.parametrize('tokens', [8, 300])
@pytest.mark.parametrize('kind', [*kinds, 'lm', 'vit'])
def test_the_memory_estimate_of_a_row_is_an_upper_bound(kind, tokens, attention):
    own = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, patch_size=2,
               image_size=16 if tokens == 8 else 32, num_channels=1)
    more = dict(lm=lambda: GPT2LMHeadModel(GPT2Config(vocab_size=500, n_embd=24, n_layer=2, n_head=4)),
                vit=lambda: ViTForImageClassification(ViTConfig(**own)))
    model = made({**kinds, **more}[kind])
    model.set_attn_implementation(attention)
    for p in model.parameters(): p.requires_grad_(False)
    kept = {}
    def note(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes(), x
        return x
    if kind == 'vit':
        inputs = dict(pixel_values=torch.rand(1, 1, own['image_size'], own['image_size']).double().requires_grad_())
        tokens = (own['image_size'] // 2)**2 + 1
    else:
        inputs = sentences([tokens])
        model.get_input_embeddings().register_forward_hook(lambda m, args, out: out.detach().requires_grad_())
    weights = {p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()]}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x): outputs = model(**inputs)
    if kind == 'lm': outputs.logits.log_softmax(-1)
    assert sum(size for at, (size, _) in kept.items() if at not in weights) <= _row_bytes(model, tokens)
    assert rows_at_once(model, tokens) * _row_bytes(model, tokens) <= packing._most_bytes

def test_occlusion_reads_each_text_once_per_token_and_almost_no_padding():
    model, lengths, passes = made(kinds['bert']), (40, 38, 35, 33, 30, 12, 12, 5), []
    batch, target = sentences(lengths), torch.zeros(8, dtype=torch.long)
    model.register_forward_pre_hook(lambda m, args, kwargs: passes.append(kwargs['attention_mask']), with_kwargs=True)
    input_saliency(model, batch, 'occlusion', target)
    needed = sum(n*(n + 1) for n in lengths) # each token removed, and none
    assert needed <= sum(mask.numel() for mask in passes) <= 1.05*needed
