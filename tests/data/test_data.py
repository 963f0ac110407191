"Data from every source has one form, invalid data raises errors, and encodings record their origin"
import datetime, hashlib, json, os, struct, subprocess, sys, warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, Image as ImageFile, Sequence, Value
from datasets.arrow_dataset import Column
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerFast

import forked
import salviz
from salviz.core.assets import asset
from salviz.data import texts as texts_module
from salviz.data.columns import collated, column_kinds, with_columns
from salviz.data.texts import (Collator, _packaged_texts, copy_reorder, data_task, encode, encode_texts, fingerprint,
                               load_pairs, load_questions, load_text, load_tokens, model_inputs, rating_classes,
                               stratified_order, subset)
from salviz.core.text import align
from salviz.training.feed import check_data, feed_for
from salviz.training.method_trainer import lengths_of


@pytest.fixture(scope='module')
def movies(): return load_text('movie-sentences')

@pytest.fixture(scope='module')
def tokenizer(): return AutoTokenizer.from_pretrained(asset('minilm'))

def byte_level(side='right', **specials):
    "Create a byte-level tokenizer without merges: one token per byte, <s> … </s>"
    names = {'<s>': 256, '</s>': 257, '<pad>': 258}
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))} | names,
                             merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.post_processor = processors.TemplateProcessing(single='<s> $A </s>', special_tokens=[('<s>', 256), ('</s>', 257)])
    named = dict(bos_token='<s>', eos_token='</s>', pad_token='<pad>',
                 model_input_names=['input_ids', 'attention_mask'])
    return PreTrainedTokenizerFast(tokenizer_object=t, padding_side=side, **{**named, **specials})

