"""Methods paragraphs and model cards state exactly what runs have recorded, with any names: LaTeX compiles, Markdown
and YAML read as written"""
import re
import shutil
import subprocess

import numpy as np
import pytest
import yaml

from helpers import full_disk
from salviz.core.run_files import write_object
from salviz.core.runs import Run
from salviz.metrics.methods_text import methods_text, model_card
from salviz.metrics.study_results import StudyResults

hostile = 'a_b%$&#{x}\\input{/etc/passwd} <script>|`*[y](z) ~^é\n---\nlicense: mit'
own_paper = '@misc{own2026paper,\n  author = {Nobody, A.},\n  title = {A Paper}\n}'
settings = dict(epochs=6, batch_size=16, learning_rate=3e-4, weight_decay=.01, gradient_accumulation=1, max_length=None,
                early_stopping=None, optimizer=None, scheduler=None)

def a_run(path, method='FineTuning', seed=0, args={}, cite=None, **more):
    "Create a finished run; `more`: entries of its config, None removes one"
    model = {'name': 'minilm', 'class': 'BertForSequenceClassification', 'layers': 6, 'heads': 12}
    data = dict(name='tweets', fingerprint='ab12'*16, sizes=dict(train=256, validation=128, test=400))
    config = dict(method=dict(name=method, args=args, cite=cite), model=model, data=data, seed=seed, settings=settings,
                  task='classification', best_metric=dict(name='accuracy'), versions=dict(python='3.11', torch='2.13'),
                  hardware=dict(processor='Some CPU', threads=1)) | more
    run = Run.create(path, {k: x for k, x in config.items() if x is not None})
    run.log(dict(kind='score', split='test', step=96, accuracy=.8 + seed/100, macro_f1=.7, examples=400))
    run.finish(best_step=96, train_seconds=60.)
    return run

def a_study(folder, methods=dict(FT='FineTuning', GA='ADDrop'), seeds=(0, 1), grid={}, measures=('test_accuracy',),
            **more):
    "Create a finished study; `more`: entries of the configs of its runs"
    cells = [dict(method=m, settings={k: v[0] for k, v in grid.items()}, seed=s, run=f'runs/{i}.seed={s}')
             for i, m in enumerate(methods) for s in seeds]
    for cell in cells:
        a_run(folder/cell['run'], methods[cell['method']], cell['seed'], **more)
        known = {m: dict(value=.8 + cell['seed']/100, version='') for m in measures}
        write_object(folder/f'cells/{cell["run"][5:]}.json', dict(measures=known))
    design = dict(methods={m: dict(name=kind, args=dict(p=.4, q=.2, layers=None) if kind == 'ADDrop' else {})
                           for m, kind in methods.items()}, seeds=list(seeds), settings=grid, model='minilm', train={},
                  data=dict(name='tweets', fingerprint='ab12', sizes=dict(train=256)))
    write_object(folder/'study.json', dict(format=1, design=design, cells=cells, measures=list(measures), better={}))
    return StudyResults.open(folder)

def test_the_grid_and_metrics_can_be_left_out_where_methods_have_settings_of_their_own(tmp_path):
    study = a_study(tmp_path/'s', grid=dict(rate=[.1, .5]), measures=('test_accuracy', 'gap', 'own'))
    text = methods_text(study, metrics=['test_accuracy'], grid=False)
    assert 'rate = ' not in text and 'custom metric' not in text and 'Metrics: accuracy on the test split' in text
    assert 'Each is trained with the seed' in text and 'rate = ' in methods_text(study)
    cells = [c | dict(settings=dict(p=.3) if c['method'] == 'GA' else {}) for c in study.manifest['cells']]
    study.manifest |= dict(cells=cells, design=study.manifest['design'] | dict(settings=dict(p=[.3])))
    for text in (methods_text(study), model_card(study)): assert 'Each is trained with the seed' in text


