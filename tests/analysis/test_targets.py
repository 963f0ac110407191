"KL divergence of attention from a teacher's target, against float64 loops over single texts without padding"
import copy
import math

import numpy as np
import pytest
import torch
from datasets import Dataset

from salviz.core.runs import Run
from salviz.data.texts import encode
from salviz.methods.base import FineTuning
from salviz.methods.sallm import SalLM
from salviz.models.loading import weights_checksum
from salviz.analysis.targets import target_divergences, target_kl, teacher_of
from salviz.studies.study import Study
from salviz.training.trainer import train

def double(model):
    wide = copy.deepcopy(model).double().eval()
    wide.set_attn_implementation('eager')
    return wide

def slow_kl(model, teacher, row, share, binarised, layers, per_head):
    "Return the KL divergence of one text, from the equation; None without a target"
    ids = torch.tensor([row['input_ids']])
    e = teacher.get_input_embeddings()(ids).detach().requires_grad_()
    slope, = torch.autograd.grad(teacher(inputs_embeds=e).logits[0, row['labels']], e)
    saliency = (slope*e).sum(-1)[0].tolist()
    counted = [i for i, special in enumerate(row['special_tokens_mask']) if not special]
    if binarised:
        many = max(1, math.ceil(share*len(counted) - 1e-6))
        marked = sorted(counted, key=lambda i: -saliency[i])[:many]
        target = {i: 1/many if i in marked else 0. for i in counted}
    else:
        total = sum(max(0., saliency[i]) for i in counted)
        if total == 0: return None
        target = {i: max(0., saliency[i])/total for i in counted}
    with torch.no_grad(): maps = model(ids, output_attentions=True).attentions
    divergences = []
    for layer in layers:
        heads = maps[layer][0, :, 0]
        for a in heads if per_head else heads.mean(0, keepdim=True):
            mass = sum(a[i].item() for i in counted)
            divergences.append(sum(t*math.log(t/(a[i].item()/mass)) for i, t in target.items() if t > 0))
    return np.mean(divergences)

def slow_placement(model, teacher, row, fraction):
    "Return the fraction of the [CLS] attention on marked tokens and the fraction of pairs in order, for one text"
    ids = torch.tensor([row['input_ids']])
    e = teacher.get_input_embeddings()(ids).detach().requires_grad_()
    slope, = torch.autograd.grad(teacher(inputs_embeds=e).logits[0, row['labels']], e)
    saliency = (slope*e).sum(-1)[0].tolist()
    counted = [i for i, special in enumerate(row['special_tokens_mask']) if not special]
    marked = sorted(counted, key=lambda i: -saliency[i])[:max(1, math.ceil(fraction*len(counted) - 1e-6))]
    with torch.no_grad(): a = model(ids, output_attentions=True).attentions[-1][0, :, 0].mean(0).tolist()
    others = [i for i in counted if i not in marked]
    in_order = [1. if a[i] > a[j] else .5 if a[i] == a[j] else 0. for i in marked for j in others]
    return sum(a[i] for i in marked)/sum(a[i] for i in counted), np.mean(in_order)

def test_mass_and_auc_equal_loops_over_tokens(tiny_bert, tiny_data, tiny_tokenizer):
    model, teacher, data = tiny_bert().eval(), tiny_bert(seed=5).eval(), tiny_data['test']
    with torch.no_grad():
        for m in (model, teacher):
            for p in m.parameters(): p.mul_(3)
    frame = target_divergences(model, data, tiny_tokenizer, teacher, batch_size=5, saliency='input_x_gradient',
                               top_fraction=.3)
    rows = encode(data, tiny_tokenizer)
    expected = np.array([slow_placement(double(model), double(teacher), row, .3) for row in rows])
    np.testing.assert_allclose(frame[['mass', 'auc']], expected, rtol=2e-4, atol=1e-6)
    assert frame.mass.std() > .01 and frame.auc.std() > .01

@pytest.mark.sample(1)
@pytest.mark.parametrize('binarised', [True, False])
@pytest.mark.parametrize('layers,per_head', [((-1,), False), ((0, 1), False), ((-1,), True)])
def test_each_divergence_equals_the_equation_for_its_text(tiny_bert, tiny_data, tiny_tokenizer, binarised, layers,
                                                        per_head):
    model, teacher, data = tiny_bert().eval(), tiny_bert(seed=5).eval(), tiny_data['test']
    with torch.no_grad():  # small random weights make attention almost uniform
        for m in (model, teacher):
            for p in m.parameters(): p.mul_(3)
    how = dict(top_fraction=.3, binarised=binarised)
    frame = target_divergences(model, data, tiny_tokenizer, teacher, batch_size=5, saliency='input_x_gradient',
                               layers=layers, per_head=per_head, **how)
    rows = encode(data, tiny_tokenizer)
    expected = [slow_kl(double(model), double(teacher), row, .3, binarised, layers, per_head) for row in rows]
    np.testing.assert_allclose(frame.kl, [np.nan if x is None else x for x in expected], rtol=2e-4, atol=1e-6)
    assert (frame.kl.dropna() > 0).all() and (abs(frame.kl - frame.uniform) > .05).any()
    assert list(frame.index) == list(range(len(data)))
    assert frame.tokens.tolist() == [n - 2 for n in rows['length']]
    mean = target_kl(model, data, tiny_tokenizer, teacher, saliency='input_x_gradient', layers=layers,
                     per_head=per_head, **how)
    assert mean == pytest.approx(np.nanmean(np.array(expected, float)), rel=2e-4)

