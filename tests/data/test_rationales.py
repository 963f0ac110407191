"Rationales of every published format become character spans that cover the marked words"
import json
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

from salviz.data.columns import token_rationales
from salviz.training.feed import TextFeed
from salviz.data.rationales import _merged, _rationale_sources, _rationale_spans, joined, load_rationales
from salviz.core.text import align_batch, find_words, spaced_words


def said(row):
    "Return the marked parts of a row as text"
    texts = [row['text'], row.get('text_pair')]
    return [texts[s[0]][s[1]:s[2]] if len(s) == 3 else row['text'][s[0]:s[1]] for s in row['rationale']]


def everything(data): return {row['text']: row for part in data.values() for row in part}


# HateXplain, with the features that the Hub lists

hate_features = Features(dict(id=Value('string'), rationales=Sequence(Sequence(Value('int32'))),
    post_tokens=Sequence(Value('string')),
    annotators=Sequence(dict(label=ClassLabel(names=['hatespeech', 'normal', 'offensive']), annotator_id=Value('int32'),
                             target=Sequence(Value('string'))))))

def post(i, labels, rationales, words='you are utter filth today'):
    return dict(id=f'{i}_gab', post_tokens=words.split(), rationales=rationales,
                annotators=dict(label=labels, annotator_id=[1, 2, 3], target=[['None']]*3))

posts = [post(0, [0, 0, 2], [[0, 0, 1, 1, 0], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]]), post(1, [1, 1, 1], [], 'a fine day'),
         post(2, [0, 1, 2], [[1, 0], [0, 1]], 'left out'),
         post(3, [2, 1, 2], [[1, 1], [0, 1]], 'so bad'), post(4, [0, 0, 0], [[1, 0], [1, 0], [0, 0]], 'vile stuff')]


@pytest.fixture
def hate():
    return DatasetDict({split: Dataset.from_list(posts, features=hate_features)
                        for split in ('train', 'validation', 'test')})


def test_hatexplain_has_the_majority_label_and_all_marks(hate):
    with pytest.warns(UserWarning, match='skipped rows of train whose annotators do not agree on a label: 1 of 5'):
        data = load_rationales(hate)
    assert data['train'].features['label'].names == ['hatespeech', 'normal', 'offensive']
    assert data['test'].column_names == ['text', 'label', 'rationale']
    rows = {row['text']: row for row in data['train']}
    assert [rows[t]['label'] for t in ('you are utter filth today', 'a fine day', 'so bad',
                                       'vile stuff')] == [0, 1, 2, 0]
    assert said(rows['you are utter filth today']) == ['you', 'utter filth'] and rows['a fine day']['rationale'] is None
    assert said(rows['so bad']) == ['so bad'] and said(rows['vile stuff']) == ['vile']


@pytest.mark.parametrize('annotators', ['any', 'majority', 'share'])
def test_a_normal_post_has_no_rationale_even_if_an_outvoted_annotator_marked_words(annotators):
    outvoted = [post(5, [1, 2, 1], [[0, 1]], 'so fine'), post(6, [1, 1, 0], [[1, 0], [1, 1]], 'quite fine')]
    data = Dataset.from_list([*outvoted, post(7, [0, 0, 1], [[1, 0], [1, 0]], 'vile stuff')], features=hate_features)
    rows = everything(load_rationales({name: data for name in ('train', 'validation', 'test')}, annotators=annotators))
    assert [rows[text]['label'] for text in ('so fine', 'quite fine', 'vile stuff')] == [1, 1, 0]
    assert rows['so fine']['rationale'] is None and rows['quite fine']['rationale'] is None
    assert rows['vile stuff']['rationale']


