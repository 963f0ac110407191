"""Speed before and after an optimisation, measured in one run: `python tests/seconds.py snapshots`. If the earlier code
is gone, compare with another checkout: `python tests/seconds.py packing --before FOLDER`.
Nothing here is a test, because times depend on the machine."""
import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def seconds(act) -> float:
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()): act()
    return time.perf_counter() - start


def beside(title, before, now, rounds):
    "Print the least time of both versions, which run alternately"
    pairs = [(before and seconds(before), seconds(now)) for _ in range(rounds)]
    was, least = (min(column) if column[0] is not None else None for column in zip(*pairs))
    compared = '' if was is None else f', before {was:.2f} s ({was/least:.1f} times)'
    print(f'{title}: {least:.2f} s{compared}', flush=True)


def snapshots(many, rounds, before=True):
    "Time a run of `many` snapshots: opening each, sending all to an explorer, putting all into a page"
    import invented
    from salviz import Explorer
    from salviz.core.runs import Run
    from salviz.explorer.page import page
    looked = Run._is_sound
    def reading_the_folder(act):
        def acted():
            Run._is_sound = lambda run, path: False
            try: act()
            finally: Run._is_sound = looked
        return acted if before else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)/'run'
        invented.run(path, steps=range(many//2))
        def opened():
            run = Run(path)
            for place in run.recorded: run.snapshot(*place)
        def sent(): Explorer(Run(path)).settle(timeout=600)
        acts = {'opened': opened, 'sent to an explorer': sent, 'made a page': lambda: page(Run(path))}
        for title, act in acts.items(): beside(f'{many} snapshots {title}', reading_the_folder(act), act, rounds)


watching = """addEventListener('DOMContentLoaded', () => {
    window.told = {blocked: 0};
    const now = () => performance.now();
    new PerformanceObserver(tasks => { for (const task of tasks.getEntries())
        if (!told.map || task.startTime < told.map + 300) told.blocked += task.duration; })
        .observe({type: 'longtask', buffered: true});
    const look = () => {
        if (!told.map && document.querySelector('.sv-map canvas')?.width) setTimeout(() => { told.map ??= now(); });
        if (!told.curves && document.querySelector('.sv-curves .main-svg')) told.curves = now();
        requestAnimationFrame(look);
    };
    look(); });"""


def in_browser(rounds):
    "Time a page of 12 x 12 heads and 64 tokens in Chromium: until its first map, and until its curves"
    import browser
    import invented
    from playwright.sync_api import sync_playwright
    from salviz.explorer.page import page
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as pw:
        tokens = ['[CLS]', *(f'word{i}' for i in range(62)), '[SEP]']
        run = invented.run(Path(folder)/'run', 'ADDrop', probes=[0], tokens={0: tokens}, layers=12, heads=12)
        now, files = page(run, limit=None), {}
        waits = now[now.index('new Promise(done => { if (ask)'):].partition(';\n}')[0]
        for name, text in (('before', now.replace(waits, 'Promise.resolve()')), ('now', now)):
            files[name] = Path(folder)/f'{name}.html'
            files[name].write_text(text)
        chrome = pw.chromium.launch(executable_path=browser.chromium(), args=browser.flags)
        least = {}
        for name in [*files]*rounds:
            tab = browser.new_page(chrome)
            tab.add_init_script(watching)
            tab.goto(files[name].as_uri())
            tab.wait_for_function('() => window.told?.curves')
            told = tab.evaluate('() => told')
            least[name] = {k: min(x, least.get(name, told)[k]) for k, x in told.items()}
            tab.close()
        chrome.close()
    for name, told in least.items():
        print(f'{name}: first map {told["map"]:.0f} ms, curves {told["curves"]:.0f} ms, blocked until .3 s after the '
              f'map {told["blocked"]:.0f} ms')


def in_bf16(many, rounds):
    "Train `rounds` seeds in fp32 and in bf16 on `many` sentences of two classes, and print scores and times"
    import numpy as np
    import salviz
    data = salviz.subset(salviz.load_text('movie-polarity'), many, validation_size=50, test_size=300)
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(rounds):
            for precision in ('fp32', 'bf16'):
                model, tokenizer = salviz.load_classifier('minilm', num_labels=2, seed=seed)
                run = salviz.train(model, tokenizer, data, run_dir=Path(folder)/f'{precision}-{seed}', epochs=2,
                                   learning_rate=1e-4, snapshots=0, seed=seed, precision=precision, progress=False)
                scores = run.scores('test')
                least = min(row['seconds'] for row in run.train_rows)
                told.setdefault(precision, []).append((scores['accuracy'], scores['loss'], least))
                print(f'seed {seed} {precision}: accuracy {scores["accuracy"]:.3f}, loss {scores["loss"]:.3f}, '
                      f'quickest step {least:.2f} s {run.state.get("attention_kernel", "")}', flush=True)
    fp32, bf16 = (np.array(told[k]) for k in ('fp32', 'bf16'))
    print('bf16 beside fp32: accuracy {:+.3f}, loss {:+.3f}, time of a step {:.2f}'.format(
        *(bf16 - fp32)[:, :2].mean(0), bf16[:, 2].min()/fp32[:, 2].min()))


def _path(model, batch, target, places):
    "Return integrated gradients with (places, weights) on the path, and their expected sum"
    import torch
    from salviz.attribution.reading import Reading
    from salviz.attribution.saliency import begin, reduced
    reading = Reading(model, batch, targets=[target])
    start, total = begin(reading), 0.
    for at, weight in zip(*places): total = total + weight*reading.gradients(torch.lerp(start, reading.x, at)[None])
    gain = reading.scores_here - reading.scores(start[None])[:, 0]
    return reduced(reading.name, total[:, 0], reading.x - start)[0], gain[0]


def by_nodes(many, rounds):
    """Print the errors of input integrated gradients by Gauss's rule, which needs fewer passes, and by midpoints, for
    `rounds` trained models: the completeness error, and the difference from 200 midpoints"""
    import numpy as np
    import salviz
    from salviz.attribution.questions import as_batch
    from salviz.data.texts import model_inputs
    data = salviz.subset(salviz.load_text('movie-polarity'), 600, validation_size=50, test_size=max(100, many))
    gauss = {n: (np.polynomial.legendre.leggauss(n)[0]/2 + .5, np.polynomial.legendre.leggauss(n)[1]/2)
             for n in (5, 10, 20)}
    midpoints = {n: ((np.arange(n) + .5)/n, np.full(n, 1/n)) for n in (20, 200)}
    for seed in range(rounds):
        model, tokenizer = salviz.load_classifier('minilm', num_labels=2, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            run = salviz.train(model, tokenizer, data, run_dir=Path(folder)/'run', epochs=3, learning_rate=5e-5,
                               snapshots=0, seed=seed, progress=False)
            print(f'seed {seed}: accuracy {run.scores("test")["accuracy"]:.3f}', flush=True)
        model.eval().requires_grad_(False)
        batch = as_batch(model, data['test'].select(range(many)), tokenizer)
        target = model(**model_inputs(batch, model)).logits.argmax(-1)
        best, _ = _path(model, batch, target, midpoints[200])
        for name, places in [(f'Gauss {n}', x) for n, x in gauss.items()] + [('midpoints 20', midpoints[20])]:
            values, gain = _path(model, batch, target, places)
            lacking = (values.sum(1) - gain).abs()/gain.abs()
            off = (values - best).norm(dim=1)/best.norm(dim=1)
            print(f'  {name}: completeness error {lacking.median():.3f} ({lacking.max():.3f} at most), off by '
                  f'{off.median():.3f} ({off.max():.3f})', flush=True)


def _classifier(shape):
    from salviz.benchmarks.bench import model_shapes
    model, tokenizer = model_shapes[shape](0.)
    return model.eval(), tokenizer


def _explained(method, many, **options):
    "Return the processor seconds for explaining `many` sentences, after a warm-up with a few"
    from salviz.attribution.explanations import explain_data
    from salviz.data.texts import load_text
    model, tokenizer = _classifier('minilm')
    texts = load_text('movie-sentences')['train']['text'][:many]
    explain_data(model, texts[:4], method, tokenizer=tokenizer, progress=False, **options)
    start = time.process_time()
    explain_data(model, texts, method, tokenizer=tokenizer, progress=False, **options)
    return time.process_time() - start


def _attributed(many):
    "Return the processor seconds of gradient attribution of `many` texts of 64 tokens, in train mode, as in AD-DROP"
    from salviz.attribution.attention import attention_attribution
    from salviz.benchmarks.bench import bench_data
    model, tokenizer = _classifier('minilm')
    texts = list(bench_data(tokenizer, 64, many)['train']['text'])
    inputs = dict(tokenizer(texts, truncation=True, max_length=64, padding=True, return_tensors='pt'))
    attention_attribution(model, inputs, training=True)
    start = time.process_time()
    attention_attribution(model, inputs, training=True)
    return time.process_time() - start


def _tested(many):
    "Return the processor seconds of a faithfulness table of integrated gradients over `many` sentences"
    from salviz import faithfulness_table, load_text
    model, tokenizer = _classifier('minilm')
    data = load_text('movie-sentences')['train'].select(range(many))
    start = time.process_time()
    faithfulness_table(model, data, ['integrated_gradients'], tokenizer)
    return time.process_time() - start


def _peak(many):
    "Return the megabytes above the model while a model of BERT-base's shape explains a text of `many` tokens"
    from salviz.benchmarks.bench import Peak, bench_data
    from salviz.analysis.model_maps import _explain_texts
    model, tokenizer = _classifier('bert-base')
    text = bench_data(tokenizer, many, 1)['train'][0]['text']
    _explain_texts(model, tokenizer, 'a film', steps=2)
    peak = Peak()
    peak.reset()
    before = peak.megabytes()
    _explain_texts(model, tokenizer, text, max_length=many)
    return peak.megabytes() - before


def _studied(many):
    "Return the processor seconds in which a study without weights ends `many` trials with invented training"
    from datasets import ClassLabel, Dataset, DatasetDict
    from salviz.core.run_files import write_manifest
    from salviz.core.runs import Run
    from salviz.methods import FineTuning
    from salviz.models.corruption import small_model, train_tokenizer
    from salviz.studies.study import Study, StudyOptions
    part = Dataset.from_dict(dict(text=['a good film', 'a bad film']*8, label=[1, 0]*8))
    part = part.cast_column('label', ClassLabel(names=['bad', 'good']))
    tokenizer = train_tokenizer(list(part['text']), vocab_size=50)
    def bert(seed):
        sizes = dict(layers=1, heads=2, hidden=16, num_labels=2)
        return small_model('classification', tokenizer, seed=seed, **sizes), tokenizer
    def one(run): return 1.
    def trained(study, cell, check):
        run = Run.create(study.folder/'runs'/cell.name, dict(seed=cell.seed))
        checkpoint = run.path/'checkpoints'/'checkpoint-2'
        checkpoint.mkdir(parents=True)
        (checkpoint/'trainer_state.json').write_text('{"step": 2}')
        write_manifest(checkpoint)
        run.finish(test_accuracy=1.)
        return run, None
    Study._trained = trained
    with tempfile.TemporaryDirectory() as folder:
        study = Study(Path(folder)/'study', bert, DatasetDict(train=part, validation=part, test=part),
                      {'plain': FineTuning}, seeds=range(many), measures=[one],
                      options=StudyOptions(weights='none'), progress=False, epochs=1, snapshots=0)
        start = time.process_time()
        for cell in study.cells: study.run_cell(cell)
        return time.process_time() - start


def _rows_of_text(many):
    "Return a data set of `many` labelled sentences"
    from datasets import Dataset
    texts = [f'sentence {i} of a film that is neither good nor bad' for i in range(many)]
    return Dataset.from_dict(dict(text=texts, label=['bad', 'good']*(many//2)))


def _loaded_text(many):
    "Return the processor seconds of `load_text` for a data set of `many` rows"
    from salviz.data.texts import load_text
    source = _rows_of_text(many)
    start = time.process_time()
    load_text(source)
    return time.process_time() - start


def _checked_rows(many):
    "Return the processor seconds in which `train` checks `many` rows"
    from salviz.data.texts import load_text
    from salviz.training.feed import check_data
    model, data = _classifier('minilm')[0], load_text(_rows_of_text(many))
    start = time.process_time()
    check_data(model, data)
    return time.process_time() - start


def _imported(code):
    "Return a function that returns the processor seconds of running `code`, which imports, in this process"
    def seconds_of(many):
        start = time.process_time()
        exec(code, {})
        return time.process_time() - start
    return seconds_of


def _saliency_share(many):
    """Return the time of saliency (8 probes, 20 snapshots) in percent of an epoch of the packaged sentences, from
    training on `many` of them"""
    import salviz
    data, whole = salviz.load_text('movie-sentences'), len(salviz.load_text('movie-sentences')['train'])
    model, tokenizer = salviz.load_classifier('minilm', labels=data['train'].features['label'].names, seed=0)
    part = salviz.subset(data, many, validation_size=16, test_size=16)
    with tempfile.TemporaryDirectory() as folder:
        run = salviz.train(model, tokenizer, part, run_dir=Path(folder)/'run', epochs=1, snapshots=20, probes=8,
                           batch_size=16, progress=False)
        return 100*run.summary['saliency_seconds']/(run.summary['train_seconds']*whole/many)


def _guided_peak(many):
    "Return the megabytes above the model for a loss on integrated gradients of `many` nodes, 8 texts of 32 tokens"
    import torch
    from salviz.benchmarks.bench import Peak, bench_data
    from salviz.methods.rationale_guided import taught_saliency
    model, tokenizer = _classifier('minilm')
    texts = list(bench_data(tokenizer, 32, 8)['train']['text'])
    batch = dict(tokenizer(texts, truncation=True, max_length=32, padding=True, return_tensors='pt'))
    def step(steps):
        loss = taught_saliency(model, batch, 'integrated_gradients', steps=steps).square().sum()
        torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    step(1)
    peak = Peak()
    peak.reset()
    before = peak.megabytes()
    step(many)
    return peak.megabytes() - before


def _llama(many):
    "Return a random Llama of four layers and 30,522 words, its tokenizer, and a text of `many` tokens"
    from transformers import LlamaConfig, LlamaForCausalLM
    from salviz.benchmarks.bench import bench_data
    from salviz.models.loading import forked_random, load_classifier
    tokenizer = load_classifier('minilm', num_labels=2)[1]
    tokenizer.model_max_length = 4096
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=256, intermediate_size=704, num_hidden_layers=4,
                         num_attention_heads=8, max_position_embeddings=4096, pad_token_id=tokenizer.pad_token_id)
    with forked_random(0): model = LlamaForCausalLM(config).eval()
    return model, tokenizer, bench_data(tokenizer, many, 1)['train'][0]['text']


def _path_by_hand(model, ids, steps=20):
    "Return integrated gradients of the log-probability of the likeliest next token, from a direct implementation"
    import torch
    embed, total = model.get_input_embeddings(), 0.
    x, start = embed(ids).detach(), embed(torch.tensor([model.config.pad_token_id])).detach()
    def log_p(points):
        return model(inputs_embeds=points, logits_to_keep=1, use_cache=False).logits[:, -1].log_softmax(-1)
    with torch.no_grad(): token = int(log_p(x).argmax())
    for some in ((torch.arange(steps)[:, None, None] + .5)/steps).split(max(1, 1024//ids.shape[1])):
        points = torch.lerp(start, x, some).requires_grad_()
        total = total + torch.autograd.grad(log_p(points)[:, token].sum(), points)[0].sum(0)
    return (total/steps*(x[0] - start)).sum(-1)


def _next_explained(many, rounds=3):
    "Return the processor time for explaining the token after `many` others, relative to an equal manual loop"
    import torch
    from salviz.attribution.explanations import explain
    model, tokenizer, text = _llama(many)
    model.requires_grad_(False)
    ids = tokenizer(text, truncation=True, max_length=many, return_tensors='pt')['input_ids']
    batch = dict(input_ids=ids, attention_mask=torch.ones_like(ids))
    acts = [lambda: explain(model, batch, check=False).values[0], lambda: _path_by_hand(model, ids)]
    ours, theirs = (act() for act in acts)
    off = float((ours - theirs).abs().max()/theirs.abs().max())
    if off > 1e-4: raise RuntimeError(f'the two are {off:.1e} of the largest value apart')
    ratios = []
    for _ in range(rounds):
        took = []
        for act in acts:
            start = time.process_time()
            act()
            took.append(time.process_time() - start)
        ratios.append(took[0]/took[1])
    return sorted(ratios)[rounds//2]


def _next_explored(many, of_memory=False):
    "Return the processor seconds until `explore` of `many` tokens is complete, or the megabytes above the model"
    import salviz
    from salviz.benchmarks.bench import Peak
    model, tokenizer, text = _llama(many)
    salviz.explore(model, tokenizer, 'a film', steps=2).settle(timeout=600)
    peak = Peak()
    peak.reset()
    before, start = peak.megabytes(), time.process_time()
    salviz.explore(model, tokenizer, text, max_length=many).settle(timeout=3600)
    return peak.megabytes() - before if of_memory else time.process_time() - start


def _causal_step(many, method, rounds=3, **options):
    "Return the processor seconds of a training step on eight texts of `many` tokens, the least of `rounds`"
    import salviz
    from salviz.benchmarks.bench import Step, bench_data, trainer_for
    model, tokenizer, _ = _llama(many)
    data = bench_data(tokenizer, many, 8).remove_columns('label')
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_for(getattr(salviz, method)(**options), model, tokenizer, data, many, Path(folder)/'run')
        trainer.method.prepare(trainer)
        trainer.create_optimizer()
        step, took = Step(trainer, trainer.first_batch()), []
        for _ in range(rounds + 1):
            start = time.process_time()
            step()
            took.append(time.process_time() - start)
    return min(took[1:])


def _occluded(many):
    "Return the processor time of occlusion of `many` sentences, token by token, relative to Captum's FeatureAblation"
    import torch
    from captum.attr import FeatureAblation
    from salviz.attribution.explanations import explain_data
    from salviz.data.texts import load_text
    model, tokenizer = _classifier('minilm')
    model.requires_grad_(False)
    texts = load_text('movie-sentences')['train']['text'][:many]
    embed = model.get_input_embeddings()
    def captum():
        for text in texts:
            coded = tokenizer(text, return_tensors='pt')
            x, n = embed(coded['input_ids']), coded['input_ids'].shape[1]
            def logits(points):
                mask = coded['attention_mask'].expand(len(points), -1)
                return model(inputs_embeds=points, attention_mask=mask).logits
            with torch.no_grad():
                FeatureAblation(logits).attribute(
                    x, baselines=embed(torch.tensor([tokenizer.pad_token_id])).expand_as(x),
                    target=logits(x).argmax(-1), feature_mask=torch.arange(n)[None, :, None].expand_as(x),
                    perturbations_per_eval=n)
    acts, took = [lambda: explain_data(model, texts, 'occlusion', tokenizer=tokenizer, progress=False), captum], []
    for act in [*acts, *acts]: # the first round is a warm-up
        start = time.process_time()
        act()
        took.append(time.process_time() - start)
    return took[2]/took[3]


# {name: (function of a number, default of that number, unit)}
in_a_process = {
    'packing': (lambda many: _explained('integrated_gradients', many, steps=20), 64, 's'),
    'one pass': (lambda many: _explained('gradient_x_attention', many), 64, 's'),
    'rows': (_attributed, 16, 's'), 'table': (_tested, 16, 's'), 'memory': (_peak, 512, 'MB'),
    'study': (_studied, 40, 's'), 'load-text': (_loaded_text, 100_000, 's'), 'check': (_checked_rows, 10_000, 's'),
    'explorer': (_imported('from salviz import Explorer'), 1, 's'),
    'figure-help': (_imported('from salviz.cli import _describe_kinds; _describe_kinds()'), 1, 's'),
    'saliency': (_saliency_share, 320, '% of an epoch'), 'guided-memory': (_guided_peak, 20, 'MB'),
    'causal explanation': (_next_explained, 128, 'times a loop by hand'),
    'causal explore': (_next_explored, 1024, 's'),
    'causal memory': (lambda many: _next_explored(many, of_memory=True), 2048, 'MB'),
    'causal plain step': (lambda many: _causal_step(many, 'FineTuning'), 64, 's'),
    'causal AD-DROP GA step': (lambda many: _causal_step(many, 'ADDrop', cross_tuning=False), 64, 's'),
    'occlusion': (_occluded, 32, "times Captum's FeatureAblation")}

# {name: [(a key of `in_a_process`, its number)]}
several = {'causal': [*(('causal explanation', many) for many in (32, 128, 512)), ('causal plain step', 64),
                      ('causal AD-DROP GA step', 64), ('occlusion', 32), ('causal explore', 1024),
                      ('causal memory', 2048)]}


def beside_checkout(what, many, rounds, before):
    "Print the result of a process of this checkout and of one of the checkout `before`, which run alternately"
    here, unit = Path(__file__).parents[1], in_a_process[what][2]
    least = {}
    for name, tree in [('before', before), ('now', here)]*rounds:
        if tree is None: continue
        env = {**os.environ, 'PYTHONPATH': str(Path(tree).resolve()), 'OMP_NUM_THREADS': '1'}
        said = subprocess.run([sys.executable, __file__, what, '--many', str(many), '--within'], env=env, check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        least[name] = min(float(said.splitlines()[-1]), least.get(name, float('inf')))
    compared = f', before {least["before"]:.2f} {unit} ({least["before"]/least["now"]:.2f} times)' if before else ''
    print(f'{what}, {many}: {least["now"]:.2f} {unit}{compared}', flush=True)


def of_demo():
    "Print the times of the demo by part (training, evaluation, recording, explanations, pictures), and its results"
    import salviz.tour as tour
    from salviz.core.runs import Run
    drawing, draw = [], tour._write_pictures
    def drawn(*given):
        made = []
        drawing.append(seconds(lambda: made.append(draw(*given))))
        return made[0]
    tour._write_pictures = drawn
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        whole = seconds(lambda: tour.demo(Path(folder)/'demo'))
        worked, runs = time.process_time() - before, [Run(p) for p in sorted(Path(folder).glob('demo/runs/*'))]
        def of(name): return sum(run.summary[name] for run in runs)
        explained = sum(run.state.get('explanation_seconds', 0) for run in runs)
        parts = {'training': of('train_seconds'), 'recording': of('record_seconds'),
                 "SalLM's explanations": explained, 'pictures': sum(drawing)}
        parts['evaluation, loading and the rest'] = whole - sum(parts.values())
        print(f'demo: {whole:.1f} s, {worked:.1f} s of processors')
        for part, took in parts.items(): print(f'  {part}: {took:.1f} s ({took/whole:.0%})')
        print(f'  integrated gradients, while recording and for SalLM: {of("saliency_seconds") + explained:.1f} s')
        for run in runs: print(f'  {run.path.name}: {run.knowledge()[0]}')


if __name__ == '__main__':
    asks = argparse.ArgumentParser(description=__doc__)
    asks.add_argument('what', choices=['snapshots', 'browser', 'bf16', 'nodes', 'demo', *in_a_process, *several])
    asks.add_argument('--many', type=int, help='how many snapshots, sentences or tokens')
    asks.add_argument('--rounds', type=int, default=2, help='of each measurement; seeds of bf16 and nodes')
    asks.add_argument('--only-now', action='store_true', help='leave out how it was before')
    asks.add_argument('--before', type=Path, help=f'another checkout, for {", ".join([*in_a_process, *several])}')
    asks.add_argument('--within', action='store_true', help='measure in this very process, once, and say the number')
    given = asks.parse_args()
    many = given.many or (in_a_process[given.what][1] if given.what in in_a_process else 200)
    if given.within: print(in_a_process[given.what][0](many))
    elif given.what in several:
        for what, many in several[given.what]: beside_checkout(what, given.many or many, given.rounds, given.before)
    elif given.what in in_a_process: beside_checkout(given.what, many, given.rounds, given.before)
    elif given.what == 'snapshots': snapshots(many, given.rounds, not given.only_now)
    elif given.what == 'browser': in_browser(given.rounds)
    elif given.what == 'demo': of_demo()
    elif given.what == 'bf16': in_bf16(many, given.rounds)
    else: by_nodes(many, given.rounds)
