"""explore: its output equals the model's own results and those of the underlying functions, and the model is not
changed."""
import copy
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import (AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForMultipleChoice,
                          AutoModelForQuestionAnswering,
                          AutoModelForSequenceClassification, AutoModelForTokenClassification, BartConfig,
                          BartForConditionalGeneration, LongformerConfig,
                          LongformerModel, MarianConfig, MarianMTModel, PreTrainedTokenizerFast, T5Config,
                          T5ForConditionalGeneration, T5ForTokenClassification)

from helpers import same, state
from salviz.attribution.attention import attention_attribution
from salviz.attribution.saliency import input_saliency
from salviz.explorer import widget
from salviz.explorer.payload import pack_frame, unpack_frame
from salviz.explorer.quantisation import pool_cells
from salviz.core.interventions import Intervention
from salviz.models.loading import load_classifier
from salviz.analysis import model_maps
from salviz.analysis.model_maps import _explain_texts, _explained, capture_texts
from salviz.model_explorer import explore
from salviz.views.maps import chosen_map
from test_attention import builders, decoders

special = ['[UNK]', '[PAD]', '[CLS]', '[SEP]', '[MASK]']
words = 'a the film charming dull is was in Rome where not one moment of life <img> </script> שלום'.split()
texts = ['a charming film', 'the film was [MASK] and not one moment of life in Rome is dull', 'dull']
# their other heads belong to encoder-decoder models, see below
builders = {a: b for a, b in builders.items() if a != 't5_encoder'}
encoders = [a for a in builders if a not in decoders]


def tokenizer_for(arch, longest=30):
    "Return a tokenizer, which adds special tokens for encoders but not for decoders"
    core = Tokenizer(models.WordLevel({w: i for i, w in enumerate(special + words)}, unk_token='[UNK]'))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if arch not in decoders:
        core.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]', pair='[CLS] $A [SEP] $B:1 [SEP]:1',
                                                            special_tokens=[('[CLS]', 2), ('[SEP]', 3)])
    names = dict(zip(('unk_token', 'pad_token', 'cls_token', 'sep_token', 'mask_token'), special))
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=longest, **names)


def made(arch, auto, **changes):
    "Return a random model of the architecture with the head of `auto`, in float64, whose attention is far from uniform"
    with torch.random.fork_rng():
        torch.manual_seed(3)
        config = builders[arch]().config
        for k, v in changes.items(): setattr(config, k, v)
        model = auto.from_config(config)
        for x in model.parameters():
            if x.dim() > 1: nn.init.normal_(x, std=.4)
    return model.double().eval()


def rows(arch, texts):
    "Yield the ids of each text alone, from the tokenizer"
    tokenizer = tokenizer_for(arch)
    for t in texts:
        yield dict(input_ids=torch.tensor([tokenizer(t)['input_ids']]),
                   attention_mask=torch.ones(1, len(tokenizer(t)['input_ids']), dtype=torch.long))


def dense_ranks_by_hand(attribution, allowed):
    out = np.zeros(attribution.shape, int)
    for at in np.ndindex(attribution.shape[:-1]):
        may = allowed[(0, *at[1:])] if allowed.shape[0] == 1 else allowed[at]
        values = sorted({attribution[at][k] for k in np.flatnonzero(may)})
        for k in np.flatnonzero(may): out[at][k] = 1 + values.index(attribution[at][k])
    return out


def check_against_the_rooms_below(arch, model, snapshots, texts, score):
    """Check that attention equals eager attention, saliency and attribution are those of `score(row number)`, and ranks
    are exact"""
    eager = type(model)(model.config).double().eval()
    eager.load_state_dict(model.state_dict())
    eager.set_attn_implementation('eager')
    for i, (s, inputs) in enumerate(zip(snapshots, rows(arch, texts))):
        assert (s.step, s.probe, s.info.get('method'), len(s.tokens)) == (0, i, None, inputs['input_ids'].shape[1])
        with torch.no_grad(): attention = eager(**inputs, output_attentions=True).attentions
        assert s.arrays['attention'].shape == (3, 4, len(s.tokens), len(s.tokens))
        np.testing.assert_allclose(s.arrays['attention'], np.stack([a[0] for a in attention]), atol=2e-5)
        if score is None: assert set(s.arrays) == {'attention'}; continue
        target = score(i, inputs)
        np.testing.assert_allclose(s.arrays['saliency'], input_saliency(model, inputs, target=target)[0], rtol=1e-5,
                                   atol=1e-6)
        maps, allowed = attention_attribution(model, inputs, target)
        for l in range(3):
            mine, may = s.arrays['attention_attribution'][l], allowed[l][0].numpy()
            np.testing.assert_allclose(mine, maps[l][0], rtol=1e-5, atol=1e-7)
            assert (s.arrays['attribution_ranks'][l] == dense_ranks_by_hand(mine, may)).all()
            assert (mine[:, ~may[0]] == 0).all()


