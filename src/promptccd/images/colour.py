"""Intended colours: a file's colour profile applied, in sRGB, which screens and models expect.

A profile may name a person, a serial number or a printer. A cleaned picture has no profile, or one of `profiles/`,
whose files contain numbers and the name of their colour space.
"""

import io
from functools import lru_cache
from importlib.resources import files

import numpy as np
from PIL import Image, ImageCms

MOST_PROFILE_BYTES = 4 * 2**20  # of a profile; profiles of printers have one or two million
SRGB = "sRGB"
_LIKE = 1  # grey level of 255 by which a profile may differ from a standard one
_PROBE_STEPS = 9  # per channel, at which profiles are compared
_REMEMBERED = 8  # profiles; a source has a few
_P3 = 12  # the number of its primaries in HEIF
STANDARD = {
    name: files("promptccd.images").joinpath("profiles", f"{name}.icc").read_bytes()
    for name in ("Display P3", "Adobe RGB", "ProPhoto RGB")
}
_MODES = {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}  # of pictures, by the colours of profiles


class _ProfileError(Exception):
    """A profile cannot be used, for the reason that is the message."""


def in_srgb(image: Image.Image) -> tuple[Image.Image, str]:
    """A loaded picture in sRGB, as RGB, or as RGBA if it has transparency; and a note, empty for most.

    A profile that is damaged, or meant for other pictures, is left aside with a note.
    """
    plain = image.convert("RGBA") if image.has_transparency_data else image
    profile, note = _profile_of(image), ""
    if profile:
        try:
            plain = _converted(image, plain, profile)
        except _ProfileError as error:
            note = f"colour profile left aside ({error})"
    return (plain if plain.mode in ("RGB", "RGBA") else plain.convert("RGB")), note


def standard_profile(profile: bytes) -> bytes | None:
    """A bundled profile with the colours of a file's own profile; `None` for sRGB and unknown profiles."""
    try:
        return STANDARD.get(_like(profile))
    except _ProfileError:
        return None


def _profile_of(image: Image.Image) -> bytes:
    """The profile of a picture; empty for most."""
    profile = image.info.get("icc_profile")
    if isinstance(profile, bytes) and profile:
        return profile
    numbers = image.info.get("nclx_profile", {})  # that HEIF has for a profile
    return STANDARD["Display P3"] if numbers.get("color_primaries") == _P3 else b""


def _converted(image: Image.Image, plain: Image.Image, profile: bytes) -> Image.Image:
    """A picture by its profile; `plain` is the same with its transparency, if any."""
    like = _like(profile)
    if like == SRGB:
        return plain
    profile = STANDARD.get(like, profile)
    mode = _mode_of(profile)
    if mode == "RGB":
        return _transformed(plain if plain.mode in ("RGB", "RGBA") else plain.convert("RGB"), profile)
    if (mode == "L") != (image.mode in ("1", "L", "LA")) or mode != "L" != image.mode != mode:
        raise _ProfileError(f"it is meant for {mode}, and the picture is {image.mode}")
    shown = _transformed(image.convert(mode), profile)
    if plain.mode == "RGBA":
        shown.putalpha(plain.getchannel("A"))
    return shown


def _transformed(image: Image.Image, profile: bytes) -> Image.Image:
    out = "RGBA" if image.mode == "RGBA" else "RGB"
    opened, screen = _open_profile(profile), ImageCms.createProfile("sRGB")
    try:
        # Without the cache of a single pixel, which threads would share.
        transform = ImageCms.buildTransform(opened, screen, image.mode, out, flags=ImageCms.Flags.NOCACHE)
        shown = ImageCms.applyTransform(image, transform)
    except (ImageCms.PyCMSError, ValueError, OSError, TypeError) as error:
        raise _ProfileError("it is damaged") from error
    assert shown is not None, "it is not made in place"
    return shown


def _open_profile(profile: bytes) -> ImageCms.ImageCmsProfile:
    if len(profile) > MOST_PROFILE_BYTES:
        raise _ProfileError(f"it has {len(profile)} bytes, more than {MOST_PROFILE_BYTES}")
    try:
        return ImageCms.ImageCmsProfile(io.BytesIO(profile))
    except (ImageCms.PyCMSError, ValueError, OSError, TypeError) as error:
        raise _ProfileError("it is damaged") from error


def _mode_of(profile: bytes) -> str:
    colours = _open_profile(profile).profile.xcolor_space.strip()
    if colours not in _MODES:
        raise _ProfileError(f"it is for {colours[:4]!r} colours")
    return _MODES[colours]


@lru_cache(maxsize=_REMEMBERED)
def _like(profile: bytes) -> str:
    """The standard profile that shows the same colours, whatever its name, or empty."""
    mode = _mode_of(profile)
    if mode == "CMYK":
        return ""
    probe = _probe(mode)
    shown = np.asarray(_transformed(probe, profile)).astype(int)
    if np.abs(shown - np.asarray(probe.convert("RGB"))).max() <= _LIKE:
        return SRGB
    for name, standard in STANDARD.items() if mode == "RGB" else ():
        if np.abs(shown - np.asarray(_transformed(probe, standard))).max() <= _LIKE:
            return name
    return ""


def _probe(mode: str) -> Image.Image:
    """All kinds of colours in one picture."""
    steps = np.linspace(0, 255, _PROBE_STEPS).round().astype(np.uint8)
    if mode == "L":
        return Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    colours = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), axis=-1)
    return Image.fromarray(colours.reshape(_PROBE_STEPS, -1, 3))
