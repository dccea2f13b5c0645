"""What is declared of families (``families.toml``) where a template cannot show it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dressage_tito.errors import ProfileError
from dressage_tito.folder import TokenizerFolder
from dressage_tito.profile import Profile, profile_fields

if TYPE_CHECKING:
    from dressage_tito.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Family:
    """One declared family.

    ``templates`` are blake2b-128 hashes of chat templates, ``marks`` texts that all occur in a template of
    the family; ``profile`` are fields that are not inferred; ``explains`` says, for each refusal or
    declared difference that a certification meets, what the template does there.
    """

    name: str
    templates: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    profile: Mapping[str, Any] | None = None
    explains: Mapping[str, str] | None = None

    def knows(self, template_hash: str, source: str) -> bool:
        """Whether a template is one of this family's."""
        return template_hash in self.templates or (
            bool(self.marks) and all(mark in source for mark in self.marks)
        )


def declared_families() -> tuple[Family, ...]:
    """Every declared family, in the order in which they are looked through."""
    text = resources.files("dressage_tito").joinpath("families.toml").read_text(encoding="utf-8")
    return tuple(_family(item) for item in tomllib.loads(text)["family"])


def _family(item: Mapping[str, Any]) -> Family:
    known = {"name", "templates", "marks", "profile", "explains"}
    unknown = item.keys() - known
    if unknown:
        raise ProfileError(f"families.toml: keys {sorted(unknown)} are not known; known are {sorted(known)}")
    return Family(
        name=item["name"],
        templates=tuple(item.get("templates", ())),
        marks=tuple(item.get("marks", ())),
        profile=item.get("profile", {}),
        explains=item.get("explains", {}),
    )


def family_of(template_hash: str, sources: Sequence[str]) -> Family | None:
    """The declared family of a template; None where none is."""
    whole = "\n".join(sources)
    return next((family for family in declared_families() if family.knows(template_hash, whole)), None)


def explanations(family: str) -> Mapping[str, str]:
    """What is declared of a family's refusals and differences, by reason; none where it is not declared."""
    return next((item.explains or {} for item in declared_families() if item.name == family), {})


def complete_profile(
    inferred: Profile, folder: TokenizerFolder, tokens: Tokens, user: str | Path | Mapping[str, Any] | None
) -> Profile:
    """The inferred profile with what is declared of its family, and then what the user says.

    ``user`` is a TOML file or its table. Raises ProfileError, which names the key at fault.
    """
    found = inferred
    family = family_of(folder.template_hash, tuple(folder.templates.values()))
    if family is not None:
        fields = profile_fields(family.profile or {}, tokens, f"families.toml ({family.name})")
        found = replace(found, family=family.name, **fields)
    if user is None:
        return found
    if isinstance(user, Mapping):
        return replace(found, **profile_fields(user, tokens, "profile"))
    return replace(found, **profile_fields(_read_profile(user), tokens, str(user)))


def _read_profile(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path} cannot be read as TOML ({error})") from error
