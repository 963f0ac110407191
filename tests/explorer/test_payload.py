"The data that the explorer receives: frames, descriptions of runs, pages and the program."
import json
import re
import shutil

import numpy as np
import pytest

import invented
from salviz.core.assets import asset
from salviz.data.texts import load_text, subset
from salviz.core.maths import dense_ranks, discard_candidates
from salviz.methods import ADDrop, AttentionGuidance
from salviz.models.loading import load_classifier
from salviz.explorer.quantisation import (_cube_code, _cube_value, _level_code, _level_value, _most_cells, json_text,
                                          order_code, order_value, pool_cells)
from salviz.core.evidence import largest_saliency
from salviz.explorer import run_metadata
from salviz.explorer.run_metadata import _saliency_scale, as_run, meta, run_meta
from salviz.explorer.page_compression import _unpack_page, pack_page
from salviz.explorer.payload import pack_frame, unpack_frame
from salviz.explorer.assets import _exported, bundle, static_text, styles
from salviz.core.snapshots import Snapshot
from salviz.core.runs import Run
from salviz.training.trainer import train
from traced import root

hostile = ['<img src=x onerror=alert(1)>', '</script><script>alert(1)</script>', '"\'`\\', '\u202eright to left', '🎬',
           'zero\u200bwidth', '\ud800', 'x'*10000,
           '\n\t\0', '&amp;']

def random_maps(rng, *shape): return rng.dirichlet(np.full(shape[-1], .3), size=shape[:-1]).astype(np.float32)

def snapshot(n=6, layers=(0, 1), heads=3, seed=0, step=3, **more):
    rng = np.random.default_rng(seed)
    b = rng.normal(size=(len(layers), heads, n, n)).astype(np.float32)
    arrays = dict(attention=random_maps(rng, len(layers), heads, n, n), attention_attribution=b,
                  saliency=rng.normal(size=n), discarded=b > 1)
    return Snapshot(step=step, epoch=.5, probe=more.pop('probe', 0), tokens=more.pop('tokens', ['t']*n), arrays=arrays,
                    layers={k: list(layers) for k in ('attention', 'attention_attribution', 'discarded')}, **more)

# ---- the scale of saliency

def test_the_scale_of_saliency_is_that_of_the_whole_run_whether_it_was_logged_or_has_to_be_read(tmp_path):
    older = invented.run(tmp_path/'older')
    every = {(s, p): largest_saliency(older.snapshot(s, p)) for s, p in older.recorded}
    most = max(every.values())
    for chosen in (dict(), dict(probes=[0], steps=[0])):
        assert run_meta(older, **chosen)['saliency'] == dict(limit=most, step=30), 'read from all snapshots'
    older.log(dict(kind='record', step=10, largest_saliency=most + 1))
    assert run_meta(older)['saliency']['limit'] == most + 1, 'a step that was logged counts as it was logged'
    special = np.array(older.snapshot(0, 0).is_special)
    values = older.snapshot(0, 0).arrays['saliency']
    assert every[0, 0] == np.abs(values[~special]).max()

def test_a_run_with_very_large_snapshots_has_no_scale(tmp_path, monkeypatch):
    run = invented.run(tmp_path/'large')
    monkeypatch.setattr(run_metadata, '_most_read', 1000)
    assert run_meta(run)['saliency'] == dict(limit=None, step=30)
    assert _saliency_scale(as_run(list(run.snapshots())))['limit'] > 0, 'what is in memory is not read'
    for step in run.steps: run.log(dict(kind='record', step=step, largest_saliency=3.))
    assert run_meta(run)['saliency'] == dict(limit=3., step=30)

def test_a_run_logs_its_largest_saliency_at_every_recorded_step(tiny_bert, tiny_tokenizer, tiny_data, tmp_path):
    run = train(tiny_bert(), tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', probes=2, snapshots=3, epochs=1,
                progress=False)
    logged = {r['step']: r['largest_saliency'] for r in run.metrics if r['kind'] == 'record'}
    assert logged == {step: max(map(largest_saliency, run.snapshots(step=step))) for step in run.steps}

