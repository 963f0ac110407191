"The explorer: what it sends and when, its errors, its images, its buttons, and saved notebooks without dead views."
import asyncio
import base64
import dataclasses
import gc
import io
import json
import subprocess
import sys
import threading
import time
import tracemalloc

import ipywidgets
import matplotlib.image
import nbformat
import numpy as np
import pytest

import invented
from browser import browser, new_page, page, send, settled # noqa: F401 (fixtures)
from salviz.explorer.transfer import ThrottledWorker, TransferPlan, _evenly_spaced, thin_rows
from salviz.explorer.assets import panel_names
from salviz.explorer.notebook_cleanup import strip_views
from salviz.explorer.view import ExplorerView
from salviz.core.evidence import largest_saliency
from salviz.explorer.widget import Controls, Explorer, ExplorerOptions, _in_words
from salviz.explorer.payload import split_frame
from salviz.core.runs import Run
from salviz.views.maps import telling_entry

view_mime = 'application/vnd.jupyter.widget-view+json'

@pytest.fixture
def run(tmp_path): return invented.run(tmp_path/'run')

def held(view):
    """Return {(run, probe, step): bytes} as a page that is opened now receives it; check that every slot agrees with
    the index"""
    state = view.get_state()
    found = {tuple(e[:3]): state[f'slot_{i}'] for i, e in enumerate(state['index']) if e}
    for key, data in found.items():
        header = split_frame(data)[0]
        assert key == (header['run'], header['probe'], header['step'])
    return found

def meta(view): return json.loads(view.get_state()['meta'])

class Messages(list):
    "The messages that `view` sends from now on"
    def __init__(self, view):
        def send(msg, buffers=None):
            self.append((time.monotonic(),
                         msg['state'] | {path[0]: bytes(b) for path, b in zip(msg['buffer_paths'], buffers or [])}))
        view._send = send

# --- the worker that sends

def test_a_burst_becomes_few_rounds_and_the_last_one_sees_the_newest():
    seen, now = [], 0
    worker = ThrottledWorker(lambda: seen.append((time.monotonic(), now)), rate=20)
    for now in range(1, 3000): worker.call()
    worker.flush()
    assert seen[-1][1] == 2999 and len(seen) <= 5
    gaps = np.diff([t for t, _ in seen])
    assert (gaps > .045).all()

def test_the_worker_rests_without_a_thread_and_starts_again():
    rounds = []
    worker = ThrottledWorker(lambda: rounds.append(threading.current_thread().name), rate=1000)
    for i in range(3):
        worker.call(); worker.flush()
        assert worker._thread is None and len(rounds) == i + 1
    assert set(rounds) == {'salviz-worker'}

def test_an_error_in_a_round_is_stored_and_later_rounds_run():
    calls = []
    def act(): calls.append(1); len(calls) == 1 and 1/0
    worker = ThrottledWorker(act, rate=1000)
    worker.call()
    with pytest.raises(ZeroDivisionError): worker.flush()
    worker.call(); worker.flush()
    assert len(calls) == 2

# --- plans

def test_thinning_selects_the_first_the_last_and_evenly_spaced_steps():
    for n in (1, 2, 3, 10, 1000):
        for k in (1, 2, 3, 7, 50):
            got = _evenly_spaced(list(range(n)), k)
            assert len(got) <= k and got[-1] == n - 1 and (k < 2 or got[0] == 0) and len(got) == min(n, k)
            if k > 2 and n > k: assert np.diff(got).max() - np.diff(got).min() <= 1

@pytest.mark.parametrize('seed', range(5))
def test_a_plan_never_exceeds_its_budget_and_keeps_the_newest_in_view(seed):
    rng = np.random.default_rng(seed)
    plan, last = TransferPlan(budget=1000, most=40), {}
    plan.prioritise({(0, 2)})
    for _ in range(400):
        probe = int(rng.integers(4))
        last[probe] = last.get(probe, -1) + int(rng.integers(1, 9))
        plan.add((0, probe, last[probe]), int(rng.integers(10, 60)))
        if rng.random() < .05: plan.prioritise({(0, int(rng.integers(4)))})
        assert len(plan.planned) <= 40 and sum(plan.sizes[k] for k in plan.planned) <= 1000
        (_, shown), = plan.in_view
        if shown in last: assert (0, shown, last[shown]) in plan.planned
    assert plan.planned <= set(plan.sizes)

def test_a_single_frame_above_the_budget_is_sent():
    plan = TransferPlan(budget=10)
    plan.prioritise({(0, 0)})
    for step in range(3): plan.add((0, 0, step), 100)
    assert plan.planned == {(0, 0, 2)}

def test_rows_are_thinned_kind_by_kind():
    rows = [dict(kind='train', step=i) for i in range(50_000)] + [dict(kind='eval', step=i)
                                                                  for i in range(0, 50_000, 10_000)]
    thin = thin_rows(rows)
    assert len([r for r in thin if r['kind'] == 'train']) == 2000 and len([r for r in thin if r['kind'] == 'eval']) == 5
    assert thin[0]['step'] == 0 and max(r['step'] for r in thin) == 49_999

