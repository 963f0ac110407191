"Classifiers by name, the row that their heads read, and running a model without side effects"
import json, os, random, subprocess, sys

import numpy as np
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (AutoConfig, AutoModelForImageClassification, AutoModelForSeq2SeqLM,
                          AutoModelForSequenceClassification, BertForSequenceClassification, PreTrainedTokenizerFast)

from salviz.cli import main
from salviz.core.assets import asset
from salviz.data.texts import Collator, encode_texts, model_inputs
from salviz.models.attention import cached_layers, observe
from salviz.models.loading import (_reads_first, _row_products, decoder_start, device_of, first_row_alone,
                                   forked_random, load_classifier, load_model_for, longest_input, pooled_rows,
                                   reads_last, tasks_of_kind, undisturbed)

sizes = dict(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
             intermediate_size=32,
             max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
gpt_sizes = dict(n_embd=16, n_layer=2, n_head=2)
own_sizes = dict(
    distilbert=dict(dim=16, n_layers=2, n_heads=2, hidden_dim=32), albert=dict(embedding_size=8),
    electra=dict(embedding_size=8),
    gpt2=gpt_sizes, gpt_bigcode=gpt_sizes, openai_gpt=gpt_sizes, gptj=dict(**gpt_sizes, rotary_dim=4),
    ctrl=dict(**gpt_sizes, dff=16),
    bloom=dict(n_layer=2, n_head=2), mpt=dict(d_model=16, n_heads=2, n_layers=2),
    opt=dict(ffn_dim=16, word_embed_proj_dim=16),
    gpt_neo=dict(num_layers=2, num_heads=2, attention_types=[[['global', 'local'], 1]]), gemma=dict(head_dim=8),
    mobilebert=dict(embedding_size=8, intra_bottleneck_size=16, true_hidden_size=16),
    rembert=dict(input_embedding_size=8, output_embedding_size=8),
    squeezebert=dict(embedding_size=16,
                     **{f'{part}_groups': 1 for part in ('q', 'k', 'v', 'post_attention', 'intermediate', 'output')}),
    longformer=dict(attention_window=4),
    convbert=dict(embedding_size=16, num_groups=1, conv_kernel_size=3, head_ratio=1),
    roc_bert=dict(enable_pronunciation=False, enable_shape=False))

def tiny(kind, **config):
    "Return a random classifier of the `kind` (model_type) with two layers, in eval mode"
    own = own_sizes.get(kind.replace('-', '_'), {})
    with forked_random(0):
        return AutoModelForSequenceClassification.from_config(
            AutoConfig.for_model(kind, **{**sizes, **own, 'num_labels': 3, **config})).eval()

def rows_read(model, ids, mask):
    "Return for each example the rows of the last hidden state that affect the logits, by their gradient"
    states = []
    hook = model.base_model.register_forward_hook(lambda module, args, out: states.append(out[0]))
    logits = model(input_ids=ids, attention_mask=mask).logits
    hook.remove()
    gradient, = torch.autograd.grad(logits.square().sum(), states[0])
    return [torch.nonzero(row.abs().sum(-1)).flatten().tolist() for row in gradient]

ids = torch.tensor([[1, 7, 8, 9, 10, 2], [1, 11, 12, 2, 0, 0], [1, 5, 2, 0, 0, 0]])
mask = (ids != 0).long()


@pytest.mark.sample(12)
@pytest.mark.parametrize('kind', ['bert', 'roberta', 'distilbert', 'electra', 'albert', 'modernbert', 'xlm-roberta',
    'camembert', 'deberta',
    'deberta-v2', 'mpnet', 'roberta-prelayernorm', 'ernie', 'convbert', 'data2vec-text', 'ibert', 'megatron-bert',
    'mobilebert', 'rembert',
    'roformer', 'squeezebert', 'xlm-roberta-xl', 'longformer', 'roc_bert', 'eurobert'])
def test_an_encoders_head_reads_the_first_row(kind):
    model = tiny(kind, **{'modernbert': dict(classifier_pooling='cls'),
                          'eurobert': dict(classifier_pooling='bos')}.get(kind, {}))
    assert rows_read(model, ids, mask) == [[0], [0], [0]]
    assert pooled_rows(model, dict(input_ids=ids)).tolist() == [0, 0, 0]

@pytest.mark.sample(28)
@pytest.mark.parametrize('kind', ['gpt2', 'llama', 'mistral', 'qwen2', 'gemma', 'gpt_neo', 'gpt_neox', 'gptj', 'opt',
    'bloom', 'falcon',
    'biogpt', 'gpt_bigcode', 'mpt', 'ctrl', 'openai-gpt', 'modernbert-decoder'])
@pytest.mark.parametrize('side', ['right', 'left'])
def test_a_decoders_head_reads_the_last_real_row(kind, side):
    model = tiny(kind)
    x = ids if side == 'right' else torch.stack([torch.cat([row[row == 0], row[row != 0]]) for row in ids])
    expected = [[5], [3], [2]] if side == 'right' else [[5], [5], [5]]
    assert rows_read(model, x, (x != 0).long()) == expected
    assert pooled_rows(model, dict(input_ids=x)).tolist() == [row[0] for row in expected]

def logits_and_gradients(model, batch):
    "Return the logits of `model`, and the gradient of a function of them with respect to the first embedding"
    states = []
    hook = model.get_input_embeddings().register_forward_hook(lambda module, args, out: states.append(out))
    logits = model(**batch).logits
    hook.remove()
    return logits, torch.autograd.grad(logits.square().sum(), states[0])[0]

@pytest.mark.parametrize('kind, products', [('bert', 3), ('roberta', 3), ('xlm-roberta', 3), ('camembert', 3),
    ('electra', 3), ('distilbert', 2), *((kind, 0) for kind in (
    'albert', 'modernbert', 'deberta', 'mobilebert', 'convbert', 'gpt2', 'llama'))])
def test_a_class_depends_only_on_the_first_row_of_the_last_layer(kind, products):
    model, batch = tiny(kind).double(), dict(input_ids=ids, attention_mask=mask)
    cut = []
    inside = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    with first_row_alone(model):
        hooks = [m.register_forward_hook(lambda m, args, out: cut.append(out.dim() == 3 and out.shape[1] == 1))
                 for m in inside]
        model(**batch)
    for hook in hooks: hook.remove()
    assert sum(cut) == products
    whole = logits_and_gradients(model, batch)
    with first_row_alone(model): alone = logits_and_gradients(model, batch)
    for x, y in zip(whole, alone): torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)

