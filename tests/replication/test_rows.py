"Rows are written once, also with killed and parallel processes"
import json
import multiprocessing

import pytest

from salviz.replication.rows import identity, recorded_cells, read_rows, write_row

machine = dict(processor='one', threads=1, versions=dict(torch='2.13.0'))

def row(seed=100, method='GA', task='movie', **measures):
    return dict(study='AD', budget='small', method=method, settings=dict(task=task), seed=seed,
                measures=dict(test_score=.5, **measures), seconds=1.)

def write_some(file, seeds):
    for seed in seeds: write_row(file, row(seed), machine)

def test_processes_write_each_trial_once(tmp_path):
    file = tmp_path/'rows.jsonl'
    fork = multiprocessing.get_context('fork')
    both = [fork.Process(target=write_some, args=(file, order)) for order in (range(20), range(19, -1, -1))]
    for p in both: p.start()
    for p in both: p.join()
    assert [p.exitcode for p in both] == [0, 0]
    assert sorted(read_rows(file).seed) == list(range(20))
    kinds = [json.loads(line)['kind'] for line in file.read_text().splitlines()]
    assert kinds.count('registry') == 1 and kinds.count('machine') == 1 and kinds[0] == 'registry'

def test_an_incomplete_last_line_is_skipped_and_other_damage_raises_an_error(tmp_path):
    file = tmp_path/'rows.jsonl'
    write_some(file, (1, 2))
    with open(file, 'a') as f: f.write('{"kind": "row", "study')
    assert list(read_rows(file).seed) == [1, 2]
    write_some(file, (3,))
    assert list(read_rows(file).seed) == [1, 2, 3]
    lines = file.read_text().splitlines()
    for damaged in ('nonsense', '[]', '{"kind": "other"}'):
        file.write_text('\n'.join([*lines[:2], damaged, *lines[2:]]) + '\n')
        with pytest.raises(ValueError, match='line 3 is not an entry of kind registry'): read_rows(file)

def test_a_changed_registry_is_written_before_its_rows(tmp_path, monkeypatch):
    file = tmp_path/'rows.jsonl'
    write_some(file, (1,))
    first = read_rows(file).attrs['registries'][0]
    monkeypatch.setattr('salviz.replication.rows.registry_description', lambda budget: {**first, 'effects': {}})
    write_some(file, (2, 3))
    assert [len(r['effects']) > 0 for r in read_rows(file).attrs['registries']] == [True, False]

def test_rows_name_their_machine(tmp_path):
    file = tmp_path/'rows.jsonl'
    write_row(file, row(1), machine)
    write_row(file, row(2), dict(machine, processor='two'))
    write_row(file, row(3), machine)
    rows = read_rows(file)
    assert list(rows.processor) == ['one', 'two', 'one'] and len(rows.attrs['machines']) == 2

def test_the_order_of_settings_does_not_matter_but_the_budget_does():
    one = dict(row(), settings=dict(a=1, b=2))
    assert identity(one) == identity(dict(one, settings=dict(b=2, a=1), measures={}, seconds=9.))
    assert identity(one) != identity(dict(one, budget='quick'))

def test_no_file_has_no_rows(tmp_path):
    assert len(read_rows(tmp_path/'none.jsonl')) == 0 and recorded_cells(tmp_path/'none.jsonl') == set()
