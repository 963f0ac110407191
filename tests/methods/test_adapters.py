"""Methods on models with adapters of peft: every served row trains, checkpoints hold the adapter alone, and what holds
of training without adapters (accumulation, resuming, composition, processes, precision) holds with them."""
import copy
import os

import datasets
import numpy as np
import pytest
import torch
from peft import (AdaLoraConfig, FourierFTConfig, HRAConfig, IA3Config, LNTuningConfig, LoHaConfig, LoKrConfig,
                  LoraConfig, OFTConfig, VeraConfig, get_peft_model)
from test_tasks import evidence, examples, methods, model_for, quick, terms, tokens # noqa: F401, a fixture

import forked
from helpers import alike
from salviz.core.runs import Run
from salviz.methods import ADDrop, AttentionGuidance, FineTuning, SaliencyGuided, SalLM
from salviz.methods.base import served
from salviz.models.adapters import adapter_file, adapter_kinds, adapter_weights, base_checksum
from salviz.models.attention import unwrapped
from salviz.training.trainer import load_model, train

pytestmark = pytest.mark.numeric
inside = ['query', 'value', 'c_attn', 'q_proj', 'v_proj', 'query_proj', 'value_proj', 'q', 'v']
task_types = dict(classification='SEQ_CLS', regression='SEQ_CLS', token_classification='TOKEN_CLS',
                  seq2seq='SEQ_2_SEQ_LM')

def with_lora(model, task='classification', **options):
    "`model` in peft's hands, with LoRA in queries and values"
    options = {'task_type': task_types.get(task), **options}
    if task == 'replaced_token_detection': options['modules_to_save'] = ['discriminator_predictions']
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return get_peft_model(model, LoraConfig(**{**dict(r=2, target_modules=inside), **options}))

def state_of(model): return {k: x.clone() for k, x in model.state_dict().items()}
def moved(before, model): return {k for k, x in model.state_dict().items() if not torch.equal(x, before[k])}

rows = [('classification', 'bert'), ('classification', 'gpt2'), ('classification', 'llama'),
        ('classification', 'deberta-v2'), ('regression', 'bert'), ('token_classification', 'bert'),
        ('masked_lm', 'bert'), ('replaced_token_detection', 'electra'), ('seq2seq', 'marian'), ('seq2seq', 't5')]

@pytest.mark.parametrize('task, kind', rows, ids=lambda x: x)
def test_every_method_trains_an_adapter_where_the_table_says_so(task, kind, tmp_path, tiny_data, tokens):
    data = examples(task, tiny_data)
    for name, make in methods.items():
        base = model_for(task, kind, data, tokens)
        model, where = with_lora(copy.deepcopy(base), task), tmp_path/name
        before = state_of(model)
        if task not in served[name]:
            with pytest.raises(ValueError, match=f'{name}: does not serve {task}'):
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