def test_the_class_of_an_image_depends_only_on_the_first_row_of_the_last_layer():
    config = AutoConfig.for_model('vit', hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                                  hidden_dropout_prob=.3,
                                  intermediate_size=32, image_size=8, patch_size=4, num_labels=3)
    with forked_random(0): model = AutoModelForImageClassification.from_config(config).eval().double()
    batch = dict(pixel_values=torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double())
    def passed():
        with forked_random(4): return *logits_and_gradients(model, batch), model.base_model(**batch).last_hidden_state
    for mode in (False, True): # with and without dropout
        model.train(mode)
        *whole, states = passed()
        with first_row_alone(model): *alone, other = passed()
        assert not torch.allclose(other[:, 1], states[:, 1])
        for x, y in zip(whole, alone): torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)

def test_rows_are_skipped_only_if_one_is_known_to_be_enough():
    model, batch = tiny('roberta'), dict(input_ids=ids, attention_mask=mask)
    def states():
        with first_row_alone(model): return model.base_model(**batch).last_hidden_state
    assert not torch.allclose(states()[:, 1], model.base_model(**batch).last_hidden_state[:, 1])
    class Mean(torch.nn.Module): # a custom head
        def forward(self, states): return states.mean(1)
    own, model.classifier = model.classifier, Mean()
    with first_row_alone(model): mean = model(**batch).logits
    assert torch.equal(mean, model(**batch).logits)
    model.classifier = own
    whole = model.base_model(**batch).last_hidden_state
    with first_row_alone(model, is_enough=False):
        assert torch.equal(model.base_model(**batch).last_hidden_state, whole)
    with pytest.raises(KeyError), first_row_alone(model): raise KeyError
    assert torch.equal(model.base_model(**batch).last_hidden_state, whole)
    model.train().gradient_checkpointing_enable()
    with first_row_alone(model), forked_random(1): drawn = model.base_model(**batch).last_hidden_state
    with forked_random(1): assert torch.equal(model.base_model(**batch).last_hidden_state, drawn)

def ragged(**batch): return [{k: v[rows, :n] for k, v in batch.items()} for rows, n in (([0, 1, 2], 6), ([1, 2], 4))]