@pytest.mark.sample(2)
@pytest.mark.parametrize('arch', builders)
def test_a_classifier_of_every_architecture_is_explained_at_its_predicted_class(arch):
    model = made(arch, AutoModelForSequenceClassification, id2label={0: 'bad', 1: 'good'}, num_labels=2)
    snapshots = _explain_texts(model, tokenizer_for(arch), texts)
    check_against_the_rooms_below(arch, model, snapshots, texts, lambda i, inputs: 'predicted')
    for s, inputs in zip(snapshots, rows(arch, texts)):
        p = model(**inputs).logits[0].softmax(-1)
        np.testing.assert_allclose(s.arrays['probabilities'], p.detach(), rtol=1e-5)
        assert s.classes == ['bad', 'good']
        assert s.classes[int(p.argmax())] in s.info['explains']
        assert s.info['saliency_method'] == 'integrated_gradients'
        if arch != 'modernbert':
            assert s.info['pooled_row'] == (len(s.tokens) - 1 if arch in decoders else 0) and s.info['notes'] == []


@pytest.mark.sample(2)
@pytest.mark.parametrize('arch', decoders)
@pytest.mark.parametrize('pad', [1, None])
def test_a_causal_language_model_is_explained_at_its_next_token(arch, pad):
    model = made(arch, AutoModelForCausalLM, pad_token_id=pad)
    snapshots = _explain_texts(model, tokenizer_for(arch), texts)
    model.config.pad_token_id = 1 # the padding token of the tokenizer
    def score(i, inputs):
        c = int(model(**inputs).logits[0, -1].argmax())
        return lambda outputs, rows: outputs.logits[:, -1, c]
    check_against_the_rooms_below(arch, model, snapshots, texts, score)
    for s, inputs in zip(snapshots, rows(arch, texts)):
        p = model(**inputs).logits[0, -1].softmax(-1)
        top, vocabulary = int(p.argmax()), special + words
        assert s.info['pooled_row'] == len(s.tokens) - 1
        if top < len(vocabulary): assert vocabulary[top] in s.classes and repr(vocabulary[top]) in s.info['explains']
        for name, x in zip(s.classes, s.arrays['probabilities']):
            if name in vocabulary: np.testing.assert_allclose(x, p[vocabulary.index(name)].item(), rtol=1e-5)
        assert len(s.info['notes']) == (pad is None) and (pad or 'no pad token' in s.info['notes'][0])
    assert len({tuple(s.classes) for s in snapshots}) == 1


@pytest.mark.sample(6)
@pytest.mark.parametrize('arch', encoders)
def test_a_masked_language_model_is_explained_at_its_first_mask(arch):
    model = made(arch, AutoModelForMaskedLM)
    with_mask, without = _explain_texts(model, tokenizer_for(arch), texts[1::-1])
    at = with_mask.tokens.index('[MASK]')
    def score(i, inputs):
        c = int(model(**inputs).logits[0, at].argmax())
        return lambda outputs, rows: outputs.logits[:, at, c]
    check_against_the_rooms_below(arch, model, [with_mask], texts[1:2], score)
    assert with_mask.info['pooled_row'] == at and f'position {at}' in with_mask.info['explains']
    assert set(without.arrays) == {'attention'}
    assert 'this text has none' in without.info['notes'][0]
    assert '[MASK]' in without.info['notes'][0]


@pytest.mark.sample(8)
@pytest.mark.parametrize('arch', builders)
def test_a_bare_model_has_only_attention_and_a_note(arch):
    model = made(arch, AutoModel)
    snapshots = _explain_texts(model, tokenizer_for(arch), texts)
    check_against_the_rooms_below(arch, model, snapshots, texts, None)
    assert all(f'{type(model).__name__} has no head, so there is no score to explain' in s.info['notes'][0]
               for s in snapshots)
    own, = _explain_texts(model, tokenizer_for(arch), texts[0],
                         target=lambda outputs, rows: outputs.last_hidden_state[:, 0].sum(-1))
    assert {'saliency', 'attention_attribution', 'attribution_ranks'} < set(own.arrays)


@pytest.mark.sample(8)
@pytest.mark.parametrize('arch', builders)
def test_a_token_classifier_is_explained_at_the_chosen_token(arch):
    model = made(arch, AutoModelForTokenClassification)
    shown, = _explain_texts(model, tokenizer_for(arch), texts[0])
    assert set(shown.arrays) == {'attention'} and 'Select a token with position=' in shown.info['notes'][0]
    explained, = _explain_texts(model, tokenizer_for(arch), texts[0], position=1, target='LABEL_1')
    check_against_the_rooms_below(arch, model, [explained], texts[:1],
                                  lambda i, inputs: lambda outputs, rows: outputs.logits[:, 1, 1])
    assert explained.classes == ['LABEL_0', 'LABEL_1'] and explained.info['pooled_row'] == 1


