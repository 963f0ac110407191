"New tokenizers and small models, and corrupted batches, tested by loops, exact counts and invariances"
import json, random, warnings
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from tokenizers import pre_tokenizers

import forked
from salviz.data.texts import Collator, encode, load_text, model_inputs, subset
from salviz.models.tasks import task_of, tasks
from salviz.models.loading import load_classifier, load_model_for, longest_input
from salviz.models.tasks import task_heads
from salviz.models.corruption import (MaskTokens, ReplaceTokens, _choose_tokens, _special_tokens, pack_texts,
                                      small_model, token_counts, train_tokenizer)
from salviz.core.text import align
from salviz.training.trainer import train

texts = [f'The {a} {b} walks, slowly, past house {i % 7}.'
         for i, (a, b) in enumerate([(a, b) for a in ('old', 'young', 'brave')
                                     for b in ('dog', 'teacher', 'Käufer')]*4)]
short = ['Rain', 'No .', 'a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l m']


@pytest.fixture(scope='module')
def tokenizer(): return train_tokenizer([*texts, *short], 140, max_length=64)

@pytest.fixture(scope='module')
def rows(tokenizer): return list(encode(Dataset.from_dict(dict(text=[*texts, *short])), tokenizer))

@pytest.fixture(scope='module')
def batch(rows, tokenizer): return Collator(tokenizer)(rows)


def draw(seed, step, example, stream, place):
    "Return the uniform random number, computed with Python integers"
    def mix(x):
        x = ((x ^ (x >> 16))*0x85ebca6b) % 2**32
        x = ((x ^ (x >> 13))*0xc2b2ae35) % 2**32
        return x ^ (x >> 16)
    key = 0
    for part in (seed, step, stream, example): key = mix(((key ^ (part % 2**32)) + 0x9e3779b9) % 2**32)
    return (mix((key + (place + 1)*0x9e3779b9) % 2**32) >> 8)/2**24

def expected_places(row, share, seed, step):
    "Return the chosen positions of one encoded row"
    ordinary = [i for i, special in enumerate(row['special_tokens_mask']) if not special]
    k = min(len(ordinary), max(1, int(Fraction(str(share))*len(ordinary) + Fraction(1, 2))))
    return sorted(sorted(ordinary, key=lambda i: draw(seed, step, row['example_id'], 0x6d610, i))[:k])

@pytest.mark.parametrize('share', [.15, .5, 1., .01])
@pytest.mark.parametrize('seed,step', [(0, 0), (3, 17)])
def test_the_chosen_tokens_have_the_smallest_random_numbers(share, seed, step, batch, rows):
    chosen = _choose_tokens(batch, share, seed, step)
    for found, row in zip(chosen, rows):
        assert torch.nonzero(found).flatten().tolist() == expected_places(row, share, seed, step)

@pytest.mark.parametrize('words,count', [(1, 1), (2, 1), (3, 1), (9, 1), (10, 2), (16, 2), (17, 3), (30, 5), (50, 8)])
def test_fifteen_per_cent_are_chosen_rounded_half_up_and_at_least_one(words, count):
    special = torch.tensor([[True, *[False]*words, True]])
    for step in range(5):
        assert _choose_tokens(dict(is_special=special, example_id=torch.tensor([4])), .15, 0, step).sum() == count

def test_a_sentence_without_an_ordinary_token_has_no_labels_and_no_loss(tokenizer):
    batch = Collator(tokenizer)([dict(input_ids=[2, 3], attention_mask=[1, 1], special_tokens_mask=[1, 1],
                                      word_ids=[-1, -1], segments=[-1, -1], example_id=0),
                                 dict(input_ids=[2, 30, 3], attention_mask=[1]*3, special_tokens_mask=[1, 0, 1],
                                      word_ids=[-1, 0, -1], segments=[-1, 0, -1], example_id=1)])
    for corrupt, task in ((MaskTokens(tokenizer), 'masked_lm'),
                          (ReplaceTokens(tokenizer, np.ones(len(tokenizer))), 'replaced_token_detection')):
        spoilt = corrupt(batch, 0, 0)
        assert spoilt['labels'][0].tolist() == [-100]*3
        assert (spoilt['labels'][1] != -100).tolist() == [False, True, False]
        model = small_model(task, tokenizer, layers=1, heads=2, hidden=8)
        losses = tasks[task].loss(model(**model_inputs(spoilt)), spoilt)
        assert losses[0] == 0 and losses[1] > 0

