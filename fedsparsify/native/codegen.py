"""Machine code of compiled functions, made by numba.

Importing this takes long and much memory: code_images.py does so only where there is no code image.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from llvmlite import binding
from numba import config, njit, types

from ..notices import notice
from .code_images import CodeImage, made_of
from .compiled import OPTIONS
from .levels import highest_allowed
from .linking import LinkError, link
from .machine import LINUX_X86_64 as LINKED  # elsewhere numba's own cache must do

if (_level := highest_allowed()) is not None:  # before numba compiles for the first time
    config.CPU_NAME, config.CPU_FEATURES = _level.processor, _level.features

# LLVM makes calls of it from loops that write one value; a code image has no library to call.
MEMSET = """
define ptr @memset(ptr %target, i32 %value, i64 %count) {
  %byte = trunc i32 %value to i8
  %wide = zext i8 %byte to i64
  %word = mul i64 %wide, 72340172838076673
  br label %words
words:
  %at = phi i64 [0, %0], [%next, %store]
  %next = add i64 %at, 8
  %fits = icmp ule i64 %next, %count
  br i1 %fits, label %store, label %bytes
store:
  %place = getelementptr i8, ptr %target, i64 %at
  store i64 %word, ptr %place, align 1
  br label %words
bytes:
  %rest = phi i64 [%at, %words], [%after, %one]
  %left = icmp ult i64 %rest, %count
  br i1 %left, label %one, label %done
one:
  %last = getelementptr i8, ptr %target, i64 %rest
  store i8 %byte, ptr %last
  %after = add i64 %rest, 1
  br label %bytes
done:
  ret ptr %target
}
"""


class Code:
    """The functions of a code image, compiled for one vector width."""

    def __init__(self, code: CodeImage, lanes: int) -> None:
        module = import_module(code.module)
        functions = [_function(entry, made_of(code)) for entry in module.entries(lanes)]
        if not all(_kept(function) for function in functions):
            notice(f"compiling the kernels for {code.name}, once on this machine: ten seconds to two minutes.")
        self._made = [_compiled(*pair) for pair in zip(functions, code.words, strict=True)]
        self._names = [made.fndesc.llvm_func_name for made in self._made]

    def addresses(self) -> list[int]:
        """Where the functions lie in this process."""
        return [made.library.get_pointer_to_function(name) for made, name in zip(self._made, self._names, strict=True)]

    def image(self) -> tuple[bytes, list[int]]:
        """The functions as a code image, and where in it each begins; LinkError where that cannot be."""
        if not LINKED:
            raise LinkError("code images are made on Linux on x86-64 only")
        module = binding.parse_assembly(self._made[0].library.get_llvm_str())
        for made in self._made[1:]:
            module.link_in(binding.parse_assembly(made.library.get_llvm_str()))
        module.link_in(binding.parse_assembly(MEMSET))
        processor = config.CPU_NAME or binding.get_host_cpu_name()
        features = config.CPU_FEATURES
        if features is None:
            features = binding.get_host_cpu_features().flatten()
        target = binding.Target.from_triple(binding.get_process_triple())
        machine = target.create_target_machine(processor, features, opt=3, reloc="pic", codemodel="small")
        return link(machine.emit_object(module), self._names)


def _function(entry: Any, stamp: object) -> Any:
    """A function that numba is to compile; where no code image can be made, numba keeps what it compiles."""
    made = njit(**OPTIONS)(entry)
    if not LINKED:
        with suppress(RuntimeError):  # numba finds no folder that it may write to
            made.enable_caching()
            made._cache._cache_file._source_stamp = stamp  # numba itself would look at this one file alone
    return made


def _kept(function: Any) -> bool:
    """Whether numba has kept an earlier compilation of a function."""
    file = getattr(function._cache, "_cache_file", None)
    return file is not None and bool(file._load_index())


def _compiled(function: Any, words: int) -> Any:
    """A function of so many 64-bit words."""
    function.compile((types.int64,) * words)
    (found,) = function.overloads.values()
    return found