@pytest.mark.parametrize('kind', ['bert', 'roberta', 'xlm-roberta', 'camembert', 'electra', 'distilbert'])
def test_in_training_mode_the_first_row_equals_that_of_a_full_pass_with_the_same_seed(kind):
    "Two batches of different lengths in one block; the generator ends in the same state as after full passes"
    model = tiny(kind).double().train()
    batches = ragged(input_ids=ids, attention_mask=mask)
    def passed():
        with forked_random(3): return [logits_and_gradients(model, b) for b in batches], torch.random.get_rng_state()
    whole, state = passed()
    calm = [logits_and_gradients(model.eval(), b) for b in batches]
    model.train()
    with first_row_alone(model): alone, after = passed()
    assert torch.equal(state, after)
    for pair, calm_pair, own in zip(whole, calm, alone):
        assert not torch.allclose(pair[0], calm_pair[0]) # something was dropped
        for x, y in zip(pair, own): torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)

@pytest.fixture
def accelerator(): # its setting applies to the process
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(mixed_precision='bf16', cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)

def test_rows_are_skipped_under_accelerate_autocast_unless_the_model_was_changed(accelerator):
    "Half a unit of bfloat16 for each of a few successive roundings"
    model, batch = accelerator.prepare_model(tiny('bert')), ragged(input_ids=ids, attention_mask=mask)[0]
    with forked_random(3): whole = logits_and_gradients(model, batch)
    with first_row_alone(model), forked_random(3):
        assert _row_products(model)
        alone = logits_and_gradients(model, batch)
    for x, y in zip(whole, alone):
        assert torch.dist(x, y, float('inf')) <= 4*torch.finfo(torch.bfloat16).eps*x.abs().max()
    own = tiny('bert')
    own.forward = lambda *args, **kwargs: type(own).forward(own, *args, **kwargs)
    assert not _row_products(accelerator.prepare_model(own))

def mean_of_rows(model):
    pooler = model.bert.pooler
    pooler.forward = lambda states: pooler.activation(pooler.dense(states.mean(1)))

@pytest.mark.parametrize('change', [mean_of_rows,
    lambda model: model.bert.pooler.register_forward_pre_hook(lambda m, args: (args[0].mean(1, keepdim=True),)),
    lambda model: model.bert.encoder.layer[-1].register_forward_hook(lambda m, args, out: None),
    lambda model: model.bert.encoder.register_full_backward_hook(lambda m, grads, out: None)])
def test_a_model_with_custom_hooks_or_forwards_computes_all_rows(change):
    model, batch = tiny('bert'), dict(input_ids=ids, attention_mask=mask)
    change(model)
    whole = model(**batch, output_hidden_states=True)
    with first_row_alone(model): again = model(**batch, output_hidden_states=True)
    assert torch.equal(whole.logits, again.logits)
    assert torch.equal(whole.hidden_states[-1], again.hidden_states[-1])

def test_rows_are_skipped_in_cached_layers_but_not_in_changed_ones():
    model, batch = tiny('bert'), dict(input_ids=ids, attention_mask=mask)
    with cached_layers(model, batch): assert _row_products(model)
    layer = model.bert.encoder.layer[-1]
    own = layer.forward
    layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    with cached_layers(model, batch): assert not _row_products(model)

def test_rows_are_skipped_while_attention_is_observed():
    model, batch = tiny('bert').double(), dict(input_ids=ids, attention_mask=mask)
    with observe(model) as whole: expected = model(**batch).logits
    with observe(model) as maps, first_row_alone(model):
        assert _row_products(model)
        torch.testing.assert_close(model(**batch).logits, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(maps.stacked(), whole.stacked(), rtol=1e-9, atol=1e-12)

@pytest.mark.parametrize('options', [{}, dict(use_dora=True), dict(bias='all'), dict(lora_dropout=.3)])
@pytest.mark.parametrize('mode', ['eval', 'train'])
def test_a_class_of_a_model_with_adapters_depends_only_on_the_first_row(mode, options):
    peft = pytest.importorskip('peft')
    inner = tiny('bert').double()
    model = peft.get_peft_model(inner, peft.LoraConfig(r=2, target_modules=['query', 'dense'], init_lora_weights=False,
                                                       **options)).double().train(mode == 'train')
    inner.requires_grad_(True) # peft froze the word embeddings, whose gradient is compared
    batch = dict(input_ids=ids, attention_mask=mask)
    with forked_random(2): whole = logits_and_gradients(inner, batch)
    with first_row_alone(model), forked_random(2):
        assert _row_products(model)
        alone = logits_and_gradients(inner, batch)
    for x, y in zip(whole, alone): torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-12)

def test_a_decoder_without_a_padding_token_reads_the_last_row():
    model = tiny('gpt2', pad_token_id=None)
    assert rows_read(model, ids[:1], mask[:1]) == [[5]] and pooled_rows(model, dict(input_ids=ids[:1])).tolist() == [5]