@pytest.mark.filterwarnings('ignore:left out')
def test_half_of_the_annotators_are_a_majority(hate):
    rows = {row['text']: row for row in load_rationales(hate, annotators='majority')['train']}
    assert said(rows['you are utter filth today']) == ['filth']
    assert said(rows['so bad']) == ['so bad']
    assert said(rows['vile stuff']) == ['vile']
    with pytest.raises(ValueError, match="annotators must be 'any', 'majority' or 'share', got 'all'"):
        load_rationales(hate, annotators='all')


@pytest.mark.filterwarnings('ignore:left out')
def test_fractions_of_annotators_are_one_number_per_word(hate):
    data = load_rationales(hate, annotators='share')
    rows = {row['text']: row['rationale'] for row in data['train']}
    assert np.allclose(rows['you are utter filth today'], [1/3, 0, 1/3, 2/3, 0])
    assert np.allclose(rows['vile stuff'], [2/3, 0]) and rows['so bad'] == [.5, 1.] and rows['a fine day'] is None
    assert str(data['train'].features['rationale'].feature.dtype) == 'float32'


@pytest.mark.filterwarnings('ignore:left out')
def test_hatexplain_folder_is_read_with_its_splits(tmp_path):
    names = 'hatespeech', 'normal', 'offensive'
    own = {p['id']: dict(post_id=p['id'], post_tokens=p['post_tokens'], rationales=p['rationales'],
                         annotators=[dict(label=names[x], annotator_id=1, target=['None'])
                                     for x in p['annotators']['label']]) for p in posts}
    (tmp_path/'dataset.json').write_text(json.dumps(own))
    (tmp_path/'post_id_divisions.json').write_text(json.dumps(dict(train=['0_gab', '1_gab', '2_gab'], val=['3_gab'],
                                                                   test=['4_gab'])))
    data = load_rationales(tmp_path)
    assert {k: list(v['text']) for k, v in data.items()} == dict(train=['you are utter filth today', 'a fine day'],
                                                                 validation=['so bad'], test=['vile stuff'])
    assert data['train'].features['label'].names == list(names) and said(data['train'][0]) == ['you', 'utter filth']


def test_parquet_file_of_the_published_format_is_read(tmp_path, hate):
    hate['train'].select([0, 1, 3, 4]).to_parquet(tmp_path/'train.parquet')
    data = load_rationales({split: tmp_path/'train.parquet' for split in ('train', 'validation', 'test')})
    assert said(data['train'][0]) == ['you', 'utter filth'] and data['train'][1]['rationale'] is None


def test_flags_of_wrong_length_raise(hate):
    bad = Dataset.from_list([*posts[:1], post(7, [0, 0, 0], [[1, 0]])], features=hate_features)
    with pytest.raises(ValueError,
                       match=r'the rationale cannot be read \(a rationale and post_tokens differ in length\) '
                       r'in 1 row of train \(first: row 1'):
        load_rationales(bad)


# e-SNLI

def explained(k):
    return (f'Explanation_{k},Sentence1_marked_{k},Sentence2_marked_{k},'
            f'Sentence1_Highlighted_{k},Sentence2_Highlighted_{k}')

header = f'pairID,gold_label,Sentence1,Sentence2,{explained(1)},{explained(2)},{explained(3)}'

