"""Training on answers about images: ten steps of `train` equal a plain loop over single examples with the equations of
KLAL, boxes and masks mark the same tokens, and what cannot be trained is rejected with the reason"""
import copy
from functools import partial

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import cross_entropy
from transformers import Blip2Config, Blip2ForConditionalGeneration, OPTConfig

from salviz import train
from salviz.core.image_layout import ImageLayout
from salviz.methods.answer_attention import answer_attention
from salviz.methods.base import Progress
from salviz.methods.rationale_guided import RationaleGuided, RationaleGuidedVariant
from salviz.methods.sallm import SalLM
from salviz.models.answer_inputs import answer_batch, encoded_answers
from salviz.models.attention import observe
from salviz.models.image_tokens import image_layout, image_positions, vision_parts
from salviz.models.small_vision_language import small_vision_language
from salviz.models.tasks import task_of
from salviz.training.feed import feed_for
from salviz.training.step import step_terms

pytestmark = pytest.mark.numeric
families = 'llava', 'qwen2_vl', 'internvl', 'idefics3'
prompts, answers = ['what colour is <image> ?', 'what is in <image> ?'], ['red', 'a blue cat']
boxes = [[[0, 0, 20, 30], [20, 40, 28, 56]], None]

def rows(rationales=boxes, **columns):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (28, 56, 3)).astype(np.uint8)) for _ in prompts]
    table = dict(image=images, text=prompts, target_text=answers, rationale=rationales) | columns
    return datasets.Dataset.from_dict({k: x for k, x in table.items() if x is not None})

def splits(**columns): return datasets.DatasetDict(train=rows(**columns), validation=rows(**columns))

def fractions(layout:ImageLayout, marked):
    "Return the fraction of each token's box inside the boxes `marked`, by counting the area of each pixel"
    mask, out = np.zeros((layout.height, layout.width)), []
    for top, left, bottom, right in marked: mask[top:bottom, left:right] = 1
    for top, left, bottom, right in layout.boxes():
        inside = 0.
        for y in range(layout.height):
            for x in range(layout.width):
                tall, wide = min(bottom, y + 1) - max(top, y), min(right, x + 1) - max(left, x)
                if tall > 0 and wide > 0: inside += mask[y, x]*tall*wide
        out.append(inside/((bottom - top)*(right - left)))
    return torch.tensor(out, dtype=torch.float64)

def prepared(model, processor):
    "Return each example alone: the inputs with its answer, the first label, and the target of its image tokens or None"
    out = []
    for row in rows():
        inputs = processor(images=[row['image']], text=[row['text']], return_tensors='pt')
        layout = image_layout(model, processor, np.asarray(row['image']), inputs)
        start = inputs['input_ids'].shape[1]
        written = processor.tokenizer.convert_tokens_to_ids(row['target_text'].split()) + [2]
        inputs = {k: x.double() if x.is_floating_point() else x for k, x in inputs.items()}
        for name, value in dict(mm_token_type_ids=0, attention_mask=1).items():
            if name in inputs: inputs[name] = torch.cat([inputs[name], torch.full((1, len(written)), value)], 1)
        inputs['input_ids'] = torch.cat([inputs['input_ids'], torch.tensor([written])], 1)
        marked = row['rationale'] and [[int(x) for x in box] for box in row['rationale']]
        out.append((inputs, start, marked and fractions(layout, marked)))
    return out

def plain_loop(model, processor, steps, lr, weight, mean_of_rows):
    vision_parts(model).language.set_attn_implementation('eager')
    examples, losses = prepared(model, processor), []
    for _ in range(steps):
        total, of_step = 0., []
        for inputs, start, target in examples:
            out, ids = model(**inputs, output_attentions=True), inputs['input_ids'][0]
            task, guided = cross_entropy(out.logits[0, start - 1:-1], ids[start:]), torch.tensor(0.)
            if target is not None:
                image, target = ids == model.config.image_token_id, target/target.sum()
                for A in out.attentions:
                    at = slice(start - 1, -1) if mean_of_rows else slice(-2, -1)
                    alpha = A[0, :, at, image].mean(1)
                    Q = (alpha/alpha.sum(-1, keepdim=True)).mean(0)
                    guided = guided + (target.xlogy(target) - target*Q.log()).sum()/len(out.attentions)
            total = total + (task + 2*weight*guided)/len(examples) # half of the examples have a rationale
            of_step.append((task.item(), guided.item()))
        model.zero_grad()
        total.backward()
        with torch.no_grad():
            for p in model.parameters():
                if p.grad is not None: p -= lr*p.grad
        losses.append(np.mean(of_step, 0))
    return losses