def test_a_padding_token_at_the_end_of_a_text_is_skipped_like_in_the_head():
    "The packaged classifiers pad with the end token, which a text may also contain"
    model = tiny('llama', pad_token_id=2)
    x = ids.masked_fill(ids == 0, 2)
    assert rows_read(model, x, torch.ones_like(x)) == [[row]
                                                       for row in pooled_rows(model, dict(input_ids=x)).tolist()] == [
        [4], [2], [1]]

@pytest.mark.parametrize('kind,config,reason', [
    ('modernbert', dict(classifier_pooling='mean'),
     "ModernBertForSequenceClassification reads all rows .classifier_pooling='mean'"),
    ('eurobert', dict(classifier_pooling='late'),
     "EuroBertForSequenceClassification reads all rows .classifier_pooling='late'"),
    ('t5', dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2),
     'T5ForSequenceClassification is an encoder-decoder model'),
    ('bart', dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
                  encoder_ffn_dim=16, decoder_ffn_dim=16),
     'BartForSequenceClassification is an encoder-decoder model'),
    ('fnet', {}, 'FNetForSequenceClassification has a head whose pooled row is not known')])
def test_a_head_without_a_pooled_row_is_rejected_by_name(kind, config, reason):
    with pytest.raises(ValueError, match=reason): pooled_rows(tiny(kind, **config), dict(input_ids=ids))

def test_every_head_of_the_table_exists():
    for name in (_reads_first | reads_last) - {'Generic'}:
        assert hasattr(transformers, f'{name}ForSequenceClassification'), name


class WithBatchNorm(torch.nn.Module):
    "An encoder with a norm that counts batches, a dropout and a frozen part"
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.dropout, self.head = torch.nn.Linear(4,
                                                                        8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(
            .5), torch.nn.Linear(8, 2)
    def forward(self, x): return self.head(self.dropout(self.norm(self.body(x))))

def state(model):
    "Return everything that a block may have changed"
    return dict(modes=[m.training for m in model.modules()], needed=[p.requires_grad for p in model.parameters()],
                grads=[None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()],
                values={k: v.tolist() for k, v in model.state_dict().items()},
                random=(random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2],
                        torch.get_rng_state().tolist()))

@pytest.mark.parametrize('training', [False, True])
@pytest.mark.parametrize('seed', [None, 0, 2**40])
@pytest.mark.parametrize('fails', [False, True])
def test_a_model_and_all_generators_are_restored_after_the_block(training, seed, fails):
    model = WithBatchNorm().train()
    model.dropout.eval()
    model.body.weight.requires_grad_(False)
    model.head.weight.grad = torch.full_like(model.head.weight, 3.)
    before = state(model)
    try:
        with undisturbed(model, training=training, seed=seed):
            for p in model.parameters(): p.requires_grad_(True)
            model(torch.rand(5, 4)).sum().backward()
            random.random(); np.random.rand()
            model.head.eval() if training else model.norm.train()
            if fails: raise KeyboardInterrupt
    except KeyboardInterrupt: assert fails
    assert state(model) == before

def test_the_mode_inside_the_block_is_the_requested_one():
    model = WithBatchNorm().eval()
    with undisturbed(model, training=True): assert all(m.training for m in model.modules())
    model.head.train()
    with undisturbed(model): assert not any(m.training for m in model.modules())
    model.train(); model.norm.eval()
    with undisturbed(model, training=True): assert model.training and model.dropout.training and not model.norm.training

def test_blocks_can_be_nested():
    model = WithBatchNorm().train()
    before = state(model)
    with undisturbed(model, seed=1):
        with undisturbed(model, training=True): model(torch.rand(5, 4)).sum().backward()
        assert not model.training and model.head.weight.grad is None
    assert state(model) == before

def test_a_seed_makes_the_block_reproducible():
    model = WithBatchNorm().train()
    x = torch.rand(5, 4)
    def run(seed):
        with undisturbed(model, training=True, seed=seed): return model(x)
    assert torch.equal(run(1), run(1)) and not torch.equal(run(1), run(2))

def test_without_a_seed_the_block_uses_the_state_of_the_generators():
    torch.manual_seed(5); expected = torch.rand(3)
    torch.manual_seed(5)
    with undisturbed(torch.nn.Identity()): assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.rand(3), expected)


