"""`python smoke.py` with an installed salviz: import every module, train with each method, and draw what was recorded.

The tests of releases run it with the oldest and the newest versions of the required packages."""
import pkgutil
from importlib import import_module, metadata
from pathlib import Path

import pandas as pd

import salviz

optional = {'dask', 'distributed', 'jupyterlab', 'krippendorff', 'latex2mathml', 'lightning', 'loky', 'mistune',
            'nbconvert', 'nbformat', 'optuna', 'peft', 'pymoo', 'ray', 'sacrebleu', 'submitit'} # of the extras

def import_everything():
    "Import all modules of salviz, except those that need a package of an extra"
    for found in pkgutil.walk_packages(salviz.__path__, 'salviz.'):
        try: import_module(found.name)
        except ModuleNotFoundError as e:
            if e.name.split('.')[0] not in optional: raise

def sentences():
    "Return a data set of short reviews with rationales"
    rows = [dict(text=f'{who} saw a {word} film', label=label, rationale=[[len(who) + 7, len(who) + 7 + len(word)]])
            for who in ('they', 'we', 'you', 'people', 'she', 'he')
            for word, label in (('fine', 'positive'), ('dull', 'negative'), ('great', 'positive'), ('bad', 'negative'))]
    return salviz.load_rationales(pd.DataFrame(rows), splits=(.6, .2, .2))

def main():
    import_everything()
    data = sentences()
    tokenizer = salviz.train_tokenizer(data['train']['text'], vocab_size=100)
    def model(): return salviz.small_model('classification', tokenizer, labels=['negative', 'positive'])
    def drop(): return salviz.ADDrop(cross_tuning=False)
    methods = [salviz.FineTuning(), salviz.SalLM(saliency='input_x_gradient'), salviz.SaliencyGuided(), drop(),
               salviz.AttentionGuidance(), salviz.RationaleGuided(), drop() + salviz.SaliencyGuided()]
    runs = {}
    for method in methods:
        run = salviz.train(model(), tokenizer, data, method, f'runs/{len(runs)}', epochs=1, snapshots=2, probes=2,
                           batch_size=8, progress=False)
        runs[type(method).__name__] = run
        assert run.finished and run.snapshot(-1).arrays
    teacher = runs['FineTuning']
    runs['Distillation'] = salviz.train(model(), tokenizer, data, salviz.Distillation(teacher), 'runs/distilled',
                                        epochs=1, snapshots=2, probes=2, batch_size=8, progress=False)
    for name, run in runs.items():
        salviz.save_figure(salviz.figure(run), f'{name}.pdf')
        salviz.figure(run, 'loss_curves', interactive=True).write_html(f'{name}.html')
    salviz.Explorer(runs['ADDrop'], compare=teacher).to_html('page.html')
    explorer = salviz.explore(*salviz.load_model(teacher), 'they saw a fine film', steps=2)
    explorer.settle()
    explorer.to_html('explored.html')
    drawn = [f'{name}.{ending}' for name in runs for ending in ('pdf', 'html')]
    for file in ('page.html', 'explored.html', *drawn): assert Path(file).stat().st_size > 1000, file
    shown = 'torch', 'transformers', 'numpy', 'matplotlib', 'datasets'
    print(*(f'{name} {metadata.version(name)}' for name in shown))

if __name__ == '__main__': main()
