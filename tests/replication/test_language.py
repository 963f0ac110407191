"Studies of language models: every condition of every budget exists, pairs share their seed, metrics are right."
import math

import datasets
import numpy as np
import pytest
import torch

from salviz.replication import language, losses
from salviz.replication.plans import plans
from salviz.core.runs import Run
from salviz.models.corruption import small_model, train_tokenizer

names = 'MLM', 'MLM1', 'LR', 'PAT', 'RTD', 'MT', 'DOWN', 'COREF'
curves = {'average_loss', 'validation_loss', 'last_validation_loss', 'validation_curve_1', 'steps', 'seconds'}
columns = dict(MLM=curves | {'unigram_entropy'}, MLM1=curves | {'unigram_entropy'}, LR=curves | {'unigram_entropy'},
               PAT=curves | {'unigram_entropy'}, RTD=curves, DOWN={'test_accuracy', 'test_macro_f1', 'majority'},
               COREF=curves | {f'antecedent_{k}' for k in ('accuracy', 'same_half', 'mean_head', 'chance')})
texts = [f'{a} saw {b} near the {c}, and {d} was glad.'
         for a in ('anna', 'peter') for b in ('tom', 'the king') for c in ('house', 'sea', 'tree')
         for d in ('he', 'she')]
sizes = dict(train=16, validation=8, test=8)

@pytest.fixture(scope='module')
def words():
    "Return tokenizers of an encoder and of a translator"
    from salviz.analysis.antecedents import antecedent_sentences
    known = [*texts, *antecedent_sentences(36)['text']]
    return {form: train_tokenizer(known, 400, form=form, max_length=64) for form in ('encoder', 'seq2seq')}

def rows(name, seed):
    "Return a few rows for the plan `name`"
    chosen = np.random.default_rng(seed).permutation(len(texts)).tolist()
    def part(n):
        some = [texts[i] for i in (chosen*2)[:n]]
        if name == 'MT': return datasets.Dataset.from_dict(dict(text=some, target_text=some[::-1]))
        if name == 'DOWN':
            classes = datasets.Features(text=datasets.Value('string'), label=datasets.ClassLabel(names=['bad', 'good']))
            return datasets.Dataset.from_dict(dict(text=some, label=[i % 2 for i in range(n)]), classes)
        return datasets.Dataset.from_dict(dict(text=some))
    return datasets.DatasetDict({k: part(n) for k, n in sizes.items()})

def stand_ins(name, words):
    "Return model= and data= of minimal size, with as many heads as the conditions need"
    task = dict(RTD='replaced_token_detection', MT='seq2seq').get(name, 'masked_lm')
    tokenizer = words['seq2seq' if name == 'MT' else 'encoder']
    heads = 8 if name == 'PAT' else 4
    def made(seed, layers=1):
        return small_model(task, tokenizer, layers=1, heads=heads, hidden=8, seed=seed), tokenizer
    def classifier(seed, task, layers):
        return language._new_classifier(['bad', 'good'], tokenizer, seed, 1, 4, 8), tokenizer
    if name != 'DOWN': return dict(model=made, data=lambda seed: rows(name, seed))
    return dict(model=classifier, data=lambda seed, task: rows(name, seed))

def made(folder, name, budget, words, **more):
    "Return the study of the plan `name` with tiny models and data"
    return plans[name].study(folder, budget, **{**stand_ins(name, words), **more})

@pytest.mark.parametrize('name', names)
def test_every_budget_creates_its_study_with_all_conditions_and_its_own_seeds(name, words, tmp_path):
    arms, small = {}, None
    for budget in plans[name].sizes:
        study = made(tmp_path/budget, name, budget, words)
        arms[budget] = {(c.method, dict(c.settings).get('start')) for c in study.cells}
        least = min(study.seeds)
        assert least == 0 if budget == 'quick' else least >= 100, (budget, study.seeds)
        assert budget == 'quick' or len(study.seeds) >= 4
        if budget == 'small': small = study
    assert len(set(map(frozenset, arms.values()))) == 1
    assert set(plans[name].minutes) == set(plans[name].sizes) and set(plans[name].needs) <= set(plans[name].sizes)
    assert small.options.weights == ('best' if name == 'MLM' else 'none')
    assert small.train['snapshots'] == 0 and not small.progress

@pytest.mark.sample(1)
@pytest.mark.parametrize('name', [n for n in names if n != 'DOWN'])
def test_the_full_budget_trains_a_tiny_model_with_each_condition(name, words, tmp_path, monkeypatch):
    monkeypatch.setattr(language, '_exact_match', lambda data: 0.)
    monkeypatch.setattr(language, '_bleu', lambda data: 0.)
    study = made(tmp_path, name, 'full', words, seeds=[100], epochs=1, batch_size=8,
                 **dict(layers=(1,)) if name in ('MLM', 'MLM1') else {})
    table = study.run()
    assert not study.status().error.any(), study.status().error.tolist()
    assert columns.get(name, {'exact_match', 'bleu'} | curves) <= set(table.columns)
    assert set(table.method) == set(study.methods) and np.isfinite(table.average_loss).all()
    learning = {Run(study.folder/r).config['settings']['learning_rate'] for r in table.run}
    assert learning == {'LR': {2.5e-5, 4e-4}, 'MT': {5e-4}}.get(name, {1e-4})

def test_a_pair_shares_rows_weights_and_order_and_seeds_differ(words, tmp_path):
    study = made(tmp_path, 'MLM', 'small', words, seeds=(100, 101), layers=(1,))
    by_seed = {seed: [c for c in study.cells if c.seed == seed] for seed in study.seeds}
    texts_of = {seed: [study._data(c)['train']['text'] for c in cells] for seed, cells in by_seed.items()}
    assert texts_of[100][0] == texts_of[100][1] != texts_of[101][0]
    weights = {seed: [torch.cat([p.flatten() for p in study._load(c)[0].parameters()]) for c in cells]
               for seed, cells in by_seed.items()}
    assert torch.equal(*weights[100]) and not torch.equal(weights[100][0], weights[101][0])

