"""How clearly a router has decided: the distance between what it chose and the next best.

A margin in logits is the least change of the router's logits that could turn the choice, so that it can
be compared with the error of a lower precision whatever the gate computes from the logits.
"""

import dataclasses

import torch


@dataclasses.dataclass
class Decision:
    """The `count` largest of `scores` (..., candidates) are chosen."""

    scores: torch.Tensor
    count: int
    per_logit: float = 1.0  # the most that a difference of scores may grow with a difference of logits

    def margin(self):
        """(...): infinite if all candidates are chosen."""
        if self.count >= self.scores.shape[-1]:
            return torch.full(self.scores.shape[:-1], torch.inf)
        top = self.scores.topk(self.count + 1, dim=-1).values
        return top[..., self.count - 1] - top[..., self.count]

    def keep(self):
        return torch.zeros_like(self.scores, dtype=torch.bool).scatter(
            -1, self.scores.topk(self.count, dim=-1).indices, True
        )


def of_groups(scores, groups):
    """Scores of experts in groups that are not kept become −∞."""
    kept = groups.keep().repeat_interleave(scores.shape[-1] // groups.scores.shape[-1], dim=-1)
    return scores.masked_fill(~kept, -torch.inf)


def decisions(router, logits, k):
    """What `router` decides, the choice of experts last, from its logits (..., experts)."""
    kind = type(router).__name__
    if kind == "DeepseekV2TopkRouter" and router.topk_method == "group_limited_greedy":
        best = logits.unflatten(-1, (router.num_group, -1)).amax(dim=-1)
        groups = Decision(best, router.topk_group)
        return [groups, Decision(of_groups(logits, groups), k)]
    if kind == "DeepseekV3TopkRouter":  # the slope of a sigmoid is at most 1/4
        scores = logits.sigmoid() + router.e_score_correction_bias
        best = scores.unflatten(-1, (router.num_group, -1)).topk(2, dim=-1).values.sum(dim=-1)
        groups = Decision(best, router.topk_group, per_logit=1 / 2)
        return [groups, Decision(of_groups(scores, groups), k, per_logit=1 / 4)]
    return [Decision(logits, k)]


@dataclasses.dataclass
class Routing:
    """What one router did with tokens (...)."""

    margin: torch.Tensor  # (...), in logits
    margin_of_scores: torch.Tensor  # (...), in softmax probabilities, or in V3's sigmoids and biases
    chosen: torch.Tensor  # (..., k)


def routing(router, logits, k):
    made = decisions(router, logits, k)
    margin = torch.stack([d.margin() / d.per_logit for d in made]).amin(dim=0)
    scores = made if type(router).__name__ == "DeepseekV3TopkRouter" else decisions(
        router, logits.softmax(dim=-1), k
    )
    margin_of_scores = torch.stack([d.margin() for d in scores]).amin(dim=0)
    return Routing(margin, margin_of_scores, made[-1].scores.topk(k).indices)
