"The runs of the course: complete, small, and of models that have learned their task."
from importlib.resources import files
from pathlib import Path

import pytest

from salviz.course.material import _sentence_set, course_probes, course_run, course_runs, course_sentences
from salviz.core.text import find_words

def joined(labels): return ''.join(labels).replace('[CLS]', '').replace('[SEP]', '').replace(' ', '').lower()

shipped = Path(str(files('salviz.course')/'runs'))

def test_all_of_it_takes_less_than_four_and_a_half_megabytes():
    stored = {f'{name}.tar.xz' for name in course_runs} | {'sentences.json', 'tables.json'}
    assert {p.name for p in shipped.iterdir()} == stored
    assert sum(p.stat().st_size for p in shipped.iterdir()) < 4.5e6

@pytest.mark.parametrize('name', course_runs)
def test_a_run_is_complete_with_common_sentences_and_a_trained_model(name):
    run = course_run(name)
    assert run.finished and run.check() == [] and run.checkpoints == {}
    assert [joined(run.snapshot(0, p).labels) for p in run.probes] == [joined([text]) for text in course_probes]
    assert len(run.steps) == (12 if name == 'base' else 4) and run.best_step == run.last_step == run.steps[-1]
    assert list(run.snapshot(-1, 0).classes) == ['negative', 'positive']
    assert run.scores('test')['accuracy'] > .7 # the largest class is 52 %

@pytest.mark.parametrize('name', course_runs[1:])
def test_a_run_starts_where_the_base_ends(name):
    for probe in range(6):
        start, end = course_run(name).snapshot(0, probe), course_run('base').snapshot(-1, probe)
        assert start.arrays['probabilities'] == pytest.approx(end.arrays['probabilities'], abs=.005)

@pytest.mark.parametrize('name', course_runs)
def test_nothing_of_the_machine_that_trained_it_is_in_it(name):
    for file in course_run(name).path.rglob('*'):
        if file.is_file():
            held = file.read_bytes()
            assert not any(word in held for word in (b'/tmp', b'/work', b'/home', b'/root')), file

def test_there_are_sixty_distinct_sentences_with_ids_and_words():
    both = course_sentences('mark') + course_sentences('held')
    assert len({s['id'] for s in both}) == len({s['text'] for s in both}) == 60
    assert {s['label'] for s in both} == {0, 1} and len(_sentence_set('mark')) == 8 != _sentence_set('held')
    assert all(8 <= len(find_words(s['text'])) <= 30 for s in both)

def test_a_changed_sentence_is_a_copy():
    course_sentences()[0]['text'] = 'x'
    assert course_sentences()[0]['text'] != 'x'

def test_an_unknown_name_raises_an_error():
    with pytest.raises(ValueError, match='course_run: name'): course_run('plain')
    with pytest.raises(ValueError, match='part must be'): course_sentences('all')
