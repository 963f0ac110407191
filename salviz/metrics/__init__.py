"Numbers: scores, plausibility, agreement, statistics."
from salviz import rooms_of

__getattr__ = rooms_of(__name__)
