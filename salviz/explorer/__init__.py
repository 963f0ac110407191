"Show the explorer in JupyterLab, as a page or as a static image, and show the views of bertviz."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
