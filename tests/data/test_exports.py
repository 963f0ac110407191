"""Exports of Label Studio and Doccano as rationales: spans in characters, several annotators, names of spans"""
import json

import pytest

from salviz.data.rationales import load_rationales

splits = dict(splits=(.5, .25, .25))


def region(start, end, text, name='evidence'):
    "Return a marked span as Label Studio writes it"
    return dict(id='Dx_aB91ISN', type='labels', from_name='label', to_name='text', origin='manual',
                value=dict(start=start, end=end, text=text, labels=[name]))


def choice(name):
    "Return a chosen class as Label Studio writes it"
    return dict(id='q1', type='choices', from_name='sentiment', to_name='text', value=dict(choices=[name]))


def annotation(person, *result, cancelled=False):
    "Return one person's annotation of a task"
    return dict(id=100 + person, completed_by=person, was_cancelled=cancelled, ground_truth=False,
                created_at='2021-03-09T22:16:08.728353Z', lead_time=4.3, result=list(result))


def task(number, text, *annotations, **data):
    "Return a task of the JSON export"
    return dict(id=number, data=dict(text=text, **data), annotations=list(annotations), predictions=[], drafts=[],
                meta={}, project=1, total_annotations=len(annotations), cancelled_annotations=0)


def tasks():
    "Return four tasks: two annotators, none, an empty annotation, and an emoji before the span"
    return [task(1, 'A charming film.', annotation(1, choice('positive'), region(2, 10, 'charming')),
                 annotation(2, choice('positive'), region(2, 15, 'charming film')),
                 annotation(3, choice('positive'), cancelled=True)),
            task(2, 'Not annotated yet.', sentiment='negative'),
            task(3, 'Dull.', annotation(1, choice('negative'))),
            task(4, '📉📉 so dull', annotation(1, choice('negative'), region(8, 12, 'dull'),
                                              region(5, 7, 'so', 'intensifier')))]


def written(path, rows, lines=False):
    "Write `rows` as JSON or JSONL and return the path"
    path.write_text('\n'.join(map(json.dumps, rows)) if lines else json.dumps(rows), encoding='utf-8')
    return path


def by_text(data):
    "Return {text: example} of all splits"
    return {row['text']: row for part in data.values() for row in part}


def test_label_studio_tasks_have_classes_and_character_spans(tmp_path):
    data = load_rationales(written(tmp_path/'project-1.json', tasks()), label='sentiment', **splits)
    rows = by_text(data)
    assert data['train'].features['label'].names == ['negative', 'positive']
    assert rows['A charming film.']['rationale'] == [[2, 15]]
    assert rows['Not annotated yet.']['rationale'] is None
    assert rows['Dull.']['rationale'] == []
    assert rows['📉📉 so dull']['rationale'] == [[3, 5], [6, 10]]


@pytest.mark.parametrize('annotators, expected', [('any', [[2, 15]]), ('majority', [[2, 15]]),
                                                  ('share', [0, 1, .5, 0])])
def test_spans_of_several_annotators_are_combined(tmp_path, annotators, expected):
    file = written(tmp_path/'project-1.json', tasks())
    rows = by_text(load_rationales(file, label='sentiment', annotators=annotators, **splits))
    assert rows['A charming film.']['rationale'] == expected


def test_span_labels_choose_the_rationale(tmp_path):
    file = written(tmp_path/'project-1.json', tasks())
    rows = by_text(load_rationales(file, label='sentiment', span_labels=['intensifier'], **splits))
    assert rows['📉📉 so dull']['rationale'] == [[3, 5]]
    assert rows['A charming film.']['rationale'] == []
    with pytest.raises(ValueError, match='span_labels applies only to exports'):
        import pandas as pd
        load_rationales(pd.DataFrame(dict(text=['a', 'b'], label=[0, 1], rationale=[[1], [0]])), span_labels=['x'])


@pytest.mark.parametrize('bad, message', [
    (region(2, 99, 'charming'), r"the span from 2 to 99 is 'charming film.' in the text but 'charming' in the export"),
    (dict(region(2, 99, ''), value=dict(start=2, end=99, labels=['evidence'])),
     r'inside a text of 16 characters, got \[2, 99\]'),
    (region(11, 15, 'movie'), "is 'film' in the text but 'movie' in the export")])