def test_text_contains_all_recorded_facts(tmp_path):
    text = a_study(tmp_path/'s', grid=dict(rate=[.1, .5]), measures=('test_accuracy', 'gap', 'own')).methods_text()
    for part in ('MiniLM-L6 (BertForSequenceClassification, 6 layers, 12 heads) [@wang2020minilm]',
                 'tweets [@hutto2014vader]', '256 for training, 128 for validation and 400 for test',
                 'SHA-256 ab12ab12ab12', 'Fine-tuning as “FT”',
                 'AD-DROP (p = 0.4) as “GA” [@yang2022addrop]',
                 'All other arguments have the defaults of salviz.', 'rate = 0.1 and 0.5', 'seeds 0 and 1',
                 '6 epochs',
                 'batches of 16', 'a learning rate of 0.0003', 'AdamW', 'best validation accuracy',
                 'accuracy on the test split', '“own”, a custom metric', 'Some CPU (1 thread)',
                 'Python 3.11, torch 2.13',
                 'of 4 runs took 4.0 minutes in total'): assert part in text, part
    assert 'test by' not in text and 'max length' not in text and 'None' not in text and 'missing' not in text

def test_text_omits_facts_that_are_not_recorded(tmp_path):
    bare = a_study(tmp_path/'s', settings=None, hardware=None, best_metric=None, data=None, model=None)
    text = bare.methods_text()
    for word in ('epochs', 'AdamW', 'Trained on', 'Scores are', 'Data:', 'model is', 'None'):
        assert word not in text, word
    unknown = model_card(Run(bare.folder/'runs/0.seed=0')).split('## What is not known')[1]
    assert 'the hardware' in unknown and 'which data it was trained on' in unknown and 'licence' in unknown

def test_text_names_precision_and_attention_kernel(tmp_path):
    in_bf16 = settings | dict(precision='bf16', attention_kernel='sdpa')
    text = a_study(tmp_path/'s', settings=in_bf16).methods_text()
    assert 'bf16 mixed precision, the sdpa attention kernel.' in text
    mixed = a_study(tmp_path/'t')
    assert 'bf16' not in mixed.methods_text()
    shutil.rmtree(tmp_path/'t/runs/1.seed=1')
    a_run(tmp_path/'t/runs/1.seed=1', 'ADDrop', 1, settings=in_bf16)
    text = mixed.methods_text()
    assert 'bf16 mixed precision in 1 of 4 runs' in text and 'kernel' not in text

def test_text_names_several_training_processes(tmp_path):
    study = a_study(tmp_path/'s', hardware=dict(processor='Some CPU', threads=1, processes=2))
    assert 'Trained on Some CPU (1 thread) by 2 processes in parallel, each with batches' in study.methods_text()
    assert 'in step' not in a_study(tmp_path/'t').methods_text()

def test_different_runs_are_described_separately(tmp_path):
    study = a_study(tmp_path/'s')
    shutil.rmtree(tmp_path/'s/runs/1.seed=1')
    other = settings | dict(batch_size=32, returns='last')
    a_run(tmp_path/'s/runs/1.seed=1', 'ADDrop', 1, hardware=None, settings=other,
          data=dict(name='movie-sentences', fingerprint='cd'*32, sizes=dict(train=64, test=400)))
    text = study.methods_text()
    for part in ('64 to 256 for training', 'batches of 16 or 32', 'not recorded for 1 run', 'movie sentences'):
        assert part in text, part
    assert 'Scores are' not in text # some score the best checkpoint, one the last step
    shutil.rmtree(tmp_path/'s/runs/0.seed=1')
    assert '1 of 4 runs are missing; the text describes the others.' in study.methods_text()

