"Generated texts against a slow loop without cache, batch or padding; BLEU against its definition"
import math
import sys
from collections import Counter

import pandas as pd
import pytest
import torch

from salviz.data.texts import load_pairs, subset
from salviz.methods.base import FineTuning
from salviz.models.corruption import small_model, train_tokenizer
from salviz.models.loading import weights_checksum
from salviz.analysis.generation import _writes_small, bleu, translation_scores, translations
from salviz.studies.study import Study
from salviz.training.trainer import train

@pytest.fixture(scope='module')
def pairs(): return subset(load_pairs('copy-reorder'), 300, validation_size=16, test_size=24)

@pytest.fixture(scope='module')
def tokenizer(pairs): return train_tokenizer(list(pairs['train']['text']), 120, form='seq2seq', max_length=40)

def model_of(tokenizer, kind='marian', seed=0):
    return small_model('seq2seq', tokenizer, kind=kind, layers=1, heads=2, hidden=16, seed=seed)

@pytest.fixture(scope='module')
def trained(pairs, tokenizer, tmp_path_factory):
    model = model_of(tokenizer)
    train(model, tokenizer, pairs, FineTuning(), run_dir=tmp_path_factory.mktemp('run')/'run', epochs=4, batch_size=16,
          learning_rate=1e-2, snapshots=0, progress=False)
    return model.eval()

def slow_greedy(model, tokenizer, text, most):
    "Generate token by token for one text, with a full decoder pass for each"
    source = tokenizer(text, return_tensors='pt')['input_ids']
    written = [model.config.decoder_start_token_id]
    while len(written) <= most:
        with torch.no_grad(): logits = model(input_ids=source, decoder_input_ids=torch.tensor([written])).logits[0, -1]
        if model.config.model_type == 'marian': logits[model.config.pad_token_id] = -math.inf  # never generated
        written.append(int(logits.argmax()))
        if written[-1] == tokenizer.eos_token_id: break
    return written[1:]

@pytest.mark.slow
@pytest.mark.parametrize('kind', ['marian', 't5'])
def test_greedy_texts_equal_a_slow_loop_over_single_texts(kind, trained, pairs, tokenizer):
    model = trained if kind == 'marian' else model_of(tokenizer, kind)
    frame = translations(model, tokenizer, pairs['test'], batch_size=7, max_new_tokens=30)
    for i, row in enumerate(pairs['test']):
        written = slow_greedy(model, tokenizer, row['text'], 30)
        assert frame.translation[i] == tokenizer.decode(written, skip_special_tokens=True)
        assert frame.ended[i] == (written[-1] == tokenizer.eos_token_id)
        assert frame.exact[i] == (written == tokenizer(text_target=row['target_text'])['input_ids'])
    assert list(frame.text) == list(pairs['test']['text']) and list(frame.target_text) == list(
        pairs['test']['target_text'])

def log_probability(model, tokenizer, text, translation_ids):
    source = tokenizer(text, return_tensors='pt')['input_ids']
    read = torch.tensor([[model.config.decoder_start_token_id, *translation_ids[:-1]]])
    with torch.no_grad(): logits = model(input_ids=source, decoder_input_ids=read).logits[0].double()
    logits[:, model.config.pad_token_id] = -math.inf
    return sum(logits.log_softmax(-1)[i, t].item() for i, t in enumerate(translation_ids)) / len(translation_ids)

def test_beam_search_finds_more_likely_texts(trained, pairs, tokenizer):
    def mean(frame):
        total = 0.
        for row in frame.itertuples():
            ids = tokenizer(row.translation, add_special_tokens=False)['input_ids'] + [tokenizer.eos_token_id]
            total += log_probability(trained, tokenizer, row.text, ids)
        return total/len(frame)
    some = pairs['test'].select(range(8))
    assert mean(translations(trained, tokenizer, some, beams=4)) >= mean(translations(trained, tokenizer, some)) - .02

def test_a_correct_translation_is_exact_and_a_text_without_an_end_is_marked(trained, pairs, tokenizer, monkeypatch):
    ids = [tokenizer(text_target=t)['input_ids'] for t in pairs['test']['target_text']]
    asked = {t: x for t, x in zip(pairs['test']['text'], ids)}
    def perfect(input_ids, **options):
        texts = tokenizer.batch_decode(input_ids, skip_special_tokens=True)
        def key(text): return ''.join(text.lower().split())
        known = {key(t): x for t, x in asked.items()}
        rows = [[0, *known[key(t)]] for t in texts]
        longest = max(map(len, rows))
        return torch.tensor([r + [0]*(longest - len(r)) for r in rows])
    monkeypatch.setattr(trained, 'generate', perfect, raising=False)
    scores = translation_scores(trained, tokenizer, pairs['test'])
    assert scores['exact_match'] == scores['ended'] == 1 and scores['bleu'] == pytest.approx(100)
    monkeypatch.setattr(trained, 'generate', lambda input_ids, **o: torch.full((len(input_ids), 5), 9), raising=False)
    frame = translations(trained, tokenizer, pairs['test'])
    assert not frame.ended.any() and not frame.exact.any()

