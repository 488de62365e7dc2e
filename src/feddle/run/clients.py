"""What the clients of a config do with a job."""

from dataclasses import replace
from typing import assert_never

from feddle.clients import options as threats
from feddle.clients.attacks import FlippedLabels, Mixed, RandomDirection, Scaled, draw_attackers
from feddle.clients.private import Private
from feddle.clients.work import ClientWork, Work
from feddle.core.errors import FeddleError
from feddle.core.layout import Layout
from feddle.core.privacy import epsilon
from feddle.run.plan import Plan
from feddle.run.problem import Federation
from feddle.training.train import Recipe


def build_work(plan: Plan, federation: Federation, layout: Layout) -> Work:
    """The clients' work, honest or not; an attacker who alters its update does so last, after any noise."""
    recipe = Recipe(**plan.training.model_dump())
    training = ClientWork(
        federation.model, layout, federation.clients, recipe, federation.loss, plan.seed, federation.augment
    )
    honest = _protected(training, plan, layout)
    attack, poisoned = plan.attack, honest
    match attack:
        case threats.NoAttack():
            return honest
        case threats.SignFlip():
            poisoned = Scaled(honest, -attack.factor)
        case threats.Scale():
            poisoned = Scaled(honest, attack.factor)
        case threats.RandomUpdate():
            poisoned = RandomDirection(honest, plan.seed)
        case threats.LabelFlip():
            poisoned = _protected(replace(training, loss=FlippedLabels(federation.loss)), plan, layout)
        case _:
            assert_never(attack)
    eligible = federation.sizes.nonzero().flatten()
    return Mixed(honest, poisoned, draw_attackers(eligible, attack.share, plan.seed))


def _protected(work: Work, plan: Plan, layout: Layout) -> Work:
    privacy = plan.privacy
    if privacy is None:
        return work
    if layout.buffers:
        raise FeddleError(
            f"privacy protects a model's weights, but this one also sends running statistics "
            f"({layout.buffers[0].name}); use a model without BatchNorm, or turn privacy off"
        )
    epsilon(1, privacy.noise_multiplier, privacy.delta)  # if the accountant is missing, say so before the run
    return Private(work, privacy.clip, privacy.noise_multiplier, plan.seed)
