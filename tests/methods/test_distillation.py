"""Explanation-enhanced distillation against slow references in float64, written from the equations; what it trains,
and what it rejects."""
import copy
import math

import numpy as np
import pytest
import torch
from datasets import DatasetDict

from helpers import alike
from test_tasks import examples, model_for, without_dropout
from salviz.core.runs import Run
from salviz.data.texts import model_inputs
from salviz.methods import ADKD, AttentionGuidance, Distillation, SaliencyGuided
from salviz.methods.base import Progress
from salviz.methods.distillation import explanation_loss, logit_loss
from salviz.models.corruption import small_model
from salviz.models.nets import DigitCNN, SeriesLSTM, TextLSTM, small_net
from salviz.models.tasks import tasks
from salviz.training.feed import feed_for
from salviz.training.step import step_terms
from salviz.studies.study import Study
from salviz.training.trainer import load_model, train

quick = dict(epochs=1, batch_size=8, learning_rate=1e-3, progress=False, probes=2, snapshots=2)
pytestmark = pytest.mark.filterwarnings('ignore:Distillation. the ')


@pytest.fixture
def tokens(tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.eos_token = tokenizer.sep_token
    return tokenizer

def batch_of(data, model, tokenizer, rows=range(6)):
    feed = feed_for(model, tokenizer)
    return feed.collate(list(feed.encode(data)['train'].select(rows)))

def other(task, kind, tokenizer, **sizes):
    "Return a teacher with another depth, width and number of heads than those of `model_for`"
    sizes = dict(layers=1, heads=2, hidden=16, seed=3) | sizes
    if task in ('classification',): sizes['num_labels'] = 2
    if task == 'token_classification': sizes['labels'] = ['O', 'B-word', 'I-word']
    return small_model(task, tokenizer, kind=kind, **sizes)


# ---- the logits ----

def slow_kd(student, teacher, tau):
    def soft(z):
        e = [math.exp(x/tau) for x in z]
        return [x/sum(e) for x in e]
    p, q = soft(teacher), soft(student)
    return tau**2 * sum(a*(math.log(a) - math.log(b)) for a, b in zip(p, q))

@pytest.mark.parametrize('tau', [.5, 1., 2., 5., 20.])
def test_logit_loss_equals_its_equation(tau):
    g = torch.Generator().manual_seed(0)
    student, teacher = (3*torch.randn(4, 3, 5, generator=g, dtype=torch.float64) for _ in range(2))
    ours = logit_loss(student, teacher, tau)
    slow = [[slow_kd(s.tolist(), t.tolist(), tau) for s, t in zip(a, b)] for a, b in zip(student, teacher)]
    assert alike(ours, torch.tensor(slow, dtype=torch.float64)) and (ours > 0).all()
    assert logit_loss(teacher + 7, teacher, tau).abs().max() < 1e-12

def test_size_of_the_gradient_does_not_depend_on_a_high_temperature():
    student, teacher = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True), torch.tensor([[1., 0, -1]])
    sizes = [torch.autograd.grad(logit_loss(student, teacher.double(), tau).sum(), student)[0].abs().max().item()
             for tau in (20., 200.)]
    assert sizes[0] == pytest.approx(sizes[1], rel=.01)


# ---- the explanations ----

def slow_similarity(a, b):
    norm = lambda x: math.sqrt(sum(v*v for v in x))
    return sum(x*y for x, y in zip(a, b)) / (norm(a)*norm(b)) if norm(a)*norm(b) > 0 else 0.

@pytest.mark.parametrize('scale', [1., 1e-170])
def test_explanation_loss_is_one_minus_cosine_similarity(scale):
    g = torch.Generator().manual_seed(0)
    a, b = (scale*torch.randn(6, 7, generator=g, dtype=torch.float64) for _ in range(2))
    counts = torch.rand(6, 7, generator=g) < .7
    counts[3], b[4], a[5] = False, 0., 0.
    a, b = (torch.where(counts, x, math.nan) for x in (a, b)) # values at pads and special tokens are ignored
    a.requires_grad_()
    ours = explanation_loss(a, b, counts)
    slow = [1 - slow_similarity((a[i][counts[i]]/scale).tolist(), (b[i][counts[i]]/scale).tolist()) for i in range(6)]
    slow[3] = slow[4] = 0. # no token counts; the explanation of the teacher is 0
    assert alike(ours, torch.tensor(slow, dtype=torch.float64), size=16) and slow[5] == 1
    gradient, = torch.autograd.grad(ours.sum(), a)
    assert gradient.isfinite().all() and not gradient[~counts].any() and gradient[:3].any()