# --- the view

def test_a_page_that_is_opened_later_gets_everything_in_one_state(run):
    view = ExplorerView([run])
    view.settle()
    assert set(held(view)) == {(0, p, s) for p in (0, 1) for s in (0, 10, 20, 30)}
    state = view.get_state()
    kinds = [row['kind'] for row in json.loads(state['rows'])[0]]
    assert len(kinds) == 9 and kinds.count('heads') == 4 # statistics of heads at each step
    assert [p['tokens'][0] for p in meta(view)['runs'][0]['probes']] == ['[CLS]'] * 2
    assert meta(view)['shipped'] == ''

def test_the_first_frame_is_there_before_the_widget_is(run):
    view = ExplorerView([run])
    assert view.get_state()['index'][0][:3] == [0, 0, 30]

def test_frames_meta_and_index_travel_in_one_message_and_only_what_changed(run):
    view = ExplorerView([run], live=True, options=json.dumps(dict(panels=['heads'])))
    view.settle()
    sent = Messages(view)
    run.save(invented.snapshot(40, 0)); view.settle()
    (_, state), = [m for m in sent if m[1]]
    assert len(state) == 3 and {'index', 'meta'} < set(state) and max(state).startswith('slot_')

@pytest.mark.slow
def test_a_snapshot_that_is_recorded_again_replaces_the_old_one(run):
    view = ExplorerView([run], live=True)
    view.settle()
    before = held(view)[0, 0, 20]
    run.save(invented.snapshot(20, 0, seed=99)); view.settle()
    assert held(view)[0, 0, 20] != before and len(held(view)) == 8

def test_a_small_budget_prefers_the_sentence_in_view_and_counts_missing_frames(run):
    size = len(next(iter(held(ExplorerView([run])).values())))
    view = ExplorerView([run], budget=3.6*size)
    view.settle()
    assert [s for _, p, s in sorted(held(view)) if p == 0] == [0, 20, 30] and 'leaves out' in meta(view)['shipped']
    view._handle_custom_msg(dict(kind='probe', run=0, probe=1), [])
    view.settle()
    assert len([1 for _, p, _ in held(view) if p == 1]) >= 3 and len(view.get_state()['index']) <= 5
    assert sum(map(len, held(view).values())) <= 3.6*size*1.05

def test_questions_that_make_no_sense_are_passed_over(run):
    view = ExplorerView([run])
    view.settle()
    for content in (None, 'probe', {}, dict(kind='probe'), dict(kind='probe', run='0', probe=0),
                    dict(kind='probe', run=7, probe=0), dict(kind='probe', run=0, probe=77),
                    dict(kind='eval', code='1/0'), dict(kind='map', run=5, probe=0, step=0, layer=0, head=0)):
        view._handle_custom_msg(content, [])
    view.settle()
    assert len(held(view)) == 8

def test_full_maps_of_long_inputs_are_sent_for_requested_heads(tmp_path):
    long = invented.run(tmp_path/'long', probes=(0,), steps=(0, 10),
                        tokens={0: ['[CLS]', *(f'w{i}' for i in range(130)), '[SEP]']})
    view = ExplorerView([long])
    view.settle()
    arrays = lambda: {k: set(split_frame(v)[0]['arrays']) for k, v in held(view).items()}
    opened = {key: 'attention/{layer}.{head}'.format(**telling_entry(long.snapshot(key[2], 0))) for key in arrays()}
    other = next(name for name in ('attention/0.0', 'attention/0.1', 'attention/0.2') if name not in opened.values())
    assert all(opened[key] in a and other not in a for key, a in arrays().items())
    view._handle_custom_msg(dict(kind='map', run=0, probe=0, step=10, layer=0, head=int(other[-1])), [])
    view.settle()
    assert all({opened[key], other} <= a for key, a in arrays().items())

def test_two_runs_are_compared_on_the_same_sentences(run, tmp_path):
    other = invented.run(tmp_path/'other', method='SalLM', probes=(1, 5), steps=(0, 20),
                         tokens={1: invented.sentence, 5: ['[CLS]', 'else', '[SEP]']})
    view = ExplorerView([run, other])
    view.settle()
    assert {k for k in held(view) if k[0] == 1} == {(1, 1, 0), (1, 1, 20), (1, 5, 0), (1, 5, 20)}
    assert [p['matches'] for p in meta(view)['runs'][1]['probes']] == [0, None]
    assert (1, 1) in view._plan.in_view

def test_compared_runs_with_different_steps_are_written_as_a_page(run, tmp_path):
    "Each run contributes the examples and steps that it recorded"
    other = invented.run(tmp_path/'other', probes=(1, 5), steps=(0, 25))
    page = Explorer(run, compare=other)._page()
    runs = json.loads(next(text for _, name, text in page.parts if name == 'salviz-meta'))['runs']
    assert [{tuple(pair) for pair in r['recorded']} for r in runs] == \
           [{(p, s) for p in (0, 1) for s in (0, 10, 20, 30)}, {(1, 0), (1, 25), (5, 0), (5, 25)}]

