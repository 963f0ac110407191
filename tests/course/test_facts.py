"Statements of the lessons are true for the runs and tables of the course, and are read without torch."
import subprocess
import sys

import numpy as np
import pytest

from salviz.course.facts import Fact, _facts, _interval, _printed, course_tables, fact
from salviz.course.material import course_run, course_runs

@pytest.mark.parametrize('name', _facts)
def test_every_fact_is_true_for_the_packaged_data(name):
    assert _facts[name].holds()
    assert fact(name)

def test_every_lesson_has_facts():
    assert {name.split('.')[0] for name in _facts} == set('12345678')

def test_a_claim_states_whether_it_is_true_for_all_three_seeds(monkeypatch):
    def say(claim, *tables):
        monkeypatch.setattr('salviz.course.facts.course_tables', lambda: dict(zip('012', tables)))
        return str(Fact('0.x', 'x', claim=claim))
    def is_high(t): return t['a'] > 1
    assert say(is_high, dict(a=2), dict(a=3), dict(a=4)) == 'with all three seeds'
    assert say(is_high, dict(a=2), dict(a=3), dict(a=0)) == 'in this run'
    assert say(is_high, dict(a=2), dict(a=3), {}) == 'in this run' # it was not measured there
    assert say(is_high, dict(a=2), dict(a=3)) == 'in this run'

def test_a_false_claim_does_not_hold_and_a_number_that_is_none_neither():
    assert not Fact('0.x', 'x', claim=lambda t: False).holds()
    assert not Fact('0.x', 'x', value=lambda: float('nan')).holds()

def test_an_unknown_fact_raises_an_error_that_lists_its_lesson():
    message = r"unknown fact '1\.nothing'; available facts of lesson 1: 1\.verdict_start"
    with pytest.raises(ValueError, match=message): fact('1.nothing')

@pytest.mark.parametrize('x,text', [
    (.5649, '.56'), (-.001, '.00'), (-.5, '-.50'), (1., '1.00'), (10.5, '10.50'), (0., '.00'), (np.float32(.25), '.25'),
    (3, '3'), (np.int64(3), '3'), ('never', 'never')])
def test_a_number_is_printed_as_prose_has_it(x, text): assert _printed(x) == text

def test_an_interval_contains_its_mean_and_is_reproducible():
    values = np.random.default_rng(1).normal(size=50)
    mean, low, high = _interval(values)
    assert low < mean < high and mean == pytest.approx(values.mean())
    assert _interval(values) == (mean, low, high)

def test_tables_and_runs_tell_the_same():
    tables = course_tables()['0']
    for name in course_runs[1:]:
        # the table was measured in batches of another size
        assert tables['accuracy'][name] == pytest.approx(course_run(name).scores('test')['accuracy'], abs=.004)
    last = course_run('base').snapshot(-1, 2)
    assert tables['looks'][-1]['positive'] == pytest.approx(float(last.arrays['probabilities'][1]), abs=1e-4)

@pytest.mark.slow
def test_opening_facts_runs_and_sentences_costs_no_torch():
    code = '''
import sys
from salviz.course.material import course_run, course_runs, course_sentences
from salviz.course.facts import _facts
for name in course_runs: course_run(name).snapshot(-1, 0)
course_sentences(), [str(f) for f in _facts.values()]
import salviz.course.recipe
assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