def test_explanation_loss_does_not_depend_on_scale():
    x, counts = torch.randn(3, 5, dtype=torch.float64), torch.ones(3, 5).bool()
    assert explanation_loss(1e-9*x, x, counts).abs().max() < 1e-12
    assert explanation_loss(-x, x, counts).min() == pytest.approx(2)

def test_half_precision_is_compared_in_single_precision():
    x = torch.randn(3, 5).bfloat16()
    assert explanation_loss(x, x, torch.ones(3, 5).bool()).dtype == logit_loss(x, x).dtype == torch.float32

compared = [dict(), dict(explanation='gradient_norm', specials=True),
            dict(explanation='integrated_gradients', steps=2), dict(explanation='gradient_x_attention'),
            dict(explanation='attention', layers=(0, 1), teacher_layers=[0]),
            dict(explanation='rollout', rows='mean')]

def slow_saliency(model, batch, i, answer, name, steps=2):
    "Return one number for each real token of example i, from the definition"
    ids = batch['input_ids'][i][batch['attention_mask'][i].bool()][None]
    table = model.get_input_embeddings().weight.detach()
    def gradient(x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(inputs_embeds=x).logits[0, answer], x)[0]
    x = table[ids]
    if name == 'input_x_gradient': return (gradient(x)*x).sum(-1)[0]
    if name == 'gradient_norm': return gradient(x).norm(dim=-1)[0]
    start = table[model.config.pad_token_id].expand_as(x)
    mean = sum(gradient(start + (k + .5)/steps*(x - start)) for k in range(steps))/steps
    return (mean*(x - start)).sum(-1)[0]

@pytest.mark.parametrize('kwargs', compared[:3], ids=str)
def test_step_equals_the_equation_example_by_example(kwargs, tiny_data, tokens):
    "Use a student and a teacher of different depth, width and heads, and uneven lengths, in float64"
    student = other('classification', 'bert', tokens, layers=2, heads=4, hidden=32, seed=0).double().eval()
    teacher = other('classification', 'bert', tokens).double().eval()
    batch, method = batch_of(tiny_data, student,
                             tokens), Distillation.from_args(dict(teacher=teacher, temperature=2., weight=3., **kwargs))
    terms = step_terms(method, student, student, batch, Progress(), 'classification')
    special = batch['word_ids'] < 0
    for i in range(6):
        real = batch['attention_mask'][i].bool()
        z_t, z_s = (m(input_ids=batch['input_ids'][i][real][None]).logits[0] for m in (teacher, student))
        answer = int(z_t.argmax())
        assert terms['distillation'].loss[i].item() == pytest.approx(slow_kd(z_s.tolist(), z_t.tolist(), 2.), rel=1e-8)
        assert terms['teacher_agreement'].loss[i] == (z_s.argmax() == answer)
        counts = torch.ones_like(special[i][real]) if method.specials else ~special[i][real]
        a, b = (slow_saliency(m, batch, i, answer, method.explanation)[counts].tolist() for m in (student, teacher))
        assert terms['explanation'].loss[i].item() == pytest.approx(1 - slow_similarity(a, b), rel=1e-7, abs=1e-12)
    assert (terms['task'].weight, terms['explanation'].weight, terms['teacher_agreement'].weight) == (0., 3., 0.)

def test_attention_is_the_mean_over_layers_and_heads_of_each_model(tiny_data, tokens):
    student = other('classification', 'bert', tokens, layers=3, heads=4, hidden=32, seed=0).double().eval()
    teacher = other('classification', 'bert', tokens, layers=2).double().eval()
    batch = batch_of(tiny_data, student, tokens)
    method = Distillation(teacher, 'attention', layers=(-2, -1), teacher_layers=[0])
    ours = step_terms(method, student, student, batch, Progress(), 'classification')['explanation'].loss
    for model in (student, teacher): model.set_attn_implementation('eager')
    for i in range(6):
        ids, rows = batch['input_ids'][i][batch['attention_mask'][i].bool()][None], []
        for model, layers in ((student, (1, 2)), (teacher, (0,))):
            maps = model(input_ids=ids, output_attentions=True).attentions
            rows.append(sum(maps[l][0, h, 0] for l in layers for h in range(maps[l].shape[1]))[1:-1].tolist())
        assert ours[i].item() == pytest.approx(1 - slow_similarity(*rows), rel=1e-7)

