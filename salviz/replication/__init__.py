"Re-test the claims of the four papers: training plans, effects and verdicts. Importing it does not need torch."
from salviz import lazy_names

_modules = {
    'verdicts': 'verdict Verdict',
    'plans': 'StudyPlan plans',
    'registry': 'Claim claims',
    'rows': 'read_rows',
    'reproduce': 'reproduce',
    'report': 'write_report',
    'tuned_report': 'write_tuned_report',
    'archive': 'write_archive'}
_home = {name: module for module, names in _modules.items() for name in names.split()}
__all__ = list(_home)
__getattr__ = lazy_names(__name__, **_home)
