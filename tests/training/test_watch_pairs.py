"Bi-encoders are watched: the similarity of a sentence pair is recorded and explained, and the training is unchanged."
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch

from salviz.core.runs import Run
from salviz.explorer.widget import Explorer
from salviz.models.sentence_pairs import SentencePairs
from salviz.training.watching import watch
from salviz.views.head_statistics import head_frame

pairs = [('the film', 'the dull music'), ('a fine and funny story', 'dull')]
quick = dict(max_steps=4, per_device_train_batch_size=4, learning_rate=1e-3, use_cpu=True, report_to='none',
             disable_tqdm=True, save_strategy='no')


class SentenceTransformer(torch.nn.Module):
    "A bi-encoder like those of sentence-transformers, with mean or CLS pooling"
    def __init__(self, transformer, tokenizer, pooling='mean'):
        super().__init__()
        self.transformer, self.tokenizer, self.pooling, self.max_seq_length = transformer, tokenizer, pooling, 16

    def preprocess(self, texts): return dict(self.tokenizer(texts, padding=True, truncation=True, return_tensors='pt'))

    def forward(self, features):
        x, mask = self.transformer(**features).last_hidden_state, features['attention_mask'][..., None]
        pooled = x[:, 0] if self.pooling == 'cls' else (x*mask).sum(1)/mask.sum(1)
        return features | dict(sentence_embedding=pooled)

    def similarity_pairwise(self, a, b): return torch.cosine_similarity(a, b)


def text_vectors(stack, pooling, embedded):
    "Return the embedding of one sentence from the embeddings of its tokens [1, tokens, dim]"
    x = stack(inputs_embeds=embedded, attention_mask=torch.ones(embedded.shape[:2])).last_hidden_state[0]
    if pooling == 'cls': return x[0]
    total = torch.zeros_like(x[0])
    for row in x: total = total + row
    return total/len(x)


def slow_similarity(stack, pooling, first, second):
    "Return the cosine of the angle between the embeddings of two sentences"
    a, b = (text_vectors(stack, pooling, x) for x in (first, second))
    return (a*b).sum()/((a*a).sum().sqrt()*(b*b).sum().sqrt())


def slow_saliency(stack, pooling, ids, steps=20):
    "Return integrated gradients of the cosine, in two passes at each midpoint: one list of numbers for each sentence"
    words = stack.get_input_embeddings().weight
    ends = [words[torch.tensor([x])].detach() for x in ids]
    starts = [words[torch.zeros(1, len(x), dtype=torch.long)].detach() for x in ids] # the padding token
    totals = [torch.zeros_like(x) for x in ends]
    for k in range(steps):
        points = [(s + (k + .5)/steps*(e - s)).requires_grad_() for s, e in zip(starts, ends)]
        gradients = torch.autograd.grad(slow_similarity(stack, pooling, *points), points)
        totals = [t + g for t, g in zip(totals, gradients)]
    return [((e - s)*t/steps).sum(-1)[0] for s, e, t in zip(starts, ends, totals)]


def assert_recorded_as_two_passes(run, stack, pooling, tokenizer, tolerance):
    "Assert that every pair of the last step has the similarity, saliency and attention of two separate passes"
    for i, pair in enumerate(pairs):
        s, ids = run.snapshot(-1, i), [tokenizer(text)['input_ids'] for text in pair]
        assert s.texts == pair and s.info['passes'] == list(map(len, ids))
        assert s.tokens == sum(map(tokenizer.convert_ids_to_tokens, ids), [])
        words = stack.get_input_embeddings().weight
        score = slow_similarity(stack, pooling, *(words[torch.tensor([x])] for x in ids))
        np.testing.assert_allclose(s.arrays['prediction'], [score.item()], atol=tolerance)
        expected = torch.cat(slow_saliency(stack, pooling, ids))
        largest = expected.abs().max().item()
        np.testing.assert_allclose(s.arrays['saliency'], expected, atol=tolerance*max(largest, 1e-3))
        n, end = len(ids[0]), 0
        maps = [stack(torch.tensor([x]), output_attentions=True).attentions for x in ids]
        for x, one in zip(ids, maps):
            at, end = slice(end, end + len(x)), end + len(x)
            for l, A in enumerate(one):
                np.testing.assert_allclose(s.arrays['attention'][l][:, at, at], A[0].detach(), atol=1e-3) # float16
        assert not s.arrays['attention'][:, :, :n, n:].any() and not s.arrays['attention'][:, :, n:, :n].any()