@pytest.mark.slow
def test_sentences_and_steps_can_be_chosen(run):
    view = ExplorerView([run], probes=[1], steps=[0, -1], live=True)
    view.settle()
    assert set(held(view)) == {(0, 1, 0), (0, 1, 30)}
    run.save(invented.snapshot(40, 0)); view.settle()
    assert set(held(view)) == {(0, 1, 0), (0, 1, 30)}

def test_a_damaged_snapshot_is_named_and_the_rest_is_shown(run):
    file = run.path/'snapshots'/'step-00000010.probe-000.safetensors'
    data = file.read_bytes()
    file.write_bytes(data[:-8] + bytes(8*[7]))
    view = ExplorerView([Run(run.path)])
    view.settle()
    assert (0, 0, 10) not in held(view)
    assert len(held(view)) == 7
    assert 'Step 10 of example 0 cannot be read' in meta(view)['shipped']

def test_metrics_that_are_not_finite_become_null(run):
    run.log(dict(kind='train', step=31, loss=float('nan')))
    assert json.loads(ExplorerView([run]).get_state()['rows'])[0][-1]['loss'] is None

# --- live

@pytest.mark.slow
def test_two_thousand_updates_are_few_messages_the_last_is_there_and_memory_stays_flat(tmp_path):
    run = invented.run(tmp_path/'live', probes=(0,), steps=(0,), finish=False)
    view = ExplorerView([run], budget=20*len(held(ExplorerView([run]))[0, 0, 0]), live=True)
    view.settle()
    sent, found, shot = Messages(view), {}, invented.snapshot(0, 0)
    # The memory of the run's disk access does not belong to the explorer; the subscriber gets a snapshot as a run
    # returns it.
    run.snapshot = lambda step, probe=0: dataclasses.replace(shot, step=step)
    tracemalloc.start()
    start = time.monotonic()
    for step in range(1, 2001):
        run._tell(dataclasses.replace(shot, step=step))
        run._tell(dict(kind='train', step=step, loss=1.))
        if step in (500, 2000):
            view.settle()
            sent[:] = [(t, {}) for t, _ in sent] # messages that this test stores do not belong to the explorer
            gc.collect()
            found[step] = tracemalloc.get_traced_memory()[0]
    seconds = time.monotonic() - start
    tracemalloc.stop()
    assert len(sent) <= 10*seconds + 4
    assert max(held(view))[2] == 2000 and min(held(view))[2] == 0 and len(held(view)) <= 20
    assert found[2000] - found[500] < 1_000_000
    assert len(view.get_state()['index']) <= 22

def test_training_never_waits_for_the_explorer(run):
    "The subscriber takes almost no time in the training thread, even if the worker is blocked"
    view = ExplorerView([run], live=True)
    view.settle()
    act, free = view._sender.act, threading.Event()
    view._sender.act = lambda: (free.wait(20), act())
    view._sender.call()
    for step in range(200):
        view._notice(0, invented.snapshot(100 + step, 0, seed=1) if step % 50 == 0 else dict(step=step))
    free.set()
    view.settle()
    assert (0, 0, 250) in held(view)

@pytest.mark.slow
def test_frames_sent_during_a_state_request_are_sent_again(run):
    view = ExplorerView([run], live=True)
    view.settle()
    view._resend_after = None
    sent = Messages(view)
    view.get_state()
    run.save(invented.snapshot(40, 1))
    view.settle()
    with_it = [state for _, state in sent if 'slot_8' in state]
    assert len(with_it) == 2 and with_it[0]['slot_8'] == with_it[1]['slot_8']
    assert with_it[0]['index'] != with_it[1]['index'], 'the index must change, or the page would not look'

@pytest.mark.slow
def test_a_new_sentence_appears_during_training(tmp_path):
    run = invented.run(tmp_path/'live', probes=(), steps=(), finish=False)
    view = ExplorerView([run], live=True)
    assert meta(view)['runs'][0]['probes'] == [] and meta(view)['runs'][0]['live']
    run.save(invented.snapshot(0, 3)); run.save(invented.snapshot(0, 4))
    view.settle()
    assert [p['id'] for p in meta(view)['runs'][0]['probes']] == [3, 4] and set(held(view)) == {(0, 3, 0), (0, 4, 0)}
    run.finish(steps=1)
    view.end(); view.settle()
    assert meta(view)['runs'][0]['finished'] and not meta(view)['runs'][0]['live'] and run._listeners == []

@pytest.mark.slow
def test_the_saliency_scale_grows_during_training_and_has_its_last_step(tmp_path):
    run = invented.run(tmp_path/'live', probes=(), steps=(), finish=False)
    view = ExplorerView([run], live=True)
    assert meta(view)['runs'][0]['saliency'] == dict(limit=0., step=None)
    most = 0.
    for step in (0, 10, 20):
        run.save(invented.snapshot(step, 0))
        most = max(most, largest_saliency(run.snapshot(step, 0)))
        view.settle()
        assert meta(view)['runs'][0]['saliency'] == dict(limit=most, step=step)