def save(folder, kind='bert', **config):
    "Save a random model with a small vocabulary of words in `folder`"
    model = tiny(kind, **config)
    model.save_pretrained(folder)
    words = ['[PAD]', '[CLS]', '[SEP]', '[UNK]', *'a film to fall asleep in . good bad'.split()]
    t = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token='[UNK]'))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind == 'bert':
        t.post_processor = processors.TemplateProcessing(single='[CLS] $A [SEP]',
                                                         special_tokens=[('[CLS]', 1), ('[SEP]', 2)])
    specials = dict(pad_token='[PAD]') if kind == 'bert' else {}
    PreTrainedTokenizerFast(tokenizer_object=t, unk_token='[UNK]', eos_token='[SEP]',
                            **specials).save_pretrained(folder)
    return model

def test_the_packaged_encoder_gets_a_head_with_the_named_classes():
    model, tokenizer = load_classifier('minilm', labels=['bad', 'good', 'fair'])
    assert isinstance(model, BertForSequenceClassification)
    assert not model.training
    assert model.classifier.out_features == 3
    assert model.config.id2label == {0: 'bad', 1: 'good', 2: 'fair'}
    assert model.config.label2id == {'bad': 0, 'good': 1, 'fair': 2}
    assert tokenizer.is_fast and device_of(model) == torch.device('cpu') and model.dtype == torch.float32

def test_a_head_depends_only_on_the_seed():
    torch.manual_seed(1); np.random.seed(1); random.seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = load_classifier(num_labels=5, seed=3)[0].classifier.weight
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
    torch.manual_seed(2)
    assert torch.equal(load_classifier(num_labels=5, seed=3)[0].classifier.weight, first)
    assert not torch.equal(load_classifier(num_labels=5, seed=4)[0].classifier.weight, first)

def test_the_encoder_is_the_one_in_the_package():
    from safetensors.torch import load_file
    stored = load_file(asset('minilm')/'model.safetensors')
    loaded = load_classifier()[0].bert.state_dict()
    for name in ('embeddings.word_embeddings.weight', 'encoder.layer.5.output.dense.weight', 'pooler.dense.weight'):
        assert torch.equal(loaded[name], stored[name]), name

def test_a_model_in_a_folder_is_loaded_with_its_trained_head(tmp_path):
    model = save(tmp_path)
    loaded, tokenizer = load_classifier(tmp_path)
    assert loaded.config.num_labels == 3 and torch.equal(loaded.classifier.weight, model.classifier.weight)
    assert torch.equal(loaded(ids).logits, load_classifier(str(tmp_path), labels=['x', 'y', 'z'])[0](ids).logits)

def test_a_trained_head_is_replaced_only_on_request(tmp_path):
    save(tmp_path)
    with pytest.raises(ValueError, match='has a trained head for 3 classes, not 5; pass ignore_mismatched_sizes=True'):
        load_classifier(tmp_path, num_labels=5)
    assert load_classifier(tmp_path, num_labels=5, ignore_mismatched_sizes=True)[0].classifier.out_features == 5

