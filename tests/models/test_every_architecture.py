"Architectures of transformers: maps equal their own eager attention, or they are rejected with the reason"
import collections
import copy
import json

import pandas as pd
import pytest
import torch
from transformers import (BertConfig, BertModel, Gemma2Config, Gemma2Model, T5GemmaConfig, T5GemmaModel)
from transformers.models.gemma2.modeling_gemma2 import Gemma2ForSequenceClassification

import architectures
from helpers import same, state, word_tokenizer
from salviz import FineTuning, Run, load_text, train
from salviz.models import attention
from salviz.models.attention import attention_layers, attention_parts, check_observable, observe
from salviz.analysis.model_maps import _explain_texts

sizes = dict(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=8, intermediate_size=24, pad_token_id=0)


@pytest.mark.sample(3)
@pytest.mark.parametrize('model_type', ['gemma3_text', 'modernbert-decoder', 'qwen3_5_text', 'dinov3_vit',
                                        'detr', 'videomae', 'sam3_lite_text_text_model'])
def test_observed_attention_equals_the_eager_attention_of_every_architecture(model_type):
    assert architectures.verdict(model_type)[0] == 'correct'


def test_t5gemma_without_a_soft_cap_equals_eager_attention_in_each_part():
    side = dict(sizes, attn_logit_softcapping=None, sliding_window=4,
                layer_types=['sliding_attention', 'full_attention'])
    torch.manual_seed(0)
    model = T5GemmaModel._from_config(T5GemmaConfig(encoder=side, decoder=side), attn_implementation='eager').eval()
    for part in attention_parts(model): architectures.compare(model, architectures.batch_for(model, 'left'), part)


@pytest.mark.parametrize('model_type,reason', [
    ('gpt_oss', 'its eager attention differs from a softmax'),
    ('deepseek_v32', 'keys that an indexer selects'),
    ('mamba', 'none of its layers is an attention layer'), ('gemma3', r'several models \(vision_tower, language_model'),
    ('glm4v_vision', 'its forward method needs hidden_states, grid_thw'),
    ('whisper', 'its forward method needs input_features'),
    ('mpnet', 'MPNetSelfAttention. does not go through')])
def test_a_rejection_states_the_actual_reason(model_type, reason):
    with pytest.raises(ValueError, match=f'cannot be observed: .*{reason}'):
        check_observable(architectures.tiny(model_type))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_soft_caps_are_detected_in_every_dtype(dtype):
    for cap in (None, 50.):
        model = Gemma2Model(Gemma2Config(**sizes, attn_logit_softcapping=cap)).to(dtype)
        if cap is None: assert check_observable(model) is model
        else:
            with pytest.raises(ValueError, match='because of softcap'): check_observable(model)


def test_a_trial_has_no_side_effects_and_calls_no_other_hooks():
    torch.manual_seed(0)
    model, called = BertModel(BertConfig(**{**sizes, 'max_position_embeddings': 16})).train(), []
    for m in model.modules(): m.register_forward_hook(lambda *args: called.append(1))
    model.encoder.layer[1].eval()
    before, config = state(model), copy.deepcopy(vars(model.config))
    check_observable(model)
    assert same(state(model), before) and vars(model.config) == config and not called
    model(input_ids=torch.tensor([[5, 6]]))
    assert called


def test_a_model_and_its_copies_need_one_trial(monkeypatch):
    tried, own = [], attention._tried
    monkeypatch.setattr(attention, '_tried', lambda stack: tried.append(stack) or own(stack))
    model = BertModel(BertConfig(**{**sizes, 'max_position_embeddings': 19})).eval()
    for net in (model, model, copy.deepcopy(model)):
        with observe(net, [0]): net(input_ids=torch.tensor([[5, 6]]))
        assert attention_layers(net) == (0, 1)
    assert tried == [model]


words = [f'word{i} good' if i % 2 else f'word{i} bad' for i in range(20)]


def trained(model, folder):
    data = load_text(pd.DataFrame(dict(text=words, label=['p', 'n'] * 10)))
    return train(model, word_tokenizer(words, longest=16), data, FineTuning(), run_dir=folder, epochs=1, batch_size=8,
                 probes=1, snapshots=2, progress=False)


def hybrid(layer_types):
    "Return a model in which some layers have linear attention, which old versions of transformers do not have"
    from transformers.models import qwen3_5 as qwen
    torch.manual_seed(0)
    config = qwen.Qwen3_5TextConfig(**{**sizes, 'num_hidden_layers': 3}, num_labels=2, linear_num_key_heads=2,
                                    linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
                                    layer_types=layer_types)
    return qwen.modeling_qwen3_5.Qwen3_5TextForSequenceClassification(config)


@pytest.mark.slow
def test_a_run_of_a_hybrid_records_the_layers_that_have_attention(tmp_path):
    trained(hybrid(['linear_attention', 'full_attention', 'linear_attention']), tmp_path/'run')
    run = Run(tmp_path/'run')
    assert run.snapshot(run.steps[-1], 0).layers['attention'] == [1] and run.config['model']['attention_layers'] == [1]


@pytest.mark.parametrize('with_attention', [[1], [0, 1]])
def test_explaining_a_hybrid_names_the_layers_that_have_attention(with_attention):
    kinds = ['full_attention' if i in with_attention else 'linear_attention' for i in range(3)]
    model = hybrid(kinds).eval()
    snapshot = _explain_texts(model, word_tokenizer(words, longest=16), ['word1 bad'], saliency=None,
                             attribution=False)[0]
    names = 'layers 0, 1 have' if len(with_attention) == 2 else 'layer 1 has'
    note = f'Of the 3 layers of {type(model).__name__}, numbered from 0, only {names} attention'
    assert note in snapshot.info['notes']


def test_an_unsupported_model_is_rejected_before_a_run_has_a_folder(tmp_path):
    model = Gemma2ForSequenceClassification(Gemma2Config(**sizes, num_labels=2))
    with pytest.raises(ValueError, match='Gemma2Model cannot be observed: .*softcap'): trained(model, tmp_path/'run')
    assert not (tmp_path/'run').exists()


@pytest.mark.slow
def test_every_text_and_vision_architecture_is_correct_rejected_or_not_runnable():
    verdicts = architectures.verdicts(architectures.model_types())
    for kind in ('rejected', 'not runnable', 'unclear'):
        print(f'{kind}:', *(f'  {t}: {why}' for t, (what, why) in verdicts.items() if what == kind), sep='\n')
    counts = collections.Counter(what for what, _ in verdicts.values())
    print(json.dumps(counts))
    assert not counts['unclear'] and counts['correct'] > 150