@pytest.mark.parametrize('family, chosen', [('llava', 'pooled'), ('qwen2_vl', 'mean'), ('internvl', 'pooled'),
                                            ('idefics3', 'pooled')])
def test_ten_steps_equal_a_plain_loop(family, chosen, tmp_path):
    model, processor = small_vision_language(family)
    model = model.double()
    other = copy.deepcopy(model)
    method = RationaleGuided(layers=None, weight=.7, variant=RationaleGuidedVariant(rows=chosen))
    run = train(model, processor, splits(), method, run_dir=tmp_path/'run', epochs=10, batch_size=2, learning_rate=.05,
                probes=1, returns='last', progress=False, optimizer=torch.optim.SGD,
                scheduler=lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.),
                args=dict(max_grad_norm=0.))
    expected = plain_loop(other, processor, 10, .05, .7, chosen == 'mean')
    assert np.allclose([(r['task'], r['rationale']) for r in run.train_rows], expected, atol=1e-6)
    moved = 0.
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        assert torch.allclose(p, q, atol=1e-6), name
        moved = max(moved, (p - dict(small_vision_language(family)[0].named_parameters())[name]).abs().max().item())
    assert moved > 1e-3

def test_boxes_and_a_mask_mark_the_same_tokens():
    model, processor = small_vision_language('idefics3')
    mask = np.zeros((28, 56), int)
    mask[:20, :30] = mask[20:28, 40:56] = 1
    by_boxes = [row['rationale'] for row in encoded_answers(model, processor, rows())]
    by_mask = [row['rationale'] for row in encoded_answers(model, processor, rows([mask.tolist(), None]))]
    assert by_boxes == by_mask and by_boxes[1] is None
    first = prepared(model, processor)[0]
    is_image = image_positions(model, first[0]['input_ids'][0])
    assert np.allclose(np.array(by_boxes[0])[is_image], first[2])

@pytest.mark.parametrize('heads', [None, [1]])
def test_the_explanation_is_the_attention_of_the_answer(heads):
    model, processor = small_vision_language('qwen2_vl')
    encoded = [row | more for row, more in zip(rows(), encoded_answers(model, processor, rows()))]
    batch = answer_batch(model, processor, encoded)
    for chosen, name in (('pooled', 'last'), ('mean', 'all')):
        method = RationaleGuided(layers=[0], heads=heads, variant=RationaleGuidedVariant(rows=chosen))
        plan = method.plan(model, batch, Progress())
        with observe(vision_parts(model).language, plan.layers, rows=plan.rows) as maps, torch.no_grad():
            model(**{k: x for k, x in batch.items() if k in ('input_ids', 'attention_mask', 'pixel_values',
                                                            'image_grid_thw', 'mm_token_type_ids')})
            values, counts = method.explained(maps, plan, batch)
        with observe(vision_parts(model).language, 0) as whole, torch.no_grad():
            model(**{k: x for k, x in batch.items() if k in ('input_ids', 'attention_mask', 'pixel_values',
                                                            'image_grid_thw', 'mm_token_type_ids')})
        A = whole[0] if heads is None else whole[0][:, heads]
        assert torch.allclose(values, answer_attention([A], batch['is_image'], batch['is_answer'], name), atol=1e-6)
        assert torch.equal(counts[:, 0], batch['is_image'])

def test_a_batch_without_a_rationale_adds_nothing():
    model, processor = small_vision_language('llava')
    feed = feed_for(model, processor)
    encoded = feed.encode(splits())
    batch = feed.collate([encoded['train'][1]])
    terms = step_terms(RationaleGuided(), model, model, batch, Progress(), task_of(model))
    assert terms['rationale'].loss.tolist() == [0.] and terms['task'].loss.item() > 0