@pytest.mark.parametrize('arch', builders)
def test_a_question_answering_model_is_explained_at_its_most_likely_span(arch):
    model, pair, tokenizer = made(arch, AutoModelForQuestionAnswering), ('where is Rome',
                                                                         'Rome is in the film'), tokenizer_for(arch)
    s, = _explain_texts(model, tokenizer, [pair])
    inputs = dict(tokenizer(*pair, return_tensors='pt'))
    outputs, rome = model(**inputs), [i for i, flag in enumerate(tokenizer(*pair).sequence_ids()) if flag == 1]
    a, b = max(((i, j) for i in rome for j in rome if j >= i),
               key=lambda span: (outputs.start_logits[0, span[0]] + outputs.end_logits[0, span[1]]).item())
    assert f'(position {a}) as start' in s.info['explains']
    assert f'(position {b}) as end' in s.info['explains']
    assert s.info['token_predictions'] == [None if i not in rome else 'answer' if a <= i <= b else 'outside'
                                           for i in range(len(s.tokens))]
    assert s.texts == pair
    expected = input_saliency(model, inputs,
                              target=lambda outputs, rows: outputs.start_logits[:, a] + outputs.end_logits[:, b])
    np.testing.assert_allclose(s.arrays['saliency'], expected[0], rtol=1e-5, atol=1e-6)


sizes = dict(vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4,
             decoder_attention_heads=2, encoder_ffn_dim=16,
             decoder_ffn_dim=16, max_position_embeddings=40, pad_token_id=1, decoder_start_token_id=1)
t5_sizes = dict(vocab_size=40, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_decoder_layers=3, num_heads=4,
                pad_token_id=1, decoder_start_token_id=1)


@pytest.mark.parametrize('make', [lambda: BartForConditionalGeneration(BartConfig(**sizes)),
                                  lambda: MarianMTModel(MarianConfig(**sizes)),
                                  lambda: T5ForConditionalGeneration(T5Config(**t5_sizes))])
def test_the_encoder_of_an_encoder_decoder_is_shown_with_a_note(make):
    model = make().eval()
    before = state(model)
    s, = _explain_texts(model, tokenizer_for('bert'), texts[0])
    inputs = next(rows('bert', texts))
    encoder = model.get_encoder()
    encoder.set_attn_implementation('eager')
    with torch.no_grad(): attention = encoder(**inputs, output_attentions=True).attentions
    np.testing.assert_allclose(s.arrays['attention'], np.stack([a[0] for a in attention]), atol=2e-5)
    assert set(s.arrays) == {'attention'}
    assert s.info['notes'][0] == f'{type(model).__name__} is an encoder-decoder: this is the attention of its encoder'
    assert same(before[:6], state(model)[:6])


def test_an_encoder_with_a_second_embedding_module_is_explained():
    model = T5ForTokenClassification(T5Config(**t5_sizes)).double().eval()
    s, = _explain_texts(model, tokenizer_for('bert'), texts[0], position=2)
    weight, inputs, points = model.get_input_embeddings().weight.detach(), next(rows('bert', texts)), [
        (k + .5)/20 for k in range(20)]
    c, x, gradient = int(model(**inputs).logits[0, 2].argmax()), weight[inputs['input_ids'][0]], 0
    for a in points:
        point = (weight[1] + a*(x - weight[1])).requires_grad_()
        gradient = gradient + torch.autograd.grad(model(inputs_embeds=point[None],
                                                        attention_mask=inputs['attention_mask']).logits[0, 2, c],
                                                  point)[0]/20
    np.testing.assert_allclose(s.arrays['saliency'], ((x - weight[1])*gradient).sum(-1), rtol=1e-5, atol=1e-7)
    assert s.arrays['attribution_ranks'].shape == (2, 4, 5, 5)


def test_targets_and_positions_are_given_for_all_texts_or_for_each():
    model, tokenizer = made('bert', AutoModelForSequenceClassification,
                            id2label={0: 'bad', 1: 'good'}), tokenizer_for('bert')
    chosen = _explain_texts(model, tokenizer, texts, target=['good', 0, None])
    check_against_the_rooms_below('bert', model, chosen, texts,
                                  lambda i, inputs: [torch.tensor([1]), torch.tensor([0]), 'predicted'][i])
    assert 'given as target' in chosen[0].info['explains'] and 'predicted' in chosen[2].info['explains']
    writer = made('gpt2', AutoModelForCausalLM)
    s, = _explain_texts(writer, tokenizer_for('gpt2'), texts[1], target='dull', position=2)
    at, c = 2, (special + words).index('dull')
    check_against_the_rooms_below('gpt2', writer, [s], texts[1:2],
                                  lambda i, inputs: lambda outputs, rows: outputs.logits[:, at, c])
    assert s.info['explains'] == "the logit of token 'dull' after 'was' at position 2 (given as target)"


@pytest.mark.parametrize('arch, auto', [('bert', AutoModelForSequenceClassification), ('llama', AutoModelForCausalLM),
                                        ('modernbert', AutoModelForMaskedLM), ('albert', AutoModel)])