def test_esnli_files_have_stars_around_words(tmp_path):
    smiles = ['A woman smiles at the child.,A woman is present.',
              'because,A woman *smiles* at the child.,A woman is *present.*,{},"1,2,3"',
              'because,A *woman* *smiles* at the child.,A *woman* is *present.*,{},"1"',
              'because,A woman *smiles* at the child.,A woman is present.,{},"1"']
    talk = ['"Two men, one old, talk.",They are friends.',
            'because,"Two men, one old, talk.",They are *friends.*,{},"3"',
            'because,"Two men, one old, talk.",They *are* *friends.*,{},"3"',
            'because,"Two men, one old, talk.",They are *friends.*,{},"3"']
    (tmp_path/'esnli_dev.csv').write_text(f'''{header}
1d,entailment,{','.join(smiles)}
2d,neutral,{','.join(talk)}
3d,contradiction,He sits.,He runs fast.,because,He *sits.*,He *runs*,{{}},"1",,,,,,,,,,
''')
    (tmp_path/'esnli_train_1.csv').write_text(
        f'gold_label,pairID,WorkerId,Sentence1,Sentence2,{explained(1)}\n'
        'neutral,1,A,A dog  runs.,It is late.,why,A *dog*  runs.,It is *late.*,1,2\nentailment,2,A,A cat.,An '
        'animal.,why,A *cat.*,An *animal.*,1,1\ncontradiction,3,A,Rain.,Sun.,why,*Rain.*,*Sun.*,0,0\n')
    files = dict(train=tmp_path/'esnli_train_1.csv', validation=tmp_path/'esnli_dev.csv', test=tmp_path/'esnli_dev.csv')
    data = load_rationales(files)
    assert data['train'].features['label'].names == ['contradiction', 'entailment', 'neutral']
    assert data['train'].column_names == ['text', 'text_pair', 'label', 'rationale']
    assert said(data['train'][0]) == ['dog', 'late.'] and data['train'][0]['text'] == 'A dog  runs.'
    assert [said(row) for row in data['validation'].select([0, 1])] == [['woman smiles', 'woman', 'present.'],
                                                                        ['are friends.']]
    # "He runs" is not "He runs fast."
    assert data['validation'][2]['rationale'] is None and data['validation'][2]['label'] == 0
    agreed = load_rationales(files, annotators='majority')['validation']
    assert [said(row) for row in agreed.select([0, 1])] == [['smiles', 'present.'], ['friends.']]
    shared = load_rationales(files, annotators='share')['validation']
    # A woman smiles at the child . | A woman is present .
    assert np.allclose(shared[0]['rationale'], [0, 1/3, 1, 0, 0, 0, 0, 0, 1/3, 0, 2/3, 2/3])
    assert shared[2]['rationale'] is None


def test_eraser_esnli_on_the_hub_has_tokens_and_offsets():
    rows = [dict(doc_id='1', premise=['A', 'woman', 'smiles', '.'], hypothesis=['She', 'is', 'glad'],
                 premise_evidence_span=[[1, 3]], hypothesis_evidence_span=[[2, 3]], classification='entailment'),
            dict(doc_id='2', premise=['Rain'], hypothesis=['No', 'sun'], premise_evidence_span=[],
                 hypothesis_evidence_span=[[0, 1], [1, 2]], classification='neutral')]
    data = load_rationales(DatasetDict(train=Dataset.from_list(rows), val=Dataset.from_list(rows),
                                       test=Dataset.from_list(rows)))
    assert [said(row) for row in data['validation']] == [['woman smiles', 'glad'], ['No sun']]
    assert data['train'][0]['rationale'] == [[0, 2, 14], [1, 7, 11]]
    rows[1]['premise_evidence_span'] = [[0, 5]]
    with pytest.raises(ValueError, match=r'evidence \[0, 5\) is not within the 1 tokens'):
        load_rationales(Dataset.from_list(rows))


# ERASER

def test_movie_reviews_on_the_hub_have_phrases():
    features = Features(dict(review=Value('string'), label=ClassLabel(names=['NEG', 'POS']),
                             evidences=Sequence(Value('string'))))
    rows = [dict(review='it is bad .\nvery , very bad .\n', label=0, evidences=['very bad', 'bad .', 'so bad']),
            dict(review='Fun movie\n', label=1, evidences=['Fun movie'])]
    with pytest.warns(UserWarning, match='ignored marked phrases of train that do not occur in their texts: 1'):
        data = load_rationales(DatasetDict({split: Dataset.from_list(rows, features=features)
                                            for split in ('train', 'validation', 'test')}))
    assert said(data['train'][0]) == ['bad .', 'very bad']
    assert said(data['train'][1]) == ['Fun movie']
    assert data['train'].features['label'].names == ['NEG', 'POS']