# ---- one byte per weight

def test_every_probability_gets_the_nearest_code():
    values = _cube_value(np.arange(255)).astype(np.float64)
    x = np.concatenate([np.linspace(0, 1, 200_001), np.random.default_rng(0).random(100_000)**8,
                        np.nextafter((values[1:] + values[:-1])/2, 1)]).astype(np.float32)
    at = np.searchsorted(values, x).clip(1, 254)
    nearest = np.minimum(abs(x - values[at - 1]), abs(x - values[at]))
    np.testing.assert_allclose(abs(_cube_value(_cube_code(x)).astype(np.float64) - x), nearest, rtol=1e-5, atol=1e-7)

@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64])
def test_codes_are_fixed_points_and_tell_what_is_not_finite(dtype):
    assert (_cube_code(_cube_value(np.arange(256)).astype(np.float32)) == np.arange(256)).all()
    x = np.array([[0, -0., 1, np.nan, np.inf, -np.inf, 1e-30, 5e-324]], dtype)
    tiny = [int(v > 0) for v in x[0, 6:].astype(np.float32)] # only 0 gets code 0, which marks blocked keys
    assert _cube_code(x).tolist() == [[0, 0, 254, 255, 255, 255, *tiny]]
    code, scale = _level_code(x)
    assert code.tolist() == [[128, 128, 255, 0, 0, 0, 128, 128]] and scale == 1
    assert np.isnan(_level_value(code, scale)[0, 3:6]).all()

def test_attributions_of_any_size_are_right_to_half_a_level():
    rng = np.random.default_rng(1)
    for size in (1e-30, 1e-6, 1., 1e6, 1e30):
        b = rng.normal(size=(2, 2, 8, 8))**3*size
        code, scale = _level_code(b)
        c = abs(code.astype(int) - 128)
        assert (abs(_level_value(code, scale).astype(np.float64) - b) <= (2*c
                                                                         + 1)/2/127**2*scale[..., None, None]*(
            1 + 1e-4)).all()
        assert code.min() == 1 or code.max() == 255
    for empty in (np.zeros((0, 3, 3)), np.zeros((2, 0, 0))): assert _level_code(empty)[0].shape == empty.shape

@pytest.mark.parametrize('n', [1, 2, 7, 40, 128])
def test_ranks_come_back_from_what_their_codes_leave_open(n):
    rng = np.random.default_rng(n)
    for tied in (0, 1, 3, 9):
        x = rng.normal(size=(5, 4, n)).round(tied)*(rng.random((5, 4, 1)) < .8)
        allowed = rng.random((5, 4, n)) < .7
        ranks, codes = dense_ranks(x, allowed), _level_code(x)[0]
        rest = order_code(ranks, codes)
        np.testing.assert_array_equal(order_value(rest, codes), ranks)
        np.testing.assert_array_equal(rest > 0, ranks > 0)


def test_ranks_that_are_not_an_order_of_their_codes_are_left_alone():
    codes = np.uint8([[1, 2, 3, 3]])
    for ranks in ([[2, 1, 3, 4]], [[1, 1, 2, 3]], [[1, 2, 4, 5]], [[2, 3, 4, 5]]):
        assert order_code(np.uint8(ranks), codes) is None
    assert order_code(np.ones((1, 129), np.uint8), np.ones((1, 129), np.uint8)) is None
    assert order_code(np.zeros((1, 4), np.uint8), codes).tolist() == [[0]*4]

# ---- frames