@pytest.mark.sample(3)
@pytest.mark.parametrize('kwargs', compared, ids=str)
def test_copy_of_the_teacher_has_no_loss(kwargs, tiny_data, tokens):
    student = other('classification', 'bert', tokens, layers=2).double().eval()
    kwargs = {k: v for k, v in kwargs.items() if k != 'teacher_layers'}
    batch, method = batch_of(tiny_data, student,
                             tokens), Distillation.from_args(dict(teacher=copy.deepcopy(student), **kwargs))
    terms = step_terms(method, student, student, batch, Progress(), 'classification')
    total = sum(t.weight*t.loss for t in terms.values())
    assert total.abs().max() < 1e-12 and (terms['teacher_agreement'].loss == 1).all()

def test_gradient_through_the_saliency_equals_finite_differences(tiny_data, tokens):
    student = other('classification', 'bert', tokens, layers=2).double().eval()
    teacher = other('classification', 'bert', tokens, heads=4).double().train()
    before = copy.deepcopy(teacher.state_dict())
    batch, method = batch_of(tiny_data, student, tokens, range(3)), Distillation(teacher)
    def loss():
        return step_terms(method, student, student, batch, Progress(), 'classification')['explanation'].loss.sum()
    loss().backward()
    assert all(p.grad is None and p.requires_grad for p in teacher.parameters()) and teacher.training
    assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
    checked = 0
    for name, p in [x for x in student.named_parameters() if x[1].grad is not None][::5]:
        at = p.grad.abs().argmax()
        there, values = p.grad.flatten()[at].item(), []
        for step in (1e-5, -2e-5, 1e-5):
            with torch.no_grad(): p.view(-1)[at] += step
            values.append(loss().item())
        assert (values[0] - values[1])/2e-5 == pytest.approx(there, rel=1e-3, abs=1e-8), name
        checked += 1
    assert checked >= 4


# ---- in training ----

rows = [('classification', 'bert', dict(alpha=.5)), ('classification', 'gpt2', dict(explanation='attention')),
        ('classification', TextLSTM, dict(explanation='gradient_norm')), ('regression', 'llama', dict()),
        ('token_classification', 'bert', dict(explanation='rollout', rows='mean')),
        ('causal_lm', 'gpt2', dict(temperature=2.)), ('image_classification', DigitCNN, dict(explanation='gradient')),
        ('image_classification', 'vit', dict(explanation='gradient_x_attention')),
        ('series_classification', SeriesLSTM, dict())]

