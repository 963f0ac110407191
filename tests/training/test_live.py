"Training in a worker thread: it equals training without a thread, and can be paused, stopped and resumed."
import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from transformers import AutoModelForSequenceClassification

from salviz.training.live import Pace, Training, start_training
from salviz.methods import ADDrop, AttentionGuidance, FineTuning, SaliencyGuided, SalLM
from salviz.methods.base import Term
from salviz.core.runs import Run
from salviz.training.trainer import NonFiniteLoss, load_model, train

quick = dict(epochs=2, batch_size=8, learning_rate=1e-3, probes=3, snapshots=6) # 10 steps, 5 an epoch
methods = dict(plain=FineTuning, sallm=lambda: SalLM(steps=2), guided=lambda: SaliencyGuided(mask_fraction=.4),
               ad_drop=lambda: ADDrop(p=.4, q=.5), guidance=lambda: AttentionGuidance(head_fraction=.5))

@pytest.fixture
def start(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "Return a function that starts a training; trainings that still run are stopped at the end of the test"
    begun = []
    def begin(method=None, model=None, run_dir='run', **kw):
        begun.append(start_training(model or tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/run_dir,
                                    **{**quick, **kw}))
        return begun[-1]
    yield begin
    for t in begun: t.stop(); t._left.wait(300)

@pytest.fixture
def block(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "Return a function that trains without a thread"
    def begin(method=None, model=None, run_dir='whole', **kw):
        return train(model or tiny_bert(), tiny_tokenizer, tiny_data, method, run_dir=tmp_path/run_dir, progress=False,
                     **{**quick, **kw})
    return begin

class Gated(FineTuning):
    "Plain fine-tuning that calls functions when given steps begin, in the worker thread"
    def __init__(self, **at): self.at, self.begun = at, []
    def args(self): return {}
    @property
    def name(self): return 'FineTuning'
    def plan(self, model, batch, progress):
        if model.training: self.begun.append(progress.step)
        if model.training and f'step{progress.step}' in self.at: self.at[f'step{progress.step}']()
        return super().plan(model, batch, progress)

def reached(training, state):
    "Wait until `training` is in `state`"
    is_reached = threading.Event()
    def check(t):
        if t.state == state: is_reached.set()
    unsubscribe = training.subscribe(check)
    check(training)
    assert is_reached.wait(300), training
    unsubscribe()

def when(step, act):
    "Return a subscriber that calls `act(training)` once after `step`"
    done = []
    def check(t):
        if t.step == step and not done: done.append(True); act(t)
    return check

def same(a, b):
    "Return whether two runs have recorded the same"
    rows = [[{k: v for k, v in r.items() if 'seconds' not in k} for r in run.metrics if r['kind'] != 'record']
            for run in (a, b)]
    assert rows[0] == rows[1] and a.recorded == b.recorded and a.best_step == b.best_step
    for s in a.snapshots():
        other = b.snapshot(s.step, s.probe)
        assert s.losses == other.losses and s.arrays.keys() == other.arrays.keys()
        for k, x in s.arrays.items():
            assert np.array_equal(x, other.arrays[k], equal_nan=x.dtype.kind == 'f'), (s.step, k)
    return True

def weights(model): return torch.cat([p.detach().flatten() for p in model.parameters()])

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', methods)
def test_worker_trains_the_same_run_paused_or_not(name, start, block, tiny_bert):
    one, other, third = tiny_bert(), tiny_bert(), tiny_bert()
    whole = block(methods[name](), one)
    assert same(whole, start(methods[name](), other, 'thread').wait())
    held = start(methods[name](), third, 'held')
    for step in (3, 5): held.subscribe(when(step, lambda t: t.pause())) # within an epoch, and at its end
    for _ in range(2):
        reached(held, 'paused')
        torch.rand(3, generator=torch.Generator().manual_seed(1)) # a separate generator has no effect
        held.resume()
    assert same(whole, held.wait()) and held.step == held.total == 10
    assert torch.equal(weights(one), weights(other)) and torch.equal(weights(one), weights(third))

@pytest.mark.sample(1)
@pytest.mark.parametrize('name,at', [*((name, 7) for name in methods), ('plain', 1), ('plain', 5), ('ad_drop', 9)])
def test_stopped_run_resumes_to_the_same_result(name, at, start, block, tiny_bert):
    whole, model = block(methods[name]()), tiny_bert()
    training = start(methods[name](), model)
    training.subscribe(when(at, lambda t: t.stop()))
    run = training.wait()
    assert training.state == 'stopped'
    assert training.step == run.last_step == run.state['stopped'] == at
    assert 'error' not in run.state
    assert not run.finished and max(run.checkpoints) == at and training.error is None and training.seconds_left is None
    assert not model.training and torch.equal(weights(model), weights(load_model(run, 'last')[0]))
    again = start(methods[name](), tiny_bert(seed=9), resume=True)
    assert again.step == at
    assert same(whole, again.wait()) and again.run.finished and 'stopped' not in again.run.state

@pytest.mark.slow
def test_train_can_resume_a_stopped_run(start, block, tiny_bert):
    whole, model = block(), tiny_bert()
    training = start(model=model)
    training.subscribe(when(3, lambda t: t.stop()))
    training.wait()
    assert same(whole, block(model=model, run_dir='run', resume=True))

steps = dict(eval_strategy='steps', save_strategy='steps', eval_steps=4, save_steps=4)
odd = dict(accumulated=(7, dict(batch_size=4, gradient_accumulation=2)),
           weights_only=(7, dict(args=dict(save_only_model=True))),
           weights_only_epoch=(10, dict(args=dict(save_only_model=True))), by_steps=(7, dict(args=steps)),
           by_steps_epoch=(10, dict(args=steps)),
           early=(7, dict(early_stopping=3, epochs=20, learning_rate=1e-6, snapshots=2)), keep_one=(7, dict(keep=1)))

@pytest.mark.slow
@pytest.mark.parametrize('name',
                         [pytest.param(o, marks=pytest.mark.slow) if o in ('weights_only', 'by_steps', 'keep_one')
                          else o for o in odd])
def test_stopping_and_resuming_has_no_effect_with_other_settings(name, start, block):
    at, settings = odd[name]
    settings = {'epochs': 3, **settings}
    whole = block(**settings)
    training = start(**settings)
    training.subscribe(when(at, lambda t: t.stop()))
    assert training.wait().state['stopped'] == at
    assert same(whole, start(resume=True, **settings).wait())

def test_paused_training_takes_no_steps(start):
    method = Gated()
    training = start(method)
    training.subscribe(when(4, lambda t: t.pause()))
    reached(training, 'paused')
    with pytest.raises(TimeoutError, match='it is paused at step 4 of 10'): training.wait(timeout=.3)
    assert training.step == training.run.last_step == 4 and method.begun == [0, 1, 2, 3]
    training.resume()
    assert training.wait().finished and method.begun == list(range(10))

def test_stop_ends_a_pause(start):
    training = start()
    training.subscribe(when(4, lambda t: t.pause()))
    reached(training, 'paused')
    training.stop()
    assert training.wait().state['stopped'] == 4 and training.state == 'stopped'

def test_pause_at_the_end_of_an_epoch_waits_between_two_epochs(start):
    "It may also wait in the evaluation; after a stop there, the evaluation is completed before the checkpoint"
    training = start()
    training.subscribe(when(5, lambda t: t.pause()))
    reached(training, 'paused')
    training.stop()
    run = training.wait()
    assert run.state['stopped'] == 5 and [r['step'] for r in run.eval_rows] == [5]

@pytest.mark.slow
def test_pause_and_stop_work_before_the_first_step(start, tiny_bert, block):
    model = tiny_bert()
    training = start(model=model)
    training.pause()
    reached(training, 'paused')
    assert training.step == 0 and training.run.steps == [] and training.run.train_rows == []
    training.stop()
    run = training.wait()
    assert training.state == 'stopped' and run.state['stopped'] == 0 and not run.checkpoints
    assert same(block(), start(model=model, resume=True).wait())

class Prepares(FineTuning):
    "Runs the model many times before training begins"
    def __init__(self, passes, begun): self.passes, self.begun = passes, begun
    def args(self): return {}
    def prepare(self, trainer):
        x = trainer.first_batch()
        for _ in range(self.passes):
            trainer.model(input_ids=x['input_ids'])
            self.begun.set()

def test_preparing_method_can_be_paused_and_stopped(start):
    begun = threading.Event()
    training = start(Prepares(10**9, begun))
    assert begun.wait(300) and training.stage == 'preparing'
    training.pause()
    reached(training, 'paused')
    training.stop()
    assert training.wait().state['stopped'] == 0 and training.state == 'stopped' and training.stage == ''
    assert not torch.nn.modules.module._global_forward_pre_hooks

@pytest.mark.slow
def test_training_of_a_teacher_stops_and_resumes(start, block, tiny_bert):
    "SalLM's teacher trains within the student's training: a stop reaches it, and it resumes from its last step"
    whole, model = block(SalLM(steps=2)), tiny_bert()
    training = start(SalLM(steps=2), model)
    rows, home = threading.Event(), training.run.path
    def watch():
        while not training._ended.is_set():
            if (home/'teacher').exists() and (home/'teacher'/'metrics.jsonl').exists() and Run(
                home/'teacher').last_step > 1:
                training.stop(); rows.set(); return
    watcher = threading.Thread(target=watch); watcher.start(); watcher.join()
    run = training.wait()
    assert rows.is_set() and training.state == 'stopped' and training.step == 0
    teacher = Run(home/'teacher')
    if not teacher.finished: assert max(teacher.checkpoints) == teacher.state['stopped'] == teacher.last_step > 0
    assert same(whole, start(SalLM(steps=2), model, resume=True).wait())
    assert same(Run(whole.path/'teacher'), Run(home/'teacher'))

def test_stop_in_the_last_step_lets_the_run_finish(start):
    training = start()
    training.subscribe(when(10, lambda t: t.stop()))
    assert training.wait().finished and training.state == 'finished' and training.seconds_left == 0

def test_repeated_or_late_requests_have_no_effect(start):
    training = start()
    training.subscribe(when(2, lambda t: (t.pause(), t.pause())))
    reached(training, 'paused')
    training.pause(); assert training.state == 'paused'
    training.resume(); training.resume()
    assert training.state == 'running'
    training.stop(); training.stop(); training.pause(); training.resume()
    assert training.state in ('stopping', 'stopped')
    run = training.wait()
    for act in (training.pause, training.resume, training.stop): act()
    assert training.state == 'stopped' and training.wait().path == run.path

def test_worker_reports_every_state_in_order(start):
    heard, went = [], threading.Event()
    training = start(Gated(step0=lambda: went.wait(300)))
    training.subscribe(lambda t: heard.append((t.state, t.step, threading.current_thread().name)))
    assert training.state in ('waiting', 'running') and training.seconds_left is None
    training.pause(); assert training.state == 'pausing'
    training.resume(); assert training.state in ('waiting', 'running')
    training.subscribe(when(2, lambda t: t.pause()))
    went.set()
    reached(training, 'paused')
    training.resume()
    training.wait()
    assert {name for *_, name in heard} == {'salviz training run'}
    states = [(state, step) for state, step, _ in heard if step]
    assert states == [('running', 1), ('running', 2), ('paused', 2), ('running', 2),
                      *(('running', s) for s in range(3, 11)), ('finished', 10)]

@pytest.mark.slow
def test_failing_subscriber_does_not_stop_training(start):
    training, heard = start(), []
    def bad(t): raise ValueError('no')
    training.subscribe(bad)
    end = training.subscribe(lambda t: heard.append(t.step))
    training.subscribe(when(3, lambda t: end()))
    assert training.wait().finished and 3 in heard and max(heard) <= 3
    assert {str(e) for e in training.subscriber_errors} == {'no'}
    with pytest.raises(RuntimeError, match='a subscriber in the worker thread cannot call'):
        deadly = start(run_dir='deadly')
        deadly.subscribe(lambda t: t.wait())
        deadly.wait()
        raise deadly.subscriber_errors[0]

class Sick(FineTuning):
    "A method whose loss becomes NaN in the third step"
    def terms(self, outputs, maps, plan, batch, progress):
        return dict(sick=Term(outputs['main'].logits.sum(-1) * (float('nan') if progress.step > 1 else 0)))

@pytest.mark.slow
def test_failure_is_stored_and_raised_by_wait_and_await(start):
    training = start(Sick())
    for _ in range(2):
        with pytest.raises(NonFiniteLoss, match='sick loss became nan in step 3') as e: training.wait()
        names = [f.name for f in traceback.extract_tb(e.value.__traceback__)]
        assert '_refuse_non_finite' in names and 'fit' in names and len(names) < 40
    assert training.state == 'failed'
    assert training.error is e.value
    assert training.step == 2
    assert training.seconds_left is None
    assert 'sick' in training.run.state['error'] and not training.run.finished and 'sick' in repr(training)
    async def main(): await training
    with pytest.raises(NonFiniteLoss): asyncio.run(main())
    assert start(run_dir='next').wait().finished # the lock was released

def test_failure_while_preparing_the_method_is_stored(start):
    class Fails(FineTuning):
        def prepare(self, trainer): raise OSError('no teacher')
    training = start(Fails())
    with pytest.raises(OSError, match='no teacher'): training.wait()
    assert training.state == 'failed' and training.run.state['error'] == 'OSError: no teacher'

@pytest.mark.slow
def test_await_does_not_block_the_event_loop(start):
    async def main():
        training, ticks = start(), 0
        task = asyncio.ensure_future(training._awaited())
        while not task.done(): await asyncio.sleep(0); ticks += 1
        assert (await training) is (await task) # also when it has ended
        return training, ticks
    training, ticks = asyncio.run(main())
    assert training.state == 'finished' and ticks > 10

def test_cancelling_await_stops_the_training(start):
    async def main():
        training, loop = start(), asyncio.get_running_loop()
        task = asyncio.ensure_future(training._awaited())
        training.subscribe(when(3, lambda t: loop.call_soon_threadsafe(task.cancel)))
        with pytest.raises(asyncio.CancelledError): await task
        return training
    training = asyncio.run(main())
    assert training.state in ('stopped', 'finished') and training._left.is_set() # finished if the loop was too late
    assert training.run.finished or training.run.state['stopped'] >= 3

def is_waiting() -> bool:
    "Return whether the main thread blocks in `Training.wait`"
    frame, codes = sys._current_frames()[threading.main_thread().ident], set()
    while frame: codes.add(frame.f_code); frame = frame.f_back
    return {Training.wait.__code__, threading.Event.wait.__code__} <= codes

@pytest.fixture
def interruptible():
    "Install the handler of KeyboardInterrupt, since a shell's & makes background processes ignore SIGINT"
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, was)

def test_interrupting_wait_stops_the_training(start, interruptible):
    held = threading.Event()
    def hold(): # wait for the main thread, so that most steps are left even on a busy machine
        end = time.monotonic() + 300
        while not is_waiting() and time.monotonic() < end: time.sleep(.01)
        assert is_waiting()
        held.set()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    training = start(Gated(step2=hold), epochs=30)
    with pytest.raises(KeyboardInterrupt): training.wait()
    assert held.is_set() and training.state == 'stopped' and training._left.is_set()

def test_second_training_in_the_process_raises(start, block, tiny_bert, tmp_path):
    model = tiny_bert()
    training = start(model=model)
    training.pause()
    for other in (model, tiny_bert()):
        with pytest.raises(RuntimeError, match='a training run in .*run is in progress in this process'):
            start(model=other, run_dir='second')
        with pytest.raises(RuntimeError, match='random numbers'): block(model=other, run_dir='second')
    assert not (tmp_path/'second').exists()
    training.stop(); training.wait()
    assert block(run_dir='second').finished

def test_invalid_arguments_raise_at_the_call(start, block, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match='epochs must be a positive integer'): start(epochs=0)
    with pytest.raises(ValueError, match='progress is an argument of train'): start(progress=True)
    with pytest.raises(TypeError, match='epoch'): start(epoch=1)
    with pytest.raises(FileNotFoundError): start(resume=True)
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(ValueError, match='one of several processes'): start()
    monkeypatch.delenv('WORLD_SIZE')
    assert not (tmp_path/'run').exists() and block().finished

@pytest.mark.slow
def test_run_can_be_read_while_it_is_written(start):
    training, seen = start(snapshots=11), []
    while not training._left.is_set():
        run = Run(training.run.path)
        assert run.damaged == []
        seen.append([s.step for s in run.snapshots(probe=0)] if 0 in run.probes else [])
    assert training.wait().steps == list(range(11))
    assert all(s == list(range(len(s))) for s in seen)
    assert len({len(s) for s in seen}) > 2

@pytest.mark.slow
def test_worker_prints_nothing(start, capfd):
    capfd.readouterr()
    start(SalLM(steps=2)).wait()
    out, err = capfd.readouterr()
    assert out == '' and 'step/s' not in err and '%|' not in err

@pytest.mark.slow
def test_seconds_left_decrease_and_exclude_pauses(start):
    training, left = start(), []
    training.subscribe(lambda t: left.append(t.seconds_left))
    training.subscribe(when(3, lambda t: t.pause()))
    reached(training, 'paused')
    with pytest.raises(TimeoutError): training.wait(timeout=1.)
    training.resume()
    training.wait()
    known = [x for x in left if x is not None]
    assert known[-1] == 0 and all(x >= 0 for x in known) and training.waited >= 1.
    spent = [seconds for times in training._pace.times.values() for seconds in times]
    assert set(training._pace.times) == {'step', 'recording', 'evaluation', 'save'} and training.waited not in spent

def test_pace_sums_the_remaining_tasks():
    pace = Pace()
    for what, n, seconds in (('step', 1, 2.), ('recording', 1, 5.), ('evaluation', 10, 1.), ('save', 1, 3.)):
        pace.add(what, n, seconds)
    assert pace.seconds(dict(step=4, recording=2, evaluation=20, save=1)) == pytest.approx(8 + 10 + 2 + 3)

ends = '''
import datasets, sys, threading
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from salviz.training.live import start_training
folder, pause = sys.argv[1:]
model = AutoModelForSequenceClassification.from_pretrained(folder + '/model')
tok, data = AutoTokenizer.from_pretrained(folder + '/model'), datasets.load_from_disk(folder + '/data')
training, there = start_training(model, tok, data, run_dir=folder + '/run', **SETTINGS), threading.Event()
def look(t):
    if t.step >= 3: t.pause() if pause == 'paused' else there.set()
    if t.state == 'paused': there.set()
training.subscribe(look)
there.wait()
'''

@pytest.mark.slow
@pytest.mark.parametrize('pause', ['paused', 'running'])
def test_exiting_interpreter_leaves_a_run_that_can_be_resumed(pause, start, block, tmp_path, tiny_bert,
                                                              tiny_tokenizer, tiny_data):
    tiny_bert().save_pretrained(tmp_path/'model')
    tiny_tokenizer.save_pretrained(tmp_path/'model'); tiny_data.save_to_disk(tmp_path/'data')
    settings = {**quick, 'epochs': 20} # the script ends long before the training
    (tmp_path/'ends.py').write_text(ends.replace('SETTINGS', repr(settings)))
    done = subprocess.run([sys.executable, tmp_path/'ends.py', tmp_path, pause], capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0 and 'Traceback' not in done.stderr, done.stderr[-3000:]
    run = Run(tmp_path/'run')
    assert not run.finished and max(run.checkpoints) == run.last_step == run.state['stopped'] >= 3
    if pause == 'paused': assert run.state['stopped'] == 3
    def model(): return AutoModelForSequenceClassification.from_pretrained(tmp_path/'model')
    assert same(block(model=model(), epochs=20), start(model=model(), resume=True, epochs=20).wait())

@pytest.mark.slow
def test_interrupting_a_notebook_cell_that_awaits_stops_the_training(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "A kernel that sleeps in its event loop does not handle SIGINT by itself"
    tiny_bert().save_pretrained(tmp_path/'model')
    tiny_tokenizer.save_pretrained(tmp_path/'model'); tiny_data.save_to_disk(tmp_path/'data')
    code = ends.partition('there.wait()')[0].replace('SETTINGS',
                                                     repr({**quick, 'epochs': 2000})).replace(
        'sys.argv[1:]', f"{str(tmp_path)!r}, ''")
    manager, client = start_new_kernel()
    try:
        cell, errors = client.execute(code + "there.wait(); print('awaiting')\nawait training"), []
        while True:
            message = client.get_iopub_msg(timeout=300)
            if message['parent_header'].get('msg_id') != cell: continue
            if 'awaiting' in message['content'].get('text', ''): manager.interrupt_kernel()
            if message['msg_type'] == 'error': errors.append(message['content']['ename'])
            if message['content'].get('execution_state') == 'idle': break
    finally: manager.shutdown_kernel(now=True)
    run = Run(tmp_path/'run')
    assert errors in (['CancelledError'], ['KeyboardInterrupt'])
    assert run.last_step == run.state['stopped'] == max(run.checkpoints) < 10_000

@pytest.mark.slow
def test_training_can_be_created_first_and_started_later(start, block):
    method = Gated()
    t = start(method, start=False)
    t.pause(); assert (t.state, t.step, method.begun) == ('waiting', 0, [])
    t.start()
    assert same(t.wait(300), block()) and t.state == 'finished'

@pytest.mark.slow
def test_training_that_was_stopped_before_its_start_can_be_resumed(start, block, tiny_bert):
    t = start(start=False)
    t.stop()
    assert t.wait(300).last_step == 0 and t.state == 'stopped' and not t.run.finished and t.run.state['stopped'] == 0
    assert same(start(model=tiny_bert(), resume=True).wait(300), block())
