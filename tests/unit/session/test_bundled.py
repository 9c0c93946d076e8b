"""A session inside a bundle; archives that are none, or are made to do harm."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest
import zstandard

from pardbg.session.reader import SessionError, load
from tests.unit.session.test_reader import write


def bundle(path: Path, *members: tuple[tarfile.TarInfo, bytes], level: int = 3) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, content in members:
            member.size = member.size or len(content)
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(zstandard.ZstdCompressor(level).compress(raw.getvalue()))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


def test_a_bundle_opens_as_the_session_in_it(tmp_path: Path) -> None:
    session = write(tmp_path / "s.mcap")
    path = bundle(
        tmp_path / "b.tar.zst", (member("session.mcap"), session.read_bytes()),
        (member("../../escape"), b"never read"),
    )  # fmt: skip
    ours, plain = load(path), load(session)
    assert sum(p.num_records for p in ours.of_part()) == sum(p.num_records for p in plain.of_part())
    assert not ours.truncated and sorted(p.name for p in tmp_path.iterdir()) == [
        "b.tar.zst",
        "s.mcap",
    ]


@pytest.mark.parametrize("first", [
    (member("/etc/passwd"), b"x"), (member("../session.mcap"), b"x"),
    (member("session.mcap", tarfile.SYMTYPE, "/etc/passwd"), b""), (member("report.txt"), b"x"),
])  # fmt: skip
def test_what_does_not_begin_with_a_session_is_none(
    tmp_path: Path, first: tuple[tarfile.TarInfo, bytes]
) -> None:
    with pytest.raises(SessionError):
        load(bundle(tmp_path / "b.tar.zst", first))


def test_a_session_larger_than_its_archive_allows_is_not_unpacked(tmp_path: Path) -> None:
    """512 MiB of nothing in 16 KiB: 64 MiB and 16 bytes for each of the archive are allowed."""
    head = member("session.mcap")
    head.size = 512 << 20
    packer = zstandard.ZstdCompressor().compressobj()
    path = tmp_path / "b.tar.zst"
    with open(path, "wb") as file:
        file.write(packer.compress(head.tobuf(tarfile.USTAR_FORMAT)))
        for _ in range(512):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())
    with pytest.raises(SessionError):
        load(path)


def test_a_negative_size_unpacks_nothing(tmp_path: Path) -> None:
    """Reading -1 bytes would be reading all: 256 MiB of nothing in 8 KiB."""
    head = bytearray(member("session.mcap").tobuf(tarfile.USTAR_FORMAT))
    head[124:136] = b"-0000000001\0"
    path = tmp_path / "b.tar.zst"
    path.write_bytes(zstandard.compress(bytes(head) + bytes(256 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(SessionError):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


ZSTD = b"\x28\xb5\x2f\xfd"


@pytest.mark.parametrize(
    "raw", [ZSTD, ZSTD + bytes(600), zstandard.compress(b""), zstandard.compress(bytes(2000))]
)
def test_damage_is_said_in_one_line(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "b.tar.zst").write_bytes(raw)
    with pytest.raises(SessionError) as error:
        load(tmp_path / "b.tar.zst")
    assert "\n" not in str(error.value)


def test_a_bundle_that_is_cut_off_says_so(tmp_path: Path) -> None:
    session = write(tmp_path / "s.mcap").read_bytes()
    whole = bundle(tmp_path / "b.tar.zst", (member("session.mcap"), session)).read_bytes()
    (tmp_path / "b.tar.zst").write_bytes(whole[: len(whole) * 2 // 3])
    try:
        assert load(tmp_path / "b.tar.zst").truncated
    except SessionError:
        pass  # not even its beginning
