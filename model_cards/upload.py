# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Sends a staged folder to the Hub, in one commit.

Files of weights go first; they are stored by their hashes, belong to nothing until the commit names them, and are not
sent again by the next attempt. So an upload that fails leaves every branch as it was, and goes on where it stopped.
"""

from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import HTTPError

# What the Hub keeps in a repository by itself.
KEPT = (".gitattributes",)


def push(
    folder: Path,
    repo_id: str,
    api: HfApi,
    private: bool = False,
    revision: str = "main",
    tag: str | None = None,
    message: str = "Upload model",
) -> str:
    """
    Makes a branch of a repository hold exactly the files of a folder, and returns the address of the commit.

    Args:
        folder (`Path`): A staged and checked repository.
        repo_id (`str`): Created where it is not there, empty until the commit.
        api (`HfApi`): Knows the endpoint and the token.
        private (`bool`): Make the repository private, if it is created; one that is there must be so already.
        revision (`str`): The branch, made from `main` where it is not there.
        tag (`str`, *optional*): A tag to put on the commit.
        message (`str`): Of the commit.

    Raises:
        ValueError: If the tag is taken, or the repository is there and public but is to be private. Errors of
            huggingface_hub pass; the branch is then as it was.
        RuntimeError: If only the tag failed: the commit is there.
    """
    api.create_repo(repo_id, private=private, exist_ok=True)
    if private and not api.repo_info(repo_id, revision="main").private:
        raise ValueError(
            f"{repo_id} is there already and public: make it private in its settings, choose another name, or leave "
            "--private out."
        )
    refs = api.list_repo_refs(repo_id)
    if tag is not None and tag in {ref.name for ref in refs.tags}:
        raise ValueError(f"{repo_id} has a tag {tag!r} already: choose another, or delete that one first.")
    is_new = revision not in {ref.name for ref in refs.branches}
    if is_new:
        api.create_branch(repo_id, branch=revision)
    try:
        head = api.repo_info(repo_id, revision=revision)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        additions = [CommitOperationAdd(path.relative_to(folder).as_posix(), path) for path in paths]
        staged = {addition.path_in_repo for addition in additions}
        stale = {file.rfilename for file in head.siblings or ()} - staged - set(KEPT)
        commit = api.create_commit(
            repo_id,
            [*additions, *(CommitOperationDelete(name, is_folder=False) for name in sorted(stale))],
            commit_message=message,
            revision=revision,
            parent_commit=head.sha,  # refused where somebody else has pushed since
        )
    except BaseException:
        if is_new:
            api.delete_branch(repo_id, branch=revision)
        raise
    if tag is not None:
        try:
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
        except (OSError, HTTPError) as error:
            raise RuntimeError(f"Uploaded: {commit.commit_url}, but without the tag {tag!r}: {error}") from error
    return commit.commit_url
