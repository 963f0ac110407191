"""Notebooks, scripts and workers in processes that are forked from one that has torch and transformers loaded, which
saves each of them about eight seconds.
What needs a fresh interpreter stays with subprocess: what an import brings, what is read from the environment at an
import, how an interpreter ends."""
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

# jsonschema, which nbformat imports, builds grammars for formats that no notebook uses; two seconds in each process
sys.modules.setdefault('rfc3987_syntax', None)

heavy = ['forked', 'torch', 'transformers', 'transformers.trainer', 'datasets', 'sklearn.metrics', 'matplotlib.figure',
         'salviz.training.live', 'salviz.analysis.model_maps', 'nbdev.test', 'execnb.shell', 'preloaded']

def cheaply():
    """Leave out what costs time in every test and shows nothing:
    - the garbage collector, which transformers calls after a training, passes over everything that was imported;
    - no test cuts the power, so files are not synced (but a file to be synced must be open);
    - `datasets` computes a fingerprint of every new table, for a cache on disk that tables in memory do not use;
    - a PDF's fonts keep layout tables, although its glyphs are placed already
    Once is enough for a process and those forked from it: collecting what was imported takes half a second."""
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
    "Start the process from which others are forked unless it runs already; it has to find `preloaded` in this folder"
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
    "Start method of `multiprocessing` that forks from the process that has `heavy` loaded"
    Process = Worker

def context():
    server = Context()
    server.set_forkserver_preload(heavy)
    return server

@contextlib.contextmanager
def in_place_of_spawn(start=None):
    "Inside, what asks `multiprocessing` for 'spawn' gets the start method `start` (default: that of `context`)"
    contexts = multiprocessing.context._concrete_contexts
    spawn, contexts['spawn'] = contexts['spawn'], start or context()
    try: yield
    finally: contexts['spawn'] = spawn

def work(act, args, said, env, cwd, record):
    """In the forked process: end with the status that `act` returns or raises; what it prints goes into the files
    `said` and `said`.err"""
    os.environ.update(env)
    os.environ['TMPDIR'] = tempfile.tempdir = tempfile.mkdtemp() # whatever it leaves there goes with it
    for stream, name in ((1, said), (2, f'{said}.err')):
        with open(name, 'w') as f: os.dup2(f.fileno(), stream)
    if cwd: os.chdir(cwd)
    cheaply()
    from arithmetic import chosen # here, since it brings torch: whoever only asks for a process needs none
    noted = traced.begin(record)
    try:
        with chosen(), in_place_of_spawn(multiprocessing.get_context('fork')): status = act(*args)
    except SystemExit as e: status = e.code
    except BaseException: traceback.print_exc(); status = 1
    noted()
    for stream in (sys.stdout, sys.stderr): stream.flush()
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(status or 0) # whatever it has left running

def begin(act, *args, said, env={}, cwd=None):
    "The process that does `act(*args)`; `act` is a function of a module that a new process finds"
    process = context().Process(target=work, args=(act, args, str(said), env, cwd and str(cwd), traced.new_record()))
    process.start()
    return process

def cells(notebook, slow):
    "Runs the cells of a notebook; 1 if one of them fails or gives something else than what is kept below it"
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
    """The exit status of the cells of the notebook `path`, run as nbdev-test does, those with `#| slow` only if `slow`;
    in the file `said` stand what they print, the error that ends them, and which of the kept outputs are stale"""
    process = begin(cells, str(path), slow, said=said)
    process.join()
    Path(said).write_text(Path(said).read_text() + Path(f'{said}.err').read_text())
    return process.exitcode

def run(source, *argv, name='-c', env={}, cwd=None):
    """Like `subprocess.run([sys.executable, '-c', source, *argv])`: returncode, stdout and stderr. `name` is what it
    finds in sys.argv[0]"""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder)/'said'
        process = begin(code, source, [name, *map(str, argv)], said=said, env=env, cwd=cwd)
        process.join()
        return SimpleNamespace(returncode=process.exitcode, stdout=said.read_text(),
                               stderr=Path(f'{said}.err').read_text())
