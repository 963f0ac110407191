"Progress bars are text, not widgets, so that a saved notebook still shows them."
import json
from pathlib import Path

import nbformat
import pytest

import salviz
from outputs import in_a_kernel

cell = '''from salviz import *
model, tokenizer = load_classifier('movie-minilm')
data = subset(load_text('movie-polarity'), 8, validation_size=4, test_size=4)
train(model, tokenizer, data, probes=1, epochs=1, snapshots=2, batch_size=4, run_dir='run')'''

@pytest.mark.slow
def test_saved_training_cell_has_text_and_no_widget(tmp_path):
    path = tmp_path/'trained.ipynb'
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)]), path)
    outputs = in_a_kernel(path)[0]['outputs']
    assert 'widget' not in json.dumps(outputs)
    assert any('2/2' in output.get('text', '') for output in outputs if output['output_type'] == 'stream')
    assert any('finished' in output['data']['text/plain'] for output in outputs if 'data' in output)

def test_no_module_uses_progress_bars_that_a_saved_notebook_cannot_show():
    modules = list(Path(salviz.__file__).parent.rglob('*.py'))
    assert len(modules) > 100
    assert [path.name for path in modules if 'tqdm.auto' in (text := path.read_text()) or 'tqdm.notebook' in text] == []
