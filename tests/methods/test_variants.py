"Options of methods: at most eight arguments, presets, names of earlier versions, and recorded settings"
import inspect
import warnings
from dataclasses import MISSING, fields, replace
from typing import get_args

import pytest
import salviz
from salviz import Run, Study
from salviz.core.description import _arguments_words, default_arguments, method_fact
from salviz.core.renamed import RENAMED, first_settings, renamed_settings
from salviz.core.run_files import read_object, sealed
from salviz.methods import (
    ADDrop, ADDropVariant, AttentionGuidance, AttentionGuidanceVariant, Distillation, DistillationVariant, FineTuning,
    RationaleGuided, RationaleGuidedVariant, SaliencyGuided, SaliencyGuidedVariant, SalLM, SalLMVariant)

pairs = [(ADDrop, ADDropVariant), (SaliencyGuided, SaliencyGuidedVariant), (SalLM, SalLMVariant),
         (AttentionGuidance, AttentionGuidanceVariant), (RationaleGuided, RationaleGuidedVariant),
         (Distillation, DistillationVariant)]
needed = {Distillation: dict(teacher='minilm')}
together = { # arguments or options that an option requires
    (ADDrop, 'nodes'): dict(attribution='integrated_gradients'), (ADDrop, 'random_form'): dict(attribution='random'),
    (ADDrop, 'reading'): dict(attribution='integrated_gradients'),
    (ADDrop, 'pseudo_label'): dict(attribution='integrated_gradients'),
    (SaliencyGuided, 'steps'): dict(saliency='integrated_gradients'),
    (SalLM, 'padded_to'): dict(loss='released'), (SalLM, 'target_positions'): dict(target='all_released'),
    (SalLM, 'unlabelled_ratio'): dict(unlabelled=['a film']),
    (SalLM, 'unlabelled_weight'): dict(unlabelled=['a film'])}
values = dict(until=.5, task_fraction=1., nodes=5, constant_steps=7, steps=7, heads=[1], refresh=2,
              unlabelled=['a film'], unlabelled_ratio=2, unlabelled_weight=.5, delta=2., margin=2., negatives=3,
              normalise='softmax')


def another(field):
    "Return a value of `field` that differs from its default"
    if field.name in values: return values[field.name]
    if field.type is bool: return not field.default
    parts = [part for part in get_args(field.type) if not isinstance(part, str)] or [field.type]
    return next(x for part in parts for x in get_args(part) if x != field.default)


def test_each_constructor_has_at_most_eight_arguments():
    kinds = [x for x in vars(salviz.methods).values() if inspect.isclass(x) and issubclass(x, salviz.Method)]
    assert len(kinds) > 8
    counts = {kind.__name__: len(inspect.signature(kind).parameters) for kind in kinds}
    assert {name: n for name, n in counts.items() if n > 8} == {}


def test_each_variant_is_public_and_its_fields_are_annotated_and_have_defaults():
    for kind, variant in pairs:
        assert getattr(salviz, variant.__name__) is variant
        assert kind(**needed.get(kind, {})).variant == variant()
        assert all(f.default is not MISSING and not isinstance(f.type, str) for f in fields(variant))


@pytest.mark.parametrize('kind,variant,name', [(kind, variant, f.name) for kind, variant in pairs
                                               for f in fields(variant)])
def test_each_option_as_a_keyword_of_earlier_versions_warns_and_makes_an_equal_method(kind, variant, name):
    x = another(next(f for f in fields(variant) if f.name == name))
    more = {**needed.get(kind, {}), **together.get((kind, name), {})}
    options = {k: v for k, v in more.items() if k in {f.name for f in fields(variant)}}
    arguments = {k: v for k, v in more.items() if k not in options}
    new = kind(**arguments, variant=variant(**options, **{name: x}))
    with pytest.warns(DeprecationWarning, match=rf'{kind.__name__}\(.*{name}=.*variant={variant.__name__}\(.*{name}='):
        old = kind(**arguments, **options, **{name: x})
    assert old.args() == new.args() and old.variant == new.variant and repr(old) == repr(new)
    assert getattr(old, name) == x # options can be read from the method as well


@pytest.mark.parametrize('kind,old,new', [(kind, old, new) for kind, _ in pairs
                                          for old, new in RENAMED.get(kind.__name__, {}).items()])