# --- errors

def test_invalid_arguments_of_the_explorer_raise_clear_errors(run, tmp_path):
    cases = {'a training run from start_training or watch, or a list of Snapshots; got int': lambda: Explorer(3),
               'the folder does not exist': lambda: Explorer(tmp_path/'none'), 'an empty list': lambda: Explorer([]),
               "no panel 'maps'; available: heads, map": lambda: Explorer(run, panels=['maps']),
               'probes [9] were not recorded; available: [0, 1]': lambda: Explorer(run, probes=[9]),
               'steps [9] were not recorded': lambda: Explorer(run, steps=9),
               'height must be a number between 100 and 10,000': lambda: ExplorerOptions(height=1),
               'budget must be a positive number': lambda: ExplorerOptions(budget=0),
               'has no snapshots to show': lambda: Explorer(invented.run(tmp_path/'empty', steps=()))}
    for message, call in cases.items():
        with pytest.raises((ValueError, FileNotFoundError)) as e: call()
        assert message in str(e.value) and '\n' not in str(e.value)

@pytest.mark.slow
def test_looking_needs_no_torch(run):
    code = f'''import sys
from salviz.explorer.widget import Explorer
from salviz.core.runs import Run
e = Explorer({str(run.path)!r}); e.view.settle(); e._repr_mimebundle_(); e.to_html({str(run.path/"page.html")!r})
assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules; print('fine')'''
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.strip().endswith('fine'), done.stderr[-2000:]

def test_a_list_of_snapshots_is_a_run(run):
    explorer = Explorer([invented.snapshot(0, 0), invented.snapshot(5, 0)])
    explorer.view.settle()
    assert set(held(explorer.view)) == {(0, 0, 0), (0, 0, 5)} and 'image/png' in explorer._repr_mimebundle_()

# --- images

def drawn(png):
    image = matplotlib.image.imread(io.BytesIO(png))[..., :3]
    return len(np.unique(image.reshape(-1, 3).round(2), axis=0))

@pytest.mark.sample(1)
@pytest.mark.parametrize('method', invented.methods)
def test_every_panel_of_every_method_has_a_picture(tmp_path, method):
    from salviz.figures.drawing import rendered
    explorer = Explorer(invented.run(tmp_path/method, method))
    subset = dict(rationale=['RationaleGuided'], evidence=['RationaleGuided', 'Distillation'])
    # no image, series, trade-off or answer; only some methods have a rationale or custom evidence
    elsewhere = ['signal', 'patches', 'tradeoff', 'continuation', 'answer',
                 *(k for k, of in subset.items() if method not in of)]
    for panel in (None, *(o for o in panel_names if o not in elsewhere)):
        assert drawn(rendered(explorer.picture(panel), 'png', 50)) > 20, panel
    for panel in elsewhere:
        with pytest.raises(ValueError): explorer.picture(panel)

@pytest.mark.slow
@pytest.mark.parametrize('make', [invented.image, invented.series, invented.tagged, invented.translated,
                                  invented.scored])
def test_other_tasks_and_modalities_have_a_picture(make):
    explorer = Explorer([make(s, p) for s in (0, 10) for p in (0, 1)])
    found = explorer._repr_mimebundle_()
    assert drawn(base64.b64decode(found['image/png'])) > 20 and explorer.selected().snapshot.step == 10
    assert explorer.selected().other.probe == 0 and len(explorer.view.get_state('index')['index']) == 4

def test_the_picture_shows_what_is_chosen_in_the_browser(run):
    explorer = Explorer(run)
    explorer.view.ui = json.dumps(dict(probe=1, step=10, entry=dict(kind='head', layer=0, head=2), what='attention',
                                       compare=dict(run=0, step=20)))
    selection = explorer.selected()
    assert (selection.snapshot.probe, selection.snapshot.step, selection.entry,
            selection.other.step) == (1, 10, dict(kind='head', layer=0, head=2), 20)
    explorer.view.ui = json.dumps(dict(probe=77, step=5, run=3, entry=dict(kind='head', layer=9, head=0)))
    selection = explorer.selected()
    assert (selection.snapshot.probe, selection.snapshot.step, selection.entry['layer']) == (0, 30, 1)
    with pytest.warns(DeprecationWarning, match='selected'): assert explorer.look().entry == selection.entry

