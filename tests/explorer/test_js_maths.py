"The explorer's mathematics and its reading of frames, in Chromium, against numpy, torch and the golden vectors."
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from browser import evaluate_json, load, send
from salviz.core import maths
from salviz.data.texts import Collator, encode_texts
from salviz.core.maths import dense_ranks
from salviz.methods import ADDrop
from salviz.methods.base import Progress
from salviz.models.random import keyed_uniform
from salviz.methods.saliency_guided import mask_words
from salviz.explorer.page_compression import _unpack_page, pack_page
from salviz.explorer.payload import pack_frame, unpack_frame
from salviz.core.snapshots import Snapshot

golden = json.loads((Path(__file__).parents[1]/'golden.json').read_text())

# How a golden case is passed to maths.js; maps are flat there, and it takes one row at a time where Python takes any
# shape.
calls = '''{
    retained_count: c => [c.n].flat().map(n => sv.remainingCount(n, c.p)),
    discard_candidates: c => Array.from(sv.discardCandidates(c.attribution.flat(), c.allowed.flat(),
        c.attribution[0].length, c.p, c.region), Boolean),
    pattern_matrix: c => { const P = sv.patternMatrix(c.name, c.real, c.occurs ?? null, c.boundary, c.multiple);
        return P && [...P]; },
    saliency_target: c => [...sv.saliencyTarget(c.saliency, c.allowed, c.top_fraction, c.binarised)],
    entropy: c => sv.entropy(c.attention, c.attention.length, c.allowed ?? null)[0],
    kl: c => sv.kl(c.p, c.q, c.counts ?? null),
    spearman: c => sv.spearman(c.a, c.b, c.counts ?? null),
    top_overlap: c => sv.topOverlap(c.a, c.b, c.k, c.counts ?? null),
    pattern_fraction: c => sv.patternFraction(c.attention.flat(), c.pattern.flat(), c.attention.length),
    rollout: c => { const maps = c.attention.map(l => l.flat()[0].length === undefined ? l.flat()
        : l.map(h => h.flat()));
        const mean = maps.map(m => Array.isArray(m[0]) ? m[0].map((_, k) => m.reduce((s, h) => s + h[k], 0) / m.length)
            : m);
        return [...sv.rollout(mean, Math.sqrt(mean[0].length), c.residual ?? .5)]; },
}'''

@pytest.fixture
def sv(page):
    "Load codec.js and maths.js into a page"
    load(page, 'codec.js', 'maths.js')
    return page

def floats(x): return np.array(x, dtype=np.float64).ravel()

@pytest.mark.sample(5)
@pytest.mark.parametrize('name', sorted(golden))
def test_javascript_gives_the_golden_vectors(sv, name):
    got = evaluate_json(sv, f'cases => cases.map(({calls}).{name})', golden[name])
    assert len(got) == len(golden[name])
    for g, case in zip(got, golden[name]):
        if name == 'pattern_matrix' and case['expected'] is None: assert g is None
        else: np.testing.assert_allclose(floats(g), floats(case['expected']), rtol=1e-9, atol=1e-11)

def test_the_divergence_of_classes_with_a_probability_each_is_that_of_python(sv):
    pairs = [([.9, .2, .5], [.6, .2, .1]), ([0., 1.], [0., 1.]), ([.25], [.75])]
    got = evaluate_json(sv, 'pairs => pairs.map(([p, q]) => sv.klPerClass(p, q))', pairs)
    np.testing.assert_allclose(got, [maths.kl_per_class(p, q) for p, q in pairs], rtol=1e-12, atol=1e-15)