def test_explaining_does_not_change_the_model_even_after_an_error(arch, auto):
    model = made(arch, auto).train()
    next(m for m in model.modules()
         if isinstance(m, nn.Dropout)).eval() if any(isinstance(m, nn.Dropout) for m in model.modules()) else None
    for i, p in enumerate(model.parameters()):
        p.requires_grad_(i % 3 > 0)
        if i % 2: p.grad = torch.ones_like(p)
    before, weights, config = state(model), [p.clone() for p in model.parameters()], model.config.to_dict()
    _explain_texts(model, tokenizer_for(arch), texts)
    def fail(outputs, rows): raise ArithmeticError('no score')
    with pytest.raises(ArithmeticError): _explain_texts(model, tokenizer_for(arch), texts, target=fail)
    assert same(before, state(model))
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), weights))
    assert model.config.to_dict() == config


@pytest.mark.parametrize('arch', ['bert', 'gpt2'])
def test_every_token_is_in_the_text_and_other_texts_do_not_matter(arch):
    model, tokenizer = made(arch, AutoModelForSequenceClassification), tokenizer_for(arch)
    together = _explain_texts(model, tokenizer, texts)
    for i, s in enumerate(together):
        assert '[PAD]' not in s.tokens and s.word_ids.max() == len(s.words) - 1
        assert [s.words[w] for w in s.word_ids if w >= 0][0] == texts[i].split()[0]
        alone, = _explain_texts(model, tokenizer, texts[i])
        assert all((alone.arrays[k] == s.arrays[k]).all() for k in s.arrays)


def test_hostile_texts_are_treated_as_text():
    model, tokenizer = made('bert', AutoModelForSequenceClassification), tokenizer_for('bert')
    hostile = '<img> </script> שלום "quoted" \u200b\u202e x' + 'y'*2000 + ' 🎬'
    s, = _explain_texts(model, tokenizer, hostile)
    assert s.texts == (hostile,) and s.labels[1:4] == ['<img>', '</script>', 'שלום'] and len(s.labels) == len(s.tokens)


def test_regressions_and_several_labels_at_once_have_no_softmax():
    single, tokenizer = made('bert', AutoModelForSequenceClassification, num_labels=1), tokenizer_for('bert')
    s, = _explain_texts(single, tokenizer, texts[0])
    assert 'probabilities' not in s.arrays
    assert s.info['explains'] == 'the output of the regression'
    assert s.arrays['saliency'].any()
    several = made('bert', AutoModelForSequenceClassification, num_labels=3, problem_type='multi_label_classification')
    s, = _explain_texts(several, tokenizer, texts[0])
    np.testing.assert_allclose(s.arrays['probabilities'],
                               several(**next(rows('bert', texts))).logits[0].sigmoid().detach(), rtol=1e-5)


def test_a_mean_over_all_rows_is_explained_without_a_pooled_row():
    model = made('modernbert', AutoModelForSequenceClassification, classifier_pooling='mean')
    s, = _explain_texts(model, tokenizer_for('modernbert'), texts[0])
    assert 'pooled_row' not in s.info and 'reads all rows' in s.info['notes'][0] and s.arrays['saliency'].any()


def test_computed_parts_can_be_selected():
    model, tokenizer = made('bert', AutoModelForSequenceClassification), tokenizer_for('bert')
    s, = _explain_texts(model, tokenizer, texts[0], saliency='gradient_norm', attribution=False)
    np.testing.assert_allclose(s.arrays['saliency'],
                               input_saliency(model, next(rows('bert', texts)), 'gradient_norm')[0], rtol=1e-5)
    assert s.info['saliency_method'] == 'gradient_norm' and 'attention_attribution' not in s.arrays
    s, = _explain_texts(model, tokenizer, texts[0], saliency=None)
    assert 'saliency' not in s.arrays and 'attribution_ranks' in s.arrays


def test_a_decoder_ignores_token_types():
    model, tokenizer = made('gpt2', AutoModelForSequenceClassification), tokenizer_for('gpt2')
    tokenizer.model_input_names = ['input_ids', 'token_type_ids', 'attention_mask']
    check_against_the_rooms_below('gpt2', model, _explain_texts(model, tokenizer, texts), texts,
                                  lambda i, inputs: 'predicted')


def with_lora(model):
    "Return `model` with trained adapters of peft"
    model = get_peft_model(model, LoraConfig(task_type='SEQ_CLS', r=2, target_modules=['query', 'value']))
    for name, x in model.named_parameters():
        if 'lora_B' in name: nn.init.normal_(x, std=.4)
    return model.double()


def test_a_model_with_lora_is_explained_with_its_adapters():
    model = with_lora(made('bert', AutoModelForSequenceClassification))
    before, merged = state(model), copy.deepcopy(model).merge_and_unload().eval()
    looked = _explain_texts(model, tokenizer_for('bert'), texts)
    assert same(state(model), before)
    check_against_the_rooms_below('bert', merged, looked, texts, lambda i, inputs: 'predicted')
    for inputs in rows('bert', texts[:1]):
        np.testing.assert_allclose(looked[0].arrays['probabilities'],
                                   merged(**inputs).logits[0].softmax(-1).detach(), rtol=1e-5)


def test_virtual_tokens_before_a_text_are_rejected():
    model = get_peft_model(made('bert', AutoModelForSequenceClassification),
                           PromptTuningConfig(task_type='SEQ_CLS', num_virtual_tokens=2))
    with pytest.raises(ValueError, match='PROMPT_TUNING adds tokens before the text'):
        _explain_texts(model, tokenizer_for('bert'), texts)


