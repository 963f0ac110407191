"""Answers about images: image tokens are mapped to exactly the pixels that change them, weights equal reference
implementations from the papers' equations, and unsupported models are rejected for the true reason."""
import numpy as np
import pytest
import torch
from transformers import (Blip2Config, Blip2ForConditionalGeneration, Blip2QFormerConfig, Blip2VisionConfig,
                          BertConfig, BertModel, OPTConfig)

from salviz.analysis.answers import (answer_map, answer_snapshot, answer_words, explain_answer, image_fraction)
from salviz.core.image_layout import Crop, ImageLayout, pixel_map, token_fractions
from salviz.core.maths import rollout
from salviz.core.snapshots import decode_snapshot, encode_snapshot
from salviz.models.attention import observe
from salviz.models.image_tokens import image_layout, patch_order, vision_parts
from salviz.models.small_vision_language import small_encoder_decoder, small_vision_language

pytestmark = pytest.mark.numeric
families = 'llava', 'qwen2_vl', 'internvl', 'idefics3'
prompt = 'user : <image> what colour is the square ? assistant :'
# sizes that no processor resizes, with the number of tokens of the tiles, which come before a thumbnail
unresized = dict(llava=((28, 28), 16), qwen2_vl=((28, 56), 8), internvl=((28, 56), 8), idefics3=((56, 56), 16))
resized = dict(llava=(40, 57), qwen2_vl=(45, 61), internvl=(50, 83), idefics3=(90, 47))

def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 255, (height, width, 3)).astype(np.uint8)

def read(model, processor, image): return processor(images=[image], text=[prompt], return_tensors='pt')

def without_mixing(model):
    "Switch off all that mixes patches in the vision tower, so that each patch reaches only its own token"
    for name, p in vision_parts(model).tower.named_parameters():
        if any(part in name for part in ('out_proj', 'attn.proj', 'projection_layer')): p.data.zero_()
    return model

def image_tokens(model, processor, image):
    "Return the embeddings of the image tokens [tokens, size]"
    inputs = {k: x for k, x in read(model, processor, image).items() if k in (
        'pixel_values', 'image_grid_thw', 'pixel_attention_mask')}
    with torch.no_grad(): found = model.get_image_features(**inputs).pooler_output
    return torch.cat([part.flatten(0, -2) for part in found])

def changed(a, b): return ((a - b).abs().amax(-1) > 1e-7).nonzero()[:, 0].tolist()

@pytest.mark.parametrize('family', families)
def test_changing_the_pixels_of_a_token_changes_this_token_and_no_other_one(family):
    model, processor = small_vision_language(family)
    (height, width), tiles = unresized[family]
    image = picture(height, width)
    layout = image_layout(model, processor, image, read(model, processor, image))
    before = image_tokens(without_mixing(model), processor, image)
    assert len(before) == layout.tokens
    boxes = layout.boxes()
    assert (boxes == boxes.round()).all()
    for token, (top, left, bottom, right) in enumerate(boxes[:tiles].astype(int)):
        other = image.copy()
        other[top:bottom, left:right] = 255 - other[top:bottom, left:right]
        assert [i for i in changed(before, image_tokens(model, processor, other)) if i < tiles] == [token]
        # each single corner of the box belongs to the token as well
        for y, x in ((top, left), (top, right - 1), (bottom - 1, left), (bottom - 1, right - 1)):
            other = image.copy()
            other[y, x] = 255 - other[y, x].astype(int)
            assert [i for i in changed(before, image_tokens(model, processor, other)) if i < tiles] == [token]

@pytest.mark.parametrize('family', ['internvl', 'idefics3'])
def test_the_tokens_of_a_thumbnail_are_changed_most_by_their_own_pixels(family):
    model, processor = small_vision_language(family)
    (height, width), tiles = unresized[family]
    image = np.full((height, width, 3), 90, np.uint8)
    layout = image_layout(model, processor, image, read(model, processor, image))
    before = image_tokens(without_mixing(model), processor, image)
    for token, (top, left, bottom, right) in list(enumerate(layout.boxes().astype(int)))[tiles:]:
        other = image.copy()
        other[top:bottom, left:right] = 160
        change = (image_tokens(model, processor, other) - before).norm(dim=-1)[tiles:]
        assert int(change.argmax()) == token - tiles

