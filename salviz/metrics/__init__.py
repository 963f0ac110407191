"Compute scores, plausibility, agreement and statistics."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