def test_long_texts_are_truncated_with_a_warning():
    with pytest.warns(UserWarning, match='texts longer than 30 tokens were truncated .*: 1 of 2'):
        long, short = _explain_texts(made('bert', AutoModelForSequenceClassification), tokenizer_for('bert'),
                                    ['film ' * 60, 'film'])
    assert (len(long.tokens), len(short.tokens)) == (30, 3)
    with warnings.catch_warnings(action='error'): _explain_texts(made('bert', AutoModel), tokenizer_for('bert'), 'film')


@pytest.mark.parametrize('call, message', [
    (lambda t: _explain_texts(LongformerModel(LongformerConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1,
                                                              num_attention_heads=2, intermediate_size=8,
                                                              attention_window=4)), t, 'a'),
     'LongformerModel cannot be observed: .*use ModernBERT'),
    (lambda t: _explain_texts(nn.Sequential(made('bert', AutoModel)), t, 'a'),
     'model must be a transformers model, got Sequential; if this object contains such a model'),
    (lambda t: _explain_texts(made('bert', AutoModelForMultipleChoice), t, 'a'),
     'BertForMultipleChoice reads several texts at once'),
    (lambda t: _explain_texts(made('bert', AutoModel, vocab_size=4), t, 'a film'),
     'tokenizer returns token ids up to 7, but BertModel embeds only 4 tokens'),
    (lambda t: _explain_texts(made('bert', AutoModel), t, []),
     'texts must be a text, a list of texts or a list of pairs'),
    (lambda t: _explain_texts(made('bert', AutoModel), t, ['a', ' ']), 'empty'),
    (lambda t: _explain_texts(made('bert', AutoModel), object(), 'a'),
     'tokenizer must be a fast tokenizer of transformers, got object'),
    (lambda t: _explain_texts(made('bert', AutoModel), t, 'a', saliency='lime'),
     "saliency must be one of .*, or None, got 'lime'"),
    (lambda t: _explain_texts(made('bert', AutoModelForSequenceClassification), t, 'a', target='x'),
     "target must be one of the classes 'LABEL_0', 'LABEL_1'"),
    (lambda t: _explain_texts(made('bert', AutoModelForMaskedLM), t, '[MASK]', target='a film'),
     "target must be one token, but 'a film' has 2"),
    (lambda t: _explain_texts(made('bert', AutoModelForMaskedLM), t, '[MASK]', position=7),
     'position must be the index of a token, from 0 to 2'),
    (lambda t: _explain_texts(made('bert', AutoModel), t, ['a', 'film'], position=[1]),
     'position must be one value for all texts, or a list of 2 values, one per text, got 1')])
def test_invalid_inputs_raise_errors_of_one_sentence(call, message):
    with pytest.raises(ValueError, match=message) as e: call(tokenizer_for('bert'))
    assert '\n' not in str(e.value)


@pytest.mark.sample(5)
@pytest.mark.parametrize('arch', builders)
def test_explore_opens_on_every_architecture(arch):
    auto = AutoModelForCausalLM if arch in decoders else AutoModelForSequenceClassification
    explorer = explore(made(arch, auto), tokenizer_for(arch), texts)
    from salviz.explorer.widget import Explorer
    assert isinstance(explorer, Explorer)

@pytest.mark.slow
def test_explore_without_arguments_uses_packaged_model_and_sentences():
    explorer = explore()
    assert repr(explorer) == 'Explorer of snapshots (4 sentences)'
    seen = [explorer.runs[0].snapshot(0, probe) for probe in range(4)]
    assert [s.classes[int(s.arrays['probabilities'].argmax())] for s in seen[:2]] == ['positive', 'negative']
    assert all('notes' not in s.info or not any('head is new' in note for note in s.info['notes']) for s in seen)
    own = explore(texts='a charming film', saliency=None, attribution=False).runs[0].snapshot(0, 0)
    assert own.texts == ('a charming film',) and own.info['model'] == 'movie-minilm'

def test_incomplete_arguments_are_rejected_and_a_new_head_is_noted():
    model, tokenizer = load_classifier('minilm', num_labels=2)
    for given in (dict(model=model), dict(tokenizer=tokenizer)):
        with pytest.raises(ValueError, match='pass both model and tokenizer, or neither'): explore(**given)
    snapshot, = _explain_texts(model, tokenizer, 'a charming film', saliency=None)
    assert snapshot.info['notes'][0].startswith('The head is new and untrained')

# Background computation: attribution and saliency are computed in a thread while the explorer shows attention.

def held(monkeypatch):
    "Return a gate; the background computation does not start until the gate is set"
    gate, wait = threading.Event(), model_maps.BackgroundAttribution._compute
    def compute(self):
        assert gate.wait(60)
        wait(self)
    monkeypatch.setattr(model_maps.BackgroundAttribution, '_compute', compute)
    return gate

def classifier(): return made('bert', AutoModelForSequenceClassification, num_labels=2)

def shown(explorer): return [explorer.runs[0].snapshot(0, probe) for probe in explorer.runs[0].probes]

