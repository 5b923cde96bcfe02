"""Pretraining without labels: reproducible, and it teaches [CLS] something."""

import inspect
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Dinov2Config, Dinov2Model

from promptccd.data import StageStream
from promptccd.data.options import ViewOptions
from promptccd.data.randomness import seed_of, torch_generator
from promptccd.data.views import EvaluationView, build_image_processor, normalise
from promptccd.errors import ConfigurationError, DataError
from promptccd.runs import train_run
from promptccd.training import pretraining
from promptccd.training.pretraining import (
    PretrainingOptions,
    _gradient_histograms,
    _join,
    _KernelComponents,
    _learning_rate,
    _warp,
    pretrain_backbone,
)
from promptccd.training.recipe import Recipe
from tests.conftest import TINY_BACKBONE, coloured_images

CONFIG = Dinov2Config(**TINY_BACKBONE)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    """256 digits as the network sees them, and what they are."""
    stages = StageStream.from_dataset("digits", class_blocks=[7, 1, 1, 1])
    view = EvaluationView(build_image_processor(ViewOptions(image_size=16, resize_size=16)))
    images = [stages[0].decode(position).image for position in range(256)]
    return torch.stack([view(image) for image in images if image]), torch.from_numpy(
        stages.labelled.labels[:256]
    )


@pytest.mark.moderate
def test_same_seed_same_bytes_whatever_the_global_state(digits: tuple[Tensor, Tensor]) -> None:
    images, _ = digits
    options = PretrainingOptions(epochs=2)
    results = []
    for global_seed, seed in ((1, 5), (2, 5), (2, 6)):
        torch.manual_seed(global_seed)
        results.append(pretrain_backbone(images, CONFIG, options, seed=seed).state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert any(not torch.equal(results[1][name], results[2][name]) for name in results[0])


def test_no_label_can_get_in() -> None:
    assert "label" not in " ".join(inspect.signature(pretrain_backbone).parameters)


def separation(features: Tensor, labels: Tensor) -> float:
    """Mean cosine of two images of one digit, less that of two digits."""
    unit = F.normalize(features, dim=1)
    similarities, same = unit @ unit.T, labels[:, None] == labels
    return float(similarities[same].mean() - similarities[~same].mean())


@pytest.mark.slow
def test_images_of_one_digit_move_together(digits: tuple[Tensor, Tensor]) -> None:
    images, labels = digits
    processor = build_image_processor(ViewOptions(image_size=16, resize_size=16))
    pixels = normalise(images, processor.image_mean, processor.image_std)
    found = []
    for epochs in (1, 20):
        backbone = pretrain_backbone(images, CONFIG, PretrainingOptions(epochs=epochs), seed=1)
        assert not backbone.training
        with torch.no_grad():
            found.append(separation(backbone(pixels).last_hidden_state[:, 0], labels))
    assert found[1] > found[0] + 0.1


STILL = dict.fromkeys(("join", "rotation", "zoom", "shear", "shift", "bend"), 0.0)


def test_descriptors_are_square_roots_of_gradient_histograms_by_plain_loops() -> None:
    """Beyond the border stands what is at it; cells overlap."""
    pictures = torch.rand(2, 3, 8, 8)
    grey = pictures.mean(1).tolist()
    expected = []
    for picture in grey:

        def at(row: int, column: int, picture: list[list[float]] = picture) -> float:
            return picture[min(max(row, 0), 7)][min(max(column, 0), 7)]

        values = []
        for direction in (0.0, 0.5 * math.pi, math.pi, 1.5 * math.pi):
            for top in (0, 2, 4):
                for left in (0, 2, 4):
                    total = 0.0
                    for row in range(top, top + 3):
                        for column in range(left, left + 3):
                            across = at(row, column + 1) - at(row, column - 1)
                            down = at(row + 1, column) - at(row - 1, column)
                            alike = math.cos(math.atan2(down, across) - direction)
                            total += math.hypot(across, down) * max(0.0, alike) ** 3 / 9
                    values.append(math.sqrt(total))
        length = math.sqrt(sum(value * value for value in values))
        expected.append([value / length for value in values])
    found = _gradient_histograms(pictures, PretrainingOptions(orientations=4, cell_size=3, cell_stride=2))
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("width", "kernel_width"), [(32, 0.1), (5, 0.1), (32, 0.01)])
def test_cosines_of_targets_are_the_kernel_as_far_as_the_width_goes(width: int, kernel_width: float) -> None:
    """Of an image and its copy too; a picture that is no reference is read by its similarities to them."""
    images = torch.rand(9, 3, 12, 12)
    images[8] = images[0]
    options = PretrainingOptions(kernel_width=kernel_width)
    descriptors = _gradient_histograms(images, options).double()
    kernel = torch.exp((descriptors @ descriptors.T - 1) / kernel_width)
    values, vectors = torch.linalg.eigh(kernel)
    leading = vectors[:, -width:] * values[-width:].clamp(min=0).sqrt()
    unit = F.normalize(leading, dim=1)
    targets = _KernelComponents(images, width, options, torch.Generator().manual_seed(0))(images).double()
    assert targets.shape == (9, width)
    torch.testing.assert_close(targets @ targets.T, unit @ unit.T, rtol=0, atol=1e-3)


