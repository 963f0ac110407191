"Models: loaded, made from scratch, their attention observed, their input corrupted."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