def test_attention_is_shown_first_and_the_rest_equals_the_blocking_computation(monkeypatch):
    gate, model = held(monkeypatch), classifier()
    explorer, whole = explore(model, tokenizer_for('bert'), texts), _explain_texts(model, tokenizer_for('bert'), texts)
    for first, snapshot in zip(shown(explorer), whole):
        assert set(first.arrays) == {'attention', 'probabilities'}
        assert (first.arrays['attention'] == snapshot.arrays['attention']).all()
        assert first.info['awaited'] == 'Attention attribution and saliency are being computed.'
    assert len([entry for entry in explorer.view.get_state()['index'] if entry]), 'the browser already has attention'
    gate.set()
    explorer.settle(60)
    for mine, snapshot in zip(shown(explorer), whole):
        assert list(mine.arrays) == list(snapshot.arrays) and mine.layers == snapshot.layers
        assert mine.info == snapshot.info
        assert all((mine.arrays[k] == snapshot.arrays[k]).all() for k in mine.arrays)
    assert explorer.controls.layout.display == 'none' and explorer.training.state == 'finished'

@pytest.mark.slow
def test_images_and_pages_wait_for_the_computation(monkeypatch, tmp_path):
    gate = held(monkeypatch)
    explorer = explore(classifier(), tokenizer_for('bert'), texts)
    assert 'image/png' in explorer._repr_mimebundle_(), 'the display does not wait'
    threading.Timer(.3, gate.set).start()
    explorer.picture('sentence')
    assert all('saliency' in s.arrays for s in shown(explorer))
    assert 'being computed' not in explorer.to_html(tmp_path/'page.html').read_text()

@pytest.mark.slow
def test_a_page_written_early_says_what_is_missing(monkeypatch, tmp_path):
    gate, model = held(monkeypatch), classifier()
    explorer, written, page_of = explore(model, tokenizer_for('bert'), texts), [], widget.page_of
    def watched(runs, *args, **kw):
        written.append([s.info.get('awaited', '') for s in (runs[0].snapshot(0, probe) for probe in (0, 1))])
        return page_of(runs, *args, **kw)
    monkeypatch.setattr(widget, 'page_of', watched)
    assert explorer.to_html(tmp_path/'now.html', wait=False).stat().st_size and explorer.training.state != 'finished'
    says = 'Attention attribution and saliency are not in this page, which was written during the computation.'
    assert written.pop() == [says]*2
    assert 'are being computed.' in shown(explorer)[0].info['awaited'], 'only the page has a different sentence'
    gate.set()
    explorer.settle(60)
    explorer.to_html(tmp_path/'then.html', wait=False)
    assert written.pop() == ['', '']

@pytest.mark.slow
def test_waiting_for_a_page_shows_progress_and_how_to_skip_it(monkeypatch, tmp_path, capsys):
    gate, bar = held(monkeypatch), tqdm.tqdm
    monkeypatch.setattr(tqdm, 'tqdm', lambda **kw: bar(**kw | dict(delay=0, leave=True, ncols=200)))
    explorer = explore(classifier(), tokenizer_for('bert'), texts)
    threading.Timer(.3, gate.set).start()
    explorer.to_html(tmp_path/'page.html')
    said = capsys.readouterr().err
    assert f'/{explorer.training.total} [' in said and 'to_html(wait=False) writes the available data' in said

@pytest.mark.parametrize('end', [lambda explorer: explorer.controls.stop_button.click(),
                                 lambda explorer: explorer.close()], ids=['button', 'closing'])
def test_cancelling_stops_the_computation_and_keeps_results(monkeypatch, end):
    gate = held(monkeypatch)
    explorer = explore(classifier(), tokenizer_for('bert'), texts)
    end(explorer)
    assert explorer.training.state == 'stopping'
    gate.set()
    explorer.training.wait(60)
    assert explorer.training.state == 'stopped'
    for snapshot in shown(explorer):
        assert set(snapshot.arrays) == {'attention', 'probabilities'}
        assert snapshot.info['awaited'] == ('Attention attribution and saliency are not available: the computation was '
                                            'cancelled.')

def test_later_errors_are_shown_and_raised_by_wait(tmp_path):
    def wrong(outputs, rows):
        score = outputs.logits[:, 0]
        if torch.is_grad_enabled(): raise ArithmeticError('no gradient for <b>you</b>')
        return score
    explorer = explore(classifier(), tokenizer_for('bert'), texts, target=wrong)
    with pytest.raises(ArithmeticError, match='no gradient'): explorer.settle(60)
    explorer.controls.settle()
    assert explorer.controls.error.value == 'ArithmeticError: no gradient for <b>you</b>'
    assert 'are not available: ArithmeticError: no gradient for <b>you</b>.' in shown(explorer)[0].info['awaited']
    explorer.to_html(tmp_path/'page.html')