@pytest.mark.parametrize('kind', ['gpt2', 'llama'])
def test_a_decoder_without_a_padding_token_gets_one_and_padding_does_not_change_its_logits(kind, tmp_path):
    save(tmp_path, kind, pad_token_id=None)
    model, tokenizer = load_classifier(tmp_path, num_labels=3)
    assert tokenizer.pad_token_id == model.config.pad_token_id == tokenizer.eos_token_id
    rows = encode_texts(['a good film', 'bad', 'a film to fall asleep in .'], tokenizer)
    batch = Collator(tokenizer)(list(rows))
    assert pooled_rows(model, batch).tolist() == [2, 0, 6]
    with torch.no_grad():
        together = model(**model_inputs(batch)).logits
        alone = torch.cat([model(**model_inputs(Collator(tokenizer)([row]))).logits for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)

def test_weights_stored_in_half_precision_are_loaded_in_float32(tmp_path):
    save(tmp_path)
    BertForSequenceClassification.from_pretrained(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    assert load_classifier(tmp_path)[0].dtype == torch.float32
    assert load_classifier(tmp_path, dtype=torch.bfloat16)[0].dtype == torch.bfloat16

def test_loading_the_packaged_encoder_prints_nothing_and_other_loads_still_report(capfd, caplog, tmp_path):
    load_classifier(num_labels=5)
    assert capfd.readouterr() == ('', '') and caplog.text == ''
    save(tmp_path)
    load_classifier(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert 'classifier.weight' in caplog.text and 'Loading weights' in capfd.readouterr().err

@pytest.mark.parametrize('arguments,error,reason', [
    (dict(name='./nowhere'), FileNotFoundError, 'folder ./nowhere does not exist'),
    (dict(name='no such/name/at all'), ValueError, 'the Hub has no model named'),
    (dict(num_labels=3, labels=['a', 'b']), ValueError, 'labels has 2 names, but num_labels is 3'),
    (dict(num_labels=0), ValueError, 'num_labels must be a positive integer, got 0'),
    (dict(num_labels=2.5), ValueError, 'num_labels must be a positive integer, got 2.5')])
def test_invalid_arguments_raise_errors_of_one_sentence(arguments, error, reason):
    with pytest.raises(error, match=reason) as e: load_classifier(**arguments)
    assert '\n' not in str(e.value)

def test_a_folder_without_a_model_raises_an_error_that_lists_the_packaged_models(tmp_path):
    with pytest.raises(ValueError, match='cannot be loaded: Unrecognized model .*packaged models: minilm') as e:
        load_classifier(tmp_path)
    assert '\n' not in str(e.value)

@pytest.fixture
def with_code(tmp_path, monkeypatch):
    """Return (folder of a model with Python code, file that the code writes), for a user who answers every question
    with y"""
    monkeypatch.setattr('transformers.dynamic_module_utils.HF_MODULES_CACHE', str(tmp_path/'modules'))
    monkeypatch.setattr('builtins.input', lambda *question: 'y')
    folder, mark = tmp_path/'model', tmp_path/'code-has-run'
    save(folder)
    config = json.loads((folder/'config.json').read_text())
    parts = {'AutoConfig': 'foreign.Config', 'AutoModelForSequenceClassification': 'foreign.Model'}
    (folder/'config.json').write_text(json.dumps({**config, 'model_type': 'foreign', 'auto_map': parts}))
    (folder/'foreign.py').write_text(f'open({str(mark)!r}, "w")\nfrom transformers import BertConfig\n'
                                     'from transformers import BertForSequenceClassification as Model\n'
                                     'class Config(BertConfig): model_type = "foreign"\n')
    return folder, mark

readers = {'load_classifier': load_classifier, 'load_model_for': lambda path: load_model_for('classification', path),
           'train': lambda path: main(['train', '--model', str(path), '--train-size', '16', '--out', f'{path}-run'])}

@pytest.mark.parametrize('name', readers)
def test_code_in_a_models_folder_is_not_run_whatever_the_user_answers(name, with_code, capsys):
    folder, mark = with_code
    try: said = readers[name](folder)
    except ValueError as e: said = str(e)
    assert 'needs Python code that is stored with the model' in f'{said}{capsys.readouterr().err}'
    assert not mark.exists()

def test_code_in_a_models_folder_is_run_with_trust_remote_code(with_code):
    folder, mark = with_code
    # the class does not match the config, so transformers does not register it, which would affect other tests
    with pytest.raises(ValueError, match='cannot be loaded: The model class'):
        load_classifier(folder, trust_remote_code=True)
    assert mark.exists()
    for value in (None, 1, 'yes'):
        with pytest.raises(ValueError, match='trust_remote_code must be True or False'):
            load_classifier(folder, trust_remote_code=value)

def test_a_model_without_a_classification_head_is_rejected(tmp_path):
    AutoConfig.for_model('vit').save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='model type vit, for which transformers has no sequence classification head'):
        load_classifier(tmp_path)

@pytest.mark.slow
def test_a_hub_name_without_a_network_raises_an_error_that_lists_the_packaged_models(tmp_path):
    code = ('from salviz.models.loading import load_classifier\ntry: load_classifier("someone/some-model")\nexcept '
            'ConnectionError as e: print(e)')
    env = {**os.environ, 'NO_PROXY': '*', 'HF_HOME': str(tmp_path), 'HF_ENDPOINT': 'http://127.0.0.1:9',
           'HF_HUB_OFFLINE': '0'}
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("'someone/some-model' is not in the local cache and the Hub cannot be reached "
                                  "(ConnectError: ")
    assert done.stdout.endswith('; packaged models: minilm, movie-minilm\n')
    assert done.stdout.count('\n') == 1
    assert 'Retrying' not in done.stderr

def test_a_hub_that_does_not_answer_leaves_only_local_copies(monkeypatch):
    asked = []
    monkeypatch.setattr('salviz.models.loading.hub_silence', lambda *args: asked.append(args) or 'ConnectError: cut')
    with pytest.raises(ConnectionError, match='cannot be reached .ConnectError: cut.'):
        load_classifier('someone/some-model', revision='v2', cache_dir=os.devnull)
    assert asked == [('someone/some-model', 'model', 'v2')]


classes = {'token_classification': dict(labels=['O', 'B-x', 'I-x'])}

@pytest.mark.parametrize('task,kind,head,width', [
    ('classification', 'bert', 'BertForSequenceClassification', 3),
    ('regression', 'gpt2', 'GPT2ForSequenceClassification', 1),
    ('regression', 'bert', 'BertForSequenceClassification', 1),
    ('token_classification', 'electra', 'ElectraForTokenClassification', 3),
    ('token_classification', 'llama', 'LlamaForTokenClassification', 3),
    ('masked_lm', 'deberta-v2', 'DebertaV2ForMaskedLM', 40),
    ('masked_lm', 'bert', 'BertForMaskedLM', 40)])
def test_each_task_gets_its_head_on_the_weights_in_the_folder(task, kind, head, width, tmp_path):
    saved = save(tmp_path, kind).base_model
    wanted = dict(ignore_mismatched_sizes=True) if task == 'regression' else {}
    model, tokenizer = load_model_for(task, tmp_path, **classes.get(task, {}), **wanted)
    assert type(model).__name__ == head and not model.training and tokenizer.pad_token_id is not None
    batch = Collator(tokenizer)(list(encode_texts(['a good film', 'bad'], tokenizer)))
    logits = model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).logits
    assert logits.shape == ((2, width) if 'SequenceClassification' in head else (*batch['input_ids'].shape, width))
    here = model.base_model.state_dict()
    assert all(torch.equal(x, here[k]) for k, x in saved.state_dict().items() if k in here)
    assert len(here.keys() & saved.state_dict()) >= 20
    if task == 'token_classification': assert model.config.id2label == {0: 'O', 1: 'B-x', 2: 'I-x'}
    if task == 'regression': assert model.config.problem_type == 'regression'

def test_a_discriminator_comes_with_its_head(tmp_path):
    with forked_random(0):
        saved = transformers.ElectraForPreTraining(AutoConfig.for_model('electra', **sizes, embedding_size=8))
    save(tmp_path, 'bert'); saved.save_pretrained(tmp_path)
    model, _ = load_model_for('replaced_token_detection', tmp_path)
    assert type(model) is type(saved) and all(torch.equal(a, b) for a, b in zip(model.parameters(), saved.parameters()))

@pytest.mark.parametrize('kind', ['marian', 'bart', 't5'])
def test_an_encoder_decoder_is_loaded_with_all_its_weights_and_its_start(kind, tmp_path):
    save(tmp_path)
    saved = encoder_decoder(kind)
    saved.save_pretrained(tmp_path)
    model, tokenizer = load_model_for('seq2seq', tmp_path)
    assert type(model) is type(saved) and decoder_start(model) == 2 and decoder_start(tiny('bert')) is None
    assert all(torch.equal(x, model.state_dict()[k]) for k, x in saved.state_dict().items())
    assert tokenizer.pad_token_id == model.config.pad_token_id == 0

def encoder_decoder(kind, **config):
    own = dict(d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2) if kind == 't5' else dict(d_model=16,
        encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        max_position_embeddings=20)
    if kind == 'led':
        own |= dict(max_encoder_position_embeddings=24, max_decoder_position_embeddings=16, attention_window=4)
    with forked_random(0):
        return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **own,
                                                                      **{
            **dict(vocab_size=40, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=2),
            **config})).eval()

