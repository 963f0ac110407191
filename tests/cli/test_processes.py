"`salviz train --processes`: started commands, errors before the start, and one run of two processes."
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from salviz.cli import main
from salviz.core.runs import Run

def test_processes_get_the_same_arguments_and_share_the_threads(monkeypatch):
    started = []
    def run(words, env): return started.append((words, env)) or SimpleNamespace(returncode=3)
    monkeypatch.setattr(subprocess, 'run', run)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 0)
    monkeypatch.setattr(torch, 'get_num_threads', lambda: 6)
    words = ['train', '--train-size', '16', '--processes', '2', '--out', 'a folder']
    assert main(words) == 3
    (command, env), = started
    assert command[0] == sys.executable and command[-len(words) - 1:] == ['salviz', *words]
    assert command[command.index('--nproc_per_node') + 1] == '2' and env['ACCELERATE_USE_CPU'] == 'true'
    assert env['OMP_NUM_THREADS'] == '3'

def test_invalid_arguments_raise_before_any_process_starts(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, 'run', lambda *a, **kw: pytest.fail('it was started'))
    for words, message in ((['--processes', '3'], 'cannot be divided evenly among 3 processes; use a multiple of 3'),
                           (['--processes', '2', '--data', 'nosuch.csv'], 'nosuch.csv does not exist'),
                           (['--processes', '2', '--method', 'Nosuch'], "unknown method Nosuch")):
        assert main(['train', *words]) == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    assert main(['train', '--processes', '4']) == 2 and 'this machine has only 2 GPUs' in capsys.readouterr().err

@pytest.mark.slow
def test_two_processes_write_one_run(tmp_path):
    words = ['train', '--train-size', '16', '--epochs', '1', '--batch-size', '8', '--probes', '1', '--processes', '2']
    done = subprocess.run([sys.executable, '-m', 'salviz', *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    run, = (Run(p) for p in (tmp_path/'runs').iterdir())
    assert run.finished and run.steps[-1] == 2 and [r['step'] for r in run.train_rows] == [1, 2]
    assert done.stdout.count('finished') == 1
