"""Leases work with machines of the same name, different clocks, full disks, disks without locks, and stalled
processes."""
import errno
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from salviz.core.leases import Lease, Leased, holder, is_held, server_time
from salviz.core.run_files import remove_checkpoint, sealed, write_whole
from salviz.core.locks import Held, RunInUse, process_start
from salviz.core.runs import Run

hour = 3600.

@pytest.fixture
def elsewhere(monkeypatch):
    "Return a function that creates a `Lease` like a process on another host"
    def make(path, **kw):
        with monkeypatch.context() as there:
            there.setattr(platform, 'node', lambda: 'elsewhere')
            return Lease(path, **kw)
    return make

def names(folder): return sorted(p.name for p in folder.iterdir())

def silence(lease): os.utime(lease.file, (0, 0))

def of_another(started, **who):
    return sealed(dict(host=platform.node(), process=os.getpid(), started=started, id='another') | who)


# Detecting live holders

boot, space, ticks = process_start(os.getpid()).replace('pid:', 'pid').split(':')
others = dict(machine=f'0-0:{space}:{ticks}', container=f'{boot}:pid:[1]:{ticks}', earlier_version=f'{boot}:{ticks}')

@pytest.mark.parametrize('started', others.values(), ids=others)
def test_hosts_of_the_same_name_are_distinguished_by_age(started, tmp_path):
    (tmp_path/'cell.1').write_text(of_another(started))
    with pytest.raises(Leased, match=f'cell is held by process {os.getpid()}'): Lease(tmp_path/'cell').__enter__()
    os.utime(tmp_path/'cell.1', (0, 0))
    with Lease(tmp_path/'cell') as late: assert names(tmp_path) == ['cell.2'] and late.before['started'] == started

def test_zombie_process_counts_as_dead(tmp_path):
    script = 'import os, sys; from salviz.core.leases import Lease; Lease(sys.argv[1])._take(); os.kill(os.getpid(), 9)'
    killed = subprocess.Popen([sys.executable, '-c', script, tmp_path/'cell'])
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    assert names(tmp_path) == ['cell.1'] and process_start(killed.pid) == ''
    with Lease(tmp_path/'cell') as late: assert late.before['process'] == killed.pid
    killed.wait()

def test_holder_is_alive_for_its_number_of_seconds(elsewhere, tmp_path):
    patient = elsewhere(tmp_path/'cell', seconds=10*hour)
    patient._take()
    now = time.time()
    os.utime(patient.file, (now - hour, now - hour))
    with pytest.raises(Leased): Lease(tmp_path/'cell', seconds=1).__enter__()

@pytest.mark.parametrize('skew', [-hour, hour])
def test_clocks_of_hosts_may_differ(skew, elsewhere, tmp_path, monkeypatch):
    there, clock = elsewhere(tmp_path/'cell'), time.time
    with there:
        monkeypatch.setattr(time, 'time', lambda: clock() + skew)
        with pytest.raises(Leased): Lease(tmp_path/'cell').__enter__()
        there.check() # setting the clock loses no lease
        silence(there)
        with Lease(tmp_path/'cell'):
            # the machine slept, and its clock was set back
            monkeypatch.setattr('salviz.core.leases._clocks', lambda: (clock() - hour, 1e9))
            with pytest.raises(Leased, match='taken over'): there.check()

def test_file_server_may_store_whole_seconds(tmp_path):
    file = tmp_path/'cell.1'
    file.write_text(of_another('x', host='elsewhere'))
    who = holder(file)
    for now in (1000, 1119.9, 1120.9): # 120 seconds, with a clock that drops fractions
        os.utime(file, (1000, 1000))
        assert is_held(file, who, int(now))
    assert not is_held(file, who, 1121)

def test_unwritable_folder_uses_the_local_clock(tmp_path, monkeypatch):
    assert abs(server_time(tmp_path) - time.time()) < 60 and not names(tmp_path)
    def touch(self, **kw): raise PermissionError(errno.EROFS, 'Read-only file system')
    monkeypatch.setattr(Path, 'touch', touch)
    monkeypatch.setattr(time, 'time', lambda: 7.)
    assert server_time(tmp_path) == 7.


