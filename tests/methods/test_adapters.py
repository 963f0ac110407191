"""Methods on models with adapters of peft: every supported row trains, checkpoints contain the adapter alone, and the
properties of training without adapters (accumulation, resuming, composition, processes, precision) are the same."""
import copy
import os

import datasets
import numpy as np
import pytest
import torch
from peft import (AdaLoraConfig, FourierFTConfig, HRAConfig, IA3Config, LNTuningConfig, LoHaConfig, LoKrConfig,
                  LoraConfig, OFTConfig, VeraConfig, get_peft_model)
from test_ad_drop import EVEN, close_to, collate, own, reference_plan, tiny
from test_ad_drop import examples as three_sentences
from test_tasks import (Breaks, evidence, examples, methods, model_for, quick, terms, # noqa: F401, a fixture
                        tokens, without_dropout)

import forked
from salviz.core.runs import Run
from salviz.methods import ADDrop, ADDropVariant, AttentionGuidance, FineTuning, SaliencyGuided, SalLM
from salviz.models.adapters import _adapter_kinds, _adapter_weights, adapter_file
from salviz.models.attention import unwrapped
from salviz.studies.study import Study
from salviz.training.trainer import load_model, train

inside = ['query', 'value', 'c_attn', 'q_proj', 'v_proj', 'query_proj', 'value_proj', 'q', 'v']
task_types = dict(classification='SEQ_CLS', regression='SEQ_CLS', token_classification='TOKEN_CLS',
                  seq2seq='SEQ_2_SEQ_LM', causal_lm='CAUSAL_LM', question_answering='QUESTION_ANS')

def with_lora(model, task='classification', **options):
    "Return `model` wrapped by peft, with LoRA in queries and values"
    options = {'task_type': task_types.get(task), **options}
    if task == 'replaced_token_detection': options['modules_to_save'] = ['discriminator_predictions']
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(model, LoraConfig(**{**dict(r=2, target_modules=inside), **options}))

def state_of(model): return {k: x.clone() for k, x in model.state_dict().items()}
def moved(before, model): return {k for k, x in model.state_dict().items() if not torch.equal(x, before[k])}

rows = [('classification', 'bert'), ('classification', 'gpt2'), ('token_classification', 'bert'),
        ('masked_lm', 'bert'), ('seq2seq', 'marian'), ('causal_lm', 'gpt2')]
rows += [pytest.param(*row, marks=pytest.mark.slow) for row in (
    ('classification', 'llama'), ('classification', 'deberta-v2'), ('regression', 'bert'),
    ('replaced_token_detection', 'electra'), ('seq2seq', 't5'), ('causal_lm', 'llama'),
    ('question_answering', 'bert'))]