def test_a_decoder_without_a_start_token_is_rejected_unless_it_is_passed(tmp_path):
    save(tmp_path)
    encoder_decoder('t5', decoder_start_token_id=None).save_pretrained(tmp_path)
    with pytest.raises(ValueError,
                       match='has no start token for its decoder; pass decoder_start_token_id') as e:
        load_model_for('seq2seq', tmp_path)
    assert '\n' not in str(e.value)
    assert decoder_start(load_model_for('seq2seq', tmp_path, decoder_start_token_id=0)[0]) == 0

@pytest.mark.sample(1)
@pytest.mark.parametrize('task', ['token_classification', 'regression', 'masked_lm'])
def test_a_new_head_of_any_task_depends_only_on_the_seed(task):
    head = lambda seed: [p for n, p in load_model_for(task, seed=seed, **classes.get(task, {}))[0].named_parameters()
                         if not n.startswith('bert.')]
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = head(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
    torch.manual_seed(2)
    assert first
    assert all(torch.equal(a, b) for a, b in zip(first, head(3)))
    assert not all(torch.equal(a, b) for a, b in zip(first, head(4)))

def test_load_model_for_classification_equals_load_classifier():
    a, b = load_model_for('classification', labels=['x', 'y'], seed=5)[0], load_classifier(labels=['x', 'y'], seed=5)[0]
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters()))
    assert a.config.to_dict() == b.config.to_dict()

