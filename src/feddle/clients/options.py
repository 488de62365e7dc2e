"""The options of attacks, of the checks against bad updates, and of privacy."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from feddle.options import Positive, Share, Strict, choice, no_bool

Attackers = Annotated[Share, Field(description="share of the clients that attack; drawn from the seed")]


class AttackConfig(Strict):
    """An attack: an option that only another one has is refused by its name."""


class NoAttack(AttackConfig):
    """Every client is honest."""

    name: Literal["none"] = "none"


class SignFlip(AttackConfig):
    """Attackers send their update with its sign flipped."""

    name: Literal["sign-flip"] = "sign-flip"
    share: Attackers = 0.1
    factor: Positive = Field(1.0, description="and made so many times longer")


class Scale(AttackConfig):
    """Attackers send their update made longer."""

    name: Literal["scale"] = "scale"
    share: Attackers = 0.1
    factor: Positive = Field(10.0, description="so many times")


class RandomUpdate(AttackConfig):
    """Attackers send a random direction, as long as their honest update."""

    name: Literal["random"] = "random"
    share: Attackers = 0.1


class LabelFlip(AttackConfig):
    """Attackers train on class C − 1 − y instead of y, so that their updates look honest."""

    name: Literal["label-flip"] = "label-flip"
    share: Attackers = 0.1


AnyAttack = NoAttack | SignFlip | Scale | RandomUpdate | LabelFlip
Attack = Annotated[AnyAttack, Discriminator("name"), choice("none")]


class Checks(Strict):
    """What the server asks of an update, beside its form."""

    max_norm_ratio: Annotated[float, BeforeValidator(no_bool), Field(gt=1, le=1e6)] | None = Field(
        100.0,
        description="an update longer than this times the median of the last 100 is refused; until 20 came, the norm "
        "of the model stands for the median; null: any length",
    )


class Privacy(Strict):
    """Clients clip their updates and add Gaussian noise (off by default; `privacy: {}` turns it on)."""

    clip: Annotated[float, BeforeValidator(no_bool), Field(gt=0, le=1e6)] = Field(
        1.0, description="C, the norm that updates are clipped to"
    )
    noise_multiplier: Annotated[float, BeforeValidator(no_bool), Field(ge=1e-4, le=1e4)] = Field(
        1.0, description="z: the noise in each coordinate is Normal(0, (zC)²)"
    )
    delta: Annotated[float, BeforeValidator(no_bool), Field(ge=1e-12, lt=1)] = Field(
        1e-5, description="δ, at which ε is reported"
    )