def test_multirc_on_the_hub_is_a_passage_and_a_question():
    features = Features(dict(passage=Value('string'), query_and_answer=Value('string'),
                             label=ClassLabel(names=['False', 'True']), evidences=Sequence(Value('string'))))
    rows = [dict(passage='Ann ran home .\nIt rained .', query_and_answer='Who ran ? || Ann', label=1,
                 evidences=['Ann ran home .']),
            dict(passage='Ann ran home .\nIt rained .', query_and_answer='Who ran ? || Bob', label=0,
                 evidences=['It rained .', 'Ann ran home .'])]
    data = load_rationales(DatasetDict({split: Dataset.from_list(rows, features=features)
                                        for split in ('train', 'validation', 'test')}))
    assert data['test'][0]['text_pair'] == 'Who ran ? || Ann'
    assert data['test'][0]['rationale'] == [[0, 0, 14]]
    assert said(data['test'][1]) == ['Ann ran home .\nIt rained .']


def annotation(name, label, evidences, query='What is the sentiment of this review?', **more):
    "Return an annotation in ERASER's jsonl form: evidences [(docid, start_token, end_token)], one group each"
    return dict(annotation_id=name, classification=label, query=query, query_type=None, docids=None,
                evidences=[[dict(docid=d, start_token=a, end_token=b, start_sentence=-1, end_sentence=-1, text='')]
                           for d, a, b in evidences]) | more

def written(folder, docs, rows, as_file=False):
    folder.mkdir()
    if as_file:
        (folder/'docs.jsonl').write_text(''.join(json.dumps(dict(docid=d, document=t)) + '\n' for d, t in docs.items()))
    else:
        (folder/'docs').mkdir()
        for name, text in docs.items(): (folder/'docs'/name).write_text(text, encoding='utf-8')
    for split in ('train', 'val', 'test'):
        (folder/f'{split}.jsonl').write_text(''.join(json.dumps(r) + '\n' for r in rows))
    return folder


@pytest.mark.parametrize('as_file', [False, True])
def test_eraser_folder_has_token_offsets_into_documents(tmp_path, as_file):
    docs = {'negR_1.txt': 'the plot  is thin .\n\n no\u00a0fun at all\n', 'posR_1.txt': 'great fun'}
    rows = [annotation('negR_1.txt', 'NEG', [('negR_1.txt', 3, 4), ('negR_1.txt', 5, 7)]),
            annotation('posR_1.txt', 'POS', [])]
    data = load_rationales(written(tmp_path/'movies', docs, rows, as_file))
    assert [*data] == ['train', 'validation', 'test'] and data['train'].column_names == ['text', 'label', 'rationale']
    # a token ends at a space, as in ERASER
    assert data['train'][0]['text'] == 'the plot is thin . no\u00a0fun at all'
    assert said(data['train'][0]) == ['thin', 'no\u00a0fun at']
    assert data['train'][1] == dict(text='great fun', label=1, rationale=None)  # no evidence: not annotated
    shared = load_rationales(tmp_path/'movies', annotators='share')['train'] # with one annotator, fractions are 0 or 1
    assert shared[0]['rationale'] == [0, 0, 0, 1, 0, 1, 1, 1, 0] and shared[1]['rationale'] is None


