"Many training runs: trials, studies, trade-off fronts, designs in files, execution on engines, progress, search."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
