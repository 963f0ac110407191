"Causal language models against loops over the target positions, in float64, with and without padding"
import copy
import math

import datasets
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from helpers import alike
from salviz.attribution.explanations import explain
from salviz.core.maths import retained_count
from salviz.data.texts import Collator, align_answers, encode
from salviz.metrics.scores import next_token_metrics
from salviz.methods import (
    ADDrop, ADDropVariant, AttentionGuidance, AttentionGuidanceVariant, SaliencyGuided, SaliencyGuidedVariant)
from salviz.methods.base import Progress
from salviz.methods.saliency_guided import mask_words
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.loading import load_model_for, is_bidirectional, tasks_of_kind
from salviz.models.tasks import tasks
from salviz.training.step import _run_passes
from salviz.training.trainer import train

VOCABULARY, PAD, EVEN = 40, 0, Progress(step=12, epoch=2, seed=5)
task = tasks['causal_lm']

def tiny(kind, dtype=torch.float64):
    "Return a random language model whose predictions are far from uniform"
    common = dict(vocab_size=VOCABULARY, pad_token_id=PAD, bos_token_id=1, eos_token_id=2, initializer_range=.4)
    no_dropout = dict(attn_pdrop=0., resid_pdrop=0., embd_pdrop=0.)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if kind == 'gpt2':
            model = GPT2LMHeadModel(GPT2Config(n_embd=24, n_layer=2, n_head=4, n_positions=32, **no_dropout, **common))
        else:
            model = LlamaForCausalLM(LlamaConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=4,
                                                 num_key_value_heads=2, intermediate_size=32, **common))
    return model.to(dtype).eval()

def rows(answered):
    "Return three examples of uneven length; if `answered`, the last tokens are the answer and its end"
    g, found = np.random.default_rng(0), []
    for i, (prompt, answer) in enumerate(((5, 2), (2, 3), (3, 1))):
        n = prompt + answer + answered
        ids = g.integers(3, VOCABULARY, n)
        segments = np.repeat([0, 1], [prompt, n - prompt])
        if answered: ids[-1], segments[-1] = 2, -1
        labels = [int(ids[k + 1]) if k + 1 < n and (k + 1 >= prompt or not answered) else -100 for k in range(n)]
        found.append(dict(input_ids=ids.tolist(), attention_mask=[1]*n, labels=labels, example_id=i, length=n,
                         segments=segments.tolist() if answered else [0]*n,
                         word_ids=[k if segments[k] >= 0 else -1 for k in range(n)],
                         special_tokens_mask=[int(segments[k] < 0) for k in range(n)]))
    return found

def collated(some, side='right'):
    class Pads: pad_token_id = PAD
    batch = Collator(Pads())(some)
    if side == 'right': return batch
    moved = {}
    for name, x in batch.items():
        moved[name] = x if x.dim() < 2 else torch.stack([row.roll(x.shape[1] - r['length'])
                                                         for row, r in zip(x, some)])
    return moved

def log_p(model, row):
    "Return log p of the next token at each position of one example, from a separate pass"
    logits = model(torch.tensor([row['input_ids']])).logits[0]
    return logits - torch.logsumexp(logits, -1, keepdim=True)

kinds, forms = pytest.mark.parametrize('kind', ['gpt2', 'llama']), pytest.mark.parametrize('answered', [False, True])

@kinds
@forms
def test_loss_is_the_mean_cross_entropy_at_target_positions(kind, answered):
    model, some = tiny(kind), rows(answered)
    batch = collated(some)
    outputs = model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'])
    expected, expected_score, surprise, right = [], [], [], []
    for row in some:
        p = log_p(model, row)
        targets = [(k, label) for k, label in enumerate(row['labels']) if label != -100]
        assert len(targets) == (sum(s == 1 for s in row['segments']) + 1 if answered else len(row['labels']) - 1)
        expected.append(-sum(p[k, label] for k, label in targets) / len(targets))
        expected_score.append(sum(p[k].max() for k, _ in targets) / len(targets))
        surprise += [-p[k, label].item() for k, label in targets]
        right += [p[k].argmax().item() == label for k, label in targets]
    assert alike(task.loss(outputs, batch), torch.stack(expected), dtype=torch.float32 if kind == 'llama' else None)
    choice = task.predicted(outputs, batch)
    assert alike(task.prediction_score(outputs, batch, choice), torch.stack(expected_score),
                 dtype=torch.float32 if kind == 'llama' else None)
    scores = next_token_metrics(batch['labels'].numpy(), task.read_by_metrics(outputs, batch).numpy())
    assert scores['accuracy'] == pytest.approx(np.mean(right))
    assert scores['perplexity'] == pytest.approx(math.exp(np.mean(surprise)), rel=1e-5)