def test_a_frame_contains_exactly_the_recorded_arrays():
    s = snapshot(info=dict(method='ADDrop', args=dict(p=.3), drawn_step=3, secret='not for the page'),
                 losses=dict(task=1.5, other=float('inf')), label=1)
    s.arrays['something_else'] = np.zeros(3)
    s.arrays['all_of_it'] = np.zeros((6, 5, 4, 3, 2)) # which has no plain picture
    f = unpack_frame(pack_frame(s, run=2))
    assert (f['run'], f['probe'], f['step'], f['epoch'], f['label']) == (2, 0, 3, .5, 1)
    assert f['losses'] == dict(task=1.5, other=None) and 'secret' not in f['info']
    assert list(f['arrays']) == ['attention', 'attention_attribution', 'attribution_ranks', 'discarded', 'saliency',
                                 'own/something_else']
    assert f['info']['own_left'] == [['all_of_it', '6 rows, 5 rows, 4 rows, 3 rows, 2 rows']]
    assert f['specs']['attention']['layers'] == [0, 1] and 'layers' not in f['specs']['saliency']
    np.testing.assert_array_equal(f['arrays']['discarded'], s.arrays['discarded'])
    np.testing.assert_array_equal(f['arrays']['saliency'], s.arrays['saliency'].astype(np.float32))

def test_arrays_begin_where_a_browser_can_read_them():
    data = pack_frame(snapshot(n=7, tokens=hostile[:7]))
    assert data.isascii() is False and int.from_bytes(data[4:8], 'little') % 8 == 0 and len(data) % 8 == 0
    assert all(s['offset'] % 8 == 0 for s in unpack_frame(data)['specs'].values())

def test_layers_and_names_select_the_arrays_of_a_frame():
    s = snapshot(layers=(1, 4, 5))
    f = unpack_frame(pack_frame(s, layers=[5, 9], names=['attention', 'saliency']))
    assert list(f['arrays']) == ['attention', 'saliency'] and f['specs']['attention']['layers'] == [5]
    np.testing.assert_array_equal(f['arrays']['attention'], unpack_frame(pack_frame(s))['arrays']['attention'][2:])

def test_ranks_of_old_runs_come_from_stored_values_and_are_marked():
    s = snapshot()
    s.arrays['attention'][:, :, :2, 4:] = 0   # no head of any layer attends there
    f = unpack_frame(pack_frame(s))
    allowed = np.ones((6, 6), bool)
    allowed[:2, 4:] = False
    np.testing.assert_array_equal(f['arrays']['attribution_ranks'],
                                  dense_ranks(s.arrays['attention_attribution'], allowed))
    assert f['info']['ranks'] == 'stored values'
    exact = snapshot()
    exact.arrays['attribution_ranks'], exact.layers['attribution_ranks'] = dense_ranks(
        exact.arrays['attention_attribution']), [0, 1]
    assert unpack_frame(pack_frame(exact))['info']['ranks'] == 'exact'
    assert 'ranks' not in unpack_frame(pack_frame(s, names=['attention']))['info']

def test_masked_tokens_get_readable_labels():
    s = snapshot(n=3, tokens=['[CLS]', 'Ġfilm', '[SEP]'], labels=['[CLS]', 'film', '[SEP]'],
                 info=dict(masked_tokens=['[CLS]', 'Ġfilm', '[MASK]']))
    assert unpack_frame(pack_frame(s))['info']['masked_labels'] == ['[CLS]', 'film', '[MASK]']

