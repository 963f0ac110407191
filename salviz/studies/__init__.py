"Train many models: trials, studies, trade-off fronts, designs in files, engines, progress and search."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
