"""Model, tokenizer and data are checked against each other: they are aligned if names show the intended order,
otherwise an error is raised."""
import re

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from helpers import alike
from transformers import (BertConfig, BertForSequenceClassification, BertForTokenClassification, LlamaConfig,
                          LlamaForSequenceClassification, PreTrainedTokenizerFast)

from salviz import (Run, explain, explain_data, faithfulness_table, gradient_sizes, head_table, load_classifier,
                    load_model, load_text, load_tokens, train)
from salviz.attribution.registry import registered_attributions
from salviz.data.texts import align_answers, encode, fingerprint
from salviz.models.agreement import agreed_data, class_names, name_classes
from salviz.analysis.faithfulness import faithfulness
from salviz.analysis.model_maps import _explain_texts
from salviz.training import feed, job

WORDS = '<s> </s> <pad> [UNK] [SEP] the film was moving and very good bad plot'.split()


def words_tokenizer(single=None, pair=None, longest=32, **special):
    "Return a tokenizer with a token for each of `WORDS`, and the templates `single` and `pair`"
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token='[UNK]'))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if single:
        marks = [(w, i) for i, w in enumerate(WORDS[:5])]
        backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=marks)
    special = dict(bos_token='<s>', eos_token='</s>', pad_token='<pad>', sep_token='[SEP]') | special
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token='[UNK]', model_max_length=longest, **special)


@pytest.mark.parametrize('pair', ['<s>:0 $A:0 <s>:1 $B:1', '<s>:0 $A:0 </s>:0 <s>:1 $B:1 </s>:1'])
def test_prompt_and_answer_have_one_begin_token_and_one_end_token(pair):
    tokenizer = words_tokenizer('<s> $A', pair)
    row, = encode(Dataset.from_dict(dict(text=['the film was'], target_text=['very good'])), tokenizer,
                  task='causal_lm')
    assert tokenizer.decode(row['input_ids']) == '<s> the film was very good </s>'
    assert row['input_ids'][:4] == tokenizer('the film was')['input_ids']
    assert row['labels'] == [-100]*3 + row['input_ids'][4:] + [-100]
    assert row['segments'] == [-1, 0, 0, 0, 1, 1, -1] and row['word_ids'] == [-1, 0, 1, 2, 3, 4, -1]
    for longest in range(6, 10):
        t, = align_answers(tokenizer, ['the film was moving and'], ['very good very good'], longest)
        assert len(t) == longest and t.tokens.count('<s>') == t.tokens.count('</s>') == 1 and t.tokens[-1] == '</s>'
        assert t.truncated == 9 + 2 - longest # nothing is truncated that would have fitted


def test_a_separator_that_is_not_a_begin_token_stays_between_prompt_and_answer():
    tokenizer = words_tokenizer('$A', '$A [SEP] $B')
    assert align_answers(tokenizer, ['the film'], ['good'])[0].tokens == ['the', 'film', '[SEP]', 'good', '</s>']


