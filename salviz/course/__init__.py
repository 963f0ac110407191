"Provide predictions, reveals, word marking, exercises and example runs for lessons, without requiring torch"
from salviz import lazy_names

_modules = {
    'material': 'course_run course_sentences course_base installed_base',
    'facts': 'fact truth',
    'bars': 'Bars',
    'pictures': 'ColouredSentence MapPicture',
    'kinds': 'words choice order number head slope',
    'predictions': 'Predict Reveal answers',
    'marks': 'Marks',
    'classroom': 'class_marks class_page marks_teacher teach',
    'exercises': 'check hint'}
_home = {name: module for module, names in _modules.items() for name in names.split()}
__all__ = list(_home)
__getattr__ = lazy_names(__name__, **_home)
