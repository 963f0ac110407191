"Load texts, signals and rationales as data sets."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