def taught(task, kind, data, tokenizer):
    "Return a model and a teacher that differs from it"
    if not isinstance(kind, str) or kind == 'vit':
        teacher = model_for(task, kind, data, tokenizer)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            for p in teacher.parameters(): p += .1*torch.randn_like(p)
        return model_for(task, kind, data, tokenizer), teacher
    return model_for(task, kind, data, tokenizer), other(task, kind, tokenizer)

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, kind, kwargs', rows, ids=lambda x: x if isinstance(x, str) else None)
def test_every_supported_task_can_be_trained(task, kind, kwargs, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    student, teacher = taught(task, kind, data, tokens)
    tokenizer = tokens if tasks[task].modality == 'text' else None
    method = Distillation.from_args(dict(teacher=teacher, **kwargs))
    run = train(student, tokenizer, data, method, tmp_path/'run', **quick)
    row = run.train_rows[0]
    assert run.finished and row['distillation'] > 0 and 0 < row['explanation'] <= 2
    assert row['task_weight'] == method.alpha
    assert row['loss'] == pytest.approx(method.alpha*row['task'] + row['distillation'] + row['explanation'], rel=1e-5)
    assert ('teacher_agreement' in row) == (task != 'regression')
    s = run.snapshot(0, 0)
    own, its = s.arrays['explanation'], s.arrays['teacher_explanation']
    assert own.shape == its.shape and own.any() and its.any()
    if tokenizer: assert own.shape == (len(s.tokens),) and not own[s.is_special].any() and not its[s.is_special].any()
    assert s.losses['explanation'] == pytest.approx(1 - slow_similarity(own.flatten(), its.flatten()), abs=1e-3)
    last = run.snapshot(-1, 0).arrays
    assert np.allclose(last['teacher_explanation'], its, atol=1e-6) and not np.allclose(last['explanation'], own)
    assert [r for r in run.path.rglob('*') if 'teacher' in r.name] == []

@pytest.mark.sample(1)
@pytest.mark.parametrize('kwargs', compared, ids=str)
def test_a_few_steps_bring_explanations_closer_to_the_teachers(kwargs, tiny_data, tokens):
    student = without_dropout(other('classification', 'bert', tokens, layers=2, heads=4, hidden=32, seed=0))
    batch = batch_of(tiny_data, student, tokens)
    method = Distillation.from_args(dict(teacher=other('classification', 'bert', tokens).double(), **kwargs))
    optimiser, seen = torch.optim.Adam(student.parameters(), lr=3e-3), []
    for _ in range(10):
        loss = step_terms(method, student, student, batch, Progress(), 'classification')['explanation'].loss.mean()
        loss.backward(); optimiser.step(); optimiser.zero_grad()
        seen.append(loss.item())
    assert seen[-1] < .9*seen[0]

@pytest.mark.slow
def test_without_a_weight_training_explains_nothing_and_probes_are_explained(tmp_path, tiny_data, tokens, monkeypatch):
    student, teacher = taught('classification', 'bert', tiny_data, tokens)
    modes, explained = [], Distillation.explained
    def noted(self, model, *args, **kwargs):
        modes.append(model.training)
        return explained(self, model, *args, **kwargs)
    monkeypatch.setattr(Distillation, 'explained', noted)
    run = train(student, tokens, tiny_data, Distillation(teacher, weight=0.), tmp_path/'run', **{**quick, 'epochs': 2})
    assert not any(modes) and 'explanation' not in run.train_rows[0] and 'explanation' in run.snapshot(0, 0).losses
    assert run.train_rows[0]['loss'] == pytest.approx(run.train_rows[0]['distillation'])

@pytest.mark.slow
def test_cached_answers_equal_those_of_a_step(tmp_path, tiny_data, tokens):
    "Two epochs use cached answers, one epoch does not: the first epoch is the same within rounding"
    runs = []
    for epochs in (1, 2):
        student, teacher = taught('classification', 'bert', tiny_data, tokens)
        method = Distillation(teacher.double())
        runs.append(train(without_dropout(student), tokens, tiny_data, method, tmp_path/str(epochs),
                          **{**quick, 'epochs': epochs, 'args': dict(lr_scheduler_type='constant')}))
        assert (method._cached is not None) == (epochs == 2)
    for name in ('distillation', 'explanation', 'teacher_agreement'):
        few, many = ([r[name] for r in run.train_rows[:5]] for run in runs)
        assert few == pytest.approx(many, rel=1e-8)

@pytest.mark.parametrize('kwargs', [dict(), pytest.param(dict(explanation='attention'), marks=pytest.mark.slow)])
def test_resumed_run_has_the_same_result(kwargs, tiny_data, tokens, tmp_path):
    class Breaks(Distillation):
        at = None
        def plan(self, model, batch, progress):
            if progress.step == self.at and model.training: self.at = None; raise KeyboardInterrupt
            return super().plan(model, batch, progress)
    Breaks.__name__, ends = 'Distillation', []
    for name, at in (('whole', None), ('cut', 7)):
        student, teacher = taught('classification', 'bert', tiny_data, tokens)
        method, settings = Breaks(teacher, **kwargs), {**quick, 'epochs': 2}
        method.at = at
        if at is not None:
            with pytest.raises(KeyboardInterrupt): train(student, tokens, tiny_data, method, tmp_path/name, **settings)
            another = Breaks(other('classification', 'bert', tokens, seed=5), **kwargs)
            with pytest.raises(ValueError, match='does not have the weights with which this run started'):
                train(taught('classification', 'bert', tiny_data, tokens)[0], tokens, tiny_data, another, tmp_path/name,
                      resume=True, **settings)
            student, method = taught('classification', 'bert', tiny_data, tokens)[0], Breaks(teacher, **kwargs)
        run = train(student, tokens, tiny_data, method, tmp_path/name, resume=at is not None, **settings)
        weights = torch.cat([p.detach().flatten() for p in student.parameters()])
        ends.append(([r['loss'] for r in run.train_rows], weights))
    assert ends[0][0] == ends[1][0] and torch.equal(ends[0][1], ends[1][1])

@pytest.mark.slow
def test_a_teacher_is_a_run_its_path_a_checkpoint_or_a_model(tmp_path, tiny_data, tokens):
    _, teacher = taught('classification', 'bert', tiny_data, tokens)
    run = train(teacher, tokens, tiny_data, None, tmp_path/'teacher', **{**quick, 'epochs': 2, 'keep': 2})
    best, logits_of = load_model(run)[0], {}
    step = next(step for step in run.checkpoints if step != run.best_step)
    checkpoint = run.checkpoints[step]
    batch = batch_of(tiny_data, best, tokens)
    for name, passed in dict(model=best, run=run, path=str(run.path), checkpoint=checkpoint).items():
        method = Distillation(passed)
        logits_of[name] = method.teach(method.loaded(best)[0], batch)[0]
        assert method.args()['teacher'] == ('BertForSequenceClassification' if name == 'model' else
                                            str(run.path) if name != 'checkpoint' else str(checkpoint))
    assert torch.equal(logits_of['model'], logits_of['run']) and torch.equal(logits_of['run'], logits_of['path'])
    with torch.no_grad():
        first = load_model(run, step)[0](**model_inputs(batch, best)).logits
    assert torch.equal(logits_of['checkpoint'], first) and not torch.equal(first, logits_of['run'])
    (run.path/'summary.json').unlink()
    with pytest.raises(ValueError, match='is not finished, so its best checkpoint may change'):
        Distillation(Run(run.path)).loaded(best)

@pytest.mark.slow
def test_combined_methods_can_be_trained(tmp_path, tiny_data, tokens):
    student, teacher = taught('classification', 'bert', tiny_data, tokens)
    both = Distillation(teacher, alpha=.25) + SaliencyGuided(mask_fraction=.4)
    run = train(student, tokens, tiny_data, both, tmp_path/'run', **quick)
    row = run.train_rows[0]
    parts = sum(row[k]*row.get(f'{k}_weight', 1) for k in ('task', 'distillation', 'explanation', 'consistency'))
    assert row['loss'] == pytest.approx(parts, rel=1e-5) and row['task_weight'] == .25
    assert {'explanation', 'teacher_explanation', 'method_saliency'} <= {*run.snapshot().arrays}
    with pytest.raises(ValueError, match='Distillation and AttentionGuidance both set a target for the attention of'):
        both = Distillation(teacher, 'attention') + AttentionGuidance({'first': [0]}, alpha=1.)
        train(student, tokens, tiny_data, both, tmp_path/'no', **quick)


# ---- warnings and errors ----

@pytest.mark.slow
def test_teacher_that_has_learned_nothing_raises_a_warning(tmp_path, tiny_data, tokens):
    student, teacher = taught('classification', 'bert', tiny_data, tokens)
    with torch.no_grad(): teacher.classifier.bias[1] += 100 # always predicts the second class
    said = 'the teacher is correct on 50% of 16 validation examples, no better than the majority'
    for name, method in dict(Distillation=Distillation(teacher), ADKD=ADKD(teacher)).items():
        with pytest.warns(UserWarning, match=f'{name}: {said}'):
            train(student, tokens, tiny_data, method, tmp_path/name, **{**quick, 'snapshots': 0})
    teacher.has_new_head = True
    with pytest.warns(UserWarning, match='the teacher is untrained. The head is new and untrained'):
        train(student, tokens, tiny_data, Distillation(teacher), tmp_path/'two', **{**quick, 'snapshots': 0})

@pytest.mark.parametrize('kwargs, words', [
    (dict(teacher=None), 'teacher must be a finished run or its path'), (dict(teacher=''), 'teacher must be'),
    (dict(explanation='occlusion'), "explanation='occlusion' cannot be trained, because it has no gradient"),
    (dict(explanation='eyes'), 'explanation must be one of'),
    (dict(weight=-1), 'weight must be a finite non-negative number'),
    (dict(alpha=math.inf), 'alpha must be a finite non-negative number'),
    (dict(temperature=0), 'temperature must be a finite number'),
    (dict(temperature=True), 'temperature must be'), (dict(rows='all'), 'rows must be one of'),
    (dict(specials=1), 'specials must be True or False'), (dict(steps=0), 'steps must be a positive integer')])
def test_constructor_rejects_invalid_arguments(kwargs, words):
    with pytest.raises(ValueError,
                       match='^Distillation: ') as e: Distillation.from_args({'teacher': 'minilm', **kwargs})
    assert words in str(e.value)

@pytest.mark.slow
def test_check_rejects_unsuitable_teachers(tmp_path, tiny_data, tokens):
    student, teacher = taught('classification', 'bert', tiny_data, tokens)
    def rejects(words, teacher=teacher, model=student, data=tiny_data, tokenizer=tokens, **kwargs):
        with pytest.raises(ValueError, match=words):
            train(model, tokenizer, data, Distillation.from_args(dict(teacher=teacher, **kwargs)), tmp_path/'no',
                  **quick)
        assert not (tmp_path/'no').exists()
    rejects('the teacher is the model that is trained', student)
    rejects('the teacher .* is for regression, but the model is for classification',
            small_model('regression', tokens, layers=1, heads=2, hidden=16))
    rejects('the teacher has 3 classes, but the model has 2', three(tokens))
    swapped, named = copy.deepcopy(teacher), copy.deepcopy(student)
    classes = 'negative', 'positive'
    swapped.config.id2label, named.config.id2label = dict(enumerate(classes[::-1])), dict(enumerate(classes))
    rejects('must have the same classes in the same order', swapped, named)
    wider = copy.deepcopy(teacher)
    wider.resize_token_embeddings(len(tokens) + 8)
    rejects('different vocabularies', wider)
    rejects('cannot read the .* tokens of the longest example', other('classification', 'bert', tokens, max_length=8))
    long = tiny_data['validation'].map(lambda row: dict(text=' '.join(['the']*60)))
    rejects('cannot read the 62 tokens', other('classification', 'bert', tokens, max_length=50),
            data=DatasetDict({**tiny_data, 'validation': long}))
    rejects("layers.*layers 0 to 0", explanation='attention', teacher_layers=[3])
    rejects('teacher_layers must contain at least one', explanation='attention', teacher_layers=[])
    rejects("identically zero", explanation='gradient')
    lstm = small_net('text-lstm', num_labels=2, tokenizer=tokens)
    rejects('the teacher: .*train a saliency', lstm, explanation='attention')
    images, net = examples('image_classification', tiny_data), small_net(DigitCNN, num_labels=2, shape=(3, 8, 8))
    rejects("explanation='attention' only applies to", copy.deepcopy(net), net, images, None, explanation='attention')
    rejects("explanation must be one of", copy.deepcopy(net), net, images, None, explanation='gradient_norm')
    rejects('was built for pixel_values', small_net(DigitCNN, num_labels=2, shape=(3, 10, 10)), net, images, None)
    words, model = examples('causal_lm', tiny_data), model_for('causal_lm', 'gpt2', tiny_data, tokens)
    rejects("the head of causal_lm reads every row; use rows='mean'", other('causal_lm', 'gpt2', tokens), model, words,
            explanation='attention')
    for task, kind in (('masked_lm', 'bert'), ('seq2seq', 'marian')):
        untaught = model_for(task, kind, tiny_data, tokens)
        rejects(f'does not support {task}', copy.deepcopy(untaught), untaught, examples(task, tiny_data))

def test_a_study_of_another_teacher_of_the_same_class_is_another_study(tmp_path, tiny_data, tokens):
    def study(seed):
        teacher = other('classification', 'bert', tokens, seed=seed)
        return Study(tmp_path/'study', lambda seed: (model_for('classification', 'bert', tiny_data, tokens), tokens),
                     tiny_data, dict(plain=Distillation(teacher), both=Distillation(teacher) + SaliencyGuided()))
    study(3), study(3)
    with pytest.raises(ValueError, match='a different design: methods.plain.weights.teacher changed .*; '
                                         'methods.both.weights'):
        study(4)

def three(tokens): return small_model('classification', tokens, layers=1, heads=2, hidden=16, num_labels=3)
