"All analyses use the model inside the wrapper of peft with its adapter, and equal those of the merged model."
import copy
import inspect

import numpy as np
import pytest
import torch
from peft import IA3Config, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, GPT2Config, GPT2ForSequenceClassification

from helpers import alike, same, state
from salviz.attribution.attention import attention_attribution
from salviz.attribution.explanations import explain
from salviz.attribution.saliency import input_saliency
from salviz.data.texts import Collator, encode, model_inputs
from salviz.models.attention import _layer_count, head_count, observe, query_key, unwrapped
from salviz.models.loading import longest_input, model_name, pooled_rows, twin, weights_version
from salviz.models.tasks import head_of, task_of
from salviz.analysis.corpus import gradient_sizes, head_table
from salviz.analysis.faithfulness import decision_flip, faithfulness
from salviz.analysis.model_maps import _explain_texts

pytestmark = pytest.mark.numeric

kinds = dict(lora=lambda: LoraConfig(task_type='SEQ_CLS', r=2, target_modules=['query', 'value', 'c_attn']),
             dora=lambda: LoraConfig(task_type='SEQ_CLS', r=2, use_dora=True, target_modules=['query', 'c_attn']),
             rslora=lambda: LoraConfig(task_type='SEQ_CLS', r=2, use_rslora=True, target_modules=['key', 'c_attn']),
             ia3=lambda: IA3Config(task_type='SEQ_CLS', target_modules=['key', 'value', 'c_attn'],
                                   feedforward_modules=[]))
models = dict(bert=lambda **kw: BertForSequenceClassification(BertConfig(
                  hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
                  max_position_embeddings=64, pad_token_id=0, **kw)),
              gpt2=lambda **kw: GPT2ForSequenceClassification(GPT2Config(
                  n_embd=16, n_layer=2, n_head=2, n_positions=64, pad_token_id=0, bos_token_id=2, eos_token_id=3,
                  **kw)))

def adapted(kind, tokenizer, model='bert'):
    "Return a model in float64 with a trained adapter, and the merged model"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wrapped = get_peft_model(models[model](vocab_size=len(tokenizer), initializer_range=.3), kinds[kind]()).double()
        with torch.no_grad():
            for name, x in wrapped.named_parameters():
                if 'lora_' in name or 'ia3_' in name: x.add_(torch.randn_like(x) * .3)
    merged = copy.deepcopy(wrapped).merge_and_unload().eval()
    return wrapped.eval(), merged

texts = ['the film is funny and lovely .', 'dull .', 'a warm story of one actor']

@pytest.fixture
def batch(tiny_tokenizer, tiny_data):
    rows = encode(tiny_data, tiny_tokenizer)['train']
    return Collator(tiny_tokenizer)([rows[i] for i in range(4)])

@pytest.mark.sample(2)
@pytest.mark.parametrize('model', models)
@pytest.mark.parametrize('kind', kinds)
def test_maps_and_attributions_of_adapted_and_merged_models_are_equal(kind, model, tiny_tokenizer, batch):
    wrapped, merged = adapted(kind, tiny_tokenizer, model)
    base = copy.deepcopy(wrapped).unload().eval()
    before, seen = state(wrapped), []
    for m in (wrapped, merged, base):
        with torch.no_grad(), observe(m) as maps: logits = m(**model_inputs(batch, m)).logits
        inputs = model_inputs(batch, m)
        q = query_key(m, inputs, -1, 1)
        seen.append([logits, maps.stacked(), q.scores, attention_attribution(m, inputs)[0],
                     input_saliency(m, inputs, 'integrated_gradients', steps=4),
                     input_saliency(m, inputs, 'gradient_norm')])
    assert same(state(wrapped), before)
    for x, y, without in zip(*(map(flat, s) for s in seen)):
        assert alike(x, y, size=256)
        assert not torch.allclose(x, without, rtol=1e-3)

def flat(x):
    return torch.cat([v.flatten() for v in x.values()]) if isinstance(x, dict) else x.flatten()

@pytest.mark.sample(1)
@pytest.mark.parametrize('kind', kinds)
def test_every_module_works_on_the_wrapped_model(kind, tiny_tokenizer, tiny_data, batch):
    wrapped, merged = adapted(kind, tiny_tokenizer)
    assert (task_of(wrapped), head_of(wrapped)) == (task_of(merged), head_of(merged)) == ('classification', 'sequence')
    assert (_layer_count(wrapped), head_count(wrapped)) == (2, 2)
    assert longest_input(wrapped, tiny_tokenizer) == longest_input(merged, tiny_tokenizer)
    assert torch.equal(pooled_rows(wrapped, batch), pooled_rows(merged, batch))
    tables = [head_table(m, texts, tiny_tokenizer, progress=False) for m in (wrapped, merged)]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-7, atol=1e-9)
    assert tables[0].attrs['about'] == tables[1].attrs['about']
    sizes = [gradient_sizes(m, tiny_data['train'].select(range(6)), tiny_tokenizer, progress=False)
             for m in (wrapped, merged)]
    np.testing.assert_allclose(*(s.select_dtypes('number') for s in sizes), rtol=1e-7, atol=1e-9)
    given = [explain(m, texts, 'input_x_gradient', tokenizer=tiny_tokenizer) for m in (wrapped, merged)]
    np.testing.assert_allclose(*(e.values for e in given), rtol=1e-7, atol=1e-9)
    for measure in (faithfulness, decision_flip):
        a, b = (measure(m, texts, given[0], tokenizer=tiny_tokenizer) for m in (wrapped, merged))
        for k in a: np.testing.assert_allclose(a[k], b[k], rtol=1e-6, atol=1e-8)
    for a, b in zip(*(_explain_texts(m, tiny_tokenizer, texts) for m in (wrapped, merged))):
        for k in a.arrays: np.testing.assert_allclose(a.arrays[k], b.arrays[k], rtol=1e-5, atol=1e-6)

def test_a_twin_shares_the_weights_of_an_adapted_model_and_detects_changes(tiny_tokenizer, batch):
    wrapped, _ = adapted('lora', tiny_tokenizer)
    copied, version = twin(wrapped), weights_version(wrapped)
    inputs = model_inputs(batch, wrapped)
    with torch.no_grad():
        assert torch.equal(copied(**inputs).logits, wrapped(**inputs).logits)
        for x in wrapped.parameters():
            if x.requires_grad: x.mul_(2)
        assert torch.equal(copied(**inputs).logits, wrapped(**inputs).logits)
    assert weights_version(wrapped) != version

def test_prompt_adapters_are_rejected_everywhere(tiny_tokenizer):
    model = get_peft_model(models['bert'](vocab_size=len(tiny_tokenizer)),
                           PromptTuningConfig(task_type='SEQ_CLS', num_virtual_tokens=2))
    for function in (unwrapped, _layer_count, task_of, head_of, lambda m: explain(m, texts, tokenizer=tiny_tokenizer)):
        with pytest.raises(ValueError, match='PROMPT_TUNING adds tokens before the text'): function(model)