def test_each_renamed_argument_warns_and_makes_an_equal_method(kind, old, new):
    more, x = (dict(patterns={'mine': [0]}), dict(mine=abs)) if new == 'custom' else ({}, .25)
    with pytest.warns(DeprecationWarning, match=rf'{kind.__name__}\({old}=.*until salviz 0.4; write .*\({new}='):
        method = kind(**more, **{old: x})
    assert method.args() == kind(**more, **{new: x}).args()
    with pytest.warns(DeprecationWarning, match=f'{kind.__name__}.{old} is now called {new}'):
        assert getattr(method, old) == x


def test_warning_points_to_the_caller_and_old_keyword_keeps_the_preset():
    with pytest.warns(DeprecationWarning) as caught: method = ADDrop(variant='released', region='low')
    assert caught[0].filename == __file__
    assert method.variant == ADDropVariant(after_dropout=True, region='low')


@pytest.mark.parametrize('method,options', [
    (lambda v: ADDrop(variant=v), dict(after_dropout=True)),
    (lambda v: ADDrop(attribution='attention', variant=v), dict(after_dropout=True)),
    (lambda v: ADDrop(attribution='integrated_gradients', variant=v), dict(pseudo_label='each_step')),
    (lambda v: ADDrop(attribution='integrated_gradients', target='gold', variant=v), dict()),
    (lambda v: ADDrop(attribution='random', variant=v), dict(random_form='positions')),
    (lambda v: SaliencyGuided(variant=v), dict(fill_range='sample', score='log_probability')),
    (lambda v: SalLM(variant=v), dict(loss='released', target='all_released', after_dropout=True)),
    (lambda v: AttentionGuidance(variant=v), dict(boundary='zero', multiple='indicator', after_dropout=True,
                                                  schedule='constant-then-linear')),
    (lambda v: RationaleGuided(loss='huber', variant=v), dict(delta=1., normalise='softmax')),
    (lambda v: RationaleGuided('input_x_gradient', 'huber', variant=v), dict(delta=1.)),
    (lambda v: Distillation('minilm', variant=v), dict())])
def test_presets_are_their_explicit_options(method, options):
    released, paper = method('released'), method('paper')
    kind = type(released.variant)
    assert released.variant == kind(**options) and paper.variant == kind()
    assert released.args() == method(kind(**options)).args() and released.args() == {**paper.args(), **options}


def test_repr_of_a_variant_contains_differences_only():
    assert 'variant' not in repr(ADDrop()) and 'region' not in repr(ADDrop())
    assert repr(ADDrop(variant=ADDropVariant(region='low'))).endswith(", variant=ADDropVariant(region='low'))")
    assert repr(SalLM(variant='released')).endswith(", variant='released')")
    assert repr(SalLMVariant(unlabelled=['a film']*20)) == 'SalLMVariant(unlabelled=a list)'


@pytest.mark.parametrize('make,message', [
    (lambda: ADDrop(variant='code'),
     "ADDrop: variant must be 'paper', 'released' or an instance of ADDropVariant, got 'code'"),
    (lambda: ADDrop(variant=SalLMVariant()), 'ADDrop: variant must be .* got a SalLMVariant'),
    (lambda: ADDropVariant(region='middle'), "ADDrop: region must be one of 'high', 'low', 'low_released'"),
    (lambda: SalLMVariant(refresh=0), 'SalLM: refresh must be None or a positive integer, got 0'),
    (lambda: ADDrop(cross_tuning='yes'), "ADDrop: cross_tuning must be True or False, got 'yes'")])
def test_malformed_variants_are_rejected(make, message):
    with pytest.raises(ValueError, match=f'^{message}'): make()


def test_unknown_keyword_raises_the_usual_error():
    with pytest.raises(TypeError, match="unexpected keyword argument 'regions'"): ADDrop(regions='low')


def test_argument_under_both_of_its_names_is_rejected():
    with pytest.raises(TypeError, match='masked_share is now called mask_fraction; omit masked_share'):
        SaliencyGuided(masked_share=.2, mask_fraction=.3)