def test_the_model_and_all_random_generators_are_restored(trained, pairs, tokenizer):
    trained.train()
    before = torch.get_rng_state(), weights_checksum(trained)
    translations(trained, tokenizer, pairs['test'].select(range(4)), beams=2)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == weights_checksum(trained) and trained.training
    trained.eval()

@pytest.mark.slow
def test_a_study_measures_generated_texts(tmp_path, pairs, tokenizer):
    def written(model, tokenizer, data): return translation_scores(model, tokenizer, data['test'], max_new_tokens=12)
    study = Study(tmp_path/'study', lambda seed: (model_of(tokenizer, seed=seed), tokenizer),
                  subset(pairs, 16, validation_size=8, test_size=8), dict(FT=FineTuning), seeds=[0, 1],
                  measures=['average_loss', written], progress=False, epochs=1, batch_size=8, snapshots=0)
    frame = study.run()
    assert {'written_exact_match', 'written_ended', 'written_bleu'} <= {*frame.columns}
    assert frame.written_bleu.notna().all()

def slow_bleu(translations, references):
    """Compute BLEU after Papineni et al. (2002): geometric mean of clipped 1- to 4-gram precisions, times brevity
    penalty"""
    right, total, ours, theirs = [0]*4, [0]*4, 0, 0
    for a, b in zip(translations, references):
        a, b = a.split(), b.split()
        ours, theirs = ours + len(a), theirs + len(b)
        for n in range(1, 5):
            of_a, of_b = (Counter(tuple(x[i:i + n]) for i in range(len(x) - n + 1)) for x in (a, b))
            right[n - 1] += sum(min(count, of_b[g]) for g, count in of_a.items())
            total[n - 1] += sum(of_a.values())
    penalty = 1 if ours > theirs else math.exp(1 - theirs/ours)
    return 100*penalty*math.exp(sum(math.log(r/t) for r, t in zip(right, total))/4)

def test_bleu_equals_its_definition(pairs):
    references = list(pairs['test']['target_text'])
    spoilt = [' '.join(words[:-2] + words[:1]) if i % 2 else ' '.join(words)
              for i, words in enumerate(map(str.split, references))]
    scored = bleu(spoilt, references)
    assert scored['bleu'] == pytest.approx(slow_bleu(spoilt, references), rel=1e-9)
    assert 0 < scored['bleu'] < 99 and scored['texts'] == 24 and scored['brevity_penalty'] < 1
    assert 'tok:13a' in scored['signature'] and 'version:' in scored['signature']
    assert 'case:lc' in bleu(spoilt, references, lowercase=True)['signature']

def test_case_counts_unless_the_tokenizer_has_none(tokenizer):
    assert bleu(['A Dog Sees A House .'], ['a dog sees a house .'])['bleu'] < 60
    assert bleu(['A Dog Sees A House .'], ['a dog sees a house .'], lowercase=True)['bleu'] == pytest.approx(100)
    assert _writes_small(tokenizer) and not _writes_small(train_tokenizer(['A Dog'], 60, form='seq2seq',
                                                                          lowercase=False))

def test_without_sacrebleu_the_error_says_how_to_install_it(monkeypatch, trained, pairs, tokenizer):
    monkeypatch.setitem(sys.modules, 'sacrebleu', None)
    with pytest.raises(ImportError, match=r"pip install 'salviz\[claims\]'"): bleu(['a'], ['a'])
    few = pairs['test'].select(range(2))
    scores = translation_scores(trained, tokenizer, few, with_bleu=False)
    assert set(scores) == {'exact_match', 'ended'}

def test_invalid_translations_are_rejected(trained, pairs, tokenizer, tiny_bert):
    with pytest.raises(ValueError, match='model must have the task seq2seq, got BertForSequenceClassification'):
        translations(tiny_bert(), tokenizer, ['a'])
    with pytest.raises(ValueError, match='data must have targets'):
        translation_scores(trained, tokenizer, ['the dog sees a house .'])
    with pytest.raises(ValueError, match='beams'): translations(trained, tokenizer, pairs['test'], beams=0)
    with pytest.raises(ValueError, match='have no targets'): bleu(pd.DataFrame(dict(translation=['a'])))
    with pytest.raises(ValueError, match='at least one translation'): bleu([], [])
