"""What happens before the first batch: imports, compilation, and what is kept of it."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llvmlite import binding

from fedsparsify.errors import ModelError
from fedsparsify.inference.runtime import native_calls as native
from fedsparsify.inference.runtime.native_calls import ACTIVATION_FILES, INFERENCE_CODE, INT8_CODE
from fedsparsify.native import code_images, codegen, machine
from fedsparsify.native.code_images import PACKAGE, SHARED, CodeImage, made_of
from fedsparsify.native.image_files import Damaged, keep, mapped
from fedsparsify.native.linking import LinkError, link
from fedsparsify.native.machine import lanes_here
from fedsparsify.training.native.kernel_code import CONVOLUTIONS, PERCEPTRONS

linked = pytest.mark.skipif(not codegen.LINKED, reason="images are made on Linux on x86-64 only")


def run(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code]).returncode


def test_the_engine_needs_no_training_framework() -> None:
    heavy = "{'torch', 'matplotlib', 'click', 'rich', 'pooch', 'onnx', 'numba', 'llvmlite', 'hashlib'}"
    assert run(f"import sys, fedsparsify.inference; sys.exit(bool({heavy} & sys.modules.keys()))") == 0


@linked
def test_serving_needs_no_compiler_once_an_image_is_kept() -> None:
    native.native_calls(lanes_here())  # keeps one, where none was
    code = (
        "import sys; from fedsparsify.inference.runtime.native_calls import native_calls; "
        f"native_calls({lanes_here()}); sys.exit('numba' in sys.modules or 'llvmlite' in sys.modules)"
    )
    assert run(code) == 0


def object_file(text: str) -> bytes:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(reloc="pic", codemodel="small")
    return bytes(machine.emit_object(binding.parse_assembly(text)))


SOME = CodeImage("some", "nowhere", (8, 2), ())
TWO = """
@numbers = private constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
define i32 @second(ptr %result, ptr %exception, i64 %index, i64 %target) {
  %place = getelementptr [4 x i64], ptr @numbers, i64 0, i64 %index
  %value = load i64, ptr %place
  %out = inttoptr i64 %target to ptr
  store i64 %value, ptr %out
  ret i32 0
}
define i32 @first(ptr %a, ptr %b, i64 %index, i64 %c, i64 %d, i64 %e, i64 %f, i64 %g, i64 %h, i64 %i) {
  %done = call i32 @second(ptr %a, ptr %b, i64 %index, i64 %c)
  ret i32 %done
}
"""


class Compiler:
    """Stands for the real one, which takes seconds."""

    count = 0
    text = TWO

    def __init__(self, code: CodeImage, lanes: int) -> None:
        Compiler.count += 1

    def addresses(self) -> list[int]:
        return [1, 2]

    def image(self) -> tuple[bytes, list[int]]:
        return link(object_file(self.text), ["first", "second"])


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> type[Compiler]:
    monkeypatch.setattr(codegen, "Code", Compiler)
    monkeypatch.setattr(Compiler, "count", 0)
    return Compiler


def fresh(lanes: int) -> Any:
    return code_images._functions.__wrapped__(SOME, lanes)


@linked
def test_an_image_runs_from_its_file(tmp_path: Path) -> None:
    """Code that reads a table of its own and calls a function of its own: two relocations."""
    image, places = link(object_file(TWO), ["first", "second"])
    keep(tmp_path / "deep" / "image", image, places)
    first, second = code_images._callable(SOME, *mapped(tmp_path / "deep" / "image", 2))
    found = np.zeros(2, np.int64)
    first(2, found.ctypes.data, 0, 0, 0, 0, 0, 0)
    second(3, found.ctypes.data + 8)
    assert found.tolist() == [30, 40]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["image"]


@linked
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("define i32 @other() { ret i32 0 }", "no function first"),
        ("declare i32 @puts(ptr)\ndefine i32 @first() { %a = call i32 @puts(ptr null) ret i32 %a }", "puts"),
        ("@v = global i32 7\ndefine ptr @first() { ret ptr @v }", "variables"),
        ("@v = internal global i32 0\ndefine void @first() { store i32 1, ptr @v ret void }", "variables"),
    ],
)
def test_what_cannot_stand_alone_makes_no_image(text: str, said: str) -> None:
    with pytest.raises(LinkError, match=said):
        link(object_file(text), ["first"])
    with pytest.raises(LinkError, match="no object file"):
        link(bytes(64), ["first"])


@linked
@pytest.mark.parametrize("length", [0, 10, 31, 32, 64, 100])
def test_an_image_that_is_cut_off_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "image"
    keep(path, *link(object_file(TWO), ["first", "second"]))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Damaged, match=r"damaged|cut off"):
        mapped(path, 2)


@linked
def test_every_bit_of_an_image_is_checked(tmp_path: Path) -> None:
    """The table of functions too: a bit there would make a call jump to anywhere."""
    path = tmp_path / "image"
    keep(path, *link(object_file(TWO), ["first", "second"]))
    data = path.read_bytes()
    for bit in range(0, 8 * len(data), 1 if len(data) < 2048 else 3):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged, match="is damaged"):
            mapped(path, 2)


@linked
@pytest.mark.parametrize("place", [-1, 0, 1])
def test_functions_begin_inside_of_the_image(tmp_path: Path, place: int) -> None:
    image, _ = link(object_file(TWO), ["first", "second"])
    keep(tmp_path / "image", image, [0, len(image) + place])
    if place < 0:
        assert len(mapped(tmp_path / "image", 2)[0]) == 2
        return
    with pytest.raises(Damaged, match="outside of its code"):
        mapped(tmp_path / "image", 2)


@linked
@pytest.mark.parametrize("what", ["image", "folder", "link", "pipe"])
def test_what_others_could_have_written_is_not_run(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    path = folder / "image"
    keep(path, *link(object_file(TWO), ["first", "second"]))
    match what:
        case "image":
            path.chmod(0o664)
        case "folder":
            folder.chmod(0o777)
        case "link":
            path.rename(folder / "elsewhere")
            path.symlink_to(folder / "elsewhere")
        case "pipe":
            path.unlink()
            os.mkfifo(path)
            path.chmod(0o600)
    with pytest.raises(OSError, match=r"by others|symbolic links|not a regular file"):
        mapped(path, 2)


@linked
def test_new_folders_are_the_users_alone(tmp_path: Path) -> None:
    keep(tmp_path / "new" / "image", *link(object_file(TWO), ["first", "second"]))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@linked
def test_a_planted_link_in_place_of_the_lock_is_not_followed(
    compiler: type[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor is anything else there; then the kernels are compiled, and kept nowhere."""
    precious = tmp_path / "precious"
    precious.write_text("all my work")
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(code_images, "_folders", lambda: [folder])
    name = "-".join(["some-16", *(part or "" for part in made_of(SOME))])
    (folder / f"{name}.lock").symlink_to(precious)
    fresh(16)
    assert precious.read_text() == "all my work"
    assert [path.name for path in folder.iterdir()] == [f"{name}.lock"]
    (folder / f"{name}.lock").unlink()
    (folder / f"{name}.lock").write_text("kept")  # of a process that was killed: not emptied, but taken
    (folder / name).symlink_to(precious)
    fresh(16)
    assert precious.read_text() == "all my work"
    assert not (folder / name).is_symlink()
    fresh(16)
    assert compiler.count == 2


