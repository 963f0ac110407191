"""The antecedent test: its sentences, the scores of heads and rules, and the selection of the best head"""
import re

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from transformers import (BartConfig, BartForSequenceClassification, BartModel, BertConfig, BertModel, GPT2Config,
                          GPT2Model, T5Config, T5ForSequenceClassification)

from helpers import word_tokenizer
from salviz.analysis.antecedents import (_antecedent_baselines, _best_head, _check_antecedents, _names, _nouns,
                                         _pronouns, _selected, antecedent_accuracy, antecedent_report,
                                         antecedent_sentences)
from salviz.core.text import align, find_words
from salviz.models.corruption import train_tokenizer


@pytest.fixture(scope='module')
def sentences(): return antecedent_sentences(126, seed=1)

def said(row, span): return row['text'][span[0]:span[1]]

def gender_of(phrase):
    word = phrase.split()[-1]
    return next(g for group in (_nouns, _names) for g, words in group.items() if word in words)


def test_spans_match_their_words(sentences):
    for row in sentences:
        right, mention = said(row, row['antecedent'][0]), said(row, row['mention'])
        phrases = [said(row, s) for s in row['candidates']]
        assert phrases[row['place']] == right and len({p.lower() for p in phrases}) == 4
        assert gender_of(right) == row['gender'] and re.fullmatch(r'[A-Z][^.]+\. [A-Z][^.]+\.', row['text'])
        spans = [row['text'][a:b] for a, b in find_words(row['text'])]
        assert mention in spans and row['candidates'] == sorted(row['candidates'])
        assert row['candidates'][2][1] < row['mention'][0] < row['mention'][1] < row['candidates'][3][0]
        if row['kind'] == 'pronominal': assert mention == _pronouns[row['gender']][row['role']]
        else: assert mention == right.split()[-1]


def test_a_pronoun_agrees_only_with_its_antecedent(sentences):
    for row in sentences:
        if row['kind'] == 'pronominal':
            assert [gender_of(said(row, s)) for s in row['candidates']].count(row['gender']) == 1


@pytest.mark.parametrize('n, seed, kinds', [(9, 0, ('pronominal', 'nominal', 'proper')), (60, 7, ('pronominal',)),
                                            (126, 3, ('nominal', 'proper'))])
def test_places_are_balanced_and_the_previous_word_is_never_right(n, seed, kinds):
    data = antecedent_sentences(n, seed, kinds)
    frame = data.to_pandas()
    assert len(frame) == frame.text.nunique() == n and set(frame.kind) == set(kinds)
    assert set(frame.groupby(['kind', 'place']).size()) == {n//len(kinds)//3}
    rules = _antecedent_baselines(data).set_index('rule').accuracy
    assert rules['previous word'] == 0 and rules['nearest noun'] == rules['first noun'] == pytest.approx(1/3)
    assert data['text'] == antecedent_sentences(n, seed,
                                                kinds)['text'] != antecedent_sentences(n, seed + 1, kinds)['text']


def test_genders_and_roles_alternate():
    frame = antecedent_sentences(27*6).to_pandas()
    assert set(frame[frame.kind == 'pronominal'].groupby(['gender', 'role']).size()) == {6}
    assert set(frame[frame.kind == 'proper'].gender) == {'female', 'male'}
    assert set(frame.role) == {'subject', 'object', 'possessive'}


def test_generating_sentences_does_not_use_the_global_generators():
    before = np.random.get_state()[1].copy()
    antecedent_sentences(9)
    assert (np.random.get_state()[1] == before).all()


def test_the_largest_candidate_scores_and_equals_share_the_point():
    right, all_of_them = np.array([False, True, True, False]), np.ones(4, bool)
    assert _selected([.1, .5, .2, .2], right, all_of_them) == 1 and _selected([.1, .2, .2, .5], right, all_of_them) == 0
    assert _selected([.4, .4, .1, .4], right, all_of_them) == pytest.approx(1/3)
    assert _selected([.25]*4, right, all_of_them) == .5
    assert _selected([.1, .2, .2, .5], right, np.array([True, True, True, False])) == 1
    assert np.isnan(_selected([[np.nan]*4, [.1, .2, .3, .4]], right, all_of_them)).tolist() == [True, False]


def eager_maps(model, ids, decoder=None):
    model.set_attn_implementation('eager')
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_attentions=True,
                    **({} if decoder is None else dict(decoder_input_ids=torch.tensor([[decoder]]))))
    model.set_attn_implementation('sdpa')
    return torch.stack(getattr(out, 'encoder_attentions', None) or out.attentions)[:, 0].double().numpy()