def test_masking_equals_a_loop_over_tokens(tokenizer, batch, rows):
    ordinary = [i for i in range(len(tokenizer)) if tokenizer.convert_ids_to_tokens(i) not in _special_tokens]
    spoilt = MaskTokens(tokenizer)(batch, seed=2, step=9)
    fates = Counter()
    for i, row in enumerate(rows):
        ids, labels = list(row['input_ids']), [-100]*len(row['input_ids'])
        for place in expected_places(row, .15, 2, 9):
            labels[place] = ids[place]
            fate = draw(2, 9, row['example_id'], 0x6d611, place)
            if fate < .8: ids[place] = tokenizer.mask_token_id
            elif fate < .9: ids[place] = ordinary[int(draw(2, 9, row['example_id'], 0x6d612, place)*len(ordinary))]
            fates['masked' if fate < .8 else 'replaced' if fate < .9 else 'kept'] += 1
        n = row['length']
        assert spoilt['input_ids'][i, :n].tolist() == ids and spoilt['labels'][i, :n].tolist() == labels
        assert (spoilt['input_ids'][i, n:] == tokenizer.pad_token_id).all() and (spoilt['labels'][i, n:] == -100).all()
    assert all(fates.values()) and len(fates) == 3

def test_replacing_equals_a_loop_over_tokens(tokenizer, batch, rows):
    counts = Counter(i for row in rows for i, special in zip(row['input_ids'], row['special_tokens_mask'])
                     if not special)
    assert token_counts(Dataset.from_list(rows), tokenizer).tolist() == [counts[i] for i in range(len(tokenizer))]
    total, spoilt = sum(counts.values()), ReplaceTokens(tokenizer, token_counts(Dataset.from_list(rows), tokenizer),
                                                        fraction=.5)(batch, seed=1, step=4)
    same = 0
    for i, row in enumerate(rows):
        ids, labels = list(row['input_ids']), [-100 if special else 0 for special in row['special_tokens_mask']]
        for place in expected_places(row, .5, 1, 4):
            u, upto = draw(1, 4, row['example_id'], 0x6d612, place), Fraction(0)
            for token in range(len(tokenizer)):
                upto += Fraction(counts[token], total)
                if u < upto: break
            same += ids[place] == token
            ids[place], labels[place] = token, int(token != row['input_ids'][place])
        n = row['length']
        assert spoilt['input_ids'][i, :n].tolist() == ids
        assert spoilt['labels'][i, :n].tolist() == labels
        assert (spoilt['labels'][i, n:] == -100).all()
    assert same, 'a draw equal to the original must occur, and counts as original'

def makers(tokenizer, rows):
    return [MaskTokens(tokenizer), ReplaceTokens(tokenizer, token_counts(Dataset.from_list(rows), tokenizer))]

@pytest.mark.parametrize('which', [0, 1])
def test_padding_the_order_and_the_size_of_batches_do_not_matter(which, tokenizer, rows):
    corrupt = makers(tokenizer, rows)[which]
    def spoilt(numbers, multiple=None):
        out = corrupt(Collator(tokenizer, multiple)([rows[i] for i in numbers]), seed=5, step=7)
        return {i: (out['input_ids'][j, :rows[i]['length']].tolist(), out['labels'][j, :rows[i]['length']].tolist())
                for j, i in enumerate(numbers)}
    everything, order = spoilt(range(len(rows))), random.Random(0).sample(range(len(rows)), len(rows))
    assert everything == spoilt(order) == spoilt(order, multiple=64)
    assert everything == {i: x for start in range(0, len(rows), 4)
                          for i, x in spoilt([*range(len(rows))][start:start + 4]).items()}

