"Runs a notebook as nbdev-test does, in a process forked from one that has torch and transformers in it already: that saves some seconds for each of them."
import multiprocessing
import os
import shutil
import sys
import tempfile

heavy = ['torch', 'transformers', 'transformers.trainer', 'datasets', 'sklearn.metrics', 'matplotlib.figure', 'salviz.live', 'salviz.explore_model', 'nbdev.test', 'execnb.shell']

def work(notebook, said):
    os.environ['TMPDIR'] = tempfile.tempdir = tempfile.mkdtemp() # whatever it leaves there goes with it
    with open(said, 'w') as f:
        for stream in (1, 2): os.dup2(f.fileno(), stream)
        from nbdev.test import test_nb
        ok, _ = test_nb(notebook, do_print=True)
    for stream in (sys.stdout, sys.stderr): stream.flush()
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(not ok) # whatever a notebook has left running

def run(notebook, said):
    "The exit status of `notebook`'s cells; what they print, and the error that ends them, stands in the file `said`"
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(heavy)
    process = context.Process(target=work, args=(str(notebook), str(said)))
    process.start(); process.join()
    return process.exitcode