def slow_score(A, text, row, candidates):
    "Return the fraction of correct words among those with the largest weight in one head's map, by loops over tokens"
    def words_of(span): return [w for w, (_, a, b) in enumerate(text.word_spans) if a < span[1] and span[0] < b]
    mention, right = words_of(row['mention']), sum([words_of(s) for s in row['antecedent']], [])
    compared = (sum([words_of(s) for s in row['candidates']], []) if candidates == 'mentions'
                else [w for w in range(len(text.words)) if w not in mention])
    asks = [i for i, w in enumerate(text.word_ids) if w in mention]
    weight = {w: sum(sum(A[i][j] for j, o in enumerate(text.word_ids) if o == w) for i in asks)/len(asks)
              for w in compared}
    most = [w for w in compared if weight[w] == max(weight.values())]
    return len([w for w in most if w in right])/len(most)

def tiny(kind, tokenizer):
    sizes = dict(vocab_size=len(tokenizer), pad_token_id=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == 'encoder':
            return BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                        intermediate_size=48, max_position_embeddings=256,
                                        initializer_range=.15, **sizes)).eval()
        if kind == 'decoder':
            return GPT2Model(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=.15,
                                        **sizes)).eval()
        return BartModel(BartConfig(d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=4,
                                    decoder_attention_heads=4, encoder_ffn_dim=48,
                                    decoder_ffn_dim=48, max_position_embeddings=256, decoder_start_token_id=3,
                                    init_std=.15, **sizes)).eval()


@pytest.fixture(scope='module')
def char_tokenizer():
    "Return a tokenizer that splits words into tokens of one to three letters, so that pooling over tokens matters"
    return train_tokenizer(antecedent_sentences(90, seed=9)['text'], vocab_size=150, lowercase=False, max_length=256)


def test_sentences_of_similar_length_are_read_together(char_tokenizer, sentences):
    model, read = tiny('encoder', char_tokenizer), []
    model.register_forward_pre_hook(lambda model, args, given: read.append(given['input_ids'].numel()),
                                    with_kwargs=True)
    antecedent_accuracy(model, char_tokenizer, sentences, batch_size=16)
    lengths = [len(align(char_tokenizer, text).input_ids) for text in sentences['text']]
    def padded(lengths): return sum(max(part)*len(part) for part in (lengths[i:i+16] for i in range(0, 126, 16)))
    assert sum(read) == padded(sorted(lengths)) < padded(lengths)

@pytest.mark.sample(4)
@pytest.mark.parametrize('candidates', ['words', 'mentions'])
@pytest.mark.parametrize('kind', ['encoder', 'decoder', 'encoder-decoder'])
def test_every_heads_accuracy_equals_loops_over_single_sentences(char_tokenizer, sentences, kind, candidates):
    model = tiny(kind, char_tokenizer)
    some = sentences.select(range(12))
    table, want = antecedent_accuracy(model, char_tokenizer, some, candidates, batch_size=5), []
    for row in some:
        text = align(char_tokenizer, row['text'])
        maps = eager_maps(model, text.input_ids.tolist(), 3 if kind == 'encoder-decoder' else None)
        want.append([[slow_score(head, text, row, candidates) for head in layer] for layer in maps])
    assert table.accuracy.tolist() == pytest.approx(np.mean(want, 0).ravel().tolist()) and table.accuracy.nunique() > 1
    assert table[['to_earlier', 'to_later', 'to_self',
                  'to_special']].sum(axis=1).tolist() == pytest.approx([1]*8, abs=1e-5)
    if kind == 'decoder': assert (table.to_later < 1e-9).all()

def flat(tokenizer):
    "Return a model whose heads all have uniform attention"
    model = tiny('encoder', tokenizer)
    for name, p in model.named_parameters():
        if '.query.' in name: p.data.zero_()
    return model

def test_a_head_with_uniform_attention_is_at_chance_for_mentions_of_one_word():
    proper = antecedent_sentences(24, kinds=('proper',))
    tokenizer = word_tokenizer([t.replace('.', ' .').replace(',', ' ,') for t in proper['text']], longest=64)
    table = antecedent_accuracy(flat(tokenizer), tokenizer, proper, 'mentions')
    assert table.accuracy.tolist() == pytest.approx([.25]*8)
    words = antecedent_accuracy(flat(tokenizer), tokenizer, proper)
    assert words.accuracy.tolist() == pytest.approx([_antecedent_baselines(proper).accuracy[0]]*8)
    assert set(words.direction) == {'earlier'}