def test_in_a_picture_too_the_later_step_is_b_whichever_is_in_view(run, monkeypatch):
    from salviz.explorer import static_images
    compared_before, sides = static_images.compared, []
    def seen(a, b, **kwargs):
        sides.append((a.step, b.step, [name.rpartition(', ')[2] for name in kwargs['names']]))
        return compared_before(a, b, **kwargs)
    monkeypatch.setattr(static_images, 'compared', seen)
    for shown, other in ((10, 30), (30, 10)):
        explorer = Explorer(run, state=dict(step=shown, compare=dict(run=0, step=other)))
        selection = explorer.selected()
        assert (selection.snapshot.step, selection.other.step) == (shown, other)
        explorer.picture('compare')
    assert sides == [(10, 30, ['step 10', 'step 30'])]*2

def test_of_two_runs_the_other_one_is_compared_unless_another_side_is_chosen(run, tmp_path):
    explorer = Explorer(run, compare=invented.run(tmp_path/'other', 'SalLM'))
    def side(**state):
        explorer.view.ui = json.dumps(dict(step=10, **state))
        s = explorer.selected()
        return explorer.runs.index(s.other_run), s.other.step, s.of_one_run
    assert side() == side(compare=dict(run=0, step=None)) == (1, 10, False) and side(run=1) == (0, 10, False)
    assert side(compare=dict(run=1, step=20)) == (1, 20, False)
    assert side(compare=dict(run=0, step=30)) == (0, 30, True) # two steps of the run in view
    assert side(compare=dict(run=0, step=19)) == (0, 20, True) # the nearest one, as in the panel
    alone = Explorer([invented.snapshot(0)], compare=[invented.snapshot(0, 0, ['[CLS]', 'else', '[SEP]'])])
    with pytest.raises(ValueError, match='has no recording of this sentence'): alone.picture('compare')

@pytest.mark.slow
def test_the_output_contains_a_picture_and_the_live_view(run):
    found = Explorer(run)._repr_mimebundle_()
    assert set(found) == {'text/html', 'image/png', 'text/plain'} and drawn(base64.b64decode(found['image/png'])) > 50
    assert found['text/plain'] == 'Explorer of run (2 sentences, 4 recorded steps)'
    assert repr(Explorer([invented.image()])) == 'Explorer of snapshots (1 image)'

@pytest.mark.slow
def test_one_panel_alone_is_pictured_alone(run):
    alone, all_ = (Explorer(run, panels=p)._repr_mimebundle_()['image/png'] for p in ('sentence', None))
    assert len(alone) < len(all_)/3

@pytest.mark.slow
def test_hostile_tokens_are_drawn_literally(tmp_path):
    tokens = ['[CLS]', '<img src=x onerror=hit()>', '$x^2$', '\u202eabc', '🙂', '\u200b', 'x'*10_000, '[SEP]']
    explorer = Explorer(invented.run(tmp_path/'bad', 'ADDrop', probes=(0,), tokens={0: tokens}))
    with pytest.warns(UserWarning, match='no glyph'): found = explorer._repr_mimebundle_()
    assert drawn(base64.b64decode(found['image/png'])) > 50

# --- control

class Pretended:
    "A training that only changes its state"
    def __init__(self, run):
        self.run, self.state, self.step, self.total, self.seconds_left, self.error, self.listeners, self.calls = (
            run, 'running', 3, 8, 75., None, [], [])
        self.last_acts = []
    def at_end(self, fn):
        self.last_acts.append(fn)
        return lambda: fn in self.last_acts and self.last_acts.remove(fn)
    def subscribe(self, fn):
        self.listeners.append(fn); return lambda: fn in self.listeners and self.listeners.remove(fn)
    def now(self, state, **kw):
        self.state = state; self.__dict__.update(kw)
        for fn in list(self.listeners): fn(self)
    def pause(self): self.calls.append('pause'); self.now('paused')
    def resume(self): self.calls.append('resume'); self.now('running')
    def stop(self): self.calls.append('stop'); self.now('stopped')

def test_a_closed_explorer_is_unsubscribed_from_its_training(run):
    training = Pretended(run)
    explorer = Explorer(training)
    assert len(training.last_acts) == 1 and len(training.listeners) >= 1
    explorer.close()
    assert training.last_acts == [] and training.listeners == []

def test_buttons_pause_resume_and_stop_and_text_is_never_html(run):
    training = Pretended(run)
    controls = Controls(training)
    for button, state, shows in ((controls.pause_button, 'paused', 'Resume'),
                                 (controls.pause_button, 'running', 'Pause'),
                                 (controls.stop_button, 'stopped', 'Pause')):
        button.click(); controls.settle()
        assert training.state == state and controls.pause_button.description == shows
    assert training.calls == ['pause', 'resume', 'stop']
    assert controls.stop_button.disabled
    assert controls.pause_button.disabled
    training.now('failed', error=RuntimeError('<img src=x onerror=hit()>')); controls.settle()
    assert controls.error.value == 'RuntimeError: <img src=x onerror=hit()>'
    assert controls.error.layout.display == ''
    assert controls.bar.bar_style == 'danger'
    def kinds(w): return {type(w)} | {k for c in getattr(w, 'children', ()) for k in kinds(c)}
    assert not kinds(controls) & {ipywidgets.HTML, ipywidgets.HTMLMath}