@pytest.mark.slow
def test_pools_share_no_row_and_every_seed_stays_within_its_pool(monkeypatch):
    few = {sign: language._rated_sentences(sign) for sign in (False, True)}
    few = {sign: datasets.DatasetDict({k: d.select(range(200)) for k, d in data.items()}) for sign, data in few.items()}
    monkeypatch.setattr(language, '_rated_sentences', lambda sign=True: few[sign])
    _, pools = language._packed_sentences.__wrapped__(400, 64)
    sets = {k: set(part['text']) for k, part in pools.items()}
    for a, b in (('train', 'validation'), ('train', 'test'), ('validation', 'test')): assert not sets[a] & sets[b]
    for seed in (0, 7):
        some = language.drawn(lambda: pools, (50, 10, 10))(seed)
        assert all(set(some[k]['text']) <= sets[k] for k in sets)

@pytest.mark.slow
def test_test_sentences_of_classifiers_were_not_in_pre_training():
    rated, packed = language._rated_sentences(), language._rated_sentences(sign=False)
    assert set(rated['test']['text']) <= set(packed['test']['text'])
    assert not set(rated['test']['text']) & (set(packed['train']['text']) | set(packed['validation']['text']))

def test_missing_gpu_or_hub_raises_an_error_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    for name in names:
        with pytest.raises(ValueError, match=f"{name}: the budget 'full' needs a GPU, but none was found"):
            plans[name].study(tmp_path, 'full')
    assert not any(tmp_path.iterdir())

@pytest.mark.slow
def test_a_classifier_starts_with_the_body_of_the_language_model_of_its_seed(words, tmp_path):
    before = made(tmp_path, 'MLM', 'quick', words, layers=(1,), epochs=1)
    with pytest.raises(RuntimeError, match='run MLM first'):
        made(tmp_path, 'DOWN', 'small', words, seeds=[0], layers=1, epochs=1).run()
    table = before.run()
    study = made(tmp_path, 'DOWN', 'small', words, seeds=[0], layers=1, epochs=1)
    taken = {}
    for cell in study.cells:
        start = dict(cell.settings)['start']
        other, method, settings, seed = plans['DOWN'].starts(cell.method, dict(cell.settings), cell.seed)
        assert (other, method, settings, seed) == ('MLM', start, dict(layers=1), 0)
        model, _ = study._load(cell)
        class Trainer: pass
        Trainer.model = model
        study._method(cell).prepare(Trainer)
        taken[start] = model.bert.encoder.layer[0].attention.self.query.weight
        run = Run(before.folder/table[table.method == start].run.item())
        from salviz.models.checkpoints import load_model
        assert torch.equal(taken[start], load_model(run)[0].bert.encoder.layer[0].attention.self.query.weight)
    assert not torch.equal(*taken.values())
    assert columns['DOWN'] <= set(study.run().columns) and not study.status().error.any()

def test_a_model_of_the_size_of_roberta_is_one():
    tokenizer = train_tokenizer(texts, 200, max_length=16)
    model = language._new_model('masked_lm', tokenizer, 0, layers=1, heads=12, hidden=768)
    out = model(**{k: v for k, v in tokenizer(['anna saw tom. '*9], truncation=True, return_tensors='pt').items()
                   if k != 'token_type_ids'})
    assert type(model).__name__ == 'RobertaForMaskedLM' and out.logits.shape == (1, 16, len(tokenizer))
    again = language._new_classifier(['a', 'b', 'c'], tokenizer, 0, layers=1, heads=12, hidden=768)
    assert type(again).__name__ == 'RobertaForSequenceClassification' and again.config.num_labels == 3

def test_unigram_entropy_is_the_loss_of_a_model_of_token_frequencies():
    tokenizer = train_tokenizer(['a a b a c.'], 60, max_length=16)
    data = datasets.DatasetDict(train=datasets.Dataset.from_dict(dict(text=['a a b', 'a.'])),
                                validation=datasets.Dataset.from_dict(dict(text=['b a'])))
    ordinary = len(tokenizer) - len(tokenizer.all_special_ids)
    p = {word: (n + 1)/(5 + ordinary) for word, n in dict(a=3, b=1).items()}
    assert language._unigram_entropy(data, tokenizer) == pytest.approx(-(math.log(p['a']) + math.log(p['b']))/2)

def test_steps_to_reach_a_loss_match_a_loop_along_the_curve():
    rng = np.random.default_rng(0)
    for _ in range(50):
        curve, steps = np.sort(rng.random(10))[::-1], 600
        loss = rng.random()
        walked = math.inf
        for step in np.arange(30, 570.01, .5): # from the middle of the first part to that of the last one
            i = min(int((step - 30)//60), 8)
            if curve[i] + (curve[i+1] - curve[i])*(step - 30 - 60*i)/60 <= loss: walked = step; break
        assert losses.steps_to_reach(curve, loss, steps) == pytest.approx(walked, abs=.51)

def test_each_condition_omits_two_patterns_and_keeps_the_heads_of_the_others():
    kept = {name: spec().patterns for name, spec in language._omissions(10).items()}
    assert {len(p) for name, p in kept.items() if name != 'all'} == {3} and len(kept['all']) == 5
    assert all(p[name] == kept['all'][name] for p in kept.values() for name in p)
    assert not {'next', 'prev'} & set(kept['no next+prev'])
