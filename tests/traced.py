"""Dependencies of a test for `make check` besides the lines that its own process runs: lines of forked processes, and
files without Python code. pytest-testmon, which selects the tests that a change affects, records the rest."""
import json
import sys
import tempfile
from pathlib import Path

root = Path(__file__).resolve().parents[1]
_folder = [] # with the lines of forked processes; created on first use

def _coverage():
    "Return the recorder of the lines of the running test, None if nothing is recorded"
    testmon = sys.modules.get('testmon.testmon_core')
    return testmon.TestmonCollector.coverage_stack[-1] if testmon and testmon.TestmonCollector.coverage_stack else None

def depends_on(files):
    "Record that the running test depends on the whole of each of `files`"
    if recorded := _coverage(): recorded.get_data().add_lines({str(file): {1} for file in files})

def new_record():
    "Return the file in which a process that is about to be forked records its lines; None if nothing is recorded"
    if not _coverage(): return None
    if not _folder: _folder.append(tempfile.TemporaryDirectory(prefix='salviz-lines-'))
    with tempfile.NamedTemporaryFile(dir=_folder[0].name, suffix='.part', delete=False) as file: return file.name

def begin(record):
    "Record the lines of this project that run from here on in a forked process, for the file `record` of `new_record`"
    if not record: return lambda: None
    from coverage import Coverage
    running = Coverage(data_file=None, config_file=False, include=[str(root/'salviz'/'*'), str(root/'tests'/'*')])
    running.start()
    def end():
        running.stop()
        data = running.get_data()
        lines = {file: data.lines(file) for file in data.measured_files()}
        Path(record).write_text(json.dumps(lines))
        Path(record).rename(Path(record).with_suffix('.json')) # complete, or not at all
    return end

def collect():
    "Record that the running test depends on the lines that its forked processes have run"
    if not _folder: return
    for file in Path(_folder[0].name).glob('*.json'):
        _coverage().get_data().add_lines(json.loads(file.read_text()))
        file.unlink()
