"""Notebooks, scripts and workers in processes that are forked from one with torch and transformers loaded, which saves
about eight seconds per process.
Tests that need a fresh interpreter use subprocess: tests of what an import loads, of what it reads from the
environment, and of how an interpreter ends."""
import contextlib
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import traceback
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace

import traced

# jsonschema, which nbformat imports, builds grammars for unused formats; this takes two seconds per process
sys.modules.setdefault('rfc3987_syntax', None)

heavy = ['forked', 'torch', 'transformers', 'transformers.trainer', 'datasets', 'sklearn.metrics', 'matplotlib.figure',
         'salviz.training.live', 'salviz.analysis.model_maps', 'nbdev.test', 'execnb.shell', 'preloaded']

def cheaply():
    """Switch off work that takes time in every test and has no effect on results:
    - the garbage collector, which transformers calls after a training, passes over everything that was imported;
    - no test cuts the power, so files are not synced (but a file to be synced must be open);
    - `datasets` computes a fingerprint of every new table, for a cache on disk that tables in memory do not use;
    - a PDF's fonts keep layout tables, although its glyphs are placed already
    One call suffices for a process and those forked from it, because a collection takes half a second."""
    if os.fsync is os.fstat: return
    import datasets.arrow_dataset
    from datasets.fingerprint import generate_random_fingerprint
    from fontTools.subset import Options
    gc.collect()
    gc.freeze()
    os.fsync = os.fstat
    datasets.arrow_dataset.generate_fingerprint = lambda data: generate_random_fingerprint()
    layout = ['GSUB', 'GPOS', 'GDEF', 'kern'] # half a second for each font of a PDF, whose glyphs are placed already
    Options._drop_tables_default = [*Options._drop_tables_default, *layout]

def begin_server():
    "Start the process from which others are forked, unless it is running; it must find `preloaded` in this folder"
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try: forkserver.ensure_running()
    finally:
        del os.environ['PYTHONPATH']
        if before is not None: os.environ['PYTHONPATH'] = before

class Worker(multiprocessing.context.ForkServerProcess):
    "A forked process with the environment and the threads of a spawned one"
    def start(self):
        self.environment = dict(os.environ)
        begin_server()
        super().start()

    def run(self):
        import torch
        os.environ.clear()
        os.environ.update(self.environment)
        tempfile.tempdir = None
        if 'OMP_NUM_THREADS' in os.environ: torch.set_num_threads(int(os.environ['OMP_NUM_THREADS']))
        super().run()

class Context(multiprocessing.context.ForkServerContext):
    "A start method of `multiprocessing` that forks from the process with `heavy` loaded"
    Process = Worker

def context():
    server = Context()
    server.set_forkserver_preload(heavy)
    return server

@contextlib.contextmanager
def in_place_of_spawn(start=None):
    "Replace the start method 'spawn' of `multiprocessing` inside the block by `start` (default: that of `context`)"
    contexts = multiprocessing.context._concrete_contexts
    spawn, contexts['spawn'] = contexts['spawn'], start or context()
    try: yield
    finally: contexts['spawn'] = spawn

def work(act, args, said, env, cwd, record):
    """Run `act` in the forked process and exit with the status that it returns or raises; output goes to the files
    `said` and `said`.err"""
    os.environ.update(env)
    os.environ['TMPDIR'] = tempfile.tempdir = tempfile.mkdtemp() # files left there are removed with it
    for stream, name in ((1, said), (2, f'{said}.err')):
        with open(name, 'w') as f: os.dup2(f.fileno(), stream)
    if cwd: os.chdir(cwd)
    cheaply()
    from arithmetic import chosen # here because it imports torch, which a process that only starts others does not need
    noted = traced.begin(record)
    try:
        with chosen(), in_place_of_spawn(multiprocessing.get_context('fork')): status = act(*args)
    except SystemExit as e: status = e.code
    except BaseException: traceback.print_exc(); status = 1
    noted()
    for stream in (sys.stdout, sys.stderr): stream.flush()
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(status or 0) # even if threads are still running

def begin(act, *args, said, env={}, cwd=None):
    "Start a process that calls `act(*args)`, and return it; `act` is a function of a module that a new process finds"
    process = context().Process(target=work, args=(act, args, str(said), env, cwd and str(cwd), traced.new_record()))
    process.start()
    return process

def cells(notebook, slow):
    "Run the cells of a notebook; return 1 if a cell fails or its output differs from the stored one, else 0"
    import outputs
    ran = outputs.executed(notebook, slow)
    if ran is None: return 1
    different = outputs.stale(notebook, ran, slow)
    print(*different, sep='\n')
    return int(bool(different))

def code(source, argv):
    sys.argv = argv
    exec(compile(source, argv[0], 'exec'), dict(__name__='__main__'))

def notebook(path, said, slow=True):
    """Run the notebook `path` as nbdev-test does, cells with `#| slow` only if `slow`; return the exit status. The file
    `said` gets the output, the error and the list of stale outputs"""
    process = begin(cells, str(path), slow, said=said)
    process.join()
    Path(said).write_text(Path(said).read_text() + Path(f'{said}.err').read_text())
    return process.exitcode

def run(source, *argv, name='-c', env={}, cwd=None):
    "Run like `subprocess.run([sys.executable, '-c', source, *argv])` in a forked process; `name` is sys.argv[0]"
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder)/'said'
        process = begin(code, source, [name, *map(str, argv)], said=said, env=env, cwd=cwd)
        process.join()
        return SimpleNamespace(returncode=process.exitcode, stdout=said.read_text(),
                               stderr=Path(f'{said}.err').read_text())
