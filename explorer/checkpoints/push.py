"""Upload a written folder to the Hugging Face Hub.

The token is the one that huggingface_hub finds (``hf auth login``, or the environment). It is never shown.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError
from huggingface_hub.utils import validate_repo_id

from explorer.version import __version__

_STATUS = {
    401: "the Hub does not accept the token",
    403: "the token has no right to write there",
    404: "there is no such place on the Hub, or the token does not see it",
    413: "the Hub takes no file of that size",
}


def check_push(repo: str) -> None:
    """``ValueError`` before any work if ``repo`` is not owner/name, there is no token, or the client is
    offline."""
    if "/" not in repo:
        raise ValueError(f"--push {repo}: name a repository as owner/name")
    try:
        validate_repo_id(repo)
    except ValueError as error:
        raise ValueError(f"--push {repo}: {error}") from error
    if constants.HF_HUB_OFFLINE:
        raise ValueError("--push needs the Hub, and HF_HUB_OFFLINE is set")
    if not get_token():
        raise ValueError("--push needs a token of the Hub: log in by `hf auth login`, or set HF_TOKEN")


def push(folder: Path, repo: str, private: bool = False) -> str:
    """Upload all files of ``folder`` as one commit to the model repository ``repo`` (owner/name), and return
    its address. A new repository is ``private``, or as the owner's default is.

    ``ValueError`` in one line if the Hub refuses or cannot be reached, and if a repository is public that
    should be private. The folder stays as it is.
    """
    api = HfApi()
    try:
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise ValueError("it is public already, and --private makes new repositories only")
        message = f"Quantized by Quantization Explorer {__version__}"
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
    except (HTTPError, OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"{folder} is written, but not uploaded to {repo}: {_why(error)}") from error
    return str(url)


def _why(error: Exception) -> str:
    """The reason in one line, without the token."""
    if isinstance(error, HfHubHTTPError):
        code = error.response.status_code
        return f"{_STATUS.get(code, 'the Hub refuses it')} ({code})"
    if isinstance(error, HTTPError):
        return f"the Hub cannot be reached: {type(error).__name__}"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    token = get_token()
    return lines[0].replace(token, "…") if token else lines[0]