def test_the_perplexity_of_a_split_is_over_its_tokens_whatever_the_batches(tmp_path, tiny_tokenizer):
    texts = ['a good film', 'a bad film that goes on and on and on', 'good', 'the film is the film is the film']
    data = datasets.DatasetDict({k: datasets.Dataset.from_dict(dict(text=texts))
                                 for k in ('train', 'validation', 'test')})
    tokenizer = train_tokenizer(texts, 60, form='encoder')
    ends = []
    for batch_size in (1, 4):
        model = small_model('causal_lm', tokenizer, hidden=16, heads=2, max_length=32)
        run = train(model, tokenizer, data, run_dir=tmp_path/str(batch_size), epochs=1, batch_size=4, probes=1,
                    snapshots=0, progress=False, learning_rate=1e-9,
                    args=dict(per_device_eval_batch_size=batch_size))
        ends.append(run.scores('test')['perplexity'])
    with torch.no_grad():
        nats = []
        for row in encode(data['test'], tokenizer, task='causal_lm'):
            p = model(torch.tensor([row['input_ids']])).logits[0].double().log_softmax(-1)
            nats += [-p[k, label].item() for k, label in enumerate(row['labels']) if label != -100]
    assert ends == pytest.approx([math.exp(np.mean(nats))]*2, rel=1e-4)

def coarse(kind): return dict(size=4096, dtype=torch.float32) if kind == 'llama' else dict(size=4096) # RMSNorm

@pytest.mark.sample(11)
@pytest.mark.parametrize('kind, side', [('gpt2', 'right'), ('llama', 'right'), ('llama', 'left')])
@forms
@pytest.mark.parametrize('places', ['all', 'last'])
@pytest.mark.parametrize('target', ['pseudo', 'gold'])
def test_ad_drop_attributes_minus_the_cross_entropy_of_each_example_alone(kind, side, answered, places, target):
    "GA of eq. 4 is dF/dA, F: minus the mean cross-entropy at the places, one example at a time without padding"
    model, some = tiny(kind), rows(answered)
    batch = collated(some, side)
    method = ADDrop(p=.5, q=.5, cross_tuning=False, target=target,
                    variant=ADDropVariant(places=places, first_pass='eval'))
    attribution, allowed = method.attributed(model, batch, EVEN)
    dropped = method.plan(model, batch, EVEN).evidence['discard_candidates']
    eager = copy.deepcopy(model)
    eager.set_attn_implementation('eager')
    for i, row in enumerate(some):
        out = eager(torch.tensor([row['input_ids']]), output_attentions=True)
        p, n = out.logits[0].log_softmax(-1), len(row['input_ids'])
        targets = [k for k, label in enumerate(row['labels']) if label != -100]
        if places == 'last': targets = targets[-1:]
        chosen = [row['labels'][k] if target == 'gold' else int(p[k].argmax()) for k in targets]
        F = sum(p[k, c] for k, c in zip(targets, chosen)) / len(targets)
        real, seen = batch['attention_mask'][i].bool(), torch.ones(n, n, dtype=torch.bool).tril()
        for l, g in enumerate(torch.autograd.grad(F, out.attentions)):
            ours = attribution[l][i][:, real][:, :, real]
            assert alike(ours * seen, g[0].to(ours.dtype) * seen, **coarse(kind))
            assert torch.equal(allowed[l][i, 0][real][:, real], seen)
            for h in range(len(ours)):
                for q in range(n): # eq. 6, row by row: the retained_count(q + 1, p) lowest stay
                    k = retained_count(q + 1, .5)
                    row_values = ours[h, q, :q + 1]
                    expected = (row_values >= row_values.sort().values[min(k, q)]) if k < q + 1 else row_values < -1e99
                    assert torch.equal(dropped[l][i, h][real][:, real][q, :q + 1], expected)