def test_progress_is_written_by_one_thread_and_rarely(run):
    training = Pretended(run)
    controls = Controls(training)
    controls.settle()
    written = []
    controls.bar.observe(lambda c: written.append((threading.current_thread().name, c['new'])), 'value')
    for step in range(4, 3000): training.now('running', step=step % 8, total=8)
    controls.settle()
    assert {name for name, _ in written} <= {'salviz-worker'} and len(written) < 40 and controls.bar.value == 2999 % 8

def test_times_are_formatted_in_hours_minutes_and_seconds():
    assert [_in_words(s) for s in (None, .4, 75, 3725)] == ['', '0 s', '1 min 15 s', '1 h 2 min']

@pytest.mark.slow
def test_a_training_that_has_ended_is_shown_to_its_end(run):
    training = Pretended(invented.run(run.path.parent/'live', probes=(), steps=(), finish=False))
    explorer = Explorer(training)
    assert explorer.children == (explorer.controls, explorer.view) and 'image/png' not in explorer._repr_mimebundle_()
    training.run.save(invented.snapshot(0, 0)); training.run.finish(steps=1)
    training.now('finished', step=8)
    explorer._worker.flush()
    assert held(explorer.view)
    assert meta(explorer.view)['runs'][0]['finished']
    assert 'image/png' in explorer._repr_mimebundle_()
    assert len(training.listeners) == 1, 'only the controls still listen'

@pytest.mark.slow
def test_the_picture_is_refreshed_where_it_was_displayed(run, monkeypatch):
    import IPython.display
    shown = []
    monkeypatch.setattr(IPython.display, 'display',
                        lambda data, raw, display_id: shown.append(('display', display_id, 'image/png' in data)))
    monkeypatch.setattr(IPython.display, 'update_display',
                        lambda data, raw, display_id: shown.append(('update', display_id, 'image/png' in data)))
    training = Pretended(invented.run(run.path.parent/'live', probes=(), steps=(), finish=False))
    explorer = Explorer(training)
    explorer._ipython_display_(); explorer._loop = None
    training.run.save(invented.snapshot(0, 0)); training.now('stopped'); explorer._worker.flush()
    for act in training.last_acts: act() # the final image is not drawn twice
    assert [s[0] for s in shown] == ['display', 'update']
    assert shown[0][1] == shown[1][1]
    assert [s[2] for s in shown] == [False, True]

@pytest.mark.slow
def test_an_image_drawn_between_cells_is_redrawn_in_the_waiting_cell(run, monkeypatch):
    import IPython.display
    shown = []
    monkeypatch.setattr(IPython.display, 'display', lambda *args, **kw: shown.append('display'))
    monkeypatch.setattr(IPython.display, 'update_display', lambda *args, **kw: shown.append('update'))
    training = Pretended(invented.run(run.path.parent/'live', probes=(), steps=(), finish=False))
    explorer = Explorer(training)
    async def first_cell(): explorer._ipython_display_()
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    kernel = lambda cell: asyncio.run_coroutine_threadsafe(cell, loop).result(60)
    kernel(first_cell())
    training.run.save(invented.snapshot(0, 0)); training.now('stopped'); explorer._worker.flush()
    kernel(asyncio.sleep(0)) # let the kernel run its tasks between cells
    assert shown == ['display', 'update']
    for _ in range(2):
        for act in list(training.last_acts): act() # `training.wait()` in the next cells
    assert shown == ['display', 'update', 'update']
    loop.call_soon_threadsafe(loop.stop)

@pytest.mark.slow
def test_a_notebook_stores_the_final_picture(tmp_path):
    import nbclient, nbformat
    begin = '''from salviz import *
data = subset(load_text('movie-polarity'), 8, validation_size=4, test_size=4)
model, tokenizer = load_classifier('movie-minilm', num_hidden_layers=1)
training = start_training(model, tokenizer, data, run_dir=%r, probes=1, snapshots=2, batch_size=8)
Explorer(training)'''
    cells = [begin % str(tmp_path/'a'), 'training.wait()', begin % str(tmp_path/'b'), 'await training']
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    nbclient.NotebookClient(notebook, timeout=300).execute()
    for cell in notebook.cells[::2]:
        output = cell.outputs[-1]['data']
        assert 'image/png' in output and '(1 sentence, 2 recorded steps)' in output['text/plain']

