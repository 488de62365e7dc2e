"""The ground that configs stand on: frozen, and unknown keys are refused."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo

from feddle.core.errors import did_you_mean, nearest


def no_bool(value: Any) -> Any:
    """Refuse true and false where a number is meant: Python would take them for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {value}")
    return value


# bounds are there to catch slips: an exponent too many ends in one line, not in an overflow hours later
Positive = Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e100)]
NonNegative = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1e6)]
Share = Annotated[float, BeforeValidator(no_bool), Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=100_000_000, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=100_000_000, strict=True)]


class Options(BaseModel):
    """Frozen, and an unknown key is an error that names the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    raise ValueError(f"unknown key {str(key)!r}; {cls._hint(str(key))}")
        return data

    @classmethod
    def _hint(cls, key: str) -> str:
        """Where the key may belong: below another key, to another choice, or spelt otherwise."""
        below = [f"{n}.{key}" for n, f in cls.model_fields.items() for m in members_of(f) if key in m.model_fields]
        if below:
            return f"did you mean {below[0]!r}?"
        if question := did_you_mean(key, cls.model_fields):
            return question
        kind = cls.__base__
        if cls.named() and kind is not None and kind is not Options and issubclass(kind, Options):
            options = {option: c.named() for c in kind.__subclasses__() for option in c.model_fields}
            if other := nearest(key, options, cutoff=0.5):
                owners = [c.named() for c in kind.__subclasses__() if other in c.model_fields]
                return f"{other!r} is an option of {', '.join(owners)}, not of {cls.named()}"
        return f"known are {', '.join(cls.model_fields)}"

    @classmethod
    def named(cls) -> str:
        """The name that this choice goes by, if it is one."""
        field = cls.model_fields.get("name")
        return str(field.default) if field else ""


def members_of(field: FieldInfo) -> list[type[BaseModel]]:
    """The config classes that a key can hold."""
    options = get_args(field.annotation) or (field.annotation,)
    return [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]


def choice(default: str) -> BeforeValidator:
    """One of several parts, told apart by `name`.

    A bare name stands for that part with its defaults (`method: fedbuff`); options without a name are `default`'s.
    """

    def named(value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        return {"name": default, **value} if isinstance(value, dict) else value

    return BeforeValidator(named)
