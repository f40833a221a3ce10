"""Look at one model and one target as they are now, and decide its gate."""

from __future__ import annotations

from dataclasses import dataclass, field

from snapline.contracts import certificate
from snapline.contracts.errors import EngineUnavailableError
from snapline.contracts.gate import Examined, GateDecision, TargetNow, basis_of, decide, examine
from snapline.contracts.records import with_files_as_they_are
from snapline.contracts.targets import Target, identify
from snapline.lineage.events import Attested
from snapline.lineage.model import ModelVersion
from snapline.lineage.observe import Depth, Lens, Observation, observe, policy_of
from snapline.lineage.signing import TrustedKeys
from snapline.lineage.state import State


@dataclass(frozen=True, slots=True)
class Inspector:
    """What inspecting needs: the ledger's state, a lens on the inputs, and who is believed."""

    state: State
    lens: Lens
    trusted: TrustedKeys
    depth: Depth
    _known: dict[str, certificate.Certificate] = field(default_factory=dict, init=False, repr=False, compare=False)

    def read(self, attested: Attested) -> certificate.Certificate:
        """Return the certificate of an attestation, its envelope and every object it binds verified.

        Each is read once: an inspector looks at one moment.

        Raises:
            IntegrityError: Anything of it is missing, differs, or was signed by a stranger.
        """
        if attested.envelope not in self._known:
            found = certificate.read(self.lens.objects.read(attested.envelope), self.trusted)
            for address in found.retained:
                self.lens.objects.read(address)
            self._known[attested.envelope] = found
        return self._known[attested.envelope]

    def observe(self, model: ModelVersion) -> Observation:
        """Return how the model's own inputs differ."""
        return observe(model, self.state, self.lens, self.depth)

    def inspect(
        self, model: ModelVersion, target: TargetNow, observation: Observation
    ) -> tuple[GateDecision, Examined]:
        """Return the gate's decision for a target, and the certificates it looked at."""
        examined = examine(model, target, with_files_as_they_are(self.state, self.lens.objects), self.read)
        policy, basis = policy_of(model, self.state), basis_of(model, self.state)
        return decide(model, target.name, observation.causes, examined, policy, basis), examined


def target_now(name: str, target: Target) -> TargetNow:
    """Return what is installed at a target, or why that cannot be told."""
    try:
        return TargetNow(name, identify(target))
    except EngineUnavailableError as error:
        return TargetNow(name, None, error.message)