def test_batches_do_not_matter_and_types_and_halves_add_up(char_tokenizer, sentences):
    model = tiny('encoder', char_tokenizer)
    some = sentences.select(range(30))
    table = antecedent_accuracy(model, char_tokenizer, some, batch_size=7)
    numbers = table.columns.drop('direction')
    assert table[numbers].to_numpy() == pytest.approx(antecedent_accuracy(model, char_tokenizer, some,
                                                                          batch_size=30)[numbers].to_numpy(), abs=1e-5)
    kinds = pd.Series(some['kind'][:]).value_counts()
    assert (table[kinds.index]*kinds).sum(axis=1).div(30).tolist() == pytest.approx(table.accuracy.tolist())
    assert ((table.first_half + table.second_half)/2).tolist() == pytest.approx(table.accuracy.tolist())
    other = antecedent_accuracy(model, char_tokenizer, some, seed=1)
    assert other.accuracy.tolist() == pytest.approx(table.accuracy.tolist())
    assert other.first_half.tolist() != table.first_half.tolist()
    one = antecedent_accuracy(model, char_tokenizer, some, layers=[-1])
    assert one.layer.tolist() == [1]*4 and one.accuracy.tolist() == pytest.approx(table.accuracy[4:].tolist())


def test_the_best_head_is_never_scored_where_it_was_chosen():
    frame = pd.DataFrame(dict(layer=[0, 0, 1, 1], head=[0, 1, 0, 1], accuracy=[.5, .5, .5, .5],
                              first_half=[.2, .9, .9, .1], second_half=[.7, .3, .6, .8]))
    got = _best_head(frame)
    assert got.to_dict('list') == dict(chosen_on=['first_half', 'second_half'], layer=[0, 1], head=[1, 1],
                                       chosen=[.9, .8], accuracy=[.3, .1])


def test_random_heads_look_better_only_on_the_sentences_they_were_chosen_on():
    """200 random heads that are correct in a quarter of 60 sentences, repeated 200 times: the standard error of the
    unbiased mean is .004"""
    flattered, honest = [], []
    for seed in range(200):
        hits = np.random.default_rng(seed).random((60, 200)) < .25
        frame = pd.DataFrame(dict(layer=0, head=range(200), accuracy=hits.mean(0), first_half=hits[::2].mean(0),
                                  second_half=hits[1::2].mean(0)))
        flattered.append(frame.accuracy.max())
        honest.append(_best_head(frame).accuracy.mean())
    assert np.mean(flattered) > .38 and abs(np.mean(honest) - .25) < .015


def by_hand(**other):
    text = 'Ann saw Bob. Then Ann left the room.'
    return dict(text=text, mention=[18, 21], antecedent=[[0, 3]], candidates=[[0, 3], [8, 11], [27, 35]], **other)

def test_rules_on_examples():
    data = datasets.Dataset.from_list([by_hand(), by_hand() | dict(antecedent=[[8, 11]]),
                                       by_hand() | dict(antecedent=[[0, 3], [8, 11]])])
    rules = _antecedent_baselines(data).set_index('rule').accuracy
    assert list(_antecedent_baselines(data)) == ['rule', 'accuracy']
    assert rules['chance'] == pytest.approx((1 + 1 + 2)/9/3) # ten words and punctuation marks, one of them the mention
    assert _antecedent_baselines(data, 'mentions').accuracy[0] == pytest.approx((1 + 1 + 2)/4/3)
    assert rules['nearest noun'] == rules['first noun'] == pytest.approx(2/3)
    assert rules['same word, else nearest noun'] == pytest.approx(2/3)
    assert rules['previous word'] == 0
    adjacent = datasets.Dataset.from_list([dict(text='Ann herself came', mention=[4, 11], antecedent=[[0, 3]],
                                                candidates=[[0, 3]])])
    assert (_antecedent_baselines(adjacent).accuracy[1:] == 1).all()


def test_custom_data_may_have_several_antecedents_and_no_kind(char_tokenizer):
    data = datasets.Dataset.from_list([by_hand(), by_hand() | dict(antecedent=[[0, 3], [8, 11]])])
    model = flat(char_tokenizer)
    table = antecedent_accuracy(model, char_tokenizer, data)
    assert list(table)[:5] == ['layer', 'head', 'accuracy', 'first_half', 'second_half'] and len(table) == 8


