"Load and build models, observe their attention, and corrupt their input."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