def test_derived_method_keeps_its_arguments():
    class Mine(SaliencyGuided):
        def __init__(self, masked_share, **more):
            super().__init__(weight=2., **more)
            self.masked_share = masked_share
    method = Mine(.3, variant='released')
    assert method.variant.score == method.score == 'log_probability' and method.args() == dict(masked_share=.3)
    assert Mine.from_args(dict(masked_share=.2)).masked_share == .2 and Mine.accepted() == dict(masked_share=True)
    with pytest.warns(DeprecationWarning, match='SaliencyGuided'): method = Mine(.3, first='keep')
    assert method.first == 'keep'


def test_a_variant_cannot_be_changed_and_a_method_can_be_copied_with_changes():
    method = ADDrop(variant='released')
    with pytest.raises(AttributeError): method.variant.region = 'low'
    assert method.replaced(attribution='random').random_form == 'positions' # the preset, not its options
    assert method.replaced(p=.5, region='low').args() == {**method.args(), 'p': .5, 'region': 'low'}
    assert replace(method.variant, region='low') == ADDropVariant(region='low', after_dropout=True)


@pytest.mark.parametrize('name', ['sallm', 'saliency-guided', 'ad-drop', 'attention-guidance'])
def test_methods_of_bundled_runs_are_constructed_without_a_warning(name):
    run = Run.example(name)
    recorded = run.config['method']
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        method = getattr(salviz, recorded['name']).from_args({**recorded['args'], 'teacher': None}
                                                             if 'teacher' in recorded['args'] else recorded['args'])
    differs = {k for k, x in method.args().items() if k in recorded['args'] and x != recorded['args'][k]} - {'teacher'}
    assert differs <= {'layers'} and recorded['args'].keys() <= method.args().keys() # a tuple became a list
    old_names = {old for names in RENAMED.values() for old in names}
    info = run.snapshot(-1, 0).info
    for settings in (recorded['args'], info['args'], *info['methods'].values()): assert not old_names & {*settings}
    assert not any(name.replace('_', ' ') in (method_fact(run.config).words or '') for name in old_names)


def test_defaults_that_descriptions_leave_out_are_those_of_the_methods():
    for kind, _ in pairs:
        recorded = salviz.training.settings.plain(kind(**needed.get(kind, {})).args())
        defaults = default_arguments()[kind.__name__]
        assert {k: recorded[k] for k in defaults if k != 'teacher'} == {k: x for k, x in defaults.items()
                                                                      if k != 'teacher'}
        assert 'variant' not in defaults
    assert _arguments_words('SalLM', SalLM().args() | dict(layers=[-1])) == ''


def test_settings_have_the_same_value_under_either_name():
    for method, names in RENAMED.items():
        old = dict.fromkeys(names, 1)
        assert renamed_settings(method, old) == dict.fromkeys(names.values(), 1)
        assert first_settings(method, renamed_settings(method, old)) == old


def renamed_back(x):
    "Return a design of a study as salviz 0.1 wrote it"
    args = first_settings(x['name'], x['args'])
    return {**x, 'args': args}


@pytest.mark.parametrize('now', ['masked_share', 'mask_fraction'])
def test_study_of_an_earlier_version_is_continued_in_its_folders(now, tmp_path, tiny_bert, tiny_tokenizer,
                                                                           tiny_data, monkeypatch):
    def study(name):
        return Study(tmp_path/'study', lambda seed: (tiny_bert(seed), tiny_tokenizer), tiny_data,
                     dict(plain=FineTuning, guided=SaliencyGuided, fixed=SalLM(tiny_bert(1), steps=2)), seeds=(0,),
                     settings={name: [.3]}, epochs=1, snapshots=0, probes=1, progress=False)
    begun = study('masked_share')
    begun.run()
    file = tmp_path/'study'/'study.json'
    content = read_object(file)
    methods = {k: renamed_back(x) if 'args' in x else x for k, x in content['design']['methods'].items()}
    assert 'top_share' in methods['fixed']['args'] and 'masked_share' not in methods['guided']['args']
    file.write_text(sealed({**content, 'design': {**content['design'], 'methods': methods}}, indent=2))
    def retrain(*args, **kwargs): raise AssertionError('trained again')
    monkeypatch.setattr('salviz.training.trainer.train', retrain)
    again = study(now)
    assert [c.name for c in again.cells] == [c.name for c in begun.cells]
    again.run()
    assert again.results().test_accuracy.notna().all()