def test_of_many_images_some_that_the_seed_draws_give_the_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "_MAX_REFERENCES", 5)
    images = torch.rand(30, 3, 12, 12)
    first, same, other = (
        _KernelComponents(images, 8, PretrainingOptions(), torch.Generator().manual_seed(seed)).references
        for seed in (1, 1, 2)
    )
    assert len(first) == 5
    assert torch.equal(first, same) and not torch.equal(first, other)


def test_an_image_is_joined_with_another_across_a_soft_line() -> None:
    """Of black and white images only the line is seen: grey values rise along one direction like a sigmoid."""
    black_and_white = torch.zeros(400, 3, 16, 16)
    black_and_white[200:] = 1
    joined = _join(black_and_white, 1.0, torch.Generator().manual_seed(0)).double()
    mixed = joined[joined.flatten(1).std(1) > 0.01]
    assert 150 < len(mixed) < 250  # half of the images meet one of their own colour
    logits = torch.logit(mixed[:, 0].clamp(1e-6, 1 - 1e-6))
    inner = logits[:, 4:12, 4:12]
    clear = (inner.abs() < 12).all(2).all(1)
    across, down = inner.diff(dim=2)[clear], inner.diff(dim=1)[clear]
    assert float(across.flatten(1).std(1).max()) < 0.1  # straight, and as steep everywhere
    steepness = torch.hypot(across.mean((1, 2)), down.mean((1, 2)))
    torch.testing.assert_close(steepness, torch.full_like(steepness, 8 * 2 / 16), rtol=0.02, atol=0)
    directions = torch.atan2(down.mean((1, 2)), across.mean((1, 2)))
    counts = torch.histc(directions.float(), 4, -math.pi, math.pi)
    assert counts.min() > 0.2 * counts.sum()  # as many in every quarter
    # At the middle of a picture the logit is eight times how far the line is from there, at most 0.3.
    middle = logits[:, 7:9, 7:9].mean((1, 2)).abs()
    assert 2.2 < float(middle.max()) < 2.41
    assert torch.equal(_join(black_and_white, 0.0, torch.Generator()), black_and_white)
    some = _join(black_and_white, 0.2, torch.Generator().manual_seed(0))
    assert 20 < int((some.flatten(1).std(1) > 0.01).sum()) < 65


def transforms(options: PretrainingOptions) -> Tensor:
    """How 500 pictures were moved: ``(500, 2, 3)``, from where each place of a picture shows what, in halves of a side.

    Told by two pictures whose values are the places themselves.
    """
    side = 32
    place = (torch.arange(side) + 0.5) * (2 / side) - 1
    ramps = torch.stack([place.expand(side, side), place[:, None].expand(side, side), torch.ones(side, side)])
    moved = _warp(ramps.repeat(500, 1, 1, 1), options, torch.Generator().manual_seed(0))
    inner = slice(12, 20)  # what is never moved to from outside
    assert float(moved[:, 2, inner, inner].min()) > 0.999
    rows, columns = torch.meshgrid(place[inner], place[inner], indexing="ij")
    places = torch.stack([columns.flatten(), rows.flatten(), torch.ones(64)], dim=1)
    found = torch.linalg.pinv(places) @ moved[:, :2, inner, inner].flatten(2).transpose(1, 2)
    return found.transpose(1, 2)


