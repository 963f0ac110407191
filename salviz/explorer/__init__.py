"The explorer in JupyterLab and as a page, static images of it, bertviz's views."
from salviz import lazy_names

__getattr__ = lazy_names(__name__)
