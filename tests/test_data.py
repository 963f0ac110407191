"Data from every source in one form, bad data refused at the door, and encodings that know where they come from"
import os, subprocess, sys, warnings

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from salviz.assets import asset
from salviz.data import Collator, encode, encode_texts, fingerprint, load_text, model_inputs, packaged_texts, rating_classes, stratified_order, subset
from salviz.text import align


@pytest.fixture(scope='module')
def movies(): return load_text('movie-sentences')

@pytest.fixture(scope='module')
def tokenizer(): return AutoTokenizer.from_pretrained(asset('minilm'))

def byte_level(side='right', **specials):
    "A byte-level tokenizer without merges: one token a byte, <s> … </s>"
    names = {'<s>': 256, '</s>': 257, '<pad>': 258}
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | names, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.post_processor = processors.TemplateProcessing(single='<s> $A </s>', special_tokens=[('<s>', 256), ('</s>', 257)])
    named = dict(bos_token='<s>', eos_token='</s>', pad_token='<pad>', model_input_names=['input_ids', 'attention_mask'])
    return PreTrainedTokenizerFast(tokenizer_object=t, padding_side=side, **{**named, **specials})

def frame(n=20, **more): return pd.DataFrame(dict(text=[f'sentence {i}' for i in range(n)], label=['bad', 'good']*(n//2), **more))

def one_sentence(error): assert '\n' not in str(error.value) and len(str(error.value)) < 400


def test_the_packaged_sentences_have_the_treebanks_classes(movies):
    everything = [row for part in movies.values() for row in part]
    assert np.bincount([row['label'] for row in everything]).tolist() == [1057, 3765, 1011, 3769, 1003]
    assert movies['train'].features['label'].names == rating_classes == ['very negative', 'negative', 'neutral', 'positive', 'very positive']
    for row in everything:
        r = row['rating']
        assert row['label'] == (0 if r <= -2.4 else 1 if r <= -.8 else 2 if r <= .8 else 3 if r <= 2.4 else 4)

@pytest.mark.parametrize('name,n', [('movie-sentences', 10605), ('amazon-reviews', 3708), ('tweets', 4200), ('editorials', 5190)])
def test_every_packaged_set_loads_whole_and_in_the_same_form(name, n):
    data = load_text(name)
    assert list(data) == ['train', 'validation', 'test'] and sum(len(part) for part in data.values()) == n
    assert all(part.column_names == ['text', 'label', 'rating'] and part.features['label'].names == rating_classes for part in data.values())
    assert not any(text != text.strip() or not text for part in data.values() for text in part['text'])
    assert set(packaged_texts) == {'movie-sentences', 'amazon-reviews', 'tweets', 'editorials'}

def test_splits_are_stratified_disjoint_and_seeded(movies):
    whole = np.array([1057, 3765, 1011, 3769, 1003])
    for name, share in dict(train=.8, validation=.1, test=.1).items():
        assert np.abs(np.bincount(movies[name]['label']) - share*whole).max() <= 2
    assert fingerprint(movies) == fingerprint(load_text('movie-sentences')) != fingerprint(load_text('movie-sentences', seed=1))

def test_every_stretch_of_a_stratified_order_has_the_proportions_of_the_whole():
    rng = np.random.default_rng(0)
    labels = rng.choice(4, size=500, p=[.6, .3, .08, .02])
    order = stratified_order(labels, seed=7)
    assert sorted(order) == list(range(500))
    counts = np.bincount(labels)
    for start, stop in ((0, 50), (13, 200), (400, 500), (0, 499)):
        expected = counts*(stop - start)/500
        assert (np.abs(np.bincount(labels[order[start:stop]], minlength=4) - expected) <= 1.01).all()

def test_only_missing_splits_are_cut_and_the_others_are_left_alone():
    data = load_text(dict(train=frame(40), dev=frame(6)))
    assert [len(data[name]) for name in ('train', 'validation', 'test')] == [36, 6, 4]
    assert data['validation']['text'] == frame(6)['text'].tolist()
    assert len({*data['train']['text'], *data['test']['text']}) == 40
    whole = load_text(dict(train=frame(10), validation=frame(4), test=frame(2)))
    assert whole['train']['text'] == frame(10)['text'].tolist()


@pytest.mark.parametrize('kind', ['csv', 'jsonl', 'parquet', 'frame', 'Dataset', 'DatasetDict', 'dict of paths', 'dict of frames'])
def test_each_source_gives_the_same_data_and_leaves_nothing_beside_it(kind, tmp_path):
    f = frame()
    f.to_csv(tmp_path/'f.csv', index=False); f.to_json(tmp_path/'f.jsonl', orient='records', lines=True); f.to_parquet(tmp_path/'f.parquet')
    files = {*os.listdir(tmp_path)}
    ds = Dataset.from_pandas(f)
    source = {'csv': tmp_path/'f.csv', 'jsonl': str(tmp_path/'f.jsonl'), 'parquet': tmp_path/'f.parquet', 'frame': f, 'Dataset': ds,
              'DatasetDict': DatasetDict(train=ds), 'dict of paths': dict(train=str(tmp_path/'f.csv')), 'dict of frames': dict(train=f)}[kind]
    assert fingerprint(load_text(source)) == fingerprint(load_text(frame()))
    assert {*os.listdir(tmp_path)} == files

def test_a_data_set_on_the_users_disk_gets_no_cache_files(tmp_path, tokenizer):
    Dataset.from_pandas(frame()).save_to_disk(tmp_path/'mine')
    files = sorted(os.listdir(tmp_path/'mine'))
    encode(subset(load_text(Dataset.load_from_disk(tmp_path/'mine')), 8), tokenizer)
    assert sorted(os.listdir(tmp_path/'mine')) == files

def test_columns_are_mapped_and_others_dropped():
    f = frame(s2=[f'second {i}' for i in range(20)], note=1.5).rename(columns=dict(text='s1', label='gold'))
    data = load_text(f, text='s1', text_pair='s2', label='gold')
    assert data['train'].column_names == ['text', 'text_pair', 'label']
    for row in data['train']: assert row['text'].split()[1] == row['text_pair'].split()[1]

def test_words_that_look_like_missing_values_stay_text(tmp_path):
    path = tmp_path/'f.csv'
    words = ['NA', 'null', 'None', 'nan', 'N/A', '12', '"a, b"', 'ü']*3
    path.write_text('text,label\n' + ''.join(f'{word},{i % 2}\n' for i, word in enumerate(words)), encoding='utf-8')
    texts = {t for part in load_text(path).values() for t in part['text']}
    assert texts == {'NA', 'null', 'None', 'nan', 'N/A', '12', 'a, b', 'ü'}

@pytest.mark.parametrize('labels,names,ids', [
    (['x', 'y']*10, ['x', 'y'], [0, 1]),
    ([1, 0]*10, ['0', '1'], [1, 0]),
    ([-1, 1]*10, ['-1', '1'], [0, 1]),
    ([10, 9]*10, ['9', '10'], [1, 0]),
    ([1., 0.]*10, ['0', '1'], [1, 0]),
    ([True, False]*10, ['False', 'True'], [1, 0]),
    (pd.Categorical(['x', 'y']*10), ['x', 'y'], [0, 1])])
def test_labels_of_any_kind_become_named_classes(labels, names, ids):
    f = frame(); f['label'] = labels
    data = load_text(dict(train=f, validation=f, test=f))
    assert data['train'].features['label'].names == names and data['train']['label'][:2] == ids

def test_given_class_names_fix_the_order_and_numbers_are_their_indices():
    f = dict(train=frame(), validation=frame(), test=frame())
    data = load_text(f, labels=['good', 'bad'])
    assert data['train'].features['label'].names == ['good', 'bad'] and data['train']['label'][:2] == [1, 0]
    numbered = {k: v.assign(label=[0, 1]*10) for k, v in f.items()}
    data = load_text(numbered, labels=['bad', 'good', 'fair'])
    assert data['train'].features['label'].names == ['bad', 'good', 'fair'] and data['train']['label'][:2] == [0, 1]

def test_a_class_label_keeps_its_names_and_numbers():
    "Names that look like numbers must not be mistaken for them"
    ds = Dataset.from_dict(dict(text=['a', 'b']*5, label=[0, 1]*5), Features(text=Value('string'), label=ClassLabel(names=['1', '0'])))
    data = load_text(dict(train=ds, validation=ds, test=ds))
    assert data['train'].features['label'].names == ['1', '0'] and data['train']['label'][:2] == [0, 1]
    assert load_text(ds, labels=['yes', 'no'])['train'].features['label'].names == ['yes', 'no']

def test_a_test_split_whose_labels_are_secret_is_left_out_and_made_from_train():
    "As GLUE's are"
    features = Features(text=Value('string'), label=ClassLabel(names=['no', 'yes']))
    make = lambda n, secret=False: Dataset.from_dict(dict(text=[f's{i}' for i in range(n)], label=[-1]*n if secret else [0, 1]*(n//2)), features)
    with pytest.warns(UserWarning, match='left out: test, which holds no labels'):
        data = load_text(DatasetDict(train=make(100), validation=make(10), test=make(30, secret=True)))
    assert [len(part) for part in data.values()] == [89, 10, 11]

def test_splits_without_a_place_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match='left out: unsupervised'): data = load_text(dict(train=frame(), unsupervised=frame()))
    assert list(data) == ['train', 'validation', 'test']


@pytest.mark.parametrize('arguments,error,reason', [
    (dict(source='nowhere.csv'), FileNotFoundError, 'there is no file nowhere.csv'),
    (dict(source='nowhere.jsonl'), FileNotFoundError, 'there is no file nowhere.jsonl'),
    (dict(source=dict(train='notes.docx')), ValueError, "ends in '.docx'; files of text end in .csv, .jsonl, .parquet"),
    (dict(source=17), ValueError, 'a split must be a Dataset, a pandas DataFrame or the path of a file .*, got int'),
    (dict(source={}), ValueError, 'the source is an empty dict'),
    (dict(source=os.curdir), ValueError, 'is a folder; name its files'),
    (dict(source=dict(test=frame())), ValueError, 'there is no train split; the source has test'),
    (dict(source=frame(), text='sentence'), ValueError, "text='sentence': train has no such column; it has text, label"),
    (dict(source=frame(), text_pair='s2'), ValueError, "text_pair='s2': train has no such column"),
    (dict(source=frame(), label='gold'), ValueError, "label='gold': train has no such column"),
    (dict(source=frame(0)), ValueError, 'the train split is empty'),
    (dict(source=dict(train=frame(), test=frame(0))), ValueError, 'the test split is empty'),
    (dict(source=frame(4)), ValueError, '4 rows are too few to make splits'),
    (dict(source=frame(), splits=(.8, .2)), ValueError, 'splits must be three shares above 0'),
    (dict(source=frame(), splits=(.8, .2, 0)), ValueError, 'splits must be three shares above 0'),
    (dict(source=frame(), splits=(.8, .8, .8)), ValueError, 'splits must be three shares above 0 .* that sum to 1'),
    (dict(source=frame().assign(text=['fine', ' \t']*10)), ValueError,
     r"column 'text' is empty in 10 rows of train \(first: row 1, counted from 0\)"),
    (dict(source=frame().assign(text=['fine', None]*10)), ValueError, "column 'text' is empty in 10 rows of train"),
    (dict(source=frame().assign(text=range(20))), ValueError, "column 'text' is no string in 20 rows of train"),
    (dict(source=frame().assign(label=['bad', None]*10)), ValueError, 'the label is missing in 10 rows of train'),
    (dict(source=frame().assign(label=[.5, 1]*10)), ValueError, 'labels are numbers with fractions'),
    (dict(source=frame().assign(label='bad')), ValueError, 'at least two classes are needed, got bad'),
    (dict(source=frame(), labels=['good', 'fair']), ValueError, r"label 'bad' is outside of the classes \(good, fair\) in 10 rows of train"),
    (dict(source=frame(), labels=['good', 'good']), ValueError, 'labels holds a name twice'),
    (dict(source=frame().assign(label=[0, 2]*10), labels=['a', 'b']), ValueError, 'label 2 is outside of the classes'),
    (dict(source=dict(train=frame(), test=frame().assign(label='awful'))), ValueError,
     r"label 'awful' is outside of the classes \(bad, good\) in 20 rows of test")])
def test_what_cannot_be_loaded_is_refused_in_one_sentence(arguments, error, reason):
    with pytest.raises(error, match=reason) as e: load_text(**arguments)
    one_sentence(e)

def test_a_line_that_is_not_json_is_named_by_its_number(tmp_path):
    (tmp_path/'f.jsonl').write_text('{"text": "a", "label": 0}\n\n{"text": "b"\n')
    with pytest.raises(ValueError, match='f.jsonl: line 3 is not JSON') as e: load_text(tmp_path/'f.jsonl')
    one_sentence(e)
    (tmp_path/'f.jsonl').write_text('[1, 2]\n')
    with pytest.raises(ValueError, match='line 1 is not an object'): load_text(tmp_path/'f.jsonl')

def in_a_new_process(code, folder, **env):
    "What `code` prints in a process with the Hub's cache in `folder`"
    env = {**os.environ, 'NO_PROXY': '*', 'HF_HOME': str(folder), **env}
    done = subprocess.run([sys.executable, '-c', code, str(folder)], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and 'Retrying' not in done.stderr, done.stderr
    return done.stdout

try_a_typo = """
from salviz.data import load_text
try: load_text('movie-sentence')
except ConnectionError as e: print(e)
"""

def test_a_hub_name_without_a_network_is_one_sentence_that_lists_the_packaged_sets(tmp_path):
    said = in_a_new_process(try_a_typo, tmp_path, HF_ENDPOINT='http://127.0.0.1:9', HF_HUB_OFFLINE='0')
    assert said.startswith("'movie-sentence' is not packaged (packaged data sets: movie-sentences, amazon-reviews, tweets, editorials) "
                           'and the Hub cannot be asked')
    assert said.count('\n') == 1

def test_with_the_hub_switched_off_a_set_that_was_loaded_before_is_used_and_another_refused(tmp_path):
    "The cache of `datasets` is made as it looks after a load with a network"
    code = try_a_typo + """
import sys, pandas as pd
from pathlib import Path
from datasets.packaged_modules.parquet.parquet import Parquet
files = {split: f'{sys.argv[1]}/{split}.parquet' for split in ('train', 'test')}
for split, path in files.items(): pd.DataFrame(dict(sentence=[f'{split} {i}' for i in range(20)], label=[0, 1]*10)).to_parquet(path)
builder = Parquet(dataset_name='some_set', hash='0'*40, version='0.0.0', data_files=files)
builder.download_and_prepare()
folder = Path(builder.cache_dir).parents[1]
folder.rename(folder.with_name('default'))
try: load_text('some_set', config='other')
except ValueError as e: print(e)
data = load_text('some_set', text='sentence')
print({name: len(part) for name, part in data.items()}, sorted(data['test']['text'])[0])
"""
    refused, other, loaded = in_a_new_process(code, tmp_path, HF_HUB_OFFLINE='1').splitlines()
    assert refused.startswith("'movie-sentence' is not in the local cache, and the Hub is switched off by HF_HUB_OFFLINE "
                              '(packaged data sets: movie-sentences')
    assert other.startswith("'some_set' on the Hub cannot be loaded: Couldn't find cache for some_set for config 'other'")
    assert loaded == "{'train': 18, 'validation': 2, 'test': 20} test 0"


def test_a_subset_is_stratified_and_lies_within_a_larger_one(movies):
    small, large = subset(movies, 300, validation_size=50, test_size=.5), subset(movies, .2)
    assert [len(part) for part in small.values()] == [300, 50, round(.5*len(movies['test']))]
    share = np.bincount(movies['train']['label'])/len(movies['train'])
    assert np.abs(np.bincount(small['train']['label']) - 300*share).max() <= 1.01
    assert {*small['train']['text']} <= {*large['train']['text']}
    assert fingerprint(subset(movies, 300)) == fingerprint(subset(movies, 300)) != fingerprint(subset(movies, 300, seed=1))
    assert fingerprint(subset(movies)) == fingerprint(movies)

@pytest.mark.parametrize('size', [0, -1, 8485, 0., 1.5, 'all', None, True])
def test_a_size_that_cannot_be_taken_is_refused(size, movies):
    with pytest.raises(ValueError, match='train_size must be a number of rows') as e: subset(movies, size)
    one_sentence(e)

def test_a_fingerprint_is_of_the_contents_and_the_same_in_every_process(tmp_path):
    data = load_text(frame())
    code = '''
import pandas as pd
from salviz.data import fingerprint, load_text
print(fingerprint(load_text(pd.DataFrame(dict(text=[f"sentence {i}" for i in range(20)], label=["bad", "good"]*10)))))'''
    there = in_a_new_process(code, tmp_path, PYTHONHASHSEED='7').strip()
    assert fingerprint(data) == there
    assert fingerprint(data) == fingerprint(DatasetDict({name: Dataset.from_dict(part.to_dict(), part.features) for name, part in data.items()}))
    changed = [frame().assign(text=['another'] + frame()['text'].tolist()[1:]), frame().replace('bad', 'poor'), frame(18)]
    assert len({fingerprint(data), *(fingerprint(load_text(f)) for f in changed)}) == 4


def test_encoded_rows_are_those_of_the_alignment(movies, tokenizer):
    part = movies['test'].select(range(40))
    for row, text, label in zip(encode(part, tokenizer), part['text'], part['label']):
        tt = align(tokenizer, text)
        assert row['input_ids'] == tt.input_ids.tolist() == tokenizer(text)['input_ids'] and row['word_ids'] == tt.word_ids.tolist()
        assert row['special_tokens_mask'] == tt.is_special.astype(int).tolist() and row['segments'] == tt.segments.tolist()
        assert row['attention_mask'] == [1]*len(tt) and row['length'] == len(tt) and row['labels'] == label
        assert row['token_type_ids'] == [0]*len(tt)

def test_examples_are_numbered_through_all_splits(movies, tokenizer):
    encoded = encode(subset(movies, 30, validation_size=20, test_size=10), tokenizer)
    assert [i for part in encoded.values() for i in part['example_id']] == list(range(60))
    assert encoded['train'].features['labels'].names == rating_classes

def test_rows_are_the_same_whatever_the_chunk_they_are_tokenised_in(movies, tokenizer, monkeypatch):
    part = movies['train'].select(range(2003))
    whole = encode(part, tokenizer)
    assert len(whole) == 2003 and whole['example_id'] == list(range(2003))
    for i in (0, 1999, 2000, 2002): assert whole[i]['input_ids'] == tokenizer(part[i]['text'])['input_ids']

def test_pairs_have_two_segments_and_words_numbered_through(tokenizer):
    row = encode_texts(['a film'], tokenizer, pairs=['so good'])[0]
    assert row['segments'] == [-1, 0, 0, -1, 1, 1, -1]
    assert row['token_type_ids'] == [0, 0, 0, 0, 1, 1, 1] and row['word_ids'] == [-1, 0, 1, -1, 2, 3, -1]

def test_special_tokens_that_somebody_typed_are_text(tokenizer):
    row = encode_texts(['bad [SEP] film'], tokenizer)[0]
    assert row['special_tokens_mask'] == [1, 0, 0, 0, 1] and row['word_ids'][2] >= 0 and row['segments'] == [-1, 0, 0, 0, -1]

@pytest.mark.parametrize('pairs', [False, True])
def test_long_texts_are_cut_with_one_warning_that_counts_them(pairs, tokenizer):
    f = frame().assign(text=['word '*9, 'word '*30]*10, second='short')
    data = load_text(f, text_pair='second' if pairs else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        encoded = encode(data, tokenizer, max_length=16)
    said = [str(w.message) for w in caught if 'texts are longer' in str(w.message)]
    assert said == [f'10 of 20 texts are longer than 16 tokens and were cut (by {18 if pairs else 16} tokens at most)']
    assert all(max(part['length']) == 16 for part in encoded.values())
    for part in encoded.values():
        for row in part: assert len({len(row[name]) for name in ('input_ids', 'token_type_ids', 'word_ids', 'segments', 'special_tokens_mask')}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        encode(data, tokenizer)

def test_the_longest_text_is_what_the_tokenizer_allows_and_512_at_most(tokenizer):
    text = 'word '*600
    with pytest.warns(UserWarning, match='1 of 1 texts are longer than 512'): assert encode_texts([text], tokenizer)[0]['length'] == 512
    assert byte_level().model_max_length > 10**6
    with pytest.warns(UserWarning, match='longer than 512'): assert encode_texts([text], byte_level())[0]['length'] == 512
    assert encode_texts([text], byte_level(), max_length=4000)[0]['length'] == 3002

@pytest.mark.parametrize('max_length', [0, 3, 513, 20., '20', True])
def test_a_length_that_the_tokenizer_cannot_take_is_refused(max_length, tokenizer):
    with pytest.raises(ValueError, match='max_length must be a number of tokens from 4 to 512') as e:
        encode_texts(['a'], tokenizer, max_length=max_length)
    one_sentence(e)

@pytest.mark.parametrize('texts,pairs,reason', [
    ([], None, 'texts is empty'),
    (['a', ' '], None, 'the text is empty in 1 row of texts'),
    ('abc', None, 'must be a list of strings'),
    ([1], None, 'the text is no string in 1 row of texts'),
    (['a'], ['b', 'c'], 'pairs must hold one sentence for each of the 1 texts, got 2'),
    (['a'], [''], 'the text is empty in 1 row of pairs')])
def test_texts_that_cannot_be_encoded_are_refused(texts, pairs, reason, tokenizer):
    with pytest.raises(ValueError, match=reason) as e: encode_texts(texts, tokenizer, pairs)
    one_sentence(e)

def test_data_of_another_shape_is_refused(tokenizer):
    with pytest.raises(ValueError, match='there is no column text, only sentence'): encode(Dataset.from_dict(dict(sentence=['a'])), tokenizer)


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('multiple', [None, 8])
def test_batches_are_padded_on_the_right_and_pads_are_marked(side, multiple):
    tokenizer = byte_level(side)
    rows = encode(load_text(frame().assign(text=['ab c', 'a']*10))['train'].select(range(2)), tokenizer)
    batch = Collator(tokenizer, multiple)(list(rows))
    n = multiple or max(rows['length'])
    for i, row in enumerate(rows):
        k = row['length']
        for name, pad in dict(input_ids=258, attention_mask=0, word_ids=-1, segments=-1, is_special=True).items():
            source = row['special_tokens_mask' if name == 'is_special' else name]
            assert batch[name].shape == (2, n) and batch[name][i].tolist() == source + [pad]*(n - k), name
    assert batch['is_special'].dtype == torch.bool and batch['word_ids'].dtype == batch['input_ids'].dtype == batch['labels'].dtype == torch.long
    assert batch['labels'].tolist() == rows['labels'] and batch['example_id'].tolist() == rows['example_id']
    assert set(batch) == {'input_ids', 'attention_mask', 'word_ids', 'segments', 'is_special', 'labels', 'example_id'}
    assert set(model_inputs(batch)) == {'input_ids', 'attention_mask'}

def test_unlabelled_rows_make_a_batch_without_labels(tokenizer):
    rows = encode_texts(['a film', 'another film'], tokenizer, first_id=5)
    batch = Collator(tokenizer)(list(rows))
    assert 'labels' not in batch and batch['example_id'].tolist() == [5, 6]
    assert set(model_inputs(batch)) == {'input_ids', 'attention_mask', 'token_type_ids'}

def test_a_tokenizer_that_cannot_pad_is_refused():
    with pytest.raises(ValueError, match='has no padding token; set tokenizer.pad_token, or load it with load_classifier'):
        Collator(byte_level(pad_token=None))


def test_the_name_of_the_source_travels_with_the_data(tmp_path):
    frame = pd.DataFrame(dict(text=[f'a film number {i}' for i in range(40)], label=['good', 'bad'] * 20))
    frame.to_csv(tmp_path/'mine.csv', index=False)
    named = {'mine.csv': tmp_path/'mine.csv', 'DataFrame': frame, 'movie-sentences': 'movie-sentences'}
    for name, source in named.items(): assert subset(load_text(source), 20, validation_size=2, test_size=2)['train'].info.dataset_name == name