def test_a_real_training_is_watched_and_paused(tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    from salviz.training.live import start_training
    training = start_training(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', probes=2, snapshots=5,
                              epochs=4, batch_size=4)
    explorer = Explorer(training)
    def until(true):
        end = time.monotonic() + 60
        while not true() and time.monotonic() < end: threading.Event().wait(.01)
        assert true()
    until(lambda: held(explorer.view))
    explorer.controls.pause_button.click()
    until(lambda: training.state == 'paused')
    explorer.controls.settle()
    assert explorer.controls.pause_button.description == 'Resume'
    explorer.controls.pause_button.click()
    run = training.wait(120)
    explorer._worker.flush(); explorer.controls.settle()
    assert set(held(explorer.view)) == {(0, p, s) for s, p in run.recorded}
    assert explorer.controls.status.value.startswith('finished')
    sent = json.loads(explorer.view.get_state()['rows'])[0]
    assert [row for row in sent if row['kind'] != 'heads'] == run.metrics
    assert [row['step'] for row in sent if row['kind'] == 'heads'] == run.steps
    assert not training.subscriber_errors
    assert not run.subscriber_errors

# --- in the browser

def widget(page, view, **state):
    "Open `view` in `page` like anywidget; `model` replaces Jupyter's model, `sessions` are its views"
    full = {k: v for k, v in view.get_state().items() if not k.startswith('_')
            and k not in ('layout', 'tabbable', 'tooltip')}
    send(page, given={**full, **state})
    page.evaluate('''async ([js, css, model]) => {
        document.head.appendChild(document.createElement('style')).textContent = css;
        document.body.dataset.jpThemeLight = 'true';
        const asView = v => v instanceof Uint8Array ? new DataView(v.buffer, v.byteOffset, v.byteLength) : v;
        window.asState = o => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, asView(v)]));
        window.model = new (eval(`(${model})`))(asState(given));
        const module = (await import(URL.createObjectURL(new Blob([js], {type: 'text/javascript'})))).default,
            made = await module();
        await made.initialize({model: window.model});
        window.open_ = () => { const el = document.createElement('div'); document.body.append(el);
            return made.render({model: window.model, el}); };
        window.close1 = open_(); }''', [str(view._esm), str(view._css), invented.model_js])
    settled(page)

def push(page, state):
    "Send all of `state` in one message, like the kernel"
    send(page, given=state)
    page.evaluate('() => model.update(asState(given))')
    settled(page)

def canvas(page, panel): return page.eval_on_selector(f'.sv-{panel} canvas', 'c => c.toDataURL()')

def test_the_widget_shows_what_the_kernel_sent_and_follows_updates(page, run):
    view = ExplorerView([run], live=True, options=json.dumps(dict(panels=['heads', 'map'])))
    view.settle()
    widget(page, view)
    before = canvas(page, 'heads')
    sent = Messages(view)
    run.save(invented.snapshot(40, 0)); view.settle()
    state = {}
    for _, part in sent: state |= part
    push(page, state)
    assert canvas(page, 'heads') != before

@pytest.mark.slow
def test_a_state_that_is_set_in_the_kernel_is_shown_in_the_browser(page, run, monkeypatch):
    explorer, sent = Explorer(run, panels=['heads', 'map']), []
    explorer.view.settle()
    widget(page, explorer.view)
    monkeypatch.setattr(explorer.view, 'send', sent.append)
    explorer.state = dict(probe=1, step=10, hideSpecial=True)
    page.evaluate('content => { for (const tell of model.listeners["msg:custom"] ?? []) tell(content); }', sent[0])
    settled(page)
    assert page.locator('.sv-toolbar select').nth(1).input_value() == '1'
    assert ', step 10,' in page.text_content('.sv-where')
    page.wait_for_function('() => model.saved > 0 && JSON.parse(model.get("ui")).hideSpecial')
    page.evaluate('() => close1()')

@pytest.mark.slow
def test_views_of_one_widget_share_the_selection_and_new_pages_start_with_it(page, run, browser):
    view = ExplorerView([run], options=json.dumps(dict(panels=['heads', 'map'])))
    view.settle()
    widget(page, view)
    page.evaluate('() => { window.close2 = open_(); }')
    page.locator('.sv-toolbar select').nth(1).select_option('1')
    settled(page)
    assert page.eval_on_selector_all('.salviz',
                                     'all => all.map(o => [...o.querySelectorAll(".sv-toolbar select")][1].value)') == [
        '1', '1']
    page.wait_for_function('() => model.saved > 0 && JSON.parse(model.get("ui")).probe == 1')
    stored = json.loads(page.evaluate('() => model.get("ui")'))
    assert stored['probe'] == 1 and 'theme' not in stored
    assert page.evaluate('() => model.sent')[-1] == dict(kind='probe', run=0, probe=1)
    page.evaluate('() => { close1(); close2(); }')
    assert page.locator('.salviz').count() == 0
    page.evaluate('() => { open_(); }'); settled(page)
    assert page.locator('.sv-toolbar select').nth(1).input_value() == '1'
    fresh = new_page(browser)
    widget(fresh, view, ui=json.dumps(stored))
    assert fresh.locator('.sv-toolbar select').nth(1).input_value() == '1' and fresh.errors == []
    fresh.close()

@pytest.mark.slow
def test_the_page_works_without_a_kernel(page, run):
    view = ExplorerView([run], options=json.dumps(dict(panels=['heads', 'map'])))
    view.settle()
    widget(page, view)
    before = canvas(page, 'heads')
    page.evaluate('() => { model.dead = true; }')
    page.locator('.sv-toolbar select').nth(1).select_option('1')
    page.evaluate('() => new Promise(done => setTimeout(done, 600))')
    assert canvas(page, 'heads') != before

def test_the_theme_is_jupyters(page, run):
    view = ExplorerView([run], options=json.dumps(dict(panels=['heads'])))
    widget(page, view)
    themes = []
    for light in ('true', 'false', 'true'):
        page.evaluate('light => { document.body.dataset.jpThemeLight = light; }', light)
        settled(page)
        themes.append(page.eval_on_selector('.salviz', 'o => o.dataset.theme'))
    assert themes == ['light', 'dark', 'light']

@pytest.mark.slow
def test_the_curves_need_no_network(page, run):
    explorer = Explorer(run, panels=['time'])
    explorer.view.settle()
    assert Explorer(run, panels=['map']).view.plotly == b''
    widget(page, explorer.view)
    page.wait_for_selector('.sv-time .js-plotly-plot, .sv-time .plotly')

@pytest.mark.slow
def test_two_thousand_live_updates_leave_the_page_flat(page, run):
    "Slots are reused: the store and the garbage collector free what was dropped"
    view = ExplorerView([run], options=json.dumps(dict(panels=['heads', 'map'])))
    view.settle()
    widget(page, view)
    frame = view.get_state()['slot_0']
    page.evaluate('''async ([frame]) => {
        const text = atob(frame), base = Uint8Array.from(text, c => c.charCodeAt(0)),
            n = new DataView(base.buffer).getUint32(4, true);
        const header = JSON.parse(new TextDecoder().decode(base.subarray(8, 8 + n)));
        window.framed = step => {
            const out = base.slice(), json = JSON.stringify({...header, step}).padEnd(n);
            out.set(new TextEncoder().encode(json), 8);
            return new DataView(out.buffer); };
        window.run = async (from, to) => {
            for (let step = from; step < to; step++) {
                const index = model.get('index').slice(), slot = step % 8;
                index[slot] = [0, 0, step, step];
                model.update({index, [`slot_${slot}`]: framed(step)});
                if (step % 20 === 0) await new Promise(done => requestAnimationFrame(done)); } }; }''',
                                                                                                      [
        base64.b64encode(frame).decode()])
    cdp, used = page.context.new_cdp_session(page), []
    for start, end in ((1000, 1300), (1300, 3000)):
        page.evaluate('([a, b]) => run(a, b)', [start, end])
        cdp.send('HeapProfiler.collectGarbage')
        used.append((cdp.send('Runtime.getHeapUsage')['usedSize'], cdp.send('Memory.getDOMCounters')))
    assert used[1][0] - used[0][0] < 1_500_000
    assert used[1][1]['nodes'] - used[0][1]['nodes'] < 200
    assert used[1][1]['jsEventListeners'] - used[0][1]['jsEventListeners'] < 20
    assert page.eval_on_selector('.sv-where', 'o => o.textContent').find('step 2999') >= 0

# --- saved notebooks

def notebook(*outputs, widgets=True):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('x',
                                                                   outputs=[
        nbformat.v4.new_output('display_data', data=dict(o)) for o in outputs]), nbformat.v4.new_markdown_cell('ü')])
    if widgets:
        nb.metadata['widgets'] = {'application/vnd.jupyter.widget-state+json': dict(
            version_major=2, state=dict(e=dict(children=['IPY_MODEL_v']), v={}, b=dict(layout='IPY_MODEL_l'), l={}))}
    return nb