@pytest.mark.parametrize('marks', [[[40, 0, 50, 30]], []])
def test_marks_outside_all_image_tokens_are_no_rationale(marks):
    model, processor = small_vision_language('llava')
    data = rows([marks, boxes[0]])
    with pytest.warns(UserWarning, match='the marks of 1 of 2 rows cover no image token'):
        encoded = [row | more for row, more in zip(data, encoded_answers(model, processor, data), strict=True)]
    assert encoded[0]['rationale'] is None
    assert answer_batch(model, processor, encoded)['has_rationale'].tolist() == [False, True]

def rejects(message, data=None, *, tmp_path, method=None, family='llava', processor=None, **settings):
    model, its = small_vision_language(family)
    with pytest.raises(ValueError, match=message):
        train(model, processor or its, data or splits(), method or RationaleGuided(), run_dir=tmp_path/'run', probes=1,
              progress=False, **settings)
    assert not (tmp_path/'run').exists()

def test_what_cannot_be_trained_is_rejected_before_a_run_starts(tmp_path, tiny_bert):
    reject = partial(rejects, tmp_path=tmp_path)
    reject('SalLM: does not support vision-language models', method=SalLM())
    reject('LlavaForConditionalGeneration reads images and text; pass its processor instead of a tokenizer, '
           'got (TokenizersBackend|PreTrainedTokenizerFast)', processor=small_vision_language('llava')[1].tokenizer)
    with pytest.raises(ValueError, match='BertForSequenceClassification takes a tokenizer, got LlavaProcessor'):
        train(tiny_bert(), small_vision_language('llava')[1], splits(), run_dir=tmp_path/'run', progress=False)
    reject("the data set 'train' has no column image", splits(image=None))
    reject("the data set 'train' has no column target_text", splits(target_text=None))
    reject("requires a column 'rationale' .* must contain boxes, outlines, a mask, or None for each image",
           splits(rationales=None))
    reject('none of the 2 training examples has a rationale', splits(rationales=[None, None]))
    reject('none of the 2 training examples has a rationale', splits(rationales=[[[40, 0, 50, 30]], None]))
    reject("use explanation='attention'", method=RationaleGuided('rollout'))
    reject("or rows='mean'", method=RationaleGuided(variant=RationaleGuidedVariant(rows='first')))
    reject('heads must be between 0 and 1', method=RationaleGuided(heads=[2]))
    reject('max_length does not apply', max_length=64)
    processor = small_vision_language('llava')[1]
    processor.tokenizer.pad_token = None
    reject('the tokenizer has no pad token; set processor.tokenizer.pad_token', processor=processor)
    reject('saliency is recorded in snapshots, .* set saliency=None', saliency='integrated_gradients')
    reject('row 0: target_text contains the image token <image>', splits(target_text=['a <image>', 'red']))
    array = np.zeros((28, 56, 3), np.uint8)
    reject(r'row 0: image must be .*; in a Dataset, store PIL images \(feature datasets.Image', splits(image=[array]*2))
    reject('a rationale must be boxes', splits(rationales=[[[0, 1], [1, 0]], None]))

def test_a_run_with_snapshots_0_gives_no_warning(tmp_path, recwarn):
    train(*small_vision_language('llava'), splits(rationales=None), run_dir=tmp_path/'run', epochs=1, batch_size=2,
          probes=1, snapshots=0, progress=False)
    assert not [w for w in recwarn if 'snapshots' in str(w.message)]

def test_an_unsupported_family_is_rejected_with_the_reason():
    tiny = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    model = Blip2ForConditionalGeneration(Blip2Config(
        vision_config=dict(tiny, image_size=28, patch_size=14),
        qformer_config=dict(tiny, encoder_hidden_size=16, vocab_size=30),
        text_config=OPTConfig(hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=30,
                              word_embed_proj_dim=16).to_dict()))
    with pytest.raises(ValueError, match='because its image tokens are the outputs of learned queries'):
        feed_for(model, small_vision_language('llava')[1])

def test_plain_fine_tuning_lowers_the_loss(tmp_path):
    model, processor = small_vision_language('internvl')
    with pytest.warns(UserWarning, match='has no snapshots, because a recording covers only one of its inner models'):
        run = train(model, processor, splits(rationales=None), run_dir=tmp_path/'run', epochs=3, batch_size=2,
                    learning_rate=1e-2, probes=1, progress=False)
    assert run.train_rows[-1]['task'] < run.train_rows[0]['task'] and run.finished and not run.recorded