def test_spans_beyond_the_text_are_reported_with_their_row(tmp_path, bad, message):
    rows = [task(0, 'Fine.', annotation(1, choice('positive'))),
            task(1, 'A charming film.', annotation(1, choice('positive'), bad))]
    with pytest.raises(ValueError, match=message + r'.*row 1, counted from 0'):
        load_rationales(written(tmp_path/'export.json', rows), label='sentiment')


def test_label_studio_needs_a_class(tmp_path):
    rows = [task(1, 'A charming film.', annotation(1, region(2, 10, 'charming')))]
    with pytest.raises(ValueError, match='no field contains a class; pass the name of the field with label='):
        load_rationales(written(tmp_path/'export.json', rows))


def test_json_min_has_one_row_per_annotation(tmp_path):
    def row(person, start, end, text):
        return dict(id=1, text='A charming film.', annotator=person, annotation_id=10 + person, sentiment='positive',
                    label=[dict(start=start, end=end, text=text, labels=['evidence'])],
                    created_at='2021-03-09T22:16:08Z', lead_time=2.)
    others = [dict(row(1, 0, 1, text[0]), id=i, text=text, sentiment='negative', label=[]) for i, text in
              enumerate(('Dull.', 'Bad.', 'Long.'), 2)]
    file = written(tmp_path/'min.json', [row(1, 2, 10, 'charming'), row(2, 11, 15, 'film'), *others])
    rows = by_text(load_rationales(file, label='sentiment', annotators='share', **splits))
    assert len(rows) == 4 and rows['A charming film.']['rationale'] == [0, .5, .5, 0]


doccano = [dict(id=1, text='A charming film.', label=[[2, 10, 'cue'], [11, 15, 'target']], sentiment='positive',
                Comments=[]),
           dict(id=2, text='Dull.', label=[], sentiment='negative', Comments=[]),
           dict(id=3, text='Never dull.', label=[[0, 10, 'cue']], sentiment='positive', Comments=[]),
           dict(id=4, text='Bad.', label=[[0, 3, 'cue']], sentiment='negative', Comments=[])]


def test_doccano_lines_have_spans_in_their_label(tmp_path):
    file = written(tmp_path/'all.jsonl', doccano, lines=True)
    rows = by_text(load_rationales(file, label='sentiment', **splits))
    assert rows['A charming film.']['rationale'] == [[2, 10], [11, 15]]
    assert rows['Dull.']['rationale'] == []
    assert by_text(load_rationales(file, label='sentiment', span_labels=['cue'], **splits))['A charming film.'][
        'rationale'] == [[2, 10]]
    with pytest.raises(ValueError, match='no field contains a class'): load_rationales(file)


def test_doccano_has_one_file_per_annotator(tmp_path):
    other = [dict(row, label=[[2, 15, 'cue']] if row['id'] == 1 else row['label']) for row in doccano]
    files = [written(tmp_path/f'{name}.jsonl', rows, lines=True) for name, rows in (('anna', doccano), ('ben', other))]
    rows = by_text(load_rationales(files, label='sentiment', annotators='share', span_labels=['cue'], **splits))
    assert len(rows) == 4 and rows['A charming film.']['rationale'] == [0, 1, .5, 0]


@pytest.mark.parametrize('column, marks', [
    ('entities', [dict(id=0, label='cue', start_offset=2, end_offset=10), dict(id=1, label='cue', start_offset=11,
                                                                               end_offset=15)]),
    ('annotations', [dict(id=1, label=4, start_offset=2, end_offset=10, user=1),
                     dict(id=2, label=4, start_offset=11, end_offset=15, user=2)])])
def test_older_and_relation_exports_of_doccano_are_read(tmp_path, column, marks):
    rows = [dict(id=i, text='A charming film.' if not i else f'Dull {i}.', cats=['positive' if i % 2 else 'negative'],
                 relations=[], **{column: marks if not i else []}) for i in range(4)]
    file = written(tmp_path/'all.jsonl', rows, lines=True)
    read = by_text(load_rationales(file, annotators='share', **splits))['A charming film.']
    assert read['rationale'] == ([0, 1, 1, 0] if column == 'entities' else [0, .5, .5, 0])


def test_a_json_file_of_another_kind_is_rejected(tmp_path):
    for content, message in (('{"a": 1}', 'must contain a list of objects'), ('[{"a":', 'is not JSON')):
        (tmp_path/'x.json').write_text(content)
        with pytest.raises(ValueError, match=message): load_rationales(tmp_path/'x.json')