@pytest.mark.sample(1)
@pytest.mark.parametrize('task, kind', rows, ids=lambda x: x)
def test_every_method_trains_an_adapter_for_its_supported_tasks(task, kind, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    for name, make in methods.items():
        base = model_for(task, kind, data, tokens)
        model, where = with_lora(copy.deepcopy(base), task), tmp_path/name
        before = state_of(model)
        if task not in make().task_names():
            with pytest.raises(ValueError, match=f'{name}: does not support {task}'):
                train(model, tokens, data, make(), run_dir=where, **quick)
            continue
        run = train(model, tokens, data, make(), run_dir=where, **quick)
        assert len(run.train_rows) == 3 and all(np.isfinite(r['loss']) for r in run.train_rows)
        assert terms[name] <= {*run.train_rows[0]} and evidence[name] <= {*run.snapshot().arrays}
        assert run.snapshot().info['task'] == task and 'attention' in run.snapshot().arrays
        changed = moved(before, model)
        assert changed and all('lora_' in k or 'modules_to_save' in k for k in changed)
        files = {p.name for p in run.best_checkpoint.iterdir()}
        assert adapter_file in files and not {'model.safetensors', 'optimizer.pt'} & files
        again, _ = load_model(run, base=base)
        assert all(torch.equal(x, model.state_dict()[k]) for k, x in again.state_dict().items()
                   if '.original_module.' not in k)


def some(config, **options): return config(task_type='SEQ_CLS', target_modules=['query', 'value'], **options)

configs = dict(lora_bias=lambda: some(LoraConfig, r=2, bias='all'), dora=lambda: some(LoraConfig, r=2, use_dora=True),
               rslora=lambda: some(LoraConfig, r=2, use_rslora=True), loha=lambda: some(LoHaConfig, r=2),
               ia3=lambda: IA3Config(task_type='SEQ_CLS', target_modules=['key', 'output.dense'],
                                     feedforward_modules=['output.dense']),
               lokr=lambda: some(LoKrConfig, r=2), oft=lambda: some(OFTConfig, r=2, oft_block_size=0),
               vera=lambda: some(VeraConfig, r=2), hra=lambda: some(HRAConfig, r=2),
               fourier=lambda: some(FourierFTConfig, n_frequency=8),
               norms=lambda: LNTuningConfig(task_type='SEQ_CLS', target_modules=['LayerNorm']))

def test_every_supported_kind_of_adapter_is_tested():
    assert {make().peft_type.value for make in configs.values()} == {*_adapter_kinds}

@pytest.mark.slow
@pytest.mark.parametrize('kind', configs)
def test_each_kind_of_adapter_is_trained_and_loaded_and_does_not_change_its_base(kind, tmp_path, tiny_bert,
                                                                                     tiny_tokenizer, tiny_data):
    base, method = tiny_bert(), SaliencyGuided(mask_fraction=.4) + ADDrop(p=.4, q=.5, cross_tuning=False)
    model = get_peft_model(copy.deepcopy(base), configs[kind]())
    before = state_of(model)
    run = train(model, tiny_tokenizer, tiny_data, method, run_dir=tmp_path/'run', **{**quick, 'learning_rate': 1e-2})
    trained = {x.data_ptr() for x in _adapter_weights(model).values()}
    assert (changed := moved(before, model))
    assert all(x.data_ptr() in trained for k, x in model.state_dict().items() if k in changed)
    loaded, _ = load_model(run, base=base)
    batch = dict(tiny_tokenizer([*tiny_data['test']['text']], padding=True, return_tensors='pt'))
    with torch.no_grad(): assert torch.equal(loaded(**batch).logits, model.eval()(**batch).logits)

def test_other_kinds_raise_before_a_run_is_opened(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    ada = get_peft_model(tiny_bert(), AdaLoraConfig(task_type='SEQ_CLS', total_step=9, target_modules=['query']))
    two = with_lora(tiny_bert())
    two.add_adapter('second', LoraConfig(task_type='SEQ_CLS', r=2, target_modules=['query']))
    quantised = with_lora(tiny_bert())
    unwrapped(quantised).is_quantized = True
    rejected = {'ADALORA adds its own loss': ada, 'has the adapters default, second': two,
               'pass the model that get_peft_model returned': unwrapped(with_lora(tiny_bert()))}
    if not torch.cuda.is_available(): rejected['is quantised, which needs a CUDA device'] = quantised
    for log, model in rejected.items():
        with pytest.raises(ValueError, match=log):
            train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
        assert not (tmp_path/'run').exists()

@pytest.mark.numeric
@pytest.mark.parametrize('kind', ['bert', 'gpt2'])
def test_the_plan_of_ad_drop_on_an_adapter_is_the_equations_applied_to_the_merged_model(kind):
    "The base is frozen, so nothing below the first adapter has a gradient; attention is still attributed"
    model = with_lora(tiny(kind)).double().eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            if 'lora_B' in name: x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(len(name))) * .3)
    merged = copy.deepcopy(model).merge_and_unload().eval().requires_grad_(True)
    rows = three_sentences()
    batch = collate(rows)
    plan = ADDrop(p=.3, q=.5, cross_tuning=False,
                  variant=ADDropVariant(first_pass='eval')).plan(unwrapped(model), batch, EVEN)
    for i, layers in enumerate(reference_plan(merged, rows, .3, .5, EVEN, kind != 'bert')):
        for l, (b, region, dropped) in enumerate(layers):
            seen = torch.ones(b.shape[1:]).tril() if kind != 'bert' else torch.ones(b.shape[1:])
            ours = own(plan.shown()['attention_attribution'][l], batch, i)
            torch.testing.assert_close(ours, b*seen, **close_to(kind))
            assert torch.equal(own(plan.evidence['discard_candidates'][l], batch, i), region)
            assert torch.equal(own(plan.drop[l], batch, i), dropped)