@pytest.mark.parametrize('which', [0, 1])
def test_corruption_depends_on_step_seed_and_example(which, tokenizer, rows, batch):
    corrupt = makers(tokenizer, rows)[which]
    first = corrupt(batch, 0, 3)
    torch.manual_seed(9); torch.rand(5)
    again = makers(tokenizer, rows)[which](batch, 0, 3)
    assert torch.equal(first['input_ids'], again['input_ids']) and torch.equal(first['labels'], again['labels'])
    others = corrupt(batch, 0, 4), corrupt(batch, 1, 3), corrupt({**batch, 'example_id': batch['example_id'] + 1000}, 0,
                                                                 3)
    assert not any(torch.equal(first['input_ids'], other['input_ids']) for other in others)

@pytest.mark.parametrize('which', [0, 1])
def test_the_input_batch_and_the_global_generators_are_not_changed(which, tokenizer, rows, batch):
    before, state = {k: v.clone() for k, v in batch.items()}, torch.get_rng_state()
    spoilt = makers(tokenizer, rows)[which](batch, 0, 0)
    assert torch.equal(torch.get_rng_state(), state)
    assert batch.keys() == before.keys()
    assert all(torch.equal(batch[k], before[k]) for k in before)
    assert spoilt.keys() == batch.keys() | {'labels'}
    assert spoilt['input_ids'].shape == spoilt['labels'].shape == batch['input_ids'].shape
    assert spoilt['labels'].dtype == torch.long and not torch.equal(spoilt['input_ids'], batch['input_ids'])
    assert torch.equal(spoilt['input_ids'][batch['is_special']], batch['input_ids'][batch['is_special']])
    assert (spoilt['labels'][batch['is_special']] == -100).all()

def test_masked_replaced_and_kept_tokens_have_the_set_fractions(tokenizer, batch):
    "With 4,000 chosen tokens, four standard deviations are .025 for 80 % and .019 for 10 %"
    corrupt, fates = MaskTokens(tokenizer), Counter()
    for step in range(60):
        spoilt = corrupt(batch, 0, step)
        asked = spoilt['labels'] != -100
        now, was = spoilt['input_ids'][asked], spoilt['labels'][asked]
        fates += Counter(masked=int((now == tokenizer.mask_token_id).sum()), kept=int((now == was).sum()), all=len(now))
    assert fates['all'] > 4000
    assert abs(fates['masked']/fates['all'] - .8) < .025
    assert abs(fates['kept']/fates['all'] - .1 - .1/(len(tokenizer) - 5)) < .019

def test_every_position_is_chosen_equally_often(tokenizer):
    ids = torch.arange(2000)
    chosen = _choose_tokens(dict(is_special=torch.zeros(2000, 20, dtype=bool), example_id=ids), .15, 0, 0)
    assert (chosen.sum(1) == 3).all() and (chosen.float().mean(0) - .15).abs().max() < 4*(.15*.85/2000)**.5

def test_the_generator_draws_tokens_by_their_frequency(tokenizer):
    counts = torch.zeros(len(tokenizer))
    counts[[20, 21, 30]] = torch.tensor([1., 3., 6.])
    counts[tokenizer.mask_token_id] = 100.   # special tokens are never drawn, whatever their counts are
    batch = dict(input_ids=torch.full((3000, 10), 50), is_special=torch.zeros(3000, 10, dtype=bool),
                 example_id=torch.arange(3000))
    drawn = ReplaceTokens(tokenizer, counts, fraction=1.)(batch, 0, 0)['input_ids'].flatten()
    assert {*drawn.tolist()} == {20, 21, 30}
    for token, share in ((20, .1), (21, .3), (30, .6)):
        assert abs((drawn == token).double().mean() - share) < 4*(share*(1 - share)/30_000)**.5

def test_the_old_name_of_the_fraction_works_with_a_warning(tokenizer):
    counts = np.ones(len(tokenizer))
    for make in (lambda **kw: MaskTokens(tokenizer, **kw), lambda **kw: ReplaceTokens(tokenizer, counts, **kw)):
        with pytest.warns(DeprecationWarning, match='share is now called fraction'): corrupt = make(share=.3)
        assert corrupt.fraction == .3
        with pytest.raises(TypeError, match='pass only fraction'): make(share=.3, fraction=.3)