def require_uniform(values: Tensor, limit: float) -> None:
    assert float(values.max()) == pytest.approx(limit, rel=0.03)
    assert float(values.min()) == pytest.approx(-limit, rel=0.03)
    assert abs(float(values.mean())) < 0.1 * limit


@pytest.mark.parametrize("option", ["rotation", "zoom", "shear", "shift"])
def test_pictures_are_moved_by_as_much_as_each_option_says(option: str) -> None:
    limit = {"rotation": 30.0, "zoom": 0.3, "shear": 0.2, "shift": 0.25}[option]
    found = transforms(PretrainingOptions(**{**STILL, option: limit}))
    expected = torch.eye(2, 3).expand(500, 2, 3).clone()
    if option == "rotation":
        angles = torch.atan2(found[:, 1, 0], found[:, 0, 0])
        require_uniform(angles, math.radians(limit))
        expected[:, 0, 0] = expected[:, 1, 1] = angles.cos()
        expected[:, 1, 0], expected[:, 0, 1] = angles.sin(), -angles.sin()
    else:
        places = {"zoom": [(0, 0), (1, 1)], "shear": [(0, 1)], "shift": [(0, 2), (1, 2)]}[option]
        for row, column in places:
            values = found[:, row, column]
            require_uniform(values - expected[0, row, column], limit)
            expected[:, row, column] = values
        if len(places) == 2:  # each side by itself
            one, other = (found[:, row, column] for row, column in places)
            assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.15
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_pictures_are_bent_by_as_much_as_the_option_says() -> None:
    side = 32
    place = (torch.arange(side) + 0.5) * (2 / side) - 1
    ramps = torch.stack(
        [place.expand(side, side), place[:, None].expand(side, side), torch.zeros(side, side)]
    )
    bent = _warp(
        ramps.repeat(500, 1, 1, 1), PretrainingOptions(**{**STILL, "bend": 0.05}), torch_generator("bend")
    )
    shifts = (bent - ramps)[:, :2, 8:24, 8:24]
    assert 0.025 < float(shifts.std()) < 0.05  # between the points of the grid they are means
    across, down = shifts.mean((2, 3)).T
    assert abs(float(torch.corrcoef(torch.stack([across, down]))[0, 1])) < 0.15
    assert float(shifts.diff(dim=2).abs().max()) < 0.05  # smoothly
    # Four points across and four down, in the middles of as many squares, are displaced by just as much; the rest
    # follows from them.
    at_points = (bent - ramps)[:, :2, [3, 4, 11, 12, 19, 20, 27, 28]][..., [3, 4, 11, 12, 19, 20, 27, 28]]
    assert float(at_points.std()) == pytest.approx(0.0494, abs=0.001)
    assert int(torch.linalg.matrix_rank(shifts[:, 0].flatten(1).double(), rtol=1e-4)) == 16
    assert torch.equal(
        _warp(ramps[None], PretrainingOptions(bend=0.05), torch_generator("bend")),
        _warp(ramps[None], PretrainingOptions(bend=0.05), torch_generator("bend")),
    )


def test_backbone_that_were_made_can_be_made_again() -> None:
    """From the numbers that nobody gives."""
    assert asdict(PretrainingOptions()) == {
        "epochs": 80, "batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.02, "warmup_epochs": 3, "join": 0.5,
        "rotation": 20.0, "zoom": 0.2, "shear": 0.3, "shift": 0.15, "bend": 0.05, "orientations": 8, "cell_size": 6,
        "cell_stride": 2, "kernel_width": 0.2,
    }  # fmt: skip