def test_differing_arguments_are_listed_without_paths(tmp_path):
    secret = tmp_path/'author-of-the-paper'
    study = a_study(tmp_path/'s', methods=dict(FT='FineTuning', taught='SalLM'), seeds=(0, 1, 2),
                    model={'name': str(secret/'models/mine'), 'layers': 6}, data=dict(name=str(secret/'tweets.csv')))
    for i in range(3):
        shutil.rmtree(tmp_path/f's/runs/1.seed={i}')
        args = dict(teacher=str(secret/f'runs/Fine-tuning.seed={i}'), weight=1., top_fraction=.2, saliency='gradient')
        a_run(tmp_path/f's/runs/1.seed={i}', 'SalLM', i, args=args, model=dict(name='minilm'))
    message = 'teacher differs between runs (Fine-tuning.seed=0, Fine-tuning.seed=1 and Fine-tuning.seed=2)'
    for text in (study.methods_text(), study.model_card(), study.methods_text('latex')):
        plain = text.replace('\\', '')
        assert message in plain and 'top fraction = 0.2' in plain and 'weight' not in plain.split('Training')[0]
        assert 'author-of-the-paper' not in plain and str(tmp_path) not in plain and 'Models: ' in plain
        assert 'mine' in plain and 'tweets.csv' in plain and 'simonyan2013deep' in plain # the teacher's saliency
    for i in range(3):
        shutil.rmtree(tmp_path/f's/runs/1.seed={i}')
        a_run(tmp_path/f's/runs/1.seed={i}', 'SalLM', i, args=dict(teacher=str(tmp_path/f's/runs/0.seed={i}')))
    assert 'SalLM (teacher = the FT run with the same seed) as “taught”' in study.methods_text()
    assert 'author' not in study.about and study.about.startswith('Models: ')
    both = a_run(tmp_path/'both', 'ADDrop + SalLM', 0, dict(ADDrop=dict(p=.3, q=.9), SalLM=dict(teacher=str(secret))))
    assert 'AD-DROP (q = 0.9) + SalLM (teacher = author-of-the-paper)' in model_card(both).replace('\\', '')

def test_only_the_requested_test_is_described(tmp_path):
    few, more = a_study(tmp_path/'few'), a_study(tmp_path/'more', seeds=range(100, 106))
    assert 'tested' not in few.methods_text()
    assert '2 pairs are fewer than the 4' in few.methods_text(compare_to='FT')
    text = more.methods_text(compare_to='FT', test='t', correction='none')
    assert 'two-sided paired t-test' in text and 'without correction' in text and 'fewer' not in text
    assert 'seeds 100 to 105' in text
    assert '6 pairs are fewer than the 20' in more.methods_text(compare_to='FT', test='bootstrap')
    for wrong in (dict(form='html'), dict(test='u'), dict(correction='x'), dict(compare_to='nobody')):
        with pytest.raises(ValueError, match='methods_text'): methods_text(few, **wrong)

@pytest.mark.parametrize('form, named', [('markdown', r'@(\w+)'), ('latex', r'cite\{([^}]*)\}')])
def test_citation_keys_match_entries(tmp_path, form, named):
    study = a_study(tmp_path/'s', methods=dict(FT='FineTuning', GA='ADDrop', mine='Mine'), cite=own_paper)
    text = study.methods_text(form)
    keys = {key for some in re.findall(named, text) for key in some.split(',')}
    assert keys == {re.match(r'@\w+\{([^,]+),', entry)[1] for entry in text.citations}
    assert {'own2026paper', 'yang2022addrop', 'wang2020minilm'} <= keys
    file = text.write(tmp_path/('methods.md' if form == 'markdown' else 'methods.tex'))
    assert file.read_text() == text + '\n' and 'own2026paper' in file.with_suffix('.bib').read_text()

def test_full_disk_keeps_the_old_text_file(tmp_path):
    text, file = a_study(tmp_path/'s').methods_text(), tmp_path/'methods.md'
    file.write_text('old')
    with full_disk(most=10), pytest.raises(OSError): text.write(file)
    assert file.read_text() == 'old' and sorted(p.name for p in tmp_path.iterdir()) == ['methods.md', 's']