def bert(*names, task=BertForSequenceClassification, **config):
    "Return a tiny model whose classes are called `names`"
    torch.manual_seed(0)
    model = task(BertConfig(vocab_size=len(WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                            intermediate_size=8, max_position_embeddings=32, num_labels=len(names) or 2, pad_token_id=2,
                            **config)).eval()
    if names: name_classes(model, names)
    return model


def split(labels, names, texts=('the film was good', 'bad plot')):
    types = Features(text=Value('string'), label=ClassLabel(names=list(names)))
    return Dataset.from_dict(dict(text=[texts[i % len(texts)] for i in range(len(labels))], label=labels), types)


def splits(train=('bad', 'good'), validation=('bad', 'good'), test=('bad', 'good')):
    "Return splits with the same class names in any order"
    said = ['good', 'bad', 'bad', 'good']
    return DatasetDict({name: split([list(names).index(x) for x in said], names)
                        for name, names in dict(train=train, validation=validation, test=test).items()})


def by_name(part, column='label'):
    return part.features[column].int2str(part[column])


quick = dict(epochs=1, batch_size=4, learning_rate=1e-9, probes=2, snapshots=2, saliency='input_x_gradient',
             progress=False)


def test_labels_and_recordings_use_the_class_order_of_the_model(tmp_path):
    model, tokenizer = bert('good', 'bad'), words_tokenizer()
    with pytest.warns(UserWarning, match='data lists the classes bad, good, but the model lists good, bad'):
        run = train(model, tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    assert class_names(model) == ['good', 'bad'] == run.config['class_order'] == run.snapshot(0, 0).classes
    assert len(run.config['agreement']) == 1 and run.config['data']['fingerprint'] == fingerprint(splits())
    with torch.no_grad(): said = model(**tokenizer(list(splits()['validation']['text']), return_tensors='pt',
                                                   padding=True)).logits.argmax(-1).tolist()
    right = [class_names(model)[i] == y for i, y in zip(said, by_name(splits()['validation']))]
    assert run.eval_rows[0]['accuracy'] == sum(right)/4
    with pytest.warns(UserWarning, match='explain: the data lists the classes bad, good'):
        again = explain_data(model, splits()['test'], 'input_x_gradient', 'gold', tokenizer=tokenizer, details=True,
                             progress=False)
    assert again.target.tolist() == [0, 1, 1, 0]


@pytest.mark.slow
def test_a_model_without_class_names_gets_those_of_the_data_and_saves_them(tmp_path):
    model, tokenizer = bert(), words_tokenizer()
    run = train(model, tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    assert 'agreement' not in run.config and class_names(model) == ['bad', 'good'] == class_names(load_model(run)[0])
    with pytest.warns(UserWarning, match='data lists the classes good, bad, but the model lists bad, good'):
        train(model, tokenizer, splits(*[('good', 'bad')]*3), run_dir=tmp_path/'other', **quick)


def test_classes_with_other_names_or_another_number_are_rejected_with_both_lists(tmp_path):
    for names, message in ((('bad', 'fine'), 'the model are bad, fine, but those of the data are bad, good'),
                           (('bad', 'so', 'good'), 'has 2 classes .bad, good. but .* head has 3 .bad, so, good')):
        with pytest.raises(ValueError, match=message):
            train(bert(*names), words_tokenizer(), splits(), run_dir=tmp_path/'run', **quick)
    assert not (tmp_path/'run').exists()


def test_splits_and_probes_with_different_class_orders_are_matched_by_name(tmp_path):
    data, notes = agreed_data(bert('good', 'bad'), splits(validation=('good', 'bad')))
    assert [by_name(part) for part in data.values()] == [['good', 'bad', 'bad', 'good']]*3 and len(notes) == 1
    with pytest.warns(UserWarning, match='validation has the classes good, bad, but train has bad, good'):
        loaded = load_text(dict(splits(validation=('good', 'bad'))))
    assert by_name(loaded['validation']) == ['good', 'bad', 'bad', 'good']
    for read in (load_text, lambda x: agreed_data(bert('bad', 'good'), x)):
        with pytest.raises(ValueError, match='classes that (the other splits lack|are not in train)'):
            read(DatasetDict(dict(splits(), test=split([0, 1], ['odd', 'good']))))
    run = train(bert('bad', 'good'), words_tokenizer(), splits(), run_dir=tmp_path/'run',
                **quick | dict(probes=split([0, 1], ['good', 'bad'])))
    assert [run.snapshot(0, probe).label for probe in (0, 1)] == [1, 0]


def test_tags_are_matched_by_name():
    names = ['O', 'B-PER', 'I-PER']
    types = Features(words=Sequence(Value('string')), tags=Sequence(ClassLabel(names=names)))
    part = Dataset.from_dict(dict(words=[['the', 'film'], ['plot']], tags=[[0, 1], [2]]), types)
    model = bert('I-per', 'B-per', 'O', task=BertForTokenClassification)
    data, notes = agreed_data(model, DatasetDict(train=part, validation=part))
    assert data['validation']['tags'] == [[2, 1], [0]] and len(notes) == 1
    types['tags'] = Sequence(ClassLabel(names=['B-PER', 'O', 'I-PER']))
    other = Dataset.from_dict(dict(words=part['words'], tags=[[1, 0], [2]]), types)
    with pytest.warns(UserWarning, match='test has the classes'):
        loaded = load_tokens(dict(train=part, validation=part, test=other))
    assert loaded['test']['tags'] == [[0, 1], [2]]


def test_a_trained_head_keeps_its_order_when_it_is_loaded_with_names(tmp_path):
    bert('good', 'bad').save_pretrained(tmp_path)
    words_tokenizer().save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match='the order of the head is used'):
        model, _ = load_classifier(tmp_path, labels=['bad', 'good'])
    assert class_names(model) == ['good', 'bad']
    with pytest.raises(ValueError, match='trained head for the classes good, bad, but labels lists bad, fine'):
        load_classifier(tmp_path, labels=['bad', 'fine'])


def test_a_run_of_an_earlier_version_is_loaded_with_its_training_class_names(tmp_path, monkeypatch):
    model = bert('good', 'bad')
    with monkeypatch.context() as earlier: # it trained on the numbers of the data, whatever its config was
        earlier.setattr(job, 'agreed_data', lambda model, data: (data, []))
        earlier.setattr(feed, 'check_classes', lambda model, task, data: task.class_names(data['train'].features))
        run = train(model, words_tokenizer(), splits(), run_dir=tmp_path/'run', **quick)
    assert class_names(model) == ['good', 'bad']
    with pytest.warns(UserWarning, match='the names from the run are used'):
        assert class_names(load_model(Run(run.path))[0]) == ['bad', 'good']


def test_unused_labels_need_not_match_the_model():
    model, tokenizer = bert('bad', 'good'), words_tokenizer()
    five = split([0, 4], [*'abcde'])
    assert len(explain_data(model, five, 'input_x_gradient', tokenizer=tokenizer, progress=False)) == 2
    with pytest.raises(ValueError, match='data has 5 classes .a, b, c, d, e. but the model.s head has 2 .bad, good'):
        explain_data(model, five, 'input_x_gradient', 'gold', tokenizer=tokenizer, progress=False)


def llama(pad, vocab_size=len(WORDS), **config):
    torch.manual_seed(0)
    return LlamaForSequenceClassification(LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, num_labels=2, pad_token_id=pad, initializer_range=.5, **config)).eval()


TEXTS = ['the film was moving and very good', 'bad plot', 'the plot was bad']


def alone(model, tokenizer, target=1):
    with torch.no_grad():
        return torch.stack([model(tokenizer(t, return_tensors='pt')['input_ids']).logits[0, target] for t in TEXTS])


@pytest.mark.parametrize('pad, says', [(1, 'padded with the token of the model'), (None, 'had no padding token'),
                                       (-1, 'had no padding token'), (99, 'had no padding token')])
def test_a_text_scores_the_same_alone_and_in_a_batch_whatever_the_padding_token_of_the_config(pad, says):
    tokenizer = words_tokenizer() # which pads with 2
    model = llama(2)
    expected = alone(model, tokenizer)
    model.config.pad_token_id = pad
    with pytest.warns(UserWarning, match=says):
        explanation = explain(model, TEXTS, 'input_x_gradient', target=1, tokenizer=tokenizer)
    assert alike(explanation.score, expected, size=4096)
    single = [explain(model, t, 'input_x_gradient', target=1, tokenizer=tokenizer).examples()[0] for t in TEXTS]
    for made in (explanation.examples(), explain_data(model, TEXTS, 'input_x_gradient', 1, tokenizer=tokenizer)):
        for x, y in zip(made, single): assert alike(torch.tensor(x), torch.tensor(y), size=4096)


def test_a_batch_padded_with_another_token_is_read_at_its_last_real_token():
    model, tokenizer = llama(1), words_tokenizer()
    batch = tokenizer(TEXTS, padding=True, return_tensors='pt')
    with pytest.warns(UserWarning, match='not padded with the padding token of the model'):
        score = explain(model, dict(batch), 'input_x_gradient', target=1).score
    assert alike(score, alone(model, tokenizer), size=4096)


def test_a_tokenizer_without_a_padding_token_pads_with_that_of_the_model():
    tokenizer = words_tokenizer(pad_token=None)
    with pytest.warns(UserWarning, match='the tokenizer has the id None, but that of the model has the id 2'):
        score = explain(llama(2), TEXTS, 'input_x_gradient', target=1, tokenizer=tokenizer).score
    assert alike(score, alone(llama(2), tokenizer), size=4096)
    with pytest.raises(ValueError, match=r'no usable padding token.*\(id None\).*config of the model is None'):
        explain(llama(None), TEXTS, tokenizer=tokenizer)


def test_tokens_that_the_model_does_not_embed_are_rejected_before_a_run_exists(tmp_path):
    tokenizer = words_tokenizer(pad_token='<new>') # id 14, after the vocabulary
    with pytest.raises(ValueError, match="'<new>' .id 14.*embeds 14 tokens. .*resize_token_embeddings"):
        train(llama(2), tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    with pytest.raises(ValueError, match='ids up to 13, but LlamaForSequenceClassification embeds only 12 tokens'):
        train(llama(2, 12), words_tokenizer(), splits(), run_dir=tmp_path/'run', **quick)
    with pytest.raises(ValueError, match='ids up to 13, but LlamaForSequenceClassification embeds only 12 tokens'):
        explain(llama(2, 12), TEXTS[1:2], tokenizer=words_tokenizer())
    assert not (tmp_path/'run').exists()


def test_training_sets_the_padding_token_of_the_model_and_reports_it(tmp_path):
    model, tokenizer = llama(1), words_tokenizer()
    with pytest.warns(UserWarning, match="had the id 1; it was set to the padding token of the tokenizer"):
        run = train(model, tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    assert model.config.pad_token_id == 2 == load_model(run)[0].config.pad_token_id
    assert len(run.config['agreement']) == 1 and 'class_order' not in run.config


@pytest.mark.sample(7)
@pytest.mark.parametrize('method', sorted(registered_attributions()))
def test_every_attribution_reads_a_model_in_bfloat16(method):
    model, tokenizer = llama(2), words_tokenizer()
    def words(model): return explain(model, TEXTS[:1], method, 1, tokenizer=tokenizer).words()[0]
    try: expected = words(model)
    except ValueError as e: # a method that this architecture does not support is rejected in either precision
        with pytest.raises(ValueError, match=re.escape(str(e)[:40])): words(model.bfloat16())
        return
    got = words(model.bfloat16())
    assert list(got.index) == list(expected.index) and np.isfinite(got).all() and got.abs().max() > 0


def test_in_bfloat16_an_explanation_is_the_gradient_of_the_bfloat16_model():
    model, tokenizer = llama(2).bfloat16(), words_tokenizer()
    x = model.get_input_embeddings()(tokenizer(TEXTS[0], return_tensors='pt')['input_ids']).detach().requires_grad_()
    gradient, = torch.autograd.grad(model(inputs_embeds=x).logits[0, 1], x)
    expected = (gradient.double()*x.detach().double())[0].sum(-1)
    got = torch.tensor(explain(model, TEXTS[:1], 'input_x_gradient', 1, tokenizer=tokenizer).examples()[0]).double()
    rounded = (gradient.double()*x.detach().double())[0].abs().sum(-1)*torch.finfo(torch.bfloat16).eps
    assert ((got - expected).abs() <= 2*rounded).all() # each product and the sum are rounded once


def test_every_analysis_accepts_a_model_in_bfloat16():
    model, tokenizer = llama(2).bfloat16(), words_tokenizer()
    made = explain_data(model, TEXTS, 'integrated_gradients', 'each', tokenizer=tokenizer, details=True, steps=2)
    assert made.score.shape == (2, 3) == made.completeness_error.shape
    for replacement in ('removal', 'mean_embedding'):
        table = faithfulness_table(model, TEXTS, ['input_x_gradient'], tokenizer, replacement=replacement)
        assert np.isfinite(table).all(axis=None)
    values = explain(model, TEXTS, 'input_x_gradient', tokenizer=tokenizer).values
    assert np.isfinite(faithfulness(model, TEXTS, values, tokenizer=tokenizer)['sufficiency']).all()
    assert np.isfinite(head_table(model, TEXTS, tokenizer)[['to_previous', 'agreement']]).all(axis=None)
    assert np.isfinite(gradient_sizes(model, TEXTS, tokenizer).gradient).all()
    s, = _explain_texts(model, tokenizer, TEXTS[0], steps=2)
    assert {'attention', 'saliency', 'attention_attribution', 'probabilities'} <= {*s.arrays}


def test_training_bfloat16_weights_needs_an_explicit_conversion(tmp_path):
    model, tokenizer = llama(2).bfloat16(), words_tokenizer()
    with pytest.raises(ValueError, match="in bfloat16, which rounds away most updates .*weights_dtype='float32'"):
        train(model, tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    assert not (tmp_path/'run').exists()
    with pytest.warns(UserWarning, match='converted from bfloat16 to float32'):
        run = train(model, tokenizer, splits(), run_dir=tmp_path/'run', weights_dtype='float32', **quick)
    assert run.config['settings']['weights_dtype'] == 'float32' and 'bfloat16' in run.config['agreement'][0]
    assert {p.dtype for p in load_model(run)[0].parameters()} == {torch.float32}


def test_frozen_weights_may_stay_in_bfloat16(tmp_path):
    model, tokenizer = llama(2).bfloat16(), words_tokenizer()
    for p in model.model.parameters(): p.requires_grad_(False)
    model.score.float()
    model.score.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    run = train(model, tokenizer, splits(), run_dir=tmp_path/'run', **quick)
    assert {p.dtype for p in model.model.parameters()} == {torch.bfloat16}
    assert np.isfinite(run.snapshot(0, 0).arrays['attention']).all()