def test_changed_weights_stop_the_computation(monkeypatch):
    gate, model = held(monkeypatch), classifier()
    explorer = explore(model, tokenizer_for('bert'), texts)
    with torch.no_grad(): next(model.parameters()).mul_(2)
    gate.set()
    with pytest.raises(RuntimeError, match='weights of the model were changed during the computation; call explore'):
        explorer.settle(60)
    assert all(set(s.arrays) == {'attention', 'probabilities'} for s in shown(explorer))

@pytest.mark.sample(1)
@pytest.mark.parametrize('arch', ['bert', 'gpt2', 'modernbert'])
def test_using_the_model_meanwhile_is_not_affected(monkeypatch, arch):
    gate, model = held(monkeypatch), made(arch, AutoModelForSequenceClassification).train()
    def of_the_model(): return [*state(model)[:3], *state(model)[6:]] # not the generators, which this test uses
    before = of_the_model()
    explorer = explore(model, tokenizer_for(arch), texts)
    inputs = next(rows(arch, texts))
    torch.manual_seed(0)
    alone = torch.rand(3), model(**inputs).logits
    gate.set()
    while explorer.training.state in ('waiting', 'running'):
        assert same(before, of_the_model())
        torch.manual_seed(0)
        drawn, logits = torch.rand(3), model(**inputs).logits
        assert torch.equal(drawn, alone[0]) and torch.equal(logits, alone[1]) and logits.requires_grad
    after = torch.get_rng_state()
    explorer.settle(60)
    assert torch.equal(after, torch.get_rng_state())

def test_no_progress_bar_without_computation():
    bare = explore(made('bert', AutoModel), tokenizer_for('bert'), texts)
    assert bare.controls is None
    plain = explore(classifier(), tokenizer_for('bert'), texts, saliency=None, attribution=False)
    assert plain.controls is None and not plain.settle()

@pytest.mark.slow
def test_two_computations_run_one_after_the_other():
    first, second = (explore(classifier(), tokenizer_for('bert'), texts) for _ in range(2))
    most = []
    for explorer in (first, second):
        explorer.training.subscribe(lambda _: most.append(sum(e.training.state == 'running'
                                                              for e in (first, second))))
    for explorer in (first, second): explorer.settle(60)
    assert max(most, default=1) == 1

def test_long_texts_take_fewer_steps_and_a_note_has_their_completeness_error(monkeypatch):
    monkeypatch.setattr(model_maps, '_tokens_of_most', 10) # the second text has 16 tokens: 20*(10/16)**2 is 7.8
    model, tokenizer = classifier(), tokenizer_for('bert')
    short, long = _explain_texts(model, tokenizer, texts[:2])
    inputs = dict(input_ids=torch.tensor([tokenizer(texts[1])['input_ids']]))
    pad = model.config.pad_token_id
    few = input_saliency(model, inputs, steps=8, baseline=pad)
    embed, (target,) = model.get_input_embeddings(), model(**inputs).logits.argmax(-1)
    x = embed(inputs['input_ids'])
    with torch.no_grad():
        at_input, at_start = (model(inputs_embeds=e).logits[0, target] for e in (x, embed.weight[pad].expand_as(x)))
    error = abs(few.sum() - (at_input - at_start))/abs(at_input - at_start)
    np.testing.assert_allclose(long.arrays['saliency'], few[0].numpy(), atol=1e-6)
    note = (f'Integrated gradients have 8 steps instead of 20, since the input has 16 tokens; completeness error: '
            f'{float(error):.1%}. Pass steps=20 for more.')
    assert note in long.info['notes'] and not any('completeness' in note for note in short.info['notes'])
    chosen, = _explain_texts(model, tokenizer, texts[1], steps=20)
    usual = input_saliency(model, inputs, steps=20, baseline=pad)
    np.testing.assert_allclose(chosen.arrays['saliency'], usual[0].numpy(), atol=1e-6)
    assert not any('completeness' in note for note in chosen.info['notes'])

def test_the_attribution_of_a_long_text_is_computed_last(monkeypatch):
    "Its maps stay in memory; activations of integrated gradients are then released already"
    monkeypatch.setattr(model_maps, '_tokens_of_most', 9)
    explorer = explore(classifier(), tokenizer_for('bert'), texts[:2])
    order = [(probe, name) for probe, name, _ in explorer.training._parts]
    explorer.settle(60)
    assert order == [(0, 'attention attribution'), (0, 'saliency'), (1, 'saliency'), (1, 'attention attribution')]
    assert explorer.training.step == explorer.training.total

def test_maps_of_long_texts_are_stored_in_half_precision(monkeypatch):
    model, tokenizer = classifier(), tokenizer_for('bert')
    exact, = _explain_texts(model, tokenizer, texts[1])
    monkeypatch.setattr(model_maps, '_most_bytes', 0)
    half, = _explain_texts(model, tokenizer, texts[1])
    a, b = exact.arrays['attention'], half.arrays['attention']
    assert (a.dtype, b.dtype) == (np.float32, np.float16)
    assert ((a == 0) == (b == 0)).all(), 'a weight of 0 would count as a position that cannot be attended to'
    errors = abs(a.astype(float) - b).max((-2, -1))
    assert (errors <= 2**-11*abs(a).max((-2, -1))).all()
    assert abs(half.arrays['attention'].astype(float).sum(-1) - 1).max() < 1e-3
    assert not any('half precision' in note for note in exact.info['notes'])
    assert any('half precision (float16)' in note for note in half.info['notes'])
    assert 'not_normalised' not in half.info
    others = {'attention_attribution', 'attribution_ranks', 'saliency', 'probabilities'}
    assert others == {*exact.arrays} - {'attention'}
    for name in others: np.testing.assert_array_equal(exact.arrays[name], half.arrays[name], strict=True)

