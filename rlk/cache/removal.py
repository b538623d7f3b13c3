"""Removal of files and folders, however deep their folders are nested."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(path: Path) -> bool:
    """Remove a file, folder or link (not its target); return whether nothing is left. Never raises OSError.

    shutil.rmtree calls itself for each folder: thousands in one another end it with RecursionError.
    """
    try:
        os.unlink(path)
        return True
    except (IsADirectoryError, PermissionError):  # POSIX lets unlink refuse a directory with EPERM
        pass
    except OSError:
        return not os.path.lexists(path)
    try:
        handle = os.open(path, _FOLDER)
        try:
            while _raise_folders(handle):
                pass
        finally:
            os.close(handle)
        os.rmdir(path)
    except OSError:
        return not os.path.lexists(path)
    return True


def _raise_folders(top: int) -> bool:
    """Remove files of a folder and of its subfolders, whose own subfolders move up; return if any are left.

    Raises OSError for a file that cannot be removed, after the others were.
    """
    kept: OSError | None = None
    left = False
    for name, is_folder in _listing(top):
        try:
            left |= _empty(top, name) if is_folder else _unlink(name, top)
        except FileNotFoundError:
            continue  # another process removes it too
        except OSError as error:
            kept = error
    if kept is not None:
        raise kept
    return left


def _listing(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as found:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]


def _unlink(name: str, folder: int) -> bool:
    os.unlink(name, dir_fd=folder)
    return False


def _empty(top: int, name: str) -> bool:
    """Remove a folder in `top`; return whether it had folders, which are moved to `top`."""
    handle = os.open(name, _FOLDER, dir_fd=top)
    try:
        inside = _listing(handle)
        for each, is_folder in inside:
            if is_folder:
                os.rename(each, os.urandom(8).hex(), src_dir_fd=handle, dst_dir_fd=top)
            else:
                os.unlink(each, dir_fd=handle)
    finally:
        os.close(handle)
    os.rmdir(name, dir_fd=top)
    return any(is_folder for _, is_folder in inside)