@linked
def test_a_damaged_image_is_compiled_again_and_said_to_be(
    compiler: type[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path])
    fresh(16)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    data[17] ^= 1  # where the first function begins
    path.write_bytes(data)
    fresh(16)
    assert f"{path} is damaged. The some kernels are not taken from it." in caplog.text
    caplog.clear()
    fresh(16)
    assert compiler.count == 2
    assert not caplog.text


@linked
def test_compiled_once_and_kept_where_it_can_be(
    compiler: type[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path / "file", tmp_path / "good"])
    for _ in range(2):
        fresh(16)
    assert compiler.count == 1
    assert len(list((tmp_path / "good").iterdir())) == 1
    monkeypatch.setattr(code_images, "made_of", lambda code: ("the same", "other compilers"))
    fresh(16)
    assert compiler.count == 2


@linked
def test_without_a_compiler_an_image_made_by_any_will_do(
    compiler: type[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path])
    fresh(16)
    monkeypatch.setattr(code_images, "find_spec", lambda name: None)
    sources, compilers = made_of.__wrapped__(SOME)
    assert (sources, compilers) == (made_of(SOME)[0], None)
    monkeypatch.setattr(code_images, "made_of", lambda code: (sources, None))
    fresh(16)
    assert compiler.count == 1
    with pytest.raises(ImportError, match="no some kernels for vectors of 8 floats"):
        fresh(8)
    monkeypatch.setattr(native, "INFERENCE_CODE", lambda lanes: fresh(8))
    with pytest.raises(ModelError, match=r"pip install 'fedsparsify\[compile\]'"):
        native.native_calls(8)


