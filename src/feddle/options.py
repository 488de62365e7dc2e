"""The base of every options class, and the types of their fields."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, model_validator

from feddle.core.errors import did_you_mean, nearest
from feddle.core.importing import check_arguments, is_import_path


def no_bool(value: Any) -> Any:
    """Refuse true and false where a number is expected; Python would use them as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


def is_none(value: Any) -> bool:
    """The `exclude_if` of a key that was added later, so that configs without it keep their hash."""
    return value is None


# the bounds catch typing errors: an error message now is better than an overflow hours later
Positive = Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e36)]  # times 100 is still a float32
NonNegative = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1e6)]
Share = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1)]
Decay = Annotated[float, BeforeValidator(no_bool), Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=100_000_000, strict=True)]
ServerEpochs = Annotated[Count, Field(description="passes over the server's data per round")]
BatchSize = Annotated[Count, Field(description="examples per batch")]


class Options(BaseModel):
    """Base class of all options. Options are frozen, and an unknown key is an error that suggests the nearest one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict) and cls.model_config["extra"] == "forbid":
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {str(key)!r}; {cls._hint(str(key))}")
        return data

    @classmethod
    def _hint(cls, key: str) -> str:
        """A suggestion for an unknown key: a key inside another one, a similar key, or a key of another choice."""
        fields = cls.model_fields.items()
        inside = [f"{n}.{key}" for n, f in fields for m in members_of(f.annotation) if key in m.model_fields]
        if inside:
            return f"did you mean {inside[0]!r}?"
        if question := did_you_mean(key, cls.model_fields):
            return question
        kind = [base for base in cls.__mro__ if issubclass(base, Options) and base is not Options][-1]
        if cls.named() and kind is not cls:
            choices = list(_choices(kind))
            if other := nearest(key, [option for c in choices for option in c.model_fields], cutoff=0.5):
                owners = [c.named() for c in choices if other in c.model_fields]
                return f"{other!r} is an option of {', '.join(owners)}, not of {cls.named()}"
        return f"the known keys are {', '.join(cls.model_fields)}"

    @classmethod
    def named(cls) -> str:
        """The name of this choice; empty if the class is not a choice."""
        field = cls.model_fields.get("name")
        return str(field.default) if field and get_args(field.annotation) == (field.default,) else ""


class Imported(Options):
    """Custom code, named by its import path. All other keys are its keyword arguments."""

    model_config = ConfigDict(extra="allow")
    offers: ClassVar[tuple[str, ...]] = ()  # arguments that feddle supplies to code that takes them

    name: str = Field(description="import path `module:Name`; the current folder is searched too")

    @model_validator(mode="after")
    def _importable(self) -> Self:
        check_arguments(self.name, self.arguments, self.offers)
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments."""
        return dict(self.model_extra or {})


def _choices(kind: type[Options]) -> Iterator[type[Options]]:
    """The subclasses of a kind that have a name, at any depth."""
    for member in kind.__subclasses__():
        yield from [member] if member.named() else _choices(member)


def members_of(hint: Any) -> Iterator[type[Options]]:
    """The options classes in the type of a key."""
    if isinstance(hint, type) and issubclass(hint, Options):
        yield hint
    for inner in get_args(hint):
        yield from members_of(inner)


def choice(default: str | None) -> BeforeValidator:
    """A validator for a choice between options classes, which are distinguished by `name`.

    A bare name selects a class with its defaults (`method: fedbuff`). Options without a name belong to `default`,
    or are refused if there is none.
    """

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and default is None and "name" not in value:
            raise ValueError("expected options with a name, but found none; add one, such as {name: surrogate, ...}")
        return {"name": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(named)


def _kind(value: Any) -> str:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return "imported" if is_import_path(name) else "named"


named_or_imported = Discriminator(_kind)  # between the tags `named` and `imported`