@pytest.mark.slow
@pytest.mark.parametrize('name', ['ADDrop', 'SaliencyGuided', 'AttentionGuidance', 'SalLM'])
def test_biases_alone_are_trained_without_peft(name, tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    "BitFit: everything but biases and the head is frozen, the embeddings too"
    model = tiny_bert()
    for key, p in model.named_parameters(): p.requires_grad_(key.endswith('bias') or key.startswith('classifier'))
    before = state_of(model)
    run = train(model, tiny_tokenizer, tiny_data, methods[name](), run_dir=tmp_path/'run', **quick)
    assert all(k.endswith('bias') or k.startswith('classifier') for k in moved(before, model))
    assert any(k.endswith('query.bias') for k in moved(before, model)) and evidence[name] <= {*run.snapshot().arrays}
    again, _ = load_model(run)
    assert all(torch.equal(x, model.state_dict()[k]) for k, x in again.state_dict().items())

served_rows = [('classification', 'bert', 'ADDrop'), ('classification', 'bert', 'SalLM'),
               ('classification', 'gpt2', 'SaliencyGuided'), ('regression', 'bert', 'AttentionGuidance'),
               ('token_classification', 'bert', 'ADDrop'), ('masked_lm', 'bert', 'AttentionGuidance'),
               ('seq2seq', 'marian', 'ADDrop')]

@pytest.mark.slow
@pytest.mark.parametrize('task, kind, name', served_rows, ids=lambda x: x)
def test_accumulated_micro_batches_of_an_adapter_are_one_batch(task, kind, name, tmp_path, tiny_data, tokens):
    data, ends = examples(task, tiny_data), []
    for batch_size, pieces in ((12, 1), (4, 3)):
        model = with_lora(without_dropout(model_for(task, kind, data, tokens)), task)
        run = train(model, tokens, data, methods[name](), run_dir=tmp_path/str(pieces),
                    **{**quick, 'batch_size': batch_size, 'gradient_accumulation': pieces, 'snapshots': 0})
        ends.append((torch.cat([x.flatten() for x in _adapter_weights(model).values()]),
                     [r['loss'] for r in run.train_rows]))
    (a, x), (b, y) = ends
    assert len(x) == 2 and np.allclose(x, y, rtol=1e-6) and torch.allclose(a, b, atol=1e-6)

@pytest.mark.slow
@pytest.mark.parametrize('task, kind, name', served_rows, ids=lambda x: x)
def test_an_adapter_trains_under_bf16_autocast_near_full_precision(task, kind, name, tmp_path, tiny_data, tokens):
    data, losses = examples(task, tiny_data), []
    for precision in (dict(), dict(bf16=True)):
        model, seen = with_lora(model_for(task, kind, data, tokens), task), set()
        inner = next(m for n, m in model.named_modules() if n.endswith('lora_A.default'))
        inner.register_forward_hook(lambda m, i, out: seen.add(out.dtype) if m.training else None)
        run = train(model, tokens, data, methods[name](), run_dir=tmp_path/str(len(losses)),
                    **{**quick, 'snapshots': 0, 'args': dict(use_cpu=True, **precision)})
        losses.append(run.train_rows[0]['loss'])
        assert torch.bfloat16 in seen if precision else seen == {torch.float32}
    assert losses[0] == pytest.approx(losses[1], rel=.05)

@pytest.mark.slow
@pytest.mark.parametrize('at', [2, 4])
def test_a_resumed_training_of_an_adapter_ends_like_an_uninterrupted_one(at, tmp_path, tiny_bert, tiny_tokenizer,
                                                                         tiny_data):
    data, settings, ends = examples('classification', tiny_data), {**quick, 'epochs': 2, 'snapshots': 3}, []
    def start(seed=0): return with_lora(tiny_bert(seed=seed), lora_dropout=.1)
    for out in ('whole', 'run'):
        method, model, how = Breaks(patterns={'first': [0]}, alpha=3.), start(), dict(run_dir=tmp_path/out, **settings)
        if out == 'run':
            method.at = at
            with pytest.raises(KeyboardInterrupt): train(model, tiny_tokenizer, data, method, **how)
            with pytest.raises(ValueError, match='model; pass the arguments with which the run was started'):
                train(start(seed=1), tiny_tokenizer, data, method, resume=True, **how)
            model = start()
        run = train(model, tiny_tokenizer, data, method, resume=out == 'run', **how)
        ends.append(([r['loss'] for r in run.train_rows], {k: x.clone() for k, x in _adapter_weights(model).items()}))
        assert [{k: x for k, x in s.arrays.items()} for s in run.snapshots()]
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(x, ends[1][1][k]) for k, x in ends[0][1].items())