def test_images_lie_beside_the_package_or_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert code_images._folders() == [
        Path(code_images.__file__).parent / "__pycache__",
        tmp_path / "fedsparsify" / "kernels",
    ]

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert len(code_images._folders()) == 1


@linked
def test_without_a_folder_or_an_image_it_compiles_every_time(
    compiler: type[Compiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path / "file"])
    for _ in range(2):
        fresh(16)
    monkeypatch.setattr(code_images, "_folders", lambda: [tmp_path / "good"])
    monkeypatch.setattr(compiler, "text", "define i32 @other() { ret i32 0 }")
    fresh(16)
    assert compiler.count == 3


def test_what_numba_keeps_where_there_are_no_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fedsparsify.inference.kernels.dispatch import post

    monkeypatch.setattr(codegen, "LINKED", False)
    monkeypatch.setattr(codegen.config, "CACHE_DIR", str(tmp_path))
    for hits in (0, 1):
        function = codegen._function(post.py_func, made_of(INFERENCE_CODE))
        assert codegen._kept(function) == bool(hits)
        made = codegen._compiled(function, 2)
        address = made.library.get_pointer_to_function(made.fndesc.llvm_func_name)
        call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2)(address)
        slot, unused = np.arange(8), np.zeros(2, np.int64)
        call(unused.ctypes.data, unused.ctypes.data + 8, slot.ctypes.data, 7)
        assert slot.tolist() == [7, 1, 2, 3, 4, 5, 6, 0]
        assert len(list(tmp_path.rglob("*.nbc"))) == 1, hits
    with pytest.raises(LinkError):
        codegen.Code.image(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [INFERENCE_CODE, INT8_CODE, PERCEPTRONS, CONVOLUTIONS], ids=lambda code: code.name)
def test_images_are_bound_to_the_processor_and_all_sources(monkeypatch: pytest.MonkeyPatch, code: CodeImage) -> None:
    before = made_of.__wrapped__(code)
    assert before == made_of.__wrapped__(code)
    monkeypatch.setattr(code_images, "processor", lambda: "another")
    assert made_of.__wrapped__(code) != before
    native_folder = PACKAGE / "native"
    needed = [PACKAGE.parent / f"{code.module.replace('.', '/')}.py", native_folder / "codegen.py"]
    seen = set()
    others = {
        native_folder / "code_images.py",
        native_folder / "machine.py",
        PACKAGE / "errors.py",
        PACKAGE / "notices.py",
    }
    while needed:
        seen.add(path := needed.pop())
        if path.parent.name == "ops":  # of an operation the kernel alone is compiled, which calls what it is handed
            continue
        text = re.sub(r"^from \. import (\w+)$", r"from .\1 import it", path.read_text(), flags=re.M)
        for dots, package, name in re.findall(r"^from (\.+)(\w+\.)?(\w+) import", text, re.M):
            if name == "ops":
                needed += [PACKAGE / file for file in ACTIVATION_FILES]
                continue
            other = path.parents[len(dots) - 1] / package.rstrip(".") / f"{name}.py"
            needed += [other] if other not in seen | others else []
    ours = {*code.files}
    assert seen <= ours | {native_folder / f"{name}.py" for name in SHARED}
    assert ours <= seen


def test_the_machine_has_vectors() -> None:
    assert lanes_here() in (16, 8, 4)


def test_vectors_are_found_where_linux_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    told = lanes_here()
    monkeypatch.setattr(machine, "processor", lambda: "")
    assert lanes_here() == told