@pytest.mark.parametrize('family', families)
def test_each_token_of_a_resized_image_reads_the_coordinates_of_its_box(family):
    "The red and green channels contain the row and the column of each pixel, so crops show where they come from"
    model, processor = small_vision_language(family)
    height, width = resized[family]
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows, columns, 0*rows], -1).astype(np.uint8)
    inputs, reader = read(model, processor, image), processor.image_processor
    layout = image_layout(model, processor, image, inputs)
    patches = layout.refined(vision_parts(model).merge)
    pixels = inputs['pixel_values']
    if family == 'qwen2_vl':
        pixels = pixels.view(len(pixels), 3, 2, 7, 7)[:, :, 0]
        pixels = pixels[torch.as_tensor(patch_order(model, layout))]
    else:
        pixels = pixels.view(-1, 3, *pixels.shape[-2:]).unfold(2, 7, 7).unfold(3, 7, 7)
        pixels = pixels.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 7, 7)
    mean, std = torch.tensor(reader.image_mean), torch.tensor(reader.image_std)
    found = (pixels.mean((-2, -1))*std + mean)[:, :2]*255 + .5
    top, left, bottom, right = patches.boxes().T
    expected = np.stack([(top + bottom)/2, (left + right)/2], -1)
    assert len(found) == patches.tokens and np.abs(found.numpy() - expected).max() < 1.2

def test_a_padded_image_of_llava_has_tokens_outside_the_image():
    from transformers import LlavaImageProcessorPil, LlavaProcessor
    model, processor = small_vision_language('llava')
    side = dict(height=28, width=28)
    padded = LlavaProcessor(LlavaImageProcessorPil(size=side, crop_size=side, do_pad=True), processor.tokenizer,
                            patch_size=7, vision_feature_select_strategy='default', num_additional_image_tokens=1)
    image = picture(28, 56)
    layout = image_layout(model, padded, image, read(model, padded, image))
    assert layout.crops == (Crop(-14, 0, 56, 56, 4, 4),)
    weights = np.ones(16)/16
    assert np.isclose(pixel_map(layout, weights).sum(), .5)
    assert token_fractions(layout, np.ones((28, 56))).tolist() == [0]*4 + [1]*8 + [0]*4

def test_a_pixel_map_equals_a_loop_over_tokens_and_pixels():
    layout = ImageLayout(5, 7, (Crop(-.5, 1.25, 4, 4.5, 2, 3), Crop(0, 0, 5, 7, 1, 2)))
    weights, expected = np.random.default_rng(0).random(8), np.zeros((5, 7))
    for w, (top, left, bottom, right) in zip(weights, layout.boxes()):
        for y in range(5):
            for x in range(7):
                tall = max(0, min(bottom, y + 1) - max(top, y))
                wide = max(0, min(right, x + 1) - max(left, x))
                expected[y, x] += w*tall*wide/((bottom - top)*(right - left))
    assert np.allclose(pixel_map(layout, weights), expected)
    mask = np.random.default_rng(1).random((5, 7)) > .5
    fractions = token_fractions(layout, mask)
    # both directions use the same overlaps
    assert np.allclose((pixel_map(layout, weights)*mask).sum(), weights @ fractions)

def eager(model, inputs, ids):
    "Return the attention maps of the language model from transformers' own eager attention, in float64"
    parts = vision_parts(model)
    parts.language.set_attn_implementation('eager')
    inputs = dict(inputs, input_ids=ids, attention_mask=torch.ones_like(ids))
    if 'mm_token_type_ids' in inputs:
        more = ids.shape[1] - inputs['mm_token_type_ids'].shape[1]
        inputs['mm_token_type_ids'] = torch.nn.functional.pad(inputs['mm_token_type_ids'], (0, more))
    return model(**inputs, output_attentions=True)

@pytest.fixture(scope='module')
def explained():
    out = {}
    for family in families:
        model, processor = small_vision_language(family)
        image = picture(*resized[family])
        out[family] = model, processor, image, explain_answer(model, processor, image, prompt, 3)
    return out

def ids_of(model, processor, image):
    inputs = read(model, processor, image)
    return model.generate(**inputs, max_new_tokens=3, do_sample=False, pad_token_id=0,
                          suppress_tokens=[model.config.image_token_id])

