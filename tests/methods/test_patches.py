"""Methods on the patches of a vision transformer: spatial patterns and masked patches against loops in float64 from the
equations, rejected arguments, and combinations with other methods"""
import numpy as np
import pytest
import torch
from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING, AutoConfig

from salviz.core.maths import patch_pattern_names, pattern_residual
from salviz.methods import ADDrop, AttentionGuidance, AttentionGuidanceVariant, SaliencyGuided, SaliencyGuidedVariant
from salviz.methods.attention_guidance import assign_heads
from salviz.methods.base import Progress
from salviz.methods.patterns import pattern_target
from salviz.models.attention import observe
from salviz.models.nets import DigitCNN, small_net
from salviz.models.patches import PatchGrid
from salviz.training.step import _run_passes
from salviz.training.trainer import train
from salviz.views.base import guided_heads, pattern_shares
from test_tasks import quick, signals

pytestmark = pytest.mark.numeric
kinds = dict(vit=1, deit=2, ijepa=0) # {kind: tokens before its patches}

def vision(kind='vit', heads=4, size=(8, 12), **more):
    "Return a tiny image classifier of two layers, whose patches are 4 by 4 pixels: two rows of three"
    config = AutoConfig.for_model(kind, hidden_size=16, num_hidden_layers=2, num_attention_heads=heads,
                                  intermediate_size=32, image_size=size, patch_size=4, num_channels=3, num_labels=2,
                                  initializer_range=.3, **more)
    classes = MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING[type(config)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return (classes[0] if isinstance(classes, tuple) else classes)(config).eval().double()

def batch_of(n=3):
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(n, 3, 8, 12)))
    return dict(pixel_values=x, labels=torch.arange(n) % 2, example_id=torch.arange(n))

def keys_of(name, r, c, rows, columns):
    "Return the patches to which the patch in row `r` and column `c` attends, from the name of the pattern"
    at = dict(same=[(r, c)], right=[(r, c + 1)], left=[(r, c - 1)], above=[(r - 1, c)], below=[(r + 1, c)])
    at['adjacent'] = at['right'] + at['left'] + at['above'] + at['below']
    at['neighbours'] = at['adjacent'] + [(r - 1, c - 1), (r - 1, c + 1), (r + 1, c - 1), (r + 1, c + 1)]
    at['row'], at['column'] = [(r, k) for k in range(columns)], [(k, c) for k in range(rows)]
    return [(a, b) for a, b in at[name] if 0 <= a < rows and 0 <= b < columns]