# Conflicts between holders

@pytest.mark.parametrize('at', ['made', 'looked'])
def test_stalled_process_takes_no_lease_from_later_ones(at, elsewhere, tmp_path, monkeypatch):
    (tmp_path/'cell.1').write_text(of_another('x', host='elsewhere'))
    os.utime(tmp_path/'cell.1', (0, 0))
    slow, last, looks = elsewhere(tmp_path/'cell'), Lease(tmp_path/'cell'), []
    def stall(): # another process takes and releases the lease, a third one restarts the numbering
        silence(slow)
        with elsewhere(tmp_path/'cell'): pass
        last._take()
    make, files = slow._make, slow._files
    if at == 'made': monkeypatch.setattr(slow, '_make', lambda: (make(), stall()))
    def listed():
        known = files()
        looks.append(1)
        if at == 'looked' and len(looks) == 2: stall()
        return known
    monkeypatch.setattr(slow, '_files', listed)
    with pytest.raises(Leased): slow._take()
    last._renew()
    last.check()
    assert names(tmp_path) == [last.file.name]

def test_lease_of_the_tenth_dead_holder_is_taken_over(tmp_path):
    for n in (9, 10):
        (tmp_path/f'cell.{n}').write_text(of_another('x', host='elsewhere'))
        os.utime(tmp_path/f'cell.{n}', (0, 0))
    with Lease(tmp_path/'cell'): assert names(tmp_path) == ['cell.11']

def test_error_has_the_full_name_of_a_lease(tmp_path):
    with Lease(tmp_path/'A.p=0.5.seed=1'), pytest.raises(Leased, match=r'^A\.p=0\.5\.seed=1 is held by'):
        Lease(tmp_path/'A.p=0.5.seed=1').__enter__()

@pytest.mark.parametrize('name', ['a[0-9]', 'ä ö', '漢字', "it's", 'a.1', '*'])
def test_a_lease_may_have_any_name_that_a_file_may_have(name, tmp_path):
    with Lease(tmp_path/'a'), Lease(tmp_path/name), pytest.raises(Leased): Lease(tmp_path/name).__enter__()
    assert not names(tmp_path)

race = '''
import os, random, sys, time
from salviz.core.leases import Lease, Leased
folder, held = sys.argv[1], 0
print('ready', flush=True)
while not os.path.exists(folder + '/go'): pass
for _ in range(200):
    try:
        with Lease(folder + '/cell'):
            os.mkdir(folder + '/here') # fails if another process holds the lease
            held += 1
            if random.random() < .2: time.sleep(.001)
            os.rmdir(folder + '/here')
    except Leased: pass
    time.sleep(random.random()*.002)
print(held)
'''

def test_two_processes_never_get_the_same_lease_in_200_tries(tmp_path):
    words = [sys.executable, '-c', race, tmp_path]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [p.stdout.readline() for p in both] == ['ready\n'] * 2
    (tmp_path/'go').touch()
    held = [int(p.communicate(timeout=120)[0]) for p in both]
    assert [p.returncode for p in both] == [0, 0] and min(held) > 0 and names(tmp_path) == ['go']


# Disks

def failing(code):
    def fail(*args, **kw): raise OSError(code, os.strerror(code))
    return fail

def test_full_disk_leaves_no_lease_without_a_holder(tmp_path, monkeypatch):
    opened = Path.open
    class Full:
        def __init__(self, file): self.file = opened(file, 'xb')
        def __enter__(self): return self
        def __exit__(self, *_): self.file.close()
        write = staticmethod(failing(errno.ENOSPC))
    def open_full(self, mode='r', **kw): return Full(self) if mode == 'xb' else opened(self, mode, **kw)
    with monkeypatch.context() as full:
        full.setattr(Path, 'open', open_full)
        with pytest.raises(OSError, match='No space left'): Lease(tmp_path/'cell').__enter__()
    assert not names(tmp_path)
    with Lease(tmp_path/'cell'): pass