@pytest.mark.parametrize('make,reason', [
    (lambda t: MaskTokens(t, fraction=0), 'fraction must be a number between 0 and 1'),
    (lambda t: MaskTokens(t, fraction=1.2), 'fraction must be a number between 0 and 1'),
    (lambda t: MaskTokens(t, masked=.8, replaced=.3), 'masked and replaced must not sum to more than 1'),
    (lambda t: MaskTokens(t, masked=-1), 'masked must be a number between 0 and 1'),
    (lambda t: ReplaceTokens(t, torch.ones(5)),
     r'counts must contain one number for each of the \d+ tokens, got shape \(5,\)'),
    (lambda t: ReplaceTokens(t, torch.zeros(len(t))), 'at least two ordinary tokens above 0'),
    (lambda t: ReplaceTokens(t, torch.full((len(t),), float('nan'))), 'counts must be non-negative numbers'),
    (lambda t: MaskTokens(t)(dict(input_ids=torch.ones(1, 3)), 0, 0),
     'MaskTokens needs example_id, is_special in the batch'),
    (lambda t: train_tokenizer([]), 'texts must be a non-empty list of strings'),
    (lambda t: train_tokenizer('abc'), 'texts must be a non-empty list of strings'),
    (lambda t: train_tokenizer(texts, 30), 'vocab_size must be at least '),
    (lambda t: train_tokenizer(texts, 200, 'bpe'), 'vocab_size must be at least 261'),
    (lambda t: train_tokenizer(texts, kind='unigram'), "kind must be 'wordpiece' or 'bpe'"),
    (lambda t: train_tokenizer(texts, form='none'), "form must be 'encoder', 'seq2seq' or 'decoder'"),
    (lambda t: small_model('image_classification', t), 'available: classification, .* salviz.models.nets'),
    (lambda t: small_model('masked_lm', t, 'rnn'),
     "kind must be 'bert', 'electra', 'deberta-v2', 'gpt2', 'llama', 'marian' or 't5'"),
    (lambda t: small_model('seq2seq', t, 'bert'), 'a small bert model supports classification, .*, not seq2seq'),
    (lambda t: small_model('classification', t, 't5', num_labels=2),
     'a small t5 model supports seq2seq, not classification'),
    (lambda t: small_model('replaced_token_detection', t, 'bert'), 'not replaced_token_detection'),
    (lambda t: small_model('masked_lm', t, hidden=30), 'hidden must be a multiple of heads=4'),
    (lambda t: small_model('classification', t), 'classification needs class names'),
    (lambda t: small_model('classification', t, labels=['a'], num_labels=2),
     'labels has 1 names, but num_labels is 2'),
    (lambda t: small_model('masked_lm', t, num_labels=2), 'masked_lm has no classes')])
def test_invalid_arguments_raise_errors_of_one_sentence(make, reason, tokenizer):
    with pytest.raises(ValueError, match=reason) as e: make(tokenizer)
    assert '\n' not in str(e.value)

def test_a_tokenizer_without_required_tokens_is_rejected(tiny_tokenizer):
    with pytest.raises(ValueError, match='the tokenizer has no eos token, which models of type marian need'):
        small_model('seq2seq', tiny_tokenizer)


def test_the_same_texts_give_the_same_vocabulary_in_every_process():
    "The WordPiece trainer of the tokenizers library does not ensure this"
    code = '''
import json, sys
from salviz.models.corruption import train_tokenizer
texts = json.loads(sys.argv[1])
print(json.dumps([train_tokenizer(texts, 500, kind).get_vocab() for kind in ('wordpiece', 'bpe')]))'''
    some = load_text('movie-sentences')['train']['text'][:100]
    said = forked.run(code, json.dumps(some)).stdout
    here = [train_tokenizer(some, 500, kind).get_vocab() for kind in ('wordpiece', 'bpe')]
    assert json.loads(said) == here and here[0] != here[1]

@pytest.mark.parametrize('kind', ['wordpiece', 'bpe'])
@pytest.mark.parametrize('form,single,pair', [
    ('encoder', '[CLS] A [SEP]', '[CLS] A [SEP] B [SEP]'), ('seq2seq', 'A [SEP]', 'A [SEP] B [SEP]'),
    ('decoder', 'A', 'A [SEP] B')])
