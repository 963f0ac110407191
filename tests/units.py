"Which tests a worker runs together, and in which order"
import re

import pytest

# The longest units start first, so that no worker is left alone with one at the end: files, or single notebooks.
longest_first = [
    'lab', 'test_docs', 'test_cli', '05_methods/02_ad_drop', '05_methods/05_sallm', 'test_tasks', 'test_live',
    'test_training', 'test_sallm', '05_methods/03_saliency_guided',
    '05_methods/04_attention_guidance', 'test_the_example_in_readme_works', '02_data/00_texts', 'test_explorer',
    'test_figures', 'test_payload', 'test_paper', 'test_js_panels', 'test_charts', 'test_bertviz', 'test_study',
    'test_attention_guidance', 'test_attribution']
in_lab = {'test_lab', 'test_lab_explorer', 'test_predictions_lab'}

def unit_of(nodeid):
    "Return the unit of a test, which one worker runs as a whole: JupyterLab, a file, or a single notebook"
    path, _, name = nodeid.partition('::')
    stem = path.rpartition('/')[2].removesuffix('.py')
    if stem in in_lab or 'jupyterlab' in name: return 'lab'
    notebook = re.fullmatch(r'test_(?:notebook_runs|slow_cells_run)\[(.*)\.ipynb\]', name)
    if notebook: return notebook[1]
    return name if name == 'test_the_example_in_readme_works' else stem

def in_order(item):
    "Return the sort key of a test: units of `longest_first`, other files, other notebooks"
    unit = unit_of(item.nodeid)
    if unit in longest_first: return longest_first.index(unit)
    return len(longest_first) + ('test_notebook_runs' in item.name)

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    "Give each worker whole units, in the order in which they were collected"
    from xdist.scheduler import LoadScopeScheduling
    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid): return unit_of(nodeid)
    return ByUnit(config, log)