@pytest.mark.parametrize('n', [129, 200, 512])
def test_long_sentences_travel_as_thumbnails_and_chosen_maps(n):
    rng = np.random.default_rng(0)
    s = snapshot(n=n, layers=(2,), heads=2)
    s.arrays['discard_candidates'], s.layers['discard_candidates'] = rng.random((1, 2, n, n)) < .001, [2]
    data = pack_frame(s, full=[(2, 1), (7, 0), (2, 9)])
    f, side = unpack_frame(data), -(-n//-(-n//_most_cells))
    assert f['specs']['attention']['shape'] == [1, 2, side, side] and f['specs']['attention']['pooled'] == side
    chosen = 'attention', 'attention_attribution', 'attribution_ranks', 'discard_candidates', 'discarded'
    assert [k for k in f['arrays'] if '/' in k] == [f'{k}/2.1' for k in chosen]
    assert 'attribution_ranks' not in f['arrays'] and 'discarded' not in f['arrays']
    block, a = -(-n//side), s.arrays['attention'][0, 0]
    slow = np.array([[a[i:i + block, j:j + block].mean() for j in range(0, n, block)] for i in range(0, n, block)])
    np.testing.assert_allclose(f['arrays']['attention'][0, 0], slow, atol=.002)
    np.testing.assert_array_equal(f['arrays']['discard_candidates/2.1'], s.arrays['discard_candidates'][0, 1])
    ranks = f['arrays']['attribution_ranks/2.1']
    np.testing.assert_array_equal(ranks, dense_ranks(s.arrays['attention_attribution'][0, 1]))
    assert f['specs']['attribution_ranks/2.1']['codec'] == ('rank8' if n < 256 else 'rank16') and ranks.max() == n
    assert len(data) < 12*n*n + 60_000

def test_a_thumbnail_preserves_the_largest_attribution_and_every_region():
    x = np.zeros((1, 200, 200))
    x[0, 7, 9], x[0, 150, 3] = -5, 4
    small = pool_cells(x, 'extreme')
    assert small.min() == -5 and small.max() == 4 and (small != 0).sum() == 2
    assert pool_cells(x != 0, 'any').sum() == 2

def test_damaged_frames_raise_clear_errors():
    data = pack_frame(snapshot())
    n = 8 + int.from_bytes(data[4:8], 'little')
    for cut in [0, 3, 7, 8, 20, n - 1, n, n + 40, len(data) - 8]:
        with pytest.raises(ValueError, match='frame'): unpack_frame(data[:cut])
    for bad in (b'PNG' + data, data[:30] + b'\0' + data[31:], data[:4] + b'\xff\xff\xff\x7f' + data[8:],
                data.replace(b'"cube8"', b'"cubex"'), data.replace(b'"offset":0,', b'"offset":4,')):
        with pytest.raises(ValueError, match='frame'): unpack_frame(bad)
    rng = np.random.default_rng(0)
    for _ in range(200):   # a byte of the header is changed: an error, or still a frame
        at, wild = int(rng.integers(8, n)), bytearray(data)
        wild[at] = int(rng.integers(256))
        try: unpack_frame(bytes(wild))
        except ValueError: pass

def test_invalid_probabilities_raise_an_error():
    with pytest.raises(ValueError, match='probabilities must be between 0 and 1'): _cube_code([.2, 1.4])

# ---- text, and numbers that are not finite

def test_hostile_text_stays_text():
    arrays = dict(attention=random_maps(np.random.default_rng(0), 1, 1, 10, 10))
    s = Snapshot(step=0, epoch=0., probe=0, tokens=hostile, texts=[' '.join(hostile)], arrays=arrays,
                 classes=hostile[:2])
    text = json_text(meta([[s]], shipped=hostile[0]))
    assert text.isascii() and not set('<>&') & set(text)
    back = json.loads(text)
    assert back['runs'][0]['probes'][0]['tokens'] == hostile and back['runs'][0]['classes'] == hostile[:2]
    frame = pack_frame(Snapshot(step=0, epoch=0., probe=0, tokens=hostile, info=dict(masked_tokens=hostile),
                                arrays=s.arrays))
    assert unpack_frame(frame)['info']['masked_tokens'] == hostile
    assert unpack_frame(_unpack_page(pack_page([frame]))[0])['info']['masked_labels'] == hostile

def test_json_has_no_nan_anywhere():
    x = dict(a=float('nan'), b=[np.float32('inf'), {'c': np.array([1., -np.inf])}], d=(np.int64(3), True, None),
             e={1: float('-inf')})
    assert json.loads(json_text(x)) == dict(a=None, b=[None, dict(c=[1, None])], d=[3, True, None], e={'1': None})

# ---- runs

@pytest.fixture(scope='module')
def real_runs(tmp_path_factory):
    """Return short trainings of MiniLM, one with AD-DROP in all layers at every step; short sentences and one of about
    sixty tokens"""
    asset('minilm')
    data = subset(load_text('movie-sentences'), 16, validation_size=8, test_size=8)
    labels, folder = data['train'].features['label'].names, tmp_path_factory.mktemp('runs')
    probes = ['a gorgeous , witty , seductive movie .', ' '.join(data['train']['text'])[:240]]
    def run(name, method):
        model, tokenizer = load_classifier('minilm', num_labels=5, labels=labels, seed=0)
        return train(model, tokenizer, data, method=method, probes=probes, epochs=1, snapshots=3, batch_size=8,
                     learning_rate=1e-4, run_dir=folder/name,
                     progress=False)
    return dict(addrop=run('addrop', ADDrop(p=.3, q=.3, cross_tuning=False)),
                guided=run('guided', AttentionGuidance(head_fraction=.5)))

@pytest.mark.slow
def test_meta_describes_examples_steps_and_model(real_runs):
    run = real_runs['addrop']
    m = run_meta(run)
    assert (m['name'], m['title'], m['method'], m['seed'], m['finished'],
            m['live']) == ('addrop', 'AD-DROP', 'ADDrop', 0, True, False)
    assert (m['total_steps'], m['steps_per_epoch'], m['cross_tuning'], m['notes']) == (2, 2, False, [])
    assert m['model']['layers'] == 6 and m['model']['heads'] == 12 and len(m['classes']) == 5
    assert m['recorded'] == [[p, s] for p in (0, 1) for s in run.steps] and [p['id'] for p in m['probes']] == [0, 1]
    assert run_meta(run, probes=1, steps=[-1])['recorded'] == [[1, run.steps[-1]]]
    assert run_meta(str(run.path)) == m
    for wrong in (dict(probes=[5]), dict(steps=[1000]), dict(steps=-9)):
        with pytest.raises(ValueError, match='were not recorded; available:'): run_meta(run, **wrong)

def test_runs_match_at_equal_sentences(real_runs):
    a, b = meta(list(real_runs.values()), shipped='all')['runs']
    assert [p['matches'] for p in b['probes']] == [0, 1] and [p['matches'] for p in a['probes']] == [0, 1]
    assert run_meta(real_runs['guided'],
                    matches=run_meta(real_runs['addrop'], probes=[1]))['probes'][0]['matches'] is None
    assert [p['matches'] for p in meta([real_runs['addrop'], [snapshot()]])['runs'][1]['probes']] == [None]

def test_a_damaged_snapshot_is_left_out_and_named(real_runs, tmp_path):
    shutil.copytree(real_runs['guided'].path, tmp_path/'hurt', ignore=shutil.ignore_patterns('checkpoints'))
    files = sorted((tmp_path/'hurt'/'snapshots').iterdir())
    files[0].write_bytes(files[0].read_bytes()[:300])                # truncated
    bad = bytearray(files[1].read_bytes())
    bad[-9] ^= 255                                                   # only the checksum shows it
    files[1].write_bytes(bad)
    m = run_meta(tmp_path/'hurt')
    assert len(m['recorded']) == 4 and len(m['probes']) == 2 and len(m['notes']) == 2
    assert all(f.name in ' '.join(m['notes']) for f in files[:2])

def test_files_of_the_page_have_unique_names_and_no_style_sheet_ends_its_element():
    "Modules are found by name, and a page embeds all style sheets in one element"
    files = [path for path in (root/'salviz'/'explorer'/'static').rglob('*') if path.is_file()]
    names = [path.name for path in files]
    assert len(files) > 50 and len(set(names)) == len(names)
    assert not [path.name for path in files if path.suffix == '.css' and '</style' in path.read_text().lower()]

def test_planned_steps_are_computed_before_the_first_row(tmp_path):
    config = dict(method=dict(name='ADDrop', args=dict(cross_tuning=True)), model=dict(name='m', layers=2, heads=4),
                  data=dict(sizes=dict(train=37)), seed=1,
                  settings=dict(epochs=4, batch_size=8, gradient_accumulation=2))
    run = Run.create(tmp_path/'run', config)
    m = run_meta(run, live=True)
    assert (m['total_steps'], m['steps_per_epoch'], m['cross_tuning'], m['live'], m['finished'],
            m['probes']) == (12, 3, 'AD-DROP', True, False, [])

def test_a_list_of_custom_snapshots_is_a_run():
    run = as_run([snapshot(step=1), snapshot(step=0, probe=1), snapshot(step=1, probe=1)])
    m = run_meta(run, probes=[1])
    assert m['recorded'] == [[1, 0], [1, 1]]
    assert m['model'] == dict(name='', layers=2, heads=3)
    assert m['title'] == 'Snapshots'
    assert run.snapshot(-1, 1).step == 1 and run.snapshot(probe=0).step == 1
    class Training: run = None
    Training.run = run
    assert as_run(Training()) is run
    with pytest.raises(ValueError, match='an empty list'): as_run([])

# ---- pages

def per_weight(page, snapshots):
    "Return the bytes of a page in base64 per weight and frame"
    return len(page)*4/3/sum(s.arrays['attention'].size for s in snapshots)

@pytest.mark.sample(2)
@pytest.mark.parametrize('name', ['addrop', 'guided'])
@pytest.mark.parametrize('probe', [0, 1])
def test_a_page_of_a_real_run_is_lossless_and_takes_at_most_two_bytes_a_weight_and_frame(real_runs, name, probe):
    snapshots = real_runs[name].snapshots(probe=probe)
    frames = [pack_frame(s) for s in snapshots]
    page = pack_page(frames)
    assert per_weight(page, snapshots) <= 2
    back = [unpack_frame(f) for f in _unpack_page(page)]
    for frame, b in zip(frames, back):
        f = unpack_frame(frame)
        assert {k: v for k, v in f.items()
                if k not in ('arrays', 'specs')} == {k: v for k, v in b.items() if k not in ('arrays', 'specs')}
        assert list(f['arrays']) == list(b['arrays'])
        for k, x in f['arrays'].items():
            if 'coarse' not in b['specs'][k]: np.testing.assert_array_equal(b['arrays'][k], x)
        assert 'attribution_ranks' not in f['specs'] or 'coarse' not in b['specs']['attribution_ranks']
    if name == 'addrop':
        assert all('follows' in b['specs']['discarded'] and 'follows' in b['specs']['discard_candidates'] for b in back)
    for f, b in zip(frames, _unpack_page(pack_page(frames, budget=None))):
        for k, x in unpack_frame(f)['arrays'].items(): np.testing.assert_array_equal(unpack_frame(b)['arrays'][k], x)

@pytest.mark.parametrize('probe', [0, 1])
def test_a_single_frame_is_within_the_budget_with_exact_regions(real_runs, probe):
    s = real_runs['addrop'].snapshot(-1, probe)
    page = pack_page([pack_frame(s)])
    assert per_weight(page, [s]) <= 2
    f = unpack_frame(_unpack_page(page)[0])
    for name in ('attribution_ranks', 'discard_candidates', 'discarded'):
        np.testing.assert_array_equal(f['arrays'][name], s.arrays[name])
    assert abs(f['arrays']['attention'] - s.arrays['attention']).max() < .05

def test_a_page_of_small_custom_maps_is_within_the_budget():
    steps = [snapshot(n=16, heads=4, seed=i, step=i) for i in range(4)]
    assert per_weight(pack_page([pack_frame(s) for s in steps]), steps) <= 2

def test_regions_that_do_not_follow_travel():
    s = snapshot(info=dict(args=dict(p=.3, q=.3, region='high'), example_id=1, seed=0, drawn_step=3))
    s.arrays['discard_candidates'], s.layers['discard_candidates'] = discard_candidates(
        s.arrays['attention_attribution'], True, .3), [0, 1]
    f = unpack_frame(_unpack_page(pack_page([pack_frame(s)]))[0])
    assert 'follows' in f['specs']['discard_candidates'] and 'follows' not in f['specs']['discarded']
    s.arrays['discard_candidates'][0, 0, 0] ^= True
    f = unpack_frame(_unpack_page(pack_page([pack_frame(s)]))[0])
    assert 'follows' not in f['specs']['discard_candidates']
    np.testing.assert_array_equal(f['arrays']['discard_candidates'], s.arrays['discard_candidates'])

def test_frames_of_a_page_may_differ_in_what_they_hold():
    frames = [pack_frame(snapshot(seed=i, step=i), names=None if i % 2 else ['attention']) for i in range(5)]
    frames.append(pack_frame(snapshot(n=200, layers=(0,), step=9), full=[(0, 0)]))
    back = _unpack_page(pack_page(frames, budget=None))
    for f, b in zip(frames, back):
        for k, x in unpack_frame(f)['arrays'].items(): np.testing.assert_array_equal(unpack_frame(b)['arrays'][k], x)
    assert _unpack_page(pack_page([])) == []

def test_damaged_pages_raise_an_error():
    page = pack_page([pack_frame(snapshot(step=i)) for i in range(3)])
    for bad in (b'', b'SVF1' + page[4:], page[:20], page[:-40], page[:60] + bytes(20) + page[80:],
                page[:-60] + bytes(60)):
        with pytest.raises(ValueError, match='page'): _unpack_page(bad)

# ---- the program

@pytest.mark.parametrize('entry', ['widget.js', 'page.js'])
def test_the_program_is_one_module_without_imports(entry):
    text = bundle(entry)
    assert not re.search(r'^\s*(import\b|export (?!default))', text, re.M)
    assert text.index('// maths.js') < text.index('// codec.js') < text.index('// store.js') < text.index(f'// {entry}')

def test_every_module_declares_its_exports_and_follows_the_style():
    assert _exported('codec.js') == ['Tensor', 'Frame', 'decodeFrame', 'unpackPage']
    assert 'keyedUniform' in _exported('maths.js')
    for name in ('codec.js', 'maths.js'):
        text = static_text(name)
        assert text.startswith('// ') and max(map(len, text.splitlines())) <= 150
    assert '.salviz' in styles()

def test_modules_that_cannot_be_bundled_raise_errors():
    ok = {'a.js': "import {b} from './b.js';\nexport const a = b;",
          'b.js': 'export const b = 1;\nconst {c, d: [e]} = {};'}
    joined = lambda **kw: bundle('a.js', read={**ok, **{k.replace('_', '.'): v for k, v in kw.items()}}.__getitem__)
    assert joined().splitlines() == ['// b.js', 'const b = 1;', 'const {c, d: [e]} = {};', '', '// a.js',
                                     'const a = b;']
    for text, message in {
            "import {b as x} from './b.js';": 'must not rename',
            "import b from './b.js';": 'imports must be single lines',
            "import {b} from 'react';": 'imports must be single lines',
            "import {z} from './b.js';": 'does not export it',
            "import {b} from './b.js';\nlet b = 2;": 'b is declared at the top level of both b.js and a.js',
            "import {b} from './b.js';\nfunction e() {}": 'e is declared',
            "export * from './b.js';": 'export only declarations'}.items():
        with pytest.raises(ValueError, match=re.escape(message)): joined(a_js=text)
    with pytest.raises(ValueError, match='a.js → b.js → a.js'):
        joined(b_js="import {a} from './a.js';\nexport const b = 1;")

# ---- images, series, answers for tokens, several methods

def test_images_and_series_travel_within_their_stated_step_and_answers_as_they_are():
    for s in (invented.image(channels=3), invented.series(names=['<b>', *'abcde'])):
        f = unpack_frame(pack_frame(s))
        assert set(f['arrays']) == set(s.arrays)
        assert f['info']['modality'] == s.info['modality']
        assert f['info'].get('feature_names') == s.info.get('feature_names')
        for name in ('is_masked_map', *(['informative'] if 'informative' in s.arrays else [])):
            np.testing.assert_array_equal(f['arrays'][name], s.arrays[name])
        for name in ('input', 'saliency_map', 'masked_map'):
            x, got = s.arrays[name], f['arrays'][name]
            scale = abs(x).max((-2, -1), keepdims=True)
            assert (abs(got - x) <= scale/127*np.sqrt(abs(x)/scale) + scale/127**2).all(), name
    s = invented.tagged()
    f = unpack_frame(pack_frame(s))
    assert f['info']['token_labels'] == s.info['token_labels']
    assert f['info']['task'] == 'token_classification'
    assert 'pooled_row' not in f['info']
    np.testing.assert_array_equal(f['arrays']['token_confidence'], s.arrays['token_confidence'])
    assert unpack_frame(pack_frame(invented.translated()))['info']['predicted_tokens'] == [
        'das', 'war', 'gut', '.', '</s>']
    assert unpack_frame(pack_frame(invented.scored()))['arrays']['prediction'].tolist() == np.float32([2.9]).tolist()

def test_images_are_the_same_where_their_numbers_are():
    a, b = meta([[invented.image(0, p) for p in (0, 1)], [invented.image(7, p) for p in (1, 2)]])['runs']
    assert [p['matches'] for p in b['probes']] == [1, None] and [p['modality'] for p in a['probes']] == ['image']*2

def test_a_page_of_images_is_exact_however_large():
    frames = [pack_frame(invented.image(s, channels=3, height=60, width=60)) for s in range(12)]
    assert sum(map(len, frames)) > 3*60*60*12 and _unpack_page(pack_page(frames)) == frames

@pytest.mark.parametrize('order', [('SaliencyGuided', 'SalLM'), ('SalLM', 'SaliencyGuided')])
def test_evidence_with_one_name_from_two_methods_is_sent_twice(order):
    s, worked_with = invented.clashing(order)
    for data in (pack_frame(s), _unpack_page(pack_page([pack_frame(s)]))[0]):
        arrays = unpack_frame(data)['arrays']
        assert (arrays['method_saliency'] == worked_with[order[0]]).all()
        assert (arrays[f'method_saliency ({order[1]})'] == worked_with[order[1]]).all()
    long = snapshot(n=130)
    long.arrays['attention_attribution (Mine)'], long.layers['attention_attribution (Mine)'] = long.arrays[
        'attention_attribution']*2, [0, 1]
    names = set(unpack_frame(pack_frame(long, full=[(1, 2)]))['arrays'])
    assert {'attention_attribution (Mine)', 'attention_attribution (Mine)/1.2', 'attention_attribution/1.2'} <= names

def test_a_region_is_recomputed_with_the_arguments_of_its_method():
    args = dict(p=.3, q=.3, region='high')
    s = snapshot(info=dict(method='AttentionGuidance + ADDrop', args=dict(ADDrop=args),
                           methods=dict(AttentionGuidance={}, ADDrop=args), example_id=1, seed=0, drawn_step=3))
    s.arrays['discard_candidates'], s.layers['discard_candidates'] = discard_candidates(
        s.arrays['attention_attribution'], True, .3), [0, 1]
    assert 'follows' in unpack_frame(_unpack_page(pack_page([pack_frame(s)]))[0])['specs']['discard_candidates']
    assert run_meta([invented.both()])['title'] == 'Attention guidance + AD-DROP'
    assert run_meta([invented.both()])['cross_tuning']
