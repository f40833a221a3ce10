"""Confidence limits from finitely many prompts, with no assumption about how their figures are distributed.

The prompt is the unit of independence: a caller hands over one number per prompt. Every limit here is one-sided and
non-asymptotic: it holds with probability at least `1 - alpha` at every sample size. What is no number, or outside the
range a limit rests on, is a ValueError: it never becomes a confident limit.

One file per kind: `rates` and `quantiles` (exact, from the binomial), `means` (of figures in [0, 1]), `sequences`
(valid at every look), `clusters` (many figures per prompt), `families` (many limits at once), `sizes` (how many
prompts).
"""

from snapline.contracts.estimators.clusters import cluster_means, clustered_mean_upper
from snapline.contracts.estimators.families import bonferroni, holm
from snapline.contracts.estimators.means import (
    MEAN_METHOD,
    empirical_bernstein_upper,
    hoeffding_upper,
    mean_lower,
    mean_p_value,
    mean_upper,
    mean_upper_of_zeros,
    paired_mean_lower,
    paired_mean_upper,
)
from snapline.contracts.estimators.quantiles import QUANTILE_METHOD, quantile_lower, quantile_upper
from snapline.contracts.estimators.rates import RATE_METHOD, rate_lower, rate_p_value, rate_upper
from snapline.contracts.estimators.sequences import SEQUENCE_METHOD, mean_sequence, mean_sequence_lower
from snapline.contracts.estimators.sizes import (
    hoeffding_prompts,
    mean_prompts,
    prompts_needed,
    quantile_prompts,
    rate_prompts,
)

__all__ = [
    "MEAN_METHOD",
    "QUANTILE_METHOD",
    "RATE_METHOD",
    "SEQUENCE_METHOD",
    "bonferroni",
    "cluster_means",
    "clustered_mean_upper",
    "empirical_bernstein_upper",
    "hoeffding_prompts",
    "hoeffding_upper",
    "holm",
    "mean_lower",
    "mean_p_value",
    "mean_prompts",
    "mean_sequence",
    "mean_sequence_lower",
    "mean_upper",
    "mean_upper_of_zeros",
    "paired_mean_lower",
    "paired_mean_upper",
    "prompts_needed",
    "quantile_lower",
    "quantile_prompts",
    "quantile_upper",
    "rate_lower",
    "rate_p_value",
    "rate_prompts",
    "rate_upper",
]