live, bar = {'text/plain': 'Explorer', 'image/png': 'iVBOR',
             view_mime: dict(model_id='e')}, {'text/plain': 'bar', view_mime: dict(model_id='b')}

def test_dead_views_go_and_pictures_and_other_widgets_stay(tmp_path):
    path = tmp_path/'a.ipynb'
    nbformat.write(notebook(live, bar), path)
    assert strip_views(path) == 1
    nb = nbformat.read(path, 4)
    nbformat.validate(nb)
    assert [set(o.data) for o in nb.cells[0].outputs] == [{'text/plain', 'image/png'}, {'text/plain', view_mime}]
    assert set(nb.metadata.widgets['application/vnd.jupyter.widget-state+json'].state) == {'b', 'l'}
    assert nb.cells[1].source == 'ü'
    nbformat.write(notebook(live), path)
    strip_views(path)
    assert 'widgets' not in nbformat.read(path, 4).metadata
    before = path.read_bytes(), path.stat().st_mtime_ns
    assert strip_views(path) == 0 and (path.read_bytes(), path.stat().st_mtime_ns) == before

@pytest.mark.parametrize('text,message',
                         [('not json', 'is not valid JSON'), ('[]', 'has no cells'), ('{"cells_": 1}', 'has no cells')])
def test_a_file_that_is_not_a_notebook_raises_an_error(tmp_path, text, message):
    (tmp_path/'a.ipynb').write_text(text)
    with pytest.raises(ValueError, match=message): strip_views(tmp_path/'a.ipynb')
