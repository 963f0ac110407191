"Retraining the bundled classifier and runs: small versions here, in full in `make slow`."
import tarfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from salviz.cli import _parser
from salviz.core.examples import example_names
from salviz.core.runs import Run
from salviz.data.texts import load_text
from salviz.recipes import _example_probes, _make_classifier, _make_run, make_examples, pack_example_run
from salviz.models.loading import _taught_file, is_taught, load_classifier

def test_the_classifier_differs_from_minilm_only_in_the_trained_weights():
    taught, base = load_classifier('movie-minilm')[0], load_classifier('minilm', num_labels=2)[0]
    differs = {name for (name, x), y in zip(taught.named_parameters(), base.parameters()) if not torch.equal(x, y)}
    learned = load_file(_taught_file('movie-minilm'))
    assert differs <= set(learned) == {name for name, _ in taught.named_parameters() if is_taught(name)}
    assert sum(x.numel() for x in learned.values()) == 31874 and _taught_file('movie-minilm').stat().st_size < 1e5
    assert {x.dtype for x in learned.values()} == {torch.float16}

@pytest.mark.slow
def test_the_classifier_is_accurate_on_unseen_sentences():
    model, tokenizer = load_classifier('movie-minilm')
    test = load_text('movie-polarity')['test'].select(range(240))
    with torch.no_grad():
        said = [model(**tokenizer(test[i:i + 40]['text'], padding=True, return_tensors='pt')).logits.argmax(-1)
                for i in range(0, 240, 40)]
    right = (torch.cat(said).numpy() == np.array(test['label'])).mean()
    assert right > .8 # .87 of all 758; three standard errors of 240 are .065

def test_the_probes_are_eight_sentences_of_the_test_split():
    assert {*_example_probes} <= {*load_text('movie-polarity')['test']['text']} and len({*_example_probes}) == 8

@pytest.fixture(scope='module')
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp('examples')
    return folder, _make_classifier(folder, epochs=1, train_size=32), _make_run('plain', folder, 32, test_size=32)

@pytest.mark.slow
def test_retrained_files_have_the_format_of_the_bundled_ones(small):
    folder, classifier, plain = small
    made, shipped = load_file(folder/'movie-minilm.safetensors'), load_file(_taught_file('movie-minilm'))
    assert {k: (x.shape, x.dtype) for k, x in made.items()} == {k: (x.shape, x.dtype) for k, x in shipped.items()}
    example = Run.example('plain')
    assert plain.finished and [plain.snapshot(0, p).texts for p in plain.probes] == [
        example.snapshot(0, p).texts for p in example.probes] == [(text,) for text in _example_probes]
    assert plain.config['model'] == example.config['model'] and plain.config['method'] == example.config['method']

@pytest.mark.slow
def test_a_run_is_packed_without_weights_and_reproducibly(small, tmp_path):
    plain = small[2]
    for name in ('one', 'two'): pack_example_run(plain, tmp_path/name)
    assert (tmp_path/'one').read_bytes() == (tmp_path/'two').read_bytes()
    with tarfile.open(tmp_path/'one') as archive: archive.extractall(tmp_path, filter='data')
    copy = Run(tmp_path/'plain')
    assert copy.check() == [] and copy.checkpoints == {} and copy.recorded == plain.recorded
    assert copy.scores('test') == plain.scores('test')
    assert not any(p.name.startswith('.') for p in copy.path.rglob('*'))

def test_an_existing_folder_is_not_overwritten(tmp_path):
    with pytest.raises(FileExistsError, match='already exists; choose another folder'): make_examples(tmp_path)
    assert _parser().parse_args(['examples', 'here']).out == 'here'

@pytest.mark.slow
def test_retrained_runs_are_as_accurate_as_the_bundled_ones(tmp_path):
    make_examples(tmp_path/'made')
    for name in example_names:
        made, example = Run(tmp_path/'made'/name), Run.example(name)
        assert not made.knowledge()[1] and (tmp_path/'made'/f'{name}.tar.xz').is_file()
        difference = made.scores('test')['accuracy'] - example.scores('test')['accuracy']
        assert abs(difference) < .06, (name, difference) # four standard errors of 758 examples