def test_the_report_puts_heads_and_rules_side_by_side(char_tokenizer, sentences):
    model = tiny('encoder', char_tokenizer)
    some = sentences.select(range(20))
    table, report = antecedent_accuracy(model, char_tokenizer,
                                        some), antecedent_report(model, char_tokenizer, some).set_index('answer')
    assert report.accuracy['best head, chosen on the other half'] == pytest.approx(_best_head(table).accuracy.mean())
    assert report.accuracy['best head, chosen on the same sentences'] == table.accuracy.max()
    assert report.accuracy['mean of all heads'] == table.accuracy.mean()
    top = table.loc[table.accuracy.idxmax()]
    assert report.heads['best head, chosen on the same sentences'] == f'{top.layer}.{top["head"]}'
    assert report.accuracy.iloc[3:].tolist() == _antecedent_baselines(some).accuracy.tolist()


@pytest.mark.parametrize('kind', ['bart', 't5'])
def test_an_encoder_decoder_classifier_reads_the_sentence(kind):
    some = antecedent_sentences(9)
    tokenizer = word_tokenizer([t.replace('.', ' .').replace(',', ' ,') for t in some['text']], longest=64)
    ids = dict(vocab_size=len(tokenizer), d_model=16, pad_token_id=0, eos_token_id=tokenizer.sep_token_id,
               decoder_start_token_id=0, num_labels=2)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == 't5':
            model = T5ForSequenceClassification(T5Config(d_ff=20, d_kv=8, num_layers=2, num_heads=2,
                                                         initializer_factor=3., **ids)).eval()
        else:
            model = BartForSequenceClassification(BartConfig(encoder_layers=2, decoder_layers=1,
          encoder_attention_heads=2, decoder_attention_heads=2,
          encoder_ffn_dim=20, decoder_ffn_dim=20, bos_token_id=1, max_position_embeddings=64, init_std=.3,
          **ids)).eval()
    table = antecedent_accuracy(model, tokenizer, some, batch_size=4)
    # without the head: the same encoder
    same = antecedent_accuracy(model.transformer if kind == 't5' else model.model, tokenizer, some)
    assert len(table) == 4 and table.accuracy.between(0, 1).all() and table.accuracy.nunique() > 1
    assert table.accuracy.tolist() == same.accuracy.tolist()


@pytest.mark.parametrize('call, said', [
    (lambda: antecedent_sentences(100), 'n must be a positive multiple of 9'),
    (lambda: antecedent_sentences(0), 'n must be a positive multiple of 9'),
    (lambda: antecedent_sentences(9, kinds='pronominal'), 'kinds must be a non-empty list of names'),
    (lambda: antecedent_sentences(9, kinds=()), 'kinds must be a non-empty list'),
    (lambda: _antecedent_baselines(candidates='nouns'), "candidates must be 'words' or 'mentions'"),
    (lambda: _check_antecedents(['a']), 'got list'),
    (lambda: _check_antecedents(datasets.Dataset.from_dict(dict(text=['a']))),
     'missing: mention, antecedent, candidates; got text'),
    (lambda: _check_antecedents(datasets.Dataset.from_list([by_hand()]).select([])), 'data is empty'),
    (lambda: _check_antecedents(datasets.Dataset.from_list([by_hand() | dict(mention=[18, 99])])),
     'exceeds the text, which has 36 characters'),
    (lambda: _check_antecedents(datasets.Dataset.from_list([by_hand(), by_hand() | dict(antecedent=[[1, 2]])])),
     'row 1: the antecedent must be among'),
    (lambda: _check_antecedents(datasets.Dataset.from_list([by_hand() | dict(mention=[9, 12])])),
     'overlaps a candidate')])
def test_invalid_data_are_rejected(call, said):
    with pytest.raises(ValueError, match=said): call()


def test_sentences_that_are_too_long_are_rejected_instead_of_truncated(tiny_bert, tiny_tokenizer, sentences):
    long = datasets.Dataset.from_list([by_hand(), by_hand() | dict(text=by_hand()['text'] + ' and so on'*40)])
    with pytest.warns(UserWarning, match='were truncated'), pytest.raises(ValueError,
                                                                    match='1 sentence is longer than 64 tokens '
                                                                    '.first: row 1.'):
        antecedent_accuracy(tiny_bert(), tiny_tokenizer, long)
    with pytest.raises(ValueError, match='at least two sentences'):
        antecedent_accuracy(tiny_bert(), tiny_tokenizer, sentences.select([0]))