def test_different_queries_become_second_texts(tmp_path):
    docs = dict(doc='Ann ran home . It rained .', other='Bob slept .')
    rows = [annotation('a:1', 'True', [('doc', 0, 2), ('other', 0, 1)], 'who   moved ?'),
            annotation('a:2', 'False', [('doc', 4, 6)], 'who slept ?')]
    data = load_rationales(written(tmp_path/'multirc', docs, rows))
    assert data['train'][0]['text'] == 'Ann ran home . It rained . Bob slept .'
    assert data['train'][0]['text_pair'] == 'who moved ?'
    assert said(data['train'][0]) == ['Ann ran', 'Bob'] and data['train'][0]['rationale'][0] == [0, 0, 7]
    docs = {'7.jpg#2r1n_premise': 'A man sits .', '7.jpg#2r1n_hypothesis': 'A man runs .', '8_premise': 'Rain .',
            '8_hypothesis': 'It is wet .'}
    rows = [annotation('7.jpg#2r1n', 'contradiction', [('7.jpg#2r1n_hypothesis', 2, 3)], 'q1'),
            annotation('8', 'entailment', [('8_premise', 0, 1), ('8_hypothesis', 2, 3)], 'q2')]
    data = load_rationales(written(tmp_path/'esnli', docs, rows))
    assert [(r['text'], r['text_pair'], r['rationale'])
            for r in data['train']] == [('A man sits .', 'A man runs .', [[1, 6, 10]]),
                                        ('Rain .', 'It is wet .', [[0, 0, 4], [1, 6, 9]])]


def test_missing_documents_and_invalid_evidence_raise_with_their_row(tmp_path):
    good = annotation('a', 'NEG', [('a', 0, 1)])
    with pytest.raises(ValueError, match=r'the document b is missing\) in 1 row of train \(first: row 1'):
        load_rationales(written(tmp_path/'1', dict(a='x y'), [good, annotation('b', 'POS', [('b', 0, 1)])]))
    with pytest.raises(ValueError, match=r'evidence \[1, 4\) is not within the 2 tokens'):
        load_rationales(written(tmp_path/'2', dict(a='x y'), [annotation('a', 'POS', [('a', 1, 4)]), good]))
    (tmp_path/'empty').mkdir()
    with pytest.raises(ValueError, match='neither an ERASER folder'): load_rationales(tmp_path/'empty')


# custom data

def test_custom_tables_may_have_flags_spans_and_strings(tmp_path):
    frame = pd.DataFrame(dict(words=[['not', 'very', 'good'], ['fine', '!']]*10, y=['a', 'b']*10,
                              why=[[1, 0, 1], [0, 0]]*10))
    data = load_rationales(frame, text='words', label='y', rationale='why', seed=3)
    rows = everything(data)
    assert said(rows['not very good']) == ['not', 'good']
    assert rows['fine !']['rationale'] == []
    assert sum(map(len, data.values())) == 20
    frame.assign(words=[' '.join(w) for w in frame['words']],
                 why=['[[0, 3], [9, 13]]', '']*10).to_csv(tmp_path/'mine.csv', index=False)
    rows = everything(load_rationales(str(tmp_path/'mine.csv'), text='words', label='y', rationale='why'))
    assert rows['not very good']['rationale'] == [[0, 3], [9, 13]] and rows['fine !']['rationale'] is None
    features = Features(dict(text=Value('string'), text_pair=Value('string'), label=ClassLabel(names=['no', 'yes']),
                             rationale=Sequence(Value('int8'))))
    own = Dataset.from_list([dict(text='A dog.', text_pair='It barks.', label=i % 2, rationale=[0, 1, 0, 0, 1, 0])
                             for i in range(10)], features=features)
    data = load_rationales(own, text_pair='text_pair', labels=['nein', 'ja'])
    assert said(data['train'][0]) == ['dog', 'barks'] and data['train'].features['label'].names == ['nein', 'ja']


def test_splits_match_load_text_and_keep_rows_together():
    frame = pd.DataFrame(dict(text=[f'word{i} end' for i in range(40)], label=['x', 'y']*20,
                              rationale=[[[0, 4 + len(str(i))]] for i in range(40)]))
    data = load_rationales(frame, splits=(.5, .25, .25), seed=1)
    assert {k: len(v) for k, v in data.items()} == dict(train=20, validation=10, test=10)
    for row in everything(data).values():
        assert said(row) == [row['text'].split()[0]] and 'xy'[row['label']] == 'xy'[int(said(row)[0][4:]) % 2]
    assert [r['text'] for r in load_rationales(frame, splits=(.5, .25, .25),
                                               seed=1)['test']] == [r['text'] for r in data['test']]
    assert [r['text'] for r in load_rationales(frame, splits=(.5, .25, .25),
                                               seed=2)['test']] != [r['text'] for r in data['test']]