def reference_pattern(name, rows, columns, first):
    "Return the matrix, cell by cell; rows without a target are None"
    n, P = first + rows*columns, {}
    for q in range(n):
        if name == 'first': P[q] = [1. if k == 0 else 0. for k in range(n)]
        elif q >= first:
            keys = keys_of(name, (q - first) // columns, (q - first) % columns, rows, columns)
            share = [0.]*n
            for a, b in keys: share[first + a*columns + b] = 1/len(keys)
            P[q] = share if keys else None
        else: P[q] = None
    return P

@pytest.mark.parametrize('grid', [PatchGrid(2, 3, 1), PatchGrid(4, 4, 2), PatchGrid(1, 3, 0), PatchGrid(3, 1, 5)],
                         ids=str)
def test_every_pattern_of_patches_is_that_of_a_loop(grid):
    n = grid.first + grid.rows*grid.columns
    for name in patch_pattern_names(grid.first):
        P, guided = pattern_target(name, dict(pixel_values=torch.zeros(2, 1, 4, 4)), grid=grid)
        wanted = reference_pattern(name, *grid)
        assert P.shape == (2, n, n) and torch.equal(P[0], P[1])
        assert guided.tolist() == [any(row is not None for row in wanted.values())]*2
        for q, row in wanted.items(): np.testing.assert_allclose(P[0, q], row or [0.]*n, atol=1e-7)

def reference_loss(maps, heads, grid, reduction, dropped=None):
    "Compute eq. 2 and 3 for each example in float64; rows without a target and dropped cells do not count"
    losses = []
    for b in range(len(maps[0])):
        total = 0.
        for layer, by_pattern in heads.items():
            for name, numbers in by_pattern.items():
                P = {q: row for q, row in reference_pattern(name, *grid).items() if row is not None}
                n = len(maps[layer][b, 0])
                squares = [(float(maps[layer][b, h, q, k]) - row[k])**2 for h in numbers for q, row in P.items()
                           for k in range(n) if dropped is None or not dropped[layer][b, h, q, k]]
                total += sum(squares) / (1 if reduction == 'sum' else len(numbers)*len(P)*n)
        losses.append(total)
    return losses

@pytest.mark.parametrize('reduction', ['mean', 'sum'])
@pytest.mark.parametrize('kind', kinds)
def test_guidance_of_patches_is_the_equation_on_the_models_own_eager_attention(kind, reduction):
    model, batch, grid = vision(kind), batch_of(), PatchGrid(2, 3, kinds[kind])
    heads = {0: dict(right=[2], neighbours=[0, 3]), 1: dict(above=[1], column=[0], same=[2])}
    if grid.first: heads[1]['first'] = [3]
    method = AttentionGuidance(heads, alpha=1, variant=AttentionGuidanceVariant(reduction=reduction))
    method.check(model, None, signals((3, 8, 12), 'pixel_values', 4), epochs=1)
    plan = method.plan(model, batch, Progress())
    with observe(model, layers=list(plan.layers)) as maps: outputs = model(pixel_values=batch['pixel_values'])
    loss = method.terms(dict(main=outputs), maps, plan, batch, Progress())['attention_guidance'].loss
    model.set_attn_implementation('eager')
    with torch.no_grad(): eager = model(pixel_values=batch['pixel_values'], output_attentions=True).attentions
    np.testing.assert_allclose(loss.detach(), reference_loss(eager, heads, grid, reduction), rtol=1e-5)

def test_the_gradient_at_rows_without_a_target_is_zero():
    model, batch = vision(), batch_of()
    method = AttentionGuidance(dict(right=[0]), layers=[0], alpha=1)
    plan = method.plan(model, batch, Progress())
    with observe(model, layers=[0]) as maps: model(pixel_values=batch['pixel_values'])
    gradient = torch.autograd.grad(method.guidance(maps, plan, batch).sum(), maps[0])[0]
    assert (gradient != 0).any(-1)[0, 0].tolist() == [False, True, True, False, True, True, False]
    assert not gradient[:, 1:].any()

def test_patches_dropped_by_ad_drop_do_not_count():
    model, batch = vision(), batch_of()
    heads = {layer: dict(below=[0], neighbours=[1, 2]) for layer in (0, 1)}
    both = AttentionGuidance(heads, alpha=1) + ADDrop(p=.5, q=.6, cross_tuning=False)
    plan = both.plan(model, batch, Progress())
    outputs, maps = _run_passes(model, model, batch, plan)
    loss = both.terms(outputs, maps, plan, batch, Progress())['attention_guidance'].loss
    A = {layer: maps[layer].detach() for layer in heads}
    expected = reference_loss(A, heads, PatchGrid(2, 3, 1), 'mean', plan.drop)
    assert all(x.any() for x in plan.drop.values())
    np.testing.assert_allclose(loss.detach(), expected, rtol=1e-5)

def test_by_default_one_head_attends_to_each_neighbour_and_the_others_to_all():
    assert assign_heads(vision(), head_fraction=.5) == {l: dict(right=[0], left=[1]) for l in (0, 1)}
    assert assign_heads(vision(heads=8), head_fraction=.75, layers=-1) == {
        1: dict(right=[0], left=[1], above=[2], below=[3], neighbours=[4, 5])}

def previous_token(grid):
    "Return a custom pattern in which each token attends to the one before it"
    n = grid.first + grid.rows*grid.columns
    return torch.eye(n).roll(1, 0)

@pytest.mark.parametrize('arguments, message', [
    (dict(patterns=dict(next=[0])), "pattern 'next' is not a pattern for images: the patch after the last one"),
    (dict(patterns={'delim:[CLS]': [0]}), 'patches have no delimiters; use first for the column of .CLS.'),
    (dict(patterns=dict(period=[0])), 'patches have no full stops. Available: same, right'),
    (dict(patterns=dict(diagonal=[0])), "'diagonal' is unknown; available: same, right, .*, or a custom pattern"),
    (dict(patterns=dict(right=[4])), 'the model has heads 0 to 3'),
    (dict(boundary='zero'), 'boundary and multiple only apply to texts; omit them'),
    (dict(multiple='indicator'), 'boundary and multiple only apply to texts'),
    (dict(patterns={0: {0: torch.eye(6)}}), 'must be a matrix of shape .7, 7. for 7 tokens, got shape .6, 6.'),
    (dict(patterns={0: {0: torch.zeros(7, 7)}}), 'has no target on 2 × 3 patches'),
    (dict(share=.25), 'one head for right, one for left, one for above, one for below, the others for neighbours')])
def test_arguments_that_cannot_guide_patches_raise(arguments, message):
    data = signals((3, 8, 12), 'pixel_values', 4)
    with pytest.raises(ValueError, match=f'AttentionGuidance: .*{message}|^the pattern .*{message}'):
        AttentionGuidance.from_args(dict(alpha=1, **arguments)).check(vision(), None, data, epochs=1)

def test_first_needs_a_token_before_the_patches_and_patches_need_a_grid(tmp_path):
    data = signals((3, 8, 12), 'pixel_values', 4)
    with pytest.raises(ValueError, match="'first' is not a pattern for images: .*no token before its patches"):
        AttentionGuidance(dict(first=[0])).check(vision('ijepa'), None, data, epochs=1)
    with pytest.raises(ValueError, match='cannot be observed'):
        AttentionGuidance(dict(right=[0])).check(small_net(DigitCNN, num_labels=2, shape=(3, 8, 12)), None, data, 1)
    with pytest.raises(ValueError, match="custom contains 'row', which is already the name of a pattern for patches"):
        AttentionGuidance(dict(row=[0]), custom=dict(row=torch.eye(7)))

def guided_run(folder, method=None, resume=False, **settings):
    model = vision().float()
    method = method or AttentionGuidance({0: {0: 'right', 1: previous_token}, 1: {2: 'neighbours'}}, alpha=10)
    run = train(model, None, signals((3, 8, 12), 'pixel_values', 16), method, run_dir=folder, resume=resume,
                **{**quick, 'epochs': 2, **settings})
    return run, model

@pytest.mark.slow
def test_a_run_shows_the_targets_of_guided_heads_and_their_names(tmp_path):
    run, _ = guided_run(tmp_path/'run')
    assert run.train_rows[-1]['attention_guidance'] < run.train_rows[0]['attention_guidance']
    s = run.snapshot()
    for (layer, head), name in {(0, 0): 'right', (1, 2): 'neighbours'}.items():
        wanted = [row or [0.]*7 for row in reference_pattern(name, 2, 3, 1).values()]
        assert s.arrays['guided'][layer, head]
        np.testing.assert_allclose(s.arrays['pattern_target'][layer, head], wanted, rtol=1e-3) # half precision
    assert s.arrays['guided'].sum() == 3 and not s.arrays['pattern_target'][0, 2:].any()
    view = guided_heads(s, layer=0)
    assert view.patterns == ('right', 'previous_token')
    assert {*pattern_shares(s).patterns} == {'right', 'previous_token', 'neighbours'}
    is_guided = np.array([q in (1, 2, 4, 5) for q in range(7)])
    wanted = np.mean((s.arrays['attention'][0, 0] - s.arrays['pattern_target'][0, 0])[is_guided]**2)
    assert view.residuals[0] == pytest.approx(wanted, rel=1e-5)
    assert pattern_residual(np.eye(7), np.eye(7), on_patches=True) == 0

@pytest.mark.slow
def test_resumed_guidance_has_the_same_result(tmp_path):
    class Breaks(AttentionGuidance):
        at = None
        def plan(self, model, batch, progress):
            if progress and progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
            return super().plan(model, batch, progress)
    ends = []
    for out, at in (('whole', None), ('broken', 3)):
        method = Breaks(dict(right=[0], column=[3]))
        method.at = at
        if at:
            with pytest.raises(KeyboardInterrupt): guided_run(tmp_path/out, method)
        run, model = guided_run(tmp_path/out, method, resume=bool(at))
        ends.append((run.state['alpha'], [r['loss'] for r in run.train_rows], model.state_dict()))
    assert ends[0][:2] == ends[1][:2] and all(torch.equal(v, ends[1][2][k]) for k, v in ends[0][2].items())

def reference_masked(x, saliency, filled, share, ranking):
    "Mask whole patches of 4 by 4 pixels, lowest sum first, with loops"
    out, is_masked = x.clone(), torch.zeros(8, 12, dtype=torch.bool)
    sums = []
    for r in range(2):
        for c in range(3):
            pixels = [float(saliency[4*r + i, 4*c + j]) for i in range(4) for j in range(4)]
            sums.append((sum(map(abs, pixels)) if ranking == 'magnitude' else sum(pixels), r, c))
    for _, r, c in sorted(sums)[:int(share*6 + 1e-6)]:
        for i in range(4):
            for j in range(4):
                is_masked[4*r + i, 4*c + j] = True
                out[:, 4*r + i, 4*c + j] = filled[:, 4*r + i, 4*c + j]
    return out, is_masked

@pytest.mark.parametrize('ranking', ['signed', 'magnitude'])
@pytest.mark.parametrize('kind, passes', [('vit', 'eval'), ('deit', 'eval'), ('ijepa', 'reuse')])
def test_masked_patches_equal_a_loop(kind, passes, ranking):
    model, batch = vision(kind), batch_of()
    background = torch.full((3, 8, 12), .25, dtype=torch.float64)
    method = SaliencyGuided(.5, unit='patch', ranking=ranking, fill=background,
                            variant=SaliencyGuidedVariant(passes=passes))
    plan = method.plan(model, batch, Progress(seed=3))
    _run_passes(model, model, batch, plan)
    x = batch['pixel_values'].clone().requires_grad_()
    logits = model(pixel_values=x).logits
    gradient = torch.autograd.grad(logits.gather(1, batch['labels'][:, None]).sum(), x)[0].mean(1)
    for i in range(3):
        masked, is_masked = reference_masked(batch['pixel_values'][i], gradient[i], background, .5, ranking)
        assert torch.equal(plan.evidence['is_masked_map'][i], is_masked) and is_masked.sum() == 48
        assert torch.equal(plan.evidence['masked_map'][i], masked)

@pytest.mark.parametrize('model, data, arguments, message', [
    (lambda: small_net(DigitCNN, num_labels=2, shape=(3, 8, 12)), 'pixel_values', dict(unit='patch'),
     "unit='patch' is for vision transformers; DigitCNN has no patches"),
    (vision, 'pixel_values', dict(unit='patch', mask_fraction=.1),
     'mask_fraction=0.1 of 6 patches is less than one patch, so nothing would be masked; use at least 0.167')])
def test_masking_patches_raises_for_models_without_patches(model, data, arguments, message):
    with pytest.raises(ValueError, match=message):
        SaliencyGuided.from_args(arguments).check(model(), None, signals((3, 8, 12), data, 4), epochs=1)
    with pytest.raises(ValueError, match="unit must be one of None, 'patch'"): SaliencyGuided(unit='pixel')