def test_special_tokens_have_the_positions_of_the_model_type(kind, form, single, pair):
    t = train_tokenizer(texts, 400, kind, form)
    assert [t.convert_tokens_to_ids(x) for x in _special_tokens] == [0, 1, 2, 3, 4] and len(t) <= 400
    a, b = (t('old dog', add_special_tokens=False)['input_ids'], t('teacher', add_special_tokens=False)['input_ids'])
    parts = {'[CLS]': [2], '[SEP]': [3], 'A': a, 'B': b}
    flat = lambda words: [i for w in words.split() for i in parts[w]]
    assert t('old dog')['input_ids'] == flat(single) and t('old dog', 'teacher')['input_ids'] == flat(pair)
    assert ('token_type_ids' in t.model_input_names) == (form == 'encoder')
    assert t.eos_token_id == t.sep_token_id
    assert t.pad_token_id == 0
    if form == 'encoder': assert t('old dog', 'teacher')['token_type_ids'] == [0]*(len(a) + 2) + [1]*(len(b) + 1)
    tt = align(t, 'The Käufer walks.')
    assert [tt.words[w] for w in sorted({*tt.word_ids.tolist()} - {-1})] == ['The', 'Käufer', 'walks', '.']

def test_unseen_letters_are_unknown_and_special_tokens_are_not_split(tokenizer):
    assert tokenizer.tokenize('ж') == ['[UNK]'] and '##' not in ' '.join(tokenizer.tokenize('##a'))
    assert train_tokenizer(texts, 120, lowercase=False).tokenize('Käufer')[0][0] == 'K'
    assert tokenizer.tokenize('Käufer')[0][0] == 'k'
    assert all(tokenizer.decode(tokenizer(t)['input_ids'],
                                skip_special_tokens=True).replace(' ', '') == t.lower().replace(' ', '') for t in texts)

shared = 'classification regression token_classification question_answering'
kinds = {'bert': f'{shared} masked_lm', 'electra': f'{shared} masked_lm replaced_token_detection',
         'deberta-v2': f'{shared} masked_lm', 'gpt2': f'{shared} causal_lm', 'llama': f'{shared} causal_lm',
         'marian': 'seq2seq', 't5': 'seq2seq'}

@pytest.mark.sample(25)
@pytest.mark.parametrize('kind,task', [(kind, task) for kind, names in kinds.items() for task in names.split()])
def test_each_model_type_runs_on_its_tasks_whatever_the_padding(kind, task):
    t = train_tokenizer(texts, 140, form='seq2seq' if task == 'seq2seq' else 'encoder', max_length=32)
    model = small_model(task, t, kind, layers=1, heads=2, hidden=16,
                        labels=['x', 'y', 'z'] if task in ('classification', 'token_classification') else None)
    assert task_of(model) == task
    assert not model.training
    assert model.config.pad_token_id == t.pad_token_id
    assert longest_input(model, t) == 32
    data = (Dataset.from_dict(dict(text=texts[:3] + ['Dog.'], target_text=['Dog.'] + texts[:3])) if task == 'seq2seq'
            else Dataset.from_dict(dict(text=texts[:3] + ['Dog.'])))
    rows = list(encode(data, t))
    collate = Collator(t, decoder_start=model.config.decoder_start_token_id if task == 'seq2seq' else None)
    def logits(rows):
        outputs = model(**model_inputs(collate(rows)))
        return outputs.start_logits if task == 'question_answering' else outputs.logits
    with torch.no_grad():
        together = logits(rows)
        for i, row in enumerate(rows):
            alone = logits([row])[0]
            torch.testing.assert_close(together[i, :len(alone)] if alone.dim() > 0
                                       and task not in ('classification', 'regression') else together[i], alone,
                                       rtol=1e-4, atol=1e-5)

@pytest.mark.parametrize('kind,task', [('bert', 'masked_lm'), ('electra', 'replaced_token_detection'),
                                       ('t5', 'seq2seq'), ('llama', 'regression')])
def test_weights_depend_only_on_the_seed(kind, task, tokenizer):
    t = train_tokenizer(texts, 140)
    make = lambda seed: [p.detach().clone() for p in small_model(task, t, kind, layers=1, heads=2, hidden=8,
                                                                 seed=seed).parameters()]
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = make(0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]
    assert random.getstate() == before[2]
    torch.manual_seed(4)
    assert all(torch.equal(a, b) for a, b in zip(first, make(0)))
    assert not all(torch.equal(a, b) for a, b in zip(first, make(1)))

