"""The Hugging Face hub over HTTP: what a model is, asked once, when its name is typed.

Called by the command line and, through `Services`, by the bot. What is found travels in the
request, so that no later step needs the hub. Both questions are asked at the same time and given
two seconds, because Slack waits three for an answer.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import IO, Any, Final
from urllib.parse import urlsplit

from pydantic import SecretStr

from stationmaster.domain.catalogue.hub import language_model_from_config
from stationmaster.domain.catalogue.models import MAX_PARAMETERS, LanguageModel
from stationmaster.domain.data_files import ROW_FILES, is_table
from stationmaster.domain.datasets import C4, HubSource, Listing, preparation_of, prepared_bytes
from stationmaster.domain.errors import BadParameter, NotPossibleNow
from stationmaster.domain.outside import MAX_COUNT

_TIMEOUT_S: Final = 2.0
# A model's page lists its files, which are a few hundred at most; a configuration is a few KB.
_MOST_BYTES: Final = 4_000_000
# The page of C4 is too long to wait for. Source: the data set's card, huggingface.co/datasets/
# allenai/c4: 1,024 files of 305 GB in all; 156 G tokens (Dodge et al. 2021, table 1).
_C4_SIZES: Final = {f"en/{number:05}.json.gz": 305_000_000_000 // 1024 for number in range(1024)}
_C4_TOKENS: Final = 156_000_000_000
# The hub's word, in a header, for a file that a repository does not have.
_NO_SUCH_FILE: Final = "EntryNotFound"
# Packed tokens take two bytes, and four where the vocabulary has more than 65,536.
_MOST_TOKEN_BYTES: Final = 4


class Hub:
    """Looks models up; makes no connection before it is asked to."""

    def __init__(self, url: str, *, token: SecretStr, timeout_s: float = _TIMEOUT_S) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(_KeepTokenAtHome)

    def look_up(self, repository: str) -> LanguageModel:
        """Return the shape and size of a causal language model.

        Raises:
            BadParameter: no such repository, gated, or not a causal language model.
            NotPossibleNow: the hub does not answer.
        """
        # Not in a `with`: leaving one waits for an answer that may never come.
        pool = ThreadPoolExecutor(max_workers=2)
        try:
            page = pool.submit(self._get, repository, f"/api/models/{repository}")
            config = pool.submit(self._get, repository, f"/{repository}/resolve/main/config.json")
            # The page first: of a repository that is missing, it says so in clearer words.
            counted = page.result(timeout=self._timeout_s)
            shape = config.result(timeout=self._timeout_s)
        except TimeoutError as exc:
            raise self._unreachable(repository, f"no answer in {self._timeout_s:g} s") from exc
        finally:
            pool.shutdown(wait=False)
        return language_model_from_config(repository, shape, num_parameters=_count(counted))

    def check_readable(self, repository: str) -> None:
        """Ask whether files of a repository can be read: a gated one is listed for everybody.

        Raises:
            BadParameter: no such repository, or gated.
            NotPossibleNow: the hub does not answer.
        """
        try:
            self._get(repository, f"/{repository}/resolve/main/config.json")
        except TimeoutError as exc:
            raise self._unreachable(repository, f"no answer in {self._timeout_s:g} s") from exc
        except BadParameter as exc:
            cause = exc.__cause__
            # A tokenizer alone has no such file, and the hub says so only to who may read.
            if not isinstance(cause, urllib.error.HTTPError) or _code(cause) != _NO_SUCH_FILE:
                raise

    def measure(self, source: HubSource, task: str) -> Listing:
        """Return how much a data set holds that is packed for a task: the most it can be.

        Which of its files a configuration has is decided where it is packed; here those count
        whose path names it, or else all.

        Raises:
            BadParameter: no such repository, gated, or without files of rows.
            NotPossibleNow: the hub does not answer, or does not say.
        """
        sizes = _C4_SIZES if source == C4 else self._sizes(source)
        tokens = _C4_TOKENS if source == C4 else None
        preparation = preparation_of(task, ())
        return Listing(
            source=source.uri,
            num_bytes=sum(sizes.values()),
            num_objects=len(sizes),
            preparation=preparation,
            prepared_bytes=sum(
                prepared_bytes(preparation, name, size) for name, size in sizes.items()
            )
            if tokens is None
            else tokens * _MOST_TOKEN_BYTES,
            is_complete=True,
            is_stored=False,
        )

    def _sizes(self, source: HubSource) -> dict[str, int]:
        """Return the bytes of the files of rows, by name."""
        name = source.repository
        pool = ThreadPoolExecutor(max_workers=1)
        try:
            asked = pool.submit(self._get, f"datasets/{name}", f"/api/datasets/{name}?blobs=true")
            page = asked.result(timeout=self._timeout_s / 2)
        except TimeoutError as exc:
            raise self._unreachable(name, f"no answer in {self._timeout_s / 2:g} s") from exc
        finally:
            pool.shutdown(wait=False)
        files = page.get("siblings")
        if not isinstance(files, list):
            raise self._unreachable(name, "its page lists no files")
        entries = [each for each in files if isinstance(each, dict)]
        sizes = {str(each.get("rfilename", "")): each.get("size") for each in entries}
        rows = {path: size for path, size in sizes.items() if is_table(path)}
        if not rows:
            raise BadParameter(
                f'dataset="packed:{source.uri}" has no files of rows ({ROW_FILES}) on the '
                "Hugging Face hub"
            )
        of_config = {p: size for p, size in rows.items() if source.config in p.split("/")[:-1]}
        chosen = of_config if source.config and of_config else rows
        known = {p: size for p, size in chosen.items() if type(size) is int}
        if len(known) < len(chosen) or not all(0 <= size < MAX_COUNT for size in known.values()):
            raise self._unreachable(name, "its page gives no sizes")
        return known

    def _get(self, repository: str, path: str) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}{path}")
        if self._token.get_secret_value():
            request.add_header("Authorization", f"Bearer {self._token.get_secret_value()}")
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer = json.loads(response.read(_MOST_BYTES))
        except urllib.error.HTTPError as exc:
            with exc:
                raise self._refused(repository, path, exc) from exc
        except TimeoutError:
            raise
        except (OSError, HTTPException) as exc:
            reason = getattr(exc, "reason", None) or exc
            if isinstance(reason, TimeoutError):
                raise reason from exc
            raise self._unreachable(repository, str(reason)) from exc
        except (ValueError, RecursionError) as exc:
            raise self._unreachable(repository, f"{path} is not JSON") from exc
        if not isinstance(answer, dict):
            raise self._unreachable(repository, f"{path} is not a JSON object")
        return answer

    def _refused(
        self, repository: str, path: str, exc: urllib.error.HTTPError
    ) -> BadParameter | NotPossibleNow:
        code = _code(exc)
        where = f"{self._url}/{repository}"
        if code == "GatedRepo" or exc.code == 403:
            advice = (
                "with the account of the token that is set"
                if self._token.get_secret_value()
                else "and set HF_TOKEN to a token that may read it"
            )
            return BadParameter(f"{repository} is gated: accept its licence at {where} {advice}")
        if code == _NO_SUCH_FILE:
            return BadParameter(
                f"{repository} has no config.json on the Hugging Face hub; expected a model that "
                "transformers can build"
            )
        if exc.code in (401, 404):
            return BadParameter(
                f"{repository} is not on the Hugging Face hub, or private; check the name at "
                f"{where}"
            )
        return self._unreachable(repository, f"HTTP {exc.code} for {path}")

    def _unreachable(self, repository: str, why: str) -> NotPossibleNow:
        return NotPossibleNow(
            f"the Hugging Face hub at {self._url} cannot be asked about {repository} ({why}); try "
            "again, or use a recipe of the catalogue"
        )


class _KeepTokenAtHome(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and leaves the token behind when one goes to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None and urlsplit(newurl).netloc != urlsplit(req.full_url).netloc:
            followed.remove_header("Authorization")
        return followed


def _code(refusal: urllib.error.HTTPError) -> str:
    return str(refusal.headers.get("X-Error-Code", ""))


def _count(page: dict[str, Any]) -> int | None:
    """Parameters, as the hub counts them from the safetensors' headers; None where it does not."""
    counted = page.get("safetensors")
    total = counted.get("total") if isinstance(counted, dict) else None
    return total if type(total) is int and 0 < total <= MAX_PARAMETERS else None