@pytest.mark.slow
def test_damaged_checkpoint_of_an_adapter_is_skipped(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    settings, method = {**quick, 'epochs': 3, 'keep': 3}, Breaks(patterns={'first': [0]}, alpha=3.)
    method.at = 12
    how = dict(run_dir=tmp_path/'run', **settings)
    with pytest.raises(KeyboardInterrupt): train(with_lora(tiny_bert()), tiny_tokenizer, tiny_data, method, **how)
    last = Run(tmp_path/'run').checkpoints[10]
    whole = (last/adapter_file).read_bytes()
    (last/adapter_file).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=f'{adapter_file} does not match its checksum'):
        load_model(tmp_path/'run', 10, base=tiny_bert())
    with pytest.warns(UserWarning, match='resumes from checkpoint-5'):
        assert train(with_lora(tiny_bert()), tiny_tokenizer, tiny_data, method, resume=True, **how).finished

@pytest.mark.slow
def test_a_checkpoint_of_an_adapter_is_small_and_a_finished_run_keeps_no_more_of_it(tmp_path, tiny_bert,
                                                                                   tiny_tokenizer, tiny_data):
    sizes = {}
    for name, make in dict(whole=tiny_bert, adapter=lambda: with_lora(tiny_bert())).items():
        run = train(make(), tiny_tokenizer, tiny_data, run_dir=tmp_path/name, **{**quick, 'keep': 1})
        sizes[name] = sum(p.stat().st_size for p in run.best_checkpoint.glob('*.safetensors'))
        assert [*run.checkpoints.values()] == [run.best_checkpoint] and not run.check()
    assert sizes['adapter'] < sizes['whole'] / 4
    with pytest.raises(ValueError, match='contains a whole model, not an adapter; omit base'):
        load_model(tmp_path/'whole', base=tiny_bert())