@pytest.mark.parametrize('task,kind', [('masked_lm', 'bert'), ('replaced_token_detection', 'electra'),
                                       ('masked_lm', 'deberta-v2')])
def test_a_pretrained_model_can_be_fine_tuned_from_its_folder(task, kind, tokenizer, tmp_path):
    t = train_tokenizer(texts, 140, max_length=32)
    model = small_model(task, t, kind, layers=1, heads=2, hidden=16)
    with torch.no_grad():
        for p in model.parameters(): p += .01
    model.save_pretrained(tmp_path); t.save_pretrained(tmp_path)
    classifier, loaded = load_classifier(tmp_path, labels=['a', 'b'])
    tagger, _ = load_model_for('token_classification', tmp_path, num_labels=3)
    saved = model.base_model.state_dict()
    for other in (classifier, tagger):
        assert all(torch.equal(x, saved[k]) for k, x in other.base_model.state_dict().items() if k in saved
                   and 'pooler' not in k)
    assert [loaded(x)['input_ids'] for x in texts] == [t(x)['input_ids'] for x in texts]
    assert loaded.model_max_length == 32
    batch = Collator(loaded)(list(encode(Dataset.from_dict(dict(text=texts[:2])), loaded)))
    assert classifier(**model_inputs(batch)).logits.shape == (2, 2)

@pytest.mark.slow
def test_both_kinds_of_pretraining_learn_from_real_sentences():
    data = subset(load_text('movie-sentences'), 48)['train']
    t = train_tokenizer(data['text'], 600, max_length=32)
    with pytest.warns(UserWarning, match='texts longer than 32'): rows = list(encode(data, t, task='masked_lm'))
    for corrupt in (MaskTokens(t), ReplaceTokens(t, token_counts(Dataset.from_list(rows), t), fraction=.3)):
        model = small_model(corrupt.task, t, layers=1, heads=2, hidden=32, hidden_dropout_prob=0.,
                            attention_probs_dropout_prob=0.).train()
        optimiser, fixed = torch.optim.AdamW(model.parameters(), lr=5e-3), corrupt(Collator(t)(rows[:16]), 0, 0)
        losses = []
        for _ in range(40):
            loss = tasks[corrupt.task].loss(model(**model_inputs(fixed)), fixed).mean()
            optimiser.zero_grad(); loss.backward(); optimiser.step(); losses.append(loss.item())
        assert losses[-1] < .5*losses[0], corrupt
    assert {*task_heads()} >= {'masked_lm', 'replaced_token_detection'}


def packed_slowly(texts, tokenizer, block):
    "Return rows of consecutive texts, adding one text at a time; texts that are too long are added word by word"
    def count(text): return len(tokenizer(text, verbose=False)['input_ids'])
    rows, now, long = [], None, 0
    for text in texts:
        too_long = count(text) > block
        long += too_long
        for part in text.split() if too_long else [text]:
            if now is None: now = part
            elif count(f'{now} {part}') <= block: now = f'{now} {part}'
            else: rows.append(now); now = part
    return rows + ([] if now is None else [now]), long

def some_texts(seed, n=60):
    "Return texts of 1 to 30 words, some with letters that need many tokens"
    rng = random.Random(seed)
    words = 'the old dog walks slowly past house Käufer teacher brave , . xyzzy-foo 10,5 ÄÖÜ'.split()
    return [' '.join(rng.choice(words) for _ in range(rng.choice([1, 2, 5, 9, 30]))) for _ in range(n)]

@pytest.mark.sample(3)
@pytest.mark.parametrize('kind,form,prefix', [('wordpiece', 'encoder', None), ('wordpiece', 'seq2seq', None),
                                              ('bpe', 'decoder', True), ('bpe', 'encoder', False)])
