"Many training runs: trials, studies, trade-off fronts, designs in files, execution on engines, progress, search."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