def test_the_rate_rises_in_a_line_and_falls_by_half_a_cosine() -> None:
    options = PretrainingOptions(epochs=8, warmup_epochs=2, learning_rate=0.1)
    for epoch, share in ((0.0, 0.25), (0.5, 0.5), (1.5, 1.0), (2.0, 1.0), (4.0, 1.0), (7.5, 1.0)):
        cosine = 0.5 * (1 + math.cos(math.pi * epoch / 8))
        assert _learning_rate(epoch, options, 0.5) == pytest.approx(0.1 * share * cosine)
    at_once = PretrainingOptions(epochs=8, warmup_epochs=0, learning_rate=0.1)
    assert _learning_rate(0.0, at_once, 0.5) == pytest.approx(0.1)


def test_weights_are_those_of_the_plain_loop() -> None:
    """AdamW on pictures of six images, four and then two a step, towards the targets of the pictures themselves."""
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8)
    options = PretrainingOptions(
        epochs=2, batch_size=4, warmup_epochs=1, learning_rate=0.01, weight_decay=0.5
    )
    found = pretrain_backbone(images, CONFIG, options, seed=3).state_dict()

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of("pretraining-weights", 3))
        backbone = Dinov2Model(CONFIG).train()
    pixels = images.float() / 255
    targets = _KernelComponents(pixels, 32, options, torch_generator("pretraining-targets", 3))
    optimizer = torch.optim.AdamW(backbone.parameters(), betas=(0.9, 0.98), weight_decay=0.5)
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    for number, rate in enumerate(
        (0.005, 0.01 * math.cos(math.pi / 8) ** 2, 0.005, 0.01 * math.sin(math.pi / 8) ** 2)
    ):
        epoch, step = divmod(number, 2)
        order = torch.randperm(6, generator=torch_generator("pretraining-order", 3, epoch))
        generator = torch_generator("pretraining-pictures", 3, epoch, step)
        pictures = _warp(_join(pixels[order[4 * step :][:4]], 0.5, generator), options, generator)
        features = backbone((pictures - mean) / std).last_hidden_state[:, 0]
        loss = (2 - 2 * F.cosine_similarity(features, targets(pictures))).mean()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss.backward()
        length = math.sqrt(
            sum(float(each.grad.square().sum()) for each in backbone.parameters() if each.grad is not None)
        )
        assert length > 1  # so that it is shortened
        for each in backbone.parameters():
            if each.grad is not None:
                each.grad /= length
        optimizer.step()
    for name, value in backbone.state_dict().items():
        if not name.endswith(
            "k_proj.bias"
        ):  # moves no answer: its gradient is rounding, which AdamW makes a step of
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5)


def test_options_out_of_range_are_named(digits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ConfigurationError, match="epochs >= 1, got 0"):
        PretrainingOptions(epochs=0)
    with pytest.raises(ConfigurationError, match="cell_size <= 16, got 17"):
        pretrain_backbone(digits[0], CONFIG, PretrainingOptions(cell_size=17), seed=1)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 3, 16, 16), torch.uint8),
        ((4, 1, 16, 16), torch.uint8),
        ((4, 16, 16), torch.uint8),
        ((4, 3, 16, 16), torch.float32),
    ],
)
def test_what_is_no_two_colour_images_of_bytes_is_refused(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"Expected uint8 \(N >= 2, 3, S, S\)"):
        pretrain_backbone(torch.zeros(shape, dtype=dtype), CONFIG, PretrainingOptions(epochs=1), seed=1)


def test_one_image_to_pretrain_on_is_told(tmp_path: Path) -> None:
    coloured_images(2, 4).save_to_disk(str(tmp_path / "images"))
    cuts = [[0.25, 1.0], [1.0]]
    values = {
        "data": {"dataset": str(tmp_path / "images"), "class_blocks": [1, 1], "cuts": cuts},
        "views": {"image_size": 16, "resize_size": 16},
        "model": {"backbone": None, "backbone_config": TINY_BACKBONE},
        "training": {"output_dir": str(tmp_path / "run")},
    }
    with pytest.raises(DataError, match="Stage 0 has 1 image to pretrain a backbone on"):
        train_run(Recipe.from_dict(values))
