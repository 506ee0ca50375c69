"""The files of `uhm imagine`. Everything is computed before the first one is written."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from uhm.errors import writing
from uhm.evaluate.video import save
from uhm.imagine.calibrate import calibration
from uhm.imagine.curves import calibration_figure
from uhm.imagine.draw import Drawing
from uhm.imagine.dream import Dream
from uhm.runs.files import write_figure, write_json

FPS = 3
HORIZONS = 24  # that a film shows at most
_HOLD = 4  # frames that the last picture of a film stays


def write(
    dream: Dream, out: Path, n: Sequence[int] | None = None, *, starts: int = 4, draws: int = 128, gif: bool = False
) -> tuple[dict[str, Any] | None, list[Path]]:
    """Pictures, film and numbers in the folder `out`; returns the numbers and the files."""
    drawing = Drawing(dream, dream.futures(n, starts, draws))
    facts = calibration(dream, n, draws=min(draws, 64))
    out, paths = out.expanduser(), []
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for name, figure in {"futures": drawing.figure(), "calibration": facts and calibration_figure(facts)}.items():
        if figure is not None:
            paths += [out / f"{name}.png", out / f"{name}.pdf"]
            write_figure(paths[-2], figure, dpi=150)
            write_figure(paths[-1], figure, dpi=200)
    film = _held(frames(drawing))
    with writing(out):
        for name in ("futures.gif", "futures.mp4", "calibration.json", "calibration.png", "calibration.pdf"):
            if out / name not in paths:  # what an earlier call left need not be of this member and these horizons
                (out / name).unlink(missing_ok=True)
        paths.append(save_gif(film, out / "futures.gif") if gif else save(film, out / "futures.mp4", FPS))
    if facts is not None:
        paths.append(out / "calibration.json")
        write_json(paths[-1], facts)
    return facts, paths


def frames(drawing: Drawing, dpi: int = 110) -> Iterator[np.ndarray]:
    """A film over n, a picture for each horizon."""
    longest = drawing.longest
    moments = sorted({round(float(x)) for x in np.linspace(1, longest, min(longest, HORIZONS))})
    for now in moments:
        canvas = FigureCanvasAgg(drawing.figure(moments, now))
        canvas.figure.set_dpi(dpi)
        canvas.draw()
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _held(pictures: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    picture = None
    for picture in pictures:
        yield picture
    for _ in range(_HOLD):
        assert picture is not None
        yield picture


def save_gif(pictures: Iterator[np.ndarray], path: Path) -> Path:
    """A GIF with one set of colours for all frames, so that nothing flickers and little is stored."""
    from PIL import Image

    images = [Image.fromarray(picture) for picture in pictures]
    some = np.concatenate([np.asarray(image) for image in images[:: max(1, len(images) // 6)]])
    # The octree keeps rare colours apart, which those of the points are.
    palette = Image.fromarray(some).quantize(256, method=Image.Quantize.FASTOCTREE)
    plain = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    plain[0].save(path, save_all=True, append_images=plain[1:], duration=1000 // FPS, loop=0, optimize=True)
    return path