@pytest.fixture
def encoder(make_tiny_bert, tiny_tokenizer):
    def make(pooling='mean', **kw):
        sizes = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.2,
                     attn_implementation='eager')
        return SentenceTransformer(make_tiny_bert(**sizes | kw).bert, tiny_tokenizer, pooling)
    return make


@pytest.mark.parametrize('pooling', ['mean', 'cls'])
def test_a_pair_is_recorded_as_in_two_passes_in_float64(tmp_path, encoder, tiny_tokenizer, pooling):
    model = encoder(pooling).double().train()
    run = watch(model, None, pairs, run_dir=tmp_path/'run').finish()
    assert model.training and not model.transformer.embeddings.word_embeddings._forward_hooks
    assert_recorded_as_two_passes(run, model.transformer.eval(), pooling, tiny_tokenizer, 2e-3) # saliency in float16


@pytest.mark.parametrize('saliency', ['gradient_norm', 'occlusion', 'captum.ShapleyValueSampling'])
def test_other_attributions_and_scores_explain_pairs(tmp_path, encoder, saliency):
    def product(outputs, rows): return (outputs.embeddings[:, 0]*outputs.embeddings[:, 1]).sum(-1)
    run = watch(encoder(), None, pairs, run_dir=tmp_path/'run', saliency=saliency, score=product).finish()
    s = run.snapshot()
    assert s.info['saliency_method'] == saliency and np.ptp(s.arrays['saliency']) > 0


def test_occlusion_of_a_pair_is_the_change_of_its_similarity(tmp_path, encoder, tiny_tokenizer):
    model = encoder().double()
    s = watch(model, None, pairs[:1], run_dir=tmp_path/'run', saliency='occlusion').finish().snapshot()
    ids = [tiny_tokenizer(text)['input_ids'] for text in pairs[0]]
    words, stack = model.transformer.get_input_embeddings().weight, model.transformer.eval()
    def similarity(ids): return slow_similarity(stack, 'mean', *(words[torch.tensor([x])] for x in ids)).item()
    padded = [ids[0][:1] + [0] + ids[0][2:], ids[1]]
    assert abs(s.arrays['saliency'][1] - (similarity(ids) - similarity(padded))) < 1e-3


def test_prompts_that_a_recording_does_not_contain_are_reported(tmp_path, encoder):
    model = encoder()
    model.prompts, model.default_prompt_name = dict(query='query: '), 'query'
    with pytest.raises(ValueError, match="adds the prompt 'query: ' in encode, .* default_prompt_name = None"):
        watch(model, None, pairs, run_dir=tmp_path/'run')
    model.default_prompt_name = None
    watcher = watch(model, None, pairs, run_dir=tmp_path/'run', saliency=False)
    args, state = SimpleNamespace(prompts='query: '), SimpleNamespace(global_step=0, epoch=0.)
    with pytest.warns(UserWarning, match='the Trainer adds prompts to the sentences'):
        watcher.on_train_begin(args, state, None)
    watcher.finish()


def test_labels_of_pairs_give_a_loss_and_long_sentences_are_truncated(tmp_path, encoder):
    rows = datasets.Dataset.from_dict(dict(text=['the film', 'the film '*20], text_pair=['a film', 'dull'],
                                           label=[1., .25]))
    with pytest.warns(UserWarning, match='truncated|cut'):
        run = watch(encoder(), None, rows, run_dir=tmp_path/'run', saliency=False).finish()
    first, second = run.snapshot(0, 0), run.snapshot(0, 1)
    assert second.info['passes'][0] == 16 and first.label == 1.
    assert np.isclose(first.losses['task'], (first.arrays['prediction'][0] - 1)**2, atol=1e-5)


def test_head_statistics_treat_the_sentences_as_separate_texts(tmp_path, encoder):
    run = watch(encoder(), None, pairs, run_dir=tmp_path/'run', saliency=False).finish()
    frame, s = head_frame(run), run.snapshot()
    rows = []
    for i in range(len(pairs)):
        s, end = run.snapshot(0, i), 0
        for n in s.info['passes']:
            A, end = s.arrays['attention'][1, 2, end:end + n, end:end + n], end + n
            rows.append([A[1:-1, 0].mean(), A[1:-1, -1].mean()])
    to_first, to_special = np.mean(rows, axis=0)
    one = frame[(frame.layer == 1) & (frame['head'] == 2)]
    assert np.allclose(one.to_first, to_first, atol=1e-6) and np.allclose(one.to_special, to_special, atol=1e-6)


def test_a_run_of_pairs_opens_in_the_explorer(tmp_path, encoder):
    run = watch(encoder(), None, pairs, run_dir=tmp_path/'run').finish()
    assert Explorer(Run(run.path)).to_html(tmp_path/'page.html').exists()


