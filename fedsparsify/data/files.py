"""The files of data sets: where they are, how they are downloaded, and their checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import DataError

VARIABLE = "FEDSPARSIFY_DATA"


@dataclass(frozen=True)
class Home:
    """The files of one data set: their sha256 (of what is inside a .gz), and where they come from."""

    name: str
    sha256: Mapping[str, str]
    url: str  # of the archive, or of the folder with the files
    archive_hash: str = ""  # "md5:…" of the archive; empty if the URL is a folder
    elsewhere: tuple[Path, ...] = field(default=())  # further folders that may have them

    def read(self, name: str) -> bytes:
        """The checked content of one file, decompressed; downloaded first if it is not on this machine."""
        path = self.find(name)
        if path is None:
            self.download()
            path = self.find(name)
        if path is None:
            raise DataError(self.missing(name))
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError) as error:
            raise DataError(f"{path} is damaged ({error}). {self.again(path)}") from error
        if hashlib.sha256(content).hexdigest() != self.sha256[name]:
            raise DataError(
                f"{path} does not have the sha256 of {self.name}'s {name} ({len(content):,} bytes read): "
                f"it is truncated or altered. {self.again(path)}"
            )
        return content

    def find(self, name: str) -> Path | None:
        """The file's path on this machine."""
        for folder in (self.folder, *self.elsewhere):
            if (folder / name).is_file():
                return folder / name
        return None

    @property
    def folder(self) -> Path:
        """The folder of this data set."""
        return cache_folder() / self.name

    @property
    def present(self) -> bool:
        """Whether every file is on this machine."""
        return all(self.find(name) for name in self.sha256)

    def download(self) -> None:
        """Download the missing files into our folder, with a progress bar."""
        try:
            import pooch
        except ImportError:
            raise DataError(f"downloading needs pooch: pip install 'fedsparsify[train]'. {self.by_hand()}") from None
        jobs = (
            {self.url.rpartition("/")[2]: self.url}
            if self.archive_hash
            else {name: f"{self.url}/{name}" for name in self.sha256 if not self.find(name)}
        )
        for name, url in jobs.items():
            try:
                pooch.retrieve(
                    url,
                    known_hash=self.archive_hash or None,
                    fname=name,
                    path=self.folder,
                    progressbar=True,
                    downloader=pooch.HTTPDownloader(progressbar=True, timeout=30),
                )
            except (OSError, ValueError) as error:  # no network; a wrong hash
                raise DataError(f"{self.missing(name)} (tried {url}: {type(error).__name__})") from error
            if self.archive_hash:
                self._unpack(self.folder / name)

    def _unpack(self, archive: Path) -> None:
        """Extract the files we know, and nothing else."""
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                source = tar.extractfile(member) if name in self.sha256 else None
                if source is not None:
                    partial = self.folder / f"{name}.partial"
                    partial.write_bytes(source.read())
                    partial.replace(self.folder / name)
        archive.unlink()

    def missing(self, name: str) -> str:
        """The message for a file that cannot be found."""
        return (
            f"{self.name} is not on this machine: there is no {name} in {self.folder}. "
            f"Get it with: fedsparsify data {self.name} --download. {self.by_hand()}"
        )

    def by_hand(self) -> str:
        """How to get the files by hand."""
        return f"Or copy it from {self.url} into that folder ({VARIABLE} names another parent)."

    def again(self, path: Path) -> str:
        """How to replace a damaged file."""
        return f"Delete it and run: fedsparsify data {self.name} --download"


def cache_folder() -> Path:
    """`FEDSPARSIFY_DATA`, or the platform's cache directory."""
    if folder := os.environ.get(VARIABLE):
        return Path(folder).expanduser()
    try:
        import pooch
    except ImportError:
        return Path.home() / ".cache" / "fedsparsify"
    return Path(pooch.os_cache("fedsparsify"))