@pytest.mark.parametrize('arguments,reason', [
    (dict(task='seq2seq'),
     'has the model type bert, for which transformers has no '
     'sequence-to-sequence head .model types with one: marian, bart, '
     't5.. bert '
     'supports classification, multi_label_classification, regression'),
    (dict(task='replaced_token_detection'), 'no head for replaced-token detection .model types with one: electra.'),
    (dict(task='image_classification'), 'has no image classification head .model types with one: vit, deit, beit.'),
    (dict(task='series_classification'),
     "no head for task='series_classification'; available: classification, .*salviz.models.nets"),
    (dict(task='masked_lm', labels=['a', 'b']), 'masked_lm has no classes; omit num_labels and labels'),
    (dict(task='regression', num_labels=2), 'regression has no classes'),
    (dict(task='token_classification'), 'has no trained head for tokens; name the tags with labels=')])
def test_an_unsupported_task_raises_an_error_that_lists_supported_ones(arguments, reason):
    with pytest.raises(ValueError, match=reason) as e: load_model_for(**arguments)
    assert '\n' not in str(e.value)

def test_heads_with_another_meaning_in_transformers_are_rejected(tmp_path):
    "BART is in the table of masked language models, although it generates whole texts"
    assert tasks_of_kind(AutoConfig.for_model('bart')) == ['classification', 'multi_label_classification', 'regression',
                                                           'seq2seq', 'question_answering']
    assert tasks_of_kind(AutoConfig.for_model('vit')) == ['image_classification']
    assert tasks_of_kind(AutoConfig.for_model('clap')) == []
    save(tmp_path); encoder_decoder('bart').save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='model type bart, for which transformers has no masked-language-model head'):
        load_model_for('masked_lm', tmp_path)

@pytest.mark.parametrize('kind,part', [('bert', 'classifier'), ('llama', 'score')])
def test_a_tagger_does_not_reuse_the_head_of_a_sequence_classifier(kind, part, tmp_path):
    "Both heads have the same name in the file and the same size here"
    saved = getattr(save(tmp_path, kind), part).weight
    first, again, other = (getattr(load_model_for('token_classification', tmp_path, num_labels=3, seed=seed)[0],
                                   part).weight for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, saved) and not torch.equal(first, other)
    assert load_model_for('token_classification', tmp_path, num_labels=5)[0].config.num_labels == 5
    load_model_for('token_classification', tmp_path, num_labels=3)[0].save_pretrained(tmp_path)
    assert load_classifier(tmp_path, num_labels=7)[0].config.num_labels == 7

def test_a_trained_head_of_a_tagger_or_regressor_is_replaced_only_on_request(tmp_path):
    save(tmp_path, num_labels=1)
    assert torch.equal(load_model_for('regression', tmp_path)[0].classifier.weight,
                       tiny('bert', num_labels=1).classifier.weight)
    load_model_for('token_classification', tmp_path, labels=['O', 'x', 'y'])[0].save_pretrained(tmp_path)
    assert load_model_for('token_classification', tmp_path)[0].config.id2label[2] == 'y'
    with pytest.raises(ValueError, match='has a trained head for 3 classes, not 5; pass ignore_mismatched_sizes'):
        load_model_for('token_classification', tmp_path, num_labels=5)
    save(tmp_path)
    with pytest.raises(ValueError, match='has a trained head for 3 classes, not 1'):
        load_model_for('regression', tmp_path)

@pytest.mark.parametrize('kind,longest', [('marian', 20), ('bart', 20), ('led', 16)])
def test_texts_and_targets_fit_the_positions_of_an_encoder_decoder(kind, longest, tmp_path):
    save(tmp_path)
    tokenizer, model = load_classifier(tmp_path)[1], encoder_decoder(kind)
    assert longest_input(model, tokenizer) == longest
    with torch.no_grad():
        model(input_ids=torch.full((1, longest), 5), decoder_input_ids=torch.full((1, longest), 5))
        with pytest.raises(IndexError):
            model(input_ids=torch.full((1, longest), 5), decoder_input_ids=torch.full((1, longest + 1), 5))
    with pytest.raises(ValueError, match=f'max_length must be None or an integer from 1 to {longest}'):
        longest_input(model, tokenizer, longest + 1)
    assert longest_input(encoder_decoder('t5'), tokenizer) == 512