@pytest.mark.parametrize('family', families)
def test_attention_and_rollout_equal_those_of_eager_attention(family, explained):
    model, processor, image, e = explained[family]
    ids = ids_of(model, processor, image)
    with torch.no_grad(): maps = torch.stack(eager(model, read(model, processor, image), ids).attentions)[:, 0]
    rolled = rollout(maps.numpy())
    for g in range(len(e.answer)):
        row = e.start + g - 1
        assert np.allclose(e.weights['attention'][g], maps.mean((0, 1))[row], atol=1e-5)
        assert np.allclose(e.weights['rollout'][g], rolled[row], atol=1e-5)
    assert np.allclose(e.weights['attention'].sum(-1), 1, atol=1e-5)

@pytest.mark.parametrize('family', families)
def test_gradient_x_attention_equals_the_matrices_of_the_paper(family, explained):
    "R = I, then R + E[(grad A * A)+] R for each layer, from the first to the last, in both models"
    model, processor, image, e = explained[family]
    ids, parts = ids_of(model, processor, image), vision_parts(model)
    inputs = read(model, processor, image)
    more = {k: torch.nn.functional.pad(x, (0, ids.shape[1] - x.shape[1])) for k, x in inputs.items()
            if k == 'mm_token_type_ids'}
    full = dict(inputs, **more, input_ids=ids, attention_mask=torch.ones_like(ids))
    with observe(parts.language) as language, observe(parts.tower) as tower:
        logits = model(**full).logits[0]
        maps, towers = [language[l] for l in language], [tower[l] for l in tower][:parts.layers]
    g, image_at = 1, np.flatnonzero(e.is_image)
    at = e.start + g
    gradients = torch.autograd.grad(logits[at - 1, ids[0, at]], [*maps, *towers])
    R = np.eye(ids.shape[1])
    for A, G in zip(maps, gradients): R = R + (A*G)[0].clamp(min=0).mean(0).detach().numpy().astype(float) @ R
    row = R[at - 1] - np.eye(len(R))[at - 1]
    row /= row.sum()
    assert np.allclose(e.weights['gradient_x_attention'][g], row, atol=1e-5)
    parts_of = []
    crops, count = len(towers[0]), len(image_at)//len(towers[0])
    merge, order = parts.merge, patch_order(model, e.layout)
    special = towers[0].shape[-1] - len(order)
    for c in range(crops):
        R = np.eye(towers[0].shape[-1])
        for A, G in zip(towers, gradients[len(maps):]):
            R = R + (A*G)[c].clamp(min=0).mean(0).detach().numpy().astype(float) @ R
        crop = e.layout.crops[c]
        v = np.zeros(len(R))
        for patch, place in enumerate(order):
            y, x = divmod(patch, crop.columns*merge)
            token = y//merge*crop.columns + x//merge
            v[special + place] = row[image_at[c*count + token]]/merge**2
        parts_of.append(v @ R)
    scale = row[image_at].sum()/sum(part.sum() for part in parts_of)
    expected = np.concatenate([(part*scale)[special:][order] for part in parts_of])
    assert np.allclose(e.patch_weights['gradient_x_attention'][g], expected, atol=1e-5)

@pytest.mark.parametrize('family', families)
def test_words_and_pixels_have_the_whole_weight(family, explained):
    *_, e = explained[family]
    for method in e.weights:
        words = sum(w for _, w in answer_words(e, -1, method))
        assert np.isclose(words + image_fraction(e, -1, method), 1, atol=1e-5)
        assert np.isclose(answer_map(e, -1, method).sum(), image_fraction(e, -1, method), atol=1e-5)
        through = answer_map(e, -1, method, through_tower=True)
        assert through.shape == e.image.shape[:2] and through.sum() <= image_fraction(e, -1, method) + 1e-5

def test_a_random_model_says_that_it_is_random_and_a_loaded_one_does_not(explained, tmp_path):
    model, processor, image, e = explained['llava']
    assert 'all weights that are shown are random' in e.notes[0]
    assert answer_snapshot(e).info['notes'] == e.notes
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert explain_answer(loaded, processor, image, prompt, 1).notes == []

def test_a_snapshot_survives_storing(explained):
    *_, e = explained['internvl']
    snapshot = answer_snapshot(e)
    again = decode_snapshot(encode_snapshot(snapshot))
    assert again.info['answer'] == snapshot.info['answer']
    assert (again.arrays['answer_image'] == snapshot.arrays['answer_image']).all()
    # stored in half precision
    assert np.allclose(again.arrays['answer_weights'], snapshot.arrays['answer_weights'], rtol=2**-10, atol=1e-6)