def test_maps_in_half_precision_are_drawn_and_written_as_a_page(monkeypatch, tmp_path):
    monkeypatch.setattr(model_maps, '_most_bytes', 0)
    explorer = explore(classifier(), tokenizer_for('bert'), texts[:2])
    page = explorer.to_html(tmp_path/'page.html').read_text()
    assert 'half precision' in page and 'Not normalised' not in page
    half = shown(explorer)[1]
    wide = replace(half, arrays={k: x.astype(np.float32) if x.dtype == np.float16 else x
                                 for k, x in half.arrays.items()})
    for options in ({}, dict(head='mean'), dict(what='attribution')):
        maps = [chosen_map(s, layer=0, **options).values for s in (half, wide)]
        np.testing.assert_array_equal(*maps, strict=True)
    assert pack_frame(half) == pack_frame(wide)

def test_thumbnails_of_maps_in_half_precision_are_those_of_the_same_numbers_in_float32():
    x = np.random.default_rng(0).normal(size=(2, 3, 130, 130)).astype(np.float16)
    for how in ('mean', 'extreme'):
        np.testing.assert_array_equal(pool_cells(x, how), pool_cells(x.astype(np.float32), how), strict=True)

def test_ranks_of_long_texts_are_computed_for_the_heads_that_are_shown(monkeypatch):
    model, tokenizer = classifier().float(), tokenizer_for('bert')
    stored, = _explain_texts(model, tokenizer, texts[1])
    monkeypatch.setattr(model_maps, '_most_ranked', 0)
    computed, = _explain_texts(model, tokenizer, texts[1])
    assert {*stored.arrays} - {*computed.arrays} == {'attribution_ranks'}
    frames = [unpack_frame(pack_frame(s)) for s in (stored, computed)]
    np.testing.assert_array_equal(*(f['arrays']['attribution_ranks'] for f in frames), strict=True)
    assert [f['info']['ranks'] for f in frames] == ['exact', 'exact']

@pytest.mark.parametrize('one', [Intervention(region='high'), Intervention(rows=[1]), Intervention(heads=[(0, 1)])])
def test_ranks_under_an_intervention_do_not_depend_on_the_length(one, monkeypatch):
    model, tokenizer = classifier().float(), tokenizer_for('bert')
    def ranks():
        snapshot, = _explained(capture_texts(model, tokenizer, texts[1], None, None, None, None, True, None,
                                             interventions=[one]))
        return snapshot, unpack_frame(pack_frame(snapshot))['arrays']['attribution_ranks']
    stored = ranks()[1]
    monkeypatch.setattr(model_maps, '_most_ranked', 0)
    snapshot, computed = ranks()
    np.testing.assert_array_equal(stored, computed, strict=True)
    assert 'attribution_ranks' in snapshot.arrays

@pytest.mark.slow
def test_a_script_ends_without_waiting_for_the_computation():
    code = """
import sys; sys.path[:0] = sys.argv[1:]
from test_explore import classifier, texts, tokenizer_for
from salviz import explore
explorer = explore(classifier(), tokenizer_for('bert'), texts, steps=100000)
print(explorer.training.state in ('waiting', 'running'))"""
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, '-c', code, str(tests), str(tests/'analysis'), str(tests/'models')],
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, 'True'), done.stderr[-2000:]

@pytest.mark.slow
def test_bert_base_at_512_tokens_needs_less_than_one_and_a_half_gigabytes():
    code = """
import resource, threading, time
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from salviz import explore
core = Tokenizer(models.WordLevel({'[UNK]': 0, '[PAD]': 1, 'film': 2}, unk_token='[UNK]'))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=512, unk_token='[UNK]', pad_token='[PAD]')
model = BertForSequenceClassification(BertConfig(num_labels=2)).eval()
explore(model, tokenizer, 'film', saliency='gradient_norm').settle()
def resident(): return int(open('/proc/self/statm').read().split()[1])*resource.getpagesize()
before, peak, done = resident(), [0], threading.Event()
def watch():
    while not done.wait(.01): peak[0] = max(peak[0], resident())
threading.Thread(target=watch, daemon=True).start()
begun = time.perf_counter()
explorer = explore(model, tokenizer, 'film '*512)
first = time.perf_counter() - begun
explorer.settle()
whole = time.perf_counter() - begun
done.set()
print(first, whole, (peak[0] - before)/1e9)"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    first, whole, gigabytes = map(float, done.stdout.split())
    print(f'attention after {first:.1f} s, all after {whole:.1f} s, {gigabytes:.2f} GB above the model')
    assert first < whole/4 and gigabytes < 1.5
