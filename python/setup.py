"""Everything else is in pyproject.toml. A wheel is for one platform if scripts/build_wheel has put the library and the
tool in it, and for all if it has not; either serves any Python 3."""

from pathlib import Path

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HAS_NATIVE_FILES = (Path(__file__).resolve().parent / "src" / "troupe" / "_native").is_dir()


class Platform(Distribution):
    """Says where the package belongs: beside others with native files, or beside pure ones."""

    def has_ext_modules(self):
        return HAS_NATIVE_FILES


class Wheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(distclass=Platform, cmdclass={"bdist_wheel": Wheel})