def test_the_model_is_not_changed_and_a_prompt_without_image_token_gets_one():
    model, processor = small_vision_language('qwen2_vl')
    model.train()
    image = picture(28, 28)
    e = explain_answer(model, processor, image, 'what is the colour ?', 2, ['attention'])
    assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert e.tokens[0] == 'image 0' and [*e.weights] == ['attention']

def test_windows_of_qwen2_5_stop_the_weights_at_the_image_tokens():
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
    small, processor = small_vision_language('qwen2_vl')
    text = small.config.text_config.to_dict()
    config = Qwen2_5_VLConfig(text_config={k: text[k] for k in (
        'hidden_size', 'intermediate_size', 'num_hidden_layers', 'num_attention_heads', 'num_key_value_heads',
        'vocab_size', 'rope_parameters')}, image_token_id=small.config.image_token_id,
        vision_config=dict(depth=2, hidden_size=16, intermediate_size=32, num_heads=2, patch_size=7, out_hidden_size=16,
                           window_size=28, fullatt_block_indexes=[1], spatial_merge_size=2))
    e = explain_answer(Qwen2_5_VLForConditionalGeneration(config).eval(), processor, picture(56, 56), prompt, 1)
    assert 'attend within windows, whose number depends on the size of the image' in e.notes[1]
    assert np.isclose(answer_map(e, 0).sum(), image_fraction(e, 0), atol=1e-5)
    with pytest.raises(ValueError, match='answer_map: the vision tower could not be observed'):
        answer_map(e, 0, through_tower=True)

def blip2():
    tiny = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    return Blip2ForConditionalGeneration(Blip2Config(
        vision_config=Blip2VisionConfig(**tiny, image_size=28, patch_size=14).to_dict(),
        qformer_config=Blip2QFormerConfig(**tiny, encoder_hidden_size=16, vocab_size=30).to_dict(),
        text_config=OPTConfig(hidden_size=16, ffn_dim=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=30,
                              word_embed_proj_dim=16).to_dict()))

@pytest.mark.parametrize('build, reason', [
    (blip2, 'its image tokens are the outputs of learned queries, each of which reads the whole image'),
    (lambda: BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)),
     'it does not read images together with text')])
def test_other_models_are_rejected_for_the_true_reason(build, reason):
    _, processor = small_vision_language()
    with pytest.raises(ValueError, match=f'is not supported, because {reason}; supported model types: llava, qwen2_vl'):
        explain_answer(build(), processor, picture(28, 28), prompt, 1)

@pytest.mark.parametrize('image', [np.zeros((4, 4)), np.zeros((4, 4, 3)), 'cat.png'])
def test_an_image_of_another_type_is_rejected(image):
    with pytest.raises(ValueError, match='image must be a PIL image or a uint8 array'):
        explain_answer(*small_vision_language(), image, prompt, 1)

def test_arguments_of_generate_do_not_replace_the_suppressed_image_token():
    model, processor = small_vision_language('llava')
    image, prompt = np.zeros((28, 28, 3), np.uint8), 'what is <image> ?'
    first = explain_answer(model, processor, image, prompt, 1, ['attention'])
    banned = processor.tokenizer.convert_tokens_to_ids(first.answer)
    settings = dict(max_new_tokens=1, do_sample=False, pad_token_id=0, suppress_tokens=banned)
    other = explain_answer(model, processor, image, prompt, settings, ['attention'])
    assert other.answer != first.answer and not other.is_image[other.start:].any()

def test_a_tokenizer_in_the_place_of_the_processor_and_no_method_are_rejected():
    model, processor = small_vision_language('llava')
    image = np.zeros((28, 28, 3), np.uint8)
    with pytest.raises(ValueError, match='explain_answer: processor must be a processor, .*, not its tokenizer'):
        explain_answer(model, processor.tokenizer, image, 'what is it ?')
    with pytest.raises(ValueError, match='explain_answer: Llava.* reads images and text; pass its processor'):
        explain_answer(model, small_encoder_decoder('whisper')[1], image, 'what is it ?')
    with pytest.raises(ValueError, match='explain_answer: generate must be a positive integer or a dict'):
        explain_answer(model, processor, image, 'what is it ?', 0)
    with pytest.raises(ValueError, match='explain_answer: methods must name at least one of attention'):
        explain_answer(model, processor, image, 'what is it ?', methods=[])
