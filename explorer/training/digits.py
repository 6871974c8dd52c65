"""Accuracy against bits, measured: a small network on scikit-learn's digits, quantized before and after
training.

1,797 real images of 8×8 pixels (E. Alpaydin, C. Kaynak, UCI 1998), three quarters to train on and the rest to
test on. For each seed a network is trained in float32, quantized as it is (post-training), and trained on: in
float32, and through the quantizer.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from explorer.formats import FORMATS, IntegerFormat
from explorer.progress import checkpoint
from explorer.schemes import SCHEMES, MappingType, Scheme
from explorer.training.layers import QuantLinear, Rule, prepare


def _whole(bits: int) -> Scheme:
    """Symmetric integers with a float32 scale per row; of two bits all four codes are used."""
    fmt = FORMATS.get(f"int{bits}") or IntegerFormat(name=f"int{bits}", label=f"INT{bits}", bits=bits)
    mapping = MappingType.FULL if bits == 2 else MappingType.SYMMETRIC
    return Scheme(f"int{bits}_rows", f"INT{bits} per channel", fmt, (1, None), mapping=mapping)


WIDTHS: dict[str, Scheme] = {str(bits): _whole(bits) for bits in (8, 7, 6, 5, 4, 3, 2)} | {
    "ternary": SCHEMES["ternary_absmean"], "binary": SCHEMES["binary_row"],
}  # fmt: skip
"""The weights' scheme at each width."""
FLOAT, LONGER = "float32", "float32, trained on"
POST, STRAIGHT, LSQ = "post-training", "trained through", "trained through, LSQ"
STAGES = (FLOAT, LONGER, POST, STRAIGHT, LSQ)
NO_LSQ = ("ternary", "binary")
"""Widths whose formats have no step size to learn."""
FREE_POINTS = 0.5
"""Percentage points of accuracy within which a width counts as free."""
HIDDEN, BATCH, RATE = 32, 64, 3e-3


@dataclass(frozen=True)
class Trained:
    """One trained network: ``width`` of its weights in bits ("32" for float32), ``stage`` of training, seed.

    ``accuracy`` on the test images at the end, ``curve`` after each epoch. ``steps``: each layer's mean LSQ
    step size before and after training; empty for other stages.
    """

    width: str
    stage: str
    seed: int
    accuracy: float
    curve: tuple[float, ...]
    steps: tuple[tuple[float, float], ...] = ()


@cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Load images float32 [n, 64] in 0 … 1 and labels int64 [n] to train on, then to test on; a fixed
    split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    parts = train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)
    x, x_test, y, y_test = map(torch.from_numpy, parts)
    return x, y, x_test, y_test