@pytest.mark.parametrize('where,what', [('os', 'utime'), ('pathlib.Path', 'read_bytes'), ('os', 'listdir')])
def test_temporary_server_failure_loses_no_lease(where, what, tmp_path, monkeypatch):
    with Lease(tmp_path/'cell') as mine:
        then = mine._renewed
        with monkeypatch.context() as broken:
            broken.setattr(f'{where}.{what}', failing(errno.EIO))
            mine._renew()
            mine.check()
            assert mine._renewed == then
            mine._renewed = then[0] - 130, then[1] - 130
            with pytest.raises(Leased): mine.check()

no_locks = [errno.ENOLCK, errno.EOPNOTSUPP]

@pytest.mark.parametrize('code', no_locks, ids=lambda code: errno.errorcode[code])
def test_without_disk_locks_the_note_locks_a_run(code, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, 'flock', failing(code))
    held = Held(tmp_path)
    with pytest.raises(RunInUse, match=f'is in use by process {os.getpid()} on'): Held(tmp_path)
    held.release()
    held.release()
    note = json.loads(sealed(held.who)) if held.who else {}
    assert not note and not held.note.exists()
    Held(tmp_path).release()
    file = os.stat(tmp_path/'.lock').st_ino
    held.note.write_text(of_another(others['machine'], since='2026', file=file))
    with pytest.raises(RunInUse, match=f'still training; if it is not, remove {held.note}'): Held(tmp_path)

def test_locks_decide_between_hosts_of_the_same_name(tmp_path):
    held = Held(tmp_path)
    file = held.who['file']
    held.note.write_text(of_another(others['container'], since='2026', file=file))
    with pytest.raises(RunInUse, match='is in use by process'): Held(tmp_path)
    held.release()
    Held(tmp_path).release() # as after a restart


# Under a lease

def test_lease_takes_precedence_over_the_lock(elsewhere, tmp_path):
    place = tmp_path/'run'
    place.mkdir()
    stalled, mine = elsewhere(tmp_path/'cell', covers=[place]), Lease(tmp_path/'cell', covers=[place])
    with stalled:
        first = Held(place)
        with pytest.raises(RunInUse, match='is in use by process'): self_alone(place)
        silence(stalled)
        with mine:
            second = Held(place)
            first.release() # the stalled process continues
            assert second.note.exists() and second._noted()['lease'] == mine.who['id']
            second.release()
    assert names(place) == ['.lock']

def self_alone(place):
    "Lock `place` in a process without a lease"
    script = 'import sys; from salviz.core.locks import Held; Held(sys.argv[1])'
    done = subprocess.run([sys.executable, '-c', script, place], capture_output=True, text=True)
    if done.returncode: raise RunInUse(done.stderr)

def test_training_without_a_lease_is_not_taken_over(tmp_path):
    held = Held(tmp_path)
    with Lease(tmp_path/'cell', covers=[tmp_path]), pytest.raises(RunInUse): Held(tmp_path)
    held.release()

def test_writing_requires_the_covering_lease(tmp_path):
    run = Run.create(tmp_path/'run', {})
    run.log(dict(step=1, loss=1.))
    (run.path/'checkpoints'/'checkpoint-1').mkdir(parents=True)
    (tmp_path/'locks').mkdir()
    with Lease(tmp_path/'locks'/'cell', seconds=-1, covers=[run.path, tmp_path/'cell.json']) as mine:
        run.log(dict(step=2, loss=1.))
        mine.file.unlink()
        before = {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob('*')}
        acts = [lambda: run.log(dict(step=3, loss=1.)), lambda: run.set_state(error='x'), lambda: run.finish(),
                lambda: run.supersede(1), lambda: remove_checkpoint(run.path/'checkpoints'/'checkpoint-1'),
                lambda: write_whole(tmp_path/'cell.json', b'x')]
        for act in acts:
            with pytest.raises(Leased, match='taken over'): act()
        assert {p: p.read_bytes() if p.is_file() else None for p in tmp_path.rglob('*')} == before
        write_whole(tmp_path/'cell.json2', b'x') # this file is not covered
    run.log(dict(step=3, loss=1.))
