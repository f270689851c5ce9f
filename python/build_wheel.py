"""Builds the wheel: maturin's, with the command line and the launcher inside.

A search starts its workers as processes of the command line, so a wheel without it could neither compile a kernel nor use a GPU. The
launcher is a library that artifacts load without the package's own, which holds the whole search. maturin builds one library and nothing beside
it: this does, and leaves the rest to maturin.
`--config-setting=profile=dev` builds with Cargo's profile of that name; without it, as for a release.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import maturin

HERE = Path(__file__).resolve().parent
PLACE = HERE / "tilewright" / "bin"
BUILT = ("tilewright", "libtilewright_launcher.so")


# maturin starts itself as a program, which is beside this interpreter where the environment is not activated.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
# Places in the source are three quarters of what a wheel would weigh.
os.environ.setdefault("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    return maturin.get_requires_for_build_wheel(config_settings)


def build_wheel(wheel_directory: str, config_settings: dict | None = None, metadata_directory: str | None = None) -> str:
    settings = dict(config_settings or {})
    profile = settings.pop("profile", "release")
    programs(profile)
    settings["build-args"] = f"--profile {profile} --locked"
    return maturin.build_wheel(wheel_directory, settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict | None = None) -> str:
    return maturin.prepare_metadata_for_build_wheel(metadata_directory)


def programs(profile: str) -> None:
    """Builds the command line and the launcher, and puts them into the package."""
    root = HERE.parent
    # Built with the library, and not by themselves: so all have the same features of what they depend on, which is then built once.
    packages = ("tilewright", "tilewright-launcher", "tilewright-python")
    build = ["cargo", "build", "--locked", "--profile", profile, *(word for p in packages for word in ("--package", p))]
    subprocess.run(build, cwd=root, check=True)
    metadata = ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"]
    found = json.loads(subprocess.run(metadata, cwd=root, check=True, stdout=subprocess.PIPE).stdout)
    folder = Path(found["target_directory"]) / ("debug" if profile == "dev" else profile)
    PLACE.mkdir(exist_ok=True)
    for name in BUILT:
        shutil.copyfile(folder / name, PLACE / name)
        os.chmod(PLACE / name, 0o755)