def test_run_records_the_base_of_its_adapter_and_loads_it(tmp_path, tiny_bert, tiny_tokenizer,
                                                                          tiny_data):
    from transformers import BertForSequenceClassification
    tiny_bert().save_pretrained(tmp_path/'base')
    model = with_lora(BertForSequenceClassification.from_pretrained(tmp_path/'base'))
    run = train(model, tiny_tokenizer, tiny_data, run_dir=tmp_path/'run', **quick)
    assert run.config['model']['class'] == 'BertForSequenceClassification'
    assert run.config['model']['adapter'] == dict(kind='LORA', r=2, target_modules=sorted(inside), task_type='SEQ_CLS',
                                                  modules_to_save=['classifier', 'score'])
    assert run.config['model']['base']['name'] == str(tmp_path/'base')
    loaded, _ = load_model(run)
    assert type(loaded).__name__ == 'PeftModelForSequenceClassification' and not loaded.training
    assert all(torch.equal(x, _adapter_weights(loaded)[k]) for k, x in _adapter_weights(model).items())
    tiny_bert(seed=1).save_pretrained(tmp_path/'base')
    with pytest.raises(ValueError, match='does not have the weights that the adapter was trained on .* pass base='):
        load_model(run)
    (tmp_path/'base').rename(tmp_path/'elsewhere')
    with pytest.raises(ValueError, match="the base '.*base' of this adapter cannot be found .* pass base="):
        load_model(run)
    assert load_model(run, base=tiny_bert())

def trained_by_many(folder, out, batch_size):
    "Train every row of `served_rows`, in one process or in one of several"
    from transformers import PreTrainedTokenizerFast
    tokenizer = PreTrainedTokenizerFast.from_pretrained(f'{folder}/tokenizer')
    tiny_data = datasets.load_from_disk(f'{folder}/data')
    for i, (task, kind, name) in enumerate(served_rows):
        data = examples(task, tiny_data)
        model = with_lora(without_dropout(model_for(task, kind, data, tokenizer)), task)
        train(model, tokenizer, data, methods[name](), run_dir=f'{out}/{i}',
              **{**quick, 'batch_size': batch_size, 'args': dict(use_cpu=True)})

@pytest.mark.slow
def test_two_processes_train_an_adapter_like_one(tmp_path, tiny_data, tokens):
    "gloo on the CPU, without dropout, the same global batch: the same losses and adapters within rounding"
    tokens.save_pretrained(tmp_path/'tokenizer'); tiny_data.save_to_disk(tmp_path/'data')
    def begin(out, batch_size, **env):
        log = tmp_path/f'{out}{env.get("RANK")}'
        return forked.begin(trained_by_many, tmp_path, tmp_path/out, batch_size, said=log, env=env)
    group = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=str(34500 + os.getpid() % 2000), WORLD_SIZE='2',
                 LOCAL_WORLD_SIZE='2')
    for processes in ([begin('one', 8)], [begin('two', 4, RANK=r, LOCAL_RANK=r, **group) for r in '01']):
        for p in processes: p.join()
        assert [p.exitcode for p in processes] == [0]*len(processes), ''.join(
            p.read_text() for p in tmp_path.glob('*.err'))[-3000:]
    for i, (task, kind, name) in enumerate(served_rows):
        a, b = (Run(tmp_path/out/str(i)) for out in ('one', 'two'))
        assert b.finished and len(a.train_rows) == len(b.train_rows) == 3 and a.recorded == b.recorded
        assert np.allclose([r['loss'] for r in a.train_rows], [r['loss'] for r in b.train_rows], rtol=1e-6), task
        base = without_dropout(model_for(task, kind, examples(task, tiny_data), tokens))
        x, y = (_adapter_weights(load_model(r, base=base)[0]) for r in (a, b))
        assert all(torch.allclose(x[k], y[k], atol=1e-6) for k in x), task

def test_a_study_measures_a_model_with_an_adapter(tmp_path, tiny_bert, tiny_tokenizer, tiny_data):
    def adapted(seed): return with_lora(tiny_bert(seed=seed)), tiny_tokenizer
    def rank(model): return float(model.active_peft_config.r)
    table = Study(tmp_path/'study', model=adapted, data=tiny_data, methods=dict(plain=FineTuning()), seeds=[0],
                  measures=dict(rank=rank), **{k: v for k, v in quick.items() if k != 'progress'}).run()
    assert table['rank'].tolist() == [2.]