def test_batch_size_does_not_matter(tiny_bert, tiny_data, tiny_tokenizer):
    frames = [target_divergences(tiny_bert().eval(), tiny_data['test'], tiny_tokenizer, steps=3, batch_size=n)
              for n in (1, 16)]
    np.testing.assert_allclose(frames[0], frames[1], rtol=1e-4)

def test_uniform_is_the_divergence_of_uniform_attention(tiny_bert, tiny_data, tiny_tokenizer):
    model = tiny_bert().eval()
    with torch.no_grad():  # all scores 0: every token gets the same attention
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight.zero_(); layer.attention.self.query.bias.zero_()
    for binarised in (True, False):
        frame = target_divergences(model, tiny_data['test'], tiny_tokenizer, steps=3, top_fraction=.4,
                                   binarised=binarised)
        np.testing.assert_allclose(frame.kl, frame.uniform, rtol=1e-4, atol=1e-6)

def test_a_text_without_a_target_is_nan_and_excluded_from_the_mean(tiny_bert, tiny_tokenizer):
    def saliency(model, batch, classes):  # no positive values in texts of three tokens
        x = torch.arange(batch['input_ids'].shape[1]).float().expand(batch['input_ids'].shape) + 1
        return torch.where(batch['attention_mask'].sum(1, keepdim=True) == 3, -x, x)
    data = Dataset.from_dict(dict(text=['film', 'a film and a plot', 'a story'], label=[0, 1, 0]))
    how = dict(saliency=saliency, binarised=False)
    frame = target_divergences(tiny_bert().eval(), data, tiny_tokenizer, **how)
    assert frame.kl.isna().tolist() == frame.uniform.isna().tolist() == [True, False, False]
    assert target_kl(tiny_bert().eval(), data, tiny_tokenizer, **how) == pytest.approx(frame.kl[1:].mean())

def test_models_and_random_generators_are_restored(tiny_bert, tiny_data, tiny_tokenizer):
    model, teacher = tiny_bert().train(), tiny_bert(seed=5).train()
    before = torch.get_rng_state(), weights_checksum(model), weights_checksum(teacher)
    target_kl(model, tiny_data['test'], tiny_tokenizer, teacher, steps=2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (weights_checksum(model), weights_checksum(teacher)) == before[1:]
    assert model.training and teacher.training and all(p.grad is None for p in model.parameters())

def test_invalid_teachers_and_settings_are_rejected(tiny_bert, make_tiny_bert, tiny_data, tiny_tokenizer):
    def ask(teacher=None, **settings):
        return target_kl(tiny_bert(), tiny_data['test'], tiny_tokenizer, teacher, **settings)
    with pytest.raises(ValueError, match='classification with 3 outputs, but the model for classification with 2'):
        ask(make_tiny_bert(num_labels=3))
    other = tiny_bert()
    other.resize_token_embeddings(50)
    with pytest.raises(ValueError, match='a different vocabulary'): ask(other)
    with pytest.raises(ValueError, match='unknown settings: loss'): ask(loss='mse')
    with pytest.raises(ValueError, match='top_fraction must be above 0'): ask(top_fraction=0)

@pytest.mark.slow
def test_a_study_measures_each_condition_with_its_teachers_explanations(tmp_path, tiny_bert, tiny_data,
                                                                            tiny_tokenizer):
    def attention_to_target(run, model, tokenizer, data):
        return target_kl(model, data['test'], tokenizer, teacher_of(run), steps=2)
    def student(run_of): return SalLM(teacher=run_of('FT'), steps=2, weight=5.)
    study = Study(tmp_path/'study', lambda seed: (tiny_bert(seed), tiny_tokenizer), tiny_data,
                  dict(FT=FineTuning, SalLM=student, own=SalLM(steps=2)), seeds=[3],
                  measures=['test_accuracy', attention_to_target], progress=False, epochs=1, batch_size=8, snapshots=0,
                  learning_rate=1e-3)
    frame = study.run().set_index('method')
    paths = {method: path_of(study, method) for method in ('FT', 'SalLM', 'own')}
    assert [teacher_of(Run(p)) for p in paths.values()] == [paths['FT'], paths['FT'], paths['own']/'teacher']
    assert frame.attention_to_target.notna().all()

def path_of(study, method): return next(study.folder/'runs'/c.name for c in study.cells if c.method == method)

@pytest.mark.slow
def test_a_teacher_is_found_after_its_study_was_moved(tmp_path, tiny_bert, tiny_data, tiny_tokenizer):
    how = dict(epochs=1, batch_size=8, snapshots=0, progress=False)
    first = train(tiny_bert(), tiny_tokenizer, tiny_data, FineTuning(), run_dir=tmp_path/'here'/'FT', **how)
    train(tiny_bert(), tiny_tokenizer, tiny_data, SalLM(teacher=first, steps=1), run_dir=tmp_path/'here'/'S', **how)
    (tmp_path/'here').rename(tmp_path/'there')
    assert teacher_of(tmp_path/'there'/'S') == tmp_path/'there'/'FT'
    (tmp_path/'there'/'FT').rename(tmp_path/'away')
    with pytest.raises(FileNotFoundError, match='pass the run of the teacher with teacher='):
        teacher_of(tmp_path/'there'/'S')