@pytest.mark.sample(7)
@kinds
@forms
@pytest.mark.parametrize('target', ['gold', 'predicted'])
@pytest.mark.parametrize('passes', ['eval', 'reuse'])
def test_saliency_guided_training_compares_next_tokens_and_masks_no_answer(kind, answered, target, passes):
    model, some = tiny(kind), rows(answered)
    batch = collated(some)
    method = SaliencyGuided(mask_fraction=.5, target=target, saliency='input_x_gradient', weight=2.,
                            variant=SaliencyGuidedVariant(passes=passes))
    plan = method.plan(model, batch, EVEN)
    outputs, maps = _run_passes(model, model, batch, plan)
    term = method.terms(outputs, maps, plan, batch, EVEN)['consistency']
    assert term.weight == 2.
    embed = model.get_input_embeddings()
    for i, row in enumerate(some):
        x = embed(torch.tensor([row['input_ids']])).detach().requires_grad_()
        p = model(inputs_embeds=x).logits[0].log_softmax(-1)
        targets = [k for k, label in enumerate(row['labels']) if label != -100]
        F = sum(p[k, row['labels'][k] if target == 'gold' else int(p[k].argmax())] for k in targets) / len(targets)
        saliency = (torch.autograd.grad(F, x)[0] * x).sum(-1)[0]
        words = torch.tensor([[w if s == 0 else -1 for w, s in zip(row['word_ids'], row['segments'])]])
        ids, is_masked = mask_words(torch.tensor([row['input_ids']]), saliency[None].detach(), words,
                                    torch.tensor([row['segments']]), .5)
        n = len(row['input_ids'])
        assert torch.equal(plan.evidence['masked_input'][i, :n], ids[0])
        assert is_masked.any() and not any(m and s != 0 for m, s in zip(is_masked[0], row['segments']))
        q = model(ids).logits[0].log_softmax(-1)
        divergences = [sum(p[k, v].exp() * (p[k, v] - q[k, v]) for v in range(VOCABULARY)) for k in targets]
        assert alike(term.loss[i].double(), sum(divergences) / len(targets), **coarse(kind))

@pytest.mark.parametrize('patterns, boundary', [({'next': [0]}, 'uniform'), ({'next': [0]}, 'zero'),
                                                ({'prev': [0]}, 'uniform'), (None, 'uniform')])
def test_patterns_that_look_ahead_are_rejected(patterns, boundary, tmp_path, tiny_data, tiny_tokenizer):
    model = small_model('causal_lm', copy.deepcopy(tiny_tokenizer), hidden=16, heads=4, max_length=64)
    with pytest.raises(ValueError, match='has keys that the attention mask of GPT2LMHeadModel excludes'):
        train(model, tiny_tokenizer, tiny_data, AttentionGuidance(patterns=patterns, alpha=1.,
                                                                  variant=AttentionGuidanceVariant(boundary=boundary)),
              run_dir=tmp_path/'run', epochs=1, batch_size=8, progress=False)
    assert not (tmp_path/'run').exists()

def test_unsuitable_data_and_arguments_raise_before_training(tmp_path, tiny_data, tiny_tokenizer):
    quick = dict(run_dir=tmp_path/'run', epochs=1, batch_size=8, progress=False)
    two_sided = BertLMHeadModel(BertConfig(vocab_size=len(tiny_tokenizer), hidden_size=16, num_hidden_layers=1,
                                           num_attention_heads=2, intermediate_size=16))
    message = 'BertLMHeadModel attends to the tokens that it must predict.*is_decoder=True'
    with pytest.raises(ValueError, match=message):
        train(two_sided, tiny_tokenizer, tiny_data, **quick)
    model = small_model('causal_lm', copy.deepcopy(tiny_tokenizer), hidden=16, heads=2, max_length=64)
    paired = datasets.DatasetDict({k: d.add_column('text_pair', list(d['text'])) for k, d in tiny_data.items()})
    with pytest.raises(ValueError, match='has a column text_pair: append it to text, or rename it to target_text'):
        train(model, tiny_tokenizer, paired, **quick)
    with pytest.raises(ValueError, match='ADDrop: places=.last. only applies to causal_lm'):
        train(small_model('classification', copy.deepcopy(tiny_tokenizer), num_labels=2), tiny_tokenizer, tiny_data,
              ADDrop(cross_tuning=False, variant=ADDropVariant(places='last')), **quick)
    with pytest.raises(ValueError, match="places='last' has no effect with attribution='attention'"):
        ADDrop(attribution='attention', variant=ADDropVariant(places='last'))
    with pytest.raises(ValueError, match="score='log_probability' only applies to classification"):
        train(model, tiny_tokenizer, tiny_data, SaliencyGuided(variant=SaliencyGuidedVariant(score='log_probability')),
              **quick)
    with pytest.raises(ValueError, match='has the model type bert, for which transformers has no causal'):
        load_model_for('causal_lm')
    assert not (tmp_path/'run').exists()

