"""One cell of every study, trained again, gives the shipped numbers. On the processor and with the versions of the row
they are the same to the digits that a row keeps. Elsewhere the last digits differ, and training makes more of them: a
number may differ by four deviations of the seeds of its arm, as far as runs lie apart that differ in luck alone."""
import statistics

import pytest

from salviz.claims.plans import plans
from salviz.claims.registry import claims
from salviz.claims.reproduce import asked_claims, asked_plans
from salviz.claims.rows import identity, row_of
from test_shipped import lines, machines, number

effects = [e for c in claims.values() for e in c.effects]

def deciding(study, arm):
    "The measures of an arm that verdicts follow from"
    return sorted({t.measure for e in effects for t in e.terms if (t.study, t.arm) == (study, arm)})

def trained(study, cell, name, folder):
    "(row, machine) of a cell that is trained here, after the run that it starts from"
    start = plans[name].starts and plans[name].starts(cell.method, dict(cell.settings), cell.seed)
    if start:
        other, method, settings, seed = start
        before = study if other == name else plans[other].study(folder, 'small')
        first = next(c for c in before.cells if (c.method, dict(c.settings), c.seed) == (method, settings, seed))
        assert before.run_cell(first) == 'finished'
    assert study.run_cell(cell) == 'finished'
    return row_of(study, cell, name, 'small')

@pytest.mark.slow
@pytest.mark.numeric
@pytest.mark.parametrize('name', asked_plans(asked_claims()))
def test_a_cell_that_is_trained_again_gives_the_shipped_numbers(name, tmp_path):
    study = plans[name].study(tmp_path, 'small')
    cell = study.cells[-1] # a method's, where a study has one
    again, machine = trained(study, cell, name, tmp_path)
    shipped = next(e for e in lines if identity(e) == identity(again))
    same = machine == machines[shipped['machine']]
    for measure in deciding(name, cell.method):
        x, known = number(again, measure), number(shipped, measure)
        if same: assert x == pytest.approx(known, rel=1e-6), measure
        else:
            alike = [number(e, measure) for e in lines if (e['study'], e['method'], e['settings'])
                     == (name, cell.method, shipped['settings'])]
            assert abs(x - known) <= 4*statistics.stdev(alike) + 1e-6, measure
