"""The processor time of a test run, printed at its end.

`time` counts only processes that the run waits for. The server that forks workers (forked.py) outlives its tests, so
`time` leaves out its workers; the kernel counts them for the server, in /proc."""
import os
import resource
from multiprocessing import forkserver
from pathlib import Path

import pytest

of_workers = [] # (seconds of a process of pytest-xdist, seconds of its forked workers)

def of_server() -> float:
    "Return the seconds of this process's server and its ended workers; 0 without a server or /proc"
    stat = Path(f'/proc/{forkserver._forkserver._forkserver_pid}/stat')
    if not stat.exists(): return 0.
    fields = stat.read_text().rpartition(')')[2].split() # the name in brackets may contain spaces
    return sum(map(int, fields[11:15]))/os.sysconf('SC_CLK_TCK')

def of_this(*more: int) -> tuple:
    "Return the seconds of this process (with `more=RUSAGE_CHILDREN` also of those it waited for), and `of_server`"
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, *more)]
    return sum(x.ru_utime + x.ru_stime for x in parts), of_server()

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    output = getattr(session.config, 'workeroutput', None)
    if output is not None: output['processor_time'] = of_this(resource.RUSAGE_CHILDREN)

@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    of_workers.append(getattr(node, 'workeroutput', {}).get('processor_time', (0., 0.)))

def summary(parts) -> str:
    ran, forked = map(sum, zip(*parts))
    return f'processor time: {(ran + forked)/60:.1f} min (with forked workers: {forked/60:.1f} min)'

def pytest_terminal_summary(terminalreporter):
    # Processes of pytest-xdist are children that were waited for; `of_workers` has their times and those of their
    # workers.
    if not hasattr(terminalreporter.config, 'workerinput'):
        more = () if of_workers else (resource.RUSAGE_CHILDREN,)
        terminalreporter.write_line(summary([of_this(*more), *of_workers]))