def test_the_number_of_kept_tokens_is_exact_for_every_fraction_with_two_decimals(sv):
    got = evaluate_json(sv,
                        '() => Array.from({length: 101}, (_, h) => Array.from({length: 513}, (_, n) => '
                        'sv.remainingCount(n, '
                        'h / 100)))')
    assert got == [[n*(100 - h)//100 for n in range(513)] for h in range(101)]

def test_the_draw_has_the_same_bits_as_torch(sv):
    cases = [(0, 2, 5, 0, 0, 0), (256, 3, 17, 0, 14, 5), (2**40 + 7, 2, 4, 2**31, 10**6, 31), (12345, 1, 33, -3, 1, 11)]
    got = evaluate_json(sv, '''cases => cases.map(([id, heads, n, seed, step, layer]) => {
        const u = sv.keyedUniform(id, heads, n, seed, step, layer), out = [];
        for (let h = 0; h < heads; h++) for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) out.push(u(h, i, j));
        return [out, u(0, n - 1, 0)]; })''', cases)   # also in another order
    for (example, heads, n, seed, step, layer), (all_, one) in zip(cases, got):
        expected = keyed_uniform(torch.tensor([example]), (heads, n, n), seed, step, stream=layer)[0].numpy()
        assert (np.float32(all_) == expected.ravel()).all() and np.float32(one) == expected[0, n - 1, 0]

def test_orders_among_ties_are_those_of_numpy(sv):
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(200):
        n = int(rng.integers(1, 30))
        cases.append(dict(x=rng.integers(-3, 4, n).tolist(), k=int(rng.integers(0, n + 2)),
                          counts=(rng.random(n) < .7).tolist()))
    got = evaluate_json(sv,
                        'cases => cases.map(c => [[...sv.topMask(c.x, c.k, c.counts)], [...sv.ranksOf(c.x, '
                        'c.counts)]])', cases)
    for c, (top, ranks) in zip(cases, got):
        assert top == maths.top_mask(c['x'], c['k'], c['counts']).astype(int).tolist()
        np.testing.assert_array_equal(floats(ranks), maths.ranks(c['x'], c['counts']))

@pytest.mark.slow
def test_masked_words_are_those_of_training(sv):
    rng, cases, expected = np.random.default_rng(1), [], []
    for i in range(300):
        pair, sizes = rng.random() < .4, rng.integers(1, 9, 2)
        word_ids, segments = [-1], [-1]
        for s in range(1 + pair):
            for w in range(sizes[s]):
                pieces = int(rng.integers(1, 4))
                word_ids += [w]*pieces
                segments += [s]*pieces
            word_ids, segments = word_ids + [-1], segments + [-1]
        n = len(word_ids)
        saliency = (rng.integers(-3, 4, n) if i % 2 else rng.normal(size=n)).astype(np.float32)
        c = dict(fraction=float(rng.choice([.1, .25, .3, .5, .9, 1.])),
                 ranking=str(rng.choice(['signed', 'magnitude'])), first=str(rng.choice(['next', 'keep', 'mask'])))
        cases.append(dict(saliency=saliency.tolist(), word_ids=word_ids,
                          options=dict(c, **(dict(segments=segments) if i % 3 else {}))))
        ids, masked = mask_words(torch.arange(n)[None], torch.tensor(saliency)[None], torch.tensor(word_ids)[None],
                                 torch.tensor(segments)[None], c['fraction'],
                                 first=c['first'], ranking=c['ranking'], mask_token_id=-1)
        expected.append([masked[0].int().tolist(), ids[0].tolist()])
    got = evaluate_json(sv,
                        'cases => cases.map(c => { const m = sv.maskedWords(c.saliency, c.word_ids, c.options); return '
                        '[[...m.masked], [...m.source]]; })', cases)
    assert got == expected

# ---- frames

def snapshot_of(n=9, layers=(0, 3), heads=2, seed=0, **more):
    "Return a snapshot with every array, including NaN, infinity and forbidden keys"
    rng = np.random.default_rng(seed)
    shape = len(layers), heads, n, n
    a, b = rng.dirichlet(np.full(n, .3), size=shape[:3]), rng.normal(size=shape)**3
    allowed = np.tri(n, dtype=bool)
    a[0, 0, 1, :2], b[0, 1, 2] = [np.nan, np.inf], 0
    ranks = dense_ranks(b, allowed).astype(np.uint8 if n < 256 else np.int16)
    arrays = dict(attention=a, attention_attribution=b, attribution_ranks=ranks, discard_candidates=b > .5,
        discarded=b > 1, pattern_target=np.broadcast_to(np.eye(n)/3, shape), guided=rng.random(shape[:2]) < .5,
        saliency=rng.normal(size=n),
        saliency_target=rng.random(n), method_saliency=rng.normal(size=n), masked_input=rng.integers(0, 30000, n),
        is_masked=rng.random(n) < .5, rationale=rng.random(n) < .5,
        probabilities=rng.dirichlet([1, 1, 1]), masked_probabilities=rng.dirichlet([1, 1, 1]))
    return Snapshot(step=7, epoch=.5, probe=1, arrays={**arrays, **more},
                    layers={k: list(layers) for k, v in arrays.items() if v.ndim in (2, 4)}, tokens=['t']*n)

compare = '''async ([frames, expected, page]) => {
    const bytes = page ? await sv.unpackPage(page) : frames, wrong = [];
    bytes.forEach((data, f) => {
        const frame = sv.decodeFrame(data);
        if (frame.names.join() !== Object.keys(expected[f]).join()) wrong.push(['names', frame.names]);
        for (const [name, raw] of Object.entries(expected[f])) {
            const tensor = frame.get(name), bits = tensor.codec === 'bits';
            const want = bits ? raw : new Float32Array(raw.buffer), got = tensor.values();
            let off = got.length === want.length ? 0 : -1;
            for (let k = 0; off >= 0 && k < got.length; k++) off += Number(!Object.is(got[k] + 0, want[k] + 0));
            if (off) wrong.push([f, name, off, got.length, want.length]);
        }
    });
    return wrong; }'''

def wrong(sv, frames, page=None):
    "Return what JavaScript and Python decode differently"
    source = _unpack_page(page) if page else frames
    expected = [{k: (v.astype(np.uint8) if v.dtype == bool else v.astype(np.float32)).tobytes()
                 for k, v in unpack_frame(f)['arrays'].items()} for f in source]
    send(sv, given=[frames, expected, page])
    return evaluate_json(sv, f'() => ({compare})(window.given)')

@pytest.mark.slow
def test_frames_are_decoded_as_in_python(sv):
    long = snapshot_of(n=300, layers=(1,))
    frames = [pack_frame(snapshot_of()), pack_frame(snapshot_of(n=128, seed=1)),
              pack_frame(snapshot_of(n=130), full=[(3, 1), (9, 9)]),
              pack_frame(long, full=[(1, 0)]), pack_frame(snapshot_of(), names=['saliency', 'discarded'], layers=[3])]
    assert wrong(sv, frames) == []

@pytest.mark.slow
def test_a_head_is_found_in_either_form_and_thumbnails_are_no_maps(sv):
    small, long = snapshot_of(), snapshot_of(n=300, layers=(1, 2))
    send(sv, small=pack_frame(small), long=pack_frame(long, full=[(2, 1)]))
    got = evaluate_json(sv, '''() => {
        const a = sv.decodeFrame(small), b = sv.decodeFrame(long), row = t => t && [t.shape, [...t.at().slice(0, 4)],
            [...t.bit().slice(0, 9)], t.halfStep(100)];
        return {a: row(a.full('attention', 3, 1)), same: [...a.get('attention').at(1, 1).slice(0, 4)],
            layers: a.layers('attention'), guided: [...a.get('guided').values()],
                bits: [...a.full('discarded', 3, 1).bit()], b: row(b.full('attention', 2, 1)),
                    ranks: b.full('attribution_ranks', 2, 1).codec,
                scale: b.full('attention_attribution', 2, 1).halfStep(255), thumb: [b.get('attention').pooled,
                    b.get('attention').shape],
                none: [b.full('attention', 1, 0), a.full('attention', 1, 0), a.full('attention', 3, 2),
                    a.full('nothing', 0, 0), a.get('nothing')]}; }''')
    assert got['a'][0] == [9, 9] and got['a'][1] == got['same'] and got['layers'] == [0, 3]
    assert got['bits'] == small.arrays['discarded'][1, 1].astype(int).ravel().tolist()
    assert got['guided'] == small.arrays['guided'].astype(int).ravel().tolist()
    assert got['b'][0] == [300, 300] and np.allclose(got['b'][1], long.arrays['attention'][1, 1].ravel()[:4], atol=.006)
    assert got['ranks'] == 'rank16' and got['scale'] > 0
    assert got['thumb'] == [60, [2, 2, 60, 60]] and got['none'] == [None]*5

def test_bytes_that_begin_anywhere_in_their_buffer_are_read(sv):
    send(sv, data=pack_frame(snapshot_of()))
    got = evaluate_json(sv, '''() => Array.from({length: 9}, (_, by) => {
        const room = new Uint8Array(data.length + by); room.set(data, by);
        return [...sv.decodeFrame(room.subarray(by)).get('saliency').at()]; })''')
    assert all(g == got[0] for g in got)

def test_a_reading_is_right_to_the_stated_step(sv):
    "Also if a page has only every other code"
    s = snapshot_of(n=64, layers=(0, 1), heads=3, seed=3)
    page = pack_page([pack_frame(s, names=['attention', 'attention_attribution'])], budget=.8)
    coarse = {k: v.get('coarse') for k, v in unpack_frame(_unpack_page(page)[0])['specs'].items()}
    assert all(coarse.values())
    send(sv, frame=pack_frame(s), page=page, truth={k: s.arrays[k].astype(np.float64).tobytes() for k in coarse})
    got = evaluate_json(sv,
                        '''async () => [frame, (await sv.unpackPage(page))[0]].map(bytes =>
        Object.entries(truth).map(([name, raw]) => {
        const want = new Float64Array(raw.buffer), tensor = sv.decodeFrame(bytes).get(name);
        let beyond = 0, closest = 0;
        for (let i = 0; i < 2; i++) for (let h = 0; h < 3; h++) {
            const at = tensor.at(i, h), codes = tensor.codes(i, h), start = (i * 3 + h) * tensor.mapSize;
            for (let k = 0; k < at.length; k++) {
                const half = tensor.halfStep(codes[k], i, h), off = Math.abs(at[k] - want[start + k]);
                if (!Number.isFinite(want[start + k])) { if (!Number.isNaN(at[k]) || !Number.isNaN(half)) beyond++;
                    continue; }
                if (off > half * (1 + 1e-4) + 1e-12) beyond++;
                closest = Math.max(closest, off / half);
            }
        }
        return [name, beyond, closest > .5]; }))''')
    assert got == [[['attention', 0, True], ['attention_attribution', 0, True]]]*2

def test_pages_are_unpacked_as_in_python_newest_first(sv):
    frames = [pack_frame(snapshot_of(seed=s, n=12)) for s in range(4)]
    page = pack_page(frames, budget=None)
    assert wrong(sv, frames, page) == []
    assert evaluate_json(sv,
                         'async () => { const seen = [], f = await sv.unpackPage(given[2], (bytes, i) => '
                         'seen.push(i)); '
                         'return [seen, f.length]; }') == [[3, 2, 1, 0], 4]

def test_damaged_and_foreign_bytes_raise_clear_errors(sv):
    frame = pack_frame(snapshot_of())
    page = pack_page([frame, frame])
    n = 8 + int.from_bytes(frame[4:8], 'little')
    bad = [b'', b'SVF1', b'PK\3\4' + frame[4:], page, frame[:40], frame[:n - 8], frame[:n], frame[:-8],
           frame[:20] + b'\xff' + frame[21:],
           frame.replace(b'"cube8"', b'"cube9"'), frame.replace(b'"offset":0', b'"offset":4'),
           frame.replace(b'"run":0', b'"run":x'),
           frame.replace(b'"probe":1', b'"probe":-')]
    send(sv, bad=bad, pages=[b'', frame, page[:30], page[:-30], page[:-60] + bytes(60)])
    message = evaluate_json(sv,
                         '() => bad.map(b => { try { sv.decodeFrame(b); return null; } catch (e) { return e.message; } '
                         '})')
    assert all(s and s.startswith('Cannot show this data: ') and s.endswith('.') for s in message), message
    message = evaluate_json(sv, '() => Promise.all(pages.map(p => sv.unpackPage(p).then(() => null, e => e.message)))')
    assert all(s and s.startswith('Cannot show this data: ') for s in message), message
    for b in bad:
        with pytest.raises(ValueError): unpack_frame(b)

# ---- regions as in training

texts = ['the film and its music', 'this story of one actor is warm',
         'a plot and a lovely film and this story with the music of one actor and more of the film']
variants = [dict(), dict(p=.1, q=.9), dict(p=.9, q=.5, region='low'), dict(p=.5, q=.999, protect_special=True),
            dict(p=.45, q=.3, region='low', protect_special=True),
            dict(p=.999, q=.999), dict(p=.9, q=.5, region='low_released'),
            dict(p=.45, q=.3, region='low_released', protect_special=True)]

def planned(model, tokenizer, args, side, step):
    "Return snapshots of an AD-DROP step on a padded batch as they are recorded, without the padding"
    tokenizer.padding_side = side
    batch = Collator(tokenizer)(list(encode_texts(texts, tokenizer)))
    batch['labels'] = torch.zeros(len(texts), dtype=torch.long)
    plan = ADDrop.from_args(dict(cross_tuning=False, **args)).plan(model, batch, Progress(step=step, seed=5))
    shown, out = plan.shown(), []
    for j in range(len(texts)):
        real = batch['attention_mask'][j].bool().numpy()
        arrays = {k: np.stack([x[j].numpy() for x in v.values()])[..., real, :][..., real] for k, v in shown.items()}
        out.append(Snapshot(step=step, epoch=0., probe=j, arrays=arrays, tokens=['t']*int(real.sum()),
            is_special=batch['is_special'][j].numpy()[real],
            info=dict(method='ADDrop', args=ADDrop.from_args(dict(cross_tuning=False, **args)).args(), seed=5,
                      drawn_step=step,
                      example_id=int(batch['example_id'][j]))))
    return out

recompute = '''async ([frames, special]) => frames.map((bytes, f) => {
    const frame = sv.decodeFrame(bytes), {args, seed, drawn_step, example_id} = frame.info,
        found = frame.get('attribution_ranks'), [L, H, n] = found.shape;
    let wrong = 0, candidates = 0, discarded = 0;
    for (let l = 0; l < L; l++) for (let h = 0; h < H; h++) {
        const ranks = found.codes(l, h), allowed = Uint8Array.from(ranks, Boolean), layer = found.layers[l];
        const may = args.protect_special ? allowed.map((a, k) => a && !special[f][k % n]) : allowed;
        const region = sv.discardCandidates(ranks, may, n, args.p, args.region), uniform = sv.keyedUniform(example_id,
            H, n, seed, drawn_step, layer);
        const dropped = sv.dropMask(region, allowed, n, args.q, (query, key) => uniform(h, query, key));
        const was = frame.get('discard_candidates').bit(l, h), gone = frame.get('discarded').bit(l, h);
        for (let k = 0; k < n * n; k++) {
            wrong += Number(region[k] !== was[k]) + Number(dropped[k] !== gone[k]);
            candidates += region[k]; discarded += dropped[k];
        }
    }
    return [wrong, candidates, discarded]; })'''

@pytest.mark.sample(1)
@pytest.mark.parametrize('side', ['right', 'left'])
def test_regions_and_draws_recomputed_in_the_browser_are_the_trained_ones_bit_for_bit(
    sv, tiny_bert, tiny_tokenizer, side):
    before, model = tiny_tokenizer.padding_side, tiny_bert(num_hidden_layers=3)
    try:
        snapshots = [s for i, args in enumerate(variants)
                     for s in planned(model, tiny_tokenizer, args, side, step=3 + i)]
    finally: tiny_tokenizer.padding_side = before
    frames = [pack_frame(s) for s in snapshots]
    send(sv, given=[frames, [s.is_special.tolist() for s in snapshots]])
    got = evaluate_json(sv, f'() => ({recompute})(window.given)')
    for s, (wrong_, candidates, discarded) in zip(snapshots, got):
        assert wrong_ == 0, s.info
        assert candidates == s.arrays['discard_candidates'].sum() > 0 and discarded == s.arrays['discarded'].sum()
    assert sum(d for _, _, d in got) > 1000

@pytest.mark.slow
def test_pages_leave_regions_out_and_they_come_back_bit_for_bit(sv, tiny_bert, tiny_tokenizer):
    model = tiny_bert(num_hidden_layers=3)
    for args in variants:
        steps = [planned(model, tiny_tokenizer, args, 'right', step)[2] for step in (1, 2)]
        frames = [pack_frame(s) for s in steps]
        page = pack_page(frames)
        specs = [unpack_frame(f)['specs'] for f in _unpack_page(page)]
        assert all('follows' in o['discard_candidates'] and 'follows' in o['discarded']
                   and 'order' in o['attribution_ranks'] for o in specs)
        assert wrong(sv, frames, page) == []
        for s, f in zip(steps, _unpack_page(page)):
            for name in ('discard_candidates', 'discarded', 'attribution_ranks'):
                np.testing.assert_array_equal(unpack_frame(f)['arrays'][name], s.arrays[name])