def frame(n=20, **more):
    return pd.DataFrame(dict(text=[f'sentence {i}' for i in range(n)], label=['bad', 'good']*(n//2), **more))

def one_sentence(error): assert '\n' not in str(error.value) and len(str(error.value)) < 400


def test_packaged_sentences_have_the_classes_of_the_treebank(movies):
    everything = [row for part in movies.values() for row in part]
    assert np.bincount([row['label'] for row in everything]).tolist() == [1057, 3765, 1011, 3769, 1003]
    assert movies['train'].features['label'].names == rating_classes == ['very negative', 'negative', 'neutral',
                                                                         'positive', 'very positive']
    for row in everything:
        r = row['rating']
        assert row['label'] == (0 if r <= -2.4 else 1 if r <= -.8 else 2 if r <= .8 else 3 if r <= 2.4 else 4)

@pytest.mark.sample(3)
@pytest.mark.parametrize('name,n', [('movie-sentences', 10605), ('amazon-reviews', 3708), ('tweets', 4200),
                                    ('editorials', 5190)])
def test_every_packaged_set_loads_completely(name, n):
    data = load_text(name)
    assert list(data) == ['train', 'validation', 'test'] and sum(len(part) for part in data.values()) == n
    assert all(part.column_names == ['text', 'label', 'rating'] and part.features['label'].names == rating_classes
               for part in data.values())
    assert not any(text != text.strip() or not text for part in data.values() for text in part['text'])
    assert set(_packaged_texts) == {'movie-sentences', 'amazon-reviews', 'tweets', 'editorials'}

def test_splits_are_stratified_disjoint_and_seeded(movies):
    whole = np.array([1057, 3765, 1011, 3769, 1003])
    for name, share in dict(train=.8, validation=.1, test=.1).items():
        assert np.abs(np.bincount(movies[name]['label']) - share*whole).max() <= 2
    assert fingerprint(movies) == fingerprint(load_text('movie-sentences')) != fingerprint(
        load_text('movie-sentences', seed=1))

def test_every_stretch_of_a_stratified_order_has_the_proportions_of_the_whole():
    rng = np.random.default_rng(0)
    labels = rng.choice(4, size=500, p=[.6, .3, .08, .02])
    order = stratified_order(labels, seed=7)
    assert sorted(order) == list(range(500))
    counts = np.bincount(labels)
    for start, stop in ((0, 50), (13, 200), (400, 500), (0, 499)):
        expected = counts*(stop - start)/500
        assert (np.abs(np.bincount(labels[order[start:stop]], minlength=4) - expected) <= 1.01).all()

def test_only_missing_splits_are_cut():
    data = load_text(dict(train=frame(40), dev=frame(6)))
    assert [len(data[name]) for name in ('train', 'validation', 'test')] == [36, 6, 4]
    assert data['validation']['text'] == frame(6)['text'].tolist()
    assert len({*data['train']['text'], *data['test']['text']}) == 40
    whole = load_text(dict(train=frame(10), validation=frame(4), test=frame(2)))
    assert whole['train']['text'] == frame(10)['text'].tolist()


@pytest.mark.parametrize('kind', ['csv', 'jsonl', 'parquet', 'frame', 'Dataset', 'DatasetDict', 'dict of paths',
                                  'dict of frames'])
def test_each_source_gives_the_same_data_without_extra_files(kind, tmp_path):
    f = frame()
    f.to_csv(tmp_path/'f.csv', index=False)
    f.to_json(tmp_path/'f.jsonl', orient='records', lines=True); f.to_parquet(tmp_path/'f.parquet')
    files = {*os.listdir(tmp_path)}
    ds = Dataset.from_pandas(f)
    source = {'csv': tmp_path/'f.csv', 'jsonl': str(tmp_path/'f.jsonl'), 'parquet': tmp_path/'f.parquet', 'frame': f,
              'Dataset': ds,
              'DatasetDict': DatasetDict(train=ds), 'dict of paths': dict(train=str(tmp_path/'f.csv')),
              'dict of frames': dict(train=f)}[kind]
    assert fingerprint(load_text(source)) == fingerprint(load_text(frame()))
    assert {*os.listdir(tmp_path)} == files

def test_data_set_on_disk_gets_no_cache_files(tmp_path, tokenizer):
    Dataset.from_pandas(frame()).save_to_disk(tmp_path/'mine')
    files = sorted(os.listdir(tmp_path/'mine'))
    encode(subset(load_text(Dataset.load_from_disk(tmp_path/'mine')), 8), tokenizer)
    assert sorted(os.listdir(tmp_path/'mine')) == files

def test_columns_are_read_at_once(monkeypatch, make_tiny_bert, tiny_tokenizer):
    by_rows, iterate = [], Column.__iter__
    def iterated(self):
        by_rows.append(self.column_name)
        return iterate(self)
    monkeypatch.setattr(Column, '__iter__', iterated)
    source = Dataset.from_dict(dict(text=[f'good film {i}' for i in range(20)], label=['bad', 'good']*10))
    data, model = load_text(source), make_tiny_bert()
    assert check_data(model, data) == ['bad', 'good']
    further = DatasetDict({k: d.add_column('votes', [1.]*len(d)) for k, d in data.items()})
    encoded = feed_for(model, tiny_tokenizer).encode(further)
    assert lengths_of(encoded['train']).tolist() == [encoded['train'][i]['length'] for i in range(16)]
    assert not by_rows

def test_columns_are_renamed_and_others_dropped():
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

@pytest.mark.parametrize('fields,names', [
    (['001', '010'], ['001', '010']), (['1e5', '2e5'], ['1e5', '2e5']), (['1', '02'], ['02', '1']),
    (['1_000', '2_000'], ['1_000', '2_000']), (['١', '٢'], ['١', '٢']), (['0x1', '0x2'], ['0x1', '0x2']),
    (['True', 'False'], ['False', 'True']), (['NA', '<NA>'], ['<NA>', 'NA']), (['+1', '-1'], ['+1', '-1']),
    (['10', '9'], ['9', '10']), ([' 1', '0'], ['0', '1']), (['1.0', '0.0'], ['0', '1']), (['"1"', '"0"'], ['0', '1']),
    (['12345678901234567891', '12345678901234567890'], ['12345678901234567890', '12345678901234567891'])])
def test_classes_in_a_csv_file_stay_as_written(fields, names, tmp_path):
    path = tmp_path/'f.csv'
    path.write_text('text,label\r\n' + ''.join(f'x {i},{fields[i % 2]}\r\n' for i in range(16)), encoding='utf-8-sig')
    assert load_text(path)['train'].features['label'].names == names

def test_texts_of_digits_in_a_csv_file_are_texts(tmp_path):
    path = tmp_path/'f.csv'
    path.write_text('text,second,label\n' + '2012,1e3,a\n1984,007,b\n'*8)
    rows = [row for part in load_text(path, text_pair='second').values() for row in part]
    assert {(row['text'], row['text_pair']) for row in rows} == {('2012', '1e3'), ('1984', '007')}
    path.write_text('text,target_text\n' + '2012,1e3\n1984,007\n'*8)
    assert {row['target_text'] for part in load_pairs(path).values() for row in part} == {'1e3', '007'}
    path.write_text('question,context,answer\n' + 'When?,It was in 1984.,1984\n'*10)
    assert load_questions(path)['train']['answer'][0] == [10, 14]

@pytest.mark.parametrize('fields,arguments,expected', [
    (['2.50', '3'], {}, {2.5, 3.}), (['.5', '1e-05'], {}, {.5, 1e-5}), (['4', '5'], dict(task='regression'), {4., 5.}),
    (['1e5', '2e5'], dict(task='regression'), {1e5, 2e5}),
    (['1.10', '1.9'], dict(task='classification'), ['1.10', '1.9']),
    (['1.10', '1.9'], dict(labels=['1.9', '1.10']), ['1.9', '1.10'])])
def test_scores_in_a_csv_file_are_numbers_unless_classes_are_requested(fields, arguments, expected, tmp_path):
    path = tmp_path/'f.csv'
    path.write_text('text,label\n' + ''.join(f'x {i},{fields[i % 2]}\n' for i in range(20)))
    train = load_text(path, **arguments)['train']
    assert expected == ({*train['label']} if isinstance(expected, set) else train.features['label'].names)

def test_secret_and_missing_labels_in_a_csv_file_are_found(tmp_path):
    for name, fields in dict(train='10', secret=['-1', '-1'], gap=['1', '']).items():
        (tmp_path/f'{name}.csv').write_text('text,label\n' + ''.join(f'x {i},{fields[i % 2]}\n' for i in range(20)))
    with pytest.warns(UserWarning, match='ignoring test, which has no labels'):
        load_text(dict(train=tmp_path/'train.csv', test=tmp_path/'secret.csv'))
    with pytest.raises(ValueError, match='the label is missing in 10 rows of train .first: row 1'):
        load_text(tmp_path/'gap.csv')

@pytest.mark.parametrize('values,dtype', [
    ([1, None], 'Int64'), (['a', None], 'string'), ([True, None], 'boolean'), ([.5, None], 'Float64'),
    (['a', pd.NaT], object), (['a', pd.NA], object), ([1, np.float32('nan')], object), ([Decimal(1), Decimal('nan')],
                                                                                       object),
    (['a', None], 'category'), ([pd.Timestamp('2020-01-01'), None], None)])
def test_a_missing_label_of_any_type_is_missing(values, dtype):
    labels = pd.Series([values[0], *values]*5, dtype=dtype)
    with pytest.raises(ValueError, match='the label is missing in 5 rows of train .first: row 2'):
        load_text(frame(16).head(15).assign(label=labels))

def test_missing_texts_words_and_tags_of_any_type_are_missing():
    with pytest.raises(ValueError, match="column 'text' is empty in 10 rows of train"):
        load_text(frame().assign(text=pd.array(['fine', None]*10, dtype='string')))
    with pytest.raises(ValueError, match='a tag is missing in 2 rows of train'):
        load_tokens(tagged(tags=['O', pd.NA], n=2))
    with pytest.raises(ValueError, match="column 'words' has no words in 1 row of train .first: row 1"):
        load_tokens(pd.DataFrame(dict(words=[['a'], pd.NA], tags=[['O'], ['O']]), dtype=object))

@pytest.mark.parametrize('names', [['a', ' a'], ['a', 'a\n'], ['a b', 'a\xa0b'], ['a b', 'a  b'], ['a', '\ufeffa'],
                                   ['a', 'a\u200b'], ['caf\xe9', 'cafe\u0301'], ['\uac00', '\u1100\u1161']])
def test_classes_that_look_the_same_raise_unless_named(names):
    labelled = frame().assign(label=[*names, 'other', 'other']*5)
    with pytest.raises(ValueError, match='look the same') as e: load_text(labelled)
    one_sentence(e)
    assert all(ascii(name) in str(e.value) for name in names)
    assert load_text(labelled, labels=[*names, 'other'])['train'].features['label'].names == [*names, 'other']
    with pytest.raises(ValueError, match='look the same'): load_tokens(tagged(tags=[*names]))

def test_label_that_looks_like_a_class_raises_with_both_spellings():
    with pytest.raises(ValueError, match=r"label 'bad ' is not one of the classes \(bad, good\); it looks like 'bad'"):
        load_text(dict(train=frame(), test=frame().assign(label=['bad ', 'good']*10)))
    with pytest.raises(ValueError, match=r"it looks like 'caf\\xe9', but is 'cafe\\u0301'"):
        load_text(dict(train=frame().replace('bad', 'caf\xe9'), test=frame().replace('bad', 'cafe\u0301')))

def test_classes_that_differ_in_case_cause_a_warning():
    with pytest.warns(UserWarning, match="'US' and 'us' differ only in case"):
        data = load_text(frame().assign(label=['us', 'US']*10))
    assert data['train'].features['label'].names == ['US', 'us']

@pytest.mark.parametrize('values,reason', [
    ([1, '1', 2, 3], 'the classes mix numbers and texts: 1 occurs as both'),
    ([b'a', b'b', 'c', 'd'], 'the label is neither a name nor a number .type bytes. in 10 rows of train'),
    ([dict(a=1), dict(a=2), 'c', 'd'], 'the label is neither a name nor a number .type dict. in 10 rows of train')])
def test_unknown_labels_raise(values, reason):
    labels = pd.Series(values*5, dtype=object)
    with pytest.raises(ValueError, match=reason) as e: load_text(frame().assign(label=labels))
    one_sentence(e)

@pytest.mark.parametrize('labels,names,ids', [
    ([Decimal('1'), Decimal('0.0')]*10, ['0', '1'], [1, 0]),
    (pd.array([1, 0]*10, dtype='Int64'), ['0', '1'], [1, 0]),
    (pd.array([True, False]*10, dtype='boolean'), ['False', 'True'], [1, 0]),
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

def test_given_class_names_define_the_order():
    f = dict(train=frame(), validation=frame(), test=frame())
    data = load_text(f, labels=['good', 'bad'])
    assert data['train'].features['label'].names == ['good', 'bad'] and data['train']['label'][:2] == [1, 0]
    numbered = {k: v.assign(label=[0, 1]*10) for k, v in f.items()}
    data = load_text(numbered, labels=['bad', 'good', 'fair'])
    assert data['train'].features['label'].names == ['bad', 'good', 'fair'] and data['train']['label'][:2] == [0, 1]

def test_class_label_keeps_its_names_and_numbers():
    "Names that look like numbers must not be mistaken for them"
    ds = Dataset.from_dict(dict(text=['a', 'b']*5, label=[0, 1]*5),
                           Features(text=Value('string'), label=ClassLabel(names=['1', '0'])))
    data = load_text(dict(train=ds, validation=ds, test=ds))
    assert data['train'].features['label'].names == ['1', '0'] and data['train']['label'][:2] == [0, 1]
    assert load_text(ds, labels=['yes', 'no'])['train'].features['label'].names == ['yes', 'no']

def test_test_split_with_secret_labels_is_replaced():
    "As GLUE's are"
    features = Features(text=Value('string'), label=ClassLabel(names=['no', 'yes']))
    make = lambda n, secret=False: Dataset.from_dict(dict(text=[f's{i}' for i in range(n)],
                                                          label=[-1]*n if secret else [0, 1]*(n//2)), features)
    with pytest.warns(UserWarning, match='ignoring test, which has no labels'):
        data = load_text(DatasetDict(train=make(100), validation=make(10), test=make(30, secret=True)))
    assert [len(part) for part in data.values()] == [89, 10, 11]

def test_unknown_splits_are_ignored_with_a_warning():
    with pytest.warns(UserWarning, match='ignoring unsupervised'):
        data = load_text(dict(train=frame(), unsupervised=frame()))
    assert list(data) == ['train', 'validation', 'test']


@pytest.mark.parametrize('arguments,error,reason', [
    (dict(source='nowhere.csv'), FileNotFoundError, 'nowhere.csv does not exist'),
    (dict(source='nowhere.jsonl'), FileNotFoundError, 'nowhere.jsonl does not exist'),
    (dict(source=dict(train='notes.docx')), ValueError,
     "has the extension '.docx'; supported extensions: .csv, .jsonl, .parquet, .txt"),
    (dict(source=17), ValueError, 'source must be a path, a pandas DataFrame, a Dataset or a dict, got 17'),
    (dict(source={}), ValueError, 'the source has no train split; available: nothing'),
    (dict(source=os.curdir), ValueError, 'is a folder; pass its files'),
    (dict(source=dict(test=frame())), ValueError, 'the source has no train split; available: test'),
    (dict(source=frame(), text='sentence'), ValueError,
     "text='sentence': train has no such column; available: text, label"),
    (dict(source=frame(), text_pair='s2'), ValueError, "text_pair='s2': train has no such column"),
    (dict(source=frame(), label='gold'), ValueError, "label='gold': train has no such column"),
    (dict(source=frame(0)), ValueError, 'the train split is empty'),
    (dict(source=dict(train=frame(), test=frame(0))), ValueError, 'the test split is empty'),
    (dict(source=frame(4)), ValueError, '4 rows are too few for splits'),
    (dict(source=frame(), splits=(.8, .2)), ValueError, 'splits must be three fractions above 0'),
    (dict(source=frame(), splits=(.8, .2, 0)), ValueError, 'splits must be three fractions above 0'),
    (dict(source=frame(), splits=(.8, .8, .8)), ValueError, 'splits must be three fractions above 0 .* that sum to 1'),
    (dict(source=frame().assign(text=['fine', ' \t']*10)), ValueError,
     r"column 'text' is empty in 10 rows of train \(first: row 1, counted from 0\)"),
    (dict(source=frame().assign(text=['fine', None]*10)), ValueError, "column 'text' is empty in 10 rows of train"),
    (dict(source=frame().assign(text=range(20))), ValueError, "column 'text' is not a string in 20 rows of train"),
    (dict(source=frame().assign(label=['bad', None]*10)), ValueError, 'the label is missing in 10 rows of train'),
    (dict(source=frame().assign(label=[.5, 1]*10), task='classification'), ValueError,
     'the labels are numbers with fractions, which cannot be classes'),
    (dict(source=frame().assign(label=[.5, None]*10)), ValueError,
     r'the label is missing in 10 rows of train .first: row 1'),
    (dict(source=frame().assign(label=[.5, float('nan')]*10)), ValueError, 'the label is missing in 10 rows of train'),
    (dict(source=frame().assign(label=[.5, float('-inf')]*10)), ValueError,
     r'the label is not a finite number in 10 rows of train .first: row 1'),
    (dict(source=frame().assign(label=[.5, 'good']*10)), ValueError, 'the label is not a number in 10 rows of train'),
    (dict(source=frame(), task='regression'), ValueError, 'the label is not a number in 20 rows of train'),
    (dict(source=frame().assign(label=[1, 2]*10), labels=['a', 'b'], task='regression'), ValueError,
     'labels are class names, but regression has no classes'),
    (dict(source=frame(), task='seq2seq'), ValueError,
     "task must be 'classification', 'multi_label_classification' or 'regression' or None"),
    (dict(source=Dataset.from_dict(dict(text=['a', 'b'], label=[0, 1]),
                                   Features(text=Value('string'), label=ClassLabel(names=['x', 'y']))),
          task='regression'),
     ValueError, 'has classes .x, y., which regression cannot predict'),
    (dict(source=frame().assign(label='bad')), ValueError, 'at least two classes are needed, got bad'),
    (dict(source=frame(), labels=['good', 'fair']), ValueError,
     r"label 'bad' is not one of the classes \(good, fair\) in 10 rows of train"),
    (dict(source=frame(), labels=['good', 'good']), ValueError, 'labels must not have duplicate names'),
    (dict(source=frame().assign(label=[0, 2]*10), labels=['a', 'b']), ValueError, 'label 2 is not one of the classes'),
    (dict(source=dict(train=frame(), test=frame().assign(label='awful'))), ValueError,
     r"label 'awful' is not one of the classes \(bad, good\) in 20 rows of test")])
def test_invalid_sources_give_a_short_error(arguments, error, reason):
    with pytest.raises(error, match=reason) as e: salviz.load_text(**arguments)
    one_sentence(e)

def test_invalid_json_line_is_reported_with_its_number(tmp_path):
    (tmp_path/'f.jsonl').write_text('{"text": "a", "label": 0}\n\n{"text": "b"\n')
    with pytest.raises(ValueError, match='f.jsonl: line 3 is not JSON') as e: load_text(tmp_path/'f.jsonl')
    one_sentence(e)
    (tmp_path/'f.jsonl').write_text('[1, 2]\n')
    with pytest.raises(ValueError, match='line 1 must be a JSON object'): load_text(tmp_path/'f.jsonl')

def in_a_new_process(code, folder, **env):
    "Return the output of `code` in a process with the Hub's cache in `folder`"
    env = {**os.environ, 'NO_PROXY': '*', 'HF_HOME': str(folder), **env}
    done = subprocess.run([sys.executable, '-c', code, str(folder)], env=env, capture_output=True, text=True)
    assert done.returncode == 0 and 'Retrying' not in done.stderr, done.stderr
    return done.stdout

try_a_typo = """
from salviz.data.texts import load_text
try: load_text('movie-sentence')
except ConnectionError as e: print(e)
"""

@pytest.mark.slow
def test_hub_name_without_a_network_lists_the_packaged_sets(tmp_path):
    said = in_a_new_process(try_a_typo, tmp_path, HF_ENDPOINT='http://127.0.0.1:9', HF_HUB_OFFLINE='0')
    assert said.startswith("'movie-sentence' is not packaged (packaged data sets: movie-sentences, amazon-reviews, "
                           "tweets, editorials, movie-polarity, sts-b) and the Hub cannot be reached")
    assert said.count('\n') == 1

@pytest.mark.slow
def test_offline_mode_uses_cached_data_sets_only(tmp_path):
    "The cache of `datasets` is made as it looks after a load with a network"
    code = try_a_typo + """
import sys, pandas as pd
from pathlib import Path
from datasets.packaged_modules.parquet.parquet import Parquet
files = {split: f'{sys.argv[1]}/{split}.parquet' for split in ('train', 'test')}
for split, path in files.items():
    rows = dict(sentence=[f'{split} {i}' for i in range(20)], label=[0, 1]*10)
    pd.DataFrame(rows).to_parquet(path)
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
    assert refused.startswith("'movie-sentence' is not in the local cache, and HF_HUB_OFFLINE disables the Hub "
                              '(packaged data sets: movie-sentences')
    assert other.startswith("'some_set' on the Hub cannot be loaded: Couldn't find cache for some_set for config "
                            "'other'")
    assert loaded == "{'train': 18, 'validation': 2, 'test': 20} test 0"


def test_subset_is_stratified_and_nested(movies):
    small, large = subset(movies, 300, validation_size=50, test_size=.5), subset(movies, .2)
    assert [len(part) for part in small.values()] == [300, 50, round(.5*len(movies['test']))]
    share = np.bincount(movies['train']['label'])/len(movies['train'])
    assert np.abs(np.bincount(small['train']['label']) - 300*share).max() <= 1.01
    assert {*small['train']['text']} <= {*large['train']['text']}
    assert fingerprint(subset(movies, 300)) == fingerprint(subset(movies,
                                                                  300)) != fingerprint(subset(movies, 300, seed=1))
    assert fingerprint(subset(movies)) == fingerprint(movies)

@pytest.mark.parametrize('size', [0, -1, 8485, 0., 1.5, 'all', None, True])
def test_invalid_size_raises(size, movies):
    with pytest.raises(ValueError, match='train_size must be a number of rows') as e: subset(movies, size)
    one_sentence(e)

def test_fingerprint_depends_only_on_the_contents():
    data = load_text(frame())
    code = '''
import pandas as pd
from salviz.data.texts import fingerprint, load_text
rows = dict(text=[f"sentence {i}" for i in range(20)], label=["bad", "good"]*10)
print(fingerprint(load_text(pd.DataFrame(rows))))'''
    there = forked.run(code) # from a process with different string hashes
    assert there.stdout == f'{fingerprint(data)}\n', there.stderr
    assert fingerprint(data) == fingerprint(DatasetDict({name: Dataset.from_dict(part.to_dict(), part.features)
                                                         for name, part in data.items()}))
    changed = [frame().assign(text=['another'] + frame()['text'].tolist()[1:]), frame().replace('bad', 'poor'),
               frame(18)]
    assert len({fingerprint(data), *(fingerprint(load_text(f)) for f in changed)}) == 4


@pytest.mark.sample(3)
@pytest.mark.parametrize('load,known', [
    (lambda: load_text('movie-sentences'), '49933f56a3239bb9871f943110c91317d7e22722096758da7e55abf1be813582'),
    (lambda: load_text('sts-b'), 'b661e3fde4a95d3266bfdce1112c15011319fc20050ac01bcd6e06811d2acee6'),
    (lambda: load_tokens('ner-tweets'), 'a8f078cac4b848332f962cfe3ce5bbc49bd3029e14d09318f1702113ae29ab23'),
    (lambda: load_pairs('copy-reorder'), 'fd69d5ad695ad501b163bea7f589ad89ae8b0652a322a0569676caf136e61897')],
                         ids=['sentences', 'scores', 'tags', 'pairs'])
def test_fingerprints_of_earlier_runs_still_match(load, known):
    assert fingerprint(load()) == known


utc = datetime.timezone.utc

@pytest.mark.parametrize('first,second', [
    (datetime.datetime(2020, 1, 31), datetime.datetime(2020, 1, 31, 0, 0, 1)), (b'\0\1', b'\0\2'),
    (datetime.datetime(2020, 1, 31, tzinfo=utc), datetime.datetime(2020, 1, 31, 1, tzinfo=utc)),
    (datetime.date(2020, 1, 31), datetime.date(2020, 2, 1)), (datetime.time(1, 2), datetime.time(1, 3)),
    (datetime.timedelta(1), datetime.timedelta(2)), (Decimal('1.50'), Decimal('1.51')),
    (dict(at=datetime.date(2020, 1, 31), by=[b'a']), dict(at=datetime.date(2020, 1, 31), by=[b'b'])),
    ([datetime.date(2020, 1, 31)], [None]), (None, datetime.date(2020, 1, 31))])
def test_columns_of_every_type_have_a_fingerprint(first, second, tiny_tokenizer):
    def data(*values): return Dataset.from_dict(dict(text=['a film', 'a plot'], label=[0, 1], more=[*values]))
    prints = [fingerprint(data(*values)) for values in ((first, second), (second, first), (first, first))]
    assert len({*prints}) == 3 and prints[0] == fingerprint(data(first, second).select([0, 1]))
    part, used = data(first, second), ('text', 'label')
    kinds = column_kinds(dict(train=part), used)
    batch = collated(list(with_columns(Dataset.from_dict(dict(input_ids=[[1], [2]])), part, kinds, 'train')), kinds)
    assert kinds['more'][0] == 'list' and list(batch['more']) == part['more'][:]

def test_unused_images_are_fingerprinted_as_files():
    from PIL import Image
    images = [Image.new('RGB', (2, 2), colour) for colour in ('red', 'blue')]
    def data(rows, feature):
        return Dataset.from_dict(dict(text=['a', 'b'], photo=rows), Features(text=Value('string'), photo=feature))
    assert fingerprint(data(images, ImageFile())) != fingerprint(data(images[::-1], ImageFile()))
    with pytest.raises(ValueError, match="column 'photo' of train: values of type .* cannot be fingerprinted; remove"):
        fingerprint(dict(train=data([[image] for image in images], Sequence(ImageFile()))))

@pytest.mark.sample(1)
@pytest.mark.parametrize('dtype,code', [('float32', '<f'), ('float64', '<d'), ('int16', '<h'), ('bool', '<?')])
def test_arrays_are_fingerprinted_by_type_shape_and_bytes(dtype, code):
    x = np.random.default_rng(0).normal(size=(1203, 3, 2))*5 # more rows than are hashed at once
    x = x > 0 if dtype == 'bool' else x.astype(dtype)
    def data(x, shape=(3, 2)):
        features = Features(values=Array2D(shape, dtype), label=ClassLabel(names=['no', 'yes']))
        return Dataset.from_dict(dict(values=x.reshape(-1, *shape), label=[i % 2 for i in range(len(x))]), features)
    digest = hashlib.sha256()
    digest.update(b'["", 1203]\n["label", ["no", "yes"]]\n')
    for start in (0, 1000):
        digest.update(json.dumps([i % 2 for i in range(start, min(start + 1000, 1203))]).encode() + b'\n')
    digest.update(b'["values", null]\n["' + dtype.encode() + b'", [1203, 3, 2]]')
    for sample in x:
        for row in sample:
            for value in row: digest.update(struct.pack(code, value.item()))
    assert fingerprint(data(x)) == digest.hexdigest() == fingerprint(data(x).with_format('numpy'))
    assert fingerprint(data(x).select(range(1202, -1, -1)).select(range(1202, -1, -1))) == digest.hexdigest()
    changed = x.copy(); changed[1100, 2, 1] = x[1100, 2, 1] == 0
    if dtype == 'float64': changed[1100, 2, 1] = np.nextafter(x[1100, 2, 1], 9)
    assert len({digest.hexdigest(), fingerprint(data(changed)), fingerprint(data(x, (2, 3))),
                fingerprint(data(x[::-1]))}) == 4


def test_encoded_rows_match_the_alignment(movies, tokenizer):
    part = movies['test'].select(range(40))
    for row, text, label in zip(encode(part, tokenizer), part['text'], part['label']):
        tt = align(tokenizer, text)
        assert row['input_ids'] == tt.input_ids.tolist() == tokenizer(text)['input_ids']
        assert row['word_ids'] == tt.word_ids.tolist()
        assert row['special_tokens_mask'] == tt.is_special.astype(int).tolist()
        assert row['segments'] == tt.segments.tolist()
        assert row['attention_mask'] == [1]*len(tt) and row['length'] == len(tt) and row['labels'] == label
        assert row['token_type_ids'] == [0]*len(tt)

def test_examples_are_numbered_consecutively(movies, tokenizer):
    encoded = encode(subset(movies, 30, validation_size=20, test_size=10), tokenizer)
    assert [i for part in encoded.values() for i in part['example_id']] == list(range(60))
    assert encoded['train'].features['labels'].names == rating_classes

@pytest.mark.slow
def test_rows_do_not_depend_on_chunks(movies, tokenizer, monkeypatch):
    part = movies['train'].select(range(2003))
    whole = encode(part, tokenizer)
    assert len(whole) == 2003 and whole['example_id'] == list(range(2003))
    for i in (0, 1999, 2000, 2002): assert whole[i]['input_ids'] == tokenizer(part[i]['text'])['input_ids']

def test_pairs_have_two_segments_and_consecutive_words(tokenizer):
    row = encode_texts(['a film'], tokenizer, pairs=['so good'])[0]
    assert row['segments'] == [-1, 0, 0, -1, 1, 1, -1]
    assert row['token_type_ids'] == [0, 0, 0, 0, 1, 1, 1] and row['word_ids'] == [-1, 0, 1, -1, 2, 3, -1]

def test_special_tokens_typed_in_a_text_are_text(tokenizer):
    row = encode_texts(['bad [SEP] film'], tokenizer)[0]
    assert row['special_tokens_mask'] == [1, 0, 0, 0, 1]
    assert row['word_ids'] == [-1, 0, 1, 2, -1]
    assert row['segments'] == [-1, 0, 0, 0, -1]

def test_token_over_several_tagged_words_raises(tokenizer):
    tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    tokenizer.add_tokens(['new york'])
    part = load_tokens(tagged(['new', 'york', 'rains'], ['B-LOC', 'I-LOC', 'O']))['train']
    with pytest.raises(ValueError, match="a token of this tokenizer covers several tagged words .'new york'"):
        encode(part, tokenizer)
    assert encode(load_tokens(tagged(['york', 'new'], ['B-LOC', 'O']))['train'], tokenizer)[0]['labels'] == [
        -100, 1, 0, -100]

@pytest.mark.parametrize('pairs', [False, True])
def test_long_texts_are_truncated_with_one_warning(pairs, tokenizer):
    f = frame().assign(text=['word '*9, 'word '*30]*10, second='short')
    data = load_text(f, text_pair='second' if pairs else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        encoded = encode(data, tokenizer, max_length=16)
    said = [str(w.message) for w in caught if 'texts longer than' in str(w.message)]
    assert said == ['texts longer than 16 tokens were truncated '
                    f'(by at most {18 if pairs else 16} tokens): 10 of 20']
    assert all(max(part['length']) == 16 for part in encoded.values())
    for part in encoded.values():
        for row in part:
            assert len({len(row[name]) for name in ('input_ids', 'token_type_ids', 'word_ids', 'segments',
                                                    'special_tokens_mask')}) == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        encode(data, tokenizer)

def test_maximum_length_is_that_of_the_tokenizer_or_512(tokenizer):
    text = 'word '*600
    with pytest.warns(UserWarning, match='texts longer than 512 tokens were truncated .*: 1 of 1'):
        assert encode_texts([text], tokenizer)[0]['length'] == 512
    assert byte_level().model_max_length > 10**6
    with pytest.warns(UserWarning, match='longer than 512'):
        assert encode_texts([text], byte_level())[0]['length'] == 512
    assert encode_texts([text], byte_level(), max_length=4000)[0]['length'] == 3002

@pytest.mark.parametrize('max_length', [0, 3, 513, 20., '20', True])
def test_unsupported_length_raises(max_length, tokenizer):
    with pytest.raises(ValueError, match='max_length must be a number of tokens from 4 to 512') as e:
        encode_texts(['a'], tokenizer, max_length=max_length)
    one_sentence(e)

@pytest.mark.parametrize('texts,pairs,reason', [
    ([], None, 'texts is empty'),
    (['a', ' '], None, 'the text is empty in 1 row of texts'),
    ('abc', None, 'must be a list of strings'),
    ([1], None, 'the text is not a string in 1 row of texts'),
    (['a'], ['b', 'c'], 'pairs must have one sentence for each of the 1 texts, got 2'),
    (['a'], [''], 'the text is empty in 1 row of pairs')])
def test_invalid_texts_raise(texts, pairs, reason, tokenizer):
    with pytest.raises(ValueError, match=reason) as e: encode_texts(texts, tokenizer, pairs)
    one_sentence(e)

def test_data_without_text_raises(tokenizer):
    with pytest.raises(ValueError, match='data has no column text, only sentence'):
        encode(Dataset.from_dict(dict(sentence=['a'])), tokenizer)


@pytest.mark.parametrize('side', ['right', 'left'])
@pytest.mark.parametrize('multiple', [None, 8])
def test_batches_are_padded_on_the_right_and_padding_is_marked(side, multiple):
    tokenizer = byte_level(side)
    rows = encode(load_text(frame().assign(text=['ab c', 'a']*10))['train'].select(range(2)), tokenizer)
    batch = Collator(tokenizer, multiple)(list(rows))
    n = multiple or max(rows['length'])
    for i, row in enumerate(rows):
        k = row['length']
        for name, pad in dict(input_ids=258, attention_mask=0, word_ids=-1, segments=-1, is_special=True).items():
            source = row['special_tokens_mask' if name == 'is_special' else name]
            assert batch[name].shape == (2, n) and batch[name][i].tolist() == source + [pad]*(n - k), name
    assert batch['is_special'].dtype == torch.bool
    assert batch['word_ids'].dtype == batch['input_ids'].dtype == batch['labels'].dtype == torch.long
    assert batch['labels'].tolist() == rows['labels'] and batch['example_id'].tolist() == rows['example_id']
    assert set(batch) == {'input_ids', 'attention_mask', 'word_ids', 'segments', 'is_special', 'labels', 'example_id'}
    assert set(model_inputs(batch)) == {'input_ids', 'attention_mask'}

def test_unlabelled_rows_give_a_batch_without_labels(tokenizer):
    rows = encode_texts(['a film', 'another film'], tokenizer, first_id=5)
    batch = Collator(tokenizer)(list(rows))
    assert 'labels' not in batch and batch['example_id'].tolist() == [5, 6]
    assert set(model_inputs(batch)) == {'input_ids', 'attention_mask', 'token_type_ids'}

def test_tokenizer_without_padding_token_raises():
    with pytest.raises(ValueError,
                       match='has no padding token; set tokenizer.pad_token, or load it with load_classifier'):
        Collator(byte_level(pad_token=None))


def test_source_name_is_stored_with_the_data(tmp_path):
    frame = pd.DataFrame(dict(text=[f'a film number {i}' for i in range(40)], label=['good', 'bad'] * 20))
    frame.to_csv(tmp_path/'mine.csv', index=False)
    named = {'mine.csv': tmp_path/'mine.csv', 'DataFrame': frame, 'movie-sentences': 'movie-sentences'}
    for name, source in named.items():
        assert subset(load_text(source), 20, validation_size=2, test_size=2)['train'].info.dataset_name == name


def test_similarity_benchmark_keeps_its_splits():
    data = load_text('sts-b')
    for split, file in dict(train='train', validation='dev', test='test').items():
        lines = (asset('sts-b')/f'sts-{file}.csv').read_bytes().decode().rstrip('\n').split('\n')
        assert len(lines) == len(data[split]) == dict(train=5749, dev=1500, test=1379)[file]
        for line, row in zip(lines, data[split]):
            fields = line.split('\t')
            assert (row['label'], row['text'], row['text_pair']) == (float(fields[4]), fields[5].strip(),
                                                                     fields[6].strip())
    assert any(row['text'].count('"') == 1 for row in data['train'])
    assert data['train'].features['label'] == Value('float64')
    assert data['train'].info.dataset_name == 'sts-b' and data_task(data) == 'regression'

@pytest.mark.parametrize('labels,arguments,expected', [
    ([.5, 1]*10, {}, [.5, 1.]), ([1, 2]*10, dict(task='regression'), [1., 2.]), ([1., 2.]*10, {}, [0, 1]),
    ([1., 2.]*10, dict(task='classification'), [0, 1])])
def test_fractions_are_scores_and_integers_follow_the_task(labels, arguments, expected):
    f = frame().assign(label=labels)
    data = load_text(dict(train=f, validation=f, test=f), **arguments)
    assert data['train']['label'][:2] == expected and isinstance(data['train']['label'][0], type(expected[0]))
    assert data_task(data) == ('regression' if isinstance(expected[0], float) else 'classification')

def test_splits_and_subsets_of_scores_keep_their_deciles():
    rng = np.random.default_rng(0)
    f = frame(1000).assign(label=np.exp(rng.normal(size=1000)))
    tenths = np.sort(f['label'].to_numpy())[100:1000:100]
    data = load_text(f)
    for part in (*data.values(), subset(data, 200)['train']):
        counts = np.bincount([sum(x >= t for t in tenths) for x in part['label']], minlength=10)
        assert np.abs(counts - len(part)/10).max() <= 2

def test_plain_text_is_loaded_without_labels(tmp_path, tokenizer):
    (tmp_path/'plain.txt').write_text('One line.\n\nAnother, "quoted" line.\n' + 'More.\n'*18, encoding='utf-8')
    data = load_text(tmp_path/'plain.txt', label=None)
    assert sorted({t for part in data.values() for t in part['text']}) == ['Another, "quoted" line.', 'More.',
                                                                           'One line.']
    assert data['train'].column_names == ['text']
    assert data_task(data) is None
    assert data['train'].info.dataset_name == 'plain.txt'
    assert 'labels' not in encode(data, tokenizer)['train'].column_names
    with pytest.raises(ValueError, match="label='label': train has no such column; available: text"):
        load_text(tmp_path/'plain.txt')


conll = '-DOCSTART- -X- O O\n\nEU NNP B-ORG\r\nrejects VBZ O\r\n\r\n\nIn IN O\nLima NNP B-LOC\n. . O'

def test_tagged_file_is_read_with_any_other_columns(tmp_path):
    (tmp_path/'f.conll').write_text(conll, encoding='utf-8')
    data = load_tokens({name: tmp_path/'f.conll' for name in ('train', 'dev', 'test')})
    names = data['train'].features['tags'].feature.names
    assert names == ['O', 'B-LOC', 'B-ORG']
    assert data['validation']['words'][:] == [['EU', 'rejects'], ['In', 'Lima', '.']]
    assert [[names[t] for t in row] for row in data['test']['tags']] == [['B-ORG', 'O'], ['O', 'B-LOC', 'O']]

@pytest.mark.parametrize('text,number', [('EU B-ORG\nrejects\n', 2), ('EU\tB-ORG\n\tO\n', 2), ('a O\n\nb\t \n', 3)])
def test_line_without_a_tag_is_reported_with_its_number(text, number, tmp_path):
    (tmp_path/'f.txt').write_text(text)
    with pytest.raises(ValueError, match=f'f.txt: line {number} must be a word and its tag') as e:
        load_tokens(tmp_path/'f.txt')
    one_sentence(e)

numbered = '1\tEU\tB-ORG\n2\trejects\tO\n\n1\tIn\tO\n2\tLima\tB-LOC\n3\t.\tO\n'
plain = 'EU _ B-ORG\nrejects _ O\n\nIn _ O\nLima _ B-LOC\n. _ O\n'

@pytest.mark.parametrize('text', [
    numbered, plain, '\ufeff' + plain.replace('\n', '\r\n'), '-DOCSTART- -X- -X- O\n\n' + plain,
    '# id 3f2a\tdomain=en\n' + plain, '# sent_id = 1\n# text = EU rejects\n' + numbered, '#newdoc\n' + plain,
    '#begin document (bc/00); part 000\n' + plain + '\n#end document\n', '\n\n' + plain + '\n\n# the end\n',
    numbered.replace('1\t', '0\t').replace('2\t', '1\t').replace('3\t', '2\t'),
    numbered.replace('3\t', '5\t').replace('2\tL', '4\tL').replace('1\tI', '3\tI'),
    numbered.replace('1\tIn', '1-2\tInLima\t_\n1\tIn').replace('3\t.', '2.1\tis\t_\n3\t.'),
    plain.replace(' ', '   '), plain.replace(' _', '\t_ _\t').replace('\t ', '\t')],
    ids='numbered plain mark documents comment comments newdoc parts blank from-0 through ranges spaces tabs'.split())
def test_tags_are_read_from_every_line_format(text, tmp_path):
    (tmp_path/'f.conll').write_text(text, encoding='utf-8', newline='')
    data = load_tokens({name: tmp_path/'f.conll' for name in ('train', 'validation', 'test')})['train']
    names = data.features['tags'].feature.names
    assert names == ['O', 'B-LOC', 'B-ORG'] and data['words'][:] == [['EU', 'rejects'], ['In', 'Lima', '.']]
    assert [[names[t] for t in row] for row in data['tags']] == [['B-ORG', 'O'], ['O', 'B-LOC', 'O']]

def test_words_may_begin_with_a_hash_or_be_numbers(tmp_path):
    (tmp_path/'f.conll').write_text('#1 O\n# O\n1 B-N\n\n2 O\n3 B-N\n#MeToo B-N\n')
    assert texts_module._bio(tmp_path/'f.conll')['words'].tolist() == [['#1', '#', '1'], ['2', '3', '#MeToo']]

def test_columns_of_words_and_tags_can_be_numbers(tmp_path):
    rows = ['1 They they PRON _ _ 2 nsubj _ _', '2 see see VERB _ _ 0 root _ SpaceAfter=No',
            '3 . . PUNCT _ _ 2 punct _ _']
    (tmp_path/'f.conll').write_text('# sent_id = 1\n' + '\n'.join(row.replace(' ', '\t') for row in rows) + '\n')
    files = {name: tmp_path/'f.conll' for name in ('train', 'validation', 'test')}
    data = load_tokens(files, tags=3)['train']
    assert data['words'][0] == ['They', 'see', '.'] and data.features['tags'].feature.names == ['PRON', 'PUNCT', 'VERB']
    assert load_tokens(files, words=2, tags=7)['train']['words'][0] == ['they', 'see', '.']
    with pytest.raises(ValueError, match='the last column of the CoNLL-U format is not a tag; pass the column numbers'):
        load_tokens(files)
    with pytest.raises(ValueError, match='has 10 columns, counted from 0, so words=1, tags=10 are invalid'):
        load_tokens(files, tags=10)

@pytest.mark.parametrize('text,reason', [
    ('EU O\n#cat X\n', 'line 2 begins with #'), ('EU O\n# sent_id = 2\nLima B-LOC\n', 'line 2 begins with #'),
    ('New York B-LOC\nis O\n', r'line 2 has 2 columns, but line 1 has 3'),
    ('1 O\n2 O\n\n1 B-N\n', 'the first column contains only word numbers'),
    ('1-2\tdu\tO\n', 'each line is a range of words or an empty node'),
    ('# id 1\n\n', 'has no line with a word and its tag'), ('EU\xa0O\n', 'line 1 must be a word and its tag'),
    (numbered.replace('1\tIn', '1-2\tInLima\tB-LOC\n1\tIn'), 'line 4 has a tag for a range of words'),
    (''.join(f'bc/cctv 0 {i} w{i} {tag}\n' for i, tag in enumerate('ABCABCABCA')),
     "column 0 is 'bc/cctv' on every line")])
def test_ambiguous_tagged_file_raises_with_its_line(text, reason, tmp_path):
    (tmp_path/'f.conll').write_text(text, encoding='utf-8')
    with pytest.raises(ValueError, match=f'f.conll: .*{reason}|f.conll {reason}'): load_tokens(tmp_path/'f.conll')

@pytest.mark.slow
def test_packaged_tweets_are_complete():
    data = load_tokens('ner-tweets')
    names = data['train'].features['tags'].feature.names
    assert len(names) == 21
    assert names[0] == 'O'
    assert all(names[i][:2] == 'B-' and names[i + 1] == 'I-' + names[i][2:] for i in range(1, 21, 2))
    rows = [row for part in data.values() for row in part]
    lines = (asset('ner-tweets')/'ner.txt').read_text(encoding='utf-8').split('\n')
    pairs = sorted(tuple(line.split('\t')) for line in lines if line.strip())
    assert len(rows) == 2394
    assert sorted((w, names[t]) for row in rows for w, t in zip(row['words'], row['tags'])) == pairs
    assert data_task(data) == 'token_classification'
    assert fingerprint(data) == fingerprint(load_tokens('ner-tweets')) != fingerprint(load_tokens('ner-tweets', seed=1))

def tagged(words=None, tags=None, n=20):
    return pd.DataFrame(dict(words=[words or ['In', 'Lima']]*n, tags=[tags or ['O', 'B-LOC']]*n))

def test_numbered_tags_keep_their_names():
    features = Features(tokens=Sequence(Value('string')), ner_tags=Sequence(ClassLabel(names=['x', 'y', 'O'])))
    ds = Dataset.from_dict(dict(tokens=[['a', 'b']]*20, ner_tags=[[2, 0]]*20), features)
    data = load_tokens(ds, words='tokens', tags='ner_tags')
    assert data['train'].column_names == ['words', 'tags']
    assert data['train'].features['tags'].feature.names == ['x', 'y', 'O']
    assert data['train']['tags'][0] == [2, 0]
    assert load_tokens(ds, words='tokens', tags='ner_tags',
                       labels=['p', 'q', 'O'])['train'].features['tags'].feature.names == ['p', 'q', 'O']
    assert fingerprint(data) != fingerprint(load_tokens(ds, words='tokens', tags='ner_tags', labels=['p', 'q', 'O']))
    assert load_tokens(tagged(), labels=['B-LOC', 'O'])['train']['tags'][0] == [1, 0]

@pytest.mark.parametrize('source,arguments,reason', [
    (tagged(tags=['O']), {}, r'the numbers of words and tags differ in 20 rows of train .first: row 0'),
    (pd.concat([tagged(n=3), tagged(['a', 'b', 'c'], n=1)]), {},
     r'the numbers of words and tags differ in 1 row of train .first: row 3'),
    (tagged(['a', ' ']), {}, "column 'words' has a word that is empty or not a string in 20 rows"),
    (tagged(['a', 2]), {}, "column 'words' has a word that is empty or not a string in 20 rows"),
    (pd.DataFrame(dict(words=[['a'], []], tags=[['O'], []])), {},
     r"column 'words' has no words in 1 row of train .first: row 1"),
    (tagged(tags=['O', None]), {}, 'a tag is missing in 20 rows of train'),
    (tagged(tags=['O', 'O']), {}, 'at least two classes are needed, got O'),
    (tagged(), dict(labels=['O', 'B-PER']), r"tag 'B-LOC' is not one of the tags .O, B-PER. in 20 rows of train"),
    (dict(train=tagged(), test=tagged(tags=['O', 'B-PER'])), {},
     r"tag 'B-PER' is not one of the tags .O, B-LOC. in 20 rows of test"),
    (tagged(), dict(words='tokens'), "words='tokens': train has no such column; available: words, tags"),
    (dict(train='f.csv'), {},
     "f.csv has the extension '.csv'; supported extensions: .conll, .txt, .jsonl, .parquet")])
def test_inconsistent_tags_raise(source, arguments, reason):
    with pytest.raises(ValueError, match=reason) as e: load_tokens(source, **arguments)
    one_sentence(e)

def test_label_of_a_word_is_only_at_its_first_token(tokenizer):
    part = load_tokens('ner-tweets')['validation'].select(range(60))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        encoded = encode(part, tokenizer, max_length=24)
    for row, words, tags in zip(encoded, part['words'], part['tags']):
        theirs = tokenizer(words, is_split_into_words=True, truncation=True, max_length=24)
        assert row['input_ids'] == theirs['input_ids'] and len(row['labels']) == len(row['input_ids'])
        expected, seen = [], set()
        for word in theirs.word_ids():
            expected.append(-100 if word is None or word in seen else tags[word])
            seen.add(word)
        assert row['labels'] == expected

def test_token_labels_are_padded_with_the_ignored_index(tokenizer):
    rows = list(encode(load_tokens('ner-tweets')['test'].select(range(5)), tokenizer))
    batch = Collator(tokenizer, pad_to_multiple_of=8)(rows)
    n = batch['input_ids'].shape[1]
    assert n % 8 == 0 and batch['labels'].dtype == torch.long
    for labels, row, special in zip(batch['labels'].tolist(), rows, batch['is_special'].tolist()):
        assert labels == row['labels'] + [-100]*(n - row['length'])
        assert all(l == -100 for l, s in zip(labels, special) if s)
    assert set(model_inputs(batch)) == {'input_ids', 'attention_mask', 'token_type_ids'}


def test_the_copy_and_reorder_language_follows_its_grammar():
    data = copy_reorder(300, seed=3)
    words = {w: kind for kind, ws in texts_module._lexicon.items() for w in ws if kind != 'syllable'}
    kind = lambda w: words.get(w, 'name' if w[0].isupper() else w)
    def phrase(left):
        "Return the first phrase of the source words `left`, its translation, and the following words"
        if kind(left[0]) == 'name': return left[:1], left[:1], left[1:]
        k = [kind(w) for w in left].index('noun')
        return left[:k + 1], [left[k], *left[1:k], left[0]], left[k + 1:]
    for source, target in zip(data['text'], data['target_text']):
        _, subject, left = phrase(source.split())
        verb, left = left[0], left[1:]
        _, thing, left = phrase(left)
        place = []
        if left[0] != '.':
            _, place, rest = phrase(left[1:])
            place, left = [*place, left[0]], rest
        assert kind(verb) == 'verb' and left == ['.'] and target.split() == [*subject, *thing, *place, verb, '.']
    assert len({*data['text']}) == 300
    assert data['text'] == copy_reorder(300, seed=3)['text'] != copy_reorder(300)['text']

def test_generated_pairs_are_split_without_overlap_and_the_same_every_time():
    data = load_pairs('copy-reorder')
    assert [len(part) for part in data.values()] == [3200, 400, 400]
    assert len({t for part in data.values() for t in part['text']}) == 4000
    assert fingerprint(data) == fingerprint(load_pairs('copy-reorder'))
    assert data_task(data) == 'seq2seq'
    assert data['train'].info.dataset_name == 'copy-reorder'
    assert {*subset(data, 50)['train']['text']} < {*subset(data, 80)['train']['text']}

@pytest.mark.parametrize('kind', ['csv', 'frame', 'dictionaries', 'named columns'])
def test_custom_pairs_load_from_every_source(kind, tmp_path):
    f = pd.DataFrame(dict(text=[f'one {i}' for i in range(20)], target_text=[f'eins {i}' for i in range(20)]))
    f.to_csv(tmp_path/'f.csv', index=False)
    nested = Dataset.from_dict(dict(translation=[dict(en=a, de=b) for a, b in zip(f['text'], f['target_text'])]))
    source, arguments = {'csv': (tmp_path/'f.csv', {}), 'frame': (f, {}),
                         'dictionaries': (nested, dict(text='translation.en', target_text='translation.de')),
                         'named columns': (f.rename(columns=dict(text='a.b', target_text='c')),
                                           dict(text='a.b', target_text='c'))}[kind]
    assert fingerprint(load_pairs(source, **arguments)) == fingerprint(load_pairs(f))

@pytest.mark.parametrize('arguments,error,reason', [
    (dict(source=frame()), ValueError, "target_text='target_text': train has no such column; available: text, label"),
    (dict(source=pd.DataFrame(dict(text=['a', 'b'], target_text=['c', ' ']))), ValueError,
     r"column 'target_text' is empty in 1 row of train .first: row 1"),
    (dict(source=pd.DataFrame(dict(t=[dict(en='a'), dict(de='b')])), text='t.en', target_text='t.en'), ValueError,
     r"column 't' has no 'en' in 1 row of train .first: row 1"),
    (dict(source='help-en-xx'), FileNotFoundError,
     "'help-en-xx' requires Debian packages that were not found in .*libreoffice-help-xx; .* or use 'copy-reorder'")])
def test_invalid_pairs_raise(arguments, error, reason, monkeypatch, tmp_path):
    monkeypatch.setattr(texts_module, '_help_folder', tmp_path/'nothing here')
    with pytest.raises(error, match=reason) as e: load_pairs(**arguments)
    one_sentence(e)

def test_help_pages_are_paired_by_page_and_paragraph(tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, '_help_folder', tmp_path)
    key = ('<span id="x" class="switchinline"><span hidden="true" id="MAC1" class="MAC"><b>Command</b></span><span '
           'hidden="true" id="d1">{}</span></span>')
    pages = {('en-US', 'a'): [('hd_id1', 'Insert'), ('par_id2', f'Press {key.format("Ctrl")}+F&amp;'),
                              ('par_id3', 'OK'), ('par_id4', 'Only here'), ('par_id5', ' ')],
             ('pt-BR', 'a'): [('hd_id1', 'Inserir'), ('par_id2', f'Prima {key.format("Ctrl")}+F&amp;'),
                              ('par_id3', 'OK'), ('par_id5', 'Vazio')],
             ('en-US', 'b'): [('hd_id1', 'Delete')] + [(f'par_id{i}', f'Text {i}') for i in range(20)],
             ('pt-BR', 'b'): [('hd_id1', 'Eliminar')] + [(f'par_id{i}', f'Texto {i}') for i in range(20)]}
    for (language, page), paragraphs in pages.items():
        path = tmp_path/language/'text'/'sub'/f'{page}.html'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('<p class="no-id">Menu</p>' + ''.join(f'<p id="{id}" class="x"\n dir="auto">{text}</p>'
                                                              for id, text in paragraphs), encoding='utf-8')
    data = load_pairs('help-en-pt-br')
    assert {(row['text'], row['target_text']) for part in data.values() for row in part} == {
        ('Insert', 'Inserir'), ('Press Ctrl+F&', 'Prima Ctrl+F&'), ('Delete', 'Eliminar'),
        *((f'Text {i}', f'Texto {i}') for i in range(20))}

def test_targets_are_labels_and_truncated_pairs_count_once(tokenizer):
    pairs = pd.DataFrame(dict(text=['word '*30, 'short', 'word '*30, 'short'],
                              target_text=['long '*40, 'long '*20, 'short', 'short']))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        rows = encode(Dataset.from_pandas(pairs), tokenizer, max_length=16)
    said = [str(w.message) for w in caught if 'texts longer than' in str(w.message)]
    assert said == ['texts longer than 16 tokens were truncated (by at most 26 tokens): 3 of 4']
    assert [len(row['labels']) for row in rows] == [16, 16, 3, 3]
    for row, target in zip(rows, pairs['target_text']):
        assert row['labels'] == tokenizer(text_target=target, truncation=True, max_length=16)['input_ids']

@pytest.mark.parametrize('task,source,expected', [
    ('masked_lm', 'text', None), ('replaced_token_detection', 'scores', None), ('masked_lm', 'words', None),
    ('replaced_token_detection', 'pairs', None),
    ('classification', 'text', 1), ('regression', 'scores', .5), ('token_classification', 'words', [-100, 0, 1, -100]),
    ('seq2seq', 'pairs', 'ids')])
def test_rows_have_the_labels_of_their_task(task, source, expected, tokenizer):
    data = dict(text=load_text(frame()), scores=load_text(frame().assign(label=[.5, 1.]*10)),
                words=load_tokens(tagged(tags=['O', 'B'])),
                pairs=load_pairs(pd.DataFrame(dict(text=['a b']*20, target_text=['c d']*20))))[source]['train'].select(
        [1])
    row = encode(data, tokenizer, task=task)[0]
    assert ('labels' in row) == (expected is not None)
    if expected == 'ids': expected = tokenizer('c d')['input_ids']
    if expected == 1: expected = data['label'][0]
    if expected == .5: expected = data['label'][0]
    if expected is not None: assert row['labels'] == expected

@pytest.mark.parametrize('task,made_for', [('regression', 'classification'), ('token_classification', 'classification'),
                                           ('seq2seq', 'classification')])
def test_task_that_does_not_match_the_columns_raises(task, made_for, tokenizer):
    with pytest.raises(ValueError,
                       match=f"task='{task}' does not support data with the columns text, label, which are for "
                       f"{made_for}") as e:
        encode(load_text(frame()), tokenizer, task=task)
    one_sentence(e)
    with pytest.raises(ValueError, match='task must be one of classification, multi_label_classification, regression'):
        encode(load_text(frame()), tokenizer, task='parsing')

def test_scores_become_a_batch_of_float32(tokenizer):
    batch = Collator(tokenizer)(list(encode(load_text('sts-b')['test'].select(range(3)), tokenizer)))
    assert batch['labels'].dtype == torch.float32
    assert batch['labels'].tolist() == pytest.approx([2.5, 3.6, 5.])
    assert batch['segments'].max() == 1


def translation_rows(tokenizer):
    pairs = Dataset.from_dict(dict(text=['ab c', 'a', 'abc'], target_text=['xyz', 'x', 'x yz w']))
    return list(encode(pairs, tokenizer))

@pytest.mark.parametrize('multiple', [None, 4])
@pytest.mark.parametrize('start', [258, 257])
def test_decoder_inputs_are_labels_shifted_right(start, multiple):
    "Also if the first token is the padding token"
    tokenizer = byte_level()
    rows = translation_rows(tokenizer)
    batch = Collator(tokenizer, multiple, decoder_start=start)(rows)
    m = max(len(row['labels']) for row in rows)
    if multiple: m = (m + 3)//4*4
    for i, row in enumerate(rows):
        k = len(row['labels'])
        assert batch['labels'][i].tolist() == row['labels'] + [-100]*(m - k)
        assert batch['decoder_input_ids'][i].tolist() == [start] + row['labels'][:-1] + [258]*(m - k)
        assert batch['decoder_attention_mask'][i].tolist() == [1]*k + [0]*(m - k)
    assert {'decoder_input_ids', 'decoder_attention_mask'} < set(model_inputs(batch))
    assert 'labels' not in model_inputs(batch)

@pytest.mark.parametrize('kind', ['marian', 'bart', 't5'])
def test_decoder_inputs_match_the_shift_of_the_model(kind):
    tokenizer = byte_level(add_prefix_space=False)
    own = dict(d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2) if kind == 't5' else dict(d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)
    start = {'marian': 258, 'bart': 257, 't5': 258}[kind]
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind, **own, vocab_size=259, pad_token_id=258,
                                                                   bos_token_id=256, eos_token_id=257,
                                                                   decoder_start_token_id=start)).eval()
    batch = Collator(tokenizer, decoder_start=start)(translation_rows(tokenizer))
    with torch.no_grad():
        ours = model(**model_inputs(batch)).logits
        theirs = model(input_ids=batch['input_ids'], attention_mask=batch['attention_mask'], labels=batch['labels'])
    counted = batch['labels'] != -100
    torch.testing.assert_close(ours[counted], theirs.logits[counted])
    loss = torch.nn.functional.cross_entropy(ours[counted], batch['labels'][counted])
    torch.testing.assert_close(loss, theirs.loss)

def test_row_without_a_target_has_only_the_start_token():
    tokenizer = byte_level()
    batch = Collator(tokenizer, decoder_start=257)(list(encode_texts(['ab', 'c'], tokenizer)))
    assert batch['decoder_input_ids'].tolist() == [[257], [257]]
    assert batch['decoder_attention_mask'].tolist() == [[1], [1]]
    assert 'labels' not in batch

def test_target_texts_without_decoder_start_raise():
    tokenizer = byte_level()
    with pytest.raises(ValueError, match='the labels are target texts; pass decoder_start') as e:
        Collator(tokenizer)(translation_rows(tokenizer))
    one_sentence(e)

def test_unlabelled_lists_of_words_stay_words(tokenizer):
    row, = encode_texts([['New York', 'rains']], tokenizer)
    assert row['word_ids'] == [-1, 0, 0, 1, -1]
    with pytest.raises(ValueError, match='the text is empty in 1 row of texts'): encode_texts([['']], tokenizer)

def test_numbering_can_start_after_other_examples(tokenizer):
    assert encode(load_text(frame()), tokenizer, first_id=100)['validation']['example_id'][0] == 100 + 16
