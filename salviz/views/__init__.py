"Describe figures as numbers, words and captions, independent of any plotting library."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
