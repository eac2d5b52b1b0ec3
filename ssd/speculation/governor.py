"""Chooses AR, SD or SSD, K, branches and table depth for each sequence, from what is measured while serving.

A choice is the setting with the most predicted tokens per second. It is looked at again every few rounds, at once when
the load changes, and given up only when another one has been better for long enough that the difference adds up:
large gains are taken quickly, small ones slowly, and noise never adds up. Rows of one batch share every step of target
and draft, so what one of them changes to the others take over at once, as far as it suits them as well: a mixture of
settings is worse than either. Where a mode is not used nothing is learnt about it, so it is tried from time to time, as
often as a stated share of the throughput pays for. On a GPU that they share target and draft are slower side by side,
and SSD does not show what SD would take: a lone row tries that too, and the first ones begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ssd.speculation.prediction import (
    Fallback,
    Lateness,
    Limits,
    Load,
    Mode,
    Outlook,
    Prediction,
    Setting,
    Statistics,
    best_by_mode,
    thriftiest,
)
from ssd.speculation.step_time import StepTime, StepTimeFit

_HASH = 0x9E3779B97F4A7C15
_HASH_SPACE = 1 << 64


@dataclass(frozen=True, slots=True)
class GovernorSettings:
    """How eagerly the governor changes its mind.

    review_every   rounds between two looks at a sequence
    slack          relative gains up to this one are not worth a change, except to what asks less of the draft
    patience       gain beyond the slack, added up over rounds, that brings a change: 1.0 = one round's tokens
    load_change    factor of rows or draft rows that is a new load and is looked at with the next round
    probe_rounds   fewest and most rounds of one trial of an unused mode: cheap trials are longer
    probe_every    fewest rounds between two trials of one sequence
    probe_cost     share of a sequence's tokens that trials may cost
    probe_k        longest proposal of a trial
    sweep_every    rounds between two variations of depth or K by all rows, which show how step times depend on them
    sweep_rounds   rounds of one such variation
    start_passes   passes that the target waited for which a new lone row lets be seen before it decides, in no more
                   rounds than this for all rows together: as many as make a mean of unsteady times
    start_wait     steps of the target that a proposal of the start may take at most
    """

    review_every: int = 16
    slack: float = 0.005
    patience: float = 1.0
    load_change: float = 1.25
    probe_rounds: tuple[int, int] = (4, 16)
    probe_every: int = 128
    probe_cost: float = 0.01
    probe_k: int = 4
    sweep_every: int = 48
    sweep_rounds: int = 3
    start_passes: int = 8
    start_wait: float = 2.0

    def __post_init__(self) -> None:
        counts = (self.review_every, *self.probe_rounds, self.probe_every, self.probe_k, self.sweep_rounds)
        if min(counts) < 1 or self.sweep_every <= self.sweep_rounds:
            raise ValueError(f"rounds and proposal length of the governor must be at least 1: {self}")
        if min(self.slack, self.patience) < 0.0 or self.load_change <= 1.0 or not 0.0 < self.probe_cost < 1.0:
            raise ValueError(f"slack, patience, load_change or probe_cost of the governor is out of range: {self}")


@dataclass(frozen=True, slots=True)
class Decision:
    """How a sequence runs its next round, and why.

    setting     what is done; its mode is AR for a row that is left out of a smaller share
    fan_out     F_0..F_depth for a table of the round after a hit, () without tables
    predicted   tokens per second of the batch for the best setting of each mode
    t_primary   time of a table, with its way to the target, in units of the target's step; 0 without tables
    hit_rate    expected, for rounds after a hit
    late        share of tables of which only half is expected to be there in time
    probe       True for a trial of a mode that is not the best by what is known
    reason      one line for people
    """

    setting: Setting
    fan_out: tuple[int, ...] = ()
    predicted: Mapping[Mode, float] = field(default_factory=dict)
    t_primary: float = 0.0
    hit_rate: float = 0.0
    late: float = 0.0
    probe: bool = False
    reason: str = ""

    @property
    def mode(self) -> Mode:
        return self.setting.mode

    @property
    def k(self) -> int:
        return self.setting.k

    @property
    def depth(self) -> int:
        return self.setting.depth

    @property
    def budget(self) -> int:
        return self.setting.budget

    @property
    def fallback(self) -> Fallback:
        return self.setting.fallback


@dataclass(slots=True)
class _Sequence:
    decision: Decision
    setting: Setting  # what the governor stands by; the decision may be a trial or leave this row out
    load: Load
    trial: Decision | None  # of the best mode above the one in use
    trial_rounds: int
    trial_every: int
    variants: tuple[Decision | None, Decision | None]  # with shorter and with longer proposals
    credit: float = 0.0
    rounds: int = 0  # since the last review
    idle: int = 0  # rounds since an unused mode was last tried
    trial_left: int = 0
    by_mode: Mapping[Mode, Prediction] = field(default_factory=dict)  # of the last review
    followed: int = 0  # the last change of the common setting that was looked at


class Governor:
    """Decides for the sequences of one target and its draft. Deterministic; not thread-safe; the clock is the round.

    target, draft   the fitted step times, kept up to date by the caller
    asked           the draft's while a target waits for a proposal; `draft` is then of the others
    alone           the target's beside which no tables are made; `target` is then of the others
    lateness        of tables, kept up to date by the caller
    """

    def __init__(
        self,
        target: StepTimeFit,
        draft: StepTimeFit,
        limits: Limits | None = None,
        settings: GovernorSettings | None = None,
        *,
        asked: StepTimeFit | None = None,
        alone: StepTimeFit | None = None,
        lateness: Lateness | None = None,
    ) -> None:
        self._lateness = lateness or Lateness()
        self._target = target
        self._draft = draft
        self._asked = asked
        self._alone = alone
        self._limits = limits or Limits()
        self._settings = settings or GovernorSettings()
        self._sequences: dict[int, _Sequence] = {}
        self._common: Setting | None = None  # what a sequence last changed to
        self._changes = 0
        self._turns = 0.0  # rounds of the batch, as far as they can be told from the calls
        self._start_left = self._settings.start_passes
        start = Setting(Mode.SD, min(self._limits.max_k, self._settings.probe_k))
        reason = f"{_named(start)} for a start, to learn what a proposal costs that the target waits for"
        self._start = Decision(start, probe=True, reason=reason)

    def decide(
        self, sequence: int, statistics: Statistics, load: Load, *, ngram_acceptance: float | None = None
    ) -> Decision:
        """The decision for a sequence's next round; call it once a round.

        statistics         what is known of this sequence (falling back on its workload)
        ngram_acceptance   chance that a token of prompt lookup is accepted; None = not on offer
        """
        self._turns += 1.0 / load.rows
        state = self._sequences.get(sequence)
        if state is None and self._starts(load):
            self._start_left -= 1
            return self._start
        if state is not None:
            state.rounds += 1
            if state.trial_left > 1:
                state.trial_left -= 1
                return state.decision
        review = state is None or state.trial_left or self._due(state, load)
        if state is None or review or state.followed != self._changes:
            (target, alone), (draft, asked) = self._times()
            outlook = Outlook(
                statistics,
                target,
                draft,
                load,
                ngram_acceptance=ngram_acceptance,
                asked=asked,
                alone=alone,
                slowness=self._lateness.slowness,
            )
            if state is None or review:
                state = self._reviewed(sequence, state, outlook, load)
            else:
                self._follow(sequence, state, outlook, load)
        if state.trial is not None and not state.trial_left:
            state.idle += 1
            if state.idle >= state.trial_every:
                state.idle, state.trial_left, state.decision = 0, state.trial_rounds, state.trial
        return (self._variation(state) if not state.trial_left else None) or state.decision

    def last(self, sequence: int) -> Decision | None:
        """The decision in force, for inspection."""
        state = self._sequences.get(sequence)
        return state.decision if state is not None else None

    def forget(self, sequence: int) -> None:
        """Drop a sequence that has ended; harmless when it is unknown."""
        self._sequences.pop(sequence, None)

    def _starts(self, load: Load) -> bool:
        """Whether a new row shall begin in SD, as nobody knows yet what it costs to wait for a proposal."""
        enough = self._asked is None or round(self._asked.observations) >= self._settings.start_passes
        if enough or not self._start_left:
            return False
        # Among several rows none waits for a proposal.
        if load.rows > 1 or not load.drafted:
            return False
        if Mode.SD not in self._limits.modes or Fallback.JIT not in self._limits.fallbacks:
            return False
        k, ((_, step), (_, draft_pass)) = self._start.k, self._times()
        wait = load.round_trip + k * draft_pass(1, 1)
        return wait <= min(self._settings.start_wait * step(1, 1 + k), load.longest_wait)

    def _times(self) -> tuple[tuple[StepTime, StepTime], tuple[StepTime, StepTime]]:
        """Steps of the target beside tables and without, passes of the draft beside the target and awaited by it."""
        return _both(self._target, self._alone), _both(self._draft, self._asked)

    def _variation(self, state: _Sequence) -> Decision | None:
        """The variant that all rows follow now, shorter and longer proposals in turn; mostly None.

        Under a steady load and choice all steps are alike, and what more or fewer tokens would cost is a guess.
        """
        sweep, turn = divmod(self._turns, self._settings.sweep_every)
        if turn < self._settings.sweep_every - self._settings.sweep_rounds:
            return None
        return state.variants[int(sweep) % 2]

    def _due(self, state: _Sequence, load: Load) -> bool:
        return state.rounds >= self._settings.review_every or self._is_new(state.load, load)

    def _is_new(self, old: Load, new: Load) -> bool:
        pairs = ((old.rows, new.rows), (old.drafted, new.drafted))
        return any(max(a, b) > self._settings.load_change * min(a, b) for a, b in pairs)

    def _reviewed(self, sequence: int, state: _Sequence | None, outlook: Outlook, load: Load) -> _Sequence:
        by_mode = best_by_mode(outlook.candidates(self._limits))
        best = thriftiest(list(by_mode.values()))
        chosen, gain, credit = best, 0.0, 0.0
        if state is not None and self._still_possible(state.setting, load):
            current = outlook.predict(state.setting)
            gain = best.tokens_per_s / current.tokens_per_s - 1.0
            rounds = max(state.rounds, self._settings.review_every * self._is_new(state.load, load))
            if best.setting != state.setting:
                credit = max(0.0, state.credit + rounds * (gain - self._slack(state.setting, best.setting)))
            if credit < self._settings.patience:
                chosen = self._common_or(current, outlook, load)
            else:
                credit = 0.0
                self._change(best.setting)
        else:
            chosen = self._common_or(best, outlook, load)
            if self._common is None or not self._still_possible(self._common, load):
                self._change(chosen.setting)
        decision = self._decision(sequence, chosen, outlook, by_mode, best)
        variants = self._variants(chosen, outlook, decision)
        trial, lasting, every = self._trial(chosen, outlook, by_mode, load, decision)
        if state is None:
            # Sequences that began together shall not all make their trials together.
            idle = _spread(sequence) * self._settings.probe_every // _HASH_SPACE
            state = _Sequence(decision, chosen.setting, load, trial, lasting, every, variants, idle=idle)
            self._sequences[sequence] = state
        else:
            state.decision, state.setting, state.load = decision, chosen.setting, load
            state.trial, state.trial_rounds, state.trial_every = trial, lasting, every
            state.variants = variants
        state.credit, state.rounds, state.trial_left = credit, 0, 0
        state.by_mode, state.followed = by_mode, self._changes
        return state

    def _slack(self, old: Setting, new: Setting) -> float:
        """Gain that is not worth a change. Less work for the draft is worth something by itself: what it has no time
        for comes late, and how much that costs is the least certain part of a prediction."""
        return 0.0 if new.draft_work < old.draft_work else self._settings.slack

    def _change(self, setting: Setting) -> None:
        """Make `setting` the one that others shall follow."""
        if setting != self._common:
            self._common = setting
            self._changes += 1

    def _common_or(self, own: Prediction, outlook: Outlook, load: Load) -> Prediction:
        """The common setting, unless it is worse by more than the slack than a sequence's own."""
        if self._common is None or self._common == own.setting or not self._still_possible(self._common, load):
            return own
        common = outlook.predict(self._common)
        return common if common.tokens_per_s >= (1.0 - self._settings.slack) * own.tokens_per_s else own

    def _follow(self, sequence: int, state: _Sequence, outlook: Outlook, load: Load) -> None:
        """Somebody has changed the common setting since the last review: take it over, if that is no worse here."""
        state.followed = self._changes
        current = outlook.predict(state.setting)
        chosen = self._common_or(current, outlook, load)
        if chosen.setting != state.setting:
            state.by_mode = {**state.by_mode, chosen.setting.mode: chosen}
            state.decision = self._decision(sequence, chosen, outlook, state.by_mode, chosen)
            state.setting, state.credit = chosen.setting, 0.0
            state.variants = self._variants(chosen, outlook, state.decision)
            state.trial, state.trial_rounds, state.trial_every = self._trial(
                chosen, outlook, state.by_mode, load, state.decision
            )

    def _still_possible(self, setting: Setting, load: Load) -> bool:
        if setting.mode is not Mode.AR and not load.drafted:
            return False
        return setting.fallback is not Fallback.JIT or load.rows == 1

    def _decision(
        self,
        sequence: int,
        chosen: Prediction,
        outlook: Outlook,
        by_mode: Mapping[Mode, Prediction],
        best: Prediction,
    ) -> Decision:
        setting = chosen.setting
        predicted = {mode: one.tokens_per_s for mode, one in by_mode.items()}
        t_primary = chosen.table_s / chosen.verify_s
        compared = ", ".join(f"{mode.value} {rate:.0f}" for mode, rate in predicted.items())
        if setting.share < 1.0 and not self._in_share(sequence, setting.share):
            reason = f"ar: the draft has room for {setting.share:.0%} of the rows (best of each mode: {compared} tok/s)"
            return Decision(Setting(), predicted=predicted, reason=reason)
        kept = "" if chosen.setting == best.setting else f"; kept, as {_named(best.setting)} is too little better"
        table = f", hit rate {chosen.hit_rate:.2f}, T_p {t_primary:.2f}" if setting.mode is Mode.SSD else ""
        reason = (
            f"{_named(setting)}: {chosen.tokens_per_s:.0f} tok/s{table} (best of each mode: {compared} tok/s){kept}"
        )
        fan_out = outlook.allocation(setting) if setting.mode is Mode.SSD else ()
        return Decision(setting, fan_out, predicted, t_primary, chosen.hit_rate, chosen.late, reason=reason)

    def _in_share(self, sequence: int, share: float) -> bool:
        """Whether a sequence is one of the `share` that is drafted: always the same ones, as far as possible."""
        mine = _spread(sequence)
        before = sum(_spread(other) < mine for other in self._sequences if other != sequence)
        return before < share * max(1, len(self._sequences.keys() | {sequence}))

    def _variants(
        self, chosen: Prediction, outlook: Outlook, decision: Decision
    ) -> tuple[Decision | None, Decision | None]:
        """The decision with about half and with about one and a half times the proposal length; None = too costly."""
        setting = decision.setting
        if setting.mode is Mode.AR:
            return None, None
        length = setting.depth if setting.mode is Mode.SSD else setting.k
        affordable = self._settings.probe_cost * self._settings.sweep_every / self._settings.sweep_rounds
        found: list[Decision | None] = []
        for other in (length - (length + 1) // 2, length + (length + 1) // 2):
            other = min(max(1, other), self._limits.max_k)
            varied = replace(setting, k=other if setting.mode is Mode.SD else max(other, setting.k))
            if setting.mode is Mode.SSD:
                varied = replace(varied, depth=other)
            expected = outlook.predict(varied)
            loss = 1.0 - expected.tokens_per_s / chosen.tokens_per_s
            if varied == setting or loss > affordable:
                found.append(None)
                continue
            fan_out = outlook.allocation(varied) if varied.mode is Mode.SSD else ()
            reason = f"{_named(varied)} for a moment, to learn how times depend on it"
            found.append(
                replace(decision, setting=varied, fan_out=fan_out, late=expected.late, probe=True, reason=reason)
            )
        return found[0], found[1]

    def _trial(
        self,
        chosen: Prediction,
        outlook: Outlook,
        by_mode: Mapping[Mode, Prediction],
        load: Load,
        decision: Decision,
    ) -> tuple[Decision | None, int, int]:
        """The trial of the best mode that the one in use tells nothing about, its rounds, and the rounds between two.

        None without such a mode. A trial is of one row, while the others go on. SSD tells about SD unless steps are
        known to differ with what runs beside them, and then only a lone row has SD's steps when it tries.
        """
        differ = load.rows == 1 and (self._asked is not None or self._alone is not None)
        untold = {
            Mode.AR: (Mode.SSD, Mode.SD),
            Mode.SD: (Mode.SSD,),
            Mode.SSD: (Mode.SD,) if differ else (),
        }[chosen.setting.mode]
        others = [by_mode[mode] for mode in untold if mode in by_mode]
        if not others:
            return None, 0, 0
        setting = max(others, key=lambda one: one.tokens_per_s).setting
        k = min(setting.k, self._settings.probe_k)
        setting = replace(setting, k=k, depth=min(setting.depth, k), share=1.0)
        tried = outlook.predict(replace(setting, share=1.0 / load.rows))
        plain = chosen.tokens_per_s / load.rows
        slowed = (load.rows - 1) * max(0.0, tried.verify_s - chosen.verify_s) * plain
        # Among others a row rides along when its proposal is late; a lone one waits, but not for ever.
        wait = min(tried.round_s - tried.verify_s, load.longest_wait) if load.rows == 1 else 0.0
        loss = max(0.0, plain * (tried.verify_s + wait) - tried.tokens_per_round) + slowed
        fewest, most = self._settings.probe_rounds
        # Rounds in use that pay for one round of the trial.
        price = loss / (self._settings.probe_cost * chosen.tokens_per_round)
        every = max(self._settings.probe_every, round(fewest * price))
        lasting = max(fewest, min(most, int(every / price) if price > 0.0 else most))
        fan_out = outlook.allocation(setting) if setting.mode is Mode.SSD else ()
        reason = f"{_named(setting)} on trial, to learn whether it would now be better than {decision.mode.value}"
        told = replace(decision, setting=setting, fan_out=fan_out, hit_rate=tried.hit_rate, probe=True, reason=reason)
        trial = replace(told, t_primary=tried.table_s / tried.verify_s, late=tried.late)
        return trial, lasting, every


def _both(beside: StepTimeFit, by_itself: StepTimeFit | None) -> tuple[StepTime, StepTime]:
    """What the two fits say; one that has seen nothing says what the other one says."""
    if by_itself is None or not by_itself.observations:
        return beside.model, beside.model
    return beside.model if beside.observations else by_itself.model, by_itself.model


def _spread(sequence: int) -> int:
    """A number below 2^64 that looks random but is always the same for one sequence."""
    return (sequence + 1) * _HASH % _HASH_SPACE


def _named(setting: Setting) -> str:
    if setting.mode is Mode.AR:
        return "ar"
    if setting.mode is Mode.SD:
        return f"sd K={setting.k}"
    share = f" for {setting.share:.0%} of the rows" if setting.share < 1.0 else ""
    return f"ssd depth={setting.depth} B={setting.budget} K={setting.k} fallback={setting.fallback.value}{share}"