def test_pairs_are_recorded_in_full_precision_if_accelerate_trains_in_bf16(tmp_path, encoder):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    model = encoder()
    plain = watch(model, None, pairs, run_dir=tmp_path/'plain').finish().snapshot()
    AcceleratorState._reset_state(True)
    try: prepared = Accelerator(mixed_precision='bf16', cpu=True).prepare(model)
    finally: AcceleratorState._reset_state(True)
    casting = vars(model)['forward']
    cast = watch(prepared, None, pairs, run_dir=tmp_path/'cast').finish().snapshot()
    for name, x in plain.arrays.items(): assert np.array_equal(x, cast.arrays[name]), name
    assert vars(model)['forward'] is casting


def test_bad_input_raises_at_the_start_and_leaves_nothing(tmp_path, encoder):
    def fails(message, model=None, texts=pairs, **kw):
        with pytest.raises(ValueError, match=message):
            watch(model or encoder(), None, texts, run_dir=tmp_path/'run', **kw)
        assert not (tmp_path/'run').exists()
    fails('probes of a bi-encoder must be pairs of sentences', texts=['a film'])
    fails("saliency='rollout' is computed from the attention of one pass", saliency='rollout')
    lower = encoder()
    lower.preprocess = lambda texts: SentenceTransformer.preprocess(lower, ['a ' + text for text in texts])
    fails('but SentenceTransformer.preprocess returns the tokens', model=lower)
    two = encoder()
    two.other = encoder().transformer
    fails('several transformers models', model=two)
    bare = encoder()
    bare.transformer.config.pad_token_id = None
    fails('has no padding token', model=bare)


def as_real(folder, make_tiny_bert, tokenizer, pooling, **kw):
    "Return a SentenceTransformer of the installed package with the weights of the tiny BERT"
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    make_tiny_bert(**kw).bert.save_pretrained(folder/'model')
    tokenizer.save_pretrained(folder/'model')
    transformer = Transformer(str(folder/'model'))
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode=pooling)], device='cpu')


@pytest.mark.slow
@pytest.mark.parametrize('pooling,loss', [('mean', 'MultipleNegativesRankingLoss'), ('cls', 'CosineSimilarityLoss')])
def test_watching_a_bi_encoder_changes_nothing(tmp_path, make_tiny_bert, tiny_tokenizer, pooling, loss):
    "Trained with dropout by the trainer of sentence-transformers"
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses
    columns = dict(a=['the film', 'a story']*8, b=['a film', 'the fine music']*8)
    if loss == 'CosineSimilarityLoss': columns['label'] = [1., 0.]*8
    def trained(watched):
        model = as_real(tmp_path, make_tiny_bert, tiny_tokenizer, pooling)
        args = SentenceTransformerTrainingArguments(str(tmp_path/'out'), logging_steps=2, **quick)
        watcher = watch(model, model.tokenizer, pairs, run_dir=tmp_path/'run', steps=2) if watched else None
        trainer = SentenceTransformerTrainer(model, args, train_dataset=datasets.Dataset.from_dict(columns),
                                             loss=getattr(losses, loss)(model), callbacks=[watcher] if watched else [])
        trainer.train()
        return model, watcher
    (model, watcher), (plain, _) = trained(True), trained(False)
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))
    run = watcher.run
    assert run.finished and run.steps == [0, 2, 4] and run.train_rows
    heads = [r for r in run.metrics if r['kind'] == 'heads']
    assert [r['step'] for r in heads] == [2, 4] and all('reason' not in r for r in heads), heads
    vectors = model.encode([text for pair in pairs for text in pair], convert_to_tensor=True)
    expected = torch.cosine_similarity(vectors[::2], vectors[1::2]).tolist()
    recorded = [run.snapshot(-1, i).arrays['prediction'][0] for i in range(2)]
    np.testing.assert_allclose(recorded, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('pooling', ['mean', 'cls'])
def test_pooling_is_that_of_the_package(tmp_path, make_tiny_bert, tiny_tokenizer, pooling):
    sizes = dict(hidden_dropout_prob=0., attention_probs_dropout_prob=0., initializer_range=.2,
                 attn_implementation='eager')
    model = as_real(tmp_path, make_tiny_bert, tiny_tokenizer, pooling, **sizes).double()
    run = watch(model, None, pairs, run_dir=tmp_path/'run').finish()
    stack = SentencePairs(model).stack.eval()
    stack.set_attn_implementation('eager')
    assert_recorded_as_two_passes(run, stack, pooling, tiny_tokenizer, 2e-3)