def test_probes_and_tokens_accept_the_column(tiny_bert, tiny_tokenizer):
    frame = pd.DataFrame(dict(text=['the clumsy film .', 'a fine plot']*10, label=[0, 1]*10,
                              rationale=[[[4, 10]], [0, 1, 0]]*10))
    data = load_rationales(frame)
    encoded, texts = TextFeed(tiny_bert(), tiny_tokenizer, 32).probes(data, 2)
    for row, tt in zip(encoded, texts):
        assert [w for w, x in zip(tt.word_ids.tolist(), row['rationale']) if x] == [1]*sum(tt.word_ids == 1)
    flags = token_rationales(align_batch(tiny_tokenizer, data['train']['text']), data['train']['rationale'])
    assert all(sum(f) >= 1 for f in flags)


def test_spans_and_flags_are_checked_against_their_text():
    # no span crosses the boundary between texts
    assert _rationale_spans(['a b', 'c d'], [1, 1, 0, 1]) == [[0, 0, 3], [1, 2, 3]]
    assert _rationale_spans(['a b'], np.array([[0, 1]])) == [[0, 1]] and _rationale_spans(['a'], float('nan')) is None
    for texts, rationale, message in ((['a b'], [1], 'one flag for each of the 2 words'),
                                      (['a b'], [[0, 9]], 'inside a text of 3 characters'),
                                      (['a b'], [[2, 2]], 'inside a text'),
                                      (['a', 'b'], [[0, 1]], r'\[segment, start, end\] inside texts of 1 and 1'),
                                      (['a', 'b'], [[2, 0, 1]], 'inside texts'),
                                      (['a b'], [1, 1.5], 'a list of spans, of flags'),
                                      (['a b'], [1, -.5], 'a list of spans, of flags'),
                                      (['a b'], [1, float('nan')], 'a list of spans, of flags'),
                                      (['a b'], [None, 1], 'a list of spans, of flags'),
                                      (['a b'], [1, [0, 1]], 'a list of spans, of flags')):
        with pytest.raises(ValueError, match=message): _rationale_spans(texts, rationale)


def test_fraction_of_a_word_is_the_largest_of_its_pieces():
    g = np.random.default_rng(0)
    for text in ("isn't it  good .", 'so-called "art"', 'x'):
        words, spaced = find_words(text), spaced_words(text)
        shares = g.random(len(spaced)).tolist()
        want = [max(x for (a, b), x in zip(spaced, shares) if a < end and start < b) for start, end in words]
        got = _rationale_spans([text], shares, 'share')
        if len(words) != len(spaced): assert got == want
        for threshold, how in ((0, 'any'), (.5, 'majority')):
            marked = {i for a, b in _rationale_spans([text], shares, how) for i in range(a, b) if not text[i].isspace()}
            units = spaced if len(words) != len(spaced) else words
            assert marked == {i for (a, b), x in zip(units, shares) if x > threshold for i in range(a, b)}


def test_pieces_merge_into_runs():
    text, pieces = joined(['ab', 'c', '', 'def'])
    assert [text[a:b] for a, b in pieces] == ['ab', 'c', '', 'def']
    for n in range(1, 7):
        for code in range(2**n):
            flags, (text, pieces) = [code >> i & 1 for i in range(n)], joined(['w'*(i + 1) for i in range(n)])
            marked = [any(a <= i < b for a, b in _merged(pieces, flags)) for i in range(len(text))]
            want = [False]*len(text)
            for i, (a, b) in enumerate(pieces):
                if flags[i]: want[a:b] = [True]*(b - a)
                if flags[i] and i + 1 < n and flags[i + 1]: want[b] = True
            assert marked == want