def test_hostile_names_are_escaped(tmp_path):
    model, data = {'name': hostile, 'class': hostile}, dict(name=hostile, fingerprint=hostile, sizes=dict(train=3))
    cite = ['@misc{```x,\n a={b}}', 3, '@']
    study = a_study(tmp_path/'s', methods={hostile: hostile}, model=model, data=data, cite=cite,
                    hardware=dict(processor=hostile, threads='x'), versions=dict(python=hostile))
    latex, markdown = study.methods_text('latex'), study.methods_text()
    assert r'\input' not in latex and '\n' not in latex
    assert re.sub(r'\\.', '', markdown).count('<') == 0 and '\n' not in markdown
    card = model_card(Run(tmp_path/'s/runs/0.seed=0'), hostile)
    head, title = card.split('\n---\n', 1)
    known = yaml.safe_load(head.removeprefix('---\n'))
    assert set(known) <= {'tags', 'pipeline_tag', 'model-index'} and 'license' not in known
    assert not re.search('(?m)^license', title) and '<script' not in re.sub(r'\\<', '', title)
    if shutil.which('pdflatex'):
        (tmp_path/'a.tex').write_text('\\documentclass{article}\\begin{document}' + latex + '\\end{document}')
        done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'a.tex'], cwd=tmp_path,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]

def test_card_has_scores_and_limits(tmp_path):
    card = model_card(a_run(tmp_path/'run', 'ADDrop', 3, dict(p=.35, q=.2)))
    known = yaml.safe_load(card.split('\n---\n')[0].removeprefix('---\n'))
    result, = known['model-index'][0]['results']
    assert {m['type']: m['value'] for m in result['metrics']} == dict(accuracy=.8 + .03, macro_f1=.7)
    assert known['pipeline_tag'] == 'text-classification' and 'license' not in known
    for part in ('| accuracy | 0.83 |', 'AD-DROP (p = 0.35)', 'one seed', '400 examples', '{yang2022addrop'):
        assert part in card, part
    alone = Run.create(tmp_path/'unfinished', dict(seed=0))
    assert 'Training is not finished' in model_card(alone) and 'No score was recorded.' in model_card(alone)

def test_card_of_a_study_has_means_over_seeds(tmp_path):
    card = a_study(tmp_path/'s', seeds=range(4)).model_card('Two methods')
    assert '| GA | test accuracy | 0.815 ± 0.0129 | 4 |' in card and 'one seed' not in card
    assert 'model-index' not in card and '# Two methods' in card
    with pytest.raises(ValueError, match='source must be a Run or a study'): model_card(3)

def test_card_of_a_study_names_missing_runs_and_models_that_did_not_learn(tmp_path):
    study = a_study(tmp_path/'s')
    labels = np.array([0, 1]*50)
    for c in study.manifest['cells'][:2]:
        Run(tmp_path/'s'/c['run']).save_arrays('test_predictions', dict(labels=labels))
    assert 'missing' not in study.model_card() and 'not clearly better' not in study.model_card()
    for seed in (0, 1):
        shutil.rmtree(tmp_path/f's/runs/1.seed={seed}')
        write_object(tmp_path/f's/cells/1.seed={seed}.json', dict(error='RuntimeError: out of memory'))
    run = Run(tmp_path/'s/runs/0.seed=0')
    run.log(dict(kind='score', split='test', step=96, accuracy=.5, examples=400))
    limits = study.model_card().split('limitations\n')[1]
    assert '2 of 4 runs are missing, of which 2 failed.' in limits and 'No run of GA is finished' in limits
    assert 'The models of 1 of 2 runs are not clearly better than the largest class, for example: correct on 50%' in (
        limits)

def test_study_without_a_finished_run_raises(tmp_path):
    study = a_study(tmp_path/'s')
    shutil.rmtree(tmp_path/'s/runs')
    for write in (study.methods_text, study.model_card):
        with pytest.raises(ValueError, match='no finished run yet'): write()

def test_bundled_runs_have_model_cards():
    for name in ('plain', 'ad-drop'):
        card = model_card(Run.example(name))
        assert 'movie' in card and re.search('correct on 8[0-9]% of 758 test examples', card.replace('\\', ''))