@pytest.mark.parametrize('kind', ['bert', 'roberta', 'electra', 'bart', 'marian', 'whisper'])
def test_bidirectional_models_do_not_support_next_tokens(kind):
    from transformers import AutoConfig
    assert 'causal_lm' not in tasks_of_kind(AutoConfig.for_model(kind))

@pytest.mark.parametrize('kind', ['gpt2', 'llama', 'qwen2', 'opt', 'gpt_neox', 'mistral'])
def test_causal_models_support_next_tokens(kind):
    from transformers import AutoConfig
    assert 'causal_lm' in tasks_of_kind(AutoConfig.for_model(kind))

def test_truncated_answers_keep_their_end(tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    for longest in range(5, 40):
        t, = align_answers(tokenizer, ['a b c d e f g h i j k l m n'], ['o p q'], longest)
        assert len(t.input_ids) <= longest and t.input_ids[-1] == tokenizer.eos_token_id
        assert len(t.tokens) == len(t.labels) == len(t.offsets) == len(t.segments) == len(t.word_ids) == len(
            t.is_special) == len(t.input_ids)

@pytest.mark.parametrize('template_ends', [True, False])
def test_token_types_of_answers_are_those_of_their_segments_wherever_they_are_cut(template_ends):
    tokenizer = train_tokenizer(['a b c d e f g h i o p q r s t u'], 60) # like an encoder's, with [SEP] after each text
    if not template_ends: tokenizer.eos_token = tokenizer.mask_token
    row = datasets.Dataset.from_dict(dict(text=['a b c d e f g h i'], target_text=['o p q r s t u']))
    for longest in range(6, 24):
        one, = encode(row, tokenizer, longest, task='causal_lm')
        types, segments = one['token_type_ids'], one['segments']
        assert len(types) == len(segments) <= longest
        assert all(t == s for t, s in zip(types, segments) if s >= 0) and types[-1] == 1

def test_why_this_next_token_is_what_explain_answers_without_labels(tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    model = small_model('causal_lm', tokenizer, hidden=16, heads=2, max_length=64).double()
    texts = ['a good film', 'a bad film , and a long one']
    for target in ('predicted', 7):
        found = explain(model, texts, 'input_x_gradient', target, tokenizer=tokenizer)
        for i, text in enumerate(texts):
            ids = torch.tensor([tokenizer(text)['input_ids']])
            x = model.get_input_embeddings()(ids).detach().requires_grad_()
            p = model(inputs_embeds=x).logits[0, -1].log_softmax(-1)
            score = p.max() if target == 'predicted' else p[target]
            expected = (torch.autograd.grad(score, x)[0] * x).sum(-1)[0].detach()
            assert alike(found.score[i], score.detach()) and alike(found.values[i, :ids.shape[1]], expected, size=4096)
    with pytest.raises(ValueError, match='the id of a possible next token'):
        explain(model, texts, target=-1, tokenizer=tokenizer)
    with pytest.raises(ValueError, match="target='gold' for causal_lm needs labels"):
        explain(model, texts, target='gold', tokenizer=tokenizer)

def test_further_columns_of_prompts_and_answers_stay_with_their_tokens(tmp_path, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    marks = [[1, 0, 0, 1], [0, 1, 1]]
    data = datasets.Dataset.from_dict(dict(text=['good or bad', 'is it'], target_text=['good', 'bad'],
                                           rationale=marks))
    data = datasets.DatasetDict(train=data, validation=data, test=data)
    model = small_model('causal_lm', tokenizer, hidden=16, heads=2, max_length=64)
    run = train(model, tokenizer, data, run_dir=tmp_path/'run', epochs=1, batch_size=2, probes='validation',
                progress=False)
    for i, words in enumerate(marks):
        s = run.snapshot(probe=i)
        marked = {s.words[w] for w, m in zip(s.word_ids, s.arrays['rationale']) if m and w >= 0}
        assert marked == {w for w, m in zip(s.words, words) if m}

def test_check_for_causality_changes_no_state():
    from helpers import same, state
    for kind in ('gpt2', 'llama'):
        model = tiny(kind, torch.float32).train()
        before = state(model)
        assert not is_bidirectional(model) and same(before, state(model))