@pytest.mark.parametrize('block', [7, 24, 64])
def test_packed_rows_equal_a_loop_over_texts(kind, form, prefix, block):
    reader = train_tokenizer([*texts, *some_texts(1)], 300 if kind == 'bpe' else 110, kind, form, max_length=64)
    if prefix is False: reader.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for seed in range(4):
        given = some_texts(seed)
        rows, long = packed_slowly(given, reader, block)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter('always')
            found = pack_texts(given, reader, block)
        assert found == rows and ' '.join(found).split() == ' '.join(given).split()
        assert [str(w.message)
                for w in said] == ([f'pack_texts: {long} of 60 texts {"has" if long == 1 else "have"} more than '
                                    f'block={block} tokens; such texts are split at spaces and spread over '
                                    'several rows']*(long > 0))
        assert long or ' '.join(found) == ' '.join(given)
    assert long or block > 7
    lengths = [len(x) for x in reader(found, verbose=False)['input_ids']]
    assert max(lengths) <= block or all(' ' not in row for row, n in zip(found, lengths) if n > block)

def test_packing_preserves_the_type_and_the_splits():
    small = subset(load_text('movie-sentences'), 40, validation_size=8, test_size=8)
    tokenizer = train_tokenizer(small['train']['text'], 600)
    packed = pack_texts(small, tokenizer, 200)
    assert isinstance(packed, DatasetDict) and list(packed) == ['train', 'validation', 'test']
    for name, part in packed.items():
        assert part.column_names == ['text'] and part.info.dataset_name == 'movie-sentences'
        assert list(part['text']) == list(pack_texts(small[name], tokenizer,
                                                     200)['text']) == pack_texts(
            list(small[name]['text']), tokenizer, 200) == packed_slowly(small[name]['text'], tokenizer, 200)[0]
    assert pack_texts([], tokenizer, 200) == [] and pack_texts(['one'], tokenizer, 200) == ['one']
    assert pack_texts(('Rain', 'No .'), tokenizer, 200) == ['Rain No .']
    assert len(pack_texts(small['train'].select([]), tokenizer, 200)) == 0

def test_a_single_word_that_is_too_long_is_not_split(tokenizer):
    word = 'abcdefghij'*3
    with pytest.warns(UserWarning, match='1 of 3 texts has more than block=6 tokens'):
        rows = pack_texts(['Rain', f'No {word} No', 'Rain'], tokenizer, 6)
    assert word in rows and ' '.join(rows).split() == ['Rain', 'No', word, 'No', 'Rain']

@pytest.mark.parametrize('block', [0, -1, 2, 65, 12.5, True, None, '64'])
def test_invalid_block_sizes_are_rejected(block, tokenizer):
    with pytest.raises(ValueError,
                       match=r'block must be an int from 3 \(one token and the special tokens\) to 64') as e:
        pack_texts(texts, tokenizer, block)
    assert '\n' not in str(e.value) and str(e.value).endswith(f'got {block!r}')

@pytest.mark.parametrize('data,message', [
    (['good', ' '], '1 of the texts is empty or not a string .first: row 1'),
    (['good', None, 3], '2 of the texts are empty or not strings .first: row 1'),
    ('a text', 'data must be a Dataset, a DatasetDict or a list of strings, got str'), (None, 'got NoneType'),
    (Dataset.from_dict(dict(sentence=['a'])),
     'must have single texts in a column called text, got the columns sentence'),
    (Dataset.from_dict(dict(text=['a'], text_pair=['b'])), 'the columns text, text_pair')])
def test_invalid_data_for_packing_are_rejected(data, message, tokenizer):
    with pytest.raises(ValueError, match=message): pack_texts(data, tokenizer, 64)

@pytest.mark.parametrize('task', ['masked_lm', 'replaced_token_detection'])
def test_a_small_model_trains_on_packed_texts(task, tokenizer, tmp_path):
    data = pack_texts(DatasetDict(train=Dataset.from_dict(dict(text=texts)),
                                  validation=Dataset.from_dict(dict(text=texts[:9]))), tokenizer, 48)
    run = train(small_model(task, tokenizer, layers=1, heads=2, hidden=8), tokenizer, data, run_dir=tmp_path/'run',
                probes=2, snapshots=2, epochs=1, batch_size=4, progress=False)
    assert run.finished and 40 < max(len(run.snapshot(0, i).tokens) for i in range(2)) <= 48