# the Hub

def test_known_names_map_to_repository_and_branch(hate):
    asked = []
    def load(repository, config, revision=None):
        asked.append((repository, config, revision))
        return DatasetDict({split: part.select([0, 1, 3, 4]) for split, part in hate.items()})
    with patch('salviz.data.texts.hub_silence', lambda *a: ''), patch('salviz.data.texts.load_dataset', load):
        data = load_rationales('hatexplain')
        load_rationales('somebody/hate', config='plain', revision='v2')
    assert asked == [('Hate-speech-CNERG/hatexplain', None, 'refs/convert/parquet'), ('somebody/hate', 'plain', 'v2')]
    assert said(data['test'][0]) == ['you', 'utter filth']
    assert data['train'].info.dataset_name == 'hatexplain'
    assert {*_rationale_sources} == {'eraser-movies', 'eraser-multirc', 'hatexplain', 'esnli'}


def test_missing_network_gives_a_short_error(monkeypatch):
    monkeypatch.setattr('salviz.data.texts.hub_silence', lambda *a: 'ConnectError: no route to host')
    with pytest.raises(ConnectionError) as e: load_rationales('eraser-movies')
    assert str(e.value) == ("'eraser-movies' (eraser-benchmark/movie_rationales) is not packaged (available by name: "
                            "eraser-movies, eraser-multirc, hatexplain, esnli) "
                            'and the Hub cannot be reached (ConnectError: no route to host); '
                            'pass the path of a local copy, or set HF_HUB_OFFLINE=1 to use a cached copy')
    monkeypatch.setattr('salviz.data.texts.hub_silence', lambda *a: 'OfflineModeIsEnabled: …')
    monkeypatch.setattr('salviz.data.texts.load_dataset',
                        lambda *a, **k: (_ for _ in ()).throw(ConnectionError('offline')))
    with pytest.raises(ConnectionError, match="'esnli' \\(niurl/eraser_esnli\\) is not in the local cache"):
        load_rationales('esnli')
    def unknown(*a): raise ValueError("the Hub has no dataset named 'x/y', or you have no access to it")
    monkeypatch.setattr('salviz.data.texts.hub_silence', unknown)
    with pytest.raises(ValueError,
                       match='available by name: eraser-movies, eraser-multirc, hatexplain, esnli; or pass a path'):
        load_rationales('x/y')
    monkeypatch.setattr('salviz.data.texts.hub_silence', lambda *a: '')
    monkeypatch.setattr('salviz.data.texts.load_dataset',
                        lambda *a, **k: (_
                                         for _ in ()).throw(
        RuntimeError('Dataset scripts are no longer supported, but found x.py')))
    with pytest.raises(ValueError, match=r"'x/y' on the Hub cannot be loaded: Dataset scripts are no longer supported"):
        load_rationales('x/y')


def test_invalid_rationale_sources_give_a_short_error(tmp_path):
    (tmp_path/'a.xlsx').write_text('')
    plain = Dataset.from_list([dict(premise='a', hypothesis='b', label=0, explanation_1='because')])
    for source, message in ((plain,
                             r'train has no column text, rationale, and its columns \(premise, hypothesis, label, '
                             r'explanation_1\) match no published rationale format'),
                            (dict(train=tmp_path/'a.xlsx'), "has the extension '.xlsx'"),
                            (str(tmp_path/'none.csv'), 'does not exist'),
                            (dict(train=3), 'a split must be a Dataset'),
                            (plain.select([]), 'the train split is empty'),
                            (pd.DataFrame(dict(text=[' ', 'a'], label=[0, 1], rationale=[None, None])),
                             'the text is empty in 1 row of train')):
        with pytest.raises((ValueError, FileNotFoundError), match=message): load_rationales(source)