def network(seed: int, hidden: tuple[int, ...] = (HIDDEN, HIDDEN)) -> nn.Sequential:
    """Make a network with ``hidden`` layers of these widths, initialised as ``nn.Linear`` is.

    It draws from its own generator: visitors of the page share the global one.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = list[nn.Module]()
    for inputs, outputs in itertools.pairwise((64, *hidden, 10)):
        layer = nn.utils.skip_init(nn.Linear, inputs, outputs)
        assert isinstance(layer, nn.Linear)
        nn.init.kaiming_uniform_(layer.weight, a=5**0.5, generator=generator)
        nn.init.uniform_(layer.bias, -(inputs**-0.5), inputs**-0.5, generator=generator)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def scheme_of(width: str) -> Scheme:
    """Return the scheme of a row of ``WIDTHS``; ``ValueError`` lists the widths."""
    if width not in WIDTHS:
        raise ValueError(f"no width {width!r}; there are {', '.join(WIDTHS)}")
    return WIDTHS[width]


def accuracy(model: nn.Module) -> float:
    """Compute the share of the test images that ``model`` classifies correctly."""
    _, _, x, y = data()
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def fit(model: nn.Module, epochs: int, seed: int, rate: float = RATE) -> Iterator[float]:
    """Train ``model`` in place as ``losses`` does; yields the accuracy after each epoch."""
    for _ in losses(model, epochs, seed, rate):
        yield accuracy(model)


def losses(model: nn.Module, epochs: int, seed: int, rate: float = RATE) -> Iterator[float]:
    """Train ``model`` in place by Adam, with a one-cycle learning rate.

    Yields the mean cross-entropy of the training images in each epoch, in nats; each loss is taken before its
    step.
    """
    x, y, _, _ = data()
    batches = -(-len(x) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=rate, total_steps=epochs * batches, pct_start=0.2
    )
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        total = torch.zeros((), dtype=torch.float64)
        for index in torch.randperm(len(x), generator=generator).split(BATCH):
            checkpoint()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            loss.backward()
            total += loss.detach() * len(index)
            optimizer.step()
            schedule.step()
        yield float(total / len(x))


def train(
    widths: Sequence[str] = tuple(WIDTHS),
    seeds: int = 3,
    epochs: int = 20,
    again: int = 8,
    activations: Scheme | None = None,
) -> Iterator[Trained]:
    """Train networks: for each seed in float32 for ``epochs``; then for each width PTQ, QAT by
    straight-through gradients, and for integers LSQ, the latter two trained on for ``again`` epochs.

    QAT is compared with float32 trained on for as long. ``activations`` also quantizes the inputs of all
    layers but the first. ``ValueError`` for unknown widths and numbers below one.
    """
    for width in widths:
        scheme_of(width)
    if min(seeds, epochs, again) < 1:
        raise ValueError("seeds and epochs are at least one")
    for seed in range(seeds):
        base = network(seed)
        curve = tuple(fit(base, epochs, seed))
        yield Trained("32", FLOAT, seed, curve[-1], curve)
        curve = tuple(fit(copy.deepcopy(base), again, seed))
        yield Trained("32", LONGER, seed, curve[-1], curve)
        for width in widths:
            yield from _quantized_stages(base, width, seed, again, activations)


def _quantized_stages(
    base: nn.Module, width: str, seed: int, epochs: int, activations: Scheme | None
) -> Iterator[Trained]:
    through = Rule.STE if width in NO_LSQ else Rule.STE_CLIPPED
    for stage, rule in ((POST, Rule.STE_CLIPPED), (STRAIGHT, through), (LSQ, Rule.LSQ)):
        if stage == LSQ and width in NO_LSQ:
            continue
        model = copy.deepcopy(base)
        prepare(model, scheme_of(width), activations, rule=rule)
        layers = [m for m in model.modules() if isinstance(m, QuantLinear)]
        layers[0].inputs = None  # pixels
        before = _step_sizes(layers)
        curve = () if stage == POST else tuple(fit(model, epochs, seed))
        steps = tuple(zip(before, _step_sizes(layers), strict=True))
        yield Trained(width, stage, seed, accuracy(model), curve, steps)


def _step_sizes(layers: Sequence[QuantLinear]) -> list[float]:
    """Mean learned step size of each layer; empty if none is learned."""
    return [float(m.step_size.detach().abs().mean()) for m in layers if m.step_size is not None]


@dataclass(frozen=True)
class Underflow:
    """Effect of a loss scale on one batch's nonzero gradients: the shares that float16 flushes to zero
    (``lost``) and overflows, and the share that bfloat16 flushes."""

    loss_scale: float
    lost: float
    overflowed: float
    lost_bf16: float


def gradient_magnitudes(seed: int = 0, epochs: int = 12) -> Tensor:
    """Compute the nonzero |gradients| of one batch, of weights and hidden values, after some epochs in
    float32."""
    model = network(seed)
    for _ in losses(model, epochs, seed):
        pass
    x, y, _, _ = data()
    hidden, outputs = x[:512], list[Tensor]()
    for module in model:
        hidden = module(hidden)
        if isinstance(module, nn.Linear):
            outputs.append(hidden)
    loss = nn.functional.cross_entropy(hidden, y[:512])
    gradients = torch.autograd.grad(loss, [*outputs, *model.parameters()])
    values = torch.cat([g.reshape(-1) for g in gradients]).abs()
    return values[values > 0]


def underflow(gradients: Tensor, exponents: Sequence[int] = tuple(range(0, 25, 2))) -> list[Underflow]:
    """Compute the effect of each loss scale 2^exponent on the magnitudes ``gradients``."""

    def share(of: Tensor) -> float:
        return float(of.float().mean())

    scaled = [(2.0**exponent, gradients * 2.0**exponent) for exponent in exponents]
    return [
        Underflow(scale, share(g.half() == 0), share(g.half().isinf()), share(g.bfloat16() == 0))
        for scale, g in scaled
    ]


@dataclass(frozen=True)
class AccuracyRow:
    """Accuracy of one width and stage over the seeds: mean, least and most."""

    width: str
    stage: str
    mean: float
    least: float
    most: float
    seeds: int


def accuracy_rows(results: Sequence[Trained]) -> list[AccuracyRow]:
    """Make a row per width and stage: float32 first, then in the order of ``WIDTHS`` and ``STAGES``."""
    accuracies: dict[tuple[str, str], list[float]] = {}
    for r in results:
        accuracies.setdefault((r.width, r.stage), []).append(r.accuracy)
    order = itertools.product(["32", *WIDTHS], STAGES)
    rows = [(key, accuracies[key]) for key in order if key in accuracies]
    return [AccuracyRow(*key, sum(v) / len(v), min(v), max(v), len(v)) for key, v in rows]


def stages(results: Sequence[Trained]) -> list[str]:
    """The stages of ``results``, in the order of training."""
    return [s for s in STAGES if any(r.stage == s for r in results)]


def count(widths: Sequence[str], seeds: int) -> int:
    """Number of networks that ``train`` will yield."""
    return seeds * (2 + sum(2 if w in NO_LSQ else 3 for w in widths))


def progress_words(done: Trained, index: int, total: int) -> str:
    """Describe the network just trained in one line."""
    return (
        f"{index} of {total} networks · seed {done.seed + 1}, {width_words(done.width)}, {done.stage}: "
        f"{100 * done.accuracy:.1f} %"
    )


def summary(results: Sequence[Trained]) -> str:
    """Name the width down to which PTQ loses nothing, and the gain of QAT below it; empty until both are
    known."""
    mean = {(r.width, r.stage): 100 * r.mean for r in accuracy_rows(results)}
    widths = [w for w in WIDTHS if (w, POST) in mean]
    if not widths:
        return ""
    base = mean["32", FLOAT]
    free = list(itertools.takewhile(lambda w: mean[w, POST] >= base - FREE_POINTS, widths))
    text = f"float32 recognises {base:.1f} %"
    text += f"; rounding alone costs less than half a point down to {width_words(free[-1])}." if free else "."
    trained = {w: max(mean[w, STRAIGHT], mean.get((w, LSQ), 0)) for w in widths if (w, STRAIGHT) in mean}
    best = max(trained, key=lambda w: (trained[w] - mean[w, POST], w), default=None)
    if best is None or trained[best] - mean[best, POST] <= 1:
        return text
    text += (
        f" Training through it wins most back at {width_words(best)}: from {mean[best, POST]:.1f} % to "
        f"{trained[best]:.1f} %"
    )
    longer = mean.get(("32", LONGER))
    return text + ("." if longer is None else f", where training on in float32 gives {longer:.1f} %.")


def width_words(width: str) -> str:
    """Describe a row of ``WIDTHS``: "4 bits", "binary weights"."""
    return f"{width} bits" if width.isdigit() else f"{width} weights"


def underflow_summary(rows: Sequence[Underflow]) -> str:
    """Describe the gradients that float16 loses without a loss scale, the best scale, and those that bfloat16
    loses."""
    best = min((r for r in rows if r.overflowed == 0), key=lambda r: (r.lost, r.loss_scale))
    over = next((f", and from {r.loss_scale:,.0f} on some overflow" for r in rows if r.overflowed), "")
    return (
        f"Without a loss scale FP16 flushes {100 * rows[0].lost:.2f} % of this network's nonzero gradients "
        f"to zero; a scale of {best.loss_scale:,.0f} leaves {100 * best.lost:.3g} %{over}. "
        f"BF16 has float32's range and needs none: it loses {100 * rows[0].lost_bf16:.3g} %."
    )
